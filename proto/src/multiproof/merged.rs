//! Updates of several transactions as one, with the last value of every changed key.

use super::StateUpdate;
use alloy_primitives::map::{B256Map, hash_map::Entry};
use std::mem;
use tandem_primitives::AccountUpdate;

/// Several consecutive updates as one.
#[derive(Default, Debug)]
pub struct MergedUpdates {
    accounts: Vec<AccountUpdate>,
    /// Position in `accounts` by address hash.
    places: B256Map<usize>,
    /// Positions whose slots may hold a key more than once, the newest value last.
    repeated: Vec<usize>,
}

impl MergedUpdates {
    /// Returns whether there is no update.
    pub fn is_empty(&self) -> bool {
        self.accounts.is_empty()
    }

    /// Adds the next update.
    pub fn add(&mut self, update: StateUpdate) {
        for later in update.accounts {
            match self.places.entry(later.address_hash) {
                Entry::Vacant(place) => {
                    place.insert(self.accounts.len());
                    self.accounts.push(later);
                }
                Entry::Occupied(place) => {
                    let earlier = &mut self.accounts[*place.get()];
                    earlier.account = later.account;
                    if later.wiped {
                        // The wipe removes earlier writes and everything the account had below.
                        (earlier.wiped, earlier.slots) = (true, later.slots);
                    } else if earlier.slots.is_empty() {
                        earlier.slots = later.slots;
                    } else if !later.slots.is_empty() {
                        earlier.slots.extend(later.slots);
                        self.repeated.push(*place.get());
                    }
                }
            }
        }
    }

    /// Takes the updates so far.
    pub fn take(&mut self) -> StateUpdate {
        self.repeated.sort_unstable();
        self.repeated.dedup();
        for place in self.repeated.drain(..) {
            let slots = &mut self.accounts[place].slots;
            slots.reverse();
            // The sort is stable, so the newest value of a key stays before its older values.
            slots.sort_by_key(|slot| slot.key);
            slots.dedup_by_key(|slot| slot.key);
        }
        self.places.clear();
        StateUpdate { accounts: mem::take(&mut self.accounts) }
    }
}
