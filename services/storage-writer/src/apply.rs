//! Changes that blocks make to the base's flat state and tries.

use crate::{Error, walk::BaseNodes};
use alloy_primitives::map::B256Map;
use std::sync::Arc;
use tandem_primitives::{
    AccountUpdate, B256, BlockId, Bytes, NodeChange, Shard, SlotUpdate, SubtrieRoot, TrieDiff, U256,
};
use tandem_store::{
    Batch, View,
    tables::{AccountTrie, Accounts, Slots, StorageTrie},
};
use tandem_trie::{ShardTrie, apply_block, combine};

/// Returns whether an update clears the account's storage. A deleted account has none.
pub fn wipes(update: &AccountUpdate) -> bool {
    update.wiped || update.account.is_none()
}

/// Returns the updates that undo these: the present values of everything that they touch. For a
/// wiped account these are all its slots, to be written over a wiped storage.
///
/// The undo of an undo is the original update. So this also rebuilds a block's diff before the base
/// steps back from it.
///
/// # Errors
/// When the database fails.
pub fn undo(view: &View<'_>, updates: &[AccountUpdate]) -> Result<Vec<AccountUpdate>, Error> {
    let accounts = view.multi_get::<Accounts>(updates.iter().map(|update| update.address_hash))?;
    let kept = updates.iter().filter(|update| !wipes(update));
    let values = view.multi_get::<Slots>(
        kept.flat_map(|update| update.slots.iter().map(|slot| (update.address_hash, slot.key))),
    )?;
    let mut values = values.into_iter();
    let mut undo = Vec::with_capacity(updates.len());
    for (update, account) in updates.iter().zip(accounts) {
        let wiped = wipes(update);
        let slots = if wiped {
            all_slots(view, &update.address_hash)?
        } else {
            let old = |(slot, value): (&SlotUpdate, Option<U256>)| SlotUpdate {
                key: slot.key,
                value: value.unwrap_or_default(),
            };
            update.slots.iter().zip(values.by_ref()).map(old).collect()
        };
        undo.push(AccountUpdate { address_hash: update.address_hash, account, wiped, slots });
    }
    Ok(undo)
}

fn all_slots(view: &View<'_>, address_hash: &B256) -> Result<Vec<SlotUpdate>, Error> {
    let mut slots = Vec::new();
    let mut cursor = view.cursor::<Slots>(address_hash.as_slice());
    while let Some((key, _)) = cursor.entry()? {
        let key = B256::try_from(&key[32..])
            .map_err(|_| Error::Damaged(format!("malformed slot key of {address_hash}")))?;
        slots.push(SlotUpdate { key, value: cursor.value()?.unwrap_or_default() });
        cursor.advance();
    }
    Ok(slots)
}

/// Writes updates to the flat state. `view` shows the state before them.
///
/// # Errors
/// When the database fails.
pub fn write_state(
    batch: &mut Batch<'_>,
    view: &View<'_>,
    updates: &[AccountUpdate],
) -> Result<(), Error> {
    for update in updates {
        let address_hash = update.address_hash;
        if wipes(update) {
            let mut cursor = view.cursor::<Slots>(address_hash.as_slice());
            while let Some((key, _)) = cursor.entry()? {
                batch.delete_raw::<Slots>(key);
                cursor.advance();
            }
        }
        let Some(account) = &update.account else {
            batch.delete::<Accounts>(address_hash);
            continue;
        };
        batch.put::<Accounts>(address_hash, account);
        for slot in &update.slots {
            if slot.value.is_zero() {
                batch.delete::<Slots>((address_hash, slot.key));
            } else {
                batch.put::<Slots>((address_hash, slot.key), slot.value);
            }
        }
    }
    Ok(())
}

/// Returns all changes of trie diffs, sorted by owner and path. The diffs come in the order of their
/// blocks: if a path comes twice, the last change counts, and nothing counts that was written before its
/// trie was wiped. Skips the account trie's root node, because it is made from the tops.
pub fn in_order(parts: &[Arc<TrieDiff>]) -> Vec<NodeChange<'_>> {
    let wipes = (0..).zip(parts).flat_map(|(at, part)| part.wiped.iter().map(move |o| (*o, at)));
    let wiped: B256Map<usize> = wipes.collect();
    let mut changes = Vec::with_capacity(parts.iter().map(|part| part.len()).sum());
    for (at, part) in parts.iter().enumerate() {
        changes.extend(part.iter().filter(|change| match change.owner {
            Some(owner) => wiped.get(&owner).is_none_or(|wiped| *wiped <= at),
            None => !change.path.is_empty(),
        }));
    }
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

/// Changes that blocks make to the tries.
#[derive(Clone, Debug)]
pub struct Tries {
    /// Changed nodes, for all shards together, in the order of the blocks.
    pub parts: Vec<Arc<TrieDiff>>,
    /// State root.
    pub root: B256,
    /// Root node, `None` when the state is empty.
    pub root_node: Option<Vec<u8>>,
    /// Top node of each shard.
    pub tops: [SubtrieRoot; Shard::COUNT],
}

impl Tries {
    /// Computes the root from a diff over the base that `view` shows.
    ///
    /// # Errors
    /// When the database fails, or a shard's top node is malformed.
    pub fn from_parts(view: &View<'_>, parts: Vec<Arc<TrieDiff>>) -> Result<Self, Error> {
        let paths: Vec<[u8; 1]> = Shard::all().map(|shard| [shard.nibble()]).collect();
        let tops = view.multi_get::<AccountTrie>(paths.iter().map(|path| path.as_slice()))?;
        let mut roots: [SubtrieRoot; Shard::COUNT] = Default::default();
        for (root, top) in roots.iter_mut().zip(tops) {
            *root = top;
        }
        for change in parts.iter().flat_map(|part| part.iter()) {
            if let (None, [nibble]) = (change.owner, change.path)
                && let Some(root) = roots.get_mut(usize::from(*nibble))
            {
                *root = change.rlp.map(Bytes::copy_from_slice);
            }
        }
        let (root, root_node) = combine(&roots)?;
        Ok(Self { parts, root, root_node, tops: roots })
    }

    /// Computes the changes that updates make to the tries of the base that `view` shows.
    ///
    /// # Errors
    /// When the database fails, or its tries are damaged.
    pub fn compute(view: &View<'_>, updates: &[AccountUpdate]) -> Result<Self, Error> {
        let mut shards = new_shards();
        let (root, roots, diff) = apply_block(&mut shards, updates, &mut BaseNodes(view))?;
        let (_, root_node) = combine(&roots)?;
        Ok(Self { parts: vec![Arc::new(diff)], root, root_node, tops: roots })
    }

    /// Rejects a root other than `header`, the root in the block's header.
    ///
    /// # Errors
    /// [`Error::StateRoot`].
    pub fn check(self, block: BlockId, header: B256) -> Result<Self, Error> {
        if self.root == header {
            return Ok(self);
        }
        Err(Error::StateRoot { block, header, computed: self.root })
    }

    /// Writes the changed nodes. `view` shows the tries before them.
    ///
    /// # Errors
    /// When the database fails.
    pub fn write(&self, batch: &mut Batch<'_>, view: &View<'_>) -> Result<(), Error> {
        for owner in self.parts.iter().flat_map(|part| &part.wiped) {
            let mut cursor = view.cursor::<StorageTrie>(owner.as_slice());
            while let Some((key, _)) = cursor.entry()? {
                batch.delete_raw::<StorageTrie>(key);
                cursor.advance();
            }
        }
        // Written in key order: neighbours take the same path into the database's sorted memory,
        // which is then in the processor's caches. The state diff comes in that order.
        for change in in_order(&self.parts) {
            match (change.owner, change.rlp) {
                (None, Some(rlp)) => batch.put::<AccountTrie>(change.path, rlp),
                (None, None) => batch.delete::<AccountTrie>(change.path),
                (Some(owner), Some(rlp)) => batch.put::<StorageTrie>((owner, change.path), rlp),
                (Some(owner), None) => batch.delete::<StorageTrie>((owner, change.path)),
            }
        }
        match &self.root_node {
            Some(rlp) => batch.put::<AccountTrie>(&[], rlp),
            None => batch.delete::<AccountTrie>(&[]),
        }
        Ok(())
    }
}

/// Returns sixteen shard tries that have not read any node yet.
pub fn new_shards() -> Vec<ShardTrie> {
    Shard::all().map(ShardTrie::new).collect()
}
