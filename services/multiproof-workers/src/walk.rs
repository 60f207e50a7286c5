//! Following one key from node to node.

use tandem_primitives::WalkTarget;

/// One key being walked to.
pub struct Walk {
    pub target: WalkTarget,
    path: [u8; 64],
    depth: usize,
    pub done: bool,
}

impl Walk {
    pub fn new(target: WalkTarget) -> Self {
        let mut path = [0; 64];
        for (pair, byte) in path.chunks_exact_mut(2).zip(target.key) {
            pair[0] = byte >> 4;
            pair[1] = byte & 15;
        }
        Self { target, path, depth: usize::from(target.from_depth), done: false }
    }

    pub fn path(&self) -> &[u8] {
        &self.path[..self.depth]
    }

    /// What is left of the way.
    pub fn target(&self) -> WalkTarget {
        WalkTarget { from_depth: self.depth as u8, ..self.target }
    }

    /// Goes on to the child on the way to the key, or ends.
    pub fn descend(&mut self, rlp: &[u8]) {
        match tandem_trie::child_depth(rlp, self.depth, &self.path) {
            Some(depth) => self.depth = depth,
            None => self.done = true,
        }
    }
}
