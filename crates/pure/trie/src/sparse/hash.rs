//! Hashing what changed, level by level from the bottom, and listing the nodes that differ.

use super::SparseTrie;
use crate::{
    encode::{encode_extension, encode_leaf},
    hashing::{Batch, CHUNK, Job, PARALLEL_MIN, Scratch},
    nibbles::{DEPTH_MAX, unpack},
    node::{Before, Extension, Kind, NodeId, Place, Reference},
};
use tandem_primitives::{B256, EMPTY_TRIE_ROOT, NodeChange, TrieDiff};

/// Touches of a trie in a block for which a branch that is hashed ahead waits for one more child.
const HEAT: u32 = 128;

/// Changed children for which a branch waits at most.
const PATIENCE_MAX: u32 = 4;

/// Why nodes are hashed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pass {
    /// The block goes on: only nodes at least this many nibbles below their trie's top. Those above
    /// are likely to change again.
    Ahead(u8),
    /// The block is over.
    End,
}

/// What a pass hashed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Hashed {
    pub nodes: usize,
    /// Those of them whose path was hashed in the open block before.
    pub again: usize,
}

impl std::ops::AddAssign for Hashed {
    fn add_assign(&mut self, other: Self) {
        self.nodes += other.nodes;
        self.again += other.again;
    }
}

/// Hashes the changed nodes of several tries together, deepest first, so that children come before
/// their parents. What differs in each from the state before the block goes into the diff under its
/// owner. Changes that hashing ahead put there and that do not hold any more are listed in the
/// scratch at the end of the block.
///
/// A trie with few changes has one or two nodes at each depth; only many such tries together fill
/// the lanes of a batch.
pub(crate) fn hash_tries<const V: usize>(
    tries: &mut [(Option<B256>, &mut SparseTrie<V>)],
    pass: Pass,
    diff: &mut TrieDiff,
    scratch: &mut Scratch,
) -> Hashed {
    for (at, (owner, trie)) in (0..).zip(tries.iter_mut()) {
        match pass {
            Pass::Ahead(levels) => trie.collect_below(at, levels, scratch),
            Pass::End => trie.collect_changes(at, *owner, diff, scratch),
        }
    }
    let mut hashed = Hashed::default();
    let Scratch { levels, paths, batch, parts, void, .. } = scratch;
    for level in levels.iter_mut().rev() {
        // Children come before their parents, the nodes of one level in any order.
        let parallel = level.len() >= PARALLEL_MIN && rayon::current_num_threads() > 1;
        for jobs in level.chunks(if parallel { level.len() } else { CHUNK }) {
            let encode = |job: &Job, out: &mut Vec<u8>| {
                tries[job.trie as usize].1.encode(job.id, usize::from(job.depth), out);
            };
            let batches = if parallel {
                Scratch::hash_parallel(parts, jobs, encode)
            } else {
                batch.fill(jobs, encode);
                std::slice::from_ref(batch)
            };
            for (job, (rlp, hash)) in jobs.iter().zip(batches.iter().flat_map(Batch::iter)) {
                let path = &paths[job.path as usize..][..usize::from(job.depth)];
                let (owner, trie) = &mut tries[job.trie as usize];
                let change = NodeChange { owner: *owner, path, rlp: Some(rlp) };
                hashed.again += usize::from(trie.settle(job.place, pass, change, hash, diff));
            }
        }
        hashed.nodes += level.len();
        level.clear();
    }
    paths.clear();
    if pass == Pass::End {
        tries.iter_mut().for_each(|(_, trie)| trie.clear_entries(void));
    }
    hashed
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
        hash_tries(&mut [(owner, &mut *self)], Pass::End, diff, scratch);
        self.base_root()
    }

    /// [`SparseTrie::base_root`] as it was before the open block.
    pub(crate) fn root_before(&self) -> Option<B256> {
        if self.is_unknown() {
            return None;
        }
        Some(self.before(Place::Root).unwrap_or(EMPTY_TRIE_ROOT))
    }

    /// Leaves written, inserted or removed since the trie was last hashed, ahead or at the end.
    pub(crate) fn touches(&self) -> u32 {
        self.touches
    }

    /// Lists the dirty nodes, and puts the paths where nothing stands any more into the diff.
    fn collect_changes(
        &mut self,
        trie: u32,
        owner: Option<B256>,
        diff: &mut TrieDiff,
        scratch: &mut Scratch,
    ) {
        (self.touches, self.heat) = (0, 0);
        let mut path = unpack(&self.prefix);
        let base = usize::from(self.base);
        for ((key, depth), _) in std::mem::take(&mut self.gone) {
            let path = &unpack(&key)[..usize::from(depth)];
            diff.push(NodeChange { owner, path, rlp: None });
        }
        if !std::mem::take(&mut self.root.dirty) {
            return;
        }
        if self.root.id != NodeId::NONE {
            let top = Job { trie, place: Place::Root, id: self.root.id, path: 0, depth: self.base };
            self.collect(top, &mut path, scratch);
            return;
        }
        self.note_reference(Place::Root);
        if self.take_before(Place::Root).is_some() {
            diff.push(NodeChange { owner, path: &path[..base], rlp: None });
        }
        self.root.len = 0;
    }

    /// Lists the dirty nodes that are at least this many nibbles below the top.
    fn collect_below(&mut self, trie: u32, levels: u8, scratch: &mut Scratch) {
        self.heat += std::mem::take(&mut self.touches);
        if self.root.dirty && self.root.id != NodeId::NONE {
            let mut path = unpack(&self.prefix);
            let top = Job { trie, place: Place::Root, id: self.root.id, path: 0, depth: self.base };
            self.descend_dirty(top, self.base + levels, &mut path, scratch);
        }
    }

    /// Lists the dirty nodes from the depth `from` on. A branch at that depth waits until some of
    /// its children have changed: in a trie much written to it would be hashed over and over.
    fn descend_dirty(
        &mut self,
        job: Job,
        from: u8,
        path: &mut [u8; DEPTH_MAX],
        scratch: &mut Scratch,
    ) {
        if job.depth < from {
            return self.each_dirty(job, path, |trie, job, path| {
                trie.descend_dirty(job, from, path, scratch);
            });
        }
        if let Kind::Branch(index) = job.id.kind()
            && job.depth == from
        {
            let patience = (1 + self.heat / HEAT).min(PATIENCE_MAX);
            let branch = self.branches.get_mut(index);
            branch.stale += branch.dirty().count_ones() as u8;
            if u32::from(branch.stale) < patience {
                return self.each_dirty(job, path, |trie, job, path| {
                    trie.collect(job, path, scratch);
                });
            }
            branch.stale = 0;
        }
        self.collect(job, path, scratch);
    }

    /// RLP of the top node of a trie without changes, `None` when there is none or it is blinded.
    pub fn top(&self) -> Option<Vec<u8>> {
        let mut rlp = Vec::new();
        self.encode(self.root.id, usize::from(self.base), &mut rlp);
        (!rlp.is_empty()).then_some(rlp)
    }

    /// Lists the dirty nodes by depth, from this one down.
    fn collect(&mut self, job: Job, path: &mut [u8; DEPTH_MAX], scratch: &mut Scratch) {
        scratch.push(job, path);
        self.each_dirty(job, path, |trie, job, path| match job.id.kind() {
            // Most nodes are leaves: one call less.
            Kind::Leaf(_) => scratch.push(job, path),
            _ => trie.collect(job, path, scratch),
        });
    }

    /// Calls for each dirty child of a node, with the path leading to it.
    #[inline]
    fn each_dirty(
        &mut self,
        job: Job,
        path: &mut [u8; DEPTH_MAX],
        mut child: impl FnMut(&mut Self, Job, &mut [u8; DEPTH_MAX]),
    ) {
        let depth = usize::from(job.depth);
        match job.id.kind() {
            Kind::None | Kind::Blind | Kind::Leaf(_) => {}
            Kind::Extension(index) => {
                let Extension { key, end, child: slot, .. } = self.extensions.get(index);
                if slot.dirty {
                    let below = depth..usize::from(*end);
                    path[below.clone()].copy_from_slice(&unpack(key)[below]);
                    let place = Place::Extension(index);
                    let job = Job { place, id: slot.id, depth: *end, ..job };
                    child(self, job, path);
                }
            }
            Kind::Branch(index) => {
                let mut dirty = self.branches.get(index).dirty();
                while dirty != 0 {
                    let nibble = dirty.trailing_zeros() as u8;
                    dirty &= dirty - 1;
                    path[depth] = nibble;
                    let id = self.branches.get(index).child(nibble);
                    let place = Place::Branch(index, nibble);
                    child(self, Job { place, id, depth: job.depth + 1, ..job }, path);
                }
            }
        }
    }

    /// Writes a node's new reference into its slot, and into the diff what differs at its path from
    /// before the block. True when the node there was hashed ahead.
    fn settle(
        &mut self,
        place: Place,
        pass: Pass,
        mut change: NodeChange<'_>,
        hash: &B256,
        diff: &mut TrieDiff,
    ) -> bool {
        let rlp = change.rlp.unwrap_or_default();
        let embedded = rlp.len() < 32 && place != Place::Root;
        let reference = if embedded { Reference::Embedded(rlp) } else { Reference::Hash(hash) };
        if embedded {
            change.rlp = None;
        }
        let entry = self.entry(place);
        if entry.is_none() && pass == Pass::End {
            self.note_reference(place);
            match self.settle_slot(place, reference) {
                Before::Other => diff.push(change),
                Before::Nothing if !embedded => diff.push(change),
                Before::Nothing | Before::Same => {}
            }
            return false;
        }
        let (before, said) = match entry {
            Some(entry) => self.ahead.get(entry),
            None => (self.slot(place).hash(), None),
        };
        let differs = if embedded { before.is_some() } else { before != Some(*hash) };
        let says = self.say(said, differs, change, diff);
        match entry {
            Some(entry) => self.ahead.set_change(entry, says),
            None => self.add_entry(place, before, says),
        }
        if entry.is_none() {
            self.note_reference(place);
        }
        self.settle_slot(place, reference);
        entry.is_some()
    }

    /// Sets what a slot refers to; it is clean from now on.
    pub(super) fn set_reference(&mut self, place: Place, reference: &[u8]) {
        let hash = <[u8; 32]>::try_from(reference).map(B256::new);
        let reference = match &hash {
            Ok(hash) => Reference::Hash(hash),
            Err(_) => Reference::Embedded(reference),
        };
        self.settle_slot(place, reference);
    }

    /// Writes a node's new reference into its slot, which is clean from now on.
    #[inline]
    fn settle_slot(&mut self, place: Place, reference: Reference<'_>) -> Before {
        let slot = match place {
            Place::Root => &mut self.root,
            Place::Branch(index, nibble) => {
                return self.branches.settle(index, nibble, reference);
            }
            Place::Extension(index) => &mut self.extensions.get_mut(index).child,
        };
        slot.dirty = false;
        reference.replace(&mut slot.len, &mut slot.reference)
    }

    /// Makes the diff say of one path what is so now, given the position of what it said so far.
    /// Returns the position of what it says.
    fn say(
        &mut self,
        said: Option<u32>,
        differs: bool,
        change: NodeChange<'_>,
        diff: &mut TrieDiff,
    ) -> Option<u32> {
        if let Some(said) = said {
            if differs && change.rlp.is_some_and(|rlp| diff.overwrite(said as usize, rlp)) {
                return Some(said);
            }
            self.ahead.void.push(said);
        }
        differs.then(|| {
            diff.push(change);
            diff.len() as u32 - 1
        })
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
