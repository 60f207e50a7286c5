//! Calls of storage-writer, by the callers that need them.
//!
//! All calls block on the database (or the network), so they belong on threads that may block, never
//! on the async reactor.

#[cfg(doc)]
use super::Error;
use super::{
    Block, BlockRecord, BlockRef, Checkpoint, Claim, Epoch, Forkchoice, Holder, KeptBlock,
    KeptStates, PendingBlock, ReadState, Result, StateValues, TransactionPlace, TrieNodes,
};
use crate::snap::{DownloadedBlock, StateItems, StatePart, StateRequest};
use std::sync::Arc;
use tandem_primitives::{
    B256, BlockId, BlockNumber, Bytes, ShardSet, StateDiff, TrieDiff, WalkTarget,
};

/// Reads of the base. Each answer names the block at which the base stood.
pub trait BaseReads: Send + Sync + 'static {
    /// Returns the position of the durable state.
    fn checkpoint(&self) -> Result<Checkpoint>;

    /// Reads accounts, slots and code of the base.
    fn read_state(&self, request: &ReadState) -> Result<StateValues>;

    /// Reads the nodes of the base on the path to each target.
    fn walk_trie(&self, targets: &[WalkTarget]) -> Result<TrieNodes>;
}

/// Calls of the workers, which hold the tries: nodes of the base and of the pending blocks.
pub trait TrieStorage: BaseReads {
    /// Returns every pending block, parents before children, followed by every kept block.
    fn pending(&self) -> Result<Vec<PendingBlock>>;

    /// Returns the trie diff of one pending block, for all shards, or `None` when the block is not
    /// pending. If it has entered the base, a later [`checkpoint`](BaseReads::checkpoint) shows
    /// that. A diff that was never sent is recomputed from the state diff.
    fn trie_diff(&self, block: B256) -> Result<Option<Arc<TrieDiff>>>;

    /// Hands over the changed trie nodes of a pending block for some shards. The call is advisory:
    /// nodes that never arrive are recomputed.
    fn put_trie_diff(&self, block: B256, shards: ShardSet, diff: Arc<TrieDiff>) -> Result<()>;
}

/// Look-ups of blocks: canonical, pending and kept ones.
pub trait BlockReads: Send + Sync + 'static {
    /// Returns the record of a block, `None` when it is unknown.
    fn block(&self, block: BlockRef) -> Result<Option<BlockRecord>>;

    /// Returns what [`block`](Self::block) returns, with empty receipts.
    fn block_without_receipts(&self, block: BlockRef) -> Result<Option<BlockRecord>> {
        let without = |record| BlockRecord { receipts: Bytes::new(), ..record };
        Ok(self.block(block)?.map(without))
    }

    /// Returns the RLP of a header with its block's number and hash, `None` when it is unknown.
    fn header(&self, block: BlockRef) -> Result<Option<(BlockId, Bytes)>>;

    /// Returns the position of a transaction in the canonical chain.
    fn transaction(&self, hash: B256) -> Result<Option<TransactionPlace>>;

    /// Returns the RLP of a block's access list (EIP-7928). Returns `None` when the block is unknown,
    /// is from before Amsterdam, or its list is pruned.
    fn access_list(&self, block: BlockRef) -> Result<Option<Bytes>>;

    /// Returns the state diffs of these blocks, in the order of the request, with `None` for a
    /// block that is not pending. At most [`STATE_DIFFS_MAX`](crate::limits::STATE_DIFFS_MAX)
    /// blocks.
    fn state_diffs(&self, blocks: &[B256]) -> Result<Vec<Option<Arc<StateDiff>>>>;

    /// Returns what [`state_diffs`](Self::state_diffs) returns, without slots.
    fn account_diffs(&self, blocks: &[B256]) -> Result<Vec<Option<Arc<StateDiff>>>> {
        let without_slots = |diff: Arc<StateDiff>| Arc::new(diff.without_slots());
        Ok(self.state_diffs(blocks)?.into_iter().map(|diff| diff.map(without_slots)).collect())
    }

    /// Returns a kept block, `None` when there is none with this hash.
    fn kept(&self, block: B256) -> Result<Option<KeptBlock>>;
}

/// Reads of the states after earlier blocks, in a process that keeps them. They do not change, so answers
/// for one block fit together. All calls return `None` if no such state is kept: for a block that is not
/// in the chain of the base, or is too old.
pub trait HistoryReads: Send + Sync + 'static {
    /// Returns the blocks whose states are kept, `None` without history.
    fn kept_states(&self) -> Result<Option<KeptStates>>;

    /// Reads accounts, slots and code after a block, as [`read_state`](BaseReads::read_state) does for
    /// the base. The answer names the block.
    fn read_state_after(&self, block: BlockId, request: &ReadState) -> Result<Option<StateValues>>;

    /// Returns whether an account had any slot after a block. The account must have had neither code nor
    /// nonce then.
    fn has_storage_after(&self, block: BlockId, address_hash: B256) -> Result<Option<bool>>;
}

/// Parts of recent states, for peers.
pub trait StateRanges: Send + Sync + 'static {
    /// Returns the wanted part of the state after a recent canonical block, without any item if no
    /// such block has this root, or too many states are asked for at once. Roots that were asked for
    /// lately stay available, although the base moves on.
    fn state_items(&self, request: &StateRequest) -> Result<StateItems>;
}

/// Download of a state onto a database that has only genesis, in place of executing all blocks. Until
/// the end, calls that need a state fail with [`Error::Unavailable`].
pub trait StateDownloads: Send + Sync + 'static {
    /// Returns what the last [`put_state`](Self::put_state) said of the progress, `None` if no
    /// download is under way.
    fn download_progress(&self) -> Result<Option<Bytes>>;

    /// Begins a download, or continues the one under way.
    ///
    /// # Errors
    /// [`Error::Refused`] when a block above genesis is there.
    fn begin_download(&self) -> Result<()>;

    /// Returns the size of parts that are best put at once ([`StatePart::byte_len`]): with less the database has more work
    /// later, and more may be refused.
    fn put_bytes(&self) -> usize;

    /// Replaces parts of the flat state, and notes how far the caller is.
    fn put_state(&self, parts: &[StatePart], progress: &[u8]) -> Result<()>;

    /// Makes the changes of a block's access list (EIP-7928, RLP) to what is there, and notes how far the
    /// caller is. Whether the list is that of a block is the caller's to check.
    ///
    /// # Errors
    /// [`Error::Refused`] when the list cannot be decoded.
    fn put_listed(&self, list: &[u8], progress: &[u8]) -> Result<()>;

    /// Stores blocks of the canonical chain up to the one whose state is downloaded, from genesis
    /// upwards.
    ///
    /// # Errors
    /// [`Error::Refused`] when a block's parent is not there.
    fn put_blocks(&self, blocks: &[DownloadedBlock]) -> Result<()>;

    /// Returns those of these codes that are not there.
    fn lacking_codes(&self, hashes: &[B256]) -> Result<Vec<B256>>;

    /// Builds the tries of what is there. Returns the state root. Takes as long as reading the
    /// state.
    fn build_tries(&self) -> Result<B256>;

    /// Returns the node that was built at a path, one nibble per byte, of the account trie or of an
    /// owner's storage trie.
    fn built_node(&self, owner: Option<B256>, path: &[u8]) -> Result<Option<Bytes>>;

    /// Returns the storage roots that were built for these owners.
    fn built_roots(&self, owners: &[B256]) -> Result<Vec<B256>>;

    /// Makes this block base and head, and builds the tries if parts came since they were built.
    ///
    /// # Errors
    /// [`Error::Store`] when the state is not the block's: parts of it are missing or of another
    /// block. The download stays under way.
    fn finish_download(&self, block: BlockId) -> Result<()>;
}

/// Writes of the executor that holds the newest epoch.
pub trait BlockWrites: Send + Sync + 'static {
    /// Makes a block durable as pending; it is in the write-ahead log when the call returns.
    /// Repeating the call changes nothing.
    fn commit(&self, epoch: Epoch, block: Block) -> Result<()>;

    /// Records that the state root of a pending block was checked, so that a restart need not
    /// compute it again. A block that becomes canonical needs no such record.
    fn prove(&self, epoch: Epoch, block: B256) -> Result<()>;

    /// Forgets a pending or kept block that turned out invalid.
    fn discard(&self, epoch: Epoch, block: B256) -> Result<()>;

    /// Makes a block durable that cannot be executed yet. Newer ones evict the oldest when there
    /// are too many. Repeating the call changes nothing.
    fn keep(&self, epoch: Epoch, block: KeptBlock) -> Result<()>;

    /// Makes this forkchoice durable, then moves the base towards the head in the background.
    /// Returns the height to which the base moves until the next forkchoice.
    fn canonicalize(&self, epoch: Epoch, forkchoice: Forkchoice) -> Result<BlockNumber>;

    /// Rewinds the base to the canonical block at height `to`; the blocks above become pending
    /// again. Does nothing when the base is at that height or below.
    fn rewind(&self, epoch: Epoch, to: BlockNumber) -> Result<()>;
}

/// Right to write, which one executor has at a time.
pub trait WriteLease: Send + Sync + 'static {
    /// Grants the caller a new epoch and fences off all older ones. Checks blocks whose state root
    /// the previous executor may still have been waiting for, and drops those with a wrong root.
    fn claim_epoch(&self, claim: &Claim) -> Result<Epoch>;

    /// Grants a new epoch without a lease, like [`claim_epoch`](Self::claim_epoch). `executor`
    /// names the caller in logs.
    fn acquire_epoch(&self, executor: &str) -> Result<Epoch> {
        self.claim_epoch(&Claim::of(executor))
    }

    /// Renews the lease of the executor of this epoch.
    ///
    /// # Errors
    /// [`Error::Fenced`] when another executor took over, [`Error::Unproven`] as from every call
    /// that needs an epoch.
    fn keep_epoch(&self, epoch: Epoch) -> Result<()>;

    /// Gives up the lease, so that other executors may acquire the right to write at once.
    ///
    /// # Errors
    /// [`Error::Fenced`] when another executor took over.
    fn release_epoch(&self, epoch: Epoch) -> Result<()> {
        self.keep_epoch(epoch)
    }

    /// Returns the executor of the newest epoch, `None` when it has no lease or has given it up.
    fn holder(&self) -> Result<Option<Holder>> {
        Ok(None)
    }
}

/// Checkpoints of the database, for snapshots.
pub trait DatabaseCheckpoints: Send + Sync + 'static {
    /// Makes a checkpoint of the database in a folder of the data directory. Returns the head of the chain.
    /// Waits for a flush; writes go on meanwhile.
    ///
    /// # Errors
    /// [`Error::Refused`] when there is a checkpoint already, or the database cannot have one.
    fn checkpoint_database(&self) -> Result<BlockId>;
}

/// All calls of storage-writer, for the executor and for the server of other processes.
pub trait StorageApi: TrieStorage + BlockReads + StateRanges + BlockWrites + WriteLease {}

impl<T: TrieStorage + BlockReads + StateRanges + BlockWrites + WriteLease> StorageApi for T {}
