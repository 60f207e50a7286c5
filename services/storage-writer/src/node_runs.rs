//! Writer of the nodes of freshly built tries, past log and memtables.

use crate::Error;
use tandem_primitives::B256;
use tandem_store::{
    SortedRun, Sorter, Store,
    tables::{AccountTrie, StorageTrie},
};

/// Bytes of nodes of one trie that are sorted in memory.
const SORT_BYTES: usize = 32 << 20;

/// Nodes of one shard's tries. A builder gives children before their parents, but the tables have
/// parents first. So the nodes of each trie are sorted before they are written. The tables have them
/// after [`NodeRuns::finish`].
pub struct NodeRuns<'s> {
    account_nodes: Sorter,
    storage_nodes: Sorter,
    account_run: SortedRun<'s, AccountTrie>,
    storage_run: SortedRun<'s, StorageTrie>,
}

impl<'s> NodeRuns<'s> {
    pub fn new(store: &'s Store) -> Self {
        Self {
            account_nodes: store.sorter(SORT_BYTES),
            storage_nodes: store.sorter(SORT_BYTES),
            account_run: store.sorted_run(),
            storage_run: store.sorted_run(),
        }
    }

    /// Takes a node of the account trie, or of the storage trie that is being built.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn node(&mut self, owner: Option<B256>, path: &[u8], rlp: &[u8]) -> Result<(), Error> {
        let sorter = match owner {
            None => &mut self.account_nodes,
            Some(_) => &mut self.storage_nodes,
        };
        Ok(sorter.push(path, rlp)?)
    }

    /// Writes the nodes of the storage trie of an account. Owners ascend.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn storage_done(&mut self, owner: B256) -> Result<(), Error> {
        let Self { storage_nodes, storage_run, .. } = self;
        storage_nodes.drain(|path, rlp| Ok::<_, Error>(storage_run.put((owner, path), rlp)?))
    }

    /// Gives all nodes to the tables. They are on the disk then.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn finish(self) -> Result<(), Error> {
        let Self { mut account_nodes, mut account_run, storage_run, .. } = self;
        account_nodes.drain(|path, rlp| Ok::<_, Error>(account_run.put(path, rlp)?))?;
        account_run.finish()?;
        Ok(storage_run.finish()?)
    }
}
