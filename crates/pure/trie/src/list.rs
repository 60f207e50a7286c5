//! The root of a list that grows, most of the work done before its end is known.

use crate::whole::{
    ONE_BYTE, Reference, nibble, push_children, push_extension, push_leaf, shared_nibbles,
};
use tandem_primitives::{B256, EMPTY_TRIE_ROOT, keccak256};

/// The trie of [`crate::list_root`], built item by item.
///
/// The keys are the RLP of the indices. They ascend as the indices do, except that index 0 (0x80)
/// comes between 127 (0x7f) and 128 (0x8180): so the first item waits for its turn, and every other
/// one settles the item before it and the branches that end there. What is left for
/// [`ListTrie::root`] is one path, whatever the length.
#[derive(Debug, Default)]
pub struct ListTrie {
    len: usize,
    /// Item 0 until its turn.
    first: Option<Vec<u8>>,
    /// The newest leaf: what hangs it into the trie depends on the next one.
    key: Option<Key>,
    value: Vec<u8>,
    /// The branches above it, by rising depth.
    open: Vec<OpenBranch>,
    rlp: Vec<u8>,
}

#[derive(Debug)]
struct OpenBranch {
    depth: usize,
    children: [Reference; 16],
}

/// The RLP of an index.
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

impl ListTrie {
    /// An empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Items so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no item yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds the next item, which is not empty.
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

    /// The root over all items.
    pub fn root(mut self) -> B256 {
        self.place_first();
        let Some(key) = self.key else {
            return EMPTY_TRIE_ROOT;
        };
        if self.open.is_empty() {
            self.rlp.clear();
            push_leaf(key.bytes(), 0, &self.value, &mut self.rlp);
            return keccak256(&self.rlp);
        }
        let top = self.open[0].depth;
        self.settle(key, top);
        let branch = &self.open[0];
        self.rlp.clear();
        push_children(&branch.children, &[], &mut self.rlp);
        if top > 0 {
            let child = Reference::to(&self.rlp);
            self.rlp.clear();
            push_extension(key.bytes(), 0, top, &child, &mut self.rlp);
        }
        keccak256(&self.rlp)
    }

    fn place_first(&mut self) {
        if let Some(first) = self.first.take() {
            self.place(0, &first);
        }
    }

    /// Makes this the newest leaf. Its key is above that of the last one.
    fn place(&mut self, index: usize, item: &[u8]) {
        let key = Key::of(index);
        if let Some(last) = self.key {
            self.settle(last, shared_nibbles(last.bytes(), key.bytes()));
        }
        self.key = Some(key);
        self.value.clear();
        self.value.extend_from_slice(item);
    }

    /// Hangs the newest leaf and all branches deeper than `depth` into the branch at `depth`, where
    /// the next key leaves the path of this one.
    fn settle(&mut self, key: Key, depth: usize) {
        let mut parent = self.open_at(depth);
        self.rlp.clear();
        push_leaf(key.bytes(), parent + 1, &self.value, &mut self.rlp);
        loop {
            let child = Reference::to(&self.rlp);
            if let Some(branch) = self.open.last_mut() {
                branch.children[usize::from(nibble(key.bytes(), parent))] = child;
            }
            if parent <= depth {
                return;
            }
            let Some(branch) = self.open.pop() else { return };
            parent = self.open_at(depth);
            self.rlp.clear();
            push_children(&branch.children, &[], &mut self.rlp);
            if branch.depth > parent + 1 {
                let child = Reference::to(&self.rlp);
                self.rlp.clear();
                push_extension(key.bytes(), parent + 1, branch.depth, &child, &mut self.rlp);
            }
        }
    }

    /// Depth of the lowest branch; when that is above `depth`, a new one there.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::list_root;
    use alloy_trie::root::ordered_trie_root_encoded;
    use rand::{Rng, RngCore, SeedableRng, rngs::StdRng};

    /// Items of which some are short enough to stand inside their branch.
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
