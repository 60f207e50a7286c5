//! A real `nats-server` for tests, as a child process on a free port with a temporary store.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

mod install;

use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::Mutex,
    thread::sleep,
    time::{Duration, Instant},
};
use tempfile::TempDir;

pub use install::nats_server;

/// Longest wait for any condition, on the slowest machine.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// A NATS server, with JetStream unless told otherwise. Dropping it kills it and removes its files.
pub struct NatsServer {
    binary: PathBuf,
    /// `None` while the server is killed.
    child: Option<Child>,
    folder: TempDir,
    port: u16,
    monitor: u16,
    /// Name in a cluster.
    name: Option<String>,
    /// Whether the server has JetStream, from the next start on.
    pub jetstream: bool,
    /// Additional lines for its configuration file, such as `authorization { … }`, from the next
    /// start on.
    pub config: String,
}

impl NatsServer {
    /// Starts a server. Returns `None`, and prints a line that says so, if no `nats-server` can be
    /// found.
    pub fn start() -> Option<Self> {
        Self::start_with("")
    }

    /// Starts a server with additional lines in its configuration file.
    pub fn start_with(config: &str) -> Option<Self> {
        let mut server = Self::stopped()?;
        config.clone_into(&mut server.config);
        server.restart();
        Some(server)
    }

    /// Creates a server without starting it. It will listen on a port that was free a moment ago.
    pub fn stopped() -> Option<Self> {
        let Some(binary) = nats_server() else {
            // Not by a macro: the test harness would capture its output.
            let _ = std::io::stderr().write_all(b"skipped: no nats-server\n");
            return None;
        };
        let port = free_port();
        let (folder, config) = (tempfile::tempdir().unwrap(), String::new());
        Some(Self {
            binary,
            child: None,
            folder,
            port,
            monitor: 0,
            name: None,
            jetstream: true,
            config,
        })
    }

    /// Starts a cluster of this many servers, which keep copies of each other's streams. They may need
    /// a few seconds until they agree on a leader.
    pub fn start_cluster(servers: u16) -> Option<Vec<Self>> {
        let routes: Vec<u16> = (0..servers).map(|_| free_port()).collect();
        let urls: Vec<String> =
            routes.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
        let start = |(number, port): (usize, &u16)| {
            let (name, routes) = (format!("n{number}"), urls.join(", "));
            let mut server = Self::start_with(&format!(
                "server_name: {name}\ncluster {{ name: c, listen: \"127.0.0.1:{port}\", routes: [{routes}] }}"
            ))?;
            server.name = Some(name);
            Some(server)
        };
        routes.iter().enumerate().map(start).collect()
    }

    /// Returns the name of the server in its cluster.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Starts or restarts the server on its port and over its store, and waits until it listens.
    pub fn restart(&mut self) {
        self.kill();
        let folder = self.folder.path();
        let (file, log) = (folder.join("nats.conf"), folder.join("nats.log"));
        let (port, more) = (self.port, &self.config);
        let mut config = format!(
            "listen: \"127.0.0.1:{port}\"\nhttp: \"127.0.0.1:-1\"\nports_file_dir: {folder:?}\n{more}\n"
        );
        if self.jetstream {
            config += &format!("jetstream {{ store_dir: {:?} }}\n", folder.join("store"));
        }
        fs::write(&file, config).unwrap();
        let child = Command::new(&self.binary)
            .arg("-c")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .expect("nats-server starts");
        let ports = folder.join(format!("nats-server_{}.ports", child.id()));
        self.child = Some(child);
        self.monitor = eventually("nats-server listens", || {
            let child = self.child.as_mut().unwrap();
            let log = || fs::read_to_string(&log).unwrap_or_default();
            assert!(child.try_wait().unwrap().is_none(), "nats-server ended: {}", log());
            // The file may be incomplete: then it does not parse and is read again.
            let ports: Value = serde_json::from_slice(&fs::read(&ports).ok()?).ok()?;
            ports["monitoring"][0].as_str()?.rsplit(':').next()?.parse().ok()
        });
    }

    /// Returns the address the server listens on.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Returns the address as the URL that clients expect.
    pub fn url(&self) -> String {
        format!("nats://{}", self.address())
    }

    /// Kills the server with SIGKILL; its store stays.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Suspends the server (SIGSTOP): connections stay open and nothing is answered.
    pub fn pause(&self) {
        self.signal("-STOP");
    }

    /// Resumes the server (SIGCONT).
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let id = self.child.as_ref().expect("it runs").id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    /// Returns the number of the server's subscriptions that match a subject.
    pub fn subscriptions(&self, subject: &str) -> u64 {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.monitor)).unwrap();
        write!(stream, "GET /subsz?subs=1&test={subject} HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str::<Value>(body).unwrap()["total"].as_u64().unwrap()
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        // SIGKILL reaches a paused server too.
        self.kill();
    }
}

/// Returns a port that is free now, stays free while a server is killed, and was not returned before:
/// the servers of a cluster are told all ports before they listen. It lies outside the range from
/// which the system takes ports for connections. A client that tries to connect in vain could
/// otherwise connect to itself.
pub fn free_port() -> u16 {
    static RETURNED: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    eventually("a free port", || {
        let port = rand::random_range(10_000..30_000);
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()?;
        RETURNED.lock().unwrap().insert(port).then_some(port)
    })
}

/// Asks until there is an answer, for as long as a busy machine may need.
pub fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "{what} within {DEADLINE:?}");
        sleep(Duration::from_millis(10));
    }
}
