//! Trie nodes, trie diffs and walk targets.

use super::{
    error::{At, ConvertError, Reason},
    field::{at_most, count, hash_list, items, length, range, size, total},
};
use crate::{
    limits::{TRIE_DIFF_PART_BYTES, WALK_TARGETS_MAX},
    storage::TrieNode,
    wire::{storage_writer, types::v1},
};
use bytes::Bytes;
use std::{iter, sync::Arc};
use tandem_primitives::{B256, NodeChange, TrieDiff, WalkTarget};

/// Maximum number of nibbles in a path.
const PATH_MAX: u64 = 64;
/// Maximum size of a node in a trie diff, in bytes.
pub const NODE_BYTES_MAX: u64 = 65_534;

/// Columns of a growing [`v1::NodeList`].
struct NodeColumns {
    path_lengths: Vec<u8>,
    paths: Vec<u8>,
    node_sizes: Vec<u32>,
    nodes: Vec<u8>,
}

impl NodeColumns {
    /// Creates columns with room for these rows.
    fn for_rows<'a>(rows: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Self {
        let (mut count, mut paths, mut nodes) = (0, 0, 0);
        for (path, rlp) in rows {
            count += 1;
            paths += path.len();
            nodes += rlp.len();
        }
        Self {
            path_lengths: Vec::with_capacity(count),
            paths: Vec::with_capacity(paths),
            node_sizes: Vec::with_capacity(count),
            nodes: Vec::with_capacity(nodes),
        }
    }

    fn push(&mut self, path: &[u8], rlp: &[u8]) {
        // The receiver refuses a path whose length does not fit into one byte.
        self.path_lengths.push(u8::try_from(path.len()).unwrap_or(u8::MAX));
        self.paths.extend_from_slice(path);
        self.node_sizes.push(size(rlp.len()));
        self.nodes.extend_from_slice(rlp);
    }
}

impl From<NodeColumns> for v1::NodeList {
    fn from(columns: NodeColumns) -> Self {
        Self {
            path_lengths: columns.path_lengths.into(),
            paths: columns.paths.into(),
            node_sizes: columns.node_sizes,
            nodes: columns.nodes.into(),
        }
    }
}

/// Owners of storage tries, each with the number of consecutive items it owns.
#[derive(Default)]
struct Owners {
    hashes: Vec<u8>,
    counts: Vec<u32>,
}

impl Owners {
    /// Counts one more item of this owner.
    fn push(&mut self, owner: &B256) {
        match self.counts.last_mut() {
            Some(count) if self.hashes.ends_with(owner.as_slice()) => *count += 1,
            _ => {
                self.hashes.extend_from_slice(owner.as_slice());
                self.counts.push(1);
            }
        }
    }

    /// Returns the owner of each of `items_got` items.
    fn read<'a>(
        hashes: &'a [u8],
        counts: &'a [u32],
        items_got: usize,
    ) -> Result<impl Iterator<Item = B256> + 'a, ConvertError> {
        let owners = items::<32>(hashes).at("owners")?;
        count(owners.len() as u64, counts.len()).at("owner_counts")?;
        count(items_got as u64, usize::try_from(total(counts)).unwrap_or(usize::MAX))
            .at("owner_counts")?;
        let runs = owners.iter().zip(counts);
        Ok(runs.flat_map(|(owner, &count)| iter::repeat_n(owner.into(), count as usize)))
    }
}

/// Makes [`v1::TrieNodes`] from nodes in the order received; an empty RLP marks a deleted node.
fn node_columns<'a>(
    nodes: impl Iterator<Item = (Option<B256>, &'a [u8], &'a [u8])> + Clone,
) -> v1::TrieNodes {
    // A megabyte that grows step by step is copied several times.
    let [mut account_nodes, mut storage_nodes] = [false, true].map(|of_storage| {
        let rows = nodes.clone().filter(|(owner, ..)| owner.is_some() == of_storage);
        NodeColumns::for_rows(rows.map(|(_, path, rlp)| (path, rlp)))
    });
    let mut owners = Owners::default();
    for (owner, path, rlp) in nodes {
        match owner {
            None => account_nodes.push(path, rlp),
            Some(owner) => {
                owners.push(&owner);
                storage_nodes.push(path, rlp);
            }
        }
    }
    v1::TrieNodes {
        account_nodes: Some(account_nodes.into()),
        owners: owners.hashes.into(),
        owner_counts: owners.counts,
        storage_nodes: Some(storage_nodes.into()),
    }
}

/// Checks a list and returns path and RLP of each node, both as slices of its columns.
fn rows(list: &v1::NodeList) -> Result<impl Iterator<Item = (&[u8], &[u8])>, ConvertError> {
    for (index, &length) in list.path_lengths.iter().enumerate() {
        range(0, PATH_MAX, length).at_index(index).at("path_lengths")?;
    }
    length(total(&list.path_lengths), list.paths.len()).at("paths")?;
    for (index, &nibble) in list.paths.iter().enumerate() {
        range(0, 15, nibble).at_index(index).at("paths")?;
    }
    count(list.path_lengths.len() as u64, list.node_sizes.len()).at("node_sizes")?;
    for (index, &size) in list.node_sizes.iter().enumerate() {
        range(0, NODE_BYTES_MAX, size).at_index(index).at("node_sizes")?;
    }
    length(total(&list.node_sizes), list.nodes.len()).at("nodes")?;

    let (mut paths, mut nodes) = (&list.paths[..], &list.nodes[..]);
    let lengths = list.path_lengths.iter().zip(&list.node_sizes);
    Ok(lengths.map(move |(&path_length, &size)| {
        let (path, rlp);
        (path, paths) = paths.split_at(path_length.into());
        (rlp, nodes) = nodes.split_at(size as usize);
        (path, rlp)
    }))
}

/// Reads the nodes of a walk, which must all exist.
pub fn existing_nodes(wire: v1::TrieNodes) -> Result<Vec<TrieNode>, ConvertError> {
    let account = wire.account_nodes.unwrap_or_default();
    let storage = wire.storage_nodes.unwrap_or_default();
    for (list, field) in [(&account, "account_nodes"), (&storage, "storage_nodes")] {
        if let Some(index) = list.node_sizes.iter().position(|&size| size == 0) {
            let reason = Reason::OutOfRange { min: 1, max: NODE_BYTES_MAX, got: 0 };
            return Err(reason).at_index(index).at("node_sizes").at(field);
        }
    }
    let account_rows = rows(&account).at("account_nodes")?;
    let storage_rows = rows(&storage).at("storage_nodes")?;
    let owners = Owners::read(&wire.owners, &wire.owner_counts, storage.path_lengths.len())?;

    let mut nodes = Vec::with_capacity(account.path_lengths.len() + storage.path_lengths.len());
    let node = |owner, list: &v1::NodeList, (path, rlp): (&[u8], &[u8])| TrieNode {
        owner,
        path: list.paths.slice_ref(path).into(),
        rlp: list.nodes.slice_ref(rlp).into(),
    };
    nodes.extend(account_rows.map(|row| node(None, &account, row)));
    nodes.extend(owners.zip(storage_rows).map(|(owner, row)| node(Some(owner), &storage, row)));
    Ok(nodes)
}

/// Encodes the nodes of a walk as a field.
pub fn existing_node_list(nodes: &[TrieNode]) -> v1::TrieNodes {
    node_columns(nodes.iter().map(|node| (node.owner, &node.path[..], &node.rlp[..])))
}

fn change_row(change: NodeChange<'_>) -> (Option<B256>, &[u8], &[u8]) {
    (change.owner, change.path, change.rlp.unwrap_or_default())
}

impl From<&TrieDiff> for v1::TrieDiff {
    fn from(diff: &TrieDiff) -> Self {
        let changes = node_columns(diff.iter().map(change_row));
        Self { wiped: hash_list(diff.wiped.iter()), changes: Some(changes) }
    }
}

impl TryFrom<v1::TrieDiff> for TrieDiff {
    type Error = ConvertError;

    /// Puts changes of the account trie first: the order among tries has no meaning.
    fn try_from(wire: v1::TrieDiff) -> Result<Self, ConvertError> {
        let mut diff = Self::default();
        diff.wiped = items(&wire.wiped).at("wiped")?.iter().map(B256::from).collect();
        append(&mut diff, wire.changes.unwrap_or_default()).at("changes")?;
        Ok(diff)
    }
}

fn append(diff: &mut TrieDiff, changes: v1::TrieNodes) -> Result<(), ConvertError> {
    let account = changes.account_nodes.unwrap_or_default();
    let storage = changes.storage_nodes.unwrap_or_default();
    let bytes = [&account.paths, &account.nodes, &storage.paths, &storage.nodes];
    // A diff addresses its bytes with 32 bits.
    let bytes = bytes.iter().map(|bytes| bytes.len()).sum();
    at_most(u32::MAX as usize, bytes)?;
    let account_rows = rows(&account).at("account_nodes")?;
    let storage_rows = rows(&storage).at("storage_nodes")?;
    let (hashes, counts) = (&changes.owners, &changes.owner_counts);
    let owners = Owners::read(hashes, counts, storage.path_lengths.len())?;
    diff.reserve(account.path_lengths.len() + storage.path_lengths.len(), bytes);
    let mut push = |owner, (path, rlp): (_, &[u8])| {
        let rlp = (!rlp.is_empty()).then_some(rlp);
        diff.push(NodeChange { owner, path, rlp });
    };
    account_rows.for_each(|row| push(None, row));
    owners.zip(storage_rows).for_each(|(owner, row)| push(Some(owner), row));
    Ok(())
}

/// Trie diff as the parts of a stream, made on demand. There is at least one part, and the first
/// one holds the wiped tries.
pub struct TrieDiffParts {
    diff: Arc<TrieDiff>,
    /// Position of the first change that is not in any part yet.
    next: usize,
    started: bool,
    part_bytes: usize,
}

impl TrieDiffParts {
    /// Splits a diff into parts of about [`TRIE_DIFF_PART_BYTES`].
    pub fn new(diff: Arc<TrieDiff>) -> Self {
        Self::with_part_bytes(diff, TRIE_DIFF_PART_BYTES)
    }

    /// Splits a diff into parts that end with the change at which they reach `part_bytes`.
    pub fn with_part_bytes(diff: Arc<TrieDiff>, part_bytes: usize) -> Self {
        Self { diff, next: 0, started: false, part_bytes }
    }
}

impl Iterator for TrieDiffParts {
    type Item = storage_writer::v1::GetTrieDiffResponse;

    fn next(&mut self) -> Option<Self::Item> {
        if self.started && self.next == self.diff.len() {
            return None;
        }
        let wiped = if self.started { Bytes::new() } else { hash_list(self.diff.wiped.iter()) };
        self.started = true;
        let mut bytes = 0;
        let changes = iter::from_fn(|| {
            let change = if bytes < self.part_bytes { self.diff.get(self.next) } else { None };
            let row = change_row(change?);
            // Path and node are sent with their two lengths, and perhaps a new owner.
            bytes += row.1.len() + row.2.len() + 40;
            self.next += 1;
            Some(row)
        });
        let changes: Vec<_> = changes.collect();
        let changes = node_columns(changes.into_iter());
        Some(Self::Item { part: Some(v1::TrieDiff { wiped, changes: Some(changes) }) })
    }
}

/// Columns of a growing [`v1::TargetList`].
#[derive(Default)]
struct TargetColumns {
    keys: Vec<u8>,
    from_depths: Vec<u8>,
}

impl TargetColumns {
    fn push(&mut self, target: &WalkTarget) {
        self.keys.extend_from_slice(target.key.as_slice());
        self.from_depths.push(target.from_depth);
    }
}

impl From<TargetColumns> for v1::TargetList {
    fn from(columns: TargetColumns) -> Self {
        Self { keys: columns.keys.into(), from_depths: columns.from_depths.into() }
    }
}

impl From<&[WalkTarget]> for v1::WalkTargets {
    fn from(targets: &[WalkTarget]) -> Self {
        let (mut account, mut storage) = (TargetColumns::default(), TargetColumns::default());
        let mut owners = Owners::default();
        for target in targets {
            match &target.owner {
                None => account.push(target),
                Some(owner) => {
                    owners.push(owner);
                    storage.push(target);
                }
            }
        }
        Self {
            account_targets: Some(account.into()),
            owners: owners.hashes.into(),
            owner_counts: owners.counts,
            storage_targets: Some(storage.into()),
        }
    }
}

impl TryFrom<v1::WalkTargets> for Vec<WalkTarget> {
    type Error = ConvertError;

    /// Puts targets in the account trie first: their order has no meaning.
    fn try_from(wire: v1::WalkTargets) -> Result<Self, ConvertError> {
        let account = wire.account_targets.unwrap_or_default();
        let storage = wire.storage_targets.unwrap_or_default();
        let account_rows = target_rows(&account, 1).at("account_targets")?;
        let storage_rows = target_rows(&storage, 0).at("storage_targets")?;
        at_most(WALK_TARGETS_MAX, account_rows.len() + storage_rows.len())?;
        let owners = Owners::read(&wire.owners, &wire.owner_counts, storage_rows.len())?;
        let account = account_rows.map(|(key, from_depth)| (None, key, from_depth));
        let storage = owners.zip(storage_rows);
        let storage = storage.map(|(owner, (key, from_depth))| (Some(owner), key, from_depth));
        let targets = account.chain(storage);
        Ok(targets.map(|(owner, key, from_depth)| WalkTarget { owner, key, from_depth }).collect())
    }
}

fn target_rows(
    list: &v1::TargetList,
    depth_min: u64,
) -> Result<impl ExactSizeIterator<Item = (B256, u8)>, ConvertError> {
    let keys = items::<32>(&list.keys).at("keys")?;
    count(keys.len() as u64, list.from_depths.len()).at("from_depths")?;
    for (index, &depth) in list.from_depths.iter().enumerate() {
        range(depth_min, PATH_MAX, depth).at_index(index).at("from_depths")?;
    }
    Ok(keys.iter().map(B256::from).zip(list.from_depths.iter().copied()))
}
