//! Valid blob transactions without their blobs. The pool knows what later transactions must be
//! checked against, and which blobs are no longer needed.
//!
//! A block can only hold one transaction of each sender and nonce, so the pool holds one. Another
//! transaction replaces it only by paying twice as much in each respect. Blobs are large, so a
//! sender that fills the pool with them must pay for nearly all.

use super::rank::{Market, Rank};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};
use tandem_chain::Wrapper;
use tandem_primitives::{Account, Address, B256, U256};

/// Maximum distance of a transaction's nonce above the sender's.
const NONCES_AHEAD_MAX: u64 = 16;

/// Factor by which a replacement must raise each fee.
const REPLACEMENT_FACTOR: u128 = 2;

/// Approximate bytes of an entry besides its blobs.
const ENTRY_BYTES: usize = 512;

/// Valid blob transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    pub hash: B256,
    pub sender: Address,
    pub nonce: u64,
    /// Maximum fees, in wei: tip, gas and blob gas.
    pub fees: [u128; 3],
    /// Maximum cost for the sender in wei, value included.
    pub cost: U256,
    /// Form in which the transaction came with its blobs.
    pub wrapper: Wrapper,
    pub versioned_hashes: Vec<B256>,
    /// Bytes of its sidecar, which blob-validator holds.
    pub sidecar_bytes: usize,
}

impl Entry {
    fn bytes(&self) -> usize {
        ENTRY_BYTES + self.versioned_hashes.len() * size_of::<B256>() + self.sidecar_bytes
    }
}

/// Reason for refusing a transaction.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PoolError {
    /// The transaction is in the pool, with its blobs.
    #[error("already known")]
    AlreadyKnown,
    /// A transaction with this nonce is in a block already.
    #[error("nonce too low: next nonce {next}, tx nonce {nonce}")]
    NonceTooLow {
        /// Sender's nonce.
        next: u64,
        /// Transaction's nonce.
        nonce: u64,
    },
    /// Too many transactions would have to precede this one.
    #[error("nonce too high: next nonce {next}, tx nonce {nonce}")]
    NonceTooHigh {
        /// Sender's nonce.
        next: u64,
        /// Transaction's nonce.
        nonce: u64,
    },
    /// The pool holds a transaction of this sender and nonce that pays too much to be replaced.
    #[error("replacement transaction underpriced: not twice the fees of {known}")]
    Underpriced {
        /// Hash of the transaction in the pool.
        known: B256,
    },
    /// The sender cannot pay this transaction and those in the pool.
    #[error("insufficient funds for gas * price + value: balance {balance}, queued cost {queued}")]
    InsufficientFunds {
        /// Sender's balance, in wei.
        balance: U256,
        /// Cost of this transaction and the sender's others in the pool, in wei.
        queued: U256,
    },
    /// The pool is full of transactions that pay as much or more.
    #[error(
        "underpriced: the pool is full, and a tip of {tip} wei at the head's prices is too low"
    )]
    TooCheap {
        /// Payment for gas besides the base fee at current prices, in wei.
        tip: u128,
    },
    /// The transaction is larger than the whole pool may be.
    #[error("oversized data: the pool holds at most {max} bytes")]
    TooLarge {
        /// Maximum bytes of the pool.
        max: usize,
    },
}

impl PoolError {
    /// Returns a constant name for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::AlreadyKnown => "already_known",
            Self::NonceTooLow { .. } => "nonce_too_low",
            Self::NonceTooHigh { .. } => "nonce_too_high",
            Self::Underpriced { .. } => "replacement_underpriced",
            Self::InsufficientFunds { .. } => "insufficient_funds",
            Self::TooCheap { .. } => "underpriced",
            Self::TooLarge { .. } => "oversized",
        }
    }
}

/// The pooled transactions. When there is no room, the lowest-paying are evicted for one that pays
/// more.
pub struct Pool {
    entries: HashMap<B256, Held>,
    by_sender: HashMap<Address, BTreeMap<u64, B256>>,
    /// Hashes by order of arrival.
    order: BTreeMap<u64, B256>,
    next: u64,
    /// Number of transactions that name each blob.
    named: HashMap<B256, usize>,
    bytes: usize,
    bytes_max: usize,
    age_max: Duration,
}

struct Held {
    entry: Entry,
    place: u64,
    since: Instant,
}

impl Pool {
    /// Creates a pool for at most `bytes_max` of transactions with sidecars, each for at most
    /// `age_max`.
    pub fn new(bytes_max: usize, age_max: Duration) -> Self {
        Self {
            entries: HashMap::new(),
            by_sender: HashMap::new(),
            order: BTreeMap::new(),
            next: 0,
            named: HashMap::new(),
            bytes: 0,
            bytes_max,
            age_max,
        }
    }

    /// Returns the number of transactions.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the approximate bytes of the transactions with their sidecars.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns whether the pool holds a transaction in this form. Another form has other proofs.
    pub fn has(&self, hash: &B256, wrapper: Wrapper) -> bool {
        self.entries.get(hash).is_some_and(|held| held.entry.wrapper == wrapper)
    }

    /// Checks whether there is room for a transaction of this sender, whose account at the head is
    /// `account`.
    ///
    /// # Errors
    /// [`PoolError`], except [`PoolError::AlreadyKnown`].
    pub fn check(&self, entry: &Entry, account: &Account, market: Market) -> Result<(), PoolError> {
        self.victims(entry, account, market).map(drop)
    }

    /// Returns the transactions that this one would evict for lack of room.
    fn victims(
        &self,
        entry: &Entry,
        account: &Account,
        market: Market,
    ) -> Result<Vec<B256>, PoolError> {
        let (nonce, next) = (entry.nonce, account.nonce);
        if entry.bytes() > self.bytes_max {
            return Err(PoolError::TooLarge { max: self.bytes_max });
        }
        if nonce < next {
            return Err(PoolError::NonceTooLow { next, nonce });
        }
        if nonce - next >= NONCES_AHEAD_MAX {
            return Err(PoolError::NonceTooHigh { next, nonce });
        }
        let mut queued = entry.cost;
        for (other, hash) in self.by_sender.get(&entry.sender).into_iter().flatten() {
            let Some(Held { entry: known, .. }) = self.entries.get(hash) else { continue };
            if *other != nonce {
                if *other >= next {
                    queued = queued.saturating_add(known.cost);
                }
                continue;
            }
            let outbids = known.fees.iter().zip(&entry.fees).all(|(known, fee)| {
                known.checked_mul(REPLACEMENT_FACTOR).is_some_and(|least| *fee >= least)
            });
            if known.hash != entry.hash && !outbids {
                return Err(PoolError::Underpriced { known: known.hash });
            }
        }
        let balance = account.balance;
        if queued > balance {
            return Err(PoolError::InsufficientFunds { balance, queued });
        }
        self.cheaper(entry, market)
    }

    /// Returns the lowest-paying transactions that must be evicted for this one.
    fn cheaper(&self, entry: &Entry, market: Market) -> Result<Vec<B256>, PoolError> {
        let senders = self.by_sender.get(&entry.sender);
        let known = |hash: &B256| self.entries.get(hash).map(|held| &held.entry);
        let replaced = senders.and_then(|nonces| nonces.get(&entry.nonce)).and_then(known);
        let bytes = self.bytes - replaced.map_or(0, Entry::bytes) + entry.bytes();
        let mut excess = bytes.saturating_sub(self.bytes_max);
        if excess == 0 {
            return Ok(Vec::new());
        }
        // A transaction cannot get into a block before its sender's lower nonces, so it ranks no
        // higher than the worst of them.
        let before = senders.into_iter().flat_map(|nonces| nonces.range(..entry.nonce));
        let before = before.filter_map(|(_, hash)| known(hash));
        let own = Rank::of(entry.fees, market);
        let own = before.map(|known| Rank::of(known.fees, market)).fold(own, Rank::min);
        let mut cheaper = Vec::new();
        for nonces in self.by_sender.values() {
            let mut worst = None;
            for (nonce, hash) in nonces {
                let Some(held) = self.entries.get(hash) else { continue };
                let rank = Rank::of(held.entry.fees, market);
                let rank = worst.map_or(rank, |worst: Rank| worst.min(rank));
                worst = Some(rank);
                let is_replaced = held.entry.sender == entry.sender && *nonce == entry.nonce;
                if rank < own && !is_replaced {
                    cheaper.push((rank, Reverse(*nonce), Reverse(held.place), *hash));
                }
            }
        }
        cheaper.sort_unstable();
        let mut victims = Vec::new();
        for (_, _, _, hash) in cheaper {
            if excess == 0 {
                break;
            }
            excess = excess.saturating_sub(known(&hash).map_or(0, Entry::bytes));
            victims.push(hash);
        }
        if excess > 0 {
            return Err(PoolError::TooCheap { tip: own.tip });
        }
        Ok(victims)
    }

    /// Adds a transaction with a valid sidecar, replacing the one with the same sender and nonce.
    /// Returns the versioned hashes of blobs that no transaction here names any more.
    ///
    /// # Errors
    /// Same as [`Pool::check`].
    pub fn insert(
        &mut self,
        now: Instant,
        entry: Entry,
        account: &Account,
        market: Market,
    ) -> Result<Vec<B256>, PoolError> {
        let victims = self.victims(&entry, account, market)?;
        let mut left = Vec::new();
        for hash in &entry.versioned_hashes {
            *self.named.entry(*hash).or_default() += 1;
        }
        let place = self.by_sender.get(&entry.sender).and_then(|known| known.get(&entry.nonce));
        if let Some(known) = place.copied() {
            self.remove(&known, &mut left);
        }
        for victim in &victims {
            self.remove(victim, &mut left);
        }
        self.by_sender.entry(entry.sender).or_default().insert(entry.nonce, entry.hash);
        self.order.insert(self.next, entry.hash);
        self.bytes += entry.bytes();
        self.entries.insert(entry.hash, Held { place: self.next, since: now, entry });
        self.next += 1;
        left.extend(self.expire(now));
        Ok(left)
    }

    /// Removes expired transactions. Returns blobs like [`Pool::insert`].
    pub fn expire(&mut self, now: Instant) -> Vec<B256> {
        let mut left = Vec::new();
        while let Some((_, &oldest)) = self.order.first_key_value() {
            let held = self.entries.get(&oldest);
            if held.is_some_and(|held| now.saturating_duration_since(held.since) < self.age_max) {
                break;
            }
            self.remove(&oldest, &mut left);
        }
        left
    }

    /// Removes transactions of a final block. Returns that block's blobs that no transaction here
    /// names.
    pub fn settle(&mut self, transactions: &[B256], blobs: &[B256]) -> Vec<B256> {
        let mut left = Vec::new();
        for hash in transactions {
            self.remove(hash, &mut left);
        }
        // Includes blobs of transactions never pooled here: another client of blob-validator may
        // have had them validated.
        left.extend(blobs);
        left.retain(|hash| !self.named.contains_key(hash));
        left.sort_unstable();
        left.dedup();
        left
    }

    fn remove(&mut self, hash: &B256, left: &mut Vec<B256>) {
        let Some(Held { entry, place, .. }) = self.entries.remove(hash) else { return };
        self.bytes -= entry.bytes();
        self.order.remove(&place);
        if let Some(nonces) = self.by_sender.get_mut(&entry.sender) {
            nonces.remove(&entry.nonce);
            if nonces.is_empty() {
                self.by_sender.remove(&entry.sender);
            }
        }
        for blob in entry.versioned_hashes {
            let Some(count) = self.named.get_mut(&blob) else { continue };
            *count -= 1;
            if *count == 0 {
                self.named.remove(&blob);
                left.push(blob);
            }
        }
    }
}

#[cfg(test)]
mod tests;
