//! Contract of discovery, which finds nodes. It sends the nodes over the bus
//! ([`crate::event::PeersDiscovered`]); its only call returns its status.

use std::net::SocketAddr;
use tandem_primitives::B512;

/// Status of discovery, for people and dashboards.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// Own uncompressed public key without the leading 0x04.
    pub id: B512,
    /// Address that the UDP socket is bound to.
    pub bound: SocketAddr,
    /// Address that other nodes see, as far as it is known (configured, or predicted from pongs).
    pub external: Option<SocketAddr>,
    /// Own node URL: `enode://…`.
    pub enode: String,
    /// Own record in text form: `enr:…`.
    pub enr: String,
    /// Number of nodes whose endpoint is proven at this moment.
    pub bonded: u32,
    /// Last known share of the wanted peers, in parts per thousand.
    pub completion_permille: u16,
    /// Number of packets received since the start, including dropped ones.
    pub packets_received: u64,
    /// Number of packets sent since the start.
    pub packets_sent: u64,
    /// Number of packets dropped since the start: malformed, expired, unsolicited, or over a rate
    /// limit.
    pub packets_dropped: u64,
}

/// Calls of discovery. They answer from memory and do not block.
pub trait DiscoveryApi: Send + Sync + 'static {
    /// Returns the status of discovery as it was when it last went idle.
    fn status(&self) -> Status;
}
