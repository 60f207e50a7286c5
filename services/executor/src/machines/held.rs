//! Transactions that the tx-executors of a block have, and copies for those that have nothing to do.
//!
//! How long transactions take is an estimate. A tx-executor that is done early takes copies of what
//! another one has at the end of its queue, so that both end together by the estimates. The first answer
//! counts.

use parking_lot::Mutex;
use std::{
    collections::VecDeque,
    sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst},
};

/// Transactions of one block at its tx-executors.
pub struct Held {
    members: Vec<Holder>,
    transactions: Box<[Transaction]>,
}

struct Holder {
    /// Work per second, `None` if the tx-executor takes no part in copies.
    rate: Option<f64>,
    /// Transactions without an answer, in the order in which they are executed.
    queue: Mutex<VecDeque<usize>>,
}

struct Transaction {
    /// Expected work, in gas.
    work: f64,
    /// Whether a tx-executor has answered.
    answered: AtomicBool,
    /// Number of queues that have it.
    holders: AtomicU8,
}

impl Held {
    /// Creates empty queues for tx-executors of these rates, and transactions with this work.
    pub fn new(rates: impl Iterator<Item = Option<f64>>, works: impl Iterator<Item = f64>) -> Self {
        let members = rates.map(|rate| Holder { rate, queue: Mutex::default() }).collect();
        let transaction = |work| Transaction {
            work,
            answered: AtomicBool::new(false),
            holders: AtomicU8::new(0),
        };
        Self { members, transactions: works.map(transaction).collect() }
    }

    /// Adds transactions to a queue. No other queue may have them.
    pub fn add(&self, member: usize, added: &[usize]) {
        let mut queue = self.members[member].queue.lock();
        for index in added {
            let transaction = &self.transactions[*index];
            // A transaction that was given back may be leased again.
            transaction.answered.store(false, SeqCst);
            transaction.holders.fetch_add(1, SeqCst);
            queue.push_back(*index);
        }
    }

    /// Returns all transactions of a queue.
    pub fn of(&self, member: usize) -> Vec<usize> {
        self.members[member].queue.lock().iter().copied().collect()
    }

    /// Returns number and work of those in a queue that nobody has answered.
    pub fn left(&self, member: usize) -> (usize, f64) {
        let mut queue = self.members[member].queue.lock();
        queue.retain(|index| !self.transactions[*index].answered.load(SeqCst));
        (queue.len(), queue.iter().map(|index| self.transactions[*index].work).sum())
    }

    /// Takes a transaction out of a queue, because it was answered. Returns whether it was there and
    /// this is its first answer.
    pub fn answer(&self, member: usize, index: usize) -> bool {
        let mut queue = self.members[member].queue.lock();
        let Some(at) = queue.iter().position(|held| *held == index) else { return false };
        queue.remove(at);
        !self.transactions[index].answered.swap(true, SeqCst)
    }

    /// Empties a queue. Returns the transactions that no other one has and that have no answer.
    pub fn give_up(&self, member: usize) -> Vec<usize> {
        let mut queue = self.members[member].queue.lock();
        let is_alone = |index: &usize| {
            let transaction = &self.transactions[*index];
            let others = transaction.holders.fetch_sub(1, SeqCst) > 1;
            !others && !transaction.answered.load(SeqCst)
        };
        queue.drain(..).filter(is_alone).collect()
    }

    /// Copies transactions from the end of the queue that takes longest, up to half of the time by which
    /// it takes longer than this one and the `way` of the copies, in seconds. Copies only what
    /// `is_wanted`, nothing twice, and not what is executed first. Returns them in their order.
    pub fn copy(&self, member: usize, way: f64, is_wanted: impl Fn(usize) -> bool) -> Vec<usize> {
        let time = |member: usize| Some((self.left(member).1, self.members[member].rate?));
        let Some((own_work, own_rate)) = time(member) else { return Vec::new() };
        let others = (0..self.members.len()).filter(|other| *other != member);
        let others = others.filter_map(|other| {
            let (work, rate) = time(other)?;
            Some((other, work / rate, rate))
        });
        let longest = others.max_by(|(_, a, _), (_, b, _)| a.total_cmp(b));
        let Some((other, time, rate)) = longest else { return Vec::new() };
        let mut most = (time - own_work / own_rate - way) / (1.0 / rate + 1.0 / own_rate);
        let mut copied = Vec::new();
        {
            let queue = self.members[other].queue.lock();
            for index in queue.iter().skip(1).rev() {
                let transaction = &self.transactions[*index];
                let is_free = transaction.holders.load(SeqCst) == 1
                    && !transaction.answered.load(SeqCst)
                    && is_wanted(*index);
                if !is_free {
                    continue;
                }
                if transaction.work > most {
                    break;
                }
                most -= transaction.work;
                transaction.holders.fetch_add(1, SeqCst);
                copied.push(*index);
            }
        }
        copied.reverse();
        self.members[member].queue.lock().extend(&copied);
        copied
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns three tx-executors with the same rate, the last of which takes no part in copies, and ten
    /// transactions that take a second each. The first tx-executor has all of them.
    fn held() -> Held {
        let rates = [Some(1.0), Some(1.0), None].into_iter();
        let held = Held::new(rates, [1.0; 10].into_iter());
        held.add(0, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        held
    }

    #[test]
    fn who_is_done_takes_copies_from_the_end_so_that_both_end_together() {
        let held = held();
        assert_eq!(held.copy(2, 0.0, |_| true), [0; 0], "takes no part");
        assert_eq!(held.copy(1, 2.0, |_| true), [6, 7, 8, 9], "the way takes time, too");
        assert_eq!((held.left(0), held.left(1)), ((10, 10.0), (4, 4.0)));
        assert_eq!(held.copy(1, 2.0, |_| true), [4, 5], "none of them twice");
        assert_eq!(held.copy(1, 9.0, |_| true), [0; 0], "not worth the way");
        assert_eq!(held.copy(0, 0.0, |_| true), [0; 0], "the other one ends sooner");
    }

    #[test]
    fn nothing_is_copied_that_is_executed_first_or_not_wanted() {
        let held = held();
        (0..8).for_each(|index| assert!(held.answer(0, index)));
        assert_eq!(held.copy(1, 0.0, |_| false), [0; 0]);
        assert_eq!(held.copy(1, 0.0, |_| true), [9]);
        assert!(held.answer(0, 9));
        assert_eq!(held.copy(1, 0.0, |_| true), [0; 0], "it is under way");
    }

    #[test]
    fn the_first_answer_counts() {
        let held = held();
        held.copy(1, 8.0, |_| true);
        assert!(held.answer(1, 9) && !held.answer(0, 9) && !held.answer(1, 9), "once");
        assert!(!held.answer(1, 3), "not there");
        assert_eq!((held.left(0), held.left(1)), ((9, 9.0), (0, 0.0)));
    }

    #[test]
    fn who_is_lost_gives_back_what_no_other_one_has() {
        let held = held();
        assert_eq!(held.copy(1, 6.0, |_| true), [8, 9]);
        assert!(held.answer(0, 7));
        assert_eq!(held.give_up(0), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(held.give_up(1), [8, 9], "they are the last one's");
        held.add(2, &[3, 7]);
        assert_eq!(held.left(2), (2, 2.0), "leased again");
    }
}
