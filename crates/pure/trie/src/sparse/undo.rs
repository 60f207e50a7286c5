//! Revert of a trie to the start of a block.

use super::SparseTrie;
use crate::node::{Kind, NodeId, Place, Slot};

/// Number of steps whose memory a trie keeps between two blocks.
const STEPS_KEPT: usize = 1 << 14;

/// Step that reverts one change. Steps are applied in reverse order, so each finds the trie in the
/// state right after its change.
#[derive(Clone, Debug)]
enum Step {
    /// The slot held this node.
    Held(Place, NodeId),
    /// The slot held a reference of this length.
    Referred(Place, u8, [u8; 32]),
    /// The branch had no child at this nibble.
    Inserted(u32, u8),
    /// The branch had this child at this nibble.
    Removed(u32, u8, Slot),
    /// The node did not exist.
    Made(NodeId),
    /// The leaf had a value of this length, which lies at the end of the values.
    Valued(u32, u8),
}

/// Record of a block's changes to a trie, sufficient to revert them.
#[derive(Clone, Debug, Default)]
pub struct Undo {
    steps: Vec<Step>,
    values: Vec<u8>,
    /// Slots that became dirty. All were clean when the block began.
    marked: Vec<Place>,
    /// Removed nodes. Their places are not reused as long as the nodes may come back.
    limbo: Vec<NodeId>,
}

impl Undo {
    fn clear(&mut self) {
        if self.steps.capacity() > STEPS_KEPT {
            *self = Self::default();
        }
        self.steps.clear();
        self.values.clear();
        self.marked.clear();
        self.limbo.clear();
    }
}

impl<const V: usize> SparseTrie<V> {
    /// Starts recording changes, for [`SparseTrie::revert`].
    pub(crate) fn track(&mut self, undo: Box<Undo>) {
        self.undo = Some(undo);
    }

    /// Returns whether changes are recorded.
    pub(crate) fn is_tracked(&self) -> bool {
        self.undo.is_some()
    }

    /// Makes the changes since [`SparseTrie::track`] permanent. Returns the record, emptied.
    pub(crate) fn untrack(&mut self) -> Option<Box<Undo>> {
        let mut undo = self.undo.take()?;
        for &id in &undo.limbo {
            self.release(id);
        }
        undo.clear();
        Some(undo)
    }

    /// Reverts all changes since [`SparseTrie::track`]. Nodes that were revealed meanwhile stay if
    /// their parent does.
    pub(crate) fn revert(&mut self) {
        let Some(mut undo) = self.undo.take() else { return };
        self.clear_entries(&mut Vec::new());
        self.gone.clear();
        (self.touches, self.heat) = (0, 0);
        // The places of removed nodes still hold them, and the steps restore the links.
        undo.limbo.clear();
        while let Some(step) = undo.steps.pop() {
            self.take_back(step, &mut undo.values);
        }
        for &place in &undo.marked {
            self.unmark(place);
        }
        undo.clear();
        self.undo = Some(undo);
    }

    fn take_back(&mut self, step: Step, values: &mut Vec<u8>) {
        match step {
            Step::Held(place, id) => self.set_slot_id(place, id),
            Step::Referred(place, len, reference) => {
                self.set_reference(place, &reference[..usize::from(len)]);
            }
            Step::Inserted(branch, nibble) => {
                self.branches.remove_child(branch, nibble);
            }
            Step::Removed(branch, nibble, slot) => self.branches.insert_child(branch, nibble, slot),
            Step::Made(id) => self.release(id),
            Step::Valued(leaf, len) => {
                let start = values.len() - usize::from(len);
                self.leaves.get_mut(leaf).set(&values[start..]);
                values.truncate(start);
            }
        }
    }

    /// Removes a node from the trie.
    pub(super) fn free(&mut self, id: NodeId) {
        match &mut self.undo {
            Some(undo) => undo.limbo.push(id),
            None => self.release(id),
        }
    }

    fn release(&mut self, id: NodeId) {
        match id.kind() {
            Kind::None | Kind::Blind => {}
            Kind::Leaf(index) => self.leaves.remove(index),
            Kind::Extension(index) => self.extensions.remove(index),
            Kind::Branch(index) => self.branches.remove(index),
        }
    }

    #[inline]
    fn note(&mut self, step: impl FnOnce(&Self) -> Step) {
        if let Some(mut undo) = self.undo.take() {
            undo.steps.push(step(self));
            self.undo = Some(undo);
        }
    }

    /// Records that a node is new.
    #[inline]
    pub(super) fn note_made(&mut self, id: NodeId) {
        self.note(|_| Step::Made(id));
    }

    /// Records that a slot became dirty.
    #[inline]
    pub(super) fn note_marked(&mut self, place: Place) {
        if let Some(undo) = &mut self.undo {
            undo.marked.push(place);
        }
    }

    /// Records the reference of a slot before it changes.
    #[inline]
    pub(super) fn note_reference(&mut self, place: Place) {
        self.note(|trie| {
            let slot = trie.slot(place);
            Step::Referred(place, slot.len, slot.reference)
        });
    }

    /// Sets a leaf's value.
    pub(super) fn set_value(&mut self, leaf: u32, value: &[u8]) {
        let leaf_ref = self.leaves.get_mut(leaf);
        if let Some(undo) = &mut self.undo {
            let old = leaf_ref.value();
            undo.values.extend_from_slice(old);
            undo.steps.push(Step::Valued(leaf, old.len() as u8));
        }
        leaf_ref.set(value);
    }

    /// Replaces the node that a slot holds.
    pub(super) fn hold(&mut self, place: Place, id: NodeId) {
        self.note(|trie| Step::Held(place, trie.slot_id(place)));
        self.set_slot_id(place, id);
    }

    /// Inserts a child into a branch.
    pub(super) fn insert_child(&mut self, branch: u32, nibble: u8, slot: Slot) {
        self.note(|_| Step::Inserted(branch, nibble));
        self.branches.insert_child(branch, nibble, slot);
    }

    /// Removes a child from a branch.
    pub(super) fn remove_child(&mut self, branch: u32, nibble: u8) {
        let slot = self.branches.remove_child(branch, nibble);
        self.note(|_| Step::Removed(branch, nibble, slot));
    }

    fn unmark(&mut self, place: Place) {
        match place {
            Place::Root => self.root.dirty = false,
            Place::Branch(index, nibble) => self.branches.get_mut(index).unmark(nibble),
            Place::Extension(index) => self.extensions.get_mut(index).child.dirty = false,
        }
    }
}
