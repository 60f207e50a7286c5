//! Events on the bus. They are notifications, never the source of truth. A consumer that misses one
//! is slower at worst, and seeing one twice changes nothing.

use crate::wire::event::v1;
use bytes::Bytes;
use prost::Message;
use std::net::IpAddr;
use tandem_membership::Heartbeat;
use tandem_primitives::{B256, B512, BlockId, Bytes as Rlp};

/// Subject of the event that a block was executed and found valid.
pub const CHAIN_EXECUTED: &str = "chain.executed";
/// Subject of the event that the head of the canonical chain changed.
pub const CHAIN_HEAD: &str = "chain.head";
/// Subject of the event that the durable base moved to another block.
pub const CHAIN_PERSISTED: &str = "chain.persisted";
/// Subject of the news about nodes from discovery: [`PeersDiscovered`].
pub const PEERS_DISCOVERED: &str = "peers.discovered";
/// Subject of changes to the share of wanted peers that are connected: [`PeersTarget`].
pub const PEERS_TARGET: &str = "peers.target";
/// Subject of sidecars that were found valid: [`BlobsValidated`]. blob-validator serves their
/// blobs.
pub const BLOBS_VALIDATED: &str = "blobs.validated";
/// Subjects of the heartbeats of workers: [`WorkerAlive`]. Each worker has its own subject, which
/// ends in its name, so that a NATS user can be restricted to one worker.
pub const WORKERS_ALIVE: &str = "workers.alive.*";

/// Subject of traces to keep: [`TracesSlow`]. Every process with spans of such a trace keeps them.
pub const TRACES_SLOW: &str = "traces.slow";

/// Key-value bucket of live settings.
pub const SETTINGS_BUCKET: &str = "tandem";
/// Key of the policies in the bucket. Its value is a text for `tandem_policy::Policies::with_text`.
pub const POLICIES_KEY: &str = "policies";

/// Key-value bucket of the leases by which one of several storage-writers leads a chain.
pub const LEAD_BUCKET: &str = "tandem_lead";

/// Returns the key of the lease for the chain with this genesis block.
pub fn lead_key(genesis: B256) -> String {
    format!("{genesis:x}")
}

/// Change of the chain. The subject distinguishes the three kinds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChainEvent {
    /// Block that the event is about.
    pub block: BlockId,
}

impl ChainEvent {
    /// Reads the payload of an event, `None` when it is malformed.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        v1::ChainEvent::decode(payload).ok()?.try_into().ok()
    }

    /// Returns the payload: `tandem.event.v1.ChainEvent`.
    pub fn encode(&self) -> Bytes {
        v1::ChainEvent::from(*self).encode_to_vec().into()
    }
}

/// News about nodes from discovery: one batch, in the order of occurrence.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PeersDiscovered {
    /// Contacts, at most [`crate::limits::DISCOVERED_CONTACTS_MAX`]. A node may occur several
    /// times.
    pub contacts: Vec<Contact>,
}

/// Node with an event about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Contact {
    /// Uncompressed public key of the node without the leading 0x04.
    pub id: B512,
    /// IP address of the node. An IPv4-mapped IPv6 address arrives as the IPv4 address.
    pub ip: IpAddr,
    /// Discovery port of the node.
    pub udp_port: u16,
    /// RLPx port of the node, 0 when it takes no connections or the port is unknown.
    pub tcp_port: u16,
    /// Sequence number of the newest known record of the node.
    pub enr_seq: Option<u64>,
    /// RLP of the node's record (EIP-778), signature checked, at most
    /// [`crate::limits::ENR_BYTES_MAX`] bytes.
    pub enr: Option<Rlp>,
    /// Event about the node.
    pub event: ContactEvent,
}

/// Event about a [`Contact`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ContactEvent {
    /// Another node named the contact in a neighbors packet (or the configuration names it):
    /// unproven.
    Seen,
    /// The contact answered a ping, or later a find node: its endpoint is proven.
    Answered,
    /// The contact did not answer in time.
    Failed,
    /// A find node packet was sent to the contact.
    Asked,
    /// The record of the contact arrived: [`Contact::enr`] and [`Contact::enr_seq`] are set.
    EnrReceived,
}

impl PeersDiscovered {
    /// Reads the payload of an event, `None` when it is malformed.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        v1::PeersDiscovered::decode(payload).ok()?.try_into().ok()
    }

    /// Returns the payload: `tandem.event.v1.PeersDiscovered`. The publisher must observe the
    /// limits of [`Self::contacts`] and [`Contact::enr`], because a receiver refuses larger events.
    pub fn encode(&self) -> Bytes {
        v1::PeersDiscovered::from(self).encode_to_vec().into()
    }
}

/// Share of the wanted peers that are connected. Until sessions are reported, nodes that answer
/// count instead.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PeersTarget {
    /// Connected peers divided by wanted peers, 0 to 1: 1 when there are enough.
    pub completion: f64,
}

impl PeersTarget {
    /// Reads the payload of an event, `None` when it is malformed.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        v1::PeersTarget::decode(payload).ok()?.try_into().ok()
    }

    /// Returns the payload: `tandem.event.v1.PeersTarget`.
    pub fn encode(&self) -> Bytes {
        v1::PeersTarget::from(*self).encode_to_vec().into()
    }
}

/// Blobs of one sidecar that were found valid.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BlobsValidated {
    /// Versioned hashes in the order of the sidecar.
    pub versioned_hashes: Vec<B256>,
}

impl BlobsValidated {
    /// Reads the payload of an event, `None` when it is malformed.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        v1::BlobsValidated::decode(payload).ok()?.try_into().ok()
    }

    /// Returns the payload: `tandem.event.v1.BlobsValidated`.
    pub fn encode(&self) -> Bytes {
        v1::BlobsValidated::from(self).encode_to_vec().into()
    }
}

/// Traces with a slow payload. Only the process that answered the payload knows that it was slow.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TracesSlow {
    /// Trace ids, at most [`crate::limits::SLOW_TRACES_MAX`], none of them 0.
    pub trace_ids: Vec<u128>,
}

impl TracesSlow {
    /// Reads the payload of an event, `None` when it is malformed.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        v1::TracesSlow::decode(payload).ok()?.try_into().ok()
    }

    /// Returns the payload: `tandem.event.v1.TracesSlow`. The publisher must observe the limits of
    /// [`Self::trace_ids`], because a receiver refuses larger events.
    pub fn encode(&self) -> Bytes {
        v1::TracesSlow::from(self).encode_to_vec().into()
    }
}

/// Heartbeat of a worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkerAlive(pub Heartbeat);

impl WorkerAlive {
    /// Reads the payload of an event, `None` when it is malformed.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        v1::WorkerAlive::decode(payload).ok()?.try_into().ok()
    }

    /// Returns the payload: `tandem.event.v1.WorkerAlive`. The publisher must observe
    /// [`crate::limits::ENDPOINT_BYTES_MAX`] and [`crate::limits::HEARTBEAT_MS`], because a
    /// receiver refuses other values.
    pub fn encode(&self) -> Bytes {
        v1::WorkerAlive::from(self).encode_to_vec().into()
    }
}
