//! Code that the commands for a single service share.

use crate::{
    operations::OperationsArgs,
    serve::{block_on, serve},
    telemetry::TelemetryArgs,
};
use anyhow::Context;
use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    process::ExitCode,
};
use tandem_bus::{Bus, Options};
use tandem_cluster::{Config, TlsConfig, role::Process};
use tandem_proto::feed_log::JETSTREAM;
use tokio::runtime::Handle;
use tracing::info;

/// Options of every command that runs one service.
#[derive(clap::Args)]
pub struct ServiceArgs {
    #[command(flatten)]
    bus: BusArgs,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    operations: OperationsArgs,
    #[command(flatten)]
    telemetry: TelemetryArgs,
    /// Endpoints of the services that this one calls.
    #[arg(skip)]
    calls: Vec<String>,
}

/// The event bus between processes.
#[derive(clap::Args)]
pub struct BusArgs {
    /// NATS servers of the event bus, such as nats://127.0.0.1:4222, several with commas between them
    /// [default: no bus between processes]
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    nats: Vec<String>,
    /// NATS user
    #[arg(long = "nats.user", value_name = "NAME")]
    user: Option<String>,
    /// File with the user's password
    #[arg(long = "nats.password-file", value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// File with the seed of a user's nkey, instead of user and password
    #[arg(long = "nats.nkey-seed-file", value_name = "FILE")]
    nkey_seed_file: Option<PathBuf>,
    /// Certificates (PEM) of the authorities that may vouch for NATS; encrypts the connection
    #[arg(long = "nats.tls-ca-file", value_name = "FILE")]
    tls_ca_file: Option<PathBuf>,
    /// Own certificates (PEM) for NATS
    #[arg(long = "nats.tls-cert-file", value_name = "FILE")]
    tls_cert_file: Option<PathBuf>,
    /// Their private key (PEM)
    #[arg(long = "nats.tls-key-file", value_name = "FILE")]
    tls_key_file: Option<PathBuf>,
}

impl BusArgs {
    /// Checks the addresses of the servers without connecting.
    fn check(&self) -> anyhow::Result<()> {
        if self.nats.is_empty() {
            return Ok(());
        }
        tandem_bus::check_servers(&self.nats).context("--nats")
    }

    /// Returns the bus; without a server, it spans this process only. Needs a running reactor.
    fn connect(self) -> anyhow::Result<Bus> {
        if self.nats.is_empty() {
            return Ok(Bus::default());
        }
        let options = Options {
            name: None,
            user: self.user,
            password_file: self.password_file,
            nkey_seed_file: self.nkey_seed_file,
            tls_ca_file: self.tls_ca_file,
            tls_cert_file: self.tls_cert_file,
            tls_key_file: self.tls_key_file,
        };
        Bus::connect(&self.nats, &options, &Handle::current()).context("connect to NATS")
    }
}

/// Certificates by which services identify each other.
#[derive(clap::Args)]
pub struct TlsArgs {
    /// Certificates (PEM) of the authority that vouches for all services; encrypts all calls between
    /// them
    #[arg(long = "tls.ca", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// This service's own certificate (PEM), see `tandem certificates`
    #[arg(long = "tls.cert", value_name = "FILE")]
    cert: Option<PathBuf>,
    /// Its private key (PEM)
    #[arg(long = "tls.key", value_name = "FILE")]
    key: Option<PathBuf>,
}

impl TlsArgs {
    /// Overrides the configuration by the flags that were given.
    pub fn apply(&self, config: &mut TlsConfig) {
        for (given, set) in [
            (&self.ca, &mut config.ca),
            (&self.cert, &mut config.cert),
            (&self.key, &mut config.key),
        ] {
            if given.is_some() {
                set.clone_from(given);
            }
        }
    }
}

/// Returns the URL of a service to call: the given one, or this port of this machine.
pub fn endpoint(given: Option<String>, port: u16, tls: &TlsConfig) -> String {
    let scheme = if tls.is_on() { "https" } else { "http" };
    given.unwrap_or_else(|| format!("{scheme}://127.0.0.1:{port}"))
}

/// Returns the URLs of storage-writers to call: the given ones, or the one of this machine.
pub fn storage_writers(given: Vec<String>, tls: &TlsConfig) -> Vec<String> {
    if given.is_empty() { vec![endpoint(None, 9600, tls)] } else { given }
}

/// Returns the leaders that answer calls: all but the stream in NATS.
pub fn called(leaders: &[String]) -> Vec<String> {
    leaders.iter().filter(|leader| *leader != JETSTREAM).cloned().collect()
}

/// Address on which a service accepts calls.
#[derive(clap::Args)]
pub struct GrpcArgs {
    /// Address to accept calls on
    #[arg(long = "grpc.addr", value_name = "IP", default_value = "127.0.0.1")]
    grpc_addr: IpAddr,
    /// Port to accept calls on, 0 for a free one [default: 9600 storage-writer, 9601
    /// multiproof-worker, 9602 peer-table, 9603 blob-validator, 9604 peer-sessions, 9605
    /// tx-pool, 9606 tx-executor; none for a follower, which then cannot be promoted]
    #[arg(long = "grpc.port", value_name = "PORT")]
    grpc_port: Option<u16>,
}

impl GrpcArgs {
    /// Returns the address, with this port if none is given.
    pub fn address(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.grpc_addr, self.grpc_port.unwrap_or(port))
    }

    /// Returns the address, `None` if no port is given.
    pub fn given(&self) -> Option<SocketAddr> {
        self.grpc_port.map(|port| SocketAddr::new(self.grpc_addr, port))
    }
}

impl ServiceArgs {
    /// Returns the settings from file, environment and flags, without a data directory.
    pub fn load(&self) -> anyhow::Result<Config> {
        let mut config = self.operations.load()?;
        self.tls.apply(&mut config.tls);
        self.telemetry.apply(&mut config.traces);
        Ok(config)
    }

    /// Returns the settings with this data directory.
    pub fn settings(&self, datadir: &Path) -> anyhow::Result<Config> {
        Ok(self.load()?.at(datadir))
    }

    /// Sets the services that this one calls, for `--check`.
    #[must_use]
    pub fn calling(mut self, endpoints: impl IntoIterator<Item = String>) -> Self {
        self.calls.extend(endpoints);
        self
    }

    /// Checks whether the service would start, without starting it.
    async fn check(self, config: &Config) -> anyhow::Result<ExitCode> {
        tandem_cluster::check(config, &self.calls)?;
        self.bus.check()?;
        // Fails for an invalid log filter or trace endpoint. No trace is sent.
        self.telemetry.start("info", &config.traces)?;
        info!("settings and flags are good");
        Ok(ExitCode::SUCCESS)
    }

    /// Runs a service until SIGINT or SIGTERM, or until it fails. `start` receives the settings. On
    /// request they are printed or checked instead.
    pub fn run(
        self,
        config: Config,
        start: impl AsyncFnOnce(&mut Process, Config) -> Result<(), tandem_cluster::Error>,
    ) -> anyhow::Result<ExitCode> {
        if self.operations.prints(&config)? {
            return Ok(ExitCode::SUCCESS);
        }
        if self.operations.checks() {
            return block_on(self.check(&config));
        }
        let Self { bus, operations, telemetry, .. } = self;
        let traces = config.traces.clone();
        serve(telemetry, &traces, async move |telemetry| {
            let mut process = Process::new(bus.connect()?, operations.metrics(), telemetry).await?;
            start(&mut process, config).await?;
            Ok(process)
        })
    }
}
