//! Checks of the base's state: tries against flat state, code against accounts, root against
//! header.

use super::{
    Difference, NodeFault, Report,
    nodes::{Fix, NodeCheck},
};
use crate::{
    Error, body, meta,
    rebuild::{Rebuilt, Sink, rebuild, rebuild_storage, shard_range},
};
use rayon::prelude::*;
use std::collections::HashSet;
use tandem_primitives::{Account, B256, EMPTY_CODE_HASH, Shard, SubtrieRoot, keccak256};
use tandem_store::{
    Batch, Cursor, Durability, Store, View,
    tables::{AccountTrie, Code, StorageTrie},
};
use tandem_trie::combine;

/// Size in bytes at which a batch of mended nodes is written.
const BATCH_BYTES: usize = 1 << 20;

/// Checks all shards and the root, and mends the tries in the store that is given.
pub fn check(view: &View<'_>, mend: Option<&Store>, report: &mut Report) -> Result<(), Error> {
    let shards: Vec<(Rebuilt, Findings)> = Shard::all()
        .collect::<Vec<_>>()
        .into_par_iter()
        .map(|shard| check_shard(view, mend, shard, None))
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
    check_root(view, mend, &roots, report)
}

/// Rebuilds the subtrie of one shard and the storage tries of its accounts from the flat state,
/// where they differ from it. Returns the number of differences.
pub fn mend_shard(store: &Store, shard: Shard) -> Result<u64, Error> {
    let (_, findings) = check_shard(&store.view(), Some(store), shard, None)?;
    Ok(findings.differences)
}

/// Compares the tries of one shard with the flat state, and looks at the codes of its accounts. `pace` gets
/// the bytes that were read, may wait, and returns whether to go on. Returns the number of differences,
/// and the first one.
///
/// # Errors
/// As [`rebuild`]; [`Error::Stopping`] when `pace` says no.
pub fn check_shard_at_pace(
    view: &View<'_>,
    shard: Shard,
    pace: &mut dyn FnMut(usize) -> bool,
) -> Result<(u64, Option<Difference>), Error> {
    let (_, findings) = check_shard(view, None, shard, Some(pace))?;
    Ok((findings.differences, findings.first))
}

/// Rebuilds one storage trie from the flat state, where it differs from it. Returns the number of
/// differences.
pub fn mend_storage(store: &Store, owner: B256) -> Result<u64, Error> {
    let view = store.view();
    let tables = (view.range(&[], Some(&[])), view.cursor(owner.as_slice()));
    let mut check = ShardCheck::new(&view, Some(store), tables);
    rebuild_storage(&view, owner, &mut check)?;
    check.storage_tries.end()?;
    check.write_all()?;
    Ok(check.storage_tries.differences)
}

fn check_root(
    view: &View<'_>,
    mend: Option<&Store>,
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
    if let (Some(_), Some(store)) = (fault, mend) {
        let mut batch = store.batch();
        put_account_node(&mut batch, (Vec::new(), root_node));
        store.write(batch, Durability::Process)?;
    }
    let block = meta::base(view)?;
    let header = body::header(view, block.hash)?.state_root;
    if root != header {
        report.differ(Difference::StateRoot { block, header, computed: root });
    }
    Ok(())
}

struct Findings {
    account_nodes: u64,
    storage_nodes: u64,
    differences: u64,
    first: Option<Difference>,
}

fn check_shard(
    view: &View<'_>,
    mend: Option<&Store>,
    shard: Shard,
    pace: Option<Pace<'_>>,
) -> Result<(Rebuilt, Findings), Error> {
    let (start, end) = shard_range(shard);
    let storage = view.range::<StorageTrie>(&start, end.as_ref().map(|end| end.as_slice()));
    let mut check = ShardCheck::new(view, mend, (view.cursor(&[shard.nibble()]), storage));
    check.pace = pace;
    let rebuilt = rebuild(view, shard, &mut check)?;
    check.account_trie.end_trie(&[shard.nibble()])?;
    check.account_trie.end()?;
    check.storage_tries.end()?;
    check.write_all()?;
    let ShardCheck { account_trie, storage_tries, mut differences, mut first, .. } = check;
    differences += account_trie.differences + storage_tries.differences;
    first = storage_tries.first.or(account_trie.first).or(first);
    let (account_nodes, storage_nodes) = (account_trie.nodes, storage_tries.nodes);
    Ok((rebuilt, Findings { account_nodes, storage_nodes, differences, first }))
}

/// Function that gets the bytes that were read, and returns whether to go on.
type Pace<'p> = &'p mut dyn FnMut(usize) -> bool;

struct ShardCheck<'a, 'p> {
    view: &'a View<'a>,
    account_trie: NodeCheck<'a, AccountTrie>,
    storage_tries: NodeCheck<'a, StorageTrie>,
    /// Store in which the differences are mended, and the fixes not yet written.
    mend: Option<(&'a Store, Batch<'a>)>,
    /// Code hashes that were checked.
    codes: HashSet<B256>,
    differences: u64,
    first: Option<Difference>,
    /// Called after each read, if it is there.
    pace: Option<Pace<'p>>,
}

impl<'a, 'p> ShardCheck<'a, 'p> {
    fn new(
        view: &'a View<'a>,
        mend: Option<&'a Store>,
        (accounts, storage): (Cursor<'a, AccountTrie>, Cursor<'a, StorageTrie>),
    ) -> Self {
        Self {
            view,
            account_trie: NodeCheck::new(accounts, 0).fixing(mend.is_some()),
            storage_tries: NodeCheck::new(storage, 32).fixing(mend.is_some()),
            mend: mend.map(|store| (store, store.batch())),
            codes: HashSet::new(),
            differences: 0,
            first: None,
            pace: None,
        }
    }

    fn has_read(&mut self, bytes: usize) -> Result<(), Error> {
        let goes_on = self.pace.as_mut().is_none_or(|pace| pace(bytes));
        if goes_on { Ok(()) } else { Err(Error::Stopping) }
    }

    fn differ(&mut self, difference: Difference) {
        self.differences += 1;
        self.first.get_or_insert(difference);
    }

    /// Takes the fixes for the differences found so far, and writes them when there are many. The
    /// cursors go on over the contents that they saw first.
    fn take_fixes(&mut self) -> Result<(), Error> {
        let Some((store, batch)) = &mut self.mend else { return Ok(()) };
        for fix in self.account_trie.fixes.iter_mut().flat_map(|fixes| fixes.drain(..)) {
            put_account_node(batch, fix);
        }
        for (key, rlp) in self.storage_tries.fixes.iter_mut().flat_map(|fixes| fixes.drain(..)) {
            match (rlp, key.split_first_chunk::<32>()) {
                (Some(rlp), Some((owner, path))) => {
                    batch.put::<StorageTrie>((B256::from(owner), path), &rlp);
                }
                _ => batch.delete_raw::<StorageTrie>(&key),
            }
        }
        if batch.byte_len() >= BATCH_BYTES {
            let full = std::mem::replace(batch, store.batch());
            store.write(full, Durability::Process)?;
        }
        Ok(())
    }

    fn write_all(&mut self) -> Result<(), Error> {
        self.take_fixes()?;
        if let Some((store, batch)) = &mut self.mend {
            let rest = std::mem::replace(batch, store.batch());
            store.write(rest, Durability::Process)?;
        }
        Ok(())
    }
}

fn put_account_node(batch: &mut Batch<'_>, (path, rlp): Fix) {
    match rlp {
        Some(rlp) => batch.put::<AccountTrie>(&path, &rlp),
        None => batch.delete::<AccountTrie>(&path),
    }
}

impl Sink for ShardCheck<'_, '_> {
    fn node(&mut self, owner: Option<B256>, path: &[u8], rlp: &[u8]) -> Result<(), Error> {
        // The node, and the values below it that it was built from.
        self.has_read(2 * rlp.len())?;
        match owner {
            None => self.account_trie.node(path.to_vec(), rlp)?,
            Some(owner) => self.storage_tries.node([owner.as_slice(), path].concat(), rlp)?,
        }
        self.take_fixes()
    }

    fn account(&mut self, address_hash: B256, account: &Account) -> Result<(), Error> {
        let code_hash = account.code_hash;
        if code_hash == EMPTY_CODE_HASH || !self.codes.insert(code_hash) {
            return Ok(());
        }
        let code = self.view.get::<Code>(code_hash)?;
        self.has_read(code.as_ref().map_or(0, |code| code.len()))?;
        if code.is_none_or(|code| keccak256(&code) != code_hash) {
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
