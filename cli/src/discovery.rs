//! `tandem discovery`: runs discovery and peer-table without the rest of a node.

use crate::{peer_table::TableArgs, service::ServiceArgs};
use anyhow::ensure;
use std::{
    net::IpAddr,
    path::PathBuf,
    process::ExitCode,
    str::FromStr,
    time::{SystemTime, UNIX_EPOCH},
};
use tandem_chain::ChainSpec;
use tandem_cluster::{Network, role};
use tandem_discv4::{ForkId, fork_id};
use tandem_policy::Lookups;
use tandem_primitives::B256;

/// Options of `tandem discovery`.
#[derive(clap::Args)]
pub struct Args {
    /// Directory of the node key and the known nodes; created if missing
    #[arg(long, value_name = "DIR")]
    datadir: PathBuf,
    #[command(flatten)]
    discovery: DiscoveryArgs,
    /// A `tandem peer-table` to use, such as http://10.0.0.7:9602 [default: a table in this process]
    #[arg(long, value_name = "URL")]
    peer_table: Option<String>,
    #[command(flatten)]
    table: TableArgs,
    #[command(flatten)]
    service: ServiceArgs,
}

/// Options of discovery, shared by the commands that run it.
#[derive(Clone, clap::Args)]
pub struct DiscoveryArgs {
    /// Address that discovery listens on [default: 0.0.0.0]
    #[arg(long = "discovery.addr", value_name = "IP")]
    addr: Option<IpAddr>,
    /// UDP port that discovery listens on, 0 for a free one [default: 30303]
    #[arg(long = "discovery.port", value_name = "PORT")]
    pub port: Option<u16>,
    /// TCP port of the sessions with peers, which is announced [default: that of the sessions in the
    /// same process, or none]
    #[arg(long = "discovery.tcp-port", value_name = "PORT")]
    tcp_port: Option<u16>,
    /// Find nodes over discv5 too, on the same port (in builds with the feature discv5)
    #[arg(long)]
    discv5: bool,
    /// Public network whose nodes to find: mainnet, sepolia, holesky or hoodi [default: none]
    #[arg(long, value_name = "NAME")]
    pub network: Option<Network>,
    /// Nodes to begin with, enode:// or enr: [default: the network's]
    #[arg(long, value_name = "NODE", value_delimiter = ',')]
    bootnodes: Vec<String>,
    /// Node lists in DNS, enrtree://KEY@DOMAIN, or none [default: the network's]
    #[arg(long = "discovery.dns", value_name = "URL", value_delimiter = ',')]
    dns: Vec<String>,
    /// Address at which other nodes reach this one: extip:IP, or extip:IP,IP for one of each
    /// family; any, the addresses that they see; none
    #[arg(long, value_name = "HOW")]
    nat: Option<Nat>,
    /// Policy of lookups: kademlia, single or legacy (see docs/configuration.md)
    #[arg(long = "discovery.lookups", value_name = "POLICY")]
    lookups: Option<Lookups>,
}

/// Source of the node's own address.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Nat {
    /// Addresses that other nodes see.
    Any,
    /// Address that the node listens on, if it is a specific one.
    None,
    /// Given addresses, at most one of each family.
    External(Vec<IpAddr>),
}

impl FromStr for Nat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ips = text.strip_prefix("extip:").and_then(|ips| {
            ips.split(',').map(|ip| ip.parse::<IpAddr>().ok()).collect::<Option<Vec<_>>>()
        });
        match (text, ips.as_deref()) {
            ("any", _) => Ok(Self::Any),
            ("none", _) => Ok(Self::None),
            (_, Some([ip])) => Ok(Self::External(vec![*ip])),
            (_, Some([a, b])) if a.is_ipv4() != b.is_ipv4() => Ok(Self::External(vec![*a, *b])),
            _ => Err("expected `any`, `none` or `extip:IP`, or one IP of each family".to_owned()),
        }
    }
}

impl DiscoveryArgs {
    /// Overrides the configuration by the flags that were given.
    pub fn apply(self, config: &mut tandem_cluster::DiscoveryConfig) {
        config.addr = self.addr.unwrap_or(config.addr);
        config.port = self.port.unwrap_or(config.port);
        config.tcp_port = self.tcp_port.unwrap_or(config.tcp_port);
        config.network = self.network.or(config.network);
        config.bootnodes.extend(self.bootnodes);
        config.lookups = self.lookups.unwrap_or(config.lookups);
        if !self.dns.is_empty() {
            let urls = self.dns.into_iter().filter(|url| url != "none");
            config.dns_lists = Some(urls.collect());
        }
        match self.nat {
            Some(Nat::External(ips)) => config.external_ips = ips,
            Some(Nat::None) => (config.external_ips, config.external_votes_min) = (Vec::new(), 0),
            Some(Nat::Any) => config.external_ips.clear(),
            None => {}
        }
        config.discv5 |= self.discv5;
    }
}

/// Runs until SIGINT or SIGTERM.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut config = args.service.settings(&args.datadir)?;
    ensure!(
        args.peer_table.is_none() || !args.table.is_given(),
        "--peers.target is for the process of the table",
    );
    args.table.apply(&mut config.peer_table);
    args.discovery.apply(&mut config.discovery);
    let fork_id = config.discovery.network.and_then(current_fork_id);
    let elsewhere = args.peer_table;
    let service = args.service.calling(elsewhere.clone());
    service.run(config, async move |process, config| {
        role::discovery(process, config, elsewhere, fork_id).await
    })
}

/// Returns the fork id that a node following this network announces. This process does not follow
/// the chain, so the clock decides which forks have passed.
fn current_fork_id(network: Network) -> Option<ForkId> {
    let spec = ChainSpec::for_chain_id(network.chain_id())?;
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
    Some(fork_id_at(&spec, network.genesis_hash(), unix))
}

pub fn fork_id_at(spec: &ChainSpec, genesis: B256, unix: u64) -> ForkId {
    let points = spec.fork_points();
    let genesis_time = spec.genesis_header(B256::ZERO).timestamp;
    // All forks by block number lie before the merge, which all public networks have passed.
    fork_id((genesis, genesis_time), &points.blocks, &points.times, (u64::MAX, unix))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with the ids that geth's own tests expect (core/forkid/forkid_test.go).
    #[test]
    fn networks_announce_the_fork_of_the_time() {
        let cases = [
            (Network::Mainnet, 1_710_338_135, 0x9f3d_2254, 1_746_612_311),
            (Network::Mainnet, 1_764_798_551, 0x5167_e2a6, 1_765_290_071),
            (Network::Mainnet, 1_767_747_671, 0x07c9_462e, 0),
            (Network::Sepolia, 1_741_159_776, 0xed88_b5fd, 1_760_427_360),
            (Network::Hoodi, 1_742_999_831, 0xbef7_1d30, 1_742_999_832),
            (Network::Hoodi, 1_762_955_544, 0x23aa_1351, 0),
        ];
        for (network, unix, hash, next) in cases {
            let spec = ChainSpec::for_chain_id(network.chain_id()).unwrap();
            let hash = u32::to_be_bytes(hash);
            let id = fork_id_at(&spec, network.genesis_hash(), unix);
            assert_eq!(id, ForkId { hash, next }, "{network} at {unix}");
        }
        assert!(Network::ALL.into_iter().all(|network| current_fork_id(network).is_some()));
    }

    #[test]
    fn wrong_options_are_named() {
        let external =
            |ips: &[&str]| Nat::External(ips.iter().map(|ip| ip.parse().unwrap()).collect());
        assert_eq!("extip:1.2.3.4".parse(), Ok(external(&["1.2.3.4"])));
        assert_eq!("extip:1.2.3.4,2001:db8::1".parse(), Ok(external(&["1.2.3.4", "2001:db8::1"])));
        assert_eq!(["any", "none"].map(str::parse), [Ok(Nat::Any), Ok(Nat::None)]);
        let wrong = ["", "extip:", "extip:host", "upnp", "1.2.3.4", "extip:1.2.3.4,5.6.7.8"];
        for text in wrong {
            let error = text.parse::<Nat>().unwrap_err();
            assert_eq!(error, "expected `any`, `none` or `extip:IP`, or one IP of each family");
        }
    }
}
