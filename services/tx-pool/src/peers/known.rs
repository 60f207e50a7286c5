//! Bounded set of hashes; the oldest leaves.

use std::{
    collections::{HashSet, VecDeque},
    hash::{BuildHasher, RandomState},
};
use tandem_primitives::B256;

/// Set of hashes, each kept as 64 bits of a secret hash of it: a peer cannot choose two that are the
/// same here.
pub(super) struct Known {
    secret: RandomState,
    set: HashSet<u64>,
    order: VecDeque<u64>,
    max: usize,
}

impl Known {
    /// Creates a set of at most `max` hashes.
    pub fn new(max: usize) -> Self {
        let (set, order) = (HashSet::new(), VecDeque::new());
        Self { secret: RandomState::new(), set, order, max }
    }

    /// Returns whether the hash is in the set.
    pub fn has(&self, hash: &B256) -> bool {
        self.set.contains(&self.secret.hash_one(hash))
    }

    /// Adds a hash. Returns whether it is new.
    pub fn add(&mut self, hash: &B256) -> bool {
        let short = self.secret.hash_one(hash);
        if !self.set.insert(short) {
            return false;
        }
        self.order.push_back(short);
        if self.order.len() > self.max
            && let Some(oldest) = self.order.pop_front()
        {
            self.set.remove(&oldest);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten() {
        let mut known = Known::new(100);
        let hash = |index: u64| B256::left_padding_from(&index.to_be_bytes());
        for index in 0..1_000 {
            assert!(known.add(&hash(index)));
            assert!(!known.add(&hash(index)));
        }
        assert_eq!((0..1_000).filter(|index| known.has(&hash(*index))).count(), 100);
        assert!(known.has(&hash(900)) && !known.has(&hash(899)));
    }
}
