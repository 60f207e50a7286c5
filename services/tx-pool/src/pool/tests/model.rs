//! The pool as a list: each question is a search, each rule is written as its documentation says.

use super::super::*;
use std::{cmp::Reverse, collections::BTreeSet};
use tandem_admission::Rank;
use tandem_primitives::U256;

#[derive(Clone)]
struct Item {
    tx: Arc<Pooled>,
    since: Duration,
    place: u64,
}

#[derive(Clone)]
pub struct Model {
    limits: Limits,
    market: Market,
    items: Vec<Item>,
    accounts: HashMap<Address, SenderAccount>,
    places: u64,
}

impl Model {
    pub fn new(limits: Limits) -> Self {
        let (items, accounts) = (Vec::new(), HashMap::new());
        Self { limits, market: Market::default(), items, accounts, places: 0 }
    }

    fn of(&self, sender: &Address) -> Vec<Item> {
        let of = self.items.iter().filter(|item| item.tx.sender == *sender);
        let mut of: Vec<_> = of.cloned().collect();
        of.sort_by_key(|item| item.tx.nonce);
        of
    }

    fn pending(&self, sender: &Address) -> Vec<Item> {
        let account = self.accounts.get(sender).copied().unwrap_or_default();
        let mut spent = U256::ZERO;
        let mut pending = Vec::new();
        for (item, nonce) in self.of(sender).into_iter().zip(account.nonce..) {
            spent += item.tx.cost;
            if item.tx.nonce != nonce || spent > account.balance {
                break;
            }
            pending.push(item);
        }
        pending
    }

    pub fn next_nonce(&self, sender: &Address) -> Option<u64> {
        if self.of(sender).is_empty() {
            return None;
        }
        Some(self.accounts[sender].nonce + self.pending(sender).len() as u64)
    }

    pub fn all(&self) -> BTreeSet<(B256, bool)> {
        let is_pending =
            |item: &Item| self.pending(&item.tx.sender).iter().any(|it| it.tx.hash == item.tx.hash);
        self.items.iter().map(|item| (item.tx.hash, is_pending(item))).collect()
    }

    fn remove(&mut self, hash: &B256) {
        self.items.retain(|item| item.tx.hash != *hash);
    }

    fn has_blobs(item: &Item) -> bool {
        item.tx.sidecar.is_some()
    }

    /// Returns what the shelf of this kind must give up next.
    fn excess(&self, blobs: bool) -> Option<B256> {
        let limits = if blobs { self.limits.blobs } else { self.limits.plain };
        let items = || self.items.iter().filter(|item| Self::has_blobs(item) == blobs);
        let units: usize = items().map(|item| item.tx.units()).sum();
        let is_pending: HashMap<_, _> = self.all().into_iter().collect();
        let queued = items().filter(|item| !is_pending[&item.tx.hash]).count();
        if units <= limits.units_max && queued <= limits.queued_max {
            return None;
        }
        let standing = |item: &Item| {
            let of = self.of(&item.tx.sender);
            let rank = of.iter().map(|it| Rank::of(it.tx.fees, self.market)).min();
            let class = match self.pending(&item.tx.sender).len() {
                pending if pending < of.len() => 0,
                pending if pending > limits.sender_guaranteed => 1,
                _ => 2,
            };
            (class, rank, Reverse(item.place))
        };
        let is_last = |item: &&Item| {
            self.of(&item.tx.sender).last().is_some_and(|last| last.tx.hash == item.tx.hash)
        };
        items().filter(is_last).min_by_key(|item| standing(item)).map(|item| item.tx.hash)
    }

    pub fn add(
        &mut self,
        now: Duration,
        tx: Arc<Pooled>,
        account: SenderAccount,
    ) -> Result<BTreeSet<B256>, &'static str> {
        let (sender, blobs) = (tx.sender, tx.sidecar.is_some());
        let limits = if blobs { self.limits.blobs } else { self.limits.plain };
        let of = self.of(&sender);
        let (next, pending) = (self.next_nonce(&sender), self.pending(&sender));
        let known = of.iter().find(|item| item.tx.nonce == tx.nonce);
        if of.iter().any(|item| item.tx.hash == tx.hash) {
            return Err("already_known");
        }
        if of.iter().any(|item| Self::has_blobs(item) != blobs) {
            return Err("address_reserved");
        }
        if blobs && tx.nonce >= account.nonce + self.limits.blob_nonces_max {
            return Err("nonce_too_high");
        }
        if tx.units() > limits.units_max {
            return Err("oversized");
        }
        if known.is_some_and(|item| !tx.fees.outbid(&item.tx.fees, limits.bump)) {
            return Err("replacement_underpriced");
        }
        let others = pending.iter().filter(|item| item.tx.nonce != tx.nonce);
        if others.map(|item| item.tx.cost).sum::<U256>() + tx.cost > account.balance {
            return Err("insufficient_funds");
        }
        let waits = tx.nonce > next.unwrap_or(account.nonce);
        if known.is_none() && waits && of.len() - pending.len() >= limits.sender_queued_max {
            return Err("account_limit");
        }
        let names = |item: &Item| item.tx.authorities.contains(&sender);
        if account.code == Code::Delegated || self.items.iter().any(names) {
            if pending.is_empty() && tx.nonce != account.nonce {
                return Err("delegated_gap");
            }
            if !pending.is_empty() && known.is_none() {
                return Err("delegated_limit");
            }
        }
        for authority in &tx.authorities {
            let of = self.of(authority);
            if of.len() > 1 || of.iter().any(Self::has_blobs) {
                return Err("authority_reserved");
            }
        }
        let mut after = self.clone();
        after.accounts.insert(sender, account);
        after.items.retain(|item| item.tx.sender != sender || item.tx.nonce != tx.nonce);
        after.places += 1;
        self.places += 1;
        after.items.push(Item { tx: tx.clone(), since: now, place: after.places });
        while let Some(worst) = after.excess(blobs) {
            if worst == tx.hash {
                return Err("underpriced");
            }
            after.remove(&worst);
        }
        let stays: BTreeSet<_> = after.items.iter().map(|item| item.tx.hash).collect();
        let gone = self.items.iter().map(|item| item.tx.hash).filter(|it| !stays.contains(it));
        let gone = gone.collect();
        *self = after;
        Ok(gone)
    }

    fn retain(&mut self, keep: impl Fn(&Item) -> bool) -> BTreeSet<B256> {
        let gone = self.items.extract_if(.., |item| !keep(item));
        gone.map(|item| item.tx.hash).collect()
    }

    pub fn reset(
        &mut self,
        market: Market,
        gas_limit: u64,
        accounts: &HashMap<Address, SenderAccount>,
    ) -> BTreeSet<B256> {
        self.market = market;
        self.accounts.extend(accounts);
        let mut dropped = self.retain(|item| {
            let (tx, account) = (&item.tx, accounts.get(&item.tx.sender));
            account.is_none_or(|account| {
                tx.nonce >= account.nonce && tx.cost <= account.balance && tx.gas <= gas_limit
            })
        });
        for sender in accounts.keys() {
            let of = self.of(sender);
            let blobs = of.first().is_some_and(Self::has_blobs);
            let limits = if blobs { self.limits.blobs } else { self.limits.plain };
            let most = self.pending(sender).len() + limits.sender_queued_max;
            for item in of.iter().skip(most) {
                self.remove(&item.tx.hash);
                dropped.insert(item.tx.hash);
            }
        }
        dropped.extend(self.trim());
        dropped
    }

    fn trim(&mut self) -> BTreeSet<B256> {
        let mut gone = BTreeSet::new();
        for blobs in [false, true] {
            while let Some(worst) = self.excess(blobs) {
                self.remove(&worst);
                gone.insert(worst);
            }
        }
        gone
    }

    pub fn take(&mut self, hash: &B256) -> BTreeSet<B256> {
        self.remove(hash);
        let mut gone = self.trim();
        gone.insert(*hash);
        gone
    }

    pub fn expire(&mut self, now: Duration) -> BTreeSet<B256> {
        let is_pending: HashMap<_, _> = self.all().into_iter().collect();
        let Limits { queued_for_max, blobs_for_max, .. } = self.limits;
        let mut gone = self.retain(|item| {
            if Self::has_blobs(item) {
                return item.since >= now.saturating_sub(blobs_for_max);
            }
            is_pending[&item.tx.hash] || item.since >= now.saturating_sub(queued_for_max)
        });
        gone.extend(self.trim());
        gone
    }
}
