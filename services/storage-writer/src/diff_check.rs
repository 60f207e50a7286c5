//! A trie diff that was handed over, checked node by node before it enters the base.
//!
//! The roots in the headers say what the tops of the subtries must be; from there on every new node
//! must hash to what the node above it says, and each storage trie's top to what the leaf of its
//! account says. What the diff leaves out must be in the base unchanged.

use crate::{Error, walk};
use alloy_primitives::map::B256Map;
use std::{collections::BTreeMap, ops::Range, sync::Arc};
use tandem_primitives::{B256, Bytes, EMPTY_TRIE_ROOT, NodeChange, TrieDiff, WalkTarget};
use tandem_store::{
    View,
    tables::{AccountTrie, StorageTrie},
};
use tandem_trie::{
    ChangeFault, ChangedNode, LeafSide, TopHashes, check_changes, hash_batch, leaf_value,
    storage_root,
};

/// A node for which a trie diff cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiffFault {
    /// Hashed address of the account whose storage trie it is in, `None` for the account trie.
    pub owner: Option<B256>,
    /// Its path, one nibble a byte.
    pub path: Vec<u8>,
    /// What is wrong.
    pub fault: ChangeFault,
}

impl DiffFault {
    /// The path as text, a digit a nibble.
    pub fn path_text(&self) -> String {
        self.path.iter().map(|nibble| format!("{nibble:x}")).collect()
    }
}

/// Storage roots in the changed leaves of the account trie, before and after.
#[derive(Clone, Copy, Default)]
struct Roots {
    old: Option<B256>,
    new: Option<B256>,
}

/// Checks a diff, in parts, over the base that `view` shows. That its tops lead to the root in the
/// block's header is for the caller to check.
///
/// # Errors
/// When the database fails. The first fault found is in the answer.
pub fn check(view: &View<'_>, parts: &[Arc<TrieDiff>]) -> Result<Result<(), DiffFault>, Error> {
    let changes = in_order(parts);
    let mut wiped: Vec<B256> = parts.iter().flat_map(|part| part.wiped.iter().copied()).collect();
    wiped.sort_unstable();
    wiped.dedup();
    let is_wiped = |owner: &B256| wiped.binary_search(owner).is_ok();
    let hashes = hash_all(&changes);
    let old = read_old(view, &changes, is_wiped)?;
    let nodes: Vec<ChangedNode<'_>> = changes
        .iter()
        .zip(&hashes)
        .zip(&old)
        .map(|((change, hash), old)| ChangedNode {
            path: change.path,
            old: old.as_ref().map(|rlp| rlp.as_ref()),
            new: change.rlp,
            hash: *hash,
        })
        .collect();
    let mut roots = B256Map::<Roots>::default();
    let mut storage = BTreeMap::<B256, Range<usize>>::new();
    let mut at = 0;
    for group in changes.chunk_by(|a, b| a.owner == b.owner && same_trie(a, b)) {
        let range = at..at + group.len();
        at = range.end;
        match group[0].owner {
            Some(owner) => drop(storage.insert(owner, range)),
            None => {
                if let Err((path, fault)) = check_accounts(&nodes[range], &mut roots) {
                    return Ok(Err(DiffFault { owner: None, path, fault }));
                }
            }
        }
    }
    for owner in &wiped {
        storage.entry(*owner).or_default();
    }
    for (owner, roots) in &roots {
        if roots.old != roots.new {
            storage.entry(*owner).or_default();
        }
    }
    add_unchanged(view, storage.keys(), &mut roots)?;
    for (owner, range) in storage {
        let Roots { mut old, new } = roots.get(&owner).copied().unwrap_or_default();
        if is_wiped(&owner) {
            old = None;
        }
        let top = TopHashes { depth: 0, old, new };
        // Storage tries have no leaves that anything follows from.
        if let Err((path, fault)) = check_changes(top, &nodes[range], &mut |_, _, _| {}) {
            return Ok(Err(DiffFault { owner: Some(owner), path, fault }));
        }
    }
    Ok(Ok(()))
}

/// Whether two changes of one owner are in the same trie: the account trie is cut into subtries.
fn same_trie(a: &NodeChange<'_>, b: &NodeChange<'_>) -> bool {
    a.owner.is_some() || a.path.first() == b.path.first()
}

/// All changes by owner and path, the last one where a path comes twice, as they are written. The
/// root node of the account trie is made from the tops, whatever a diff says of it.
fn in_order(parts: &[Arc<TrieDiff>]) -> Vec<NodeChange<'_>> {
    let all = parts.iter().flat_map(|part| part.iter());
    let mut changes: Vec<_> =
        all.filter(|change| change.owner.is_some() || !change.path.is_empty()).collect();
    changes.sort_by(|a, b| (a.owner, a.path).cmp(&(b.owner, b.path)));
    changes.dedup_by(|later, kept| {
        let twice = (later.owner, later.path) == (kept.owner, kept.path);
        if twice {
            *kept = *later;
        }
        twice
    });
    changes
}

fn hash_all(changes: &[NodeChange<'_>]) -> Vec<B256> {
    let rlp = || changes.iter().map(|change| change.rlp.unwrap_or_default());
    let mut bytes = Vec::with_capacity(rlp().map(<[u8]>::len).sum());
    let mut ends = Vec::with_capacity(changes.len());
    for rlp in rlp() {
        bytes.extend_from_slice(rlp);
        ends.push(bytes.len() as u32);
    }
    let mut hashes = Vec::new();
    hash_batch(&bytes, &ends, &mut hashes);
    hashes
}

/// What stands at the paths of the changes in the base; nothing in a trie that is wiped.
fn read_old(
    view: &View<'_>,
    changes: &[NodeChange<'_>],
    is_wiped: impl Fn(&B256) -> bool,
) -> Result<Vec<Option<Bytes>>, Error> {
    let accounts = changes.partition_point(|change| change.owner.is_none());
    let (accounts, storage) = changes.split_at(accounts);
    let mut old = view.multi_get::<AccountTrie>(accounts.iter().map(|change| change.path))?;
    let keys = storage.iter().filter_map(|change| Some((change.owner?, change.path)));
    let mut found = view.multi_get::<StorageTrie>(keys.filter(|(owner, _)| !is_wiped(owner)))?;
    let mut found = found.drain(..);
    old.extend(storage.iter().map(|change| {
        let kept = change.owner.as_ref().is_some_and(|owner| !is_wiped(owner));
        if kept { found.next().flatten() } else { None }
    }));
    Ok(old)
}

/// Checks one subtrie of the account trie, and takes the storage roots out of its leaves.
fn check_accounts(
    nodes: &[ChangedNode<'_>],
    roots: &mut B256Map<Roots>,
) -> Result<(), (Vec<u8>, ChangeFault)> {
    // A top that did not change is what it was; one that did is right because the root is.
    let unchanged = Some(B256::ZERO);
    let (old, new) = match nodes.first() {
        Some(top) if top.path.len() == 1 => {
            (top.old.map(|_| B256::ZERO), top.new.map(|_| top.hash))
        }
        _ => (unchanged, unchanged),
    };
    let mut malformed = None;
    let mut leaf = |side, key, value: &[u8]| {
        let Some(root) = storage_root(value) else {
            // What stands in the base and is no account says nothing.
            malformed = malformed.or((side == LeafSide::New).then_some(key));
            return;
        };
        let root = (root != EMPTY_TRIE_ROOT).then_some(root);
        let entry = roots.entry(key).or_default();
        match side {
            LeafSide::Old => entry.old = root,
            LeafSide::New => entry.new = root,
        }
    };
    check_changes(TopHashes { depth: 1, old, new }, nodes, &mut leaf)?;
    match malformed {
        Some(key) => Err((walk::unpack(&key).to_vec(), ChangeFault::Malformed)),
        None => Ok(()),
    }
}

/// Adds the storage roots of owners whose leaves did not change, out of the base.
fn add_unchanged<'o>(
    view: &View<'_>,
    owners: impl Iterator<Item = &'o B256>,
    roots: &mut B256Map<Roots>,
) -> Result<(), Error> {
    let unknown: Vec<B256> = owners.filter(|owner| !roots.contains_key(*owner)).copied().collect();
    let targets: Vec<WalkTarget> =
        unknown.iter().map(|key| WalkTarget { owner: None, key: *key, from_depth: 1 }).collect();
    if targets.is_empty() {
        return Ok(());
    }
    let mut found = B256Map::<B256>::default();
    walk::walk(view, &targets, &mut |_, path, rlp| {
        if let Some((key, value)) = leaf_value(path, rlp)
            && let Some(root) = storage_root(value)
        {
            found.insert(key, root);
        }
    })?;
    for owner in unknown {
        let root = found.get(&owner).copied().filter(|root| *root != EMPTY_TRIE_ROOT);
        roots.insert(owner, Roots { old: root, new: root });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
