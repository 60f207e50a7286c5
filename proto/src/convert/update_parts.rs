//! State updates split into messages, and advice about keys and values.

use super::{
    error::{At, ConvertError},
    field::{count, hash, hash_bytes, hash_list, items, size, total},
    state::{Order, update_list, updates},
};
use crate::{
    limits::UPDATE_PART_BYTES,
    multiproof::{Foresight, Prefetch, StateUpdate},
    wire::multiproof_workers::v1,
};
use std::sync::Arc;
use tandem_primitives::{AccountUpdate, B256, ShardSet};

/// Maximum size of an account without its slots, in bytes: its columns, and the counts before them.
const ACCOUNT_BYTES_MAX: usize = 128;
/// Maximum size of a slot in bytes.
const SLOT_BYTES_MAX: usize = 66;

/// Messages of one [`StateUpdate`], each of at most [`UPDATE_PART_BYTES`], almost always a single
/// one. Applied in order, they have the effect of the whole update. An account that is split across
/// parts is cleared by its first part only, and has the same fields in each part.
#[derive(Debug)]
pub struct UpdateParts {
    update: Arc<StateUpdate>,
    part_bytes: usize,
    /// Positions of the next account and of its next slot.
    next: Option<(usize, usize)>,
}

impl UpdateParts {
    /// Splits an update.
    pub fn new(update: Arc<StateUpdate>) -> Self {
        Self::with_part_bytes(update, UPDATE_PART_BYTES)
    }

    /// Splits the part of an update that concerns these shards. There may be nothing to send.
    pub fn of_shards(update: Arc<StateUpdate>, shards: ShardSet) -> Self {
        let of_them = |account: &&AccountUpdate| shards.contains(account.shard());
        if update.accounts.iter().all(|account| of_them(&account)) {
            return Self::new(update);
        }
        let accounts: Vec<_> = update.accounts.iter().filter(of_them).cloned().collect();
        let next = (!accounts.is_empty()).then_some((0, 0));
        Self { next, ..Self::new(Arc::new(StateUpdate { accounts })) }
    }

    /// Splits an update with another limit, for tests. Each part holds at least one account and one
    /// slot.
    pub fn with_part_bytes(update: Arc<StateUpdate>, part_bytes: usize) -> Self {
        Self { update, part_bytes, next: Some((0, 0)) }
    }

    /// Takes the accounts that fit into one part, the last one perhaps with some of its slots.
    fn cut(&mut self, (mut index, mut slot): (usize, usize)) -> Vec<AccountUpdate> {
        let mut part = Vec::new();
        let mut room = self.part_bytes;
        self.next = None;
        while let Some(account) = self.update.accounts.get(index) {
            let slots_max = room.saturating_sub(ACCOUNT_BYTES_MAX) / SLOT_BYTES_MAX;
            let left = account.slots.len() - slot;
            let fits = room >= ACCOUNT_BYTES_MAX && (left == 0 || slots_max > 0);
            if !part.is_empty() && !fits {
                self.next = Some((index, slot));
                break;
            }
            let taken = left.min(slots_max.max(1));
            part.push(AccountUpdate {
                wiped: account.wiped && slot == 0,
                slots: account.slots[slot..slot + taken].to_vec(),
                ..*account
            });
            if taken < left {
                self.next = Some((index, slot + taken));
                break;
            }
            room = room.saturating_sub(ACCOUNT_BYTES_MAX + taken * SLOT_BYTES_MAX);
            (index, slot) = (index + 1, 0);
        }
        part
    }
}

impl Iterator for UpdateParts {
    type Item = v1::StateUpdate;

    fn next(&mut self) -> Option<v1::StateUpdate> {
        let start = self.next.take()?;
        let accounts = &self.update.accounts;
        let slots: usize = accounts.iter().map(|account| account.slots.len()).sum();
        let whole = accounts.len() * ACCOUNT_BYTES_MAX + slots * SLOT_BYTES_MAX;
        let list = if start == (0, 0) && whole <= self.part_bytes {
            update_list(accounts)
        } else {
            update_list(&self.cut(start))
        };
        Some(v1::StateUpdate { accounts: Some(list) })
    }
}

impl From<(B256, &Prefetch)> for v1::Prefetch {
    fn from((block, keys): (B256, &Prefetch)) -> Self {
        let slots: usize = keys.accounts.iter().map(|(_, slots)| slots.len()).sum();
        let mut slot_keys = Vec::with_capacity(slots * 32);
        for slot in keys.accounts.iter().flat_map(|(_, slots)| slots) {
            slot_keys.extend_from_slice(slot.as_slice());
        }
        Self {
            block: hash_bytes(block),
            address_hashes: hash_list(keys.accounts.iter().map(|(address, _)| address)),
            slot_counts: keys.accounts.iter().map(|(_, slots)| size(slots.len())).collect(),
            slot_keys: slot_keys.into(),
        }
    }
}

impl TryFrom<v1::Prefetch> for (B256, Prefetch) {
    type Error = ConvertError;

    fn try_from(wire: v1::Prefetch) -> Result<Self, ConvertError> {
        let block = hash(&wire.block).at("block")?;
        let addresses = items::<32>(&wire.address_hashes).at("address_hashes")?;
        count(addresses.len() as u64, wire.slot_counts.len()).at("slot_counts")?;
        let mut keys: &[[u8; 32]] = items(&wire.slot_keys).at("slot_keys")?;
        count(total(&wire.slot_counts), keys.len()).at("slot_keys")?;
        let mut accounts = Vec::with_capacity(addresses.len());
        for (address, &slots) in addresses.iter().zip(&wire.slot_counts) {
            let (own, behind) = keys.split_at(slots as usize);
            keys = behind;
            accounts.push((address.into(), own.iter().map(B256::from).collect()));
        }
        Ok((block, Prefetch { accounts }))
    }
}

impl From<(B256, &Foresight)> for v1::Foresee {
    fn from((block, foresight): (B256, &Foresight)) -> Self {
        Self {
            block: hash_bytes(block),
            before: Some(update_list(&foresight.before)),
            after: Some(update_list(&foresight.after)),
        }
    }
}

impl TryFrom<v1::Foresee> for (B256, Foresight) {
    type Error = ConvertError;

    fn try_from(wire: v1::Foresee) -> Result<Self, ConvertError> {
        let block = hash(&wire.block).at("block")?;
        let before = updates(wire.before.unwrap_or_default(), Order::Any).at("before")?;
        let after = updates(wire.after.unwrap_or_default(), Order::Any).at("after")?;
        count(before.len() as u64, after.len()).at("after")?;
        Ok((block, Foresight { before, after }))
    }
}
