//! Order in which a block takes the pending transactions.

use super::{Pool, Pooled, shelf::Entry};
use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
    sync::Arc,
};
use tandem_proto::{limits::POOL_PAGE_BYTES, tx_pool::BestQuery};

/// Next transaction of a sender, and those behind it.
struct Head<'a, I> {
    entry: &'a Entry,
    tip: u128,
    rest: I,
}

impl<I> Head<'_, I> {
    /// Returns the place in the order: the highest is taken first.
    fn key(&self) -> (u128, Reverse<u64>) {
        (self.tip, Reverse(self.entry.place))
    }
}

impl<I> PartialEq for Head<'_, I> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<I> Eq for Head<'_, I> {}

impl<I> PartialOrd for Head<'_, I> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<I> Ord for Head<'_, I> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

/// Returns a sender's next transaction, `None` if there is none or a block cannot take it.
fn head<'a, I: Iterator<Item = &'a Entry>>(query: &BestQuery, mut rest: I) -> Option<Head<'a, I>> {
    let entry = rest.next()?;
    let fees = entry.tx.fees;
    let room = fees.cap.checked_sub(query.base_fee)?;
    if let Some(cap) = fees.blob_cap
        && query.blob_fee.is_none_or(|price| cap < price)
    {
        return None;
    }
    Some(Head { entry, tip: fees.tip.min(room), rest })
}

impl Pool {
    /// Returns the number of changes so far.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the pending transactions in the order in which a block should take them: of the next
    /// ones of all senders, always the one with the highest tip. Also returns whether no further page
    /// follows. A page ends with the transaction that brings it to [`POOL_PAGE_BYTES`]. Takes time for
    /// each sender, and for each transaction up to the end of the page.
    pub fn best(&self, query: &BestQuery) -> (Vec<Arc<Pooled>>, bool) {
        let senders = self.plain.pending_by_sender().chain(self.blobs.pending_by_sender());
        let mut heads: BinaryHeap<_> = senders.filter_map(|rest| head(query, rest)).collect();
        let (mut skip, mut blob_transactions) = (query.skip, 0);
        let (mut best, mut bytes) = (Vec::new(), 0);
        while best.len() < query.transactions_max
            && bytes < POOL_PAGE_BYTES
            && let Some(Head { entry, rest, .. }) = heads.pop()
        {
            if entry.tx.sidecar.is_some() {
                if blob_transactions == query.blob_transactions_max {
                    continue;
                }
                blob_transactions += 1;
            }
            match skip {
                0 => {
                    bytes += entry.tx.raw.len();
                    best.push(entry.tx.clone());
                }
                _ => skip -= 1,
            }
            heads.extend(head(query, rest));
        }
        (best, heads.is_empty())
    }
}
