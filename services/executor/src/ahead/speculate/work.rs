//! Work of a block's transactions, in gas, by which it is shared out.
//!
//! Each transaction has some work beyond its gas: its signers are recovered where it is executed. And gas
//! says little of time: calls that use precompiled contracts may take ten times as long for the same gas.
//! The limit says little of the gas, too. So what is known of a function, which is a contract and a selector,
//! is remembered from earlier blocks: the time of its calls, divided by that of other work at the same place,
//! and the part of their limits that they use.

use alloy_consensus::Transaction as _;
use alloy_primitives::map::HashMap;
use parking_lot::Mutex;
use std::time::Duration;
use tandem_chain::{Block, Transaction};
use tandem_primitives::Address;

/// Gas that takes about as long as the recovery of a sender and what else each transaction costs.
pub const TRANSACTION_WORK: u64 = 50_000;

/// Maximum number of functions that are remembered. With more, all are forgotten.
const FUNCTIONS_MAX: usize = 4_096;
/// Least work of all calls of a function in a block from which something follows.
const CALLED_MIN: f64 = 1e6;
/// Part that a block has in what is known already.
const NEWEST: f64 = 0.3;
/// Bounds of weights.
const WEIGHT_MIN: f64 = 0.1;
const WEIGHT_MAX: f64 = 100.0;

/// Work of the transactions of one block.
pub struct Works {
    /// Weight of each transaction, and its work if it uses as much of its gas limit as the whole block.
    each: Box<[(f64, f64)]>,
    total: f64,
}

impl Works {
    /// Expects the work of a block's transactions.
    pub fn of(block: &Block, weights: &Weights) -> Self {
        let calls = block.transactions.iter().map(|it| (function(it), it.gas_limit()));
        Self::of_calls(calls, block.header.gas_used, weights)
    }

    /// Expects the work of calls of these functions with these gas limits, which use so much gas in all.
    fn of_calls(
        calls: impl Iterator<Item = (Option<Function>, u64)> + Clone,
        gas_used: u64,
        weights: &Weights,
    ) -> Self {
        let limits = calls.clone().map(|(_, limit)| limit).fold(0, u64::saturating_add);
        let used = (gas_used as f64 / limits.max(1) as f64).clamp(0.0, 1.0);
        let known = weights.0.lock();
        let each = calls.map(|(function, limit)| {
            let known = function.and_then(|function| known.get(&function)).copied();
            let Weight { time, used } = known.unwrap_or(Weight { time: 1.0, used });
            (time, time * (limit as f64 * used + TRANSACTION_WORK as f64))
        });
        let each: Box<[_]> = each.collect();
        let total = each.iter().map(|(_, work)| work).sum();
        Self { each, total }
    }

    /// Returns the expected work of a transaction.
    pub fn expected(&self, index: usize) -> f64 {
        self.each[index].1
    }

    /// Returns the work of a transaction that used this gas.
    pub fn done(&self, index: usize, gas: u64) -> f64 {
        self.each[index].0 * (gas + TRANSACTION_WORK) as f64
    }

    /// Returns the expected work of the whole block.
    pub fn total(&self) -> f64 {
        self.total
    }
}

/// Contract and selector.
pub type Function = (Address, [u8; 4]);

/// Returns the function that a transaction calls, `None` if it creates a contract. A transfer counts as the
/// call of a function.
pub fn function(transaction: &Transaction) -> Option<Function> {
    let mut selector = [0; 4];
    transaction.input().iter().zip(&mut selector).for_each(|(byte, at)| *at = *byte);
    Some((transaction.to()?, selector))
}

/// Experience with the calls of a function.
#[derive(Clone, Copy, Debug)]
struct Weight {
    /// Time for each gas, divided by that of other work at the same place.
    time: f64,
    /// Part of their gas limits that they use.
    used: f64,
}

/// Experience with all functions.
#[derive(Default)]
pub struct Weights(Mutex<HashMap<Function, Weight>>);

/// Execution of one transaction.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Position in the block.
    pub index: usize,
    /// Gas that it used.
    pub gas: u64,
    /// Time of its execution.
    pub took: Duration,
    /// Number of the tx-executor that executed it, none for this process.
    pub at: Option<usize>,
}

impl Weights {
    /// Learns from a block's executions. Times are compared with those of other transactions at the same
    /// place only, as places differ in speed. `call` tells function and gas limit of a transaction.
    pub fn learn(
        &self,
        call: impl Fn(usize) -> (Option<Function>, u64),
        works: &Works,
        samples: &[Sample],
    ) {
        // Time for each unit of work at each place.
        let mut places = HashMap::<Option<usize>, (f64, f64)>::default();
        for sample in samples {
            let (took, work) = places.entry(sample.at).or_default();
            *took += sample.took.as_secs_f64();
            *work += works.done(sample.index, sample.gas);
        }
        let mut functions = HashMap::<Function, Called>::default();
        for sample in samples {
            let (Some(function), limit) = call(sample.index) else { continue };
            let (took, work) = places[&sample.at];
            let called = functions.entry(function).or_default();
            called.by_time += sample.took.as_secs_f64() * work / took.max(1e-9);
            called.by_gas += (sample.gas + TRANSACTION_WORK) as f64;
            called.gas += sample.gas as f64;
            called.limits += limit as f64;
        }
        let mut known = self.0.lock();
        for (function, called) in functions {
            if called.by_gas >= CALLED_MIN {
                note(&mut known, function, called.weight());
            }
        }
        if known.len() > FUNCTIONS_MAX {
            known.clear();
        }
    }
}

/// Calls of a function in one block.
#[derive(Default)]
struct Called {
    /// Their work, in gas: by their times, and by their gas.
    by_time: f64,
    by_gas: f64,
    /// Gas that they used, and that they might have used.
    gas: f64,
    limits: f64,
}

impl Called {
    fn weight(&self) -> Weight {
        let time = (self.by_time / self.by_gas).clamp(WEIGHT_MIN, WEIGHT_MAX);
        Weight { time, used: (self.gas / self.limits.max(1.0)).clamp(0.0, 1.0) }
    }
}

fn note(known: &mut HashMap<Function, Weight>, function: Function, sample: Weight) {
    let Weight { time, used } = known.entry(function).or_insert(sample);
    *time += NEWEST * (sample.time - *time);
    *used += NEWEST * (sample.used - *used);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::iter::repeat_n;

    /// Functions of the same contract.
    const HEAVY: Function = (Address::repeat_byte(1), [1; 4]);
    const LIGHT: Function = (Address::repeat_byte(1), [2; 4]);
    const GAS: u64 = 1_000_000 - TRANSACTION_WORK;

    /// Twenty calls of each function, ten at each place: the second place has half the speed, and heavy
    /// calls take eight times as long.
    fn samples(heavy_at: [usize; 2]) -> Vec<Sample> {
        let of = |first: usize, at: Option<usize>, count: usize, millis: u64| {
            let took = Duration::from_millis(millis);
            (first..first + count).map(move |index| Sample { index, gas: GAS, took, at })
        };
        let [here, there] = heavy_at;
        let heavy = of(0, None, here, 8).chain(of(here, Some(0), there, 16));
        heavy.chain(of(20, None, 10, 1)).chain(of(30, Some(0), 10, 2)).collect()
    }

    fn calls() -> impl Iterator<Item = (Option<Function>, u64)> + Clone {
        repeat_n((Some(HEAVY), 2 * GAS), 20).chain(repeat_n((Some(LIGHT), 2 * GAS), 20))
    }

    fn call(index: usize) -> (Option<Function>, u64) {
        calls().nth(index).unwrap()
    }

    fn works(weights: &Weights) -> Works {
        Works::of_calls(calls(), 40 * GAS, weights)
    }

    #[test]
    fn without_experience_work_is_gas() {
        let works = works(&Weights::default());
        assert_eq!([works.expected(0), works.expected(39), works.done(0, GAS)], [1e6; 3]);
        assert_eq!(works.total(), 40e6);
        let none = Works::of_calls([].into_iter(), 0, &Weights::default());
        assert_eq!(none.total(), 0.0);
    }

    #[test]
    fn weights_are_those_of_times_wherever_the_calls_were_executed() {
        // The last one has all heavy calls at the slow place.
        for heavy_at in [[10, 10], [20, 0], [0, 20]] {
            let weights = Weights::default();
            weights.learn(call, &works(&weights), &samples([10, 10]));
            (0..20).for_each(|_| weights.learn(call, &works(&weights), &samples(heavy_at)));
            let works = works(&weights);
            let ratio = works.expected(0) / works.expected(39);
            assert!((7.0..9.0).contains(&ratio), "{heavy_at:?}: {ratio}");
        }
    }

    #[test]
    fn little_work_says_nothing_and_memory_is_bounded() {
        let weights = Weights::default();
        let short = Sample { index: 0, gas: 1, took: Duration::from_secs(1), at: None };
        weights.learn(call, &works(&weights), &[short]);
        assert!(weights.0.lock().is_empty());
        let many = (0..=FUNCTIONS_MAX as u64).map(|n| Address::left_padding_from(&n.to_be_bytes()));
        let weight = Weight { time: 1.0, used: 1.0 };
        weights.0.lock().extend(many.map(|address| ((address, [0; 4]), weight)));
        weights.learn(call, &works(&weights), &samples([10, 10]));
        assert!(weights.0.lock().is_empty());
        weights.learn(call, &works(&weights), &[Sample { took: Duration::ZERO, ..short }]);
    }

    #[test]
    fn the_part_of_the_limit_that_a_function_uses_is_remembered() {
        let weights = Weights::default();
        let calls = [(Some(HEAVY), 4 * GAS), (Some(LIGHT), GAS)];
        let works = |weights: &Weights| Works::of_calls(calls.into_iter(), 2 * GAS, weights);
        let took = Duration::from_millis(1);
        let samples = [0, 1].map(|index| Sample { index, gas: GAS, took, at: None });
        assert_eq!(works(&weights).expected(1), 0.4 * GAS as f64 + TRANSACTION_WORK as f64);
        weights.learn(|index| calls[index], &works(&weights), &samples);
        let works = works(&weights);
        assert_eq!([works.expected(0), works.expected(1)], [1e6; 2]);
    }
}
