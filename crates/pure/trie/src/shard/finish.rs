//! End of a block, and work between blocks.

use super::ShardTrie;
use crate::{
    Error, Lookup,
    account::{account_leaf, storage_root},
    sparse::{Ages, Hashed, Pass, hash_tries},
};
use tandem_primitives::{Account, B256, EMPTY_TRIE_ROOT, SubtrieRoot, TrieDiff};

/// Share of the limit, in sixteenths, that pruning goes down to. Pruning looks at every node, so it
/// must not be due again soon.
const PRUNE_SIXTEENTHS: usize = 12;

/// Maximum size in bytes of diff buffers that are reused, sufficient for usual blocks.
const SPARE_BYTES_MAX: usize = 256 << 10;

impl ShardTrie {
    /// Ends the block: performs pending writes, hashes the storage tries, writes the account
    /// leaves, and hashes the account subtrie. Returns the subtrie's top node and all nodes that
    /// changed.
    ///
    /// Returns `Ok(None)` when more nodes are needed. The caller then answers all targets and calls
    /// again.
    ///
    /// # Errors
    /// Returns [`Error::Missing`] when a fully answered walk lacks a node that must exist. Returns
    /// [`Error::AccountLeaf`] or [`Error::StorageRoot`] on an invalid leaf or root. The caller must
    /// then clear the shard.
    pub fn finish(&mut self) -> Result<Option<(SubtrieRoot, TrieDiff)>, Error> {
        self.open();
        self.withdraw();
        if !self.settle_storages()? | !self.find_accounts()? {
            return Ok(None);
        }
        if self.removals.is_none() {
            self.hash_storages();
            self.write_accounts()?;
        }
        if !self.remove_accounts()? {
            return Ok(None);
        }
        let accounts = &mut [(None, &mut self.accounts)];
        let hashed = hash_tries(accounts, Pass::End, &mut self.diff, &mut self.scratch);
        self.count_end(hashed);
        let top = self.accounts.top().map(Into::into);
        self.scratch.void.sort_unstable();
        self.diff.remove(&self.scratch.void);
        self.scratch.void.clear();
        let diff = std::mem::take(&mut self.diff);
        self.last.extend_from_slice(&self.touched);
        self.end_block();
        self.revertible = true;
        self.counts = std::mem::take(&mut self.counting);
        Ok(Some((top, diff)))
    }

    /// Takes the buffers of a diff back for the next block, after the caller has copied the diff.
    /// The next [`ShardTrie::finish`] and hashing ahead then write to memory that is already
    /// allocated.
    pub fn recycle(&mut self, mut diff: TrieDiff) {
        if self.diff.is_empty() && diff.byte_len() <= SPARE_BYTES_MAX {
            diff.clear();
            self.diff = diff;
        }
    }

    /// Writes the pending slots. Returns false when more nodes are needed.
    fn settle_storages(&mut self) -> Result<bool, Error> {
        let mut settled = true;
        for owner in &self.touched {
            if let Some(storage) = self.storages.get_mut(owner) {
                settled &= storage.settle(&mut self.targets)?;
            }
        }
        Ok(settled)
    }

    /// Returns whether the places of all accounts, and the top node, are revealed.
    fn find_accounts(&mut self) -> Result<bool, Error> {
        let mut found = true;
        for address_hash in self.pending.keys() {
            if let Lookup::Blinded(blinded) = self.accounts.find(address_hash) {
                self.walks.need(None, blinded, &mut self.targets)?;
                found = false;
            }
        }
        if found && !self.accounts.is_top_revealed() {
            let mut key = B256::ZERO;
            key[0] = self.shard.nibble() << 4;
            if let Lookup::Blinded(blinded) = self.accounts.find(&key) {
                self.walks.need(None, blinded, &mut self.targets)?;
                found = false;
            }
        }
        Ok(found)
    }

    /// Computes all storage roots together.
    fn hash_storages(&mut self) {
        let mut owners = Vec::with_capacity(self.touched.len());
        for owner in &self.touched {
            let storage = self.storages.get_mut(owner).filter(|storage| storage.open);
            let Some(storage) = storage else { continue };
            storage.before = if storage.wiped { None } else { storage.trie.root_before() };
            owners.push(*owner);
        }
        let hashed = self.hash_storages_of(&owners, Pass::End);
        self.count_end(hashed);
    }

    fn count_end(&mut self, hashed: Hashed) {
        self.counting.at_end += hashed.nodes as u64;
        self.counting.again += hashed.again as u64;
    }

    /// Writes the account leaves and puts deletions aside.
    fn write_accounts(&mut self) -> Result<(), Error> {
        let mut accounts: Vec<(B256, Option<Account>)> = self.pending.drain().collect();
        accounts.sort_unstable_by_key(|&(address_hash, _)| address_hash);
        let mut removals = Vec::new();
        let mut leaf = Vec::new();
        for (address_hash, account) in accounts {
            let root = self.storage_root_after(&address_hash)?;
            let Some(account) = account else {
                removals.push(address_hash);
                continue;
            };
            leaf.clear();
            account_leaf(&account, root, &mut leaf);
            if let Err(blinded) = self.accounts.update(&address_hash, &leaf) {
                let (key, depth) = (blinded.key, usize::from(blinded.depth));
                return Err(Error::Missing { owner: None, key, depth });
            }
        }
        self.removals = Some(removals);
        Ok(())
    }

    /// Returns the account's storage root after the block. Checks the root before it.
    fn storage_root_after(&mut self, address_hash: &B256) -> Result<B256, Error> {
        let want = match self.accounts.find(address_hash) {
            Lookup::Value(leaf) => storage_root(leaf).ok_or(Error::AccountLeaf(*address_hash))?,
            _ => EMPTY_TRIE_ROOT,
        };
        let storage = self.storages.get(address_hash).filter(|storage| storage.open);
        let Some(storage) = storage else { return Ok(want) };
        if storage.wiped {
            // An account without previous storage needs no clearing, such as a contract that lives
            // for one transaction.
            if want != EMPTY_TRIE_ROOT {
                self.diff.wiped.push(*address_hash);
            }
        } else if let Some(got) = storage.before.filter(|&got| got != want) {
            return Err(Error::StorageRoot { address_hash: *address_hash, got, want });
        }
        // A trie that was written to and is settled is known.
        Ok(storage.trie.base_root().unwrap_or(EMPTY_TRIE_ROOT))
    }

    /// Removes deleted accounts. Returns false when more nodes are needed.
    fn remove_accounts(&mut self) -> Result<bool, Error> {
        let mut blocked = Vec::new();
        for address_hash in self.removals.take().unwrap_or_default() {
            match self.accounts.remove(&address_hash) {
                Ok(()) => {
                    self.storages.remove(&address_hash);
                }
                Err(blinded) => {
                    blocked.push(address_hash);
                    self.walks.need(None, blinded, &mut self.targets)?;
                }
            }
        }
        let done = blocked.is_empty();
        self.removals = Some(blocked);
        Ok(done)
    }

    pub(super) fn end_block(&mut self) {
        for owner in self.touched.drain(..) {
            if let Some(storage) = self.storages.get_mut(&owner) {
                self.duplicates += storage.walks.duplicates();
                storage.end_block();
            }
        }
        self.duplicates += self.walks.duplicates();
        self.wrote_accounts = false;
        self.walks.clear();
        self.pending.clear();
        self.foreseen.clear();
        self.targets.clear();
        self.removals = None;
        self.opened = false;
        self.fresh.clear();
        self.touches = 0;
        self.now = self.now.wrapping_add(1);
        self.accounts.set_now(self.now);
    }

    /// Returns the approximate number of bytes that the tries take in memory. This covers their
    /// nodes and the bookkeeping of each storage trie.
    pub fn byte_len(&self) -> usize {
        let storages: usize = self.storages.values().map(|storage| storage.byte_len()).sum();
        self.accounts.byte_len() + storages
    }

    /// Evicts the least recently used nodes and storage tries when the tries take more than
    /// `bytes_max`. Evicted nodes are blinded again. The top node of the account subtrie stays. The
    /// caller runs it between blocks: nothing is evicted while a block is open.
    pub fn prune(&mut self, bytes_max: usize) {
        if self.opened || self.byte_len() <= bytes_max {
            return;
        }
        // Nodes that move together into new memory cannot be reverted.
        self.revertible = false;
        let mut ages = Ages::default();
        self.accounts.ages(&mut ages);
        for storage in self.storages.values_mut() {
            storage.trie.set_now(self.now);
            ages.add(
                self.now.wrapping_sub(storage.used),
                storage.byte_len() - storage.trie.byte_len(),
            );
            storage.trie.ages(&mut ages);
        }
        let cutoff = ages.cutoff(bytes_max / 16 * PRUNE_SIXTEENTHS);
        let oldest = self.now.saturating_add(1).saturating_sub(cutoff);
        self.accounts.prune(oldest, true);
        self.storages.retain(|_, storage| {
            if storage.used < oldest {
                return false;
            }
            storage.trie.prune(oldest, false);
            true
        });
        self.walks.clear();
        self.storages.values_mut().for_each(|storage| storage.walks.clear());
        self.targets.clear();
    }
}
