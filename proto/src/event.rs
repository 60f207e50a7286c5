//! Events on the bus: what happened, never the truth itself. A consumer that misses one is slower
//! at worst, and seeing one twice changes nothing.

use crate::wire::event::v1;
use bytes::Bytes;
use prost::Message;
use tandem_primitives::BlockId;

/// A block was executed and found valid.
pub const CHAIN_EXECUTED: &str = "chain.executed";
/// The head of the canonical chain changed.
pub const CHAIN_HEAD: &str = "chain.head";
/// The durable base moved to another block.
pub const CHAIN_PERSISTED: &str = "chain.persisted";

/// What happened to the chain; the subject says which of the three it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChainEvent {
    /// The block it happened to.
    pub block: BlockId,
}

impl ChainEvent {
    /// Reads an event's payload, `None` when it is malformed.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        v1::ChainEvent::decode(payload).ok()?.try_into().ok()
    }

    /// The payload: `tandem.event.v1.ChainEvent`.
    pub fn encode(&self) -> Bytes {
        v1::ChainEvent::from(*self).encode_to_vec().into()
    }
}
