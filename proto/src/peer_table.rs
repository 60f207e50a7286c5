//! Contract of peer-table, which holds the known nodes and selects the next ones to contact.
//!
//! All of it is in memory and none of it is the source of truth: a forgotten node can be found
//! again. The [`crate::event::Contact::event`] of a returned contact shows how far to trust it. It
//! is [`crate::event::ContactEvent::Answered`] when the endpoint is proven, else
//! [`crate::event::ContactEvent::Seen`].

use crate::event::Contact;
use tandem_primitives::B256;

/// Error of a call to peer-table.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// The mailbox is full. The caller may retry later or do without the answer.
    #[error("peer-table is overloaded")]
    Overloaded,
    /// The service is stopping or unreachable.
    #[error("peer-table is not available: {0}")]
    Unavailable(String),
}

/// Answer to every call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Counts of the table, for people and dashboards.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Number of known nodes, except those given up.
    pub contacts: u64,
    /// Number of known nodes with a proven endpoint.
    pub proven: u64,
    /// Number of nodes given up, remembered for a while so that hearsay does not bring them back.
    pub disposed: u64,
    /// Number of nodes that a lookup may use now.
    pub lookup_candidates: u64,
    /// Number of nodes whose record is wanted now.
    pub enr_candidates: u64,
    /// Number of nodes evicted since the start to make room for others.
    pub evicted: u64,
    /// Number of nodes refused since the start: table or subnet full, or no usable address.
    pub refused: u64,
    /// Number of connected peers, as last reported.
    pub connected: u32,
    /// Number of wanted peers.
    pub target: u32,
}

impl Stats {
    /// Returns the reported peers as a share of the target, 0 to 1.
    pub fn completion(&self) -> f64 {
        completion(self.connected, self.target)
    }
}

/// Returns connected divided by wanted peers, 0 to 1; 1 when none are wanted.
pub fn completion(connected: u32, target: u32) -> f64 {
    if target == 0 { 1.0 } else { (f64::from(connected) / f64::from(target)).min(1.0) }
}

/// Calls of peer-table. All except [`Self::apply_batch`] wait for the answer of its thread, or of
/// the network. They belong on threads that may block, never on the async reactor. A full mailbox
/// never blocks a call; it causes [`Error::Overloaded`].
pub trait PeerTableApi: Send + Sync + 'static {
    /// Processes news about nodes in the order of occurrence, at most
    /// [`crate::limits::DISCOVERED_CONTACTS_MAX`] at once. The bus carries the same news as
    /// [`crate::event::PEERS_DISCOVERED`]. A caller uses only one of the two, because failures
    /// would count twice.
    fn apply_batch(&self, contacts: Vec<Contact>) -> Result<()>;

    /// Returns a node to send a find node packet to, or `None` when there is none. The node is
    /// drawn uniformly from all that are neither backing off after a failure nor recently asked. It
    /// stays a candidate until its [`crate::event::ContactEvent::Asked`] arrives. Omits
    /// [`Contact::enr`].
    fn sample_for_lookup(&self) -> Result<Option<Contact>>;

    /// Returns a node with a proven endpoint whose record is missing or outdated, or `None` when
    /// there is none. The node is drawn uniformly. Omits [`Contact::enr`].
    fn sample_for_enr(&self) -> Result<Option<Contact>>;

    /// Returns the nodes closest to `target` (keccak256 of a public key) by XOR distance. Returns
    /// at most `count`, which is limited to [`crate::limits::CLOSEST_CONTACTS_MAX`]. Nodes with a
    /// proven endpoint come first, by distance; if they are too few, others follow, by distance.
    /// Only few are from one subnet.
    fn closest(&self, target: B256, count: usize) -> Result<Vec<Contact>>;

    /// Returns the counts of the table.
    fn stats(&self) -> Result<Stats>;

    /// Reports the number of connected peers. If that changes the share of the target,
    /// [`crate::event::PEERS_TARGET`] announces it.
    fn set_connected(&self, count: u32) -> Result<()>;
}
