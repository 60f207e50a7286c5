use alloy_primitives::{B256, Bytes};

/// The top node of one shard's subtrie, as RLP, or `None` when the shard holds no account.
///
/// It stands at path `[nibble]` of the account trie and is stored there even where the account
/// trie's root merges it (a trie whose accounts all share their first nibble), so that a shard
/// reads and writes its own nodes without knowing the others.
pub type SubtrieRoot = Option<Bytes>;

/// One changed trie node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeChange<'a> {
    /// Hashed address of the account whose storage trie this is, `None` for the account trie.
    pub owner: Option<B256>,
    /// Path from the root, one nibble (0 to 15) a byte, 0 to 64 of them.
    pub path: &'a [u8],
    /// The node's RLP, `None` when no node stands at this path any more.
    pub rlp: Option<&'a [u8]>,
}

/// The trie nodes that a block changed, for one shard or several: paths and RLP in one buffer, so
/// a diff of thousands of nodes is a handful of allocations.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TrieDiff {
    /// Storage tries that were wiped as a whole. Their old nodes go **before** the changes below
    /// are written.
    pub wiped: Vec<B256>,
    owners: Vec<Option<B256>>,
    entries: Vec<Entry>,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    owner: u32,
    start: u32,
    /// `u16::MAX` marks a deleted node. No trie node comes near: a branch is at most 532 bytes
    /// without a value, and secure tries have none.
    rlp_len: u16,
    path_len: u8,
}

const DELETED: u16 = u16::MAX;

impl TrieDiff {
    /// Appends a change. Consecutive changes of one trie share their owner.
    ///
    /// # Panics
    /// When the path has more than 64 nibbles or the node more than 65,534 bytes: no trie of
    /// 32-byte keys and values makes either.
    pub fn push(&mut self, change: NodeChange<'_>) {
        assert!(change.path.len() <= 64, "a path has at most 64 nibbles");
        if self.owners.last() != Some(&change.owner) {
            self.owners.push(change.owner);
        }
        let start = self.bytes.len() as u32;
        self.bytes.reserve(change.path.len() + change.rlp.map_or(0, <[u8]>::len));
        self.bytes.extend_from_slice(change.path);
        let rlp_len = match change.rlp {
            None => DELETED,
            Some(rlp) => {
                assert!(rlp.len() < usize::from(DELETED), "a trie node is under 64 KiB");
                self.bytes.extend_from_slice(rlp);
                rlp.len() as u16
            }
        };
        let owner = self.owners.len() as u32 - 1;
        self.entries.push(Entry { owner, start, rlp_len, path_len: change.path.len() as u8 });
    }

    /// Appends all of another diff, its wipes included.
    pub fn append(&mut self, other: &TrieDiff) {
        self.wiped.extend_from_slice(&other.wiped);
        self.bytes.reserve(other.bytes.len());
        self.entries.reserve(other.entries.len());
        for change in other.iter() {
            self.push(change);
        }
    }

    /// Puts another RLP of the same length in the place of a change's; false, and nothing done,
    /// when the lengths differ or the change is a deletion.
    pub fn overwrite(&mut self, index: usize, rlp: &[u8]) -> bool {
        let Some(entry) = self.entries.get(index) else { return false };
        if usize::from(entry.rlp_len) != rlp.len() || entry.rlp_len == DELETED {
            return false;
        }
        let start = entry.start as usize + usize::from(entry.path_len);
        self.bytes[start..start + rlp.len()].copy_from_slice(rlp);
        true
    }

    /// Takes changes out, given their positions in ascending order. Their bytes stay in the buffer
    /// while any other does.
    pub fn remove(&mut self, indices: &[u32]) {
        let Some(&first) = indices.first() else { return };
        let (mut indices, mut at) = (indices.iter().peekable(), first);
        let mut kept = first as usize;
        while let Some(&entry) = self.entries.get(at as usize) {
            if indices.next_if(|&&index| index == at).is_none() {
                self.entries[kept] = entry;
                kept += 1;
            }
            at += 1;
        }
        self.entries.truncate(kept);
        if kept == 0 {
            (self.owners, self.bytes) = Default::default();
        }
    }

    /// Number of changed nodes, wipes not counted.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.wiped.is_empty()
    }

    /// Bytes that the diff occupies in memory, about.
    pub fn byte_len(&self) -> usize {
        self.bytes.len() + self.entries.len() * size_of::<Entry>() + self.owners.len() * 33
    }

    /// The change at this position of the order of pushing, `None` past the end.
    pub fn get(&self, index: usize) -> Option<NodeChange<'_>> {
        self.entries.get(index).map(|entry| self.change(entry))
    }

    /// The changes in the order in which they were pushed.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = NodeChange<'_>> {
        self.entries.iter().map(|entry| self.change(entry))
    }

    fn change(&self, entry: &Entry) -> NodeChange<'_> {
        let path_start = entry.start as usize;
        let rlp_start = path_start + usize::from(entry.path_len);
        let rlp = (entry.rlp_len != DELETED)
            .then(|| &self.bytes[rlp_start..rlp_start + usize::from(entry.rlp_len)]);
        NodeChange {
            owner: self.owners[entry.owner as usize],
            path: &self.bytes[path_start..rlp_start],
            rlp,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_come_back_in_order() {
        let owner = Some(B256::repeat_byte(1));
        let changes = [
            NodeChange { owner: None, path: &[3], rlp: Some(&[1, 2, 3]) },
            NodeChange { owner: None, path: &[3, 4], rlp: None },
            NodeChange { owner, path: &[], rlp: Some(&[]) },
            NodeChange { owner: None, path: &[5; 64], rlp: Some(&[7; 532]) },
        ];
        let mut diff = TrieDiff::default();
        changes.iter().for_each(|&change| diff.push(change));
        assert_eq!(diff.iter().collect::<Vec<_>>(), changes);

        let mut twice = diff.clone();
        twice.append(&diff);
        assert_eq!(twice.len(), 8);
        assert!(twice.iter().eq(changes.iter().chain(&changes).copied()));
    }

    #[test]
    fn changes_are_overwritten_and_removed() {
        let change = |path, rlp| NodeChange { owner: None, path, rlp };
        let changes = [
            change(&[1], Some(&[1, 2, 3][..])),
            change(&[2], None),
            change(&[3], Some(&[4, 5][..])),
            change(&[4], Some(&[6][..])),
        ];
        let mut diff = TrieDiff::default();
        changes.iter().for_each(|&change| diff.push(change));
        assert!(!diff.overwrite(0, &[7, 8]));
        assert!(!diff.overwrite(1, &[]));
        assert!(!diff.overwrite(4, &[6]));
        assert!(diff.overwrite(2, &[7, 8]));
        assert_eq!(diff.get(2), Some(change(&[3], Some(&[7, 8]))));
        diff.remove(&[]);
        assert_eq!(diff.len(), 4);
        diff.remove(&[1, 3]);
        assert!(diff.iter().eq([changes[0], change(&[3], Some(&[7, 8]))]));
        diff.remove(&[0, 1]);
        assert!(diff.is_empty());
    }
}
