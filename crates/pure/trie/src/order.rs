//! Sorting of keys. They are hashes, so their first bits nearly decide the order.

use crate::{
    nibbles::{common_prefix, nibble},
    node::NodeId,
};
use tandem_primitives::B256;

/// Maximum number of bits by which keys are put into bins: the bins' counters stay in a near cache.
const BITS_MAX: u32 = 16;

/// Number of keys in the fullest bin up to which all keys are sorted by insertion. No key moves
/// farther than its bin reaches.
const INSERTION_MAX: u32 = 16;

/// Leaf by its position among the leaves to sort, with the first nibbles of its key.
#[derive(Clone, Copy, Debug)]
pub struct Ordered {
    head: u64,
    pub at: u32,
    /// Node made of the leaf, once it exists.
    pub leaf: NodeId,
}

impl Ordered {
    fn new(key: &B256, base: usize, at: usize) -> Self {
        let head = key.first_chunk().map_or(0, |head| u64::from_be_bytes(*head));
        Self { head: head << (4 * base), at: at as u32, leaf: NodeId::NONE }
    }

    /// Returns the number of leading nibbles that two keys share, given the keys. See
    /// [`Ordered::nibble`].
    #[inline]
    pub fn shared(&self, other: &Self, base: usize, keys: impl Fn() -> (B256, B256)) -> usize {
        let differing = self.head ^ other.head;
        if differing != 0 {
            return base + differing.leading_zeros() as usize / 4;
        }
        let (a, b) = keys();
        common_prefix(&a, &b)
    }

    /// Returns the nibble of the leaf's key at a depth of at least `base`, as given to
    /// [`Order::sort`].
    #[inline]
    pub fn nibble(&self, key: &B256, base: usize, depth: usize) -> u8 {
        // Nibbles that were shifted in do not belong to the key.
        if depth < 16 {
            (self.head >> (60 - 4 * (depth - base))) as u8 & 15
        } else {
            nibble(key, depth)
        }
    }
}

/// Buffers for sorting.
#[derive(Debug, Default)]
pub struct Order {
    unsorted: Vec<Ordered>,
    pub sorted: Vec<Ordered>,
    /// End of each bin in `sorted`.
    bins: Vec<u32>,
}

impl Order {
    /// Sorts leaves by their keys, which share `base` nibbles (at most one). The last of several
    /// leaves with equal keys stays.
    pub fn sort<T>(&mut self, leaves: &[(B256, T)], base: usize) {
        let Self { unsorted, sorted, bins } = self;
        let bits = leaves.len().max(1).ilog2().clamp(1, BITS_MAX);
        let bin = |item: &Ordered| (item.head >> (64 - bits)) as usize;
        unsorted.clear();
        bins.clear();
        bins.resize(1 << bits, 0);
        for (at, (key, _)) in leaves.iter().enumerate() {
            let item = Ordered::new(key, base, at);
            bins[bin(&item)] += 1;
            unsorted.push(item);
        }
        let (mut end, mut most) = (0, 0);
        for count in bins.iter_mut() {
            most = most.max(*count);
            // This is the start of the bin. It moves on to the end as the bin fills.
            end += std::mem::replace(count, end);
        }
        // Existing items are overwritten.
        sorted.resize(leaves.len(), Ordered { head: 0, at: 0, leaf: NodeId::NONE });
        for item in unsorted.iter() {
            let place = &mut bins[bin(item)];
            sorted[*place as usize] = *item;
            *place += 1;
        }
        let key = |item: &Ordered| &leaves[item.at as usize].0;
        let rank = |item: &Ordered| (key(item), item.at);
        let below =
            |a: &Ordered, b: &Ordered| a.head < b.head || a.head == b.head && rank(a) < rank(b);
        if most <= INSERTION_MAX {
            for at in 1..sorted.len() {
                let item = sorted[at];
                let mut to = at;
                while to > 0 && below(&item, &sorted[to - 1]) {
                    sorted[to] = sorted[to - 1];
                    to -= 1;
                }
                sorted[to] = item;
            }
        } else {
            let mut start = 0;
            for &end in bins.iter() {
                let bin = &mut sorted[start..end as usize];
                bin.sort_unstable_by(|a, b| {
                    (a.head.cmp(&b.head)).then_with(|| rank(a).cmp(&rank(b)))
                });
                start = end as usize;
            }
        }
        if sorted.windows(2).all(|two| two[0].head != two[1].head) {
            return;
        }
        // `dedup_by` passes the later of two items first.
        sorted.dedup_by(|later, kept| {
            let same = later.head == kept.head && key(later) == key(kept);
            if same {
                *kept = *later;
            }
            same
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use std::collections::BTreeMap;

    #[test]
    fn keys_ascend_and_the_last_of_equal_ones_stays() {
        let mut rng = StdRng::seed_from_u64(1);
        let mut order = Order::default();
        for round in 0..2_000 {
            let base = rng.random_range(0..2);
            let count = if round % 100 == 0 { 3_000 } else { rng.random_range(0..40) };
            // Few different bytes, at the start or at the end of the key, or any.
            let (start, values) = (rng.random_range(0..32), rng.random_range(1..=255));
            let leaves: Vec<(B256, usize)> = (0..count)
                .map(|at| {
                    let mut key = B256::ZERO;
                    for byte in &mut key[start..] {
                        *byte = rng.random_range(0..=values);
                    }
                    key[0] = if base == 1 { 0x70 | key[0] & 15 } else { key[0] };
                    (key, at)
                })
                .collect();
            order.sort(&leaves, base);
            let got: Vec<_> = order.sorted.iter().map(|item| leaves[item.at as usize]).collect();
            let want: BTreeMap<B256, usize> = leaves.iter().copied().collect();
            assert!(got.iter().copied().eq(want), "round {round}");
            for item in &order.sorted {
                let key = &leaves[item.at as usize].0;
                assert!((base..64).all(|at| item.nibble(key, base, at) == nibble(key, at)));
            }
        }
    }
}
