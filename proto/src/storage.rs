//! Contract of storage-writer, which holds the only durable state.
//!
//! The **base** is the state at one canonical block P. Every executed block after P is **pending**,
//! by hash. Reads answer from the base alone and name the block at which it stood. A reader can
//! thus check that its own layers reach down to the base.

mod api;
mod term;

pub use api::{
    BaseReads, BlockReads, BlockWrites, DatabaseCheckpoints, HistoryReads, StateDownloads,
    StateRanges, StorageApi, TrieStorage, WriteLease,
};
pub use term::{Leadership, Promotion, Standing, Term};

use crate::limits::HOST_BYTES_MAX;
use std::{fmt, net::IpAddr, sync::Arc, time::Duration};
use tandem_primitives::{Account, B256, BlockId, BlockNumber, Bytes, StateDiff, U256};

/// Error of a call to storage-writer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// The caller's epoch is stale: a newer one was granted, so another executor took over.
    #[error("epoch {held} is fenced off by epoch {granted}")]
    Fenced {
        /// Epoch of the caller.
        held: u64,
        /// Newest granted epoch.
        granted: u64,
    },
    /// The caller's epoch is the newest one, but its token is missing or wrong.
    #[error("epoch {held} was not granted to the caller: its token is missing or wrong")]
    Unproven {
        /// Epoch of the caller.
        held: u64,
    },
    /// No block with this hash is pending or canonical.
    #[error("block {0} is unknown")]
    UnknownBlock(B256),
    /// The base cannot rewind that far, because its reverse diffs are pruned.
    #[error("cannot rewind to block {to}: reverse diffs reach back to block {oldest}")]
    RewindTooDeep {
        /// Requested block.
        to: BlockNumber,
        /// Oldest block to which the base can rewind.
        oldest: BlockNumber,
    },
    /// A reader of the feed stands at a block whose successors have no state diffs any more.
    #[error(
        "block {at} is too far behind for the feed, which goes back to block {oldest}: download the \
         state"
    )]
    TooFarBehind {
        /// Block at which the reader stands.
        at: BlockNumber,
        /// Oldest block after which the feed continues.
        oldest: BlockNumber,
    },
    /// The body and the receipts of a block are pruned (EIP-4444).
    #[error("block {number} is pruned: bodies and receipts go back to block {oldest}")]
    Pruned {
        /// Height of the block.
        number: BlockNumber,
        /// Oldest block with a body.
        oldest: BlockNumber,
    },
    /// The database failed or contains invalid data, or the stream of the feed did not acknowledge a
    /// forkchoice that waits for it. The text says which.
    #[error("{0}")]
    Store(String),
    /// The service is stopping or unreachable, the base moved in every attempt at a read in parts,
    /// or another executor has the right to write.
    #[error("storage-writer is not available: {0}")]
    Unavailable(String),
    /// The request contradicts itself or the chain, is too large, or is not the caller's to make.
    /// The text says which. storage-writer is sound.
    #[error("storage-writer refuses the call: {0}")]
    Refused(String),
}

impl Error {
    /// Returns whether the same call may succeed later, without any other call before it.
    ///
    /// Every call may be repeated: a block that is committed or canonical stays so. After
    /// [`Error::UnknownBlock`] the caller must commit the block first, and after
    /// [`Error::Fenced`] it needs a new epoch.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unavailable(_) => true,
            Self::Fenced { .. }
            | Self::Unproven { .. }
            | Self::UnknownBlock(_)
            | Self::RewindTooDeep { .. }
            | Self::TooFarBehind { .. }
            | Self::Pruned { .. }
            | Self::Store(_)
            | Self::Refused(_) => false,
        }
    }
}

/// Answer to every call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Right to write, granted to one executor at a time. A later grant fences off this one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Epoch {
    /// Number of the epoch. It rises by one with each grant of a term, so anyone can guess it. The
    /// upper half is the [`Term`].
    pub number: u64,
    /// Proof that the epoch was granted to the caller. `None` when the grant came from version
    /// 0.1.0 or went to it.
    pub token: Option<EpochToken>,
}

impl Epoch {
    /// Creates an epoch without a token.
    pub const fn numbered(number: u64) -> Self {
        Self { number, token: None }
    }
}

/// Secret of one epoch: 128 random bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct EpochToken(pub [u8; 16]);

impl fmt::Debug for EpochToken {
    /// Omits the secret, so that it appears in no log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EpochToken(..)")
    }
}

/// Request of an executor for the right to write.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Claim {
    /// Name of the executor, for logs and for the executors that it keeps out.
    pub executor: String,
    /// Time after the grant and after each renewal during which no other executor gets an epoch.
    pub lease: Duration,
    /// Whether the executor proves the epoch by its token in each call, as all do since version
    /// 0.1.0.
    pub takes_token: bool,
    /// Address at which other executors may reach this one, if any.
    pub address: Option<ExecutorAddress>,
}

impl Claim {
    /// Creates the claim of an executor that asks for no lease.
    pub fn of(executor: &str) -> Self {
        let executor = executor.to_owned();
        Self { executor, lease: Duration::ZERO, takes_token: true, address: None }
    }
}

/// Address at which an executor serves, for other executors that pass calls on to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExecutorAddress {
    /// IP address or host name, see [`is_host`].
    pub host: String,
    /// Port of the Engine API.
    pub engine_port: u16,
    /// Port of JSON-RPC.
    pub http_port: u16,
}

/// Returns whether a text is an IP address or can be a host name.
pub fn is_host(text: &str) -> bool {
    let letters = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let is_name = (1..=HOST_BYTES_MAX).contains(&text.len()) && text.chars().all(letters);
    is_name || text.parse::<IpAddr>().is_ok()
}

/// Executor that holds the newest epoch under a lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Number of the epoch.
    pub epoch: u64,
    /// Name of the executor.
    pub executor: String,
    /// Time after each renewal during which no other executor gets an epoch.
    pub lease: Duration,
    /// Address at which the executor serves, if it gave one.
    pub address: Option<ExecutorAddress>,
}

/// Head, safe and finalized block as the consensus layer last set them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Forkchoice {
    /// Head of the canonical chain.
    pub head: BlockId,
    /// Newest block that the consensus layer calls safe, `None` before it named one.
    pub safe: Option<BlockId>,
    /// Newest finalized block, `None` before there is one.
    pub finalized: Option<BlockId>,
}

/// Position of the durable state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Checkpoint {
    /// Genesis block.
    pub genesis: BlockId,
    /// Geth's genesis file without its `alloc`: chain configuration and header fields, as JSON.
    pub genesis_json: Arc<str>,
    /// Block whose state the base holds.
    pub base: BlockId,
    /// Last forkchoice that was made durable.
    pub forkchoice: Forkchoice,
    /// Whether the last write to the database failed, as on a full disk.
    pub writes_fail: bool,
    /// Height from which on all blocks have bodies and receipts.
    pub oldest_block: BlockNumber,
}

/// Executed block, as the executor hands it over before it answers VALID.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Block {
    /// Number and hash.
    pub id: BlockId,
    /// Hash of the parent.
    pub parent: B256,
    /// RLP of the header.
    pub header: Bytes,
    /// RLP of the body: transactions (wrapped as in a block), ommers, withdrawals.
    pub body: Bytes,
    /// Receipts as the executor encodes them; opaque here.
    pub receipts: Bytes,
    /// Hashes of the transactions in block order, for the index by hash.
    pub transaction_hashes: Arc<[B256]>,
    /// Changes of the state by the block.
    pub diff: Arc<StateDiff>,
    /// RLP of the block-level access list, `None` before Amsterdam (EIP-7928).
    pub access_list: Option<Bytes>,
}

/// Block beyond the base, without its content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PendingBlock {
    /// Number and hash.
    pub id: BlockId,
    /// Hash of the parent.
    pub parent: B256,
    /// RLP of the header.
    pub header: Bytes,
    /// Whether the block waits for its execution ([`BlockWrites::keep`]).
    pub kept: bool,
}

/// Block that cannot be executed yet: its parent is unknown, or the parent's state is out of reach.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptBlock {
    /// Number and hash.
    pub id: BlockId,
    /// Hash of the parent.
    pub parent: B256,
    /// RLP of the header.
    pub header: Bytes,
    /// RLP of the body: transactions (wrapped as in a block), ommers, withdrawals.
    pub body: Bytes,
}

/// Batched read of the base.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReadState {
    /// Hashed addresses of the accounts.
    pub accounts: Vec<B256>,
    /// Hashed address and hashed slot of each slot.
    pub slots: Vec<(B256, B256)>,
    /// Code hashes.
    pub codes: Vec<B256>,
}

/// Values in the order of the request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StateValues {
    /// Block at which the base stood during the read (one snapshot).
    pub base: BlockId,
    /// Accounts, `None` for each that does not exist.
    pub accounts: Vec<Option<Account>>,
    /// Values of the slots, zero for each that is not set.
    pub slots: Vec<U256>,
    /// Codes, `None` for each that is unknown.
    pub codes: Vec<Option<Bytes>>,
}

/// Blocks of the base's chain whose states can be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeptStates {
    /// Oldest of them.
    pub oldest: BlockNumber,
    /// Newest of them, the base.
    pub newest: BlockNumber,
    /// Blocks below the base that are kept at most.
    pub blocks_max: u64,
}

/// Trie node of the base.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TrieNode {
    /// Hashed address of the account that owns the storage trie, `None` for the account trie.
    pub owner: Option<B256>,
    /// Path from the root, one nibble per byte.
    pub path: Bytes,
    /// RLP of the node.
    pub rlp: Bytes,
}

/// Nodes on the paths to the targets of a walk, each once, parents before children.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TrieNodes {
    /// Block at which the base stood during the read (one snapshot).
    pub base: BlockId,
    /// Nodes found. A trie without any node is empty.
    pub nodes: Vec<TrieNode>,
}

/// Reference to a block by number or by hash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockRef {
    /// Canonical block at this height.
    Number(BlockNumber),
    /// Block with this hash, canonical or pending.
    Hash(B256),
}

/// Position of a transaction in the canonical chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransactionPlace {
    /// Block that contains the transaction.
    pub block: BlockId,
    /// Position in the block, from 0.
    pub index: u32,
}

/// Header, body and receipts of one block, each as the executor encoded it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockRecord {
    /// Number and hash.
    pub id: BlockId,
    /// RLP of the header.
    pub header: Bytes,
    /// RLP of the body.
    pub body: Bytes,
    /// Receipts of the block.
    pub receipts: Bytes,
}
