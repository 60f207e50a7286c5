//! Comparison of results executed ahead of their turn with the block's state.

use super::{BlockState, Entry, Slot, StateReader};
use crate::{
    error::Error,
    state::{
        published::{Position, Published},
        reads::{Reads, Source, Sources},
    },
};
use alloy_primitives::map::HashMap;
use revm::{
    Database,
    state::{Account as EvmAccount, EvmState, TransactionId},
};
use std::{collections::hash_map::Entry as MapEntry, sync::Arc};
use tandem_primitives::{Account, Address, U256, keccak256};

/// Destination of published commits, for execution ahead of turns.
pub struct Publisher {
    sources: Arc<Sources>,
    position: Position,
}

impl Publisher {
    /// Returns the writes of the block, and the position of the next commit among them.
    pub fn place(&self) -> (&Published, Position) {
        (&self.sources.published, self.position)
    }
}

impl<R: StateReader> BlockState<'_, R> {
    /// Publishes commits at this position from now on. `None` stops this until the next call.
    pub fn publish(&mut self, to: Option<(&Arc<Sources>, Position)>) {
        self.publisher =
            to.map(|(sources, position)| Publisher { sources: sources.clone(), position });
    }

    /// Publishes all writes of the block so far, at this position.
    pub fn publish_all(&self, published: &Published, position: Position) {
        for (hash, code) in &self.codes {
            published.add_code(*hash, code.clone());
        }
        for (address, entry) in self.accounts.iter().filter(|(_, entry)| entry.changed) {
            let slots = entry.slots.iter().filter(|(_, slot)| slot.changed);
            let slots = slots.map(|(key, slot)| (*key, slot.value));
            // A wipe hides earlier writes of the same position as well. A value that is read wrong
            // for this reason does not hold.
            published.write(position, *address, entry.account, entry.wiped, slots);
        }
    }

    /// Returns whether a transaction whose turn it is would read the same values. Keeps values of
    /// the parent's state that are new here. An unreadable value does not hold: the transaction
    /// that needs it meets the error itself.
    pub fn holds(&mut self, reads: &Reads) -> bool {
        reads.accounts.iter().all(|read| {
            self.holds_account(read.address, read.account, read.source).unwrap_or(false)
        }) && reads.slots.iter().all(|read| {
            self.holds_slot(read.address, read.key, read.value, read.source).unwrap_or(false)
        })
    }

    fn holds_account(
        &mut self,
        address: Address,
        account: Option<Account>,
        source: Source,
    ) -> Result<bool, Error> {
        let vacant = match self.accounts.entry(address) {
            MapEntry::Occupied(entry) => return Ok(entry.get().account == account),
            MapEntry::Vacant(vacant) => vacant,
        };
        let (hash, current) = match source {
            Source::Parent(hash) => (hash, account),
            Source::Block => {
                let hash = keccak256(address);
                (hash, self.reader.account(&hash)?)
            }
        };
        let slots = HashMap::default();
        vacant.insert(Entry { hash, account: current, changed: false, wiped: false, slots });
        Ok(current == account)
    }

    fn holds_slot(
        &mut self,
        address: Address,
        key: U256,
        value: U256,
        source: Source,
    ) -> Result<bool, Error> {
        // The EVM loads an account before its slots.
        let Some(entry) = self.accounts.get_mut(&address) else { return Ok(false) };
        let void = entry.wiped || entry.account.is_none();
        let vacant = match entry.slots.entry(key) {
            MapEntry::Occupied(slot) => return Ok(slot.get().value == value),
            MapEntry::Vacant(_) if void => return Ok(value.is_zero()),
            MapEntry::Vacant(vacant) => vacant,
        };
        let (hash, current) = match source {
            Source::Parent(hash) => (hash, value),
            Source::Block => {
                let hash = keccak256(key.to_be_bytes::<32>());
                (hash, self.reader.slot(&entry.hash, &hash)?)
            }
        };
        vacant.insert(Slot { hash, value: current, changed: false });
        Ok(current == value)
    }

    /// Adds the fee to a result whose transaction did not load its beneficiary. Like the EVM at the
    /// end of a transaction, it touches the account even if the fee is zero (EIP-161).
    ///
    /// # Errors
    /// Returns an error if the account cannot be read.
    pub fn reward(
        &mut self,
        changes: &mut EvmState,
        beneficiary: Address,
        reward: U256,
    ) -> Result<(), Error> {
        let mut account = match self.basic(beneficiary)? {
            Some(info) => EvmAccount::from(info),
            None => EvmAccount::new_not_existing(TransactionId::ZERO),
        };
        if let Some(balance) = account.info.balance.checked_add(reward) {
            account.info.balance = balance;
        }
        account.mark_touch();
        changes.insert(beneficiary, account);
        Ok(())
    }
}
