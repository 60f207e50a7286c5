//! `tandem node`: runs all services in this process.

use crate::{
    certificates, discovery::DiscoveryArgs, init, operations::OperationsArgs,
    peer_table::TableArgs, serve::serve, sessions::SessionsArgs, telemetry::TelemetryArgs,
};
use anyhow::{Context, ensure};
use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    process::ExitCode,
};
use tandem_cluster::{ClientInfo, Cluster, Config, Ports, TlsConfig};
use tandem_proto::access::{BLOB_VALIDATOR, MULTIPROOF_WORKER, STORAGE_WRITER};
use tokio::task::spawn_blocking;

/// Options of `tandem node`.
#[derive(clap::Args)]
pub struct Args {
    /// Directory with the database; see `tandem init`
    #[arg(long, value_name = "DIR")]
    datadir: PathBuf,
    /// Genesis to write first if the data directory is empty (geth's format, .json or .json.gz)
    #[arg(long, value_name = "FILE")]
    genesis: Option<PathBuf>,
    /// Start although the database has lost acknowledged blocks, which must be sent again
    #[arg(long)]
    accept_lost_blocks: bool,
    #[command(flatten)]
    engine: EngineArgs,
    /// Serve gRPC to other processes in plain text and to every caller [default: encrypted, and
    /// only to callers with a certificate of the authority in the data directory's `certificates`]
    #[arg(long)]
    insecure: bool,
    /// Do not look for peers
    #[arg(long)]
    disable_discovery: bool,
    #[command(flatten)]
    discovery: DiscoveryArgs,
    /// Hold no sessions with peers
    #[arg(long)]
    disable_sessions: bool,
    #[command(flatten)]
    sessions: SessionsArgs,
    #[command(flatten)]
    table: TableArgs,
    #[command(flatten)]
    operations: OperationsArgs,
    #[command(flatten)]
    policies: PolicyArgs,
    #[command(flatten)]
    telemetry: TelemetryArgs,
}

impl Args {
    /// Returns the data directory.
    pub fn datadir(&self) -> &Path {
        &self.datadir
    }

    /// Returns the genesis to write first.
    pub fn genesis(&self) -> Option<&Path> {
        self.genesis.as_deref()
    }

    /// Returns the addresses to listen on.
    pub fn ports(&self) -> Ports {
        let metrics = self.operations.metrics().unwrap_or(self.operations.default_metrics());
        self.engine.ports(&self.datadir, Some(metrics))
    }

    /// Returns the metrics address if its port was given as a flag.
    pub fn asks_for_metrics(&self) -> Option<SocketAddr> {
        self.operations.metrics()
    }

    /// Returns whether discovery is disabled.
    pub fn disables_discovery(&self) -> bool {
        self.disable_discovery
    }

    /// Returns whether sessions are disabled.
    pub fn disables_sessions(&self) -> bool {
        self.disable_sessions
    }

    /// Returns whether the port of sessions was given as a flag.
    pub fn asks_for_sessions_port(&self) -> bool {
        self.sessions.port.is_some()
    }

    /// Returns whether discovery's port was given as a flag.
    pub fn asks_for_discovery_port(&self) -> bool {
        self.discovery.port.is_some()
    }

    /// Returns the effective settings, including the flags.
    pub fn settings(&self) -> anyhow::Result<Config> {
        let mut config = self.operations.settings(&self.datadir)?;
        config.storage_writer.accept_lost_blocks = self.accept_lost_blocks;
        self.policies.apply(&mut config.policies)?;
        self.engine.apply(&mut config.executor);
        config.with_discovery = !self.disable_discovery;
        // Several nodes on one machine are legitimate; a requested port that is in use is an error.
        config.discovery_port_moves = self.discovery.port.is_none();
        config.metrics_port_moves = self.operations.metrics().is_none();
        config.with_sessions = !self.disable_sessions;
        config.sessions_port_moves = self.sessions.port.is_none();
        self.discovery.clone().apply(&mut config.discovery);
        self.sessions.apply(&mut config.peer_sessions);
        self.table.apply(&mut config.peer_table);
        self.telemetry.apply(&mut config.traces);
        Ok(config)
    }

    /// Prints or checks the settings on request. Returns whether that was requested, and nothing
    /// else is to be done.
    pub fn prints(&self) -> anyhow::Result<bool> {
        let settings = self.settings()?;
        if self.operations.checks() {
            tandem_cluster::check(&settings, &[])?;
            return Ok(true);
        }
        self.operations.prints(&settings)
    }

    /// Returns the directory in which certificates are made, or `None` if the settings name some or
    /// the user wants none.
    ///
    /// # Errors
    /// Returns an error if the user wants none although the settings name some.
    pub fn certificates(&self, tls: &TlsConfig) -> anyhow::Result<Option<PathBuf>> {
        ensure!(
            !(self.insecure && tls.is_on()),
            "--insecure contradicts the certificates of the settings (`tls.ca`, `tls.cert`, `tls.key`)"
        );
        let wanted = !self.insecure && !tls.is_on();
        Ok(wanted.then(|| self.datadir.join("certificates")))
    }
}

/// Makes the certificate that identifies this process to callers of its gRPC ports, if it has any.
fn certify(config: &mut Config, folder: Option<PathBuf>) -> anyhow::Result<()> {
    let ports = [
        (config.multiproof_workers.grpc_addr, MULTIPROOF_WORKER),
        (config.blob_validator.grpc_addr, BLOB_VALIDATOR),
        (config.storage_writer.grpc_addr, STORAGE_WRITER),
    ];
    let roles: Vec<_> = ports.into_iter().filter_map(|(port, role)| port.map(|_| role)).collect();
    if let Some(folder) = folder.filter(|_| !roles.is_empty()) {
        let files = certificates::write_for("node", &roles, &folder)?;
        let (ca, cert, key) = (Some(files.ca), Some(files.cert), Some(files.key));
        config.tls = TlsConfig { ca, cert, key, ..config.tls };
    }
    Ok(())
}

/// Addresses of the Engine API and JSON-RPC, shared by the commands that run an executor.
#[derive(clap::Args)]
pub struct EngineArgs {
    /// Address of the Engine API
    #[arg(long = "authrpc.addr", value_name = "IP", default_value = "127.0.0.1")]
    authrpc_addr: IpAddr,
    /// Port of the Engine API, 0 for a free one
    #[arg(long = "authrpc.port", value_name = "PORT", default_value_t = 8551)]
    authrpc_port: u16,
    /// File with the secret of the Engine API's tokens, created if missing [default: jwt.hex in the
    /// data directory, or in the working directory of a process that has none]
    #[arg(long = "authrpc.jwtsecret", value_name = "FILE")]
    authrpc_jwtsecret: Option<PathBuf>,
    #[command(flatten)]
    http: HttpArgs,
    /// Names under which the Engine API may be called, with commas between them; IP addresses are
    /// always allowed, * allows all [default: localhost]
    #[arg(long = "authrpc.vhosts", value_name = "NAME", value_delimiter = ',')]
    authrpc_vhosts: Vec<String>,
}

impl EngineArgs {
    /// Overrides the configuration by the flags that were given.
    pub fn apply(&self, config: &mut tandem_cluster::ExecutorConfig) {
        if !self.authrpc_vhosts.is_empty() {
            config.authrpc_vhosts.clone_from(&self.authrpc_vhosts);
        }
        self.http.apply(config);
    }

    /// Returns the ports; the secret defaults to a file in this directory.
    pub fn ports(&self, datadir: &Path, metrics: Option<SocketAddr>) -> Ports {
        let secret = || datadir.join("jwt.hex");
        Ports {
            engine: SocketAddr::new(self.authrpc_addr, self.authrpc_port),
            http: self.http.address(),
            metrics,
            jwt_secret: self.authrpc_jwtsecret.clone().unwrap_or_else(secret),
        }
    }
}

/// Address of JSON-RPC and its permitted callers, shared by the commands that serve it.
#[derive(clap::Args)]
pub struct HttpArgs {
    /// Address of the JSON-RPC port
    #[arg(long = "http.addr", value_name = "IP", default_value = "127.0.0.1")]
    http_addr: IpAddr,
    /// JSON-RPC port, 0 for a free one
    #[arg(long = "http.port", value_name = "PORT", default_value_t = 8545)]
    http_port: u16,
    /// Names under which the JSON-RPC port may be called, with commas between them; IP addresses
    /// are always allowed, * allows all [default: localhost]
    #[arg(long = "http.vhosts", value_name = "NAME", value_delimiter = ',')]
    http_vhosts: Vec<String>,
    /// Origins (scheme and host) of web pages that may call the JSON-RPC port, with commas between
    /// them; * allows all [default: none]
    #[arg(long = "http.corsdomain", value_name = "ORIGIN", value_delimiter = ',')]
    http_corsdomain: Vec<String>,
}

impl HttpArgs {
    /// Overrides the configuration by the flags that were given.
    pub fn apply(&self, config: &mut tandem_cluster::ExecutorConfig) {
        for (given, set) in [
            (&self.http_vhosts, &mut config.http_vhosts),
            (&self.http_corsdomain, &mut config.http_corsdomain),
        ] {
            if !given.is_empty() {
                set.clone_from(given);
            }
        }
    }

    /// Returns the address to listen on.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.http_addr, self.http_port)
    }
}

/// Options that choose policies, shared by the commands that run services.
#[derive(clap::Args)]
pub struct PolicyArgs {
    /// Setting of the proof pipeline, such as --policy chunking=while-idle; may be given several
    /// times. Keys and values are those of the table policies in docs/configuration.md. Shells need
    /// quotes around braces: --policy 'batching=fixed{16,500}'
    #[arg(long = "policy", value_name = "KEY=VALUE", value_parser = check_policy)]
    policies: Vec<String>,
}

fn check_policy(text: &str) -> Result<String, tandem_policy::Error> {
    tandem_policy::Policies::default().assign(text)?;
    Ok(text.to_owned())
}

impl PolicyArgs {
    /// Overrides the configuration by the flags that were given.
    pub fn apply(&self, policies: &mut tandem_policy::Policies) -> anyhow::Result<()> {
        for text in &self.policies {
            policies.assign(text)?;
        }
        Ok(())
    }
}

/// Returns the identity of this build for consensus clients.
pub fn client_info() -> ClientInfo {
    let commit = u32::from_str_radix(env!("TANDEM_COMMIT"), 16).unwrap_or(0).to_be_bytes();
    ClientInfo { version: env!("CARGO_PKG_VERSION").to_owned(), commit }
}

/// Runs until SIGINT or SIGTERM.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.prints()? {
        return Ok(ExitCode::SUCCESS);
    }
    let (mut config, ports) = (args.settings()?, args.ports());
    let certificates = args.certificates(&config.tls)?;
    let traces = config.traces.clone();
    let Args { genesis, datadir, telemetry, .. } = args;
    serve(telemetry, &traces, async move |telemetry| {
        let start = move || {
            if let Some(genesis) = genesis {
                init::write(&genesis, &datadir)?;
            }
            certify(&mut config, certificates)?;
            Cluster::start(config).context("start the services")
        };
        let mut cluster = spawn_blocking(start).await??;
        cluster.serve(&ports, client_info(), telemetry).await?;
        Ok(cluster.into_process())
    })
}
