//! Bottom-up construction of a whole trie from its sorted keys, in memory of constant size.

use crate::{
    combine::write_reference,
    encode::{encode_branch, encode_extension, encode_leaf},
    nibbles::{DEPTH_MAX, common_prefix, nibble, pack, unpack},
};
use tandem_primitives::B256;

/// Key that does not follow the previous key in ascending order, or lies outside the prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("key {0} is out of order")]
pub struct OutOfOrder(pub B256);

/// Builder of a trie from strictly ascending keys. It passes every node that stands alone to the
/// sink, with its path (from the root, one nibble per byte). Children come before their parents.
pub struct TrieBuilder<S: FnMut(&[u8], &[u8])> {
    sink: S,
    base: usize,
    prefix: B256,
    /// Branches above the last key, by rising depth.
    open: Vec<OpenBranch>,
    last: Option<B256>,
    value: Vec<u8>,
    rlp: Vec<u8>,
}

struct OpenBranch {
    depth: usize,
    lens: [u8; 16],
    /// References of the present children, in order.
    references: [[u8; 32]; 16],
    count: usize,
}

impl OpenBranch {
    fn new(depth: usize) -> Self {
        Self { depth, lens: [0; 16], references: [[0; 32]; 16], count: 0 }
    }
}

impl<S: FnMut(&[u8], &[u8])> TrieBuilder<S> {
    /// Creates a builder for a trie from its root.
    pub fn new(sink: S) -> Self {
        let open = Vec::new();
        let (value, rlp) = (Vec::new(), Vec::new());
        Self { sink, base: 0, prefix: B256::ZERO, open, last: None, value, rlp }
    }

    /// Creates a builder for the part of a trie below a path (one nibble per byte, at most 64),
    /// such as a shard's subtrie. Keys are still whole, and the top node stands at that path.
    ///
    /// # Panics
    /// Panics when the prefix is not a valid path.
    pub fn with_prefix(prefix: &[u8], sink: S) -> Self {
        let packed = pack(prefix);
        assert!(packed.is_some(), "a prefix has at most 64 nibbles");
        let mut builder = Self::new(sink);
        (builder.base, builder.prefix) = (prefix.len(), packed.unwrap_or_default());
        builder
    }

    /// Adds a key with its value of 1 to 255 bytes.
    ///
    /// # Errors
    /// Returns [`OutOfOrder`] when the key is not above the last one, or is outside the prefix. The
    /// builder is then unchanged.
    pub fn push(&mut self, key: &B256, value: &[u8]) -> Result<(), OutOfOrder> {
        if common_prefix(key, &self.prefix) < self.base
            || self.last.is_some_and(|last| last >= *key)
        {
            return Err(OutOfOrder(*key));
        }
        if let Some(last) = self.last {
            self.close_down_to(&last, common_prefix(&last, key));
        }
        self.last = Some(*key);
        self.value.clear();
        self.value.extend_from_slice(value);
        Ok(())
    }

    /// Closes the trie. Returns the RLP of the top node at the prefix, or `None` without any key.
    /// The sink has received that node too.
    pub fn finish(mut self) -> Option<Vec<u8>> {
        let last = self.last?;
        let Some(lowest) = self.open.last() else {
            self.rlp.clear();
            encode_leaf(&last, self.base, &self.value, &mut self.rlp);
            (self.sink)(&unpack(&last)[..self.base], &self.rlp);
            return Some(self.rlp);
        };
        self.attach_leaf(&last, lowest.depth);
        while self.open.len() > 1 {
            let parent = self.open[self.open.len() - 2].depth;
            self.close_branch(&last, parent);
        }
        let top = self.open.pop()?;
        self.rlp.clear();
        encode_branch(&top.lens, &top.references[..top.count], &mut self.rlp);
        if top.depth > self.base {
            let (reference, len) = self.emit(&last, top.depth);
            encode_extension(&last, self.base, top.depth, &reference[..len], &mut self.rlp);
        }
        (self.sink)(&unpack(&last)[..self.base], &self.rlp);
        Some(self.rlp)
    }

    /// Attaches the last leaf and closes the branches below the depth at which the next key
    /// diverges from the last one.
    fn close_down_to(&mut self, last: &B256, depth: usize) {
        let lowest = self.open.last().map(|branch| branch.depth);
        if lowest.is_none_or(|lowest| lowest < depth) {
            self.open.push(OpenBranch::new(depth));
        }
        self.attach_leaf(last, lowest.unwrap_or(depth).max(depth));
        while let [.., above, lowest] = self.open.as_slice()
            && lowest.depth > depth
            && above.depth >= depth
        {
            let parent = above.depth;
            self.close_branch(last, parent);
        }
        if self.open.last().is_some_and(|lowest| lowest.depth > depth) {
            // The branch at the new depth lies between the lowest and the one above it.
            let at = self.open.len() - 1;
            self.open.insert(at, OpenBranch::new(depth));
            self.close_branch(last, depth);
        }
    }

    /// Adds the last leaf to the lowest branch, which is at `depth`.
    fn attach_leaf(&mut self, last: &B256, depth: usize) {
        self.rlp.clear();
        encode_leaf(last, depth + 1, &self.value, &mut self.rlp);
        self.attach(last, depth);
    }

    /// Closes the lowest branch and adds it to the one above, which is at depth `parent`.
    fn close_branch(&mut self, last: &B256, parent: usize) {
        let Some(branch) = self.open.pop() else {
            return;
        };
        self.rlp.clear();
        encode_branch(&branch.lens, &branch.references[..branch.count], &mut self.rlp);
        if branch.depth > parent + 1 {
            let (reference, len) = self.emit(last, branch.depth);
            encode_extension(last, parent + 1, branch.depth, &reference[..len], &mut self.rlp);
        }
        self.attach(last, parent);
    }

    /// Adds the encoded node to the lowest branch, which is at depth `parent`.
    fn attach(&mut self, last: &B256, parent: usize) {
        let (reference, len) = self.emit(last, parent + 1);
        let Some(branch) = self.open.last_mut() else {
            return;
        };
        branch.lens[usize::from(nibble(last, parent))] = len as u8;
        branch.references[branch.count] = reference;
        branch.count += 1;
    }

    /// Takes the encoded node at a depth of the last key out of the buffer, and passes it to the
    /// sink if it stands alone. Returns its reference and the reference's length.
    fn emit(&mut self, last: &B256, depth: usize) -> ([u8; 32], usize) {
        let mut reference = [0; 32];
        let len = write_reference(&self.rlp, &mut reference);
        if self.rlp.len() >= 32 {
            let path: [u8; DEPTH_MAX] = unpack(last);
            (self.sink)(&path[..depth], &self.rlp);
        }
        self.rlp.clear();
        (reference, usize::from(len))
    }
}
