//! How many tx-executors a block is worth, from what was measured.
//!
//! A block of `gas` that one machine executes at the rate `r0` takes `gas / r0`. A tx-executor with
//! the rate `r` that begins `s` later, because the list and the values must reach it, does `r` times
//! the rest. All end together at
//!
//! ```text
//! t = (gas + sum of s * r) / (r0 + sum of r)
//! ```
//!
//! Tx-executors are added, those that begin soonest first, as long as `t` falls by a tenth in all.

use parking_lot::Mutex;
use std::time::Duration;

/// Weight of the newest sample in an average.
const WEIGHT: f64 = 0.2;
/// Part of the time that tx-executors must leave at most, compared with none.
const WORTHWHILE: f64 = 0.9;
/// Bytes per second to a tx-executor until they are measured.
const BYTES_PER_SECOND: f64 = 100e6;

/// Measured rates of one tx-executor.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// Number of threads that execute.
    pub threads: usize,
    /// Gas per second and thread, if it is known.
    pub gas: Option<f64>,
    /// Time until an answer to nothing.
    pub round_trip: Duration,
    /// Bytes of lists and values per second, from the start of a block to the first execution.
    pub bytes: f64,
}

impl Default for Rates {
    fn default() -> Self {
        Self { threads: 0, gas: None, round_trip: Duration::ZERO, bytes: BYTES_PER_SECOND }
    }
}

impl Rates {
    /// Notes gas that one thread executed in this time.
    pub fn note_gas(&mut self, gas: u64, took: Duration) {
        if let Some(sample) = rate(gas as f64, took) {
            self.gas = Some(self.gas.map_or(sample, |gas| average(gas, sample)));
        }
    }

    /// Notes a round trip.
    pub fn note_round_trip(&mut self, took: Duration) {
        let seconds = match self.round_trip {
            Duration::ZERO => took.as_secs_f64(),
            before => average(before.as_secs_f64(), took.as_secs_f64()),
        };
        self.round_trip = Duration::from_secs_f64(seconds);
    }

    /// Notes the bytes of a block, and the time until its first execution began.
    pub fn note_bytes(&mut self, bytes: usize, took: Duration) {
        if let Some(sample) = rate(bytes as f64, took.saturating_sub(self.round_trip)) {
            self.bytes = average(self.bytes, sample);
        }
    }

    fn total_gas(&self) -> Option<f64> {
        Some(self.gas? * self.threads as f64)
    }

    /// Returns the time in seconds until a block with so many bytes begins there.
    fn delay(&self, bytes: usize) -> f64 {
        self.round_trip.as_secs_f64() + bytes as f64 / self.bytes
    }
}

/// Gas per second and thread of this process, averaged over blocks.
#[derive(Default)]
pub struct LocalRate(Mutex<Option<f64>>);

impl LocalRate {
    /// Notes gas that threads executed in this time, all together.
    pub fn note(&self, gas: u64, took: Duration) {
        if let Some(sample) = rate(gas as f64, took) {
            let mut known = self.0.lock();
            *known = Some(known.map_or(sample, |known| average(known, sample)));
        }
    }

    /// Returns the rate, `None` before the first block.
    pub fn get(&self) -> Option<f64> {
        *self.0.lock()
    }
}

fn rate(amount: f64, took: Duration) -> Option<f64> {
    (amount > 0.0 && !took.is_zero()).then(|| amount / took.as_secs_f64())
}

fn average(before: f64, sample: f64) -> f64 {
    before + WEIGHT * (sample - before)
}

/// Block to be placed.
pub struct Load {
    /// Gas of the block.
    pub gas: u64,
    /// Bytes of the list and of the parent's values.
    pub bytes: usize,
    /// Number of threads of this process.
    pub threads: usize,
}

/// Tx-executor that may take part.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// Number of the tx-executor.
    pub number: usize,
    /// Measured rates.
    pub rates: Rates,
}

/// Returns the tx-executors that a block is worth, given the gas per second of a thread here. None
/// before that is known.
pub fn choose(load: &Load, local: Option<f64>, mut candidates: Vec<Candidate>) -> Vec<Candidate> {
    let Some(local) = local.map(|gas| gas * load.threads as f64) else { return Vec::new() };
    candidates.retain(|candidate| candidate.rates.total_gas().is_some_and(|gas| gas > 0.0));
    candidates.sort_by(|a, b| a.rates.delay(load.bytes).total_cmp(&b.rates.delay(load.bytes)));
    let (mut work, mut gas_rate) = (load.gas as f64, local);
    let alone = work / gas_rate;
    let (mut best, mut count) = (alone, 0);
    for (at, candidate) in candidates.iter().enumerate() {
        let gas = candidate.rates.total_gas().unwrap_or_default();
        let delay = candidate.rates.delay(load.bytes);
        work += delay * gas;
        gas_rate += gas;
        let time = work / gas_rate;
        // One that would begin after the end has nothing to do.
        if time <= delay || time >= best {
            break;
        }
        (best, count) = (time, at + 1);
    }
    candidates.truncate(if best <= alone * WORTHWHILE { count } else { 0 });
    candidates
}

#[cfg(test)]
mod tests {
    use super::*;

    const MGAS: f64 = 1e6;

    fn candidate(number: usize, round_trip_ms: u64, mgas: f64) -> Candidate {
        let round_trip = Duration::from_millis(round_trip_ms);
        let rates = Rates { threads: 1, gas: Some(mgas * MGAS), round_trip, ..Rates::default() };
        Candidate { number, rates }
    }

    fn numbers(gas: u64, bytes: usize, candidates: &[Candidate]) -> Vec<usize> {
        let load = Load { gas, bytes, threads: 1 };
        let chosen = choose(&load, Some(500.0 * MGAS), candidates.to_vec());
        chosen.iter().map(|candidate| candidate.number).collect()
    }

    #[test]
    fn a_large_block_takes_all_that_are_near_and_a_small_one_none() {
        let all: Vec<_> = (0..4).map(|number| candidate(number, 1, 500.0)).collect();
        assert_eq!(numbers(150_000_000, 1_000_000, &all), [0, 1, 2, 3]);
        assert!(numbers(500_000, 100_000, &all).is_empty(), "1 ms of work");
        assert!(numbers(150_000_000, 60_000_000, &all).is_empty(), "the bytes take longer");
        assert!(numbers(150_000_000, 0, &[]).is_empty());
    }

    #[test]
    fn one_that_is_far_or_slow_is_left_out() {
        let some = [candidate(0, 1_000, 500.0), candidate(1, 1, 500.0), candidate(2, 1, 0.0)];
        assert_eq!(numbers(150_000_000, 1_000_000, &some), [1]);
        let slow = [candidate(0, 1, 20.0)];
        assert!(numbers(150_000_000, 1_000_000, &slow).is_empty(), "it saves 4 in 100");
    }

    #[test]
    fn nothing_is_placed_before_rates_are_known() {
        let load = Load { gas: 150_000_000, bytes: 0, threads: 1 };
        assert!(choose(&load, None, vec![candidate(0, 1, 500.0)]).is_empty());
        let unknown = Candidate { number: 0, rates: Rates { threads: 4, ..Rates::default() } };
        assert!(choose(&load, Some(500.0 * MGAS), vec![unknown]).is_empty());
    }

    #[test]
    fn rates_follow_the_newest_samples() {
        let mut rates = Rates::default();
        rates.note_gas(1_000, Duration::from_secs(1));
        assert_eq!(rates.gas, Some(1_000.0));
        (0..50).for_each(|_| rates.note_gas(2_000, Duration::from_secs(1)));
        assert!(rates.gas.is_some_and(|gas| gas > 1_990.0));
        rates.note_gas(0, Duration::ZERO);
        rates.note_round_trip(Duration::from_millis(2));
        assert_eq!(rates.round_trip, Duration::from_millis(2));
    }
}
