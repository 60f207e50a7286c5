//! One JSON-RPC call over HTTP/1.1, blocking, on a connection of its own.

use crate::RpcFault;
use anyhow::{Context as _, bail};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tandem_auth::Secret;

/// Longest time a call may take; a longer one fails the case.
const CALL_TIME_MAX: Duration = Duration::from_secs(120);

#[derive(Deserialize)]
struct Response {
    result: Option<Box<RawValue>>,
    error: Option<RpcFault>,
}

/// Calls a method at this address, with a token if there is a secret to sign one with.
///
/// # Errors
/// If there is no answer, or none that is JSON-RPC over HTTP. The inner error is the error object
/// of the answer.
pub fn call(
    address: SocketAddr,
    secret: Option<&Secret>,
    method: &str,
    params: &str,
) -> anyhow::Result<Result<Box<RawValue>, RpcFault>> {
    let token = match secret {
        Some(secret) => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
            format!("Authorization: Bearer {}\r\n", tandem_auth::sign(secret, now))
        }
        None => String::new(),
    };
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":{},"params":{params}}}"#,
        serde_json::to_string(method)?
    );
    let head = format!(
        "POST / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\
         {token}\r\n",
        body.len(),
    );
    let mut stream = TcpStream::connect(address).context("connect")?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(CALL_TIME_MAX))?;
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).context("read the answer")?;
    let Response { result, error } = serde_json::from_slice(body_of(&answer)?)?;
    match (result, error) {
        (_, Some(fault)) => Ok(Err(fault)),
        (Some(result), None) => Ok(Ok(result)),
        // `"result":null` is an answer too.
        (None, None) => Ok(Ok(RawValue::from_string("null".to_owned())?)),
    }
}

/// Returns the body of a response with status 200.
fn body_of(answer: &[u8]) -> anyhow::Result<&[u8]> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").context("no HTTP head")?;
    let head = String::from_utf8_lossy(&answer[..end]);
    if !head.starts_with("HTTP/1.1 200") {
        bail!("{}", head.lines().next().unwrap_or_default());
    }
    if head.to_ascii_lowercase().contains("transfer-encoding") {
        bail!("the answer comes in chunks");
    }
    Ok(&answer[end + 4..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_follows_the_empty_line_of_a_good_answer() {
        assert_eq!(body_of(b"HTTP/1.1 200 OK\r\na: b\r\n\r\n{}").unwrap(), b"{}");
        for wrong in [
            b"HTTP/1.1 401 Unauthorized\r\n\r\n".as_slice(),
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n",
            b"",
        ] {
            assert!(body_of(wrong).is_err());
        }
    }
}
