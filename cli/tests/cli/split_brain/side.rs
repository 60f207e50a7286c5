//! Storage-writer of a world with two of them.

use crate::binary;
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};
use tandem_cluster_tests::Service;
use tandem_testkit::{last_lines, network::Proxy};
use tokio::runtime::Handle;

/// Lines of a log that are shown of a test that fails.
const LINES_SHOWN: usize = 60;

/// One of two storage-writers.
pub struct Side {
    name: &'static str,
    datadir: PathBuf,
    pub service: Service,
    /// Its connection to NATS.
    pub nats: Proxy,
    /// Connection of the other side to it.
    pub calls: Proxy,
    /// Times it was started.
    starts: u32,
}

impl Side {
    /// Starts the side that leads first.
    pub fn start_leader(folder: &Path, nats: SocketAddr, runtime: &Handle) -> Self {
        let (nats, datadir) = (Proxy::start(nats, runtime), folder.join("data"));
        let own = ["storage-writer", "--datadir", datadir.to_str().unwrap()];
        let service = start(folder, "first-1", 0, &nats, &own);
        let calls = Proxy::start(service.address, runtime);
        Self { name: "first", datadir, service, nats, calls, starts: 1 }
    }

    /// Starts the side that follows first.
    pub fn start_follower(
        folder: &Path,
        nats: SocketAddr,
        leader: &Side,
        runtime: &Handle,
    ) -> Self {
        let (nats, datadir) = (Proxy::start(nats, runtime), folder.join("copy"));
        let service = follow(folder, "second-1", 0, &nats, &datadir, leader);
        let calls = Proxy::start(service.address, runtime);
        Self { name: "second", datadir, service, nats, calls, starts: 1 }
    }

    /// Starts the process again as a follower of the other side if it has ended, or was superseded.
    pub fn revive(&mut self, folder: &Path, other: &Side) {
        if !self.service.running.has_ended() {
            let answer = self.service.try_get("/readyz");
            let superseded = "the lead, which another storage-writer has";
            if !answer.is_some_and(|(_, text)| text.contains(superseded)) {
                return;
            }
            self.service.running.kill();
        }
        self.starts += 1;
        let (name, port) = (format!("{}-{}", self.name, self.starts), self.service.address.port());
        self.service = follow(folder, &name, port, &self.nats, &self.datadir, other);
    }

    /// Prints the end of its log, and whether it is ready.
    pub fn show(&self) {
        let log = self.service.running.log();
        let end = last_lines(&log, LINES_SHOWN).join("\n");
        let ready = self.service.try_get("/readyz");
        eprintln!("== {}-{}, {ready:?}\n{end}", self.name, self.starts);
    }

    pub fn is_ready(&self) -> bool {
        self.service.try_get("/readyz").is_some_and(|(status, _)| status == 200)
    }

    pub fn holds_lease(&self) -> bool {
        let metrics = self.service.try_get("/metrics").map_or(String::new(), |(_, text)| text);
        metrics.lines().any(|line| line == "tandem_storage_writer_lease_held 1")
    }
}

fn follow(
    folder: &Path,
    name: &str,
    port: u16,
    nats: &Proxy,
    datadir: &Path,
    leader: &Side,
) -> Service {
    let url = format!("http://{}", leader.calls.address);
    let own = ["follower", "--leader", &url, "--datadir", datadir.to_str().unwrap()];
    start(folder, name, port, nats, &[&own[..], &["--http.port=0"]].concat())
}

fn start(folder: &Path, name: &str, port: u16, nats: &Proxy, own: &[&str]) -> Service {
    let settings = folder.join("settings.toml");
    let url = format!("nats://{}", nats.address);
    let common = ["--config", settings.to_str().unwrap(), "--nats", &url];
    Service::start(binary(), folder, name, port, &[own, &common].concat())
}
