//! Transactions of one kind, with or without blobs, by sender and nonce.
//!
//! A sender's transactions form a sequence. Those from the account's nonce on, without a gap and as
//! far as the balance pays, are **pending**; the rest is **queued**. A transaction cannot get into a
//! block before those in front of it. So only the last of a sequence is ever evicted for lack of
//! room, and the sequence ranks like its worst transaction: eviction tears no gap, and the order of
//! eviction has one place for each sender.

use super::{PoolError, Pooled};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};
use tandem_admission::{Market, Rank, SenderAccount};
use tandem_primitives::{Address, U256};

/// Limits of a shelf.
#[derive(Clone, Copy, Debug)]
pub struct ShelfLimits {
    /// Units of all transactions ([`Pooled::units`]).
    pub units_max: usize,
    /// Number of queued transactions.
    pub queued_max: usize,
    /// Number of one sender's queued transactions.
    pub sender_queued_max: usize,
    /// Number of one sender's pending transactions that are evicted only after those of senders
    /// with more.
    pub sender_guaranteed: usize,
    /// Percent by which a replacement must raise each fee.
    pub bump: u32,
}

/// Class of a sender's last transaction in the order of eviction; the lowest leaves first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Class {
    Queued,
    /// Pending, beyond [`ShelfLimits::sender_guaranteed`].
    Surplus,
    Guaranteed,
}

/// Place of a sender in the order of eviction. Among equals, the last to come leaves first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Standing {
    class: Class,
    rank: Rank,
    place: Reverse<u64>,
}

/// Transaction in the shelf.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Transaction.
    pub tx: Arc<Pooled>,
    /// Time of its arrival.
    pub since: Duration,
    /// Position in the order of arrival, the same for no two transactions of the pool.
    pub place: u64,
    /// Rank at the prices of the head.
    rank: Rank,
}

/// Transactions of one sender.
struct Sequence {
    account: SenderAccount,
    entries: BTreeMap<u64, Entry>,
    pending: usize,
    standing: Option<Standing>,
}

impl Sequence {
    /// Returns how many transactions are pending, and the standing of the last one.
    fn judge(&self, guaranteed: usize) -> (usize, Option<Standing>) {
        let (mut pending, mut next, mut spent) = (0, self.account.nonce, U256::ZERO);
        let (mut rank, mut unbroken) = (Rank::MAX, true);
        for (nonce, entry) in &self.entries {
            rank = rank.min(entry.rank);
            spent = spent.saturating_add(entry.tx.cost);
            unbroken &= *nonce == next && spent <= self.account.balance;
            if unbroken {
                (pending, next) = (pending + 1, next.saturating_add(1));
            }
        }
        let class = match self.entries.len() {
            all if pending < all => Class::Queued,
            all if all > guaranteed => Class::Surplus,
            _ => Class::Guaranteed,
        };
        let last = self.entries.last_key_value();
        (pending, last.map(|(_, entry)| Standing { class, rank, place: Reverse(entry.place) }))
    }

    /// Returns the nonce after the pending transactions.
    fn next_nonce(&self) -> u64 {
        self.account.nonce.saturating_add(self.pending as u64)
    }
}

/// Transaction taken out, and its sender's account as it was known here.
pub struct Removed {
    account: SenderAccount,
    /// Transaction.
    pub entry: Entry,
}

/// Transactions of one kind.
pub struct Shelf {
    limits: ShelfLimits,
    senders: HashMap<Address, Sequence>,
    order: BTreeSet<(Standing, Address)>,
    units: usize,
    len: usize,
    pending: usize,
}

impl Shelf {
    pub fn new(limits: ShelfLimits) -> Self {
        Self {
            limits,
            senders: HashMap::new(),
            order: BTreeSet::new(),
            units: 0,
            len: 0,
            pending: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn pending(&self) -> usize {
        self.pending
    }

    pub fn units(&self) -> usize {
        self.units
    }

    pub fn senders(&self) -> impl Iterator<Item = &Address> {
        self.senders.keys()
    }

    /// Returns the number of a sender's transactions.
    pub fn len_of(&self, sender: &Address) -> usize {
        self.senders.get(sender).map_or(0, |sequence| sequence.entries.len())
    }

    /// Returns the number of a sender's pending transactions.
    pub fn pending_of(&self, sender: &Address) -> usize {
        self.senders.get(sender).map_or(0, |sequence| sequence.pending)
    }

    /// Returns the nonce after a sender's pending transactions, `None` without any transaction.
    pub fn next_nonce(&self, sender: &Address) -> Option<u64> {
        self.senders.get(sender).map(Sequence::next_nonce)
    }

    pub fn get(&self, sender: &Address, nonce: u64) -> Option<&Entry> {
        self.senders.get(sender)?.entries.get(&nonce)
    }

    /// Returns a sender's transactions in the order of nonces, each with whether it is pending.
    pub fn of<'a>(&'a self, sender: &Address) -> impl Iterator<Item = (bool, &'a Entry)> + use<'a> {
        let sequence = self.senders.get(sender);
        let next = sequence.map_or(0, Sequence::next_nonce);
        let entries = sequence.into_iter().flat_map(|sequence| &sequence.entries);
        entries.map(move |(nonce, entry)| (*nonce < next, entry))
    }

    /// Returns the pending transactions of each sender in the order of nonces.
    pub fn pending_by_sender(&self) -> impl Iterator<Item = impl Iterator<Item = &Entry>> {
        self.senders.values().map(|sequence| sequence.entries.values().take(sequence.pending))
    }

    /// Checks a transaction against the sender's others.
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn check(&self, tx: &Pooled, account: &SenderAccount) -> Result<(), PoolError> {
        let ShelfLimits { units_max, sender_queued_max, bump, .. } = self.limits;
        if tx.units() > units_max {
            return Err(PoolError::TooLarge { max: units_max });
        }
        let known = self.get(&tx.sender, tx.nonce);
        if let Some(Entry { tx: known, .. }) = known
            && !tx.fees.outbid(&known.fees, bump)
        {
            return Err(PoolError::ReplacementUnderpriced { known: known.hash, percent: bump });
        }
        let others =
            self.of(&tx.sender).filter(|(pending, it)| *pending && it.tx.nonce != tx.nonce);
        let spent = others.fold(U256::ZERO, |sum, (_, it)| sum.saturating_add(it.tx.cost));
        let (queued, balance) = (spent.saturating_add(tx.cost), account.balance);
        if queued > balance {
            return Err(PoolError::InsufficientFunds { balance, queued });
        }
        let next = self.next_nonce(&tx.sender).unwrap_or(account.nonce);
        let waiting = self.len_of(&tx.sender) - self.pending_of(&tx.sender);
        if known.is_none() && tx.nonce > next && waiting >= sender_queued_max {
            return Err(PoolError::AccountLimit { max: sender_queued_max });
        }
        Ok(())
    }

    /// Refuses most of the transactions for which there is no room, before more work is done for
    /// them. [`Self::take_excess`] finds the rest.
    ///
    /// # Errors
    /// [`PoolError::Underpriced`].
    pub fn check_room(&self, tx: &Pooled, market: Market) -> Result<(), PoolError> {
        let is_new = self.get(&tx.sender, tx.nonce).is_none();
        let is_full = self.units + tx.units() > self.limits.units_max;
        let rank = Rank::of(tx.fees, market);
        // As good as the best place that it could get, it would still be behind all others.
        let is_last = |(worst, _): &(Standing, Address)| {
            worst.class == Class::Guaranteed && worst.rank >= rank
        };
        if is_new && is_full && self.order.first().is_some_and(is_last) {
            return Err(PoolError::Underpriced { tip: rank.tip });
        }
        Ok(())
    }

    /// Puts a transaction in. Returns the one with the same nonce that it replaces.
    pub fn put(
        &mut self,
        tx: Arc<Pooled>,
        at: (Duration, u64),
        account: SenderAccount,
        market: Market,
    ) -> Option<Removed> {
        let replaced = self.take(&tx.sender, tx.nonce);
        let (since, place) = at;
        let rank = Rank::of(tx.fees, market);
        self.put_back(Removed { account, entry: Entry { tx, since, place, rank } });
        replaced
    }

    /// Puts back what was taken out.
    pub fn put_back(&mut self, removed: Removed) {
        let Removed { account, entry } = removed;
        let sender = entry.tx.sender;
        (self.len, self.units) = (self.len + 1, self.units + entry.tx.units());
        let new = || Sequence { account, entries: BTreeMap::new(), pending: 0, standing: None };
        let sequence = self.senders.entry(sender).or_insert_with(new);
        sequence.account = account;
        sequence.entries.insert(entry.tx.nonce, entry);
        self.judge(&sender);
    }

    /// Takes a transaction out.
    pub fn take(&mut self, sender: &Address, nonce: u64) -> Option<Removed> {
        let sequence = self.senders.get_mut(sender)?;
        let entry = sequence.entries.remove(&nonce)?;
        let account = sequence.account;
        (self.len, self.units) = (self.len - 1, self.units - entry.tx.units());
        self.judge(sender);
        Some(Removed { account, entry })
    }

    /// Takes the worst transaction out, if the shelf is beyond its limits.
    pub fn take_excess(&mut self) -> Option<Removed> {
        let queued = self.len - self.pending;
        if self.units <= self.limits.units_max && queued <= self.limits.queued_max {
            return None;
        }
        // A queued transaction is behind all pending ones of its sender, so the first in the order
        // is a queued one if there is any.
        let sender = self.order.first()?.1;
        let nonce = *self.senders.get(&sender)?.entries.last_key_value()?.0;
        self.take(&sender, nonce)
    }

    /// Sets a sender's account. Takes out what it has no use for any more: used nonces, transactions
    /// that `keep` refuses or the balance does not pay, and the last of too many queued ones.
    pub fn set_account(
        &mut self,
        sender: &Address,
        account: SenderAccount,
        keep: impl Fn(&Pooled) -> bool,
    ) -> Vec<Entry> {
        let Some(sequence) = self.senders.get_mut(sender) else { return Vec::new() };
        sequence.account = account;
        let has_use = |entry: &Entry| {
            let tx = &entry.tx;
            tx.nonce >= account.nonce && tx.cost <= account.balance && keep(tx)
        };
        let mut gone = Vec::new();
        for (_, entry) in sequence.entries.extract_if(.., |_, entry| !has_use(entry)) {
            (self.len, self.units) = (self.len - 1, self.units - entry.tx.units());
            gone.push(entry);
        }
        self.judge(sender);
        let queue_max = self.limits.sender_queued_max;
        while let Some(sequence) = self.senders.get(sender)
            && sequence.entries.len() - sequence.pending > queue_max
            && let Some((&last, _)) = sequence.entries.last_key_value()
        {
            gone.extend(self.take(sender, last).map(|removed| removed.entry));
        }
        gone
    }

    /// Ranks all transactions anew at these prices.
    pub fn set_market(&mut self, market: Market) {
        let senders: Vec<_> = self.senders.keys().copied().collect();
        for sender in senders {
            if let Some(sequence) = self.senders.get_mut(&sender) {
                let entries = sequence.entries.values_mut();
                entries.for_each(|entry| entry.rank = Rank::of(entry.tx.fees, market));
            }
            self.judge(&sender);
        }
    }

    /// Returns sender and nonce of the transactions that came before `before`, all or only queued
    /// ones.
    pub fn older(&self, before: Duration, only_queued: bool) -> Vec<(Address, u64)> {
        let mut found = Vec::new();
        for (sender, sequence) in &self.senders {
            let next = sequence.next_nonce();
            let of = sequence
                .entries
                .iter()
                .filter(|(nonce, entry)| entry.since < before && (!only_queued || **nonce >= next));
            found.extend(of.map(|(nonce, _)| (*sender, *nonce)));
        }
        found
    }

    /// Brings counts and order up to date after a change of a sender's sequence.
    fn judge(&mut self, sender: &Address) {
        let Some(sequence) = self.senders.get_mut(sender) else { return };
        if let Some(standing) = sequence.standing.take() {
            self.order.remove(&(standing, *sender));
        }
        let (pending, standing) = sequence.judge(self.limits.sender_guaranteed);
        self.pending = self.pending - sequence.pending + pending;
        (sequence.pending, sequence.standing) = (pending, standing);
        match standing {
            Some(standing) => {
                self.order.insert((standing, *sender));
            }
            None => {
                self.senders.remove(sender);
            }
        }
    }
}
