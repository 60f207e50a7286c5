//! Chain that peers see: its state now, and its blocks.

use tandem_discv4::{ForkId, fork_id, is_compatible};
use tandem_eth_wire::eth::{BlockRange, Status, Version};
use tandem_primitives::{B256, Bytes};
use tandem_proto::snap::{StateItems, StateRequest};

/// State of the own chain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChainStatus {
    /// Id of the network.
    pub network: u64,
    /// Hash of the genesis block.
    pub genesis: B256,
    /// Time of the genesis block.
    pub genesis_time: u64,
    /// Blocks at which forks activate.
    pub block_forks: Vec<u64>,
    /// Times at which forks activate.
    pub time_forks: Vec<u64>,
    /// Time of the newest block.
    pub latest_time: u64,
    /// Blocks that are here.
    pub range: BlockRange,
}

impl ChainStatus {
    /// Returns the message that tells a peer.
    pub(crate) fn message(&self, version: Version) -> Status {
        Status {
            version: version.number(),
            network: self.network,
            genesis: self.genesis,
            fork_id: self.fork_id(),
            range: self.range,
        }
    }

    fn fork_id(&self) -> ForkId {
        let (genesis, head) = self.ends();
        fork_id(genesis, &self.block_forks, &self.time_forks, head)
    }

    /// Returns why a peer with this status is of no use.
    pub(crate) fn check(&self, version: Version, peer: &Status) -> Result<(), StatusError> {
        if peer.version != version.number() {
            return Err(StatusError::Version { got: peer.version, want: version.number() });
        }
        if peer.network != self.network {
            return Err(StatusError::Network { got: peer.network, want: self.network });
        }
        if peer.genesis != self.genesis {
            return Err(StatusError::Genesis { got: peer.genesis, want: self.genesis });
        }
        let (genesis, head) = self.ends();
        if !is_compatible(genesis, &self.block_forks, &self.time_forks, head, peer.fork_id) {
            return Err(StatusError::Fork { got: peer.fork_id });
        }
        Ok(())
    }

    fn ends(&self) -> ((B256, u64), (u64, u64)) {
        ((self.genesis, self.genesis_time), (self.range.latest, self.latest_time))
    }
}

/// Reason why a peer's chain is another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StatusError {
    /// The status states another version than both sides agreed on.
    #[error("status of version {got}; expected {want}")]
    Version {
        /// Version of the peer.
        got: u64,
        /// Version of the session.
        want: u64,
    },
    /// The peer is on another network.
    #[error("network {got}; expected {want}")]
    Network {
        /// Network of the peer.
        got: u64,
        /// Network of this node.
        want: u64,
    },
    /// The peer's chain begins with another block.
    #[error("genesis {got}; expected {want}")]
    Genesis {
        /// Genesis block of the peer.
        got: B256,
        /// Genesis block of this node.
        want: B256,
    },
    /// The peer has other forks, or is outdated (EIP-2124).
    #[error("incompatible forks: {got:?}")]
    Fork {
        /// Fork id of the peer.
        got: ForkId,
    },
}

/// Blocks and states that peers ask for. Calls may block; few threads of low priority make them.
pub trait BlockSource: Send + Sync + 'static {
    /// Returns the number of a block of the canonical chain.
    fn number(&self, hash: B256) -> Option<u64>;

    /// Returns the RLP of headers of the canonical chain, in the order of `numbers`. It ends before
    /// the first that is missing.
    fn headers(&self, numbers: &[u64]) -> Vec<Bytes>;

    /// Returns the RLP of a block's body: transactions, ommers, withdrawals.
    fn body(&self, hash: B256) -> Option<Bytes>;

    /// Returns the RLP of a block's receipts as eth/69 has them: a list of
    /// `[type, status, cumulative gas, logs]`.
    fn receipts(&self, hash: B256) -> Option<Bytes>;

    /// Returns the RLP of a block's access list (EIP-7928).
    fn access_list(&self, hash: B256) -> Option<Bytes>;

    /// Returns a part of a recent state, without any item if it is not there.
    fn state_items(&self, request: &StateRequest) -> StateItems;
}
