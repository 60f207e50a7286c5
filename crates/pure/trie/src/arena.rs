//! Storage of nodes: one growing array per kind, with reuse of freed places.

use crate::{
    encode::{HASH_LEN, Room, write_branch},
    node::{Before, NO_ENTRY, NodeId, Reference, Slot},
};
use tandem_primitives::B256;

/// Prefetches an item that is needed soon, as far as it lies on two cache lines at most.
#[inline]
pub fn prefetch<T>(item: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let first = std::ptr::from_ref(item).cast::<i8>();
        let last = first.wrapping_add(size_of::<T>().saturating_sub(1));
        // SAFETY: a prefetch reads nothing and faults at no address.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(first);
            _mm_prefetch::<_MM_HINT_T0>(last);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = item;
}

/// Nodes of one kind by index.
#[derive(Clone, Debug)]
pub struct Arena<T> {
    items: Vec<T>,
    free: Vec<u32>,
}

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Self { items: Vec::new(), free: Vec::new() }
    }
}

impl<T> Arena<T> {
    pub fn insert(&mut self, item: T) -> u32 {
        if let Some(index) = self.free.pop() {
            self.items[index as usize] = item;
            return index;
        }
        self.items.push(item);
        self.items.len() as u32 - 1
    }

    /// Makes room for `items` more items.
    pub fn reserve(&mut self, items: usize) {
        self.items.reserve(items.saturating_sub(self.free.len()));
    }

    /// Frees the place. The item stays there until the place is used again.
    pub fn remove(&mut self, index: u32) {
        self.free.push(index);
    }

    #[inline]
    pub fn get(&self, index: u32) -> &T {
        &self.items[index as usize]
    }

    #[inline]
    pub fn get_mut(&mut self, index: u32) -> &mut T {
        &mut self.items[index as usize]
    }

    pub fn byte_len(&self) -> usize {
        (self.items.len() - self.free.len()) * size_of::<T>()
    }
}

/// Branch: the ids of its children, and the location of the references to them. References exist
/// only for existing children, in the order of the nibbles. A clean child therefore costs 36 bytes,
/// and encoding the branch touches none of its memory.
#[derive(Clone, Debug)]
pub struct Branch {
    children: [NodeId; 16],
    lens: [u8; 16],
    block: u32,
    pub used: u32,
    /// First entry of the children that were hashed ahead.
    pub entry: u32,
    present: u16,
    dirty: u16,
    /// Approximate number of children hashed ahead since the branch itself was hashed.
    pub stale: u8,
    /// Size class: the block holds `2 << class` references.
    class: u8,
}

impl Branch {
    /// Returns the nibbles at which there are children, one bit each.
    #[inline]
    pub fn present(&self) -> u16 {
        self.present
    }

    /// Returns the nibbles of dirty children.
    #[inline]
    pub fn dirty(&self) -> u16 {
        self.dirty
    }

    #[inline]
    pub fn child(&self, nibble: u8) -> NodeId {
        self.children[usize::from(nibble)]
    }

    /// Marks a child dirty. Returns false when it was dirty already.
    #[inline]
    pub fn mark(&mut self, nibble: u8) -> bool {
        let bit = 1 << nibble;
        let new = self.dirty & bit == 0;
        self.dirty |= bit;
        new
    }

    #[inline]
    pub fn unmark(&mut self, nibble: u8) {
        self.dirty &= !(1 << nibble);
    }

    #[inline]
    pub fn set_child(&mut self, nibble: u8, id: NodeId) {
        self.children[usize::from(nibble)] = id;
    }

    /// Returns the position of a child's reference in the block.
    #[inline]
    fn rank(&self, nibble: u8) -> usize {
        (self.present & ((1 << nibble) - 1)).count_ones() as usize
    }

    fn count(&self) -> usize {
        self.present.count_ones() as usize
    }
}

/// Branches of one trie with the references they hold.
#[derive(Clone, Debug, Default)]
pub struct Branches {
    nodes: Arena<Branch>,
    references: Vec<[u8; 32]>,
    /// Free blocks of 2, 4, 8 and 16 references.
    free: [Vec<u32>; 4],
}

impl Branches {
    /// Inserts a branch without children, with room for `children` of them.
    pub fn insert(&mut self, children: u32, used: u32) -> u32 {
        self.insert_of(&[NodeId::NONE; 16], 0, children, used)
    }

    /// Inserts a branch with these children, all of them new.
    #[inline]
    pub fn insert_grown(&mut self, children: &[NodeId; 16], used: u32) -> u32 {
        let present = (0..16)
            .fold(0, |bits, nibble| bits | u16::from(children[nibble] != NodeId::NONE) << nibble);
        self.insert_of(children, present, present.count_ones(), used)
    }

    /// Inserts a branch with room for `room` children. Its present children count as new.
    #[inline]
    fn insert_of(&mut self, children: &[NodeId; 16], present: u16, room: u32, used: u32) -> u32 {
        let class = match room {
            0..=2 => 0,
            3..=4 => 1,
            5..=8 => 2,
            _ => 3,
        };
        let block = self.allocate(class);
        self.nodes.insert(Branch {
            children: *children,
            lens: [0; 16],
            block,
            used,
            entry: NO_ENTRY,
            present,
            dirty: present,
            stale: 0,
            class,
        })
    }

    /// Frees a branch without touching its children.
    pub fn remove(&mut self, index: u32) {
        let branch = self.nodes.get(index);
        self.free[usize::from(branch.class)].push(branch.block);
        self.nodes.remove(index);
    }

    #[inline]
    pub fn get(&self, index: u32) -> &Branch {
        self.nodes.get(index)
    }

    #[inline]
    pub fn get_mut(&mut self, index: u32) -> &mut Branch {
        self.nodes.get_mut(index)
    }

    /// Returns the slot at a nibble, [`Slot::EMPTY`] when there is no child.
    pub fn slot(&self, index: u32, nibble: u8) -> Slot {
        let branch = self.nodes.get(index);
        if branch.present & (1 << nibble) == 0 {
            return Slot::EMPTY;
        }
        Slot {
            id: branch.child(nibble),
            dirty: branch.dirty & (1 << nibble) != 0,
            len: branch.lens[usize::from(nibble)],
            entry: NO_ENTRY,
            reference: self.references[branch.block as usize + branch.rank(nibble)],
        }
    }

    /// Inserts a child at a nibble that has none.
    pub fn insert_child(&mut self, index: u32, nibble: u8, slot: Slot) {
        let (count, class, block) = {
            let branch = self.nodes.get(index);
            (branch.count(), branch.class, branch.block as usize)
        };
        if count == 2 << class {
            let grown = self.allocate(class + 1);
            self.references.copy_within(block..block + count, grown as usize);
            self.free[usize::from(class)].push(block as u32);
            let branch = self.nodes.get_mut(index);
            (branch.block, branch.class) = (grown, class + 1);
        }
        let branch = self.nodes.get_mut(index);
        let (block, rank) = (branch.block as usize, branch.rank(nibble));
        self.references.copy_within(block + rank..block + count, block + rank + 1);
        self.references[block + rank] = slot.reference;
        branch.present |= 1 << nibble;
        branch.dirty |= u16::from(slot.dirty) << nibble;
        branch.lens[usize::from(nibble)] = slot.len;
        branch.set_child(nibble, slot.id);
    }

    /// Removes a child and returns its slot.
    pub fn remove_child(&mut self, index: u32, nibble: u8) -> Slot {
        let slot = self.slot(index, nibble);
        let branch = self.nodes.get_mut(index);
        let (block, rank, count) = (branch.block as usize, branch.rank(nibble), branch.count());
        self.references.copy_within(block + rank + 1..block + count, block + rank);
        branch.present &= !(1 << nibble);
        branch.dirty &= !(1 << nibble);
        branch.lens[usize::from(nibble)] = 0;
        branch.set_child(nibble, NodeId::NONE);
        slot
    }

    /// Sets the hash of the node that stood in the place of a new child.
    pub fn set_before(&mut self, index: u32, nibble: u8, hash: &B256) {
        let branch = self.nodes.get_mut(index);
        branch.lens[usize::from(nibble)] = HASH_LEN;
        self.references[branch.block as usize + branch.rank(nibble)] = hash.0;
    }

    /// Sets the reference of a child and marks the child clean.
    #[inline]
    pub fn settle(&mut self, index: u32, nibble: u8, reference: Reference<'_>) -> Before {
        let branch = self.nodes.get_mut(index);
        let at = branch.block as usize + branch.rank(nibble);
        branch.dirty &= !(1 << nibble);
        reference.replace(&mut branch.lens[usize::from(nibble)], &mut self.references[at])
    }

    /// Writes a branch's RLP from `at` on and returns its end. All its children must be clean.
    #[inline]
    pub fn write(&self, index: u32, out: &mut Room, at: usize) -> usize {
        let branch = self.nodes.get(index);
        let block = branch.block as usize;
        let references = &self.references[block..block + branch.count()];
        write_branch(branch.present, &branch.lens, references, out, at)
    }

    /// Returns the number of bytes that a branch occupies.
    pub fn branch_byte_len(&self, index: u32) -> usize {
        size_of::<Branch>() + (64 << self.nodes.get(index).class)
    }

    pub fn byte_len(&self) -> usize {
        let free: usize =
            self.free.iter().enumerate().map(|(class, blocks)| blocks.len() * (64 << class)).sum();
        self.nodes.byte_len() + self.references.len() * 32 - free
    }

    fn allocate(&mut self, class: u8) -> u32 {
        if let Some(block) = self.free[usize::from(class)].pop() {
            return block;
        }
        let block = self.references.len();
        self.references.resize(block + (2 << class), [0; 32]);
        block as u32
    }
}
