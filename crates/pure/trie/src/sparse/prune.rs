//! Eviction of nodes that have not been used for long.

use super::SparseTrie;
use crate::node::{Extension, Kind, Leaf, NodeId, Slot};

/// Bytes of nodes by age. Nodes last used `n` stamps ago count at index `n`, all older ones at the
/// last index.
#[derive(Debug)]
pub struct Ages([usize; Self::OLDEST + 1]);

impl Default for Ages {
    fn default() -> Self {
        Self([0; Self::OLDEST + 1])
    }
}

impl Ages {
    const OLDEST: usize = 1023;

    pub fn add(&mut self, age: u32, bytes: usize) {
        self.0[(age as usize).min(Self::OLDEST)] += bytes;
    }

    /// Returns the age from which nodes must be evicted so that at most `bytes_max` stay.
    pub fn cutoff(&self, bytes_max: usize) -> u32 {
        let mut kept = 0;
        for (age, bytes) in self.0.iter().enumerate() {
            kept += bytes;
            if kept > bytes_max {
                return age as u32;
            }
        }
        u32::MAX
    }
}

impl<const V: usize> SparseTrie<V> {
    /// Blinds every node that stands alone and was last used before the stamp `oldest`. The top
    /// node stays if `keep_top`. A trie with changes stays unchanged. The remaining nodes move
    /// together into new memory.
    pub fn prune(&mut self, oldest: u32, keep_top: bool) {
        if self.root.dirty || !self.ahead.is_empty() {
            return;
        }
        let mut kept = Self { root: self.root, prefix: self.prefix, ..Self::empty(None) };
        (kept.base, kept.now) = (self.base, self.now);
        if keep_top || self.used(self.root.id).is_some_and(|used| used >= oldest) {
            kept.root.id = self.copy(self.root.id, oldest, &mut kept);
        } else if self.root.id != NodeId::NONE {
            kept.root.id = NodeId::BLIND;
        }
        *self = kept;
    }

    /// Adds the bytes of all nodes, by age.
    pub(crate) fn ages(&self, ages: &mut Ages) {
        self.node_ages(self.root.id, ages);
    }

    fn node_ages(&self, id: NodeId, ages: &mut Ages) {
        let Some(used) = self.used(id) else { return };
        let age = self.now.wrapping_sub(used);
        match id.kind() {
            Kind::None | Kind::Blind => {}
            Kind::Leaf(_) => ages.add(age, size_of::<Leaf<V>>()),
            Kind::Extension(index) => {
                ages.add(age, size_of::<Extension>());
                self.node_ages(self.extensions.get(index).child.id, ages);
            }
            Kind::Branch(index) => {
                ages.add(age, self.branches.branch_byte_len(index));
                for nibble in 0..16 {
                    self.node_ages(self.branches.get(index).child(nibble), ages);
                }
            }
        }
    }

    /// Returns the stamp of a node, or `None` when it is not in memory.
    fn used(&self, id: NodeId) -> Option<u32> {
        match id.kind() {
            Kind::None | Kind::Blind => None,
            Kind::Leaf(index) => Some(self.leaves.get(index).used),
            Kind::Extension(index) => Some(self.extensions.get(index).used),
            Kind::Branch(index) => Some(self.branches.get(index).used),
        }
    }

    fn copy(&self, id: NodeId, oldest: u32, into: &mut Self) -> NodeId {
        match id.kind() {
            Kind::None | Kind::Blind => id,
            Kind::Leaf(index) => NodeId::leaf(into.leaves.insert(self.leaves.get(index).clone())),
            Kind::Extension(index) => {
                let mut extension = self.extensions.get(index).clone();
                extension.child = self.copy_child(extension.child, oldest, into);
                NodeId::extension(into.extensions.insert(extension))
            }
            Kind::Branch(index) => {
                let branch = self.branches.get(index);
                let copy = into.branches.insert(branch.present().count_ones(), branch.used);
                for nibble in 0..16 {
                    let slot = self.branches.slot(index, nibble);
                    if slot.id != NodeId::NONE {
                        let slot = self.copy_child(slot, oldest, into);
                        into.branches.insert_child(copy, nibble, slot);
                    }
                }
                NodeId::branch(copy)
            }
        }
    }

    /// Copies a child unless it is old. Embedded nodes stay with their parent: they cannot be read
    /// from anywhere else.
    fn copy_child(&self, slot: Slot, oldest: u32, into: &mut Self) -> Slot {
        let stands_alone = slot.hash().is_some();
        let id = if stands_alone && self.used(slot.id).is_some_and(|used| used < oldest) {
            match slot.id.kind() {
                Kind::Branch(_) => NodeId::BLIND_BRANCH,
                _ => NodeId::BLIND,
            }
        } else {
            self.copy(slot.id, oldest, into)
        };
        Slot { id, ..slot }
    }
}
