//! An executor and the services it calls, each a process of its own. Before each service is a
//! network that a test can disturb.

use crate::{endpoints::Endpoints, running::Running};
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};
use tandem_testkit::{last_lines, network::Proxy};
use tokio::runtime::Handle;

/// Settings of a start.
pub struct Wiring<'a> {
    /// The `tandem` binary.
    pub binary: &'a Path,
    /// Folder of the logs, the secret and the settings; the database is in `data` below it.
    pub folder: &'a Path,
    /// The genesis of the chain.
    pub genesis: &'a Path,
    /// Settings of the executor, in the format of a configuration file.
    pub settings: &'a str,
    /// Address of a NATS server.
    pub nats: Option<SocketAddr>,
    /// Runtime of the networks.
    pub runtime: &'a Handle,
}

/// The processes. None is restarted after it dies, because none may die.
pub struct Wired {
    /// In the order in which they are stopped: callers before the services they call.
    processes: Vec<(&'static str, Running)>,
    networks: Vec<(&'static str, Proxy)>,
    /// Addresses of the executor.
    pub endpoints: Endpoints,
}

impl Wired {
    /// Creates a database and starts the processes. `more` gets storage-writer's address and
    /// returns further workers for the executor.
    pub fn start(wiring: &Wiring<'_>, more: impl FnOnce(SocketAddr) -> Vec<String>) -> Self {
        let Wiring { binary, folder, genesis, settings, nats, runtime } = *wiring;
        let data = folder.join("data");
        let data = data.to_str().unwrap();
        let (secret, config) = (folder.join("jwt.hex"), folder.join("tandem.toml"));
        std::fs::write(&config, settings).unwrap();
        let init = Command::new(binary)
            .args(["init", "--datadir", data, "--genesis"])
            .arg(genesis)
            .output()
            .unwrap();
        assert!(init.status.success(), "{init:?}");

        let mut networks = Vec::new();
        let mut wire = |name, address: SocketAddr| {
            let network = Proxy::start(address, runtime);
            let address = network.address;
            networks.push((name, network));
            address
        };
        let run = |name: &str, flags: &[&str], more: Vec<String>| {
            let words = std::iter::once(&name).chain(flags).map(|&word| word.to_owned());
            let arguments = words.chain(more);
            // There is no other executor to which calls could be passed on at the end.
            let variables = [("TANDEM__EXECUTOR__LINGER_SECONDS", "0")];
            Running::start_with(binary, folder, name, arguments, &variables)
        };
        let bus = |address: SocketAddr| vec!["--nats".to_owned(), format!("nats://{address}")];

        let own = nats.map(bus).unwrap_or_default();
        let mut storage = run("storage-writer", &["--grpc.port", "0", "--datadir", data], own);
        let storage_address = calls_at(&mut storage);
        // Not told of NATS, where the worker would announce its direct address.
        let own = vec!["--storage-writer".to_owned(), format!("http://{storage_address}")];
        let mut worker = run("multiproof-worker", &["--grpc.port", "0"], own);
        let mut blobs = run("blob-validator", &["--grpc.port", "0"], Vec::new());

        let workers = [format!("http://{}", wire("multiproof-worker", calls_at(&mut worker)))];
        let mut own = Vec::new();
        for worker in workers.into_iter().chain(more(storage_address)) {
            own.extend(["--worker".to_owned(), worker]);
        }
        for (name, address) in
            [("storage-writer", storage_address), ("blob-validator", calls_at(&mut blobs))]
        {
            own.extend([format!("--{name}"), format!("http://{}", wire(name, address))]);
        }
        own.extend(nats.map(|nats| bus(wire("nats", nats))).unwrap_or_default());
        let (jwt, config) = (secret.to_str().unwrap(), config.to_str().unwrap());
        let ports = ["--authrpc.port", "0", "--http.port", "0"];
        let files = ["--authrpc.jwtsecret", jwt, "--config", config];
        let mut executor = run("executor", &[ports, files].concat(), own);
        let mut port = |name: &str| -> SocketAddr {
            let mark = format!("listening port=\"{name}\" address=");
            executor.says(&mark).parse().unwrap()
        };
        let (engine, http) = (port("engine"), port("http"));
        executor.says("this executor has the right to ");
        let processes = vec![
            ("executor", executor),
            ("multiproof-worker", worker),
            ("blob-validator", blobs),
            ("storage-writer", storage),
        ];
        Self { processes, networks, endpoints: Endpoints::new(engine, http, secret) }
    }

    /// Returns the peers that the executor has a connection to.
    pub fn peers(&self) -> impl Iterator<Item = &'static str> {
        self.networks.iter().map(|(name, _)| *name)
    }

    /// Resets the connections between the executor and a peer, and returns their number.
    pub fn reset(&self, peer: &str) -> usize {
        let network = self.networks.iter().find(|(name, _)| *name == peer);
        network.expect("a peer of the executor").1.reset()
    }

    /// Returns everything a process has written.
    pub fn log(&self, process: &str) -> String {
        let process = self.processes.iter().find(|(name, _)| *name == process);
        process.expect("one of the processes").1.log()
    }

    /// Stops the processes; all of them must still have been running.
    pub fn stop(self) {
        for (name, mut process) in self.processes {
            let (status, _) = process.terminate();
            assert!(status.success(), "{name}: {status}\n{}", process.log());
        }
    }
}

/// Returns the address at which a process takes calls.
fn calls_at(process: &mut Running) -> SocketAddr {
    process.says("listening port=\"grpc\" address=").parse().unwrap()
}

/// Returns the last lines of each log file in a folder and in its data directory.
pub fn ends_of_logs(folder: &Path) -> String {
    const LINES: usize = 40;
    let mut files: Vec<PathBuf> = [folder.to_owned(), folder.join("data/logs")]
        .into_iter()
        .filter_map(|folder| std::fs::read_dir(folder).ok())
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .collect();
    files.sort();
    let mut text = String::new();
    for file in files {
        let log = std::fs::read_to_string(&file).unwrap_or_default();
        let end = last_lines(&log, LINES).join("\n");
        text += &format!("== {}\n{end}\n", file.display());
    }
    text
}
