//! Events on the bus: what happened, never the truth itself. A consumer that misses one is slower
//! at worst, and seeing one twice changes nothing.

use crate::wire::event::v1;
use bytes::Bytes;
use prost::Message;
use std::net::IpAddr;
use tandem_membership::Heartbeat;
use tandem_primitives::{B256, B512, BlockId, Bytes as Rlp};

/// A block was executed and found valid.
pub const CHAIN_EXECUTED: &str = "chain.executed";
/// The head of the canonical chain changed.
pub const CHAIN_HEAD: &str = "chain.head";
/// The durable base moved to another block.
pub const CHAIN_PERSISTED: &str = "chain.persisted";
/// Discovery learned something of nodes: [`PeersDiscovered`].
pub const PEERS_DISCOVERED: &str = "peers.discovered";
/// The number of connected peers, as a share of the wanted one, changed: [`PeersTarget`].
pub const PEERS_TARGET: &str = "peers.target";
/// Sidecars were found valid; their blobs can be had of blob-validator: [`BlobsValidated`].
pub const BLOBS_VALIDATED: &str = "blobs.validated";
/// A worker is there: [`WorkerAlive`]. Each has a subject of its own, which ends in its name, so that a
/// NATS user may be bound to one worker.
pub const WORKERS_ALIVE: &str = "workers.alive.*";

/// Traces that whoever has spans of them is to keep: [`TracesSlow`].
pub const TRACES_SLOW: &str = "traces.slow";

/// The key-value bucket of live settings.
pub const SETTINGS_BUCKET: &str = "tandem";
/// The key of the policies in it; what it holds is a text for `tandem_policy::Policies::with_text`.
pub const POLICIES_KEY: &str = "policies";

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

/// What discovery learned of nodes: one batch, in the order it happened.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PeersDiscovered {
    /// At most [`crate::limits::DISCOVERED_CONTACTS_MAX`]; the same node may be there several times.
    pub contacts: Vec<Contact>,
}

/// A node and what happened to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Contact {
    /// Its uncompressed public key without the leading 0x04.
    pub id: B512,
    /// Where it is. An IPv4-mapped IPv6 address arrives as the IPv4 address.
    pub ip: IpAddr,
    /// Its discovery port.
    pub udp_port: u16,
    /// Its RLPx port, 0 when it takes no connections or the port is not known.
    pub tcp_port: u16,
    /// Sequence number of its newest record as far as it is known.
    pub enr_seq: Option<u64>,
    /// Its record's RLP (EIP-778), signature checked, at most
    /// [`crate::limits::ENR_BYTES_MAX`] bytes.
    pub enr: Option<Rlp>,
    /// What happened.
    pub event: ContactEvent,
}

/// What happened to a [`Contact`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ContactEvent {
    /// Another node named it in a neighbors packet (or the configuration does): unproven.
    Seen,
    /// It answered a ping, or a find node later: its endpoint is proven.
    Answered,
    /// It did not answer in time.
    Failed,
    /// It was sent a find node packet.
    Asked,
    /// Its record came: [`Contact::enr`] and [`Contact::enr_seq`] are set.
    EnrReceived,
}

impl PeersDiscovered {
    /// Reads an event's payload, `None` when it is malformed.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        v1::PeersDiscovered::decode(payload).ok()?.try_into().ok()
    }

    /// The payload: `tandem.event.v1.PeersDiscovered`. The publisher keeps to the limits of
    /// [`Self::contacts`] and [`Contact::enr`]; a receiver refuses what exceeds them.
    pub fn encode(&self) -> Bytes {
        v1::PeersDiscovered::from(self).encode_to_vec().into()
    }
}

/// How far the number of connected peers is from what it shall be. Until sessions are reported, nodes
/// that answer stand in for them.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PeersTarget {
    /// Connected by wanted, 0 to 1: 1 when there are enough.
    pub completion: f64,
}

impl PeersTarget {
    /// Reads an event's payload, `None` when it is malformed.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        v1::PeersTarget::decode(payload).ok()?.try_into().ok()
    }

    /// The payload: `tandem.event.v1.PeersTarget`.
    pub fn encode(&self) -> Bytes {
        v1::PeersTarget::from(*self).encode_to_vec().into()
    }
}

/// Blobs of one sidecar that were found valid.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BlobsValidated {
    /// In the order of the sidecar.
    pub versioned_hashes: Vec<B256>,
}

impl BlobsValidated {
    /// Reads an event's payload, `None` when it is malformed.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        v1::BlobsValidated::decode(payload).ok()?.try_into().ok()
    }

    /// The payload: `tandem.event.v1.BlobsValidated`.
    pub fn encode(&self) -> Bytes {
        v1::BlobsValidated::from(self).encode_to_vec().into()
    }
}

/// Traces with a payload that was slow, which is known to the process that answered it alone.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TracesSlow {
    /// At most [`crate::limits::SLOW_TRACES_MAX`], none of them 0.
    pub trace_ids: Vec<u128>,
}

impl TracesSlow {
    /// Reads an event's payload, `None` when it is malformed.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        v1::TracesSlow::decode(payload).ok()?.try_into().ok()
    }

    /// The payload: `tandem.event.v1.TracesSlow`. The publisher keeps to the limits of
    /// [`Self::trace_ids`]; a receiver refuses what exceeds them.
    pub fn encode(&self) -> Bytes {
        v1::TracesSlow::from(self).encode_to_vec().into()
    }
}

/// A worker's heartbeat.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkerAlive(pub Heartbeat);

impl WorkerAlive {
    /// Reads an event's payload, `None` when it is malformed.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        v1::WorkerAlive::decode(payload).ok()?.try_into().ok()
    }

    /// The payload: `tandem.event.v1.WorkerAlive`. The publisher keeps to
    /// [`crate::limits::ENDPOINT_BYTES_MAX`] and [`crate::limits::HEARTBEAT_MS`]; a receiver refuses
    /// what exceeds them.
    pub fn encode(&self) -> Bytes {
        v1::WorkerAlive::from(self).encode_to_vec().into()
    }
}
