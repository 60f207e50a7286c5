//! Root of a list: over all its items at once, or while it still grows.
//!
//! The keys are the RLP of the indices. They ascend as the indices do, except that index 0 (0x80)
//! comes between 127 (0x7f) and 128 (0x8180). Leaves are therefore taken in ascending order. Each
//! key settles a part of the trie: the leaf before it and the branches that end there. Only one
//! path stays open, whatever the length.

use crate::{
    keccak::hash_batch,
    whole::{Reference, nibble, push_children, push_extension, push_leaf, shared_nibbles},
};
use tandem_primitives::{B256, EMPTY_TRIE_ROOT, keccak256};

/// Lowest index with more than one byte of RLP. An index below it is its own RLP, except 0, which
/// is 0x80.
const ONE_BYTE: usize = 0x80;

/// Maximum number of bytes of items that are hashed together. They stay in the cache until then.
const BATCH_BYTES: usize = 128 << 10;

/// Number of leaves that a list which still grows hashes together: twice as many as there are lanes.
const BATCH_LEAVES: usize = 16;

/// Returns the root of the trie that holds each item of a list under the RLP of its index. Items
/// must not be empty: the transactions and receipts of a block, as in EIP-2718. The leaves are
/// hashed in batches.
pub fn list_root<V: AsRef<[u8]>>(list: &[V]) -> B256 {
    if list.len() < 2 {
        let mut trie = ListTrie::new();
        list.iter().for_each(|item| trie.push(item.as_ref()));
        return trie.root();
    }
    let low = list.len().min(ONE_BYTE);
    let mut sorted = (1..low).chain([0]).chain(low..list.len()).peekable();
    let mut leaves = Leaves::default();
    while let Some(index) = sorted.next() {
        let key = Key::of(index);
        let next = sorted.peek().map(|next| Key::of(*next));
        let below = next.map_or(0, |next| shared_nibbles(key.bytes(), next.bytes()));
        leaves.push(key, below, list[index].as_ref());
    }
    leaves.root()
}

/// Leaves of which some are hashed together, and the branches above them.
#[derive(Debug, Default)]
struct Leaves {
    spine: Spine,
    /// Number of nibbles that the newest leaf shares with the one that is not there yet.
    above: usize,
    /// Key of each leaf of the batch, and the number of nibbles that it shares with the next one.
    keys: Vec<(Key, usize)>,
    rlp: Vec<u8>,
    ends: Vec<u32>,
    hashes: Vec<B256>,
}

impl Leaves {
    /// Adds a leaf whose key is above that of the last one, and shares `below` nibbles with the next one.
    fn push(&mut self, key: Key, below: usize, item: &[u8]) {
        // The leaf hangs in the branch where its key diverges from its nearer neighbour's key.
        let depth = self.above.max(below) + 1;
        self.above = below;
        if self.rlp.len() + item.len() > BATCH_BYTES {
            self.settle();
        }
        push_leaf(key.bytes(), depth, item, &mut self.rlp);
        if item.len() > BATCH_BYTES {
            self.spine.settle(key, below, Reference::to(&self.rlp));
            self.rlp.clear();
            return;
        }
        self.keys.push((key, below));
        // The length is little more than `BATCH_BYTES`.
        self.ends.push(self.rlp.len() as u32);
    }

    fn settle(&mut self) {
        hash_batch(&self.rlp, &self.ends, &mut self.hashes);
        let mut start = 0;
        for ((key, below), (end, hash)) in
            self.keys.drain(..).zip(self.ends.iter().zip(&self.hashes))
        {
            let end = *end as usize;
            self.spine.settle(key, below, Reference::hashed(&self.rlp[start..end], hash));
            start = end;
        }
        self.rlp.clear();
        self.ends.clear();
    }

    /// Returns the root after the last of at least two leaves.
    fn root(mut self) -> B256 {
        self.settle();
        self.spine.root()
    }
}

/// Trie of [`list_root`], built item by item: most of the work is done before the end is known.
#[derive(Debug, Default)]
pub struct ListTrie {
    len: usize,
    /// Item 0 until its turn.
    first: Option<Vec<u8>>,
    /// Key of the newest leaf, whose place depends on the next leaf.
    key: Option<Key>,
    value: Vec<u8>,
    leaves: Leaves,
}

impl ListTrie {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of items so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there is no item yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds the next item, which must not be empty.
    pub fn push(&mut self, item: &[u8]) {
        let index = self.len;
        self.len += 1;
        if index == 0 {
            self.first = Some(item.to_vec());
            return;
        }
        if index == ONE_BYTE {
            self.place_first();
        }
        self.place(index, item);
    }

    /// Returns the root over all items.
    pub fn root(mut self) -> B256 {
        self.place_first();
        let Some(key) = self.key else {
            return EMPTY_TRIE_ROOT;
        };
        if self.len == 1 {
            let mut rlp = Vec::new();
            push_leaf(key.bytes(), 0, &self.value, &mut rlp);
            return keccak256(&rlp);
        }
        self.leaves.push(key, 0, &self.value);
        self.leaves.root()
    }

    fn place_first(&mut self) {
        if let Some(first) = self.first.take() {
            self.place(0, &first);
        }
    }

    /// Makes this the newest leaf. Its key must be above that of the last leaf.
    fn place(&mut self, index: usize, item: &[u8]) {
        let key = Key::of(index);
        if let Some(last) = self.key {
            let below = shared_nibbles(last.bytes(), key.bytes());
            self.leaves.push(last, below, &self.value);
            if self.leaves.keys.len() == BATCH_LEAVES {
                self.leaves.settle();
            }
        }
        self.key = Some(key);
        self.value.clear();
        self.value.extend_from_slice(item);
    }
}

/// Branches above the newest leaf, by rising depth.
#[derive(Debug, Default)]
struct Spine {
    open: Vec<OpenBranch>,
    rlp: Vec<u8>,
}

#[derive(Debug)]
struct OpenBranch {
    depth: usize,
    children: [Reference; 16],
}

impl Spine {
    /// Attaches a leaf to its branch, and all branches deeper than `below` to those above them. The
    /// next key shares `below` nibbles with this one and leaves the path there.
    fn settle(&mut self, key: Key, below: usize, leaf: Reference) {
        let (mut child, mut parent) = (leaf, self.open_at(below));
        loop {
            if let Some(branch) = self.open.last_mut() {
                branch.children[usize::from(nibble(key.bytes(), parent))] = child;
            }
            if parent <= below {
                return;
            }
            let Some(branch) = self.open.pop() else { return };
            parent = self.open_at(below);
            child = self.reference(key, parent + 1, &branch);
        }
    }

    /// Returns the root after the last leaf was settled with `below` 0. Only the top branch is open
    /// then: the keys of the first two items differ in their first nibble.
    fn root(mut self) -> B256 {
        let Some(top) = self.open.pop() else {
            return EMPTY_TRIE_ROOT;
        };
        debug_assert!(top.depth == 0 && self.open.is_empty());
        self.rlp.clear();
        push_children(&top.children, &[], &mut self.rlp);
        keccak256(&self.rlp)
    }

    /// Returns the reference to a branch in the node above. It includes the extension over the
    /// branch when the path begins at a smaller `depth`.
    fn reference(&mut self, key: Key, depth: usize, branch: &OpenBranch) -> Reference {
        self.rlp.clear();
        push_children(&branch.children, &[], &mut self.rlp);
        let child = Reference::to(&self.rlp);
        if branch.depth == depth {
            return child;
        }
        self.rlp.clear();
        push_extension(key.bytes(), depth, branch.depth, &child, &mut self.rlp);
        Reference::to(&self.rlp)
    }

    /// Returns the depth of the lowest branch. Opens a new branch at `depth` if the lowest is above
    /// it.
    fn open_at(&mut self, depth: usize) -> usize {
        match self.open.last() {
            Some(lowest) if lowest.depth >= depth => lowest.depth,
            _ => {
                self.open.push(OpenBranch { depth, children: [Reference::NONE; 16] });
                depth
            }
        }
    }
}

/// RLP of an index.
#[derive(Clone, Copy, Debug)]
struct Key {
    bytes: [u8; 9],
    len: u8,
}

impl Key {
    fn of(index: usize) -> Self {
        let rlp = alloy_rlp::encode_fixed_size(&(index as u64));
        let mut bytes = [0; 9];
        bytes[..rlp.len()].copy_from_slice(&rlp);
        Self { bytes, len: rlp.len() as u8 }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_trie::root::ordered_trie_root_encoded;
    use rand::{Rng, RngCore, SeedableRng, rngs::StdRng};

    /// Returns items of which some are short enough to be embedded in their branch.
    fn random_list(rng: &mut StdRng, len: usize) -> Vec<Vec<u8>> {
        let item = |rng: &mut StdRng| {
            let longest = if rng.random_bool(0.3) { 400 } else { 40 };
            let mut item = vec![0; rng.random_range(1..longest)];
            rng.fill_bytes(&mut item);
            item
        };
        (0..len).map(|_| item(rng)).collect()
    }

    fn grown_root(list: &[Vec<u8>]) -> B256 {
        let mut trie = ListTrie::new();
        list.iter().for_each(|item| trie.push(item));
        assert_eq!((trie.len(), trie.is_empty()), (list.len(), list.is_empty()));
        trie.root()
    }

    #[test]
    fn a_list_has_the_same_root_however_it_is_built() {
        let mut rng = StdRng::seed_from_u64(11);
        let border = [511, 512, 1000, 4095, 4096, 4097, 65_535, 65_536, 65_537];
        for len in (0..=300).chain(border) {
            let list = random_list(&mut rng, len);
            let root = grown_root(&list);
            assert_eq!(root, list_root(&list), "{len} items");
            assert_eq!(root, ordered_trie_root_encoded(&list), "{len} items");
        }
    }

    #[test]
    fn items_larger_than_a_batch_are_hashed_too() {
        let large = |n: usize| vec![n as u8 + 1; [10, BATCH_BYTES, BATCH_BYTES + 1, 400][n % 4]];
        for len in [1, 2, 3, 9, 130] {
            let list: Vec<_> = (0..len).map(large).collect();
            let root = list_root(&list);
            assert_eq!((root, root), (ordered_trie_root_encoded(&list), grown_root(&list)));
        }
    }

    #[test]
    fn every_item_counts() {
        let mut rng = StdRng::seed_from_u64(12);
        for len in [1, 2, 16, 127, 128, 129, 257] {
            let mut list = random_list(&mut rng, len);
            let root = grown_root(&list);
            for index in 0..len {
                list[index][0] ^= 1;
                assert_ne!(grown_root(&list), root, "item {index} of {len}");
                list[index][0] ^= 1;
            }
        }
    }
}
