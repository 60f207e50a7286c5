//! Order in which transactions may be executed ahead.

use super::{status::Order, work::Works};
use crate::ahead::senders::SharedSenders;
use alloy_consensus::Transaction as _;
use alloy_primitives::map::AddressMap;
use std::sync::Arc;
use tandem_chain::Block;
use tandem_primitives::{Address, BlockNumber};

/// Index for no transaction.
const NONE: usize = usize::MAX;

/// Order of the transactions of each sender, and calls that depend on one another.
pub struct BlockOrder {
    block: Arc<Block>,
    senders: SharedSenders,
    /// Previous transaction of the same sender for each transaction examined so far.
    previous: Vec<usize>,
    /// Last transaction of each sender among those.
    last_of: AddressMap<usize>,
    callees: AddressMap<Score>,
    /// Contracts that were hot in recent blocks.
    hot: AddressMap<BlockNumber>,
    /// Transactions in the order of their execution, if none depends on another one.
    independent: Option<std::vec::IntoIter<usize>>,
    /// Work of the block's transactions, and of those that are left.
    works: Arc<Works>,
    work_left: f64,
}

/// Results of calls to an address that held, and that conflicted.
#[derive(Clone, Copy, Default)]
struct Score {
    held: u32,
    conflicts: u32,
}

impl Score {
    /// Returns whether calls of the contract mostly depend on one another.
    fn is_hot(self) -> bool {
        self.conflicts >= 2 && self.conflicts > self.held
    }
}

impl BlockOrder {
    /// Creates the order of a block, with the contracts that were hot in recent blocks.
    pub fn new(
        block: Arc<Block>,
        senders: SharedSenders,
        works: Arc<Works>,
        hot: AddressMap<BlockNumber>,
    ) -> Self {
        let (last_of, callees) = (AddressMap::default(), AddressMap::default());
        let (previous, independent, work_left) = (Vec::new(), None, 0.0);
        Self { block, senders, previous, last_of, callees, hot, independent, works, work_left }
    }

    /// Returns the order of a block whose transactions do not depend on one another, because its
    /// access list says what each reads. Those that may be long come first, so that no thread has
    /// one left when all others are done.
    pub fn of_listed(block: Arc<Block>, senders: SharedSenders, works: Arc<Works>) -> Self {
        let mut order: Vec<_> = (0..block.transactions.len()).collect();
        // The sort is stable: the engine needs the first ones first.
        order.sort_by(|a, b| works.expected(*b).total_cmp(&works.expected(*a)));
        let (independent, work_left) = (Some(order.into_iter()), works.total());
        Self { independent, work_left, ..Self::new(block, senders, works, AddressMap::default()) }
    }

    /// Notes whether the result of a call held.
    pub fn judge(&mut self, callee: Address, holds: bool) {
        let score = self.callees.entry(callee).or_default();
        *if holds { &mut score.held } else { &mut score.conflicts } += 1;
    }

    /// Returns the contracts whose calls mostly depended on one another in this block.
    pub fn hot_callees(&self) -> impl Iterator<Item = Address> + '_ {
        self.callees.iter().filter(|(_, score)| score.is_hot()).map(|(address, _)| *address)
    }
}

impl Order for BlockOrder {
    fn previous(
        &mut self,
        index: usize,
        mut link: impl FnMut(usize, usize),
    ) -> Result<Option<usize>, usize> {
        for at in self.previous.len()..=index {
            let previous = match self.senders.peek(at).ok_or(at)? {
                Some(sender) => self.last_of.insert(sender, at),
                // Without a signer, no transaction follows.
                None => None,
            };
            if let Some(previous) = previous {
                link(previous, at);
            }
            self.previous.push(previous.unwrap_or(NONE));
        }
        let previous = self.previous[index];
        Ok((previous != NONE).then_some(previous))
    }

    fn next_independent(&mut self) -> Option<Option<usize>> {
        let next = self.independent.as_mut()?.next();
        if let Some(index) = next {
            self.work_left = (self.work_left - self.works.expected(index)).max(0.0);
        }
        Some(next)
    }

    fn work_left(&self) -> f64 {
        self.work_left
    }

    fn is_left(&self, index: usize) -> bool {
        let Some(callee) = self.block.transactions[index].to() else { return false };
        self.callees
            .get(&callee)
            .map_or_else(|| self.hot.contains_key(&callee), |score| score.is_hot())
    }
}
