use crate::Network;
use serde::{Deserialize, Serialize};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
};
use tandem_policy::Lookups;

/// Settings of discovery: its addresses, its first nodes, and the effort it puts into lookups.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Data directory; the node key is the file `nodekey` in it.
    #[serde(skip)]
    pub datadir: PathBuf,
    /// Address to listen on. `::` accepts IPv4 too; the record then has an address of each family.
    pub addr: IpAddr,
    /// UDP port to listen on; 0 takes any free port.
    pub port: u16,
    /// Whether to find nodes over discv5 too, on the same port; only in builds with the feature
    /// `discv5`. A node on `::` speaks it over IPv6.
    pub discv5: bool,
    /// RLPx port to announce. 0 announces that of the sessions in the same process, or none.
    pub tcp_port: u16,
    /// Own addresses as others see them, one for each family. The address of a missing family is
    /// learned from others.
    pub external_ips: Vec<IpAddr>,
    /// Public network whose nodes are sought. Without one, only the bootnodes and the nodes found
    /// through them are asked.
    pub network: Option<Network>,
    /// Nodes to begin with, as `enode://…` or `enr:…`. If there are none, the network's own are
    /// used.
    pub bootnodes: Vec<String>,
    /// Node lists in DNS (EIP-1459), as `enrtree://…`; `None` for the network's own, if there is a
    /// network. Without any, DNS is never asked.
    pub dns_lists: Option<Vec<String>>,
    /// DNS server to ask, `None` for those of the system.
    pub dns_server: Option<SocketAddr>,
    /// Pause between requests to DNS while peers are scarce, in milliseconds; each brings up to 16
    /// nodes with up to 32 questions.
    pub dns_pause_ms: u64,
    /// Longest wait for an answer, in milliseconds.
    pub request_timeout_ms: u64,
    /// Time for which sent packets are valid, in seconds.
    pub expiration_seconds: u64,
    /// Method of looking for nodes. The pauses below are those of `kademlia` and `single`.
    pub lookups: Lookups,
    /// Pause between lookups while peers are scarce, in milliseconds. Each lookup that finds
    /// nothing new doubles it.
    pub lookup_fast_ms: u64,
    /// Pause between lookups while some peers are missing, in milliseconds. It is also the longest
    /// pause while no node answers.
    pub lookup_base_ms: u64,
    /// Pause between lookups once there are enough peers, in milliseconds. It is also the longest
    /// pause while nothing new is found.
    pub lookup_maintenance_ms: u64,
    /// Share of the wanted peers below which peers are scarce.
    pub starving_below: f64,
    /// Largest number of nodes that a lookup asks.
    pub lookup_asked_max: usize,
    /// Largest number of nodes that a lookup asks once there are enough peers, or nothing new is
    /// found.
    pub maintenance_asked_max: usize,
    /// Packets per second that are processed from one address (one /64 of IPv6).
    pub ip_packets_per_second: u32,
    /// Packets that one address may send in a burst.
    pub ip_packets_burst: u32,
    /// Packets per second from all addresses together that have not proven their endpoint.
    pub strangers_packets_per_second: u32,
    /// Number of subnets that must agree on the own address of their family before it is accepted;
    /// 0 to accept none.
    pub external_votes_min: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            datadir: PathBuf::new(),
            addr: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            port: 30303,
            discv5: false,
            tcp_port: 0,
            external_ips: Vec::new(),
            network: None,
            bootnodes: Vec::new(),
            dns_lists: None,
            dns_server: None,
            dns_pause_ms: 10_000,
            request_timeout_ms: 750,
            expiration_seconds: 20,
            lookups: Lookups::default(),
            lookup_fast_ms: 500,
            lookup_base_ms: 5_000,
            lookup_maintenance_ms: 30_000,
            starving_below: 0.5,
            lookup_asked_max: 32,
            maintenance_asked_max: 3,
            ip_packets_per_second: 100,
            ip_packets_burst: 200,
            strangers_packets_per_second: 2_000,
            external_votes_min: 4,
        }
    }
}
