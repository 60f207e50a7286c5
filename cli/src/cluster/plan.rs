//! Plans the processes and their flags.

use super::{Args, flags::forwarded, nats, nats::Nats};
use crate::{
    certificates::{Files, PROMOTABLE},
    environment::variable,
};
use anyhow::Context;
use clap::{ArgMatches, Command};
use std::{
    collections::HashSet,
    env,
    ffi::OsString,
    net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    path::{Path, PathBuf},
};

/// Flags of the services that this command sets, not the user.
pub const OURS: [&str; 24] = [
    "datadir",
    "grpc.addr",
    "grpc.port",
    "metrics.addr",
    "metrics.port",
    "nats",
    "storage-writer",
    "worker",
    "worker-id",
    "advertise",
    "executor-id",
    "blob-validator",
    "tx-executor",
    "peer-table",
    "peer-sessions",
    "tx-pool",
    "leader",
    "sessions.port",
    "authrpc.port",
    "authrpc.jwtsecret",
    "http.port",
    "tls.ca",
    "tls.cert",
    "tls.key",
];

/// Range from which ports are taken. It lies outside the range of the system's connections, so that
/// a restarted process finds its port free.
const PORTS: std::ops::Range<u16> = 10_000..30_000;

/// Plan of one process.
pub struct Role {
    /// Name of the process and of its log.
    pub name: String,
    pub binary: PathBuf,
    pub arguments: Vec<OsString>,
    /// Ports on which it listens, on loopback by default.
    pub ports: Vec<(&'static str, u16)>,
    /// Port that reports whether it is ready.
    pub metrics: Option<u16>,
    /// Whether payloads need it: the cluster is ready only when it is, and ends when it dies before.
    pub is_needed: bool,
    pub log: PathBuf,
    /// Stage of the start. Processes of a later stage call those of earlier ones.
    pub stage: u8,
    /// Environment variables that are not passed on to it.
    pub unset: Vec<String>,
}

/// All processes, in the order in which they start.
pub struct Plan {
    pub roles: Vec<Role>,
    /// Addresses that the user calls.
    pub summary: String,
}

impl Plan {
    /// Returns the plan for these options.
    pub fn new(
        args: &Args,
        program: &Command,
        matches: &ArgMatches,
        logs: &Path,
    ) -> anyhow::Result<Self> {
        let certificates = args.certificates()?;
        let is_secure = certificates.is_some() || args.node.settings()?.tls.is_on();
        let storage = args.node.settings()?.storage_writer;
        let mut planner = Planner {
            program,
            matches,
            logs,
            binary: env::current_exe().context("find this program")?,
            certificates,
            scheme: if is_secure { "https" } else { "http" },
            nats: None,
            nats_passwords: None,
            followers_use_bus: storage.lead.is_leased() || storage.feed.is_published(),
            taken: HashSet::new(),
            roles: Vec::new(),
        };
        planner.bus(args)?;
        let summary = planner.services(args)?;
        Ok(Self { roles: planner.roles, summary })
    }
}

struct Planner<'a> {
    program: &'a Command,
    matches: &'a ArgMatches,
    logs: &'a Path,
    binary: PathBuf,
    /// Directory with the certificates of each service, if they are made here.
    certificates: Option<PathBuf>,
    /// Scheme of the services' URLs.
    scheme: &'static str,
    nats: Option<String>,
    /// Directory with the password of each user, if the NATS server is started here.
    nats_passwords: Option<PathBuf>,
    /// Whether followers hold a lease in NATS, or publish blocks there once they lead.
    followers_use_bus: bool,
    taken: HashSet<u16>,
    roles: Vec<Role>,
}

impl Planner<'_> {
    fn bus(&mut self, args: &Args) -> anyhow::Result<()> {
        match Nats::choose(args)? {
            Nats::None => {}
            Nats::Elsewhere(url) => self.nats = Some(url),
            Nats::Own(binary) => {
                let port = self.free_port()?;
                self.nats = Some(format!("nats://127.0.0.1:{port}"));
                let log = self.logs.join("nats-server.log");
                let passwords = args.node.datadir().join("secrets");
                self.roles.push(nats::role(binary, port, args.node.datadir(), &passwords, log)?);
                self.nats_passwords = Some(passwords);
            }
        }
        Ok(())
    }

    fn services(&mut self, args: &Args) -> anyhow::Result<String> {
        let datadir = vec!["--datadir".into(), args.node.datadir().into()];
        let storage = self.service("storage-writer", None, 1, datadir.clone(), &[])?;
        let blobs = self.service("blob-validator", None, 1, Vec::new(), &[])?;
        let table = self.service("peer-table", None, 1, datadir.clone(), &[])?;
        let scheme = self.scheme;
        let at = |port: u16| OsString::from(format!("{scheme}://127.0.0.1:{port}"));
        let copies =
            (0..args.followers).map(|_| self.free_port()).collect::<Result<Vec<_>, _>>()?;
        // Each may lead one day.
        let writers: Vec<u16> = [storage].into_iter().chain(copies.iter().copied()).collect();
        let mut calls = vec!["--storage-writer".into(), self.urls(&writers)];
        let mut workers = Vec::new();
        for number in 1..=args.workers {
            let id = format!("worker-{number}");
            let own = [&calls[..], &["--worker-id".into(), (&id).into()]].concat();
            let name = format!("multiproof-{id}");
            workers.push(self.service("multiproof-worker", Some(&name), 2, own, &[])?);
        }
        let mut tx_executors = Vec::new();
        for number in 1..=args.tx_executors {
            let name = format!("tx-executor-{number}");
            tx_executors.push(self.service("tx-executor", Some(&name), 1, Vec::new(), &[])?);
        }
        for worker in workers {
            calls.extend(["--worker".into(), at(worker)]);
        }
        calls.extend(["--blob-validator".into(), at(blobs)]);
        let sessions_port = if args.node.disables_sessions() {
            None
        } else {
            let own = [&datadir[..], &calls[..2], &["--peer-table".into(), at(table)]].concat();
            let (calls_port, port) = self.sessions(args, own)?;
            calls.extend(["--peer-sessions".into(), at(calls_port)]);
            Some(port)
        };
        // tx-pool has no use for workers.
        let own = calls.chunks(2).filter(|flag| flag[0] != "--worker").flatten().cloned();
        let own = datadir.iter().cloned().chain(own).collect();
        let pool = self.service("tx-pool", None, 3, own, &[])?;
        calls.extend(["--tx-pool".into(), at(pool)]);
        for (number, port) in (1..).zip(copies) {
            let others: Vec<u16> = writers.iter().copied().filter(|it| *it != port).collect();
            self.follower(args, number, port, &others, pool)?;
        }
        for tx_executor in tx_executors {
            calls.extend(["--tx-executor".into(), at(tx_executor)]);
        }
        let summary = self.executor(args, calls)?;
        if !args.node.disables_discovery() {
            let mut own = [&datadir[..], &["--peer-table".into(), at(table)]].concat();
            let settings = args.node.settings()?.discovery;
            let (ip, port) = (settings.addr, settings.port);
            // Several nodes on one machine are legitimate; a requested port that is in use is an
            // error.
            if !args.node.asks_for_discovery_port() && UdpSocket::bind((ip, port)).is_err() {
                own.extend(["--discovery.port".into(), "0".into()]);
            }
            if let Some(port) = sessions_port.filter(|_| settings.tcp_port == 0) {
                own.extend(["--discovery.tcp-port".into(), port.to_string().into()]);
            }
            self.add("discovery", None, 4, own, &["peers.target"], Vec::new())?;
        }
        Ok(summary)
    }

    /// Adds peer-sessions, and returns the port of its calls and that of the sessions.
    fn sessions(&mut self, args: &Args, mut own: Vec<OsString>) -> anyhow::Result<(u16, u16)> {
        let listen = args.node.settings()?.peer_sessions.listen;
        // Several nodes on one machine are legitimate; a requested port that is in use is an error.
        let is_taken = || !args.node.asks_for_sessions_port() && TcpListener::bind(listen).is_err();
        let port = if listen.port() == 0 || is_taken() { self.free_port()? } else { listen.port() };
        own.extend(["--sessions.port".into(), port.to_string().into()]);
        let calls = self.free_port()?;
        own.extend(["--grpc.port".into(), calls.to_string().into()]);
        let ports = vec![("grpc", calls), ("sessions", port)];
        self.add("peer-sessions", None, 2, own, &[], ports)?;
        Ok((calls, port))
    }

    /// Returns the URLs of services on these ports, with commas between them.
    fn urls(&self, ports: &[u16]) -> OsString {
        let urls = ports.iter().map(|port| format!("{}://127.0.0.1:{port}", self.scheme));
        urls.collect::<Vec<_>>().join(",").into()
    }

    /// Adds a follower of the storage-writers on other ports, with a data directory of its own. It can
    /// be promoted, and then is the storage-writer on its port. Transactions go to the tx-pool on the last
    /// port.
    fn follower(
        &mut self,
        args: &Args,
        number: u16,
        port: u16,
        others: &[u16],
        pool: u16,
    ) -> anyhow::Result<()> {
        let name = format!("follower-{number}");
        let copy = args.node.datadir().join("followers").join(&name);
        let http = self.free_port()?;
        let own = vec![
            "--datadir".into(),
            copy.into_os_string(),
            "--leader".into(),
            self.urls(others),
            "--tx-pool".into(),
            self.urls(&[pool]),
            "--grpc.port".into(),
            port.to_string().into(),
            "--http.port".into(),
            http.to_string().into(),
        ];
        self.add("follower", Some(&name), 4, own, &[], vec![("http", http), ("grpc", port)])
    }

    fn executor(&mut self, args: &Args, mut own: Vec<OsString>) -> anyhow::Result<String> {
        let asked = args.node.ports();
        let mut chosen = |port: u16| if port == 0 { self.free_port() } else { Ok(port) };
        let (engine, http) = (chosen(asked.engine.port())?, chosen(asked.http.port())?);
        let text = |port: u16| OsString::from(port.to_string());
        own.extend(["--authrpc.port".into(), text(engine), "--http.port".into(), text(http)]);
        own.extend(["--authrpc.jwtsecret".into(), asked.jwt_secret.clone().into_os_string()]);
        if let Some(metrics) = args.node.asks_for_metrics().filter(|it| it.port() != 0) {
            own.extend(["--metrics.addr".into(), metrics.ip().to_string().into()]);
            own.extend(["--metrics.port".into(), text(metrics.port())]);
        }
        self.add("executor", None, 4, own, &[], vec![("engine", engine), ("http", http)])?;
        Ok(format!(
            "Engine API at http://{} with the secret {}, JSON-RPC at http://{}",
            SocketAddr::new(asked.engine.ip(), engine),
            asked.jwt_secret.display(),
            SocketAddr::new(asked.http.ip(), http)
        ))
    }

    /// Adds a service that accepts calls, and returns its port.
    fn service(
        &mut self,
        command: &str,
        name: Option<&str>,
        stage: u8,
        mut own: Vec<OsString>,
        but: &[&str],
    ) -> anyhow::Result<u16> {
        let port = self.free_port()?;
        own.extend(["--grpc.port".into(), port.to_string().into()]);
        self.add(command, name, stage, own, but, vec![("grpc", port)])?;
        Ok(port)
    }

    /// Adds a process with its own flags, the flags of the user that it knows, and the bus. It is
    /// named after its command unless it has a name.
    fn add(
        &mut self,
        command: &str,
        name: Option<&str>,
        stage: u8,
        own: Vec<OsString>,
        but: &[&str],
        mut ports: Vec<(&'static str, u16)>,
    ) -> anyhow::Result<()> {
        let service = self.program.find_subcommand(command).context("the command of a service")?;
        let mut arguments = vec![command.into()];
        arguments.extend(forwarded(service, self.matches, &[&OURS[..], but].concat()));
        // A follower uses the bus only for the lease of the lead and the stream of blocks; a
        // tx-executor has nothing to tell, and no user there.
        let uses_bus = match command {
            "follower" => self.followers_use_bus,
            command => command != "tx-executor",
        };
        if let Some(url) = self.nats.as_ref().filter(|_| uses_bus) {
            arguments.extend(["--nats".into(), url.into()]);
        }
        let mut unset = Vec::new();
        if let Some(folder) = self.nats_passwords.as_ref().filter(|_| uses_bus) {
            let user = nats::user(command);
            let file = nats::password_file(folder, user);
            arguments.extend(["--nats.user".into(), user.into()]);
            arguments.extend(["--nats.password-file".into(), file.into_os_string()]);
            unset.extend(nats::LOGIN.map(variable));
        }
        if let Some(folder) = &self.certificates {
            let name = if command == "follower" { PROMOTABLE } else { command };
            let Files { ca, cert, key } = Files::of(folder, name);
            for (flag, file) in [("--tls.ca", ca), ("--tls.cert", cert), ("--tls.key", key)] {
                arguments.extend([flag.into(), file.into_os_string()]);
            }
        }
        // The metrics port of the executor may have been chosen.
        let given = own.iter().position(|flag| flag == "--metrics.port");
        let given = given.and_then(|at| own.get(at + 1)?.to_str()?.parse().ok());
        let metrics = match given {
            Some(port) => port,
            None => {
                let port = self.free_port()?;
                arguments.extend(["--metrics.port".into(), port.to_string().into()]);
                port
            }
        };
        ports.push(("metrics", metrics));
        arguments.extend(own);
        let name = name.unwrap_or(command).to_owned();
        let (binary, log) = (self.binary.clone(), self.logs.join(format!("{name}.log")));
        let metrics = Some(metrics);
        self.roles.push(Role {
            name,
            binary,
            arguments,
            ports,
            metrics,
            // The cluster goes on without copies.
            is_needed: command != "follower",
            log,
            stage,
            unset,
        });
        Ok(())
    }

    /// Returns a port that is free at this moment.
    fn free_port(&mut self) -> anyhow::Result<u16> {
        for _ in 0..1000 {
            let port = rand::random_range(PORTS);
            let free = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
            if free && self.taken.insert(port) {
                return Ok(port);
            }
        }
        anyhow::bail!("no free port")
    }
}
