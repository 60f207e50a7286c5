//! The base's state: tries against flat state, code against accounts, root against header.

use super::{Difference, NodeFault, Report, nodes::NodeCheck};
use crate::{
    Error, body,
    rebuild::{Rebuilt, Sink, rebuild, shard_range},
};
use rayon::prelude::*;
use std::collections::HashSet;
use tandem_primitives::{Account, B256, EMPTY_CODE_HASH, Shard, SubtrieRoot, keccak256};
use tandem_store::{
    View,
    tables::{AccountTrie, Code, StorageTrie},
};
use tandem_trie::combine;

/// Checks all shards and the root.
pub fn check(view: &View<'_>, report: &mut Report) -> Result<(), Error> {
    let shards: Vec<(Rebuilt, Findings)> = Shard::all()
        .collect::<Vec<_>>()
        .into_par_iter()
        .map(|shard| check_shard(view, shard))
        .collect::<Result<_, Error>>()?;
    let mut roots: [SubtrieRoot; Shard::COUNT] = Default::default();
    for (root, (rebuilt, findings)) in roots.iter_mut().zip(shards) {
        report.accounts += rebuilt.accounts;
        report.slots += rebuilt.slots;
        report.account_nodes += findings.account_nodes;
        report.storage_nodes += findings.storage_nodes;
        report.differences += findings.differences;
        if let Some(first) = findings.first {
            report.first_difference.get_or_insert(first);
        }
        *root = rebuilt.top;
    }
    check_root(view, &roots, report)
}

fn check_root(
    view: &View<'_>,
    roots: &[SubtrieRoot; Shard::COUNT],
    report: &mut Report,
) -> Result<(), Error> {
    let (root, root_node) = combine(roots)?;
    let stored = view.get::<AccountTrie>(&[])?;
    let fault = match (&root_node, &stored) {
        (None, Some(_)) => Some(NodeFault::Extra),
        (Some(_), None) => Some(NodeFault::Missing),
        (Some(want), Some(have)) if want.as_slice() != have.as_ref() => Some(NodeFault::Different),
        _ => None,
    };
    match fault {
        Some(fault) => report.differ(Difference::Node { owner: None, path: Vec::new(), fault }),
        None => report.account_nodes += u64::from(root_node.is_some()),
    }
    let block = report.base;
    let want = body::header(view, block.hash)?.state_root;
    if root != want {
        report.differ(Difference::StateRoot { block, got: root, want });
    }
    Ok(())
}

struct Findings {
    account_nodes: u64,
    storage_nodes: u64,
    differences: u64,
    first: Option<Difference>,
}

fn check_shard(view: &View<'_>, shard: Shard) -> Result<(Rebuilt, Findings), Error> {
    let (start, end) = shard_range(shard);
    let storage = view.range::<StorageTrie>(&start, end.as_ref().map(|end| end.as_slice()));
    let mut check = ShardCheck {
        view,
        account_trie: NodeCheck::new(view.cursor(&[shard.nibble()]), 0),
        storage_tries: NodeCheck::new(storage, 32),
        codes: HashSet::new(),
        differences: 0,
        first: None,
    };
    let rebuilt = rebuild(view, shard, &mut check)?;
    let ShardCheck { mut account_trie, mut storage_tries, mut differences, mut first, .. } = check;
    account_trie.end_trie(&[shard.nibble()])?;
    account_trie.end()?;
    storage_tries.end()?;
    differences += account_trie.differences + storage_tries.differences;
    first = storage_tries.first.or(account_trie.first).or(first);
    let (account_nodes, storage_nodes) = (account_trie.nodes, storage_tries.nodes);
    Ok((rebuilt, Findings { account_nodes, storage_nodes, differences, first }))
}

struct ShardCheck<'a> {
    view: &'a View<'a>,
    account_trie: NodeCheck<'a, AccountTrie>,
    storage_tries: NodeCheck<'a, StorageTrie>,
    /// Code hashes that were looked at.
    codes: HashSet<B256>,
    differences: u64,
    first: Option<Difference>,
}

impl ShardCheck<'_> {
    fn differ(&mut self, difference: Difference) {
        self.differences += 1;
        self.first.get_or_insert(difference);
    }
}

impl Sink for ShardCheck<'_> {
    fn node(&mut self, owner: Option<B256>, path: &[u8], rlp: &[u8]) -> Result<(), Error> {
        match owner {
            None => self.account_trie.node(path.to_vec(), rlp),
            Some(owner) => self.storage_tries.node([owner.as_slice(), path].concat(), rlp),
        }
    }

    fn account(&mut self, address_hash: B256, account: &Account) -> Result<(), Error> {
        let code_hash = account.code_hash;
        if code_hash == EMPTY_CODE_HASH || !self.codes.insert(code_hash) {
            return Ok(());
        }
        if self.view.get::<Code>(code_hash)?.is_none_or(|code| keccak256(&code) != code_hash) {
            self.differ(Difference::Code { address_hash, code_hash });
        }
        Ok(())
    }

    fn storage_done(&mut self, owner: B256) -> Result<(), Error> {
        self.storage_tries.end_trie(owner.as_slice())
    }

    fn orphan(&mut self, owner: B256, slot: B256) -> Result<(), Error> {
        self.differ(Difference::OrphanSlot { owner, slot });
        Ok(())
    }
}
