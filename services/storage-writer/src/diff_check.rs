//! Check of trie diffs that were handed over: of their tops before readers get them, and node by
//! node before they enter the base.
//!
//! The roots in the headers determine the tops of the subtries. Below them, every new node must
//! hash to the value in its parent. Each storage trie's top must hash to the value in its account's
//! leaf. Nodes that the diff leaves out must be unchanged in the base.

use crate::{
    Error,
    apply::{Tries, in_order},
    metrics, walk,
};
use alloy_primitives::map::B256Map;
use std::{collections::BTreeMap, ops::Range, sync::Arc, time::Instant};
use tandem_primitives::{B256, BlockId, Bytes, EMPTY_TRIE_ROOT, NodeChange, TrieDiff, WalkTarget};
use tandem_store::{
    View,
    tables::{AccountTrie, StorageTrie},
};
use tandem_trie::{
    ChangeFault, ChangedNode, LeafSide, TopHashes, check_changes, hash_batch, leaf_value,
    storage_root,
};
use tracing::error;

/// Part of a trie diff that is checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// Tops of the shards' tries. A reader of the nodes below finds their hashes in the tops.
    Tops,
    /// All nodes.
    AllNodes,
}

/// Returns the tries that a block leads to by trie diffs that were handed over, its own and those
/// of the blocks between the base and it. Returns `None` when the diffs cannot be used: they do not
/// lead to `root`, which is the state root in the block's header, or one of the checked nodes is
/// wrong. Log and metrics say so.
///
/// # Errors
/// When the database fails.
pub fn verify_handed_over(
    view: &View<'_>,
    block: BlockId,
    root: B256,
    diffs: Vec<Arc<TrieDiff>>,
    extent: Extent,
) -> Result<Option<Tries>, Error> {
    let tries = match Tries::from_parts(view, diffs).and_then(|tries| tries.check(block, root)) {
        Ok(tries) => tries,
        Err(error @ (Error::StateRoot { .. } | Error::Trie(_))) => {
            error!(%block, %root, %error, "trie diff does not fit its block");
            ::metrics::counter!(metrics::TRIE_DIFFS_REFUSED).increment(1);
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    if extent == Extent::Tops {
        return Ok(Some(tries));
    }
    let started = Instant::now();
    let checked = check(view, &tries.parts)?;
    ::metrics::histogram!(metrics::TRIE_DIFF_CHECK_SECONDS).record(started.elapsed());
    let Err(fault) = checked else { return Ok(Some(tries)) };
    error!(
        %block, owner = ?fault.owner, path = fault.path_text(), error = %fault.fault,
        "trie diff refused for one of its nodes"
    );
    ::metrics::counter!(metrics::TRIE_DIFFS_REFUSED).increment(1);
    Ok(None)
}

/// Node that makes a trie diff unusable.
#[derive(Clone, PartialEq, Eq, Debug)]
struct DiffFault {
    /// Hashed address of the account whose storage trie has the node, `None` for the account trie.
    owner: Option<B256>,
    /// Path of the node, one nibble per byte.
    path: Vec<u8>,
    /// Fault of the node.
    fault: ChangeFault,
}

impl DiffFault {
    /// Returns the path as text, one digit per nibble.
    fn path_text(&self) -> String {
        self.path.iter().map(|nibble| format!("{nibble:x}")).collect()
    }
}

/// Storage roots in the changed leaves of the account trie, before and after.
#[derive(Clone, Copy, Default)]
struct Roots {
    old: Option<B256>,
    new: Option<B256>,
}

/// Checks a diff, in parts, against the base that `view` shows. The caller checks that its tops
/// lead to the root in the block's header.
///
/// # Errors
/// When the database fails. The first fault found is in the returned value.
fn check(view: &View<'_>, parts: &[Arc<TrieDiff>]) -> Result<Result<(), DiffFault>, Error> {
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
        // Nothing depends on the leaves of storage tries.
        if let Err((path, fault)) = check_changes(top, &nodes[range], &mut |_, _, _| {}) {
            return Ok(Err(DiffFault { owner: Some(owner), path, fault }));
        }
    }
    Ok(Ok(()))
}

/// Returns whether two changes of one owner are in the same trie. The account trie is split into
/// subtries.
fn same_trie(a: &NodeChange<'_>, b: &NodeChange<'_>) -> bool {
    a.owner.is_some() || a.path.first() == b.path.first()
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

/// Returns the base's nodes at the paths of the changes; none in a trie that is wiped.
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

/// Checks one subtrie of the account trie, and collects the storage roots from its leaves.
fn check_accounts(
    nodes: &[ChangedNode<'_>],
    roots: &mut B256Map<Roots>,
) -> Result<(), (Vec<u8>, ChangeFault)> {
    // An unchanged top keeps its hash. A changed top is right because the root is right.
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
            // A leaf of the base that is not an account is ignored.
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

/// Adds the storage roots of owners whose leaves did not change, from the base.
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
pub mod tests;
