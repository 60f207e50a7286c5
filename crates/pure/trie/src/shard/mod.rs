//! One shard of the state: what comes in during a block. How a block ends lies in `finish`.

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

/// One shard of the state: the account subtrie under its nibble, and the storage tries of its
/// accounts. It survives from block to block.
///
/// During a block: [`update`](Self::update) with everything that changes, at any time the walks of
/// [`take_targets`](Self::take_targets) answered by [`reveal`](Self::reveal) and
/// [`answered`](Self::answered), and [`finish`](Self::finish) at the end. All nodes revealed must
/// be those of the state that the open block starts from: answers to walks of an earlier block
/// must be dropped. After an error the shard is to be cleared.
#[derive(Debug)]
pub struct ShardTrie {
    /// Check the hash of every node revealed against its parent. True unless set otherwise.
    pub verify_nodes: bool,
    /// When and what [`work_ahead`](Self::work_ahead) hashes.
    pub ahead: AheadLimits,
    shard: Shard,
    accounts: AccountTrie,
    walks: Walks,
    storages: B256Map<Storage>,
    /// Accounts of the open block as it leaves them.
    pending: B256Map<Option<Account>>,
    /// What was written without an update that says so.
    foreseen: Foreseen,
    /// Accounts whose storage the open block asked for or wrote to, in the order of first use.
    touched: Vec<B256>,
    targets: Vec<WalkTarget>,
    /// See [`ShardTrie::duplicates`].
    duplicates: u64,
    /// See [`ShardTrie::has_written_accounts`].
    wrote_accounts: bool,
    /// Changes of the tries that are closed already.
    diff: TrieDiff,
    /// A block is open.
    opened: bool,
    /// There is a way back to where the last block began.
    revertible: bool,
    /// Accounts whose storage the last block used.
    last: Vec<B256>,
    /// Notes for the way back that are not in use; kept for their memory.
    #[expect(clippy::vec_box, reason = "the boxes themselves go to the tries and come back")]
    pool: Vec<Box<Undo>>,
    /// Deleted accounts that are still in the trie, and whether the other changes are made.
    removals: Option<Vec<B256>>,
    /// Accounts whose storage tries have changes that wait to be hashed ahead.
    fresh: Vec<B256>,
    /// Leaves touched in those tries since they were last hashed.
    touches: u32,
    /// What was hashed in the open block, and in the last one that ended.
    counting: Counts,
    counts: Counts,
    /// The last account leaf written; kept for its memory.
    leaf: Vec<u8>,
    scratch: Scratch,
    /// Number of the block among those that this shard has seen; nodes are stamped with it.
    now: u32,
}

impl ShardTrie {
    /// A shard of which nothing is known.
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

    /// A shard of which the hash of its top node is known, or that it has none.
    pub fn blinded(shard: Shard, top: Option<B256>) -> Self {
        let mut blinded = Self::new(shard);
        blinded.accounts = AccountTrie::blinded_below(shard.nibble(), top);
        blinded.accounts.set_now(blinded.now);
        blinded
    }

    /// The shard's nibble.
    pub fn shard(&self) -> Shard {
        self.shard
    }

    /// Takes in an account update of the open block. Slots are written at once where their place
    /// is revealed, and so are accounts whose storage the block has left alone; everything else
    /// waits for the end. Later updates of the same block win. An update of another shard's account
    /// changes nothing.
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

    /// Asks for the paths of an account and of some of its slots without changing anything.
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

    /// Moves out the walks that are needed and were not asked for yet.
    pub fn take_targets(&mut self, out: &mut Vec<WalkTarget>) {
        out.append(&mut self.targets);
    }

    /// Walks of the blocks closed so far that were needed again while they had been asked for: each
    /// was asked for once.
    pub fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// Whether the open block has written an account leaf already.
    pub fn has_written_accounts(&self) -> bool {
        self.wrote_accounts
    }

    /// Takes in a node that a walk brought, parents before children. A node that is known already
    /// changes nothing, nor does one whose parent is not known.
    ///
    /// # Errors
    /// [`Error::Path`] when the path is none of this shard, [`Error::Hash`] when the parent holds
    /// another hash and [`ShardTrie::verify_nodes`] is set, [`Error::Malformed`].
    pub fn reveal(&mut self, owner: Option<&B256>, path: &[u8], rlp: &[u8]) -> Result<(), Error> {
        let verify = self.verify_nodes;
        let Some(owner) = owner else {
            return self.accounts.reveal(path, rlp, verify);
        };
        let storage = self.storage_to_reveal(owner)?;
        storage.map_or(Ok(()), |storage| storage.trie.reveal(path, rlp, verify))
    }

    /// As [`ShardTrie::reveal`], where somebody has hashed the node already: the hash is checked
    /// in any case.
    ///
    /// # Errors
    /// As [`ShardTrie::reveal`].
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

    /// The storage trie that a node is for. One that is gone by now (wiped, pruned) has no use for
    /// its nodes.
    fn storage_to_reveal(&mut self, owner: &B256) -> Result<Option<&mut Storage>, Error> {
        if Shard::of(owner) != self.shard {
            return Err(Error::Path);
        }
        Ok(self.storages.get_mut(owner))
    }

    /// A walk was answered in full: a trie whose top node it did not bring is empty.
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

    /// Forgets everything that was revealed, and the open block.
    pub fn clear(&mut self) {
        let (verify_nodes, ahead) = (self.verify_nodes, self.ahead);
        let duplicates = self.duplicates;
        *self = Self { verify_nodes, ahead, duplicates, ..Self::new(self.shard) };
    }

    fn prefetch_account(&mut self, address_hash: &B256) {
        if let Lookup::Blinded(blinded) = self.accounts.find(address_hash) {
            // A node that is missing although its walk was answered comes out in `finish`.
            let _ = self.walks.need(None, blinded, &mut self.targets);
        }
    }

    /// Makes sure that there is a storage trie for this account, and stamps it. What the account
    /// leaf says of its root is known to the trie if the leaf is.
    fn open_storage(&mut self, address_hash: &B256) {
        let storage = match self.storages.entry(*address_hash) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let trie = match self.accounts.find(address_hash) {
                    Lookup::Value(leaf) => match storage_root(leaf) {
                        Some(root) => StorageTrie::blinded(root),
                        // Not an account: `finish` says so.
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
