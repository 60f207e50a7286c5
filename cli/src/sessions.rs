//! Options of sessions with peers, shared by the commands that hold them.

use std::net::IpAddr;

/// Options of sessions.
#[derive(Clone, clap::Args)]
pub struct SessionsArgs {
    /// Address on which sessions with peers are accepted [default: 0.0.0.0]
    #[arg(id = "sessions.addr", long = "sessions.addr", value_name = "IP")]
    addr: Option<IpAddr>,
    /// TCP port on which sessions with peers are accepted, 0 for a free one [default: 30303]
    #[arg(id = "sessions.port", long = "sessions.port", value_name = "PORT")]
    pub port: Option<u16>,
    /// Peers that are always dialled, enode://
    #[arg(
        id = "sessions.peers",
        long = "sessions.peers",
        value_name = "NODE",
        value_delimiter = ','
    )]
    peers: Vec<String>,
}

impl SessionsArgs {
    /// Overrides the configuration by the flags that were given.
    pub fn apply(&self, config: &mut tandem_cluster::SessionsConfig) {
        config.listen.set_ip(self.addr.unwrap_or(config.listen.ip()));
        config.listen.set_port(self.port.unwrap_or(config.listen.port()));
        config.static_peers.extend(self.peers.iter().cloned());
    }
}
