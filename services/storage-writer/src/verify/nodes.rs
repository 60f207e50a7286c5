//! Comparison of stored trie nodes with recomputed ones in one pass over the table, in memory that
//! does not grow with the trie.
//!
//! Nodes are recomputed children before parents; the table has them in path order, parents first.
//! But the nodes below one path of [`GROUP_DEPTH`] nibbles are contiguous in both, and those groups
//! come in the same order in both. So groups are compared one by one. The few nodes above them are
//! compared at the end of their trie.

use super::{Difference, NodeFault};
use crate::Error;
use tandem_primitives::{B256, Bytes};
use tandem_store::{Cursor, Table};

/// Nibbles that the nodes of a group share.
const GROUP_DEPTH: usize = 3;

/// Key bytes and RLP.
type Node = (Vec<u8>, Vec<u8>);

/// Key bytes, and the RLP that belongs there; `None` when no node belongs there.
pub type Fix = (Vec<u8>, Option<Vec<u8>>);

/// Comparison of one shard's nodes in one table.
pub struct NodeCheck<'a, T: Table> {
    stored: Cursor<'a, T>,
    /// Bytes of a key before its path.
    owner_len: usize,
    group: Vec<Node>,
    shallow: Vec<Node>,
    stored_shallow: Vec<Node>,
    /// First difference in the order of finding.
    pub first: Option<Difference>,
    /// Number of differences.
    pub differences: u64,
    /// Number of correct nodes.
    pub nodes: u64,
    /// Fixes for the differences since this was last emptied; `None` when they are not wanted.
    pub fixes: Option<Vec<Fix>>,
}

impl<'a, T: Table<Read = Bytes>> NodeCheck<'a, T> {
    /// Creates a comparison. `stored` goes over the shard's part of the table; keys have
    /// `owner_len` bytes of owner.
    pub fn new(stored: Cursor<'a, T>, owner_len: usize) -> Self {
        Self {
            stored,
            owner_len,
            group: Vec::new(),
            shallow: Vec::new(),
            stored_shallow: Vec::new(),
            first: None,
            differences: 0,
            nodes: 0,
            fixes: None,
        }
    }

    /// Collects fixes for the differences, if they are wanted.
    pub fn fixing(mut self, wanted: bool) -> Self {
        self.fixes = wanted.then(Vec::new);
        self
    }

    fn depth(&self, key: &[u8]) -> usize {
        key.len().saturating_sub(self.owner_len)
    }

    /// Adds a recomputed node.
    pub fn node(&mut self, key: Vec<u8>, rlp: &[u8]) -> Result<(), Error> {
        if self.depth(&key) <= GROUP_DEPTH {
            self.shallow.push((key, rlp.to_vec()));
            return Ok(());
        }
        let shared = self.owner_len + GROUP_DEPTH;
        if self.group.first().is_some_and(|(first, _)| first[..shared] != key[..shared]) {
            self.close_group()?;
        }
        self.group.push((key, rlp.to_vec()));
        Ok(())
    }

    /// Ends the trie whose keys start with `prefix`.
    pub fn end_trie(&mut self, prefix: &[u8]) -> Result<(), Error> {
        self.close_group()?;
        self.pass_stored(|key| key.starts_with(prefix) || key < prefix)?;
        let mut shallow = std::mem::take(&mut self.shallow);
        let mut stored_shallow = std::mem::take(&mut self.stored_shallow);
        shallow.sort_unstable();
        let mut stored = stored_shallow.drain(..).peekable();
        for (key, rlp) in shallow.drain(..) {
            while let Some((extra, _)) = stored.next_if(|(have, _)| *have < key) {
                self.differ(&extra, NodeFault::Extra, None);
            }
            match stored.next_if(|(have, _)| *have == key) {
                Some((_, have)) => self.compare(&key, &have, &rlp),
                None => self.differ(&key, NodeFault::Missing, Some(&rlp)),
            }
        }
        for (extra, _) in stored {
            self.differ(&extra, NodeFault::Extra, None);
        }
        Ok(())
    }

    /// Ends the comparison: every node left in the table is extra.
    pub fn end(&mut self) -> Result<(), Error> {
        self.pass_stored(|_| true)?;
        for (extra, _) in std::mem::take(&mut self.stored_shallow) {
            self.differ(&extra, NodeFault::Extra, None);
        }
        Ok(())
    }

    fn close_group(&mut self) -> Result<(), Error> {
        let mut group = std::mem::take(&mut self.group);
        group.sort_unstable();
        for (key, rlp) in group.drain(..) {
            self.pass_stored(|have| have < key.as_slice())?;
            let same = match self.stored.entry()? {
                Some((have, value)) if have == key => Some(value == rlp),
                _ => None,
            };
            match same {
                Some(true) => self.nodes += 1,
                Some(false) => self.differ(&key, NodeFault::Different, Some(&rlp)),
                None => self.differ(&key, NodeFault::Missing, Some(&rlp)),
            }
            if same.is_some() {
                self.stored.advance();
            }
        }
        self.group = group;
        Ok(())
    }

    /// Passes stored nodes for as long as `passes` accepts their keys. Keeps shallow nodes for the
    /// end of their trie; the others are not in the trie.
    fn pass_stored(&mut self, passes: impl Fn(&[u8]) -> bool) -> Result<(), Error> {
        while let Some((key, value)) = self.stored.entry()? {
            if !passes(key) {
                break;
            }
            let (key, value) = (key.to_vec(), value.to_vec());
            if self.depth(&key) <= GROUP_DEPTH {
                self.stored_shallow.push((key, value));
            } else {
                self.differ(&key, NodeFault::Extra, None);
            }
            self.stored.advance();
        }
        Ok(())
    }

    fn compare(&mut self, key: &[u8], have: &[u8], want: &[u8]) {
        if have == want {
            self.nodes += 1;
        } else {
            self.differ(key, NodeFault::Different, Some(want));
        }
    }

    fn differ(&mut self, key: &[u8], fault: NodeFault, want: Option<&[u8]>) {
        self.differences += 1;
        if let Some(fixes) = &mut self.fixes {
            fixes.push((key.to_vec(), want.map(<[u8]>::to_vec)));
        }
        let (owner, path) = key.split_at(self.owner_len.min(key.len()));
        let owner = B256::try_from(owner).ok();
        self.first.get_or_insert_with(|| Difference::Node { owner, path: path.to_vec(), fault });
    }
}
