//! A genesis by URL whose server is gone when storage-writer restarts.

use super::{
    Options,
    release::{READY_TIME_MAX, Release},
};
use crate::figure::{Figure, Limit, Report};
use anyhow::Context as _;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Longest time until a restarted storage-writer is ready.
const RESTART_SECONDS_MAX: f64 = 60.0;

/// Measures the figure.
pub fn measure(options: &Options, report: &mut Report) {
    report.measure("genesis by URL: restart without its server", || restart(options));
}

fn restart(options: &Options) -> anyhow::Result<Vec<Figure>> {
    let release = Release::prepare(options, "genesis", &json!({}))?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("genesis.json");
    crate::blocks::write_genesis(&file)?;
    let body = fs::read(&file)?;
    let digest: String = Sha256::digest(&body).iter().map(|byte| format!("{byte:02x}")).collect();
    let server = Server::start(&release.node_address(None)?, body)?;
    let mut url = json!({"address": format!("http://{}/genesis.json", server.address),
        "sha256": digest});
    let schema: Value =
        serde_json::from_slice(&fs::read(options.chart.join("values.schema.json"))?)?;
    let knows = |key: &str| {
        schema.pointer(&format!("/properties/genesis/properties/url/properties/{key}")).is_some()
    };
    // A chart downloads with an image of its own, or through the service itself, from a named
    // address.
    if let Some(image) = options.download_image.as_ref().filter(|_| knows("image")) {
        url["image"] = json!(image);
    }
    if knows("to") {
        url["to"] = json!([{"ipBlock": {"cidr": format!("{}/32", server.address.ip())}}]);
    }
    let source = json!({"genesis": {"source": "url", "url": url}});
    release.helm("install", &source, READY_TIME_MAX)?;
    release.expose()?;
    release.wait_until_ready()?;
    let requests = server.requests();
    drop(server);
    let pods = release.kube.pods_of("storage-writer")?;
    let pod = pods.first().context("no pod of storage-writer")?;
    let begun = Instant::now();
    release.kube.kubectl_for(&["delete", "pod", &pod.name, "--wait=true"], READY_TIME_MAX)?;
    let ready = release.wait_until_ready().map(|()| begun.elapsed().as_secs_f64());
    let note = ready.as_ref().err().map_or_else(String::new, |error| format!("; {error:#}"));
    let name = "genesis by URL: restart with its server gone, seconds";
    let seconds = ready.unwrap_or(f64::INFINITY);
    let note = format!("{requests} requests at the first start{note}");
    Ok(vec![Figure::new(name, seconds, Limit::AtMost(RESTART_SECONDS_MAX)).note(note)])
}

/// An HTTP server of one file; dropping it stops it.
struct Server {
    address: SocketAddr,
    requests: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts the server on the address of this machine from which the node is reached.
    fn start(node: &str, body: Vec<u8>) -> anyhow::Result<Self> {
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
        Ok(Self { address, requests, stop, thread: Some(thread) })
    }

    fn requests(&self) -> usize {
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
