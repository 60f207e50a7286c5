//! The server from which a chart downloads a genesis.

use anyhow::Context as _;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

/// An HTTP server of one file; dropping it stops it.
pub struct Server {
    address: SocketAddr,
    digest: String,
    requests: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts the server on the address of this machine from which the node is reached.
    ///
    /// # Errors
    /// If the address is not found or cannot be listened on.
    pub fn start(node: &str, body: Vec<u8>) -> anyhow::Result<Self> {
        let digest = Sha256::digest(&body).iter().map(|byte| format!("{byte:02x}")).collect();
        let probe = UdpSocket::bind(("0.0.0.0", 0))?;
        probe.connect((node, 9)).with_context(|| format!("find the way to {node}"))?;
        let listener = TcpListener::bind((probe.local_addr()?.ip(), 0))?;
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let (requests, stop) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let (count, stopped) = (requests.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            while !stopped.load(Relaxed) {
                let Ok((mut stream, _)) = listener.accept() else {
                    std::thread::sleep(Duration::from_millis(50));
                    continue;
                };
                count.fetch_add(1, Relaxed);
                let head = format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                    body.len()
                );
                // A caller that has gone does not stop the server.
                let _ = stream.set_nonblocking(false);
                let _ = stream.set_read_timeout(Some(Duration::from_secs(2)));
                let lines = BufReader::new(&stream).lines();
                let _ = lines.map_while(Result::ok).find(String::is_empty);
                let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
            }
        });
        Ok(Self { address, digest, requests, stop, thread: Some(thread) })
    }

    /// Returns the chart's values for the file as genesis (`genesis.url`).
    pub fn url(&self) -> Value {
        json!({"address": format!("http://{}/genesis.json", self.address), "sha256": self.digest})
    }

    /// Returns the server's place, as network policies name it.
    pub fn place(&self) -> Value {
        json!([{"ipBlock": {"cidr": format!("{}/32", self.address.ip())}}])
    }

    /// Returns how many requests there were.
    pub fn requests(&self) -> usize {
        self.requests.load(Relaxed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed already.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_gives_its_file_and_is_gone_when_it_is_dropped() {
        let server = Server::start("127.0.0.1", b"{}".to_vec()).unwrap();
        let (address, time_max) = (server.address, Duration::from_secs(5));
        let answer = crate::client::get(address, "/genesis.json", time_max).unwrap();
        assert_eq!((answer, server.requests()), ((200, "{}".to_owned()), 1));
        drop(server);
        assert!(crate::client::get(address, "/genesis.json", time_max).is_err());
    }
}
