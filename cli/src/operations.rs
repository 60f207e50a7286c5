use anyhow::Context;
use std::{
    env,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};
use tandem_cluster::Config;

/// Port that `tandem top` and `tandem health` look at.
const METRICS_PORT: u16 = 9100;

/// Options of every command that runs services: its metrics port, and its settings.
#[derive(clap::Args)]
pub struct OperationsArgs {
    /// Address of the metrics port
    #[arg(long = "metrics.addr", value_name = "IP", default_value = "127.0.0.1")]
    metrics_addr: IpAddr,
    /// Port of /metrics, /livez, /readyz and /debug/traces, 0 for a free one [default: 9100 for
    /// `tandem node`, or a free one if that is taken; none for other commands]
    #[arg(long = "metrics.port", value_name = "PORT")]
    metrics_port: Option<u16>,
    /// Settings of the services (TOML, see docs/configuration.md). Only settings of services that
    /// run here are used
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the effective settings, from file, environment and flags, as TOML, and exit
    #[arg(long)]
    print_config: bool,
    /// Look whether the service would start with these settings and flags, and end: 0 if it would. Opens
    /// no port, connects to nothing, and reads no file except that of the settings
    #[arg(long)]
    check: bool,
}

impl OperationsArgs {
    /// Returns the address of `/metrics`, if its port was given.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics_port.map(|port| SocketAddr::new(self.metrics_addr, port))
    }

    /// Returns the default address of `/metrics`, on the same IP address.
    pub fn default_metrics(&self) -> SocketAddr {
        SocketAddr::new(self.metrics_addr, METRICS_PORT)
    }

    /// Returns the settings from file and environment, or the defaults, without a data directory.
    pub fn load(&self) -> anyhow::Result<Config> {
        load(self.config.as_deref())
    }

    /// Returns the settings with this data directory.
    pub fn settings(&self, datadir: &Path) -> anyhow::Result<Config> {
        Ok(self.load()?.at(datadir))
    }

    /// Returns whether the settings are to be checked, and nothing else is to be done.
    pub fn checks(&self) -> bool {
        self.check
    }

    /// Prints the settings on request. Returns whether that was requested, and nothing else is to
    /// be done.
    #[allow(clippy::print_stdout, reason = "the answer of the command")]
    pub fn prints(&self, config: &Config) -> anyhow::Result<bool> {
        if self.print_config {
            print!("{}", config.to_toml()?);
        }
        Ok(self.print_config)
    }
}

/// Returns the settings from this file, if one is given, and from the environment, without a data
/// directory.
pub fn load(file: Option<&Path>) -> anyhow::Result<Config> {
    // A variable that is not valid UTF-8 cannot be a setting.
    let variables = env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    Config::load_with(file, variables).context("configuration")
}
