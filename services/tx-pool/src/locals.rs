//! Transactions of this node's users. The pool treats them like all others; they are protected by
//! being remembered: they are in the journal, and added again when they were evicted.

use crate::pool::{Pool, Pooled};
use std::collections::BTreeMap;
use tandem_primitives::{Address, B256, Bytes};

/// Transaction by its name and its place among its sender's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub sender: Address,
    pub nonce: u64,
    pub hash: B256,
}

impl Place {
    /// Returns the place of a pooled transaction.
    pub fn of(tx: &Pooled) -> Self {
        Self { sender: tx.sender, nonce: tx.nonce, hash: tx.hash }
    }
}

/// Transactions of this node's users, by sender and nonce.
pub(crate) struct Locals {
    held: BTreeMap<(Address, u64), Local>,
    bytes: usize,
    max: usize,
    bytes_max: usize,
}

struct Local {
    hash: B256,
    network: Bytes,
}

impl Locals {
    /// Makes room for `max` transactions of `bytes_max` together.
    pub fn new(max: usize, bytes_max: usize) -> Self {
        Self { held: BTreeMap::new(), bytes: 0, max, bytes_max }
    }

    /// Returns the number of transactions.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Returns the bytes of the transactions.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Remembers a transaction by its network form, in place of an earlier one with its nonce.
    /// Returns whether there was room.
    pub fn add(&mut self, place: Place, network: Bytes) -> bool {
        let Place { sender, nonce, hash } = place;
        let before = self.held.get(&(sender, nonce)).map_or(0, |local| local.network.len());
        let is_new = !self.held.contains_key(&(sender, nonce));
        let bytes = self.bytes - before + network.len();
        if bytes > self.bytes_max || (is_new && self.held.len() >= self.max) {
            return false;
        }
        self.bytes = bytes;
        self.held.insert((sender, nonce), Local { hash, network });
        true
    }

    /// Returns whether the transaction is remembered.
    pub fn has(&self, place: &Place) -> bool {
        let held = self.held.get(&(place.sender, place.nonce));
        held.is_some_and(|local| local.hash == place.hash)
    }

    /// Returns the senders.
    pub fn senders(&self) -> Vec<Address> {
        let mut senders: Vec<_> = self.held.keys().map(|(sender, _)| *sender).collect();
        senders.dedup();
        senders
    }

    /// Forgets a sender's transactions below a nonce, which are in blocks or can never be.
    pub fn advance(&mut self, sender: Address, nonce: u64) {
        let used = self.held.extract_if((sender, 0)..(sender, nonce), |_, _| true);
        let bytes: usize = used.map(|(_, local)| local.network.len()).sum();
        self.bytes -= bytes;
    }

    /// Returns the transactions that are not in the pool.
    pub fn missing(&self, pool: &Pool) -> Vec<Bytes> {
        let locals = self.held.values().filter(|local| pool.get(&local.hash).is_none());
        locals.map(|local| local.network.clone()).collect()
    }

    /// Returns all transactions in their network form.
    pub fn all(&self) -> impl Iterator<Item = &Bytes> {
        self.held.values().map(|local| &local.network)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_bounded_and_leaves_with_its_nonce() {
        let (mut locals, sender) = (Locals::new(3, 100), Address::repeat_byte(1));
        let raw = |bytes: usize| Bytes::from(vec![0; bytes]);
        let named = |nonce, hash| Place { sender, nonce, hash: B256::with_last_byte(hash) };
        for nonce in 0..3 {
            assert!(locals.add(named(nonce, nonce as u8), raw(20)));
        }
        assert!(!locals.add(named(3, 9), raw(1)), "too many");
        assert!(!locals.add(named(2, 9), raw(61)), "too long");
        assert!(locals.add(named(2, 9), raw(60)), "instead of another");
        assert!(locals.has(&named(2, 9)) && !locals.has(&named(1, 9)));
        locals.advance(sender, 2);
        assert_eq!((locals.len(), locals.bytes(), locals.senders()), (1, 60, vec![sender]));
        assert_eq!(locals.all().count(), 1);
        locals.advance(Address::repeat_byte(2), 9);
        assert_eq!(locals.len(), 1);
    }
}
