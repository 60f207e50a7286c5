//! `tandem cluster`: a process for each service, and the one that watches them.

use crate::{
    endpoints::Endpoints,
    running::{Running, signal},
};
use rustix::process::Signal;
use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    process::ExitStatus,
    time::Duration,
};
use tandem_bus_tests::eventually;

/// A cluster on a temporary directory.
pub struct Six {
    running: Running,
    /// Addresses of its executor.
    pub endpoints: Endpoints,
}

impl Six {
    /// Starts a cluster in `folder` on free ports and waits until it is ready. Discovery finds no
    /// peers.
    pub fn start(binary: &Path, folder: &Path, genesis: &Path, more: &[&str]) -> Self {
        let (datadir, secret) = (folder.join("data"), folder.join("jwt.hex"));
        let given = [
            "cluster",
            "--datadir",
            datadir.to_str().unwrap(),
            "--genesis",
            genesis.to_str().unwrap(),
            "--authrpc.jwtsecret",
            secret.to_str().unwrap(),
        ];
        let ports = ["--authrpc.port", "0", "--http.port", "0"];
        let discovery = ["--discovery.addr", "127.0.0.1", "--discovery.port", "0"];
        let sessions = ["--sessions.addr", "127.0.0.1", "--sessions.port", "0"];
        let arguments = [&given[..], &ports, &discovery, &sessions, more].concat();
        let mut running = Running::start(binary, folder, "cluster", &arguments);
        let mut at = |mark: &str| running.says(mark).parse().expect("an address");
        let engine = at("ready: Engine API at http://");
        let http = at("JSON-RPC at http://");
        Self { running, endpoints: Endpoints::new(engine, http, secret) }
    }

    /// Returns the process of this command (`storage-writer`, `nats-server`, …) that runs now, the
    /// first if there are several. Returns `None` while there is none.
    pub fn pid(&self, command: &str) -> Option<u32> {
        let own = self.running.pid();
        let children = fs::read_to_string(format!("/proc/{own}/task/{own}/children")).ok()?;
        let is = |pid: &u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = line.split(|&byte| byte == 0);
            let name = words.next().is_some_and(|name| name.ends_with(command.as_bytes()));
            name || words.next() == Some(command.as_bytes())
        };
        children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(is)
    }

    /// Waits for the process of this command and returns its id.
    pub fn running(&self, command: &str) -> u32 {
        eventually(command, || self.pid(command))
    }

    /// Kills a process with SIGKILL.
    pub fn kill(&self, command: &str) {
        signal(self.running(command), Signal::KILL);
    }

    /// Suspends a process for this time.
    pub async fn pause(&self, command: &str, time: Duration) {
        let pid = self.running(command);
        signal(pid, Signal::STOP);
        tokio::time::sleep(time).await;
        signal(pid, Signal::CONT);
    }

    /// Returns the port of this name (`grpc`, `metrics`, …) from the line of a process in the
    /// table.
    pub fn port(&self, process: &str, name: &str) -> u16 {
        let log = self.running.log();
        let line = log.lines().find(|line| line.starts_with(process));
        let mut words = line.expect("a line of the table").split([' ', ',']);
        words.find(|word| *word == name).expect("a port of this name");
        words.next().expect("its number").parse().unwrap()
    }

    /// Returns the metrics of a process, from the metrics port that the table names for `name`.
    pub fn metrics(&self, name: &str) -> String {
        let port = self.port(name, "metrics");
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    /// Stops the cluster with SIGTERM. Returns its exit status and the time it took.
    pub fn stop(&mut self) -> (ExitStatus, Duration) {
        self.running.terminate()
    }

    /// Kills the process that watches the others, and waits until the others are gone too.
    pub fn kill_all(&mut self) {
        let pids: Vec<_> = ["storage-writer", "executor", "multiproof-worker"]
            .into_iter()
            .map(|command| self.running(command))
            .collect();
        self.running.kill();
        for pid in pids {
            let gone = || (!Path::new(&format!("/proc/{pid}")).exists()).then_some(());
            eventually("the end of the others", gone);
        }
    }

    /// Returns everything it has written.
    pub fn log(&self) -> String {
        self.running.log()
    }
}
