//! Walks down the tries of the base: all targets level by level, with one batched read per level.

use crate::Error;
use std::collections::BTreeMap;
use tandem_primitives::{B256, Bytes, WalkTarget};
use tandem_store::{
    View,
    tables::{AccountTrie, StorageTrie},
};
use tandem_trie::{NodeSink, NodeSource, child_depth};

/// Nibbles of a key, one per byte.
pub type Nibbles = [u8; 64];

/// Calls `node` with every node on the path to each target, from the target's depth on. Parents
/// come before their children. The account trie's root is never among them.
///
/// A target with no node at its depth is walked from the top.
///
/// # Errors
/// When the database fails.
pub fn walk(view: &View<'_>, targets: &[WalkTarget], node: &mut NodeSink<'_>) -> Result<(), Error> {
    let mut levels = Levels::default();
    for target in targets {
        let report_from = usize::from(target.from_depth).max(top(target.owner));
        if report_from > 64 {
            continue;
        }
        let walker = Walker { owner: target.owner, key: unpack(&target.key), report_from };
        levels.entry(report_from).or_default().push(walker);
    }
    let mut astray = run(view, levels, node)?;
    if !astray.is_empty() {
        astray.sort_unstable();
        let mut levels = Levels::default();
        for walker in astray {
            levels.entry(top(walker.owner)).or_default().push(walker);
        }
        run(view, levels, node)?;
    }
    Ok(())
}

/// Returns the depth of the highest node that a walk may give. The account trie's root belongs to
/// no shard.
fn top(owner: Option<B256>) -> usize {
    usize::from(owner.is_none())
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Walker {
    owner: Option<B256>,
    key: Nibbles,
    report_from: usize,
}

/// Walkers by the depth of the node that they need next.
type Levels = BTreeMap<usize, Vec<Walker>>;

/// Goes down until no walker is left. Returns the walkers that found nothing where they started.
fn run(view: &View<'_>, mut levels: Levels, node: &mut NodeSink<'_>) -> Result<Vec<Walker>, Error> {
    let mut astray = Vec::new();
    while let Some((depth, mut walkers)) = levels.pop_first() {
        walkers.sort_unstable();
        let groups: Vec<&[Walker]> = walkers
            .chunk_by(|a, b| a.owner == b.owner && a.key[..depth] == b.key[..depth])
            .collect();
        let nodes = read_level(view, &groups, depth)?;
        for (group, rlp) in groups.iter().zip(nodes) {
            let Some(rlp) = rlp else {
                let started_here = group.iter().filter(|walker| walker.report_from == depth);
                astray.extend(started_here.filter(|walker| depth > top(walker.owner)));
                continue;
            };
            if group.iter().any(|walker| walker.report_from <= depth) {
                node(group[0].owner, &group[0].key[..depth], &rlp);
            }
            for walker in *group {
                if let Some(next) = child_depth(&rlp, depth, &walker.key) {
                    levels.entry(next).or_default().push(*walker);
                }
            }
        }
    }
    Ok(astray)
}

/// Reads the node at `depth` for each group. Groups are sorted, those of the account trie first.
fn read_level(
    view: &View<'_>,
    groups: &[&[Walker]],
    depth: usize,
) -> Result<Vec<Option<Bytes>>, Error> {
    let accounts = groups.partition_point(|group| group[0].owner.is_none());
    let (accounts, storage) = groups.split_at(accounts);
    let mut nodes =
        view.multi_get::<AccountTrie>(accounts.iter().map(|group| &group[0].key[..depth]))?;
    nodes.extend(view.multi_get::<StorageTrie>(storage.iter().filter_map(|group| {
        let walker = &group[0];
        walker.owner.map(|owner| (owner, &walker.key[..depth]))
    }))?);
    Ok(nodes)
}

/// Returns the nibbles of a key.
pub fn unpack(key: &B256) -> Nibbles {
    let mut nibbles = [0; 64];
    for (pair, byte) in nibbles.chunks_exact_mut(2).zip(key) {
        pair.copy_from_slice(&[byte >> 4, byte & 0x0f]);
    }
    nibbles
}

/// Source of the base's trie nodes for [`tandem_trie::apply_block`].
pub struct BaseNodes<'a>(pub &'a View<'a>);

impl NodeSource for BaseNodes<'_> {
    type Error = Error;

    fn walk(&mut self, targets: &[WalkTarget], node: &mut NodeSink<'_>) -> Result<(), Error> {
        walk(self.0, targets, node)
    }
}
