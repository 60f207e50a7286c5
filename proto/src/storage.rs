//! storage-writer: the only durable state.
//!
//! The **base** is the state at one canonical block P; every executed block after P is **pending**,
//! by hash. Reads answer from the base alone and say which block it stood at, so that a reader can
//! check that its own layers reach down to it.

use crate::limits::HOST_BYTES_MAX;
use std::{fmt, net::IpAddr, sync::Arc, time::Duration};
use tandem_primitives::{
    Account, B256, BlockId, BlockNumber, Bytes, Shard, StateDiff, TrieDiff, U256, WalkTarget,
};

/// What storage-writer answers instead of a result.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// The caller's epoch is older than the newest one granted: another executor took over.
    #[error("epoch {held} is fenced off by epoch {granted}")]
    Fenced {
        /// The epoch of the caller.
        held: u64,
        /// The newest epoch granted.
        granted: u64,
    },
    /// The caller's epoch is the newest one, and its token is missing or wrong.
    #[error("epoch {held} was not granted to the caller: its token is missing or wrong")]
    Unproven {
        /// The epoch of the caller.
        held: u64,
    },
    /// No block with this hash is pending or canonical.
    #[error("block {0} is unknown")]
    UnknownBlock(B256),
    /// The base cannot step back that far: its reverse diffs are pruned.
    #[error("cannot rewind to block {to}: reverse diffs reach back to block {oldest}")]
    RewindTooDeep {
        /// The block asked for.
        to: BlockNumber,
        /// The oldest block that the base can step back to.
        oldest: BlockNumber,
    },
    /// The database failed, or holds what it must not. The text says where.
    #[error("{0}")]
    Store(String),
    /// The service is stopping, cannot be reached, or another executor has the right to write.
    #[error("storage-writer is not available: {0}")]
    Unavailable(String),
}

/// Answer of every call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The right to write, granted to one executor at a time. A later grant fences off this one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Epoch {
    /// Rises by one with each grant, so anyone can guess it.
    pub number: u64,
    /// Proof that the caller is the executor to which the epoch was granted. `None` where the grant
    /// came from version 0.1.0, or went to it.
    pub token: Option<EpochToken>,
}

impl Epoch {
    /// Epoch without a token.
    pub const fn numbered(number: u64) -> Self {
        Self { number, token: None }
    }
}

/// Secret of one epoch: 128 random bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct EpochToken(pub [u8; 16]);

impl fmt::Debug for EpochToken {
    /// Leaves out the secret, so that no log has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EpochToken(..)")
    }
}

/// Question of an executor for the right to write.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Claim {
    /// Name of the executor, for logs and for the executors that it keeps out.
    pub executor: String,
    /// Time from the grant, and from each sign of life, in which no other executor gets an epoch.
    pub lease: Duration,
    /// Whether the executor proves the epoch by its token in each call, as all do since version 0.1.0.
    pub takes_token: bool,
    /// Address at which other executors reach it, if they may.
    pub address: Option<ExecutorAddress>,
}

impl Claim {
    /// Claim of an executor that asks for no lease.
    pub fn of(executor: &str) -> Self {
        let executor = executor.to_owned();
        Self { executor, lease: Duration::ZERO, takes_token: true, address: None }
    }
}

/// Where an executor serves, for other executors that pass calls on to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExecutorAddress {
    /// IP address or name of its host, see [`is_host`].
    pub host: String,
    /// Port of the Engine API.
    pub engine_port: u16,
    /// Port of JSON-RPC.
    pub http_port: u16,
}

/// Whether a text is an IP address, or can be the name of a host.
pub fn is_host(text: &str) -> bool {
    let letters = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let is_name = (1..=HOST_BYTES_MAX).contains(&text.len()) && text.chars().all(letters);
    is_name || text.parse::<IpAddr>().is_ok()
}

/// Executor to which the newest epoch was granted under a lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Number of the epoch.
    pub epoch: u64,
    /// Name of the executor.
    pub executor: String,
    /// Time from each sign of life in which no other executor gets an epoch.
    pub lease: Duration,
    /// Where it serves, if it said so.
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

/// Where the durable state stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Checkpoint {
    /// The genesis block.
    pub genesis: BlockId,
    /// Geth's genesis file without its `alloc`: chain configuration and header fields, as JSON.
    pub genesis_json: Arc<str>,
    /// The block whose state the base holds.
    pub base: BlockId,
    /// The last forkchoice that was made durable.
    pub forkchoice: Forkchoice,
    /// Whether the last write to the database failed, as on a full disk.
    pub writes_fail: bool,
}

/// One executed block, as the executor hands it over before it answers VALID.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Block {
    /// Number and hash.
    pub id: BlockId,
    /// Hash of the parent.
    pub parent: B256,
    /// The header's RLP.
    pub header: Bytes,
    /// The body's RLP: transactions (wrapped as in a block), ommers, withdrawals.
    pub body: Bytes,
    /// The receipts as the executor encodes them; opaque here.
    pub receipts: Bytes,
    /// Hashes of the transactions in block order, for the index by hash.
    pub transaction_hashes: Arc<[B256]>,
    /// What the block did to the state.
    pub diff: Arc<StateDiff>,
}

/// A block beyond the base, without what it holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PendingBlock {
    /// Number and hash.
    pub id: BlockId,
    /// Hash of the parent.
    pub parent: B256,
    /// The header's RLP.
    pub header: Bytes,
    /// Whether the block waits for its execution ([`StorageApi::keep`]).
    pub kept: bool,
}

/// A block that cannot be executed yet: its parent is unknown, or the parent's state is out of reach.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptBlock {
    /// Number and hash.
    pub id: BlockId,
    /// Hash of the parent.
    pub parent: B256,
    /// The header's RLP.
    pub header: Bytes,
    /// The body's RLP: transactions (wrapped as in a block), ommers, withdrawals.
    pub body: Bytes,
}

/// A batched read of the base.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReadState {
    /// Hashed addresses.
    pub accounts: Vec<B256>,
    /// Hashed address and hashed slot.
    pub slots: Vec<(B256, B256)>,
    /// Code hashes.
    pub codes: Vec<B256>,
}

/// Answers in the order of the request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StateValues {
    /// The block that the base stood at when all of this was read (one snapshot).
    pub base: BlockId,
    /// `None` where no such account exists.
    pub accounts: Vec<Option<Account>>,
    /// Zero where the slot is not set.
    pub slots: Vec<U256>,
    /// `None` where the code is not known.
    pub codes: Vec<Option<Bytes>>,
}

/// One trie node of the base.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TrieNode {
    /// Hashed address of the account whose storage trie it is in, `None` for the account trie.
    pub owner: Option<B256>,
    /// Path from the root, one nibble a byte.
    pub path: Bytes,
    /// The node's RLP.
    pub rlp: Bytes,
}

/// The nodes on the way to the targets of a walk, each once, parents before children.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TrieNodes {
    /// The block that the base stood at when all of this was read (one snapshot).
    pub base: BlockId,
    /// The nodes found. A trie without any node is empty.
    pub nodes: Vec<TrieNode>,
}

/// A block by number or by hash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockRef {
    /// The canonical block at this height.
    Number(BlockNumber),
    /// The block with this hash, canonical or pending.
    Hash(B256),
}

/// Where a transaction stands in the canonical chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransactionPlace {
    /// Its block.
    pub block: BlockId,
    /// Its position in the block, from 0.
    pub index: u32,
}

/// Header, body and receipts of one block, each as the executor encoded it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockRecord {
    /// Number and hash.
    pub id: BlockId,
    /// The header's RLP.
    pub header: Bytes,
    /// The body's RLP.
    pub body: Bytes,
    /// The receipts.
    pub receipts: Bytes,
}

/// The calls of storage-writer. They block on the database (or the network), so they belong on
/// threads that may wait, never on the async reactor.
pub trait StorageApi: Send + Sync + 'static {
    /// Grants the caller a new epoch and fences off all older ones. Blocks whose state root the
    /// executor before may still have waited for are checked, and dropped if theirs does not hold.
    fn claim_epoch(&self, claim: &Claim) -> Result<Epoch>;

    /// Grants a new epoch without a lease, as [`claim_epoch`](Self::claim_epoch) does. `executor` names
    /// the caller in logs.
    fn acquire_epoch(&self, executor: &str) -> Result<Epoch> {
        self.claim_epoch(&Claim::of(executor))
    }

    /// Says that the executor of this epoch is still there.
    ///
    /// # Errors
    /// [`Error::Fenced`] when another one took over, [`Error::Unproven`] as from every call that an
    /// epoch is needed for.
    fn keep_epoch(&self, epoch: Epoch) -> Result<()>;

    /// Says that other executors may have the right to write at once.
    ///
    /// # Errors
    /// [`Error::Fenced`] when another one took over.
    fn release_epoch(&self, epoch: Epoch) -> Result<()> {
        self.keep_epoch(epoch)
    }

    /// Returns the executor of the newest epoch, `None` where it has no lease, or has given it back.
    fn holder(&self) -> Result<Option<Holder>> {
        Ok(None)
    }

    /// Where the durable state stands.
    fn checkpoint(&self) -> Result<Checkpoint>;

    /// Every pending block, parents before children, and every kept one after those.
    fn pending(&self) -> Result<Vec<PendingBlock>>;

    /// What these blocks did to the state, in the order of the request; `None` where a block is not
    /// pending. At most [`STATE_DIFFS_MAX`](crate::limits::STATE_DIFFS_MAX) blocks.
    fn state_diffs(&self, blocks: &[B256]) -> Result<Vec<Option<Arc<StateDiff>>>>;

    /// The trie diff of one pending block, all shards, `None` when the block is not pending: when
    /// it has entered the base, a [`checkpoint`](Self::checkpoint) asked for afterwards says so.
    /// A diff that was never sent is recomputed from the state diff.
    fn trie_diff(&self, block: B256) -> Result<Option<Arc<TrieDiff>>>;

    /// Reads accounts, slots and code of the base.
    fn read_state(&self, request: &ReadState) -> Result<StateValues>;

    /// Reads the nodes of the base on the way to each target.
    fn walk_trie(&self, targets: &[WalkTarget]) -> Result<TrieNodes>;

    /// Makes a block durable as pending; it is in the write-ahead log when this returns. Repeating
    /// it changes nothing.
    fn commit(&self, epoch: Epoch, block: Block) -> Result<()>;

    /// Forgets a pending or kept block that turned out invalid.
    fn discard(&self, epoch: Epoch, block: B256) -> Result<()>;

    /// Says that the state root of a pending block was checked, so that a restart need not compute
    /// it again. A block that becomes canonical needs no such word.
    fn prove(&self, epoch: Epoch, block: B256) -> Result<()>;

    /// Makes a block durable that cannot be executed yet. The oldest ones give way to newer ones
    /// when there are too many. Repeating it changes nothing.
    fn keep(&self, epoch: Epoch, block: KeptBlock) -> Result<()>;

    /// A block that is kept, `None` when there is none of this hash.
    fn kept(&self, block: B256) -> Result<Option<KeptBlock>>;

    /// Hands over the changed trie nodes of a pending block for some shards. Advisory: what never
    /// comes is recomputed.
    fn put_trie_diff(&self, block: B256, shards: &[Shard], diff: Arc<TrieDiff>) -> Result<()>;

    /// Makes this forkchoice durable, then moves the base towards the head in the background.
    /// Returns the height up to which it moves until the next forkchoice.
    fn canonicalize(&self, epoch: Epoch, forkchoice: Forkchoice) -> Result<BlockNumber>;

    /// Steps the base back to the canonical block at height `to` (a no-op when it stands there or
    /// below); the blocks above become pending again.
    fn rewind(&self, epoch: Epoch, to: BlockNumber) -> Result<()>;

    /// A block's record, `None` when it is unknown.
    fn block(&self, block: BlockRef) -> Result<Option<BlockRecord>>;

    /// A header's RLP with its block's number and hash, `None` when it is unknown.
    fn header(&self, block: BlockRef) -> Result<Option<(BlockId, Bytes)>>;

    /// Where a transaction stands in the canonical chain.
    fn transaction(&self, hash: B256) -> Result<Option<TransactionPlace>>;
}
