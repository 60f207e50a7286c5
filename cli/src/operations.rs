use anyhow::Context;
use std::{
    env,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};
use tandem_cluster::Config;

/// The port that `tandem top` and `tandem health` look at.
const METRICS_PORT: u16 = 9100;

/// Options of every command that runs services: where it is watched, and its settings.
#[derive(clap::Args)]
pub struct OperationsArgs {
    /// Address of the metrics port
    #[arg(long = "metrics.addr", value_name = "IP", default_value = "127.0.0.1")]
    metrics_addr: IpAddr,
    /// Port of /metrics, /livez, /readyz and /debug/traces, 0 for a free one [default: of `tandem
    /// node` 9100, or a free one where that is taken; of others none]
    #[arg(long = "metrics.port", value_name = "PORT")]
    metrics_port: Option<u16>,
    /// Settings of the services, of which those count that run here (TOML, see
    /// docs/configuration.md)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the settings as they hold, those of file, environment and flags, as TOML, and end
    #[arg(long)]
    print_config: bool,
    /// Look whether the service would start with these settings and flags, and end: 0 if it would. Opens
    /// no port, connects to nothing, and reads no file except that of the settings
    #[arg(long)]
    check: bool,
}

impl OperationsArgs {
    /// Where `/metrics` is to be, if anywhere.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics_port.map(|port| SocketAddr::new(self.metrics_addr, port))
    }

    /// Where it is by default, on the same address.
    pub fn default_metrics(&self) -> SocketAddr {
        SocketAddr::new(self.metrics_addr, METRICS_PORT)
    }

    /// The settings of file and environment, else the defaults, without a data directory.
    pub fn load(&self) -> anyhow::Result<Config> {
        // What is no text cannot be a setting.
        let variables = env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        Config::load_with(self.config.as_deref(), variables).context("configuration")
    }

    /// The same for this data directory.
    pub fn settings(&self, datadir: &Path) -> anyhow::Result<Config> {
        Ok(self.load()?.at(datadir))
    }

    /// Whether the settings are to be checked, and nothing else is to be done then.
    pub fn checks(&self) -> bool {
        self.check
    }

    /// Prints the settings if that is asked for, and nothing else is to be done then.
    #[allow(clippy::print_stdout, reason = "the answer of the command")]
    pub fn prints(&self, config: &Config) -> anyhow::Result<bool> {
        if self.print_config {
            print!("{}", config.to_toml()?);
        }
        Ok(self.print_config)
    }
}
