//! peer-table: the nodes that are known, and which of them to turn to next.
//!
//! All of it is in memory and none of it is the truth: what is forgotten is found again. What a
//! contact that is given out may be trusted for is its [`crate::event::Contact::event`]:
//! [`crate::event::ContactEvent::Answered`] when its endpoint is proven, else
//! [`crate::event::ContactEvent::Seen`].

use crate::event::Contact;
use tandem_primitives::B256;

/// What peer-table answers instead of a result.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// The mailbox is full: the caller may try again later, or do without.
    #[error("peer-table is overloaded")]
    Overloaded,
    /// The service is stopping or cannot be reached.
    #[error("peer-table is not available: {0}")]
    Unavailable(String),
}

/// Answer of every call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// How much is known, for people and dashboards.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Nodes known, those given up not counted.
    pub contacts: u64,
    /// Of these, nodes with a proven endpoint.
    pub proven: u64,
    /// Nodes given up, remembered for a while so that hearsay does not bring them back.
    pub disposed: u64,
    /// Nodes that a lookup may turn to now.
    pub lookup_candidates: u64,
    /// Nodes whose record is wanted now.
    pub enr_candidates: u64,
    /// Nodes that made room for others since the start.
    pub evicted: u64,
    /// Nodes that were not taken in since the start: table or subnet full, or no usable address.
    pub refused: u64,
    /// Peers connected, as last reported.
    pub connected: u32,
    /// Peers wanted.
    pub target: u32,
}

impl Stats {
    /// How far the reported peers reach the target, 0 to 1.
    pub fn completion(&self) -> f64 {
        completion(self.connected, self.target)
    }
}

/// Connected by wanted peers, 0 to 1; 1 when none are wanted.
pub fn completion(connected: u32, target: u32) -> f64 {
    if target == 0 { 1.0 } else { (f64::from(connected) / f64::from(target)).min(1.0) }
}

/// The calls of peer-table. All but [`Self::apply_batch`] wait for the answer of its thread, or of
/// the network, so they belong on threads that may wait, never on the async reactor. None waits
/// for room in a full mailbox: that is [`Error::Overloaded`].
pub trait PeerTableApi: Send + Sync + 'static {
    /// Takes in what was learned of nodes, in the order it happened; at most
    /// [`crate::limits::DISCOVERED_CONTACTS_MAX`] at once. The same is heard on the bus as
    /// [`crate::event::PEERS_DISCOVERED`]: a caller uses one of both, or failures count twice.
    fn apply_batch(&self, contacts: Vec<Contact>) -> Result<()>;

    /// A node to send a find node packet to, drawn uniformly from all that are not backing off
    /// after a failure and were not asked lately; `None` when there is none. It stays a candidate
    /// until its [`crate::event::ContactEvent::Asked`] comes back. Without [`Contact::enr`].
    fn sample_for_lookup(&self) -> Result<Option<Contact>>;

    /// A node with a proven endpoint whose record is missing or older than it says, drawn
    /// uniformly; `None` when there is none. Without [`Contact::enr`].
    fn sample_for_enr(&self) -> Result<Option<Contact>>;

    /// The nodes closest to `target` (keccak256 of a public key) by XOR distance, at most `count`,
    /// itself at most [`crate::limits::CLOSEST_CONTACTS_MAX`]: first those with a proven endpoint by
    /// distance, then, where they are too few, others by distance. Few are of one subnet.
    fn closest(&self, target: B256, count: usize) -> Result<Vec<Contact>>;

    /// How much is known.
    fn stats(&self) -> Result<Stats>;

    /// Reports how many peers are connected. When that changes how far the target is reached,
    /// [`crate::event::PEERS_TARGET`] says so.
    fn set_connected(&self, count: u32) -> Result<()>;
}
