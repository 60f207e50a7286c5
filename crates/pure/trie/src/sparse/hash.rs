//! Hashing of changed nodes, level by level from the bottom, and listing of the nodes that differ.

use super::SparseTrie;
use crate::{
    encode::{ROOM, Room, write_extension, write_leaf},
    hashing::{Batch, CHUNK, Job, Levels, PARALLEL_MIN, Scratch, level},
    nibbles::{Path, unpack},
    node::{Before, Extension, Kind, NodeId, Place, Reference},
};
use smallvec::SmallVec;
use tandem_primitives::{B256, EMPTY_TRIE_ROOT, NodeChange, TrieDiff};

/// Number of touches of a trie in a block for which a branch that is hashed ahead waits for one
/// more child.
const HEAT: u32 = 128;

/// Maximum number of changed children that a branch waits for.
const PATIENCE_MAX: u32 = 4;

/// Approximate length in bytes of a leaf's RLP without its value, or of an extension's.
const LEAF_LEN: usize = 40;

/// Reason for hashing nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pass {
    /// The block continues. Only nodes at least this many nibbles below their trie's top are
    /// hashed, because higher nodes are likely to change again.
    Ahead(u8),
    /// The block is over.
    End,
}

/// Counts of the nodes that a pass hashed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Hashed {
    pub nodes: usize,
    /// Number of these nodes whose path was hashed in the open block before.
    pub again: usize,
}

impl std::ops::AddAssign for Hashed {
    fn add_assign(&mut self, other: Self) {
        self.nodes += other.nodes;
        self.again += other.again;
    }
}

/// Tries that are hashed together, with their owners.
type Tries<'a, const V: usize> = [(Option<B256>, &'a mut SparseTrie<V>)];

/// Hashes the changed nodes of several tries together, deepest first, so that children come before
/// their parents. Nodes that differ from the state before the block go into the diff under their
/// trie's owner. At the end of the block, the scratch lists the changes from hashing ahead that no
/// longer hold.
///
/// A trie with few changes has one or two nodes at each depth. Only many such tries together fill
/// the lanes of a batch.
pub(crate) fn hash_tries<const V: usize>(
    tries: &mut Tries<'_, V>,
    pass: Pass,
    diff: &mut TrieDiff,
    scratch: &mut Scratch,
) -> Hashed {
    let Scratch { levels, batch, parts, void, .. } = scratch;
    for (at, (owner, trie)) in (0..).zip(tries.iter_mut()) {
        match pass {
            Pass::Ahead(below) => trie.collect_below(at, below, levels),
            Pass::End => trie.collect_changes(at, *owner, diff, levels),
        }
    }
    let bytes = collect_all(tries, levels);
    let nodes = levels.jobs.iter().map(Vec::len).sum();
    let mut hashed = Hashed { nodes, again: 0 };
    if pass == Pass::End {
        diff.reserve(nodes, bytes);
    }
    let Levels { jobs, long } = levels;
    for (depth, level) in jobs.iter_mut().enumerate().rev() {
        // Children come before their parents. The nodes of one level come in any order.
        let parallel = level.len() >= PARALLEL_MIN && rayon::current_num_threads() > 1;
        for jobs in level.chunks(if parallel { level.len() } else { CHUNK }) {
            let fill = |batch: &mut Batch, jobs: &[Job]| {
                batch.fill(jobs, depth, long, |job, room, at| {
                    tries[job.trie as usize].1.write(job.id, depth, room, at)
                });
            };
            let batches = if parallel {
                Scratch::hash_parallel(parts, jobs, fill)
            } else {
                fill(batch, jobs);
                std::slice::from_ref(batch)
            };
            for (batch, jobs) in batches.iter().zip(jobs.chunks(CHUNK)) {
                hashed.again += settle_batch(tries, batch, jobs, pass, diff);
            }
        }
        level.clear();
    }
    long.clear();
    if pass == Pass::End {
        tries.iter_mut().for_each(|(_, trie)| trie.clear_entries(void));
    }
    hashed
}

/// Lists all dirty nodes below the listed ones. Returns the approximate number of bytes that they
/// take in a diff.
fn collect_all<const V: usize>(tries: &Tries<'_, V>, levels: &mut Levels) -> usize {
    let (mut bytes, mut depth) = (0, 0);
    while depth < levels.jobs.len() {
        let jobs = std::mem::take(&mut levels.jobs[depth]);
        for job in &jobs {
            bytes += tries[job.trie as usize].1.collect(*job, depth, levels);
        }
        bytes += depth * jobs.len();
        levels.jobs[depth] = jobs;
        depth += 1;
    }
    bytes
}

/// Settles the nodes of one batch. Returns the number of nodes that had been hashed ahead.
fn settle_batch<const V: usize>(
    tries: &mut Tries<'_, V>,
    batch: &Batch,
    jobs: &[Job],
    pass: Pass,
    diff: &mut TrieDiff,
) -> usize {
    let (mut again, mut start) = (0, 0);
    for jobs in jobs.chunk_by(|a, b| a.trie == b.trie) {
        let (owner, trie) = &mut tries[jobs[0].trie as usize];
        // Nodes from here on go into the diff together.
        let mut first = start;
        for (at, job) in (start..).zip(jobs) {
            let (path, rlp, hash) = batch.node(at);
            let plain = pass == Pass::End && rlp.len() >= 32 && trie.entry(job.place).is_none();
            if plain && trie.settle_hash(job.place, hash) {
                continue;
            }
            batch.give(first..at, *owner, diff);
            first = at + 1;
            if !plain {
                let change = NodeChange { owner: *owner, path, rlp: Some(rlp) };
                again += usize::from(trie.settle(job.place, pass, change, hash, diff));
            }
        }
        start += jobs.len();
        batch.give(first..start, *owner, diff);
    }
    again
}

impl<const V: usize> SparseTrie<V> {
    /// Hashes all changed nodes and appends the differences from the last call to `diff`, under
    /// `owner`. These are all nodes that differ, and all paths where a node stood alone then and
    /// none does now.
    ///
    /// Returns the hash of the top node, [`EMPTY_TRIE_ROOT`](tandem_primitives::EMPTY_TRIE_ROOT)
    /// without one, or `None` when the trie is unknown.
    pub fn root(
        &mut self,
        owner: Option<B256>,
        diff: &mut TrieDiff,
        scratch: &mut Scratch,
    ) -> Option<B256> {
        hash_tries(&mut [(owner, &mut *self)], Pass::End, diff, scratch);
        self.base_root()
    }

    /// Returns [`SparseTrie::base_root`] as it was before the open block.
    pub(crate) fn root_before(&self) -> Option<B256> {
        if self.is_unknown() {
            return None;
        }
        Some(self.before(Place::Root).unwrap_or(EMPTY_TRIE_ROOT))
    }

    /// Returns the number of leaves written, inserted or removed since the trie was last hashed,
    /// ahead or at the end.
    pub(crate) fn touches(&self) -> u32 {
        self.touches
    }

    /// Lists the top node if it is dirty, and puts the paths that became empty into the diff.
    fn collect_changes(
        &mut self,
        trie: u32,
        owner: Option<B256>,
        diff: &mut TrieDiff,
        levels: &mut Levels,
    ) {
        (self.touches, self.heat) = (0, 0);
        for ((key, depth), _) in std::mem::take(&mut self.gone) {
            let path = &unpack(&key)[..usize::from(depth)];
            diff.push(NodeChange { owner, path, rlp: None });
        }
        if !std::mem::take(&mut self.root.dirty) {
            return;
        }
        if self.root.id != NodeId::NONE {
            let top = self.top_job(trie, levels);
            levels.at(usize::from(self.base)).push(top);
            return;
        }
        self.note_reference(Place::Root);
        if self.take_before(Place::Root).is_some() {
            let path = &unpack(&self.prefix)[..usize::from(self.base)];
            diff.push(NodeChange { owner, path, rlp: None });
        }
        self.root.len = 0;
    }

    fn top_job(&self, trie: u32, levels: &mut Levels) -> Job {
        let path = Path::of(&self.prefix, usize::from(self.base), &mut levels.long);
        Job { trie, place: Place::Root, id: self.root.id, path }
    }

    /// Lists the highest dirty nodes that are at least `below` nibbles below the top.
    fn collect_below(&mut self, trie: u32, below: u8, levels: &mut Levels) {
        self.heat += std::mem::take(&mut self.touches);
        if self.root.dirty && self.root.id != NodeId::NONE {
            let (base, top) = (usize::from(self.base), self.top_job(trie, levels));
            self.descend_dirty(top, base, base + usize::from(below), levels);
        }
    }

    /// Lists the highest dirty nodes from the depth `from` on. A branch at that depth waits until
    /// some of its children have changed. In a busy trie it would otherwise be hashed repeatedly.
    fn descend_dirty(&mut self, job: Job, depth: usize, from: usize, levels: &mut Levels) {
        let mut waits = depth < from;
        if let Some(index) = job.id.as_branch().filter(|_| depth == from) {
            let patience = (1 + self.heat / HEAT).min(PATIENCE_MAX);
            let branch = self.branches.get_mut(index);
            branch.stale += branch.dirty().count_ones() as u8;
            waits = u32::from(branch.stale) < patience;
            branch.stale = if waits { branch.stale } else { 0 };
        }
        if !waits {
            return levels.at(depth).push(job);
        }
        let mut children = SmallVec::<[(Job, usize); 16]>::new();
        self.each_dirty(job, depth, &mut levels.long, |job, depth| children.push((job, depth)));
        for (job, below) in children {
            if depth < from {
                self.descend_dirty(job, below, from, levels);
            } else {
                levels.at(below).push(job);
            }
        }
    }

    /// Returns the RLP of the top node of a trie without changes, or `None` when there is none or
    /// it is blinded.
    pub fn top(&self) -> Option<Vec<u8>> {
        let mut room = ROOM;
        let end = self.write(self.root.id, usize::from(self.base), &mut room, 0);
        (end > 0).then(|| room[..end].to_vec())
    }

    /// Lists the dirty children of a node. Returns the approximate length of the node's RLP in
    /// bytes.
    #[inline]
    fn collect(&self, job: Job, depth: usize, levels: &mut Levels) -> usize {
        let Levels { jobs, long } = levels;
        let push = |job, depth| level(jobs, depth).push(job);
        match job.id.kind() {
            Kind::None | Kind::Blind => 0,
            Kind::Leaf(_) => LEAF_LEN + V / 2,
            Kind::Extension(_) => {
                self.each_dirty(job, depth, long, push);
                LEAF_LEN
            }
            Kind::Branch(index) => {
                self.each_dirty(job, depth, long, push);
                20 + 33 * self.branches.get(index).present().count_ones() as usize
            }
        }
    }

    /// Calls `child` for each dirty child of a node, with the child's depth.
    #[inline]
    fn each_dirty(
        &self,
        job: Job,
        depth: usize,
        long: &mut Vec<B256>,
        mut child: impl FnMut(Job, usize),
    ) {
        match job.id.kind() {
            Kind::None | Kind::Blind | Kind::Leaf(_) => {}
            Kind::Extension(index) => {
                let Extension { key, end, child: slot, .. } = self.extensions.get(index);
                if slot.dirty {
                    let end = usize::from(*end);
                    let (place, path) = (Place::Extension(index), Path::of(key, end, long));
                    child(Job { place, id: slot.id, path, ..job }, end);
                }
            }
            Kind::Branch(index) => {
                let branch = self.branches.get(index);
                let mut dirty = branch.dirty();
                while dirty != 0 {
                    let nibble = dirty.trailing_zeros() as u8;
                    dirty &= dirty - 1;
                    let path = job.path.child(depth, nibble, long);
                    let (place, id) = (Place::Branch(index, nibble), branch.child(nibble));
                    child(Job { place, id, path, ..job }, depth + 1);
                }
            }
        }
    }

    /// Writes the hash of a node that stands alone into its slot. Returns whether it differs from
    /// the former hash.
    #[inline]
    fn settle_hash(&mut self, place: Place, hash: &B256) -> bool {
        self.note_reference(place);
        self.settle_slot(place, Reference::Hash(hash)) != Before::Same
    }

    /// Writes a node's new reference into its slot, and the difference from the state before the
    /// block into the diff. Returns true when the node there was hashed ahead.
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

    /// Sets the reference of a slot and marks the slot clean.
    pub(super) fn set_reference(&mut self, place: Place, reference: &[u8]) {
        let hash = <[u8; 32]>::try_from(reference).map(B256::new);
        let reference = match &hash {
            Ok(hash) => Reference::Hash(hash),
            Err(_) => Reference::Embedded(reference),
        };
        self.settle_slot(place, reference);
    }

    /// Writes a node's new reference into its slot and marks the slot clean.
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

    /// Updates the diff for one path, given the position of the path's former change. Returns the
    /// position of the current change, if any.
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

    /// Writes the RLP of a node from `at` on and returns its end. All its children must be clean.
    /// Writes nothing for a node that is not in memory.
    #[inline]
    fn write(&self, id: NodeId, depth: usize, room: &mut Room, at: usize) -> usize {
        // Most nodes are leaves, and most others branches.
        if let Some(index) = id.as_leaf() {
            let leaf = self.leaves.get(index);
            return write_leaf(&leaf.key, depth, leaf.value(), room, at);
        }
        match id.kind() {
            Kind::None | Kind::Blind | Kind::Leaf(_) => at,
            Kind::Extension(index) => {
                let extension = self.extensions.get(index);
                let child = &extension.child.reference[..usize::from(extension.child.len)];
                write_extension(
                    &extension.key,
                    (depth, usize::from(extension.end)),
                    child,
                    room,
                    at,
                )
            }
            Kind::Branch(index) => self.branches.write(index, room, at),
        }
    }
}
