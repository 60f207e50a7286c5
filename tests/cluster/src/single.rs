//! Services as processes of their own that a test starts and stops one by one.

use crate::{corpus::Corpus, endpoints::Endpoints, running::Running};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::Command,
};
use tandem_bus_tests::eventually;

/// Creates the database of the demo corpus in `data` below a folder.
pub fn init(binary: &Path, folder: &Path) {
    let made = Command::new(binary)
        .args(["init", "--genesis"])
        .arg(Corpus::demo().genesis())
        .arg("--datadir")
        .arg(folder.join("data"))
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
}

/// A service with a metrics port.
pub struct Service {
    /// The service's process.
    pub running: Running,
    /// Address of its calls: gRPC, or the Engine API.
    pub address: SocketAddr,
    metrics: SocketAddr,
}

impl Service {
    /// Starts a service that is called over gRPC, on this port, 0 for a free one.
    pub fn start(binary: &Path, folder: &Path, name: &str, port: u16, more: &[&str]) -> Self {
        let port = port.to_string();
        let ports = ["--metrics.addr=127.0.0.1", "--metrics.port=0", "--grpc.port", &port];
        let mut running = Running::start(binary, folder, name, [more, &ports].concat());
        let metrics = listens(&mut running, "metrics");
        Self { address: listens(&mut running, "grpc"), running, metrics }
    }

    /// Starts storage-writer on the database in `data` below the folder.
    pub fn storage_writer(binary: &Path, folder: &Path, name: &str, port: u16) -> Self {
        let datadir = folder.join("data");
        let own = ["storage-writer", "--datadir", datadir.to_str().unwrap()];
        Self::start(binary, folder, name, port, &own)
    }

    /// Returns the status and the text of `/readyz` or another path of the metrics port.
    pub fn get(&self, path: &str) -> (u16, String) {
        self.try_get(path).expect("the metrics port answers")
    }

    /// Like [`Service::get`], for a process that may have ended.
    pub fn try_get(&self, path: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(self.metrics).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let code = answer.split(' ').nth(1)?.parse().ok()?;
        Some((code, answer.split_once("\r\n\r\n")?.1.trim().to_owned()))
    }

    /// Waits until the service is ready.
    pub fn becomes_ready(&self) {
        eventually("it is ready", || (self.get("/readyz").0 == 200).then_some(()));
    }

    /// Waits until `/readyz` returns 503 and says that it waits for `what`.
    pub fn waits_for(&self, what: &str) {
        let waiting = (503, format!("waiting for: {what}"));
        eventually(what, || (self.get("/readyz") == waiting).then_some(()));
    }
}

/// An executor in a process of its own.
pub struct SingleExecutor {
    /// The executor's process.
    pub service: Service,
    /// Addresses of its calls.
    pub endpoints: Endpoints,
}

impl SingleExecutor {
    /// Starts the executor of this name. All executors of a folder share one secret.
    pub fn start(binary: &Path, folder: &Path, name: &str, more: &[&str]) -> Self {
        Self::start_with(binary, folder, name, more, &[])
    }

    /// Like [`SingleExecutor::start`], with these environment variables.
    pub fn start_with(
        binary: &Path,
        folder: &Path,
        name: &str,
        more: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let secret: PathBuf = folder.join("jwt.hex");
        let own = [
            "executor",
            "--executor-id",
            name,
            "--authrpc.jwtsecret",
            secret.to_str().unwrap(),
            "--authrpc.port=0",
            "--http.port=0",
            "--metrics.port=0",
            "--metrics.addr=127.0.0.1",
        ];
        let arguments = [&own[..], more].concat();
        let mut running = Running::start_with(binary, folder, name, arguments, variables);
        let metrics = listens(&mut running, "metrics");
        let (engine, http) = (listens(&mut running, "engine"), listens(&mut running, "http"));
        let service = Service { running, address: engine, metrics };
        Self { service, endpoints: Endpoints::new(engine, http, secret) }
    }

    /// Waits until the process has begun anew, under the same id but on other ports, and has the right to
    /// write.
    pub fn begins_anew(&mut self) {
        let starts = |log: &str| log.matches("listening port=\"http\"").count();
        eventually("another start of the executor", || {
            (starts(&self.service.running.log()) > 1).then_some(())
        });
        let log = self.service.running.log();
        let last = |port: &str| -> SocketAddr {
            let mark = format!("listening port=\"{port}\" address=");
            let (_, rest) = log.rsplit_once(&mark).unwrap();
            rest.split_whitespace().next().unwrap().parse().unwrap()
        };
        self.service.address = last("engine");
        self.service.metrics = last("metrics");
        self.endpoints = self.endpoints.moved(last("engine"), last("http"));
        self.takes_over();
    }

    /// Returns whether the executor has the right to write.
    pub fn has_right(&self) -> bool {
        let (_, metrics) = self.service.get("/metrics");
        metrics.lines().any(|line| line == "tandem_executor_right_to_write 1")
    }

    /// Waits until the executor has the right to write.
    pub fn takes_over(&self) {
        eventually("the right to write", || self.has_right().then_some(()));
    }
}

fn listens(running: &mut Running, port: &str) -> SocketAddr {
    running.says(&format!("listening port=\"{port}\" address=")).parse().unwrap()
}
