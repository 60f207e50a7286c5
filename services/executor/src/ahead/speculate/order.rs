//! Order in which transactions may be executed ahead.

use super::status::Order;
use crate::ahead::senders::SharedSenders;
use alloy_consensus::Transaction as _;
use alloy_primitives::map::AddressMap;
use std::{cmp::Reverse, sync::Arc};
use tandem_chain::{Block, Transaction};
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
    /// Expected work of those that are left.
    work_left: u64,
    /// Gas of the block divided by the gas limits of its transactions.
    used: f64,
}

/// Gas that takes about as long as the recovery of a sender and what else each transaction costs.
pub const TRANSACTION_WORK: u64 = 50_000;

/// Returns the work of a block: its gas, and what each transaction costs besides.
pub fn work_of(block: &Block) -> u64 {
    block.header.gas_used + block.transactions.len() as u64 * TRANSACTION_WORK
}

/// Returns the work of a transaction that uses this part of its gas limit.
pub fn expected_work(transaction: &Transaction, used: f64) -> u64 {
    (transaction.gas_limit() as f64 * used) as u64 + TRANSACTION_WORK
}

/// Returns the gas of a block divided by the gas limits of its transactions.
pub fn part_used(block: &Block) -> f64 {
    let limits = block.transactions.iter().map(|transaction| transaction.gas_limit());
    let limits: u64 = limits.fold(0, u64::saturating_add);
    (block.header.gas_used as f64 / limits.max(1) as f64).clamp(0.0, 1.0)
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
    pub fn new(block: Arc<Block>, senders: SharedSenders, hot: AddressMap<BlockNumber>) -> Self {
        let (last_of, callees) = (AddressMap::default(), AddressMap::default());
        let (previous, independent, work_left, used) = (Vec::new(), None, 0, 0.0);
        Self { block, senders, previous, last_of, callees, hot, independent, work_left, used }
    }

    /// Returns the order of a block whose transactions do not depend on one another, because its
    /// access list says what each reads. Those that may be long come first, so that no thread has
    /// one left when all others are done.
    pub fn of_listed(block: Arc<Block>, senders: SharedSenders) -> Self {
        let mut order: Vec<_> = (0..block.transactions.len()).collect();
        // The sort is stable: the engine needs the first ones first.
        order.sort_by_key(|index| Reverse(block.transactions[*index].gas_limit()));
        let used = part_used(&block);
        let works = block.transactions.iter().map(|transaction| expected_work(transaction, used));
        let work_left = works.sum();
        let independent = Some(order.into_iter());
        Self { independent, work_left, used, ..Self::new(block, senders, AddressMap::default()) }
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
            let work = expected_work(&self.block.transactions[index], self.used);
            self.work_left = self.work_left.saturating_sub(work);
        }
        Some(next)
    }

    fn work_left(&self) -> u64 {
        self.work_left
    }

    fn is_left(&self, index: usize) -> bool {
        let Some(callee) = self.block.transactions[index].to() else { return false };
        self.callees
            .get(&callee)
            .map_or_else(|| self.hot.contains_key(&callee), |score| score.is_hot())
    }
}
