//! Shard of the state: input during a block. The end of a block is in `finish`.

mod ahead;
mod finish;
mod foresee;
mod revert;
mod storage;
mod walks;

use crate::{
    AccountTrie, Error, Lookup, Scratch, StorageTrie, account::storage_root, sparse::Undo,
};
pub use ahead::{AheadLimits, Counts};
use alloy_primitives::map::B256Map;
use foresee::Foreseen;
use std::collections::hash_map::Entry;
use storage::Storage;
use tandem_primitives::{Account, AccountUpdate, B256, Shard, TrieDiff, WalkTarget};
use walks::Walks;

/// Shard of the state: the account subtrie under its nibble, and the storage tries of its accounts.
/// It survives from block to block.
///
/// During a block, the caller passes every change to [`update`](Self::update). At any time it
/// answers the walks of [`take_targets`](Self::take_targets) by [`reveal`](Self::reveal) and
/// [`answered`](Self::answered). It calls [`finish`](Self::finish) at the end.
///
/// All revealed nodes must belong to the state that the open block starts from. Answers to walks of
/// an earlier block must be dropped. After an error, the caller must clear the shard.
#[derive(Debug)]
pub struct ShardTrie {
    /// Whether to check the hash of every revealed node against its parent. True by default.
    pub verify_nodes: bool,
    /// Limits for [`work_ahead`](Self::work_ahead).
    pub ahead: AheadLimits,
    shard: Shard,
    accounts: AccountTrie,
    walks: Walks,
    storages: B256Map<Storage>,
    /// Accounts of the open block, in their state after it.
    pending: B256Map<Option<Account>>,
    /// Values written without an update that confirms them.
    foreseen: Foreseen,
    /// Accounts whose storage the open block read or wrote, in the order of first use.
    touched: Vec<B256>,
    targets: Vec<WalkTarget>,
    /// Counter for [`ShardTrie::duplicates`].
    duplicates: u64,
    /// Flag for [`ShardTrie::has_written_accounts`].
    wrote_accounts: bool,
    /// Changes of the tries that are already closed.
    diff: TrieDiff,
    /// Whether a block is open.
    opened: bool,
    /// Whether the last block can be reverted.
    revertible: bool,
    /// Accounts whose storage the last block used.
    last: Vec<B256>,
    /// Unused undo records, kept to reuse their memory.
    #[expect(clippy::vec_box, reason = "the boxes themselves go to the tries and come back")]
    pool: Vec<Box<Undo>>,
    /// Deleted accounts that are still in the trie. `Some` once all other changes are made.
    removals: Option<Vec<B256>>,
    /// Accounts whose storage tries have changes to hash ahead.
    fresh: Vec<B256>,
    /// Number of leaves touched in those tries since they were last hashed.
    touches: u32,
    /// Counts of the open block, and of the last block that ended.
    counting: Counts,
    counts: Counts,
    /// Last account leaf written, kept to reuse its memory.
    leaf: Vec<u8>,
    scratch: Scratch,
    /// Number of the block among the blocks that this shard has seen. Nodes are stamped with it.
    now: u32,
}

impl ShardTrie {
    /// Creates a shard of which nothing is known.
    pub fn new(shard: Shard) -> Self {
        let now = 1;
        let mut accounts = AccountTrie::unknown(Some(shard.nibble()));
        accounts.set_now(now);
        Self {
            verify_nodes: true,
            ahead: AheadLimits::default(),
            shard,
            accounts,
            walks: Walks::default(),
            storages: B256Map::default(),
            pending: B256Map::default(),
            foreseen: Foreseen::default(),
            touched: Vec::new(),
            targets: Vec::new(),
            duplicates: 0,
            wrote_accounts: false,
            diff: TrieDiff::default(),
            opened: false,
            revertible: false,
            last: Vec::new(),
            pool: Vec::new(),
            removals: None,
            fresh: Vec::new(),
            touches: 0,
            counting: Counts::default(),
            counts: Counts::default(),
            leaf: Vec::new(),
            scratch: Scratch::default(),
            now,
        }
    }

    /// Creates a shard of which only the hash of its top node is known, or that there is no top
    /// node.
    pub fn blinded(shard: Shard, top: Option<B256>) -> Self {
        let mut blinded = Self::new(shard);
        blinded.accounts = AccountTrie::blinded_below(shard.nibble(), top);
        blinded.accounts.set_now(blinded.now);
        blinded
    }

    /// Returns the shard's nibble.
    pub fn shard(&self) -> Shard {
        self.shard
    }

    /// Applies an account update of the open block. Slots are written at once if their place is
    /// revealed. So are accounts whose storage the block has left alone. All other changes wait for
    /// the end. Later updates of the same block win. An update of another shard's account changes
    /// nothing.
    pub fn update(&mut self, update: &AccountUpdate) {
        let address_hash = update.address_hash;
        if update.shard() != self.shard {
            return;
        }
        self.open();
        let wiped = update.wiped || update.account.is_none();
        if self.foreseen.confirm_account(&address_hash, update.account) {
            if !wiped && update.slots.is_empty() {
                return;
            }
        } else {
            self.prefetch_account(&address_hash);
        }
        if update.account.is_none()
            && let Err(blinded) = self.accounts.check_removal(&address_hash)
        {
            let _ = self.walks.need(None, blinded, &mut self.targets);
        }
        self.pending.insert(address_hash, update.account);
        if !wiped && update.slots.is_empty() {
            self.write_early(&address_hash);
            return;
        }
        self.open_storage(&address_hash);
        let Some(storage) = self.storages.get_mut(&address_hash) else {
            return;
        };
        storage.open = true;
        if wiped {
            storage.wipe(&mut self.scratch.void);
            self.foreseen.drop_slots(&address_hash);
        }
        if update.account.is_some() {
            let slots = self.foreseen.new_slots(address_hash, &update.slots);
            storage.write_all(slots, &mut self.scratch, &mut self.targets);
        }
        self.list(&address_hash);
    }

    /// Requests the paths of an account and of some of its slots without changing anything.
    pub fn prefetch(&mut self, address_hash: &B256, slots: &[B256]) {
        if Shard::of(address_hash) != self.shard {
            return;
        }
        self.open();
        self.prefetch_account(address_hash);
        if slots.is_empty() {
            return;
        }
        self.open_storage(address_hash);
        let Some(storage) = self.storages.get_mut(address_hash) else {
            return;
        };
        for slot in slots {
            storage.prefetch(slot, &mut self.targets);
        }
    }

    /// Moves out the walks that are needed and have not been requested yet.
    pub fn take_targets(&mut self, out: &mut Vec<WalkTarget>) {
        out.append(&mut self.targets);
    }

    /// Returns how many walks of the closed blocks were needed again after they had been requested.
    /// Each was requested only once.
    pub fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// Returns whether the open block has already written an account leaf.
    pub fn has_written_accounts(&self) -> bool {
        self.wrote_accounts
    }

    /// Reveals a node from a walk. Parents must come before children. A node that is already known
    /// changes nothing, and neither does a node whose parent is unknown.
    ///
    /// # Errors
    /// Returns [`Error::Path`] when the path is not in this shard. Returns [`Error::Hash`] when the
    /// parent holds another hash and [`ShardTrie::verify_nodes`] is set. Returns
    /// [`Error::Malformed`] for an invalid node.
    pub fn reveal(&mut self, owner: Option<&B256>, path: &[u8], rlp: &[u8]) -> Result<(), Error> {
        let verify = self.verify_nodes;
        let Some(owner) = owner else {
            return self.accounts.reveal(path, rlp, verify);
        };
        let storage = self.storage_to_reveal(owner)?;
        storage.map_or(Ok(()), |storage| storage.trie.reveal(path, rlp, verify))
    }

    /// Reveals a node as [`ShardTrie::reveal`] does, given the node's computed hash. The hash is
    /// always checked.
    ///
    /// # Errors
    /// Returns the errors of [`ShardTrie::reveal`].
    pub fn reveal_hashed(
        &mut self,
        owner: Option<&B256>,
        path: &[u8],
        rlp: &[u8],
        hash: &B256,
    ) -> Result<(), Error> {
        let Some(owner) = owner else {
            return self.accounts.reveal_hashed(path, rlp, hash);
        };
        let storage = self.storage_to_reveal(owner)?;
        storage.map_or(Ok(()), |storage| storage.trie.reveal_hashed(path, rlp, hash))
    }

    /// Returns the storage trie that a node is for. A trie that was wiped or pruned meanwhile does
    /// not need its nodes.
    fn storage_to_reveal(&mut self, owner: &B256) -> Result<Option<&mut Storage>, Error> {
        if Shard::of(owner) != self.shard {
            return Err(Error::Path);
        }
        Ok(self.storages.get_mut(owner))
    }

    /// Records that a walk was answered in full. A trie whose top node the walk did not bring is
    /// empty.
    pub fn answered(&mut self, target: &WalkTarget) {
        if let Some(owner) = &target.owner {
            if let Some(storage) = self.storages.get_mut(owner) {
                storage.answered(target, &mut self.targets);
                self.list(owner);
            }
            return;
        }
        self.walks.answered(target);
        if target.from_depth <= 1 && Shard::of(&target.key) == self.shard {
            self.accounts.reveal_empty();
        }
        if self.pending.get(&target.key) == Some(&None)
            && let Err(blinded) = self.accounts.check_removal(&target.key)
        {
            let _ = self.walks.need(None, blinded, &mut self.targets);
        }
        self.write_early(&target.key);
    }

    /// Drops all revealed nodes, and the open block.
    pub fn clear(&mut self) {
        let (verify_nodes, ahead) = (self.verify_nodes, self.ahead);
        let duplicates = self.duplicates;
        *self = Self { verify_nodes, ahead, duplicates, ..Self::new(self.shard) };
    }

    fn prefetch_account(&mut self, address_hash: &B256) {
        if let Lookup::Blinded(blinded) = self.accounts.find(address_hash) {
            // `finish` reports a node that is missing although its walk was answered.
            let _ = self.walks.need(None, blinded, &mut self.targets);
        }
    }

    /// Creates a storage trie for this account if there is none, and stamps it. The trie knows its
    /// root if the account leaf is known.
    fn open_storage(&mut self, address_hash: &B256) {
        let storage = match self.storages.entry(*address_hash) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let trie = match self.accounts.find(address_hash) {
                    Lookup::Value(leaf) => match storage_root(leaf) {
                        Some(root) => StorageTrie::blinded(root),
                        // `finish` reports a leaf that is not an account.
                        None => StorageTrie::unknown(None),
                    },
                    Lookup::Absent => StorageTrie::empty(None),
                    Lookup::Blinded(_) => StorageTrie::unknown(None),
                };
                entry.insert(Storage::new(*address_hash, trie))
            }
        };
        if storage.used != self.now {
            storage.set_now(self.now);
            storage.trie.track(self.pool.pop().unwrap_or_default());
            self.touched.push(*address_hash);
        }
    }
}
