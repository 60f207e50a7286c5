use std::{collections::HashMap, hash::Hash, mem};

/// Map of bounded size that forgets entries unused for long. It has two generations; when the
/// younger one is full, the older one is dropped whole. Every operation is O(1), and a flood of new
/// keys costs no more than their space.
pub struct Aging<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    half: usize,
}

impl<K: Hash + Eq + Copy, V> Aging<K, V> {
    /// Makes a map of at most `capacity` entries, which keeps at least the last half as many.
    pub fn new(capacity: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), half: (capacity / 2).max(1) }
    }

    pub fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// Returns a value without counting that as use.
    pub fn peek(&self, key: &K) -> Option<&V> {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    pub fn get(&mut self, key: &K) -> Option<&mut V> {
        if let Some(value) = self.old.remove(key) {
            self.insert(*key, value);
        }
        self.young.get_mut(key)
    }

    pub fn get_or_insert_with(&mut self, key: K, value: impl FnOnce() -> V) -> &mut V {
        let old = self.old.remove(&key);
        self.rotate_for(&key);
        self.young.entry(key).or_insert_with(|| old.unwrap_or_else(value))
    }

    pub fn insert(&mut self, key: K, value: V) {
        self.rotate_for(&key);
        self.old.remove(&key);
        self.young.insert(key, value);
    }

    fn rotate_for(&mut self, key: &K) {
        if self.young.len() >= self.half && !self.young.contains_key(key) {
            // Both maps keep their memory, so no flood makes this allocate for ever.
            mem::swap(&mut self.old, &mut self.young);
            self.young.clear();
        }
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        self.young.remove(key).or_else(|| self.old.remove(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_keys_keeps_what_is_used_and_stays_within_the_bound() {
        let mut map = Aging::new(64);
        map.insert(0, "kept");
        for key in 1..10_000 {
            map.get_or_insert_with(key, || "new");
            assert!(map.len() <= 64);
            if key % 16 == 0 {
                assert_eq!(map.get(&0).copied(), Some("kept"));
            }
        }
        assert!(map.peek(&9_990).is_some());
        assert!(map.peek(&1).is_none());
        assert_eq!(map.remove(&0), Some("kept"));
        assert!(map.peek(&0).is_none());
    }
}
