//! Update of many keys at once. The keys are taken in order, so each search starts where the
//! previous one left its way. A whole subtrie is built at once where nothing stands yet.

use super::{Blinded, SparseTrie};
use crate::{
    arena::prefetch,
    hashing::Scratch,
    nibbles::{common_prefix, prefix, put_nibble},
    node::{Extension, NodeId, Place, Slot},
    order::Ordered,
};
use tandem_primitives::B256;

/// Number of leaves from which they are set together. Below it, sorting costs more than it saves.
const BULK_MIN: usize = 8;

/// Number of leaves up to which a run is searched linearly. A longer run is bisected.
const LINEAR_MAX: usize = 32;

/// Distance, in leaves, at which values are prefetched. Keys are prefetched at twice the distance.
const AHEAD: usize = 8;

/// Leaves to set.
type Leaves<T> = [(B256, T)];

impl<const V: usize> SparseTrie<V> {
    /// Sets many keys to their values. The last of several leaves with the same key wins. The
    /// result equals that of repeated [`SparseTrie::update`] calls, but takes less time.
    ///
    /// A leaf whose place is not revealed is passed to `blinded` by its position. All others are
    /// set. For several such leaves with the same key, either the last is passed, or all in their
    /// order.
    ///
    /// # Panics
    /// Panics when a value is empty or longer than `V`.
    pub fn update_all<T: AsRef<[u8]>>(
        &mut self,
        leaves: &Leaves<T>,
        scratch: &mut Scratch,
        mut blinded: impl FnMut(usize, Blinded),
    ) {
        if leaves.len() < BULK_MIN {
            for (at, (key, value)) in leaves.iter().enumerate() {
                if let Err(what) = self.update(key, value.as_ref()) {
                    blinded(at, what);
                }
            }
            return;
        }
        scratch.order.sort(leaves, usize::from(self.base));
        let mut rest = &mut scratch.order.sorted[..];
        let mut last = None;
        while let Some(item) = rest.first() {
            let (key, value) = &leaves[item.at as usize];
            let (place, depth) = match last {
                Some(last) => self.descend_after(common_prefix(last, key), key),
                None => self.descend(key),
            };
            let mut run = 1;
            if self.slot_id(place) == NodeId::NONE {
                run = run_below(leaves, rest, depth);
            }
            let done;
            (done, rest) = rest.split_at_mut(run);
            if run > 1 {
                self.grow_at(place, depth, leaves, done);
            } else {
                self.check_value(value.as_ref());
                if let Err(what) = self.update_at(place, depth, key, value.as_ref()) {
                    blinded(done[0].at as usize, what);
                }
            }
            self.trail.push((place, depth as u8));
            last = Some(key);
        }
    }

    /// Descends as [`SparseTrie::descend`] does, for a key that shares `shared` nibbles with the
    /// previous key. The previous trail still holds because nothing was removed since.
    fn descend_after(&mut self, shared: usize, key: &B256) -> (Place, usize) {
        while let Some((place, depth)) = self.trail.pop() {
            if usize::from(depth) <= shared {
                return self.descend_from(place, usize::from(depth), key);
            }
        }
        self.descend(key)
    }

    /// Fills an empty slot at `depth`.
    fn grow_at<T: AsRef<[u8]>>(
        &mut self,
        place: Place,
        depth: usize,
        leaves: &Leaves<T>,
        run: &mut [Ordered],
    ) {
        self.leaves.reserve(run.len());
        // All leaves are made before any branch, in a loop that can prefetch later ones. In the
        // order of the keys they lie anywhere in memory.
        for at in 0..run.len() {
            if let Some(later) = run.get(at + 2 * AHEAD) {
                prefetch(&leaves[later.at as usize]);
            }
            if let Some(later) = run.get(at + AHEAD)
                && let Some(byte) = leaves[later.at as usize].1.as_ref().first()
            {
                prefetch(byte);
            }
            let item = &mut run[at];
            let (key, value) = &leaves[item.at as usize];
            self.check_value(value.as_ref());
            item.leaf = self.new_leaf(key, value.as_ref());
            self.note_made(item.leaf);
        }
        let id = self.grow(depth, leaves, run);
        let (key, _) = &leaves[run[0].at as usize];
        self.occupy(place, id, key, depth);
        // `mark` counts one more.
        self.touches += run.len() as u32 - 1;
        self.mark(place);
    }

    /// Builds the node at `depth` over a run of at least two leaves that all belong below.
    fn grow<T>(&mut self, depth: usize, leaves: &Leaves<T>, run: &[Ordered]) -> NodeId {
        let (first, last) = (&run[0], &run[run.len() - 1]);
        let key = |item: &Ordered| &leaves[item.at as usize].0;
        let base = usize::from(self.base);
        let at = first.shared(last, base, || (*key(first), *key(last)));
        let nibble = |item: &Ordered| item.nibble(key(item), base, at);
        let mut children = [NodeId::NONE; 16];
        let mut rest = run;
        while let Some(item) = rest.first() {
            let of = nibble(item);
            let below;
            (below, rest) = rest.split_at(len_while(rest, |item| nibble(item) == of));
            children[usize::from(of)] = match below {
                [only] => only.leaf,
                more => self.grow(at + 1, leaves, more),
            };
        }
        let branch = self.branches.insert_grown(&children, self.now);
        self.note_made(NodeId::branch(branch));
        if !self.gone.is_empty() {
            self.refer_to_gone(branch, key(first), at);
        }
        self.extend_to(NodeId::branch(branch), depth, at, key(first))
    }

    /// Restores the hashes of nodes that stood at the paths of a new branch's children and are
    /// gone. The branch stands at `depth` of the key.
    fn refer_to_gone(&mut self, branch: u32, key: &B256, depth: usize) {
        for nibble in 0..16 {
            if self.branches.get(branch).child(nibble) == NodeId::NONE {
                continue;
            }
            let mut path = prefix(key, depth);
            put_nibble(&mut path, depth, nibble);
            if let Some(before) = self.take_gone(&path, depth + 1) {
                self.branches.set_before(branch, nibble, &before);
            }
        }
    }

    /// Returns the node that leads from `depth` to a new branch at `end`: an extension, or the
    /// branch itself if it stands at `depth`.
    pub(super) fn extend_to(
        &mut self,
        branch: NodeId,
        depth: usize,
        end: usize,
        key: &B256,
    ) -> NodeId {
        if end == depth {
            return branch;
        }
        let child = Slot::fresh(branch, self.take_gone(key, end));
        let extension = Extension { key: prefix(key, end), end: end as u8, used: self.now, child };
        let id = NodeId::extension(self.extensions.insert(extension));
        self.note_made(id);
        id
    }
}

/// Returns how many of the first leaves share their first `depth` nibbles.
fn run_below<T>(leaves: &Leaves<T>, sorted: &[Ordered], depth: usize) -> usize {
    let key = |item: &Ordered| &leaves[item.at as usize].0;
    let first = key(&sorted[0]);
    len_while(sorted, |item| common_prefix(key(item), first) >= depth)
}

/// Returns how many of the first items satisfy `holds`, which must fail for all items behind them.
#[inline]
fn len_while(sorted: &[Ordered], holds: impl Fn(&Ordered) -> bool) -> usize {
    let near = &sorted[..sorted.len().min(LINEAR_MAX)];
    match near.iter().position(|item| !holds(item)) {
        Some(end) => end,
        None => near.len() + sorted[near.len()..].partition_point(holds),
    }
}
