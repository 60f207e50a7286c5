//! Hashing what changed, level by level from the bottom, and listing the nodes that differ.

use super::SparseTrie;
use crate::{
    encode::{HASH_LEN, encode_extension, encode_leaf},
    hashing::{Batch, Job, Scratch},
    nibbles::{DEPTH_MAX, unpack},
    node::{Extension, Kind, NodeId, Place},
};
use tandem_primitives::{B256, NodeChange, TrieDiff};

/// Hashes the changed nodes of several tries together, deepest first, so that children come before
/// their parents. What differs in each goes into the diff under its owner.
///
/// A trie with few changes has one or two nodes at each depth; only many such tries together fill
/// the lanes of a batch.
pub(crate) fn hash_tries<const V: usize>(
    tries: &mut [(Option<B256>, &mut SparseTrie<V>)],
    diff: &mut TrieDiff,
    scratch: &mut Scratch,
) {
    for (at, (owner, trie)) in (0..).zip(tries.iter_mut()) {
        trie.collect_changes(at, *owner, diff, scratch);
    }
    let Scratch { levels, paths, batch } = scratch;
    for jobs in levels.iter_mut().rev().filter(|jobs| !jobs.is_empty()) {
        let parts = Scratch::hash_level(batch, jobs, |job, out| {
            tries[job.trie as usize].1.encode(job.id, usize::from(job.depth), out);
        });
        let parts = if parts.is_empty() { std::slice::from_ref(batch) } else { &parts };
        for (job, (rlp, hash)) in jobs.iter().zip(parts.iter().flat_map(Batch::iter)) {
            let path = &paths[job.path as usize..][..usize::from(job.depth)];
            let (owner, trie) = &mut tries[job.trie as usize];
            trie.settle(job.place, rlp, hash, NodeChange { owner: *owner, path, rlp: None }, diff);
        }
        jobs.clear();
    }
    paths.clear();
}

impl<const V: usize> SparseTrie<V> {
    /// Hashes all changed nodes and appends to `diff`, under `owner`, every node that differs from
    /// when this was last called, and every path where a node stood alone then and none does now.
    /// Returns the hash of the top node, [`EMPTY_TRIE_ROOT`](tandem_primitives::EMPTY_TRIE_ROOT)
    /// without one, `None` when the trie is unknown.
    pub fn root(
        &mut self,
        owner: Option<B256>,
        diff: &mut TrieDiff,
        scratch: &mut Scratch,
    ) -> Option<B256> {
        hash_tries(&mut [(owner, &mut *self)], diff, scratch);
        self.base_root()
    }

    /// Lists the dirty nodes, and puts the paths where nothing stands any more into the diff.
    fn collect_changes(
        &mut self,
        trie: u32,
        owner: Option<B256>,
        diff: &mut TrieDiff,
        scratch: &mut Scratch,
    ) {
        if !self.root.dirty {
            return;
        }
        self.root.dirty = false;
        let mut path = unpack(&self.prefix);
        let base = usize::from(self.base);
        if self.root.id != NodeId::NONE {
            let top = Job { trie, place: Place::Root, id: self.root.id, path: 0, depth: self.base };
            self.collect(top, &mut path, scratch);
        } else if self.root.len != 0 {
            diff.push(NodeChange { owner, path: &path[..base], rlp: None });
            self.root.len = 0;
        }
        for ((key, depth), _) in std::mem::take(&mut self.gone) {
            let path = &unpack(&key)[..usize::from(depth)];
            diff.push(NodeChange { owner, path, rlp: None });
        }
    }

    /// RLP of the top node of a trie without changes, `None` when there is none or it is blinded.
    pub fn top(&self) -> Option<Vec<u8>> {
        let mut rlp = Vec::new();
        self.encode(self.root.id, usize::from(self.base), &mut rlp);
        (!rlp.is_empty()).then_some(rlp)
    }

    /// Lists the dirty nodes by depth, from this one down.
    fn collect(&self, job: Job, path: &mut [u8; DEPTH_MAX], scratch: &mut Scratch) {
        let depth = usize::from(job.depth);
        scratch.push(job, &path[..depth]);
        match job.id.kind() {
            Kind::None | Kind::Blind | Kind::Leaf(_) => {}
            Kind::Extension(index) => {
                let Extension { key, end, child, .. } = self.extensions.get(index);
                if child.dirty {
                    let below = depth..usize::from(*end);
                    path[below.clone()].copy_from_slice(&unpack(key)[below]);
                    let place = Place::Extension(index);
                    self.collect(Job { place, id: child.id, depth: *end, ..job }, path, scratch);
                }
            }
            Kind::Branch(index) => {
                let branch = self.branches.get(index);
                let mut dirty = branch.dirty();
                while dirty != 0 {
                    let nibble = dirty.trailing_zeros() as u8;
                    dirty &= dirty - 1;
                    path[depth] = nibble;
                    let (place, id) = (Place::Branch(index, nibble), branch.child(nibble));
                    self.collect(Job { place, id, depth: job.depth + 1, ..job }, path, scratch);
                }
            }
        }
    }

    /// Writes a node's new reference into its slot, and into the diff what changed at its path.
    fn settle(
        &mut self,
        place: Place,
        rlp: &[u8],
        hash: &B256,
        change: NodeChange<'_>,
        diff: &mut TrieDiff,
    ) {
        let embedded = rlp.len() < 32 && place != Place::Root;
        let reference = if embedded { rlp } else { hash.as_slice() };
        let before = self.slot(place);
        if embedded {
            if before.len == HASH_LEN {
                diff.push(change);
            }
        } else if before.hash() != Some(*hash) {
            diff.push(NodeChange { rlp: Some(rlp), ..change });
        }
        match place {
            Place::Root => {
                self.root.len = HASH_LEN;
                self.root.reference = hash.0;
            }
            Place::Branch(index, nibble) => self.branches.settle(index, nibble, reference),
            Place::Extension(index) => {
                let child = &mut self.extensions.get_mut(index).child;
                child.dirty = false;
                child.len = reference.len() as u8;
                child.reference[..reference.len()].copy_from_slice(reference);
            }
        }
    }

    /// Appends the RLP of a node whose children are all clean; nothing for one not in memory.
    fn encode(&self, id: NodeId, depth: usize, out: &mut Vec<u8>) {
        match id.kind() {
            Kind::None | Kind::Blind => {}
            Kind::Leaf(index) => {
                let leaf = self.leaves.get(index);
                encode_leaf(&leaf.key, depth, leaf.value(), out);
            }
            Kind::Extension(index) => {
                let extension = self.extensions.get(index);
                let child = &extension.child.reference[..usize::from(extension.child.len)];
                encode_extension(&extension.key, depth, usize::from(extension.end), child, out);
            }
            Kind::Branch(index) => self.branches.encode(index, out),
        }
    }
}
