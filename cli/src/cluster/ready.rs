//! Asks processes whether they are ready.

use super::child::Child;
use std::{net::Ipv4Addr, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// Longest wait for an answer.
const ANSWER_MAX: Duration = Duration::from_millis(500);

/// Returns whether all needed processes with a metrics port report that they are ready.
pub async fn all(children: &[Child]) -> bool {
    let needed = children.iter().filter(|child| child.role.is_needed);
    for port in needed.filter_map(|child| child.role.metrics) {
        if !timeout(ANSWER_MAX, is_ready(port)).await.unwrap_or(false) {
            return false;
        }
    }
    true
}

async fn is_ready(port: u16) -> bool {
    let asked = async {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n").await?;
        let mut answer = [0; 16];
        let length = stream.read(&mut answer).await?;
        Ok::<_, std::io::Error>(answer[..length].split(|&byte| byte == b' ').nth(1) == Some(b"200"))
    };
    asked.await.unwrap_or(false)
}
