//! Storage-writer that must not be called.

use std::sync::Arc;
use tandem_primitives::BlockId;
use tandem_primitives::{B256, BlockNumber, Bytes, ShardSet, StateDiff, TrieDiff, WalkTarget};
use tandem_proto::storage::*;

/// Storage without data. The benches read only from memory, so every call fails.
pub struct Nothing;

fn asked<T>() -> Result<T> {
    Err(Error::Unavailable("a bench went to the database".into()))
}

impl StorageApi for Nothing {
    fn claim_epoch(&self, _: &Claim) -> Result<Epoch> {
        asked()
    }
    fn keep_epoch(&self, _: Epoch) -> Result<()> {
        asked()
    }
    fn checkpoint(&self) -> Result<Checkpoint> {
        asked()
    }
    fn pending(&self) -> Result<Vec<PendingBlock>> {
        asked()
    }
    fn state_diffs(&self, _: &[B256]) -> Result<Vec<Option<Arc<StateDiff>>>> {
        asked()
    }
    fn prove(&self, _: Epoch, _: B256) -> Result<()> {
        asked()
    }
    fn keep(&self, _: Epoch, _: KeptBlock) -> Result<()> {
        asked()
    }
    fn kept(&self, _: B256) -> Result<Option<KeptBlock>> {
        asked()
    }
    fn trie_diff(&self, _: B256) -> Result<Option<Arc<TrieDiff>>> {
        asked()
    }
    fn read_state(&self, _: &ReadState) -> Result<StateValues> {
        asked()
    }
    fn walk_trie(&self, _: &[WalkTarget]) -> Result<TrieNodes> {
        asked()
    }
    fn commit(&self, _: Epoch, _: Block) -> Result<()> {
        asked()
    }
    fn discard(&self, _: Epoch, _: B256) -> Result<()> {
        asked()
    }
    fn put_trie_diff(&self, _: B256, _: ShardSet, _: Arc<TrieDiff>) -> Result<()> {
        asked()
    }
    fn canonicalize(&self, _: Epoch, _: Forkchoice) -> Result<BlockNumber> {
        asked()
    }
    fn rewind(&self, _: Epoch, _: BlockNumber) -> Result<()> {
        asked()
    }
    fn block(&self, _: BlockRef) -> Result<Option<BlockRecord>> {
        asked()
    }
    fn header(&self, _: BlockRef) -> Result<Option<(BlockId, Bytes)>> {
        asked()
    }
    fn transaction(&self, _: B256) -> Result<Option<TransactionPlace>> {
        asked()
    }
}
