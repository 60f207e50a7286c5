use crate::{Shard, ShardSet};
use alloy_primitives::{B256, Bytes};

/// Top node of one shard's subtrie, as RLP, or `None` when the shard holds no account.
///
/// The node stands at path `[nibble]` of the account trie. It is stored there even where the root
/// of the account trie merges it (all accounts share their first nibble). A shard can therefore
/// read and write its own nodes without knowing the other shards.
pub type SubtrieRoot = Option<Bytes>;

/// Change of one trie node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeChange<'a> {
    /// Hashed address of the account that owns the storage trie, `None` for the account trie.
    pub owner: Option<B256>,
    /// Path from the root, 0 to 64 nibbles, one nibble (0 to 15) per byte.
    pub path: &'a [u8],
    /// RLP of the node, `None` when the node at this path is deleted.
    pub rlp: Option<&'a [u8]>,
}

/// Trie nodes that a block changed, for one or more shards. All paths and RLP share one buffer, so
/// a diff of thousands of nodes needs only a handful of allocations.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TrieDiff {
    /// Storage tries that were wiped as a whole. Their old nodes are removed **before** the changes
    /// below are written.
    pub wiped: Vec<B256>,
    owners: Vec<Option<B256>>,
    entries: Vec<Entry>,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    owner: u32,
    start: u32,
    /// `u16::MAX` marks a deleted node. No trie node is nearly that long: a branch without a value
    /// has at most 532 bytes, and secure tries have no values in branches.
    rlp_len: u16,
    path_len: u8,
}

const DELETED: u16 = u16::MAX;

impl NodeChange<'_> {
    /// Returns the shard that holds the node, `None` for the root of the account trie.
    pub fn shard(&self) -> Option<Shard> {
        match &self.owner {
            Some(owner) => Some(Shard::of(owner)),
            None => Shard::from_nibble(*self.path.first()?),
        }
    }
}

impl TrieDiff {
    /// Returns the part of the diff that concerns these shards.
    pub fn of_shards(&self, shards: ShardSet) -> Self {
        let of_them = |owner: &&B256| shards.contains(Shard::of(owner));
        let mut part =
            Self { wiped: self.wiped.iter().filter(of_them).copied().collect(), ..Self::default() };
        for change in self.iter() {
            if change.shard().is_some_and(|shard| shards.contains(shard)) {
                part.push(change);
            }
        }
        part
    }

    /// Appends a change. Consecutive changes of one trie share their owner.
    ///
    /// # Panics
    /// Panics if the path has more than 64 nibbles or the node more than 65,534 bytes. Tries of
    /// 32-byte keys and values never reach either limit.
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

    /// Concatenates several diffs in order, including their wiped tries.
    pub fn concat<'a>(diffs: impl Iterator<Item = &'a TrieDiff> + Clone) -> Self {
        let sum = |count: fn(&TrieDiff) -> usize| diffs.clone().map(count).sum();
        let mut all = Self {
            wiped: Vec::with_capacity(sum(|diff| diff.wiped.len())),
            owners: Vec::with_capacity(sum(|diff| diff.owners.len())),
            entries: Vec::with_capacity(sum(|diff| diff.entries.len())),
            bytes: Vec::with_capacity(sum(|diff| diff.bytes.len())),
        };
        diffs.for_each(|diff| all.append(diff));
        all
    }

    /// Reserves room for `changes` more changes. `bytes` counts the bytes of their paths (one byte
    /// per nibble) and nodes together.
    pub fn reserve(&mut self, changes: usize, bytes: usize) {
        self.entries.reserve(changes);
        self.bytes.reserve(bytes);
    }

    /// Appends several changed nodes of one trie. `bytes` holds the path and the RLP of each node
    /// in turn, and `lens` the length of each path and RLP.
    ///
    /// # Panics
    /// Panics if the lengths do not add up to the bytes, and where [`push`](Self::push) does.
    pub fn extend(
        &mut self,
        owner: Option<B256>,
        bytes: &[u8],
        lens: impl IntoIterator<Item = (u8, u16)>,
    ) {
        if self.owners.last() != Some(&owner) {
            self.owners.push(owner);
        }
        let owner = self.owners.len() as u32 - 1;
        let mut start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.entries.extend(lens.into_iter().map(|(path_len, rlp_len)| {
            assert!(path_len <= 64, "a path has at most 64 nibbles");
            assert!(rlp_len < DELETED, "a trie node is under 64 KiB");
            let entry = Entry { owner, start: start as u32, rlp_len, path_len };
            start += usize::from(path_len) + usize::from(rlp_len);
            entry
        }));
        assert_eq!(start, self.bytes.len(), "the changes take all of the bytes");
    }

    /// Appends another diff, including its wiped tries.
    pub fn append(&mut self, other: &TrieDiff) {
        self.wiped.extend_from_slice(&other.wiped);
        self.bytes.reserve(other.bytes.len());
        self.entries.reserve(other.entries.len());
        // If the last owner here is the first owner there, both share one entry, as in `push`.
        let goes_on = !self.owners.is_empty() && self.owners.last() == other.owners.first();
        let first = self.owners.len() as u32 - u32::from(goes_on);
        self.owners.extend_from_slice(&other.owners[usize::from(goes_on)..]);
        for entry in &other.entries {
            // Copied entry by entry, so that bytes of removed entries are left out.
            let start = self.bytes.len() as u32;
            self.bytes.extend_from_slice(other.bytes_of(entry));
            self.entries.push(Entry { owner: first + entry.owner, start, ..*entry });
        }
    }

    /// Replaces the RLP of a change by another one of the same length. Returns false and changes
    /// nothing when the lengths differ or the change is a deletion.
    pub fn overwrite(&mut self, index: usize, rlp: &[u8]) -> bool {
        let Some(entry) = self.entries.get(index) else { return false };
        if usize::from(entry.rlp_len) != rlp.len() || entry.rlp_len == DELETED {
            return false;
        }
        let start = entry.start as usize + usize::from(entry.path_len);
        self.bytes[start..start + rlp.len()].copy_from_slice(rlp);
        true
    }

    /// Removes the changes at these positions, which must ascend. Their bytes stay in the buffer
    /// until no change is left.
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

    /// Clears the diff and keeps its allocations for reuse.
    pub fn clear(&mut self) {
        self.wiped.clear();
        self.owners.clear();
        self.entries.clear();
        self.bytes.clear();
    }

    /// Returns the number of changed nodes, without wiped tries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.wiped.is_empty()
    }

    /// Returns the approximate number of bytes that the diff occupies in memory.
    pub fn byte_len(&self) -> usize {
        self.bytes.len() + self.entries.len() * size_of::<Entry>() + self.owners.len() * 33
    }

    /// Returns the change at this position, in the order of pushing, or `None` past the end.
    pub fn get(&self, index: usize) -> Option<NodeChange<'_>> {
        self.entries.get(index).map(|entry| self.change(entry))
    }

    /// Returns the changes in the order in which they were pushed.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = NodeChange<'_>> + Clone {
        self.entries.iter().map(|entry| self.change(entry))
    }

    /// Returns the bytes of path and RLP.
    fn bytes_of(&self, entry: &Entry) -> &[u8] {
        let rlp_len = if entry.rlp_len == DELETED { 0 } else { usize::from(entry.rlp_len) };
        let start = entry.start as usize;
        &self.bytes[start..start + usize::from(entry.path_len) + rlp_len]
    }

    fn change(&self, entry: &Entry) -> NodeChange<'_> {
        let (path, rlp) = self.bytes_of(entry).split_at(usize::from(entry.path_len));
        NodeChange {
            owner: self.owners[entry.owner as usize],
            path,
            rlp: (entry.rlp_len != DELETED).then_some(rlp),
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

        assert_eq!(TrieDiff::concat([&diff, &diff].into_iter()).len(), 8);
        let mut twice = diff.clone();
        twice.append(&diff);
        assert_eq!(twice.len(), 8);
        assert!(twice.iter().eq(changes.iter().chain(&changes).copied()));
    }

    #[test]
    fn a_diff_is_split_by_shards() {
        let (low, high) = (B256::repeat_byte(0x31), B256::repeat_byte(0xf1));
        let changes = [
            NodeChange { owner: None, path: &[], rlp: Some(&[9]) },
            NodeChange { owner: None, path: &[3], rlp: Some(&[1]) },
            NodeChange { owner: Some(low), path: &[], rlp: Some(&[2]) },
            NodeChange { owner: None, path: &[15, 1], rlp: None },
            NodeChange { owner: Some(high), path: &[15], rlp: Some(&[3]) },
        ];
        let mut diff = TrieDiff { wiped: vec![low, high], ..TrieDiff::default() };
        changes.iter().for_each(|&change| diff.push(change));
        let third: ShardSet = Shard::from_nibble(3).into_iter().collect();
        let part = diff.of_shards(third);
        assert_eq!(part.wiped, [low]);
        assert!(part.iter().eq(changes[1..3].iter().copied()));
        let rest = diff.of_shards(ShardSet::ALL.difference(third));
        assert_eq!(rest.wiped, [high]);
        assert!(rest.iter().eq(changes[3..].iter().copied()));
        assert!(diff.of_shards(ShardSet::EMPTY).is_empty());
    }

    #[test]
    fn changes_in_one_piece_are_as_one_by_one() {
        let (a, b) = (Some(B256::repeat_byte(1)), None);
        let change = |owner, path, rlp| NodeChange { owner, path, rlp: Some(rlp) };
        let changes = [
            change(a, &[1, 2][..], &[3, 4, 5][..]),
            change(a, &[], &[6]),
            change(b, &[7; 64], &[8; 532]),
            change(b, &[9], &[]),
        ];
        let (mut one_by_one, mut pieces) = (TrieDiff::default(), TrieDiff::default());
        pieces.reserve(4, 700);
        for piece in [&changes[..1], &changes[1..2], &changes[2..]] {
            piece.iter().for_each(|&change| one_by_one.push(change));
            let bytes: Vec<u8> =
                piece.iter().flat_map(|c| [c.path, c.rlp.unwrap_or_default()].concat()).collect();
            let lens =
                piece.iter().map(|c| (c.path.len() as u8, c.rlp.unwrap_or_default().len() as u16));
            pieces.extend(piece[0].owner, &bytes, lens);
        }
        assert_eq!(pieces, one_by_one);
        assert!(pieces.iter().eq(changes));
    }

    #[test]
    #[should_panic = "the changes take all of the bytes"]
    fn a_piece_has_no_bytes_beside_its_changes() {
        TrieDiff::default().extend(None, &[1, 2, 3], [(1, 1)]);
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
