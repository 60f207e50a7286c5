//! Previously read values of the base, and contract code.

mod sharded;

pub use sharded::Sharded;

use quick_cache::sync::Cache;
use revm::state::Bytecode;
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Release},
};
use tandem_primitives::{Account, B256, StateDiff, U256};

/// Number of storage generation counters, found by two bytes of a hashed address.
const GENERATIONS: usize = 1 << 16;

/// Period of the cache that a value belongs to. A base that moves begins a new one.
pub type CacheEpoch = u64;

/// Life of an account's storage that a value belongs to.
pub type Generation = u32;

/// Values of the base at one block, for any number of threads.
///
/// The base moves while threads read, and a thread may still be about to add an older value. So
/// every read and every addition names the epoch that its layers belong to:
///
/// * The engine's thread begins the new epoch **before** it changes the first value.
/// * A value found is valid if the epoch has not passed **afterwards**. A reader of a changed value
///   locked its shard after the engine, so it also sees the new epoch.
/// * A value is added only if the epoch has not passed **while its shard is locked**. If the engine
///   changed the key before, the new epoch is visible. If it changes the key later, it overwrites
///   the addition. A key without a change has the same value in both epochs.
/// * A wipe changes keys without listing them. So each slot records its generation of the account's
///   storage, and a wipe begins a new generation, after the epoch. A slot's generation is looked up
///   **before** its value is read. An old generation is never found again, and a reader of the new
///   one also sees the new epoch.
///
/// Accounts share 65,536 generation counters. A wipe therefore also invalidates slots of other
/// accounts, one in 65,536.
pub struct BaseCache {
    epoch: AtomicU64,
    accounts: Sharded<B256, Option<Account>>,
    slots: Sharded<(B256, B256), (U256, Generation)>,
    generations: Box<[AtomicU32]>,
    codes: Cache<B256, Bytecode>,
}

impl BaseCache {
    /// Creates a cache of at most this many accounts, slots and codes.
    pub fn new(accounts: usize, slots: usize, codes: usize) -> Self {
        Self {
            epoch: AtomicU64::new(0),
            accounts: Sharded::new(accounts),
            slots: Sharded::new(slots),
            generations: (0..GENERATIONS).map(|_| AtomicU32::new(0)).collect(),
            codes: Cache::new(codes),
        }
    }

    /// Returns the current epoch.
    pub fn epoch(&self) -> CacheEpoch {
        self.epoch.load(Acquire)
    }

    /// Returns an account of the base, or `None` if it is unknown or the epoch has passed.
    pub fn account(&self, epoch: CacheEpoch, address_hash: &B256) -> Option<Option<Account>> {
        let account = self.accounts.get(address_hash)?;
        (self.epoch() == epoch).then_some(account)
    }

    /// Returns a slot of the base, or `None` if it is unknown or the epoch has passed.
    pub fn slot(&self, epoch: CacheEpoch, address_hash: &B256, slot: &B256) -> Option<U256> {
        let generation = self.generation(address_hash);
        let (value, of) = self.slots.get(&(*address_hash, *slot))?;
        (of == generation && self.epoch() == epoch).then_some(value)
    }

    /// Returns code by its hash, regardless of the block that deployed it.
    pub fn code(&self, code_hash: &B256) -> Option<Bytecode> {
        self.codes.get(code_hash)
    }

    /// Returns the generation of an account's storage. Must be called before reading a slot that
    /// will be added.
    pub fn generation(&self, address_hash: &B256) -> Generation {
        self.counter(address_hash).load(Acquire)
    }

    /// Adds an account that was read from the base. The reader's layers must reach from there to
    /// the base of the epoch without any change of the account.
    pub fn add_account(&self, epoch: CacheEpoch, address_hash: B256, account: Option<Account>) {
        self.accounts.insert_if(address_hash, account, || self.epoch() == epoch);
    }

    /// Adds a slot under the condition of [`BaseCache::add_account`].
    pub fn add_slot(
        &self,
        epoch: CacheEpoch,
        key: (B256, B256),
        generation: Generation,
        value: U256,
    ) {
        self.slots.insert_if(key, (value, generation), || self.epoch() == epoch);
    }

    /// Adds code.
    pub fn add_code(&self, code_hash: B256, code: Bytecode) {
        self.codes.insert(code_hash, code);
    }

    /// Begins a new epoch, before the values change. Only the engine's thread may call this.
    pub(crate) fn begin_epoch(&self) -> CacheEpoch {
        let epoch = self.epoch.load(Acquire) + 1;
        self.epoch.store(epoch, Release);
        epoch
    }

    /// Adds the changes of a block that the base absorbed. The new epoch must have begun. Only the
    /// engine's thread may call this.
    pub(crate) fn advance(&self, diff: &StateDiff) {
        for update in &diff.accounts {
            let hash = update.address_hash;
            let counter = self.counter(&hash);
            if update.wiped {
                counter.fetch_add(1, Release);
            }
            let generation = counter.load(Acquire);
            self.accounts.insert(hash, update.account);
            for slot in &update.slots {
                self.slots.insert((hash, slot.key), (slot.value, generation));
            }
        }
    }

    /// Clears the cache after a step back of the base. The new epoch must have begun. Code stays,
    /// because it is addressed by its hash. Only the engine's thread may call this.
    pub(crate) fn clear(&self) {
        self.accounts.clear();
        self.slots.clear();
    }

    /// Returns number and bytes of the cached entries, for accounts and for slots.
    pub fn sizes(&self) -> [(&'static str, usize, usize); 2] {
        let (accounts, slots) = (&self.accounts, &self.slots);
        [("accounts", accounts.len(), accounts.bytes()), ("slots", slots.len(), slots.bytes())]
    }

    fn counter(&self, address_hash: &B256) -> &AtomicU32 {
        &self.generations[usize::from(u16::from_be_bytes([address_hash[30], address_hash[31]]))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_primitives::{AccountUpdate, SlotUpdate};

    fn hash(n: u64) -> B256 {
        alloy_primitives::keccak256(n.to_be_bytes())
    }

    fn update(address: u64, wiped: bool, slots: &[(u64, u64)]) -> StateDiff {
        let slot =
            |&(key, value): &(u64, u64)| SlotUpdate { key: hash(key), value: U256::from(value) };
        let slots = slots.iter().map(slot).collect();
        let address_hash = hash(address);
        let account = Some(Account::default());
        let accounts = vec![AccountUpdate { address_hash, account, wiped, slots }];
        StateDiff { accounts, codes: Vec::new() }
    }

    #[test]
    fn a_wipe_takes_the_slots_of_its_account_and_leaves_those_of_others() {
        let cache = BaseCache::new(1_000, 100_000, 10);
        for address in 0..200 {
            cache.advance(&update(address, false, &[(1, address + 1), (2, 7)]));
        }
        let epoch = cache.begin_epoch();
        cache.advance(&update(5, true, &[(2, 9)]));
        assert_eq!(cache.slot(epoch, &hash(5), &hash(1)), None);
        assert_eq!(cache.slot(epoch, &hash(5), &hash(2)), Some(U256::from(9)));
        let others = (0..200).filter(|&address| address != 5);
        let kept = others.filter(|&address| {
            cache.slot(epoch, &hash(address), &hash(1)) == Some(U256::from(address + 1))
        });
        assert!(kept.count() >= 197, "199 others");
    }

    #[test]
    fn what_was_read_in_an_epoch_that_passed_is_neither_added_nor_found() {
        let cache = BaseCache::new(1_000, 1_000, 10);
        let (old, key) = (cache.epoch(), (hash(1), hash(2)));
        let generation = cache.generation(&hash(1));
        cache.add_account(old, hash(1), None);
        cache.add_slot(old, key, generation, U256::from(3));
        assert_eq!(cache.account(old, &hash(1)), Some(None));
        assert_eq!(cache.slot(old, &key.0, &key.1), Some(U256::from(3)));
        let new = cache.begin_epoch();
        assert_eq!(cache.account(old, &hash(1)), None, "the base may have changed it");
        assert_eq!(cache.slot(old, &key.0, &key.1), None);
        assert_eq!(cache.account(new, &hash(1)), Some(None));
        cache.add_account(old, hash(4), None);
        cache.add_slot(old, (hash(4), hash(4)), generation, U256::from(4));
        assert_eq!(cache.account(new, &hash(4)), None, "read from another base");
        assert_eq!(cache.slot(new, &hash(4), &hash(4)), None);
    }

    #[test]
    fn a_slot_read_before_a_wipe_and_added_after_it_is_not_found() {
        let cache = BaseCache::new(1_000, 1_000, 10);
        let generation = cache.generation(&hash(1));
        let epoch = cache.begin_epoch();
        cache.advance(&update(1, true, &[]));
        cache.add_slot(epoch, (hash(1), hash(2)), generation, U256::from(3));
        assert_eq!(cache.slot(epoch, &hash(1), &hash(2)), None);
    }
}
