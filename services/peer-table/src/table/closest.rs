//! Contacts closest to a target by XOR distance (Kademlia), found without reading the others.
//!
//! The index is a binary trie over the first 64 bits of the hashed ids. A leaf has up to [`LEAF`]
//! contacts:
//!
//! ```text
//!              inner: bit 0                 closest(0b10…): the side that shares the target's bit
//!             0/          \1                first, then the other; every contact of the first side
//!        leaf: 7      inner: bit 1          is closer than every contact of the second. Leaves are
//!                    0/          \1         sorted when they are reached.
//!               leaf: 12       leaf: 3
//! ```
//!
//! Hashed ids are spread evenly unless an attacker grinds keys. A prefix crowded in this way only
//! makes the trie deeper there, never a leaf longer.

use tandem_primitives::B256;

/// Largest number of contacts in one leaf.
const LEAF: usize = 16;
/// Number of contacts up to which two leaves become one. It is half of [`LEAF`], so that contacts
/// that come and go do not split and merge the same leaf repeatedly.
const MERGE: usize = LEAF / 2;
/// Number of bits of the hashed id that the trie distinguishes.
const DEPTH: usize = 64;

/// Child: an inner node's index, a leaf's index with [`LEAF_BIT`], or [`EMPTY`].
type Child = u32;
const EMPTY: Child = u32::MAX;
const LEAF_BIT: Child = 1 << 31;

#[derive(Clone, Debug)]
struct Leaf {
    len: usize,
    keys: [u64; LEAF],
    slots: [u32; LEAF],
}

const NO_CONTACTS: Leaf = Leaf { len: 0, keys: [0; LEAF], slots: [0; LEAF] };

impl Leaf {
    fn push(&mut self, key: u64, slot: u32) {
        (self.keys[self.len], self.slots[self.len]) = (key, slot);
        self.len += 1;
    }

    fn items(&self) -> impl Iterator<Item = (u64, u32)> {
        self.keys[..self.len].iter().copied().zip(self.slots[..self.len].iter().copied())
    }
}

/// Location of a child: the root, or one side of an inner node.
#[derive(Clone, Copy)]
enum Link {
    Root,
    Inner(u32, usize),
}

/// Index of slots by hashed id.
#[derive(Debug)]
pub(super) struct ClosestIndex {
    root: Child,
    inner: Vec<[Child; 2]>,
    leaves: Vec<Leaf>,
    free_inner: Vec<u32>,
    free_leaves: Vec<u32>,
}

impl Default for ClosestIndex {
    fn default() -> Self {
        Self {
            root: EMPTY,
            inner: Vec::new(),
            leaves: Vec::new(),
            free_inner: Vec::new(),
            free_leaves: Vec::new(),
        }
    }
}

/// Returns the first 64 bits of a hashed id.
fn key(hash: &B256) -> u64 {
    u64::from_be_bytes(hash.0.first_chunk().copied().unwrap_or_default())
}

/// Returns the bit of the key at a depth, as a side.
fn side(key: u64, depth: usize) -> usize {
    (key >> (DEPTH - 1 - depth) & 1) as usize
}

impl ClosestIndex {
    /// Adds a slot. Returns `false`, with nothing changed, if more than [`LEAF`] ids share 64 bits.
    /// That does not happen by chance, and no attacker can grind it.
    #[must_use]
    pub(super) fn insert(&mut self, hash: &B256, slot: u32) -> bool {
        let key = key(hash);
        let (mut link, mut depth) = (Link::Root, 0);
        loop {
            let child = self.child(link);
            if child == EMPTY {
                let leaf = self.new_leaf();
                self.leaves[leaf as usize].push(key, slot);
                self.set_child(link, leaf | LEAF_BIT);
                return true;
            }
            if child & LEAF_BIT == 0 {
                link = Link::Inner(child, side(key, depth));
                depth += 1;
                continue;
            }
            let leaf = &mut self.leaves[(child ^ LEAF_BIT) as usize];
            if leaf.len < LEAF {
                leaf.push(key, slot);
                return true;
            }
            if depth == DEPTH {
                return false;
            }
            self.split(link, child ^ LEAF_BIT, depth);
        }
    }

    /// Replaces a full leaf by an inner node, with the leaf's contacts on its sides.
    fn split(&mut self, link: Link, leaf: u32, depth: usize) {
        let full = std::mem::replace(&mut self.leaves[leaf as usize], NO_CONTACTS);
        let mut children = [EMPTY; 2];
        for (key, slot) in full.items() {
            let side = side(key, depth);
            if children[side] == EMPTY {
                let used = children[1 - side] != EMPTY;
                children[side] = LEAF_BIT | if used { self.new_leaf() } else { leaf };
            }
            self.leaves[(children[side] ^ LEAF_BIT) as usize].push(key, slot);
        }
        let inner = self.free_inner.pop().unwrap_or(self.inner.len() as u32);
        match self.inner.get_mut(inner as usize) {
            Some(free) => *free = children,
            None => self.inner.push(children),
        }
        self.set_child(link, inner);
    }

    /// Removes a slot that is present.
    pub(super) fn remove(&mut self, hash: &B256, slot: u32) {
        let key = key(hash);
        let mut path = [Link::Root; DEPTH + 1];
        let mut depth = 0;
        let leaf = loop {
            let child = self.child(path[depth]);
            if child == EMPTY {
                return;
            }
            if child & LEAF_BIT != 0 {
                break child ^ LEAF_BIT;
            }
            path[depth + 1] = Link::Inner(child, side(key, depth));
            depth += 1;
        };
        let items = &mut self.leaves[leaf as usize];
        let Some(place) = items.slots[..items.len].iter().position(|&other| other == slot) else {
            return;
        };
        items.len -= 1;
        items.keys[place] = items.keys[items.len];
        items.slots[place] = items.slots[items.len];
        if items.len == 0 {
            self.free_leaves.push(leaf);
            self.set_child(path[depth], EMPTY);
        }
        while depth > 0 && self.merge(path[depth], path[depth - 1]) {
            depth -= 1;
        }
    }

    /// Replaces an inner node by one leaf if its sides hold few enough contacts.
    fn merge(&mut self, side: Link, above: Link) -> bool {
        let Link::Inner(inner, _) = side else { return false };
        let [left, right] = self.inner[inner as usize];
        let (Some(left_len), Some(right_len)) = (self.leaf_len(left), self.leaf_len(right)) else {
            return false;
        };
        if left_len + right_len > MERGE {
            return false;
        }
        let merged = if left == EMPTY { right } else { left };
        if left != EMPTY && right != EMPTY {
            let right = right ^ LEAF_BIT;
            let from = std::mem::replace(&mut self.leaves[right as usize], NO_CONTACTS);
            for (key, slot) in from.items() {
                self.leaves[(left ^ LEAF_BIT) as usize].push(key, slot);
            }
            self.free_leaves.push(right);
        }
        self.free_inner.push(inner);
        self.set_child(above, merged);
        true
    }

    /// Returns the number of contacts in a child; `None` if it is an inner node.
    fn leaf_len(&self, child: Child) -> Option<usize> {
        match child {
            EMPTY => Some(0),
            leaf if leaf & LEAF_BIT != 0 => Some(self.leaves[(leaf ^ LEAF_BIT) as usize].len),
            _ => None,
        }
    }

    fn new_leaf(&mut self) -> u32 {
        self.free_leaves.pop().unwrap_or_else(|| {
            self.leaves.push(NO_CONTACTS);
            self.leaves.len() as u32 - 1
        })
    }

    fn child(&self, link: Link) -> Child {
        match link {
            Link::Root => self.root,
            Link::Inner(inner, side) => self.inner[inner as usize][side],
        }
    }

    fn set_child(&mut self, link: Link, child: Child) {
        match link {
            Link::Root => self.root = child,
            Link::Inner(inner, side) => self.inner[inner as usize][side] = child,
        }
    }

    /// Returns all slots, closest first. `hashes` are the hashed ids by slot, for ids that share 64
    /// bits.
    pub(super) fn closest<'a>(&'a self, target: B256, hashes: &'a [B256]) -> Closest<'a> {
        let mut closest = Closest {
            index: self,
            hashes,
            target,
            key: key(&target),
            ahead: [(EMPTY, 0); DEPTH + 2],
            ahead_len: 0,
            leaf: [(0, 0); LEAF],
            leaf_len: 0,
            leaf_next: 0,
        };
        closest.push(self.root, 0);
        closest
    }

    /// Returns the number of nodes and leaves in use, to check that removed ones are freed.
    #[cfg(test)]
    pub(super) fn nodes(&self) -> usize {
        let free = self.free_inner.len() + self.free_leaves.len();
        self.inner.len() + self.leaves.len() - free
    }
}

/// Iterator over slots in the order of their distance. It does not allocate.
pub(super) struct Closest<'a> {
    index: &'a ClosestIndex,
    hashes: &'a [B256],
    target: B256,
    key: u64,
    /// Children still to be visited, with their depth; the closest is last.
    ahead: [(Child, usize); DEPTH + 2],
    ahead_len: usize,
    /// The leaf reached last, sorted by distance.
    leaf: [(u64, u32); LEAF],
    leaf_len: usize,
    leaf_next: usize,
}

impl Closest<'_> {
    fn push(&mut self, child: Child, depth: usize) {
        if child != EMPTY {
            self.ahead[self.ahead_len] = (child, depth);
            self.ahead_len += 1;
        }
    }

    fn open(&mut self, leaf: &Leaf) {
        self.leaf_len = leaf.len;
        self.leaf_next = 0;
        for (place, (key, slot)) in self.leaf.iter_mut().zip(leaf.items()) {
            *place = (key ^ self.key, slot);
        }
        let (target, hashes) = (self.target, self.hashes);
        let whole = |slot: u32| hashes[slot as usize] ^ target;
        self.leaf[..leaf.len].sort_unstable_by(|(near, a), (far, b)| {
            near.cmp(far).then_with(|| whole(*a).cmp(&whole(*b)))
        });
    }
}

impl Iterator for Closest<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        while self.leaf_next == self.leaf_len {
            self.ahead_len = self.ahead_len.checked_sub(1)?;
            let (child, depth) = self.ahead[self.ahead_len];
            if child & LEAF_BIT != 0 {
                self.open(&self.index.leaves[(child ^ LEAF_BIT) as usize]);
            } else {
                let near = side(self.key, depth);
                let children = self.index.inner[child as usize];
                self.push(children[1 - near], depth + 1);
                self.push(children[near], depth + 1);
            }
        }
        self.leaf_next += 1;
        Some(self.leaf[self.leaf_next - 1].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Generates hashes that share prefixes of any length, up to all 64 bits that the trie sees.
    fn hash() -> impl Strategy<Value = B256> {
        (any::<u64>(), 0..=64u32, any::<u64>()).prop_map(|(key, shared, rest)| {
            let mask = u64::MAX.checked_shr(shared).unwrap_or(0);
            let mut hash = [0; 32];
            hash[..8].copy_from_slice(&(key & mask).to_be_bytes());
            hash[24..].copy_from_slice(&rest.to_be_bytes());
            B256::from(hash)
        })
    }

    fn brute_force(target: B256, hashes: &[B256], present: &[bool]) -> Vec<u32> {
        let mut slots: Vec<_> = (0..hashes.len() as u32).filter(|&s| present[s as usize]).collect();
        slots.sort_by_key(|&slot| hashes[slot as usize] ^ target);
        slots
    }

    proptest! {
        #[test]
        fn all_slots_come_in_the_order_of_their_distance(
            hashes in proptest::collection::btree_set(hash(), 1..200),
            changes in proptest::collection::vec(any::<prop::sample::Index>(), 0..600),
            target in hash(),
        ) {
            let hashes: Vec<_> = hashes.into_iter().collect();
            let mut present = vec![false; hashes.len()];
            let mut index = ClosestIndex::default();
            for change in changes {
                let slot = change.index(hashes.len());
                if present[slot] {
                    index.remove(&hashes[slot], slot as u32);
                    present[slot] = false;
                } else {
                    present[slot] = index.insert(&hashes[slot], slot as u32);
                }
            }
            let all: Vec<_> = index.closest(target, &hashes).collect();
            prop_assert_eq!(all, brute_force(target, &hashes, &present));
            for slot in (0..hashes.len()).filter(|&slot| present[slot]) {
                index.remove(&hashes[slot], slot as u32);
            }
            prop_assert_eq!(index.nodes(), 0);
            prop_assert_eq!(index.root, EMPTY);
        }
    }

    #[test]
    fn more_than_a_leaf_of_ids_that_share_64_bits_is_refused() {
        let hashes: Vec<_> = (0..=LEAF as u8).map(B256::with_last_byte).collect();
        let mut index = ClosestIndex::default();
        for (hash, slot) in hashes.iter().zip(0..) {
            assert_eq!(index.insert(hash, slot), (slot as usize) < LEAF);
        }
        assert_eq!(index.closest(B256::ZERO, &hashes).count(), LEAF);
        index.remove(&hashes[3], 3);
        assert!(index.insert(&hashes[LEAF], LEAF as u32));
    }
}
