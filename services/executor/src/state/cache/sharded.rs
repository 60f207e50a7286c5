//! Bounded map for concurrent reads by many threads.

use alloy_primitives::map::DefaultHashBuilder;
use crossbeam_utils::CachePadded;
use hashbrown::HashTable;
use parking_lot::RwLock;
use std::{
    hash::{BuildHasher, Hash},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

/// Number of shards of a map of the usual size. A read locks one shard for two lookups, so two
/// threads rarely meet.
const SHARDS: usize = 256;

/// Minimum number of entries of a shard.
const SHARD_ENTRIES_MIN: usize = 64;

/// Map of bounded size, in shards with a lock each.
///
/// A full shard evicts roughly the entry that was unread for longest (CLOCK). Each entry has a bit
/// that a read sets. A rotating hand evicts the first entry without the bit, and clears the bits on
/// its way.
pub struct Sharded<K, V> {
    shards: Box<[Locked<K, V>]>,
    hasher: DefaultHashBuilder,
}

type Locked<K, V> = CachePadded<RwLock<Shard<K, V>>>;

struct Shard<K, V> {
    /// Positions in `entries`.
    index: HashTable<u32>,
    entries: Vec<Entry<K, V>>,
    entries_max: usize,
    hand: usize,
}

struct Entry<K, V> {
    key: K,
    value: V,
    /// Whether the entry was read since the hand passed.
    recent: AtomicBool,
}

impl<K: Copy + Eq + Hash, V: Copy> Sharded<K, V> {
    /// Creates an empty map. Memory is allocated as it fills.
    pub fn new(entries_max: usize) -> Self {
        let shards = (entries_max / SHARD_ENTRIES_MIN).clamp(1, SHARDS);
        let entries_max = entries_max.div_ceil(shards).clamp(1, u32::MAX as usize);
        let shard = |_| CachePadded::new(RwLock::new(Shard::new(entries_max)));
        Self { shards: (0..shards).map(shard).collect(), hasher: DefaultHashBuilder::default() }
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &K) -> Option<V> {
        let hash = self.hasher.hash_one(key);
        let shard = self.shard(hash).read();
        let entry = shard.find(hash, key)?;
        // A cache line that is only read stays in the caches of all cores.
        if !entry.recent.load(Relaxed) {
            entry.recent.store(true, Relaxed);
        }
        Some(entry.value)
    }

    /// Sets the value of a key if `still` returns true while the key's shard is locked.
    pub fn insert_if(&self, key: K, value: V, still: impl FnOnce() -> bool) {
        let hash = self.hasher.hash_one(key);
        let mut shard = self.shard(hash).write();
        if still() {
            shard.insert(hash, key, value, &self.hasher);
        }
    }

    /// Sets the value of a key.
    pub fn insert(&self, key: K, value: V) {
        self.insert_if(key, value, || true);
    }

    /// Removes everything, shard by shard.
    pub fn clear(&self) {
        for shard in &self.shards {
            let mut shard = shard.write();
            let entries_max = shard.entries_max;
            *shard = Shard::new(entries_max);
        }
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().entries.len()).sum()
    }

    /// Returns the bytes allocated for entries and index.
    pub fn bytes(&self) -> usize {
        let shards = self.shards.iter().map(|shard| {
            let shard = shard.read();
            shard.entries.capacity() * size_of::<Entry<K, V>>() + shard.index.allocation_size()
        });
        shards.sum()
    }

    /// Returns the shard of a hash. The shard's index uses the low and high bits, so this uses the
    /// bits in between.
    fn shard(&self, hash: u64) -> &RwLock<Shard<K, V>> {
        let between = usize::from((hash >> 32) as u16);
        &self.shards[(between * self.shards.len()) >> 16]
    }
}

impl<K: Copy + Eq + Hash, V: Copy> Shard<K, V> {
    fn new(entries_max: usize) -> Self {
        Self { index: HashTable::new(), entries: Vec::new(), entries_max, hand: 0 }
    }

    fn find(&self, hash: u64, key: &K) -> Option<&Entry<K, V>> {
        let position = self.index.find(hash, |&at| self.entries[at as usize].key == *key)?;
        Some(&self.entries[*position as usize])
    }

    fn insert(&mut self, hash: u64, key: K, value: V, hasher: &DefaultHashBuilder) {
        let entries = &mut self.entries;
        if let Some(at) = self.index.find(hash, |&at| entries[at as usize].key == key) {
            entries[*at as usize].value = value;
            return;
        }
        let entry = Entry { key, value, recent: AtomicBool::new(false) };
        let at = if entries.len() < self.entries_max {
            if entries.len() == entries.capacity() {
                let more = entries.len().max(4).min(self.entries_max - entries.len());
                entries.reserve_exact(more);
            }
            entries.push(entry);
            entries.len() - 1
        } else {
            let at = self.victim();
            let old = std::mem::replace(&mut self.entries[at], entry);
            let old_hash = hasher.hash_one(old.key);
            if let Ok(old) = self.index.find_entry(old_hash, |&other| other as usize == at) {
                old.remove();
            }
            at
        };
        let entries = &self.entries;
        self.index
            .insert_unique(hash, at as u32, |&other| hasher.hash_one(entries[other as usize].key));
    }

    /// Returns the entry to evict. Ends after at most one round, when all bits are cleared.
    fn victim(&mut self) -> usize {
        loop {
            let at = self.hand;
            self.hand = (at + 1) % self.entries.len();
            if !std::mem::take(self.entries[at].recent.get_mut()) {
                return at;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::keccak256;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn what_is_read_again_and_again_outlives_what_is_read_once() {
        // Hashes, like the keys of the state: the hasher may map consecutive numbers to few shards.
        let key = |number: u64| keccak256(number.to_be_bytes());
        let cache = Sharded::new(1_000);
        (0..300_u64).for_each(|number| cache.insert(key(number), number));
        for number in 1_000..20_000 {
            cache.insert(key(number), number);
            // Reads each of them once per round of the hand, which is 1,000 entries.
            cache.get(&key(number % 300));
        }
        let kept = (0..300).filter(|number| cache.get(&key(*number)) == Some(*number)).count();
        assert!(kept >= 280, "{kept} of 300");
        assert!(cache.len() <= 1_010, "{} entries", cache.len());
    }

    #[test]
    fn memory_is_bounded_by_the_entries_allowed() {
        let cache = Sharded::<[u64; 8], [u64; 4]>::new(50_000);
        assert_eq!(cache.bytes(), 0);
        (0..300_000_u64).for_each(|key| cache.insert([key; 8], [key; 4]));
        let bytes = cache.bytes() / cache.len();
        assert!((104..125).contains(&bytes), "{bytes} bytes an entry of 96");
        cache.clear();
        assert_eq!((cache.len(), cache.bytes()), (0, 0));
    }

    #[test]
    fn hardly_any_shard_is_empty_or_overfull() {
        let cache = Sharded::new(100_000);
        (0..50_000_u64).for_each(|key| cache.insert(key, ()));
        assert_eq!(cache.len(), 50_000, "half full, and something was given up");
    }

    proptest! {
        /// A key has the value that was set last, or none. Entries that fit are all present.
        #[test]
        fn the_last_value_wins(
            entries_max in 1..200_usize,
            writes in prop::collection::vec((0..400_u16, any::<u32>(), any::<bool>()), 0..600),
        ) {
            let cache = Sharded::new(entries_max);
            let mut model = BTreeMap::new();
            for (key, value, still) in writes {
                cache.insert_if(key, value, || still);
                if still {
                    model.insert(key, value);
                }
                let got = cache.get(&key);
                prop_assert!(got.is_none() || got == model.get(&key).copied());
                prop_assert!(!still || got == Some(value));
            }
            for (key, value) in &model {
                let got = cache.get(key);
                prop_assert!(got.is_none() || got == Some(*value));
            }
            prop_assert!(cache.len() <= model.len().min(entries_max + 3));
            if model.len() * 4 <= entries_max {
                prop_assert_eq!(cache.len(), model.len());
            }
        }
    }
}
