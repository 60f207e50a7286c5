//! Transactions that became pending lately, numbered in their order, for callers that ask for those
//! after the last one that they know.

use crate::pool::Pooled;
use std::{collections::VecDeque, sync::Arc};
use tandem_proto::limits::{ARRIVALS_MAX, POOL_PAGE_BYTES};

/// The newest transactions that became pending: at most [`ARRIVALS_MAX`], and as many as fit into
/// [`POOL_PAGE_BYTES`].
#[derive(Default)]
pub struct Arrived {
    newest: VecDeque<Arc<Pooled>>,
    bytes: usize,
    /// Number of transactions that became pending so far.
    count: u64,
}

impl Arrived {
    /// Notes that these became pending.
    pub fn push(&mut self, pending: &[Arc<Pooled>]) {
        for tx in pending {
            self.bytes += tx.raw.len();
            self.count += 1;
            self.newest.push_back(tx.clone());
            while self.newest.len() > ARRIVALS_MAX || self.bytes > POOL_PAGE_BYTES {
                let Some(oldest) = self.newest.pop_front() else { break };
                self.bytes -= oldest.raw.len();
            }
        }
    }

    /// Returns those after the first `after` that are remembered, none for `None`, and the number of
    /// all. A number above that is one of an earlier process.
    pub fn after(&self, after: Option<u64>) -> (Vec<Arc<Pooled>>, u64) {
        let Some(after) = after else { return (Vec::new(), self.count) };
        let new = if after > self.count { self.count } else { self.count - after };
        let new = usize::try_from(new).unwrap_or(usize::MAX).min(self.newest.len());
        let found = self.newest.range(self.newest.len() - new..).cloned().collect();
        (found, self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_admission::Fees;
    use tandem_primitives::{Address, B256, U256};

    const NONE: [usize; 0] = [];

    fn pooled(number: usize, bytes: usize) -> Arc<Pooled> {
        Arc::new(Pooled {
            hash: B256::from(U256::from(number)),
            sender: Address::ZERO,
            nonce: 0,
            kind: 2,
            gas: 0,
            fees: Fees { tip: 0, cap: 0, blob_cap: None },
            cost: U256::ZERO,
            raw: vec![0; bytes].into(),
            network_bytes: bytes,
            sidecar: None,
            authorities: Vec::new(),
        })
    }

    fn numbers(arrived: &Arrived, after: Option<u64>) -> Vec<usize> {
        let (found, upto) = arrived.after(after);
        assert_eq!(upto, arrived.count);
        found.iter().map(|tx| U256::from_be_bytes(tx.hash.0).to()).collect()
    }

    #[test]
    fn a_caller_gets_what_came_since_its_last_question() {
        let mut arrived = Arrived::default();
        assert_eq!(numbers(&arrived, None), NONE);
        assert_eq!(numbers(&arrived, Some(0)), NONE);
        arrived.push(&[pooled(1, 1), pooled(2, 1)]);
        assert_eq!(numbers(&arrived, None), NONE);
        assert_eq!(numbers(&arrived, Some(0)), [1, 2]);
        assert_eq!(numbers(&arrived, Some(1)), [2]);
        assert_eq!(numbers(&arrived, Some(2)), NONE);
        assert_eq!(numbers(&arrived, Some(9)), [1, 2], "the number is one of an earlier process");
    }

    #[test]
    fn only_so_many_and_so_large_ones_are_remembered() {
        let mut arrived = Arrived::default();
        for number in 1..=ARRIVALS_MAX + 10 {
            arrived.push(&[pooled(number, 100)]);
        }
        let found = numbers(&arrived, Some(5));
        assert_eq!((found.len(), found[0]), (ARRIVALS_MAX, 11));
        for number in 0..100 {
            arrived.push(&[pooled(number, POOL_PAGE_BYTES / 10)]);
            assert!(arrived.bytes <= POOL_PAGE_BYTES);
            assert_eq!(arrived.bytes, arrived.newest.iter().map(|tx| tx.raw.len()).sum::<usize>());
        }
        assert_eq!(numbers(&arrived, Some(0)), (90..100).collect::<Vec<_>>());
    }
}
