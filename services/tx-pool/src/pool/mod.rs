//! The pool itself: a pure state. Time, accounts and prices are inputs.
//!
//! * **Two shelves** (`shelf.rs`), for transactions with and without blobs, each with its own room. A
//!   sender has transactions on one of them at a time.
//! * **Replacement.** One transaction for each sender and nonce. Another replaces it only if it
//!   raises each fee by 10 %, or by 100 % with blobs.
//! * **Eviction.** A full shelf gives up its worst transaction: queued ones first, then pending ones
//!   of senders with many, then by fees. A newcomer that would itself be the worst is refused, and
//!   nothing else changes.
//! * **Delegations** (EIP-7702). Code of an account can spend its balance at any time, and so make
//!   all its transactions invalid at once. So an account with a delegation, or with a pooled
//!   transaction that would set one, has one transaction in flight at most.

mod best;
mod error;
mod shelf;
mod transaction;

pub use error::PoolError;
pub use shelf::ShelfLimits;
pub use transaction::{Pooled, SidecarRef};

use shelf::{Removed, Shelf};
use std::{
    collections::{BTreeMap, HashMap},
    iter,
    sync::Arc,
    time::Duration,
};
use tandem_admission::{Code, Market, Rank, SenderAccount};
use tandem_primitives::{Address, B256};

/// Limits of the pool.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Transactions without blobs; units are slots of 32 KiB ([`Pooled::units`]).
    pub plain: ShelfLimits,
    /// Transactions with blobs; units are bytes, blobs included.
    pub blobs: ShelfLimits,
    /// Distance of a blob transaction's nonce above the account's, exclusive.
    pub blob_nonces_max: u64,
    /// Time for which a transaction without blobs may wait for an earlier nonce.
    pub queued_for_max: Duration,
    /// Time for which a transaction with blobs is kept.
    pub blobs_for_max: Duration,
}

/// Outcome of an accepted transaction.
#[derive(Default, Debug)]
pub struct Added {
    /// Transaction with the same nonce that it replaces.
    pub replaced: Option<Arc<Pooled>>,
    /// Transactions that left for lack of room.
    pub evicted: Vec<Arc<Pooled>>,
    /// Transactions that became pending, in the order of nonces; it may be among them.
    pub promoted: Vec<Arc<Pooled>>,
}

/// Outcome of a new head.
#[derive(Default, Debug)]
pub struct Reset {
    /// Transactions that left: their nonces are used, or they are not payable any more.
    pub dropped: Vec<Arc<Pooled>>,
    /// Transactions that became pending.
    pub promoted: Vec<Arc<Pooled>>,
}

/// Numbers of transactions.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Sizes {
    /// Pending and queued transactions without blobs.
    pub plain: (usize, usize),
    /// Pending and queued transactions with blobs.
    pub blobs: (usize, usize),
    /// Slots of transactions without blobs.
    pub slots: usize,
    /// Bytes of transactions with blobs, blobs included.
    pub blob_bytes: usize,
}

/// Pooled transactions.
pub struct Pool {
    limits: Limits,
    market: Market,
    plain: Shelf,
    blobs: Shelf,
    by_hash: HashMap<B256, Arc<Pooled>>,
    /// Number of pooled transactions that set each account's code. There may be a million; a tree
    /// gives the memory of each back as it goes.
    authorities: BTreeMap<Address, usize>,
    places: u64,
    /// Number of changes so far.
    version: u64,
}

impl Pool {
    /// Creates an empty pool.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            market: Market::default(),
            plain: Shelf::new(limits.plain),
            blobs: Shelf::new(limits.blobs),
            by_hash: HashMap::new(),
            authorities: BTreeMap::new(),
            places: 0,
            version: 0,
        }
    }

    /// Returns the numbers of transactions.
    pub fn sizes(&self) -> Sizes {
        let of = |shelf: &Shelf| (shelf.pending(), shelf.len() - shelf.pending());
        Sizes {
            plain: of(&self.plain),
            blobs: of(&self.blobs),
            slots: self.plain.units(),
            blob_bytes: self.blobs.units(),
        }
    }

    /// Returns a transaction.
    pub fn get(&self, hash: &B256) -> Option<&Arc<Pooled>> {
        self.by_hash.get(hash)
    }

    /// Returns the transaction of a sender with this nonce.
    pub fn at(&self, sender: &Address, nonce: u64) -> Option<&Arc<Pooled>> {
        let entry = self.plain.get(sender, nonce).or_else(|| self.blobs.get(sender, nonce));
        entry.map(|entry| &entry.tx)
    }

    /// Returns the nonce after a sender's pending transactions, `None` without any transaction.
    pub fn next_nonce(&self, sender: &Address) -> Option<u64> {
        self.plain.next_nonce(sender).or_else(|| self.blobs.next_nonce(sender))
    }

    /// Returns all senders.
    pub fn senders(&self) -> Vec<Address> {
        self.plain.senders().chain(self.blobs.senders()).copied().collect()
    }

    /// Returns a sender's transactions in the order of nonces, each with whether it is pending.
    pub fn of<'a>(
        &'a self,
        sender: &Address,
    ) -> impl Iterator<Item = (bool, &'a Arc<Pooled>)> + use<'a> {
        let all = self.plain.of(sender).chain(self.blobs.of(sender));
        all.map(|(pending, entry)| (pending, &entry.tx))
    }

    /// Returns all transactions, each with whether it is pending, by sender and nonce.
    pub fn all(&self) -> impl Iterator<Item = (bool, &Arc<Pooled>)> {
        let senders = self.plain.senders().chain(self.blobs.senders());
        senders.flat_map(|sender| self.of(sender))
    }

    /// Checks everything but the exact room. `account` is the sender's at the head.
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn check(&self, tx: &Pooled, account: &SenderAccount) -> Result<(), PoolError> {
        if self.by_hash.contains_key(&tx.hash) {
            return Err(PoolError::AlreadyKnown);
        }
        let (sender, nonce, next) = (tx.sender, tx.nonce, account.nonce);
        let has_blobs = tx.sidecar.is_some();
        let (shelf, other, others) = match has_blobs {
            true => (&self.blobs, &self.plain, "without"),
            false => (&self.plain, &self.blobs, "with"),
        };
        if other.len_of(&sender) > 0 {
            return Err(PoolError::AddressReserved { sender, others });
        }
        if has_blobs && nonce.saturating_sub(next) >= self.limits.blob_nonces_max {
            return Err(PoolError::NonceTooHigh { next, nonce });
        }
        shelf.check(tx, account)?;
        let is_delegated = account.code == Code::Delegated;
        if is_delegated || self.authorities.contains_key(&sender) {
            match shelf.pending_of(&sender) {
                0 if nonce != next => return Err(PoolError::DelegatedGap { next, nonce }),
                0 => {}
                _ if shelf.get(&sender, nonce).is_some() => {}
                _ => return Err(PoolError::DelegatedLimit),
            }
        }
        for &authority in &tx.authorities {
            if self.plain.len_of(&authority) > 1 || self.blobs.len_of(&authority) > 0 {
                return Err(PoolError::AuthorityReserved { authority });
            }
        }
        shelf.check_room(tx, self.market)
    }

    /// Adds a transaction. `account` is its sender's at the head.
    ///
    /// # Errors
    /// [`PoolError`]; the pool is then unchanged.
    pub fn add(
        &mut self,
        now: Duration,
        tx: Arc<Pooled>,
        account: SenderAccount,
    ) -> Result<Added, PoolError> {
        self.check(&tx, &account)?;
        let (market, sender) = (self.market, tx.sender);
        let shelf = if tx.sidecar.is_some() { &mut self.blobs } else { &mut self.plain };
        let before = shelf.next_nonce(&sender).unwrap_or(account.nonce);
        self.places += 1;
        let replaced = shelf.put(tx.clone(), (now, self.places), account, market);
        let mut excess: Vec<Removed> = Vec::new();
        while let Some(worst) = shelf.take_excess() {
            if worst.entry.tx.hash != tx.hash {
                excess.push(worst);
                continue;
            }
            excess.into_iter().chain(replaced).for_each(|removed| shelf.put_back(removed));
            return Err(PoolError::Underpriced { tip: Rank::of(tx.fees, market).tip });
        }
        let promoted = promoted(shelf, &sender, |nonce| nonce == tx.nonce || nonce >= before);
        let added = Added {
            replaced: replaced.map(|removed| removed.entry.tx),
            evicted: excess.into_iter().map(|removed| removed.entry.tx).collect(),
            promoted,
        };
        added.replaced.iter().chain(&added.evicted).for_each(|gone| self.forget(gone));
        self.remember(tx);
        Ok(added)
    }

    /// Follows the head to these prices and this gas limit of a block. `accounts` has the senders'
    /// accounts there; senders that it lacks stay as they are.
    pub fn reset(
        &mut self,
        market: Market,
        gas_limit: u64,
        accounts: &HashMap<Address, SenderAccount>,
    ) -> Reset {
        self.market = market;
        self.version += 1;
        let mut reset = Reset::default();
        for shelf in [&mut self.plain, &mut self.blobs] {
            shelf.set_market(market);
            for (sender, account) in accounts {
                let Some(before) = shelf.next_nonce(sender) else { continue };
                let gone = shelf.set_account(sender, *account, |tx| tx.gas <= gas_limit);
                reset.dropped.extend(gone.into_iter().map(|entry| entry.tx));
                reset.promoted.extend(promoted(shelf, sender, |nonce| nonce >= before));
            }
            let excess = iter::from_fn(|| shelf.take_excess());
            reset.dropped.extend(excess.map(|worst| worst.entry.tx));
        }
        reset.dropped.iter().for_each(|gone| self.forget(gone));
        let Self { by_hash, .. } = self;
        reset.promoted.retain(|tx| by_hash.contains_key(&tx.hash));
        reset
    }

    /// Takes out a transaction, whatever its place. Returns all that left: the ones behind it are
    /// queued now, perhaps too many.
    pub fn remove(&mut self, hash: &B256) -> Vec<Arc<Pooled>> {
        let Some(tx) = self.by_hash.get(hash).cloned() else { return Vec::new() };
        let shelf = if tx.sidecar.is_some() { &mut self.blobs } else { &mut self.plain };
        let mut gone: Vec<_> = shelf.take(&tx.sender, tx.nonce).into_iter().collect();
        gone.extend(iter::from_fn(|| shelf.take_excess()));
        self.let_go(gone)
    }

    /// Takes out what has been here for too long.
    pub fn expire(&mut self, now: Duration) -> Vec<Arc<Pooled>> {
        let mut gone = Vec::new();
        for (shelf, age_max, only_queued) in [
            (&mut self.plain, self.limits.queued_for_max, true),
            (&mut self.blobs, self.limits.blobs_for_max, false),
        ] {
            for (sender, nonce) in shelf.older(now.saturating_sub(age_max), only_queued) {
                gone.extend(shelf.take(&sender, nonce));
            }
            gone.extend(iter::from_fn(|| shelf.take_excess()));
        }
        self.let_go(gone)
    }

    fn let_go(&mut self, gone: Vec<Removed>) -> Vec<Arc<Pooled>> {
        let gone: Vec<_> = gone.into_iter().map(|removed| removed.entry.tx).collect();
        gone.iter().for_each(|tx| self.forget(tx));
        gone
    }

    fn remember(&mut self, tx: Arc<Pooled>) {
        self.version += 1;
        for authority in &tx.authorities {
            *self.authorities.entry(*authority).or_default() += 1;
        }
        self.by_hash.insert(tx.hash, tx);
    }

    fn forget(&mut self, tx: &Pooled) {
        self.version += 1;
        self.by_hash.remove(&tx.hash);
        for authority in &tx.authorities {
            if let Some(count) = self.authorities.get_mut(authority) {
                *count -= 1;
                if *count == 0 {
                    self.authorities.remove(authority);
                }
            }
        }
    }
}

/// Returns the pending transactions of a sender whose nonces `is_new` names.
fn promoted(shelf: &Shelf, sender: &Address, is_new: impl Fn(u64) -> bool) -> Vec<Arc<Pooled>> {
    let pending = shelf.of(sender).take_while(|(pending, _)| *pending);
    pending.filter(|(_, it)| is_new(it.tx.nonce)).map(|(_, it)| it.tx.clone()).collect()
}

#[cfg(test)]
mod tests;
