//! Tries of one state: those of a snapshot of the base, under the changes of the blocks above it.

use crate::{Error, body, chain::Ancestor, meta, shared::Shared, walk::unpack};
use std::{
    collections::{BTreeMap, HashMap, btree_map},
    ops::{Bound, ControlFlow},
    sync::Arc,
};
use tandem_primitives::{B256, BlockId, Bytes, Shard, TrieDiff};
use tandem_store::{
    Cursor, Table, View,
    tables::{AccountTrie, StorageTrie},
};
use tandem_trie::{child_depth, combine, leaf_value, leaves_in, path_to};
use tracing::warn;

/// Maximum number of attempts to open a state. An attempt fails if the base moves during it.
const ATTEMPTS_MAX: usize = 4;

/// Changed nodes of a trie by path: where they are in the diffs.
type Changed = BTreeMap<Box<[u8]>, Place>;

/// Position of a change.
#[derive(Clone, Copy, Debug)]
struct Place {
    diff: u32,
    index: u32,
}

/// Changes of one storage trie.
#[derive(Default)]
struct StorageChanges {
    /// Whether all nodes of the base are gone.
    wiped: bool,
    nodes: Changed,
}

/// Nodes that blocks changed.
#[derive(Default)]
struct Changes {
    diffs: Vec<Arc<TrieDiff>>,
    accounts: Changed,
    storage: HashMap<B256, StorageChanges>,
}

impl Changes {
    /// Adds the changes of the next block.
    fn add(&mut self, diff: Arc<TrieDiff>) {
        for owner in &diff.wiped {
            let changes = self.storage.entry(*owner).or_default();
            changes.wiped = true;
            changes.nodes.clear();
        }
        let number = self.diffs.len() as u32;
        for (index, change) in (0..).zip(diff.iter()) {
            let nodes = match change.owner {
                None => &mut self.accounts,
                Some(owner) => &mut self.storage.entry(owner).or_default().nodes,
            };
            nodes.insert(change.path.into(), Place { diff: number, index });
        }
        self.diffs.push(diff);
    }

    fn of(&self, owner: Option<&B256>) -> (bool, Option<&Changed>) {
        match owner {
            None => (false, Some(&self.accounts)),
            Some(owner) => match self.storage.get(owner) {
                Some(changes) => (changes.wiped, Some(&changes.nodes)),
                None => (false, None),
            },
        }
    }

    /// Returns the node that a change left, `None` if it removed it.
    fn at(&self, place: Place) -> Option<&[u8]> {
        self.diffs.get(place.diff as usize)?.get(place.index as usize)?.rlp
    }
}

/// Tries of the state after one block.
pub struct StateTries<'a> {
    view: View<'a>,
    changes: Changes,
    block: BlockId,
    root: B256,
    /// Root node of the trie of the accounts.
    top: Option<Bytes>,
}

impl<'a> StateTries<'a> {
    /// Opens the state after a canonical block, at the base or above it. Returns `None` if the block
    /// is neither.
    ///
    /// # Errors
    /// When the database fails, or the tries do not lead to `root`.
    pub fn open(shared: &'a Shared, block: BlockId, root: B256) -> Result<Option<Self>, Error> {
        for _ in 0..ATTEMPTS_MAX {
            let (view, branch) = {
                let state = shared.state.lock();
                let view = shared.store.snapshot();
                let base = meta::base(&view)?;
                match state.chain.ancestor(block.hash, &base.hash) {
                    (Ancestor::Base, branch) => (view, branch),
                    (Ancestor::Other(_), _) => return Ok(None),
                }
            };
            let diffs = branch.iter().map(|hash| shared.trie_diff(*hash));
            // A block without a diff has entered the base, so the snapshot is too old.
            let Some(diffs) = diffs.collect::<Result<Option<Vec<_>>, _>>()? else { continue };
            if body::header(&view, block.hash)?.state_root != root {
                return Ok(None);
            }
            let mut changes = Changes::default();
            diffs.into_iter().for_each(|diff| changes.add(diff));
            let mut tries = Self { view, changes, block, root, top: None };
            tries.find_top()?;
            return Ok(Some(tries));
        }
        warn!(%block, "state not opened for peers: the base moved in every attempt");
        Ok(None)
    }

    /// Combines the shards' tops to the root node.
    fn find_top(&mut self) -> Result<(), Error> {
        let mut tops = [const { None }; Shard::COUNT];
        for (nibble, top) in (0u8..).zip(&mut tops) {
            *top = self.stored(None, &[nibble])?;
        }
        let (computed, top) = combine(&tops)?;
        if computed != self.root {
            return Err(Error::StateRoot { block: self.block, header: self.root, computed });
        }
        self.top = top.map(Bytes::from);
        Ok(())
    }

    /// Returns the block after which the state is.
    pub fn block(&self) -> BlockId {
        self.block
    }

    /// Returns the state root.
    pub fn root(&self) -> B256 {
        self.root
    }

    /// Returns the node of a trie at a path (one nibble per byte), as the database has it: the tops of
    /// the shards of the accounts' trie stand at paths of one nibble, its root nowhere.
    fn stored(&self, owner: Option<&B256>, path: &[u8]) -> Result<Option<Bytes>, Error> {
        let (wiped, changed) = self.changes.of(owner);
        if let Some(place) = changed.and_then(|nodes| nodes.get(path)) {
            return Ok(self.changes.at(*place).map(Bytes::copy_from_slice));
        }
        Ok(match owner {
            None => self.view.get::<AccountTrie>(path)?,
            Some(owner) if !wiped => self.view.get::<StorageTrie>((*owner, path))?,
            Some(_) => None,
        })
    }

    /// Returns the top node of a trie, `None` if it is empty.
    pub fn top(&self, owner: Option<&B256>) -> Result<Option<Bytes>, Error> {
        match owner {
            None => Ok(self.top.clone()),
            Some(_) => self.stored(owner, &[]),
        }
    }

    /// Returns the node of a trie at a path, `None` if no node stands alone there.
    pub fn node(&self, owner: Option<&B256>, path: &[u8]) -> Result<Option<Bytes>, Error> {
        match (owner, path) {
            (_, [_, ..]) if path.len() > 64 => Ok(None),
            (_, []) => self.top(owner),
            // The root node may have merged a shard's top.
            (None, [nibble]) => {
                let mut key = [0; 64];
                key[0] = *nibble;
                match &self.top {
                    Some(top) if child_depth(top, 0, &key) == Some(1) => self.stored(owner, path),
                    _ => Ok(None),
                }
            }
            _ => self.stored(owner, path),
        }
    }

    /// Returns the nodes from the top of a trie towards a key.
    pub fn way(&self, owner: Option<&B256>, key: &B256) -> Result<Vec<Bytes>, Error> {
        path_to(key, self.top(owner)?, |path| self.stored(owner, path))
    }

    /// Calls `leaf` with key and value of each leaf of a trie from the key `start` on, in order, until
    /// it breaks.
    ///
    /// # Errors
    /// When the database fails, or a node is malformed.
    pub fn leaves(
        &self,
        owner: Option<&B256>,
        start: &B256,
        leaf: &mut dyn FnMut(B256, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        // Leaves that are embedded in nodes above the next stored one.
        let mut waiting = BTreeMap::new();
        let nibbles = unpack(start);
        let mut depth = Some(usize::from(owner.is_none()));
        while let Some(at) = depth {
            let Some(rlp) = self.stored(owner, &nibbles[..at])? else { break };
            let mut keep = |key: B256, value: &[u8]| {
                if key >= *start {
                    waiting.insert(key, value.to_vec());
                }
            };
            leaves_in(&nibbles[..at], &rlp, &mut keep).map_err(|what| malformed(start, what))?;
            depth = child_depth(&rlp, at, &nibbles);
        }
        let (wiped, changed) = self.changes.of(owner);
        match owner {
            None => {
                let nodes = Merged::new(self.view.cursor::<AccountTrie>(&[]), 0, &nibbles, self);
                nodes.with(changed).leaves(waiting, leaf)
            }
            Some(owner) if !wiped => {
                let cursor = self.view.cursor::<StorageTrie>(owner.as_slice());
                let mut key = owner.to_vec();
                key.extend_from_slice(&nibbles);
                Merged::new(cursor, owner.len(), &key, self).with(changed).leaves(waiting, leaf)
            }
            Some(_) => Merged::<StorageTrie>::without_base(&nibbles, self)
                .with(changed)
                .leaves(waiting, leaf),
        }
    }
}

/// Nodes of a trie in the order of their paths, of the base and the changes.
struct Merged<'a, T: Table> {
    base: Option<Cursor<'a, T>>,
    /// Bytes of a key before the path.
    owner_bytes: usize,
    changed: Option<btree_map::Range<'a, Box<[u8]>, Place>>,
    start: Box<[u8]>,
    tries: &'a StateTries<'a>,
}

impl<'a, T: Table> Merged<'a, T> {
    /// Nodes from this key of the table on.
    fn new(
        mut base: Cursor<'a, T>,
        owner_bytes: usize,
        key: &[u8],
        tries: &'a StateTries<'a>,
    ) -> Self {
        base.seek(key);
        Self {
            base: Some(base),
            owner_bytes,
            changed: None,
            start: key[owner_bytes..].into(),
            tries,
        }
    }

    fn without_base(start: &[u8], tries: &'a StateTries<'a>) -> Self {
        Self { base: None, owner_bytes: 0, changed: None, start: start.into(), tries }
    }

    fn with(mut self, changed: Option<&'a Changed>) -> Self {
        let from = (Bound::Included(&*self.start), Bound::Unbounded);
        self.changed = changed.map(|changed| changed.range::<[u8], _>(from));
        self
    }

    /// Calls `leaf` with the waiting leaves and those of the nodes, in order.
    fn leaves(
        mut self,
        mut waiting: BTreeMap<B256, Vec<u8>>,
        leaf: &mut dyn FnMut(B256, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let mut changed = self.changed.take().map(Iterator::peekable);
        let mut path = Vec::new();
        let mut rlp = Vec::new();
        loop {
            let base = match &self.base {
                Some(cursor) => cursor.entry()?,
                None => None,
            };
            let base = base.map(|(key, rlp)| (&key[self.owner_bytes..], rlp));
            let change = changed.as_mut().and_then(|changed| changed.peek());
            let take_change = match (base, change) {
                (None, None) => break,
                (Some(_), None) => false,
                (None, Some(_)) => true,
                (Some((path, _)), Some((other, _))) => ***other <= *path,
            };
            let replaces = match (base, change) {
                (Some((path, _)), Some((other, _))) => ***other == *path,
                _ => false,
            };
            path.clear();
            rlp.clear();
            let mut is_there = true;
            if take_change {
                if let Some((at, place)) = changed.as_mut().and_then(Iterator::next) {
                    path.extend_from_slice(at);
                    match self.tries.changes.at(*place) {
                        Some(node) => rlp.extend_from_slice(node),
                        None => is_there = false,
                    }
                }
            } else if let Some((at, node)) = base {
                path.extend_from_slice(at);
                rlp.extend_from_slice(node);
            }
            if (!take_change || replaces)
                && let Some(cursor) = &mut self.base
            {
                cursor.advance();
            }
            if is_there && self.give(&path, &rlp, &mut waiting, leaf)?.is_break() {
                return Ok(());
            }
        }
        for (key, value) in waiting {
            if leaf(key, &value).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Gives the waiting leaves before a node, then its own.
    fn give(
        &self,
        path: &[u8],
        rlp: &[u8],
        waiting: &mut BTreeMap<B256, Vec<u8>>,
        leaf: &mut dyn FnMut(B256, &[u8]) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Error> {
        let first = pack(path);
        while let Some(entry) = waiting.first_entry()
            && *entry.key() < first
        {
            let (key, value) = entry.remove_entry();
            if leaf(key, &value).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        if let Some((key, value)) = leaf_value(path, rlp) {
            return Ok(leaf(key, value));
        }
        let mut keep = |key: B256, value: &[u8]| {
            waiting.insert(key, value.to_vec());
        };
        leaves_in(path, rlp, &mut keep).map_err(|what| malformed(&first, what))?;
        Ok(ControlFlow::Continue(()))
    }
}

fn malformed(path: &B256, what: tandem_trie::Malformed) -> Error {
    Error::Damaged(format!("malformed {what} in a trie node near {path}"))
}

/// Returns the first key below a path.
fn pack(path: &[u8]) -> B256 {
    let mut key = B256::ZERO;
    for (at, nibble) in path.iter().take(64).enumerate() {
        key[at / 2] |= if at % 2 == 0 { nibble << 4 } else { *nibble };
    }
    key
}
