//! Trie nodes that a proof job found, on their way to the owner of the tries.

use tandem_primitives::B256;
use tandem_trie::hash_batch;

/// Nodes in one buffer, so that a job's answer takes few allocations, which are reused.
#[derive(Debug, Default)]
pub struct Nodes {
    places: Vec<Place>,
    rlp: Vec<u8>,
    /// End of each node in `rlp`.
    ends: Vec<u32>,
    /// Hash of each node, or empty.
    hashes: Vec<B256>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    target: u32,
    depth: u8,
}

/// One node.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    /// Position in the job of a target on whose path the node lies.
    pub target: usize,
    /// Number of nibbles of the target's key that lead to the node.
    pub depth: usize,
    pub rlp: &'a [u8],
    /// Keccak-256 of the node, if it was computed.
    pub hash: Option<&'a B256>,
}

impl Nodes {
    pub fn clear(&mut self) {
        self.places.clear();
        self.rlp.clear();
        self.ends.clear();
        self.hashes.clear();
    }

    /// Appends a node.
    pub fn push(&mut self, target: usize, depth: usize, rlp: &[u8]) {
        self.places.push(Place { target: target as u32, depth: depth as u8 });
        self.rlp.extend_from_slice(rlp);
        self.ends.push(self.rlp.len() as u32);
    }

    /// Hashes all nodes.
    pub fn hash(&mut self) {
        hash_batch(&self.rlp, &self.ends, &mut self.hashes);
    }

    /// Returns the bytes that the buffers keep allocated.
    pub fn capacity(&self) -> usize {
        self.rlp.capacity()
    }

    /// Returns the nodes in the order of pushing.
    pub fn iter(&self) -> impl Iterator<Item = Node<'_>> {
        let mut start = 0;
        self.places.iter().zip(&self.ends).enumerate().map(move |(at, (place, &end))| {
            let rlp = &self.rlp[start..end as usize];
            start = end as usize;
            let (target, depth) = (place.target as usize, usize::from(place.depth));
            Node { target, depth, rlp, hash: self.hashes.get(at) }
        })
    }
}
