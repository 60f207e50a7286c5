use crate::{StorageWriter, chain::Origin};
use std::sync::Arc;
use tandem_primitives::{B256, ShardSet, TrieDiff, WalkTarget};
use tandem_proto::storage::{
    BaseReads, Checkpoint, PendingBlock, ReadState, Result, StateValues, TrieNodes, TrieStorage,
};

/// Storage-writer for multiproof-workers of the same process. Their trie diffs have led to the root
/// in the header by hashes of this process, so storage-writer checks all nodes of a diff for one block
/// in 64, and only the tops for the others. It checks all nodes that come from another process.
pub struct OwnWorkers(pub Arc<StorageWriter>);

impl BaseReads for OwnWorkers {
    fn checkpoint(&self) -> Result<Checkpoint> {
        self.0.checkpoint()
    }

    fn read_state(&self, request: &ReadState) -> Result<StateValues> {
        self.0.read_state(request)
    }

    fn walk_trie(&self, targets: &[WalkTarget]) -> Result<TrieNodes> {
        self.0.walk_trie(targets)
    }
}

impl TrieStorage for OwnWorkers {
    fn pending(&self) -> Result<Vec<PendingBlock>> {
        self.0.pending()
    }

    fn trie_diff(&self, block: B256) -> Result<Option<Arc<TrieDiff>>> {
        self.0.trie_diff(block)
    }

    fn put_trie_diff(&self, block: B256, shards: ShardSet, diff: Arc<TrieDiff>) -> Result<()> {
        self.0.shared.state.lock().chain.add_trie(block, shards, diff, Origin::Here);
        Ok(())
    }
}
