//! Transactions of this node's users. The pool treats them like all others; they are protected by
//! being remembered: they are in the journal, and added again when they were evicted.

use crate::pool::Pool;
use std::collections::BTreeMap;
use tandem_primitives::{Address, B256, Bytes};

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
    pub fn add(&mut self, place: (Address, u64), hash: B256, network: Bytes) -> bool {
        let before = self.held.get(&place).map_or(0, |local| local.network.len());
        let is_new = !self.held.contains_key(&place);
        let bytes = self.bytes - before + network.len();
        if bytes > self.bytes_max || (is_new && self.held.len() >= self.max) {
            return false;
        }
        self.bytes = bytes;
        self.held.insert(place, Local { hash, network });
        true
    }

    /// Returns whether the transaction is remembered.
    pub fn has(&self, place: (Address, u64), hash: &B256) -> bool {
        self.held.get(&place).is_some_and(|local| local.hash == *hash)
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
        for nonce in 0..3 {
            assert!(locals.add((sender, nonce), B256::with_last_byte(nonce as u8), raw(20)));
        }
        assert!(!locals.add((sender, 3), B256::ZERO, raw(1)), "too many");
        assert!(!locals.add((sender, 2), B256::ZERO, raw(61)), "too long");
        assert!(locals.add((sender, 2), B256::ZERO, raw(60)), "instead of another");
        assert!(locals.has((sender, 2), &B256::ZERO) && !locals.has((sender, 1), &B256::ZERO));
        locals.advance(sender, 2);
        assert_eq!((locals.len(), locals.bytes(), locals.senders()), (1, 60, vec![sender]));
        assert_eq!(locals.all().count(), 1);
        locals.advance(Address::repeat_byte(2), 9);
        assert_eq!(locals.len(), 1);
    }
}
