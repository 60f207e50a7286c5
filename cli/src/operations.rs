use anyhow::Context;
use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};
use tandem_cluster::Config;

/// Options of every command that runs services: where it is watched, and its settings.
#[derive(clap::Args)]
pub struct OperationsArgs {
    /// Address of the metrics port
    #[arg(long = "metrics.addr", value_name = "IP", default_value = "127.0.0.1")]
    metrics_addr: IpAddr,
    /// Port of /metrics, /livez and /readyz, 0 for a free one [default: none]
    #[arg(long = "metrics.port", value_name = "PORT")]
    metrics_port: Option<u16>,
    /// Settings of the services, of which those count that run here (TOML, see
    /// docs/configuration.md)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl OperationsArgs {
    /// Where `/metrics` is to be, if anywhere.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics_port.map(|port| SocketAddr::new(self.metrics_addr, port))
    }

    /// The settings for this data directory: those of the file, else the defaults.
    pub fn settings(&self, datadir: &Path) -> anyhow::Result<Config> {
        let config = match &self.config {
            Some(path) => Config::load(path).context("configuration")?,
            None => Config::default(),
        };
        Ok(config.at(datadir))
    }
}
