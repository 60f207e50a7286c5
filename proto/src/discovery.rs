//! discovery: finds nodes. What it finds goes over the bus ([`crate::event::PeersDiscovered`]);
//! what it may be asked is how it is doing.

use std::net::SocketAddr;
use tandem_primitives::B512;

/// What discovery is doing, for people and dashboards.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// Own uncompressed public key without the leading 0x04.
    pub id: B512,
    /// Where the UDP socket is bound.
    pub bound: SocketAddr,
    /// The address that others see, as far as it is known (configured, or predicted from pongs).
    pub external: Option<SocketAddr>,
    /// Own node URL: `enode://…`.
    pub enode: String,
    /// Own record in text form: `enr:…`.
    pub enr: String,
    /// Nodes whose endpoint is proven at this moment.
    pub bonded: u32,
    /// The share of the wanted peers last heard of, in parts per thousand.
    pub completion_permille: u16,
    /// Packets received since the start, those dropped included.
    pub packets_received: u64,
    /// Packets sent since the start.
    pub packets_sent: u64,
    /// Packets dropped since the start: malformed, expired, unsolicited, or over a rate limit.
    pub packets_dropped: u64,
}

/// The calls of discovery. They answer from memory and do not wait.
pub trait DiscoveryApi: Send + Sync + 'static {
    /// What it is doing, as it was when it last fell asleep.
    fn status(&self) -> Status;
}
