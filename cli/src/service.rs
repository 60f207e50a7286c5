//! What the commands have in common that run one service.

use crate::{node::reactor, operations::OperationsArgs, telemetry::TelemetryArgs};
use anyhow::Context;
use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};
use tandem_bus::{Bus, Options};
use tandem_cluster::{Config, TlsConfig, role::Process};
use tandem_telemetry::Telemetry;
use tokio::{
    runtime::Handle,
    signal::unix::{Signal, SignalKind, signal},
    time::timeout,
};
use tracing::{error, info};

/// Longest time from the signal to the end of the process, but for a second.
pub const STOP_MAX: Duration = Duration::from_secs(9);

/// Longest time that threads of the reactor get to end, which still wait for a service that is gone.
pub const THREADS_END_MAX: Duration = Duration::from_millis(100);

/// Longest time that traces may take to be handed on at the end.
const TELEMETRY_END_MAX: Duration = Duration::from_millis(500);

/// The signals that end a process.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// From now on they do not kill the process.
    pub fn listen() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("listen for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("listen for SIGINT")?,
        })
    }

    /// Waits for one of them.
    pub async fn any(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Hands the last traces on. Traces that are not taken in time are given up.
pub async fn end_telemetry(telemetry: Telemetry) {
    let end = tokio::task::spawn_blocking(move || telemetry.shutdown());
    let _ = timeout(TELEMETRY_END_MAX, end).await;
}

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
    /// User at NATS
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
    /// Looks at the addresses of the servers; connects to none.
    fn check(&self) -> anyhow::Result<()> {
        if self.nats.is_empty() {
            return Ok(());
        }
        tandem_bus::check_servers(&self.nats).context("--nats")
    }

    /// The bus, that of one process without a server. Needs a running reactor.
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

/// The certificates by which services know each other.
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
    /// Sets what was given, over what the configuration says.
    fn apply(&self, config: &mut TlsConfig) {
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

/// Where a service is that is called: as given, else at this port of this machine.
pub fn endpoint(given: Option<String>, port: u16, tls: &TlsConfig) -> String {
    let scheme = if tls.is_on() { "https" } else { "http" };
    given.unwrap_or_else(|| format!("{scheme}://127.0.0.1:{port}"))
}

/// Where a service takes calls.
#[derive(clap::Args)]
pub struct GrpcArgs {
    /// Address that calls come to
    #[arg(long = "grpc.addr", value_name = "IP", default_value = "127.0.0.1")]
    grpc_addr: IpAddr,
    /// Port that calls come to, 0 for a free one [default: 9600 storage-writer, 9601
    /// multiproof-worker, 9602 peer-table, 9603 blob-validator]
    #[arg(long = "grpc.port", value_name = "PORT")]
    grpc_port: Option<u16>,
}

impl GrpcArgs {
    /// Where that is; the port is this one if none is given.
    pub fn address(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.grpc_addr, self.grpc_port.unwrap_or(port))
    }
}

impl ServiceArgs {
    /// The settings of file, environment and flags, without a data directory.
    pub fn load(&self) -> anyhow::Result<Config> {
        let mut config = self.operations.load()?;
        self.tls.apply(&mut config.tls);
        self.telemetry.apply(&mut config.traces);
        Ok(config)
    }

    /// The same for this data directory.
    pub fn settings(&self, datadir: &Path) -> anyhow::Result<Config> {
        Ok(self.load()?.at(datadir))
    }

    /// Says which services this one calls, for `--check`.
    #[must_use]
    pub fn calling(mut self, endpoints: impl IntoIterator<Item = String>) -> Self {
        self.calls.extend(endpoints);
        self
    }

    /// Says whether the service would start, without a start.
    async fn check(self, config: &Config) -> anyhow::Result<ExitCode> {
        tandem_cluster::check(config, &self.calls)?;
        self.bus.check()?;
        // A filter of logs or an endpoint of traces that cannot be used. No trace is sent.
        self.telemetry.start("info", &config.traces)?;
        info!("settings and flags are good");
        Ok(ExitCode::SUCCESS)
    }

    /// Runs a service until SIGINT or SIGTERM, or until it fails. `start` gets the settings, which are
    /// printed or checked instead where that is asked for.
    pub fn run(
        self,
        config: Config,
        start: impl AsyncFnOnce(&mut Process, Config, &Telemetry) -> Result<(), tandem_cluster::Error>,
    ) -> anyhow::Result<ExitCode> {
        if self.operations.prints(&config)? {
            return Ok(ExitCode::SUCCESS);
        }
        let runtime = reactor()?;
        let code = match self.operations.checks() {
            true => runtime.block_on(self.check(&config)),
            false => runtime.block_on(self.serve(config, start)),
        };
        runtime.shutdown_timeout(THREADS_END_MAX);
        code
    }

    async fn serve(
        self,
        config: Config,
        start: impl AsyncFnOnce(&mut Process, Config, &Telemetry) -> Result<(), tandem_cluster::Error>,
    ) -> anyhow::Result<ExitCode> {
        let telemetry = self.telemetry.start("info", &config.traces)?;
        let mut signals = Signals::listen()?;
        let bus = self.bus.connect()?;
        let mut process = Process::new(bus, self.operations.metrics(), &telemetry).await?;
        tokio::select! {
            started = start(&mut process, config, &telemetry) => started?,
            // There is nothing yet that would have to be brought to an end.
            () = signals.any() => return Ok(ExitCode::SUCCESS),
        }
        let mut code = tokio::select! {
            () = signals.any() => ExitCode::SUCCESS,
            () = process.failed() => ExitCode::FAILURE,
        };
        info!("stopping");
        let stop_max = process.stop_time_max();
        if timeout(stop_max, process.stop()).await.is_err() {
            error!("the service does not end");
            code = ExitCode::FAILURE;
        }
        end_telemetry(telemetry).await;
        Ok(code)
    }
}
