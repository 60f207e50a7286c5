//! Flat state some blocks before or after the base, as far as their diffs change it.

use crate::{
    Error,
    apply::{self, wipes},
};
use alloy_primitives::map::B256Map;
use std::collections::BTreeMap;
use tandem_primitives::{Account, AccountUpdate, B256, SlotUpdate, U256};
use tandem_store::View;

/// Account above the base, as far as known.
#[derive(Debug, Default)]
struct Over {
    account: Option<Account>,
    /// Whether the slots of the base are hidden.
    wiped: bool,
    slots: BTreeMap<B256, U256>,
}

/// Updates on top of the base that `view` shows.
pub struct Overlay<'a> {
    view: &'a View<'a>,
    accounts: B256Map<Over>,
}

impl<'a> Overlay<'a> {
    /// Creates an overlay without updates: the base itself.
    pub fn new(view: &'a View<'a>) -> Self {
        Self { view, accounts: B256Map::default() }
    }

    /// Returns the updates that undo these: the present values of everything that they touch.
    /// [`apply::undo`] does this for the base.
    ///
    /// # Errors
    /// When the database fails.
    pub fn undo(&self, updates: &[AccountUpdate]) -> Result<Vec<AccountUpdate>, Error> {
        let mut undo = apply::undo(self.view, updates)?;
        for (undo, update) in undo.iter_mut().zip(updates) {
            let Some(over) = self.accounts.get(&update.address_hash) else { continue };
            undo.account = over.account;
            if wipes(update) {
                let base = if over.wiped { Vec::new() } else { std::mem::take(&mut undo.slots) };
                let base = base.into_iter().map(|slot| (slot.key, slot.value));
                let mut slots: BTreeMap<B256, U256> = base.collect();
                slots.extend(&over.slots);
                slots.retain(|_, value| !value.is_zero());
                undo.slots = slot_updates(&slots);
                continue;
            }
            for slot in &mut undo.slots {
                match over.slots.get(&slot.key) {
                    Some(value) => slot.value = *value,
                    None if over.wiped => slot.value = U256::ZERO,
                    None => {}
                }
            }
        }
        Ok(undo)
    }

    /// Applies updates.
    pub fn apply(&mut self, updates: &[AccountUpdate]) {
        for update in updates {
            let over = self.accounts.entry(update.address_hash).or_default();
            over.account = update.account;
            if wipes(update) {
                over.wiped = true;
                over.slots.clear();
            }
            over.slots.extend(update.slots.iter().map(|slot| (slot.key, slot.value)));
        }
    }

    /// Returns all updates merged into one list, in the order of the keys.
    pub fn into_updates(self) -> Vec<AccountUpdate> {
        let mut updates: Vec<AccountUpdate> = self
            .accounts
            .into_iter()
            .map(|(address_hash, over)| AccountUpdate {
                address_hash,
                account: over.account,
                wiped: over.wiped,
                slots: slot_updates(&over.slots),
            })
            .collect();
        updates.sort_unstable_by_key(|update| update.address_hash);
        updates
    }
}

fn slot_updates(slots: &BTreeMap<B256, U256>) -> Vec<SlotUpdate> {
    slots.iter().map(|(key, value)| SlotUpdate { key: *key, value: *value }).collect()
}
