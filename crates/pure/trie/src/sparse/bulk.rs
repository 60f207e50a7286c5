//! Setting many keys at once. In the order of the keys each search starts where the one before
//! left its way, and where there is nothing yet a whole subtrie is built at a time.

use super::{Blinded, SparseTrie};
use crate::{
    arena::prefetch,
    hashing::Scratch,
    nibbles::{common_prefix, prefix, put_nibble},
    node::{Extension, NodeId, Place, Slot},
    order::Ordered,
};
use tandem_primitives::B256;

/// Fewer leaves than this are set one by one: sorting costs more than it saves.
const BULK_MIN: usize = 8;

/// Leaves up to which a run is searched from its start; in a longer one, by halves.
const LINEAR_MAX: usize = 32;

/// Leaves ahead of the one that is made whose values are brought near; their keys come earlier.
const AHEAD: usize = 8;

/// Leaves to be set.
type Leaves<T> = [(B256, T)];

impl<const V: usize> SparseTrie<V> {
    /// Sets many keys to their values; of several with the same key the last wins. The same as
    /// [`SparseTrie::update`] with one after the other, but faster. A leaf whose place is not
    /// revealed is given to `blinded` by its position, and all others are set; of several with the
    /// same key it is the last, if not all in their order.
    ///
    /// # Panics
    /// As [`SparseTrie::update`].
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

    /// [`SparseTrie::descend`] for a key that shares so many nibbles with the one before, whose
    /// trail still stands: nothing was removed since.
    fn descend_after(&mut self, shared: usize, key: &B256) -> (Place, usize) {
        while let Some((place, depth)) = self.trail.pop() {
            if usize::from(depth) <= shared {
                return self.descend_from(place, usize::from(depth), key);
            }
        }
        self.descend(key)
    }

    /// Fills a slot at `depth` in which there is nothing.
    fn grow_at<T: AsRef<[u8]>>(
        &mut self,
        place: Place,
        depth: usize,
        leaves: &Leaves<T>,
        run: &mut [Ordered],
    ) {
        self.leaves.reserve(run.len());
        // All leaves before any branch, in a loop that knows which ones come: in the order of the
        // keys they lie anywhere in memory.
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
        // One more is counted by `mark`.
        self.touches += run.len() as u32 - 1;
        self.mark(place);
    }

    /// Makes the node at `depth` over a run of at least two leaves that all belong below.
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

    /// Brings the references to what stood at the paths of a new branch's children, where others
    /// went. The branch stands at `depth` of the key.
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

    /// Leads from `depth` to a new branch at `end`: through an extension, unless it stands there.
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

/// How many of the first leaves share their first `depth` nibbles.
fn run_below<T>(leaves: &Leaves<T>, sorted: &[Ordered], depth: usize) -> usize {
    let key = |item: &Ordered| &leaves[item.at as usize].0;
    let first = key(&sorted[0]);
    len_while(sorted, |item| common_prefix(key(item), first) >= depth)
}

/// How many of the first items something holds for, when it holds for none behind them.
#[inline]
fn len_while(sorted: &[Ordered], holds: impl Fn(&Ordered) -> bool) -> usize {
    let near = &sorted[..sorted.len().min(LINEAR_MAX)];
    match near.iter().position(|item| !holds(item)) {
        Some(end) => end,
        None => near.len() + sorted[near.len()..].partition_point(holds),
    }
}
