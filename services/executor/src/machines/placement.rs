//! How many tx-executors a block is worth, from what was measured.
//!
//! A machine with the rate `r` that begins after the time `s` has executed `r * (t - s)` at the time
//! `t`. For a tx-executor, `s` is the time that the list and the values need for their way. For this
//! process, it is the part of the engine's work in order, such as commits, that no machine takes over.
//! All end a block of `gas` together at
//!
//! ```text
//! t = (gas + sum of s * r) / (sum of r)
//! ```
//!
//! Tx-executors are added, those that begin soonest first, as long as `t` falls by a tenth in all.

use parking_lot::Mutex;
use std::time::Duration;

/// Part of the earlier samples that is left with each new one.
const KEPT: f64 = 0.8;
/// Weight of the newest time in an average of times.
const WEIGHT: f64 = 0.2;
/// Part of the time that tx-executors must leave at most, compared with none.
const WORTHWHILE: f64 = 0.9;
/// Bytes per second to a tx-executor until they are measured.
const BYTES_PER_SECOND: f64 = 100e6;
/// Factor by which rates of a tx-executor rise with each block in which it is not used. What was
/// measured may be long ago, or on a cold process, and would never be measured again.
const UNUSED: f64 = 1.1;

/// Amount per second, of which newer samples count more. A sample counts by its time, so a short one
/// with much in it says little.
#[derive(Clone, Copy, Default, Debug)]
pub struct Speed {
    amount: f64,
    seconds: f64,
}

impl Speed {
    /// Returns a speed as if it had been measured for a second.
    #[cfg(test)]
    pub fn of(per_second: f64) -> Self {
        Self { amount: per_second, seconds: 1.0 }
    }

    fn note(&mut self, amount: f64, took: Duration) {
        if amount > 0.0 && !took.is_zero() {
            self.amount = KEPT * self.amount + amount;
            self.seconds = KEPT * self.seconds + took.as_secs_f64();
        }
    }

    /// Returns the amount per second, if it was measured.
    pub fn get(self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.amount / self.seconds)
    }
}

/// Measured rates of one tx-executor.
#[derive(Clone, Copy, Default, Debug)]
pub struct Rates {
    /// Number of threads that execute.
    pub threads: usize,
    /// Gas of all threads.
    pub gas: Speed,
    /// Time until an answer to nothing.
    pub round_trip: Duration,
    /// Bytes of lists and values, from the start of a block to the first execution.
    pub bytes: Speed,
}

impl Rates {
    /// Notes gas that all threads together executed in this time.
    pub fn note_gas(&mut self, gas: f64, took: Duration) {
        self.gas.note(gas, took);
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
        self.bytes.note(bytes as f64, took.saturating_sub(self.round_trip));
    }

    /// Notes that the tx-executor was not used in a block.
    pub fn note_unused(&mut self) {
        self.gas.amount *= UNUSED;
        self.bytes.amount = (self.bytes.amount * UNUSED).min(BYTES_PER_SECOND * self.bytes.seconds);
    }

    /// Returns the time in seconds until a block with so many bytes begins there.
    pub fn delay(&self, bytes: usize) -> f64 {
        self.round_trip.as_secs_f64() + bytes as f64 / self.bytes.get().unwrap_or(BYTES_PER_SECOND)
    }
}

/// Measured rates of this process.
#[derive(Default)]
pub struct LocalRates(Mutex<Measured>);

/// Measurements of [`LocalRates`].
#[derive(Clone, Copy, Default, Debug)]
struct Measured {
    gas: Speed,
    in_order: f64,
}

/// Rates of this process.
#[derive(Clone, Copy, Default, Debug)]
pub struct Local {
    /// Gas per second of all threads, `None` before the first block.
    pub gas: Option<f64>,
    /// Seconds of the engine's work in order for each gas of a block.
    pub in_order: f64,
}

impl LocalRates {
    /// Notes gas that all threads together executed in this time.
    pub fn note(&self, gas: f64, took: Duration) {
        self.0.lock().gas.note(gas, took);
    }

    /// Notes the time of a block in which the engine neither executed nor waited.
    pub fn note_in_order(&self, gas: f64, took: Duration) {
        if gas > 0.0 {
            let mut known = self.0.lock();
            known.in_order = average(known.in_order, took.as_secs_f64() / gas);
        }
    }

    /// Returns the rates.
    pub fn get(&self) -> Local {
        let Measured { gas, in_order } = *self.0.lock();
        Local { gas: gas.get(), in_order }
    }
}

fn average(before: f64, sample: f64) -> f64 {
    before + WEIGHT * (sample - before)
}

/// Block to be placed.
pub struct Load {
    /// Work of the block, in gas.
    pub gas: f64,
    /// Bytes of the list and of the parent's values.
    pub bytes: usize,
}

/// Tx-executor that may take part.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// Number of the tx-executor.
    pub number: usize,
    /// Measured rates.
    pub rates: Rates,
}

/// Share of a block that a tx-executor is to execute.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Share {
    /// Number of the tx-executor.
    pub number: usize,
    /// Gas of the share.
    pub gas: f64,
    /// Seconds until it begins.
    pub delay: f64,
}

/// Returns the tx-executors that a block is worth, with their shares. None before the rate of this
/// process is known.
pub fn choose(load: &Load, local: Local, mut candidates: Vec<Candidate>) -> Vec<Share> {
    let Some(own_rate) = local.gas else { return Vec::new() };
    candidates.retain(|candidate| candidate.rates.gas.get().is_some_and(|gas| gas > 0.0));
    candidates.sort_by(|a, b| a.rates.delay(load.bytes).total_cmp(&b.rates.delay(load.bytes)));
    let own_delay = local.in_order * load.gas;
    let (mut work, mut gas_rate) = (load.gas + own_delay * own_rate, own_rate);
    let alone = work / gas_rate;
    let (mut best, mut shares) = (alone, Vec::new());
    for candidate in candidates {
        let gas = candidate.rates.gas.get().unwrap_or_default();
        let delay = candidate.rates.delay(load.bytes);
        work += delay * gas;
        gas_rate += gas;
        // The work in order takes its time, even if others do all the rest.
        let time = (work / gas_rate).max(own_delay);
        // One that would begin after the end has nothing to do.
        if time <= delay || time >= best {
            break;
        }
        best = time;
        shares.push((candidate.number, gas, delay));
    }
    if best > alone * WORTHWHILE {
        return Vec::new();
    }
    let total: f64 = shares.iter().map(|(_, gas, delay)| gas * (best - delay)).sum();
    let part = (load.gas / total).min(1.0);
    let share = |(number, gas, delay)| Share { number, gas: gas * (best - delay) * part, delay };
    shares.into_iter().map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MGAS: f64 = 1e6;

    fn candidate(number: usize, round_trip_ms: u64, mgas: f64) -> Candidate {
        let round_trip = Duration::from_millis(round_trip_ms);
        let gas = Speed::of(mgas * MGAS);
        let rates = Rates { threads: 1, gas, round_trip, ..Rates::default() };
        Candidate { number, rates }
    }

    fn numbers(gas: f64, bytes: usize, candidates: &[Candidate]) -> Vec<usize> {
        let load = Load { gas, bytes };
        let local = Local { gas: Some(500.0 * MGAS), in_order: 0.0 };
        let chosen = choose(&load, local, candidates.to_vec());
        chosen.iter().map(|share| share.number).collect()
    }

    #[test]
    fn a_large_block_takes_all_that_are_near_and_a_small_one_none() {
        let all: Vec<_> = (0..4).map(|number| candidate(number, 1, 500.0)).collect();
        assert_eq!(numbers(150e6, 1_000_000, &all), [0, 1, 2, 3]);
        assert!(numbers(500e3, 100_000, &all).is_empty(), "1 ms of work");
        assert!(numbers(150e6, 60_000_000, &all).is_empty(), "the bytes take longer");
        assert!(numbers(150e6, 0, &[]).is_empty());
    }

    #[test]
    fn one_that_is_far_or_slow_is_left_out() {
        let some = [candidate(0, 1_000, 500.0), candidate(1, 1, 500.0), candidate(2, 1, 0.0)];
        assert_eq!(numbers(150e6, 1_000_000, &some), [1]);
        let slow = [candidate(0, 1, 20.0)];
        assert!(numbers(150e6, 1_000_000, &slow).is_empty(), "it saves 4 in 100");
    }

    #[test]
    fn nothing_is_placed_before_rates_are_known() {
        let load = Load { gas: 150e6, bytes: 0 };
        assert!(choose(&load, Local::default(), vec![candidate(0, 1, 500.0)]).is_empty());
        let unknown = Candidate { number: 0, rates: Rates { threads: 4, ..Rates::default() } };
        let local = Local { gas: Some(500.0 * MGAS), in_order: 0.0 };
        assert!(choose(&load, local, vec![unknown]).is_empty());
    }

    #[test]
    fn all_end_together_and_work_in_order_leaves_more_to_others() {
        let load = Load { gas: 150e6, bytes: 0 };
        let shares = |in_order: f64| {
            let local = Local { gas: Some(500.0 * MGAS), in_order };
            choose(&load, local, vec![candidate(0, 10, 500.0), candidate(1, 0, 250.0)])
        };
        let ends = |share: &Share, rate: f64| share.delay + share.gas / (rate * MGAS);
        // 150 Mgas, and 5 that the first does not execute in its 10 ms, at 1,250 a second.
        let [far, near] = shares(0.0)[..] else { panic!() };
        let (near, far) = if near.number == 1 { (near, far) } else { (far, near) };
        assert!((ends(&near, 250.0) - 0.124).abs() < 1e-6, "{near:?}");
        assert!((ends(&far, 500.0) - 0.124).abs() < 1e-6, "{far:?}");
        // The engine is busy for 50 ms of the block, and for longer than the block would take.
        let gas = |shares: Vec<Share>| shares.iter().map(|share| share.gas).sum::<f64>();
        let (none, some, all) = (gas(shares(0.0)), gas(shares(1e-9 / 3.0)), gas(shares(1e-8)));
        assert!(none < some && some < all, "{none} {some} {all}");
    }

    #[test]
    fn one_that_was_slow_when_it_was_measured_is_tried_again() {
        let load = Load { gas: 150e6, bytes: 500_000 };
        let local = Local { gas: Some(100.0 * MGAS), in_order: 0.0 };
        let mut slow = candidate(0, 1, 30.0);
        slow.rates.note_bytes(500_000, Duration::from_millis(1_300));
        let mut blocks = 0;
        while choose(&load, local, vec![slow]).is_empty() {
            slow.rates.note_unused();
            blocks += 1;
        }
        assert!((3..20).contains(&blocks), "{blocks}");
    }

    #[test]
    fn rates_follow_the_newest_samples() {
        let mut rates = Rates::default();
        rates.note_gas(1_000.0, Duration::from_secs(1));
        assert_eq!(rates.gas.get(), Some(1_000.0));
        (0..50).for_each(|_| rates.note_gas(2_000.0, Duration::from_secs(1)));
        assert!(rates.gas.get().is_some_and(|gas| gas > 1_990.0));
        rates.note_gas(0.0, Duration::ZERO);
        rates.note_round_trip(Duration::from_millis(2));
        assert_eq!(rates.round_trip, Duration::from_millis(2));
    }

    /// A transaction of a trial that ended at once once made a tx-executor seem fifty times as fast as it
    /// was, for twenty blocks.
    #[test]
    fn a_short_sample_says_little() {
        let mut rates = Rates::default();
        rates.note_gas(1e6, Duration::from_micros(10));
        rates.note_gas(1e8, Duration::from_secs(1));
        assert!(rates.gas.get().is_some_and(|gas| gas < 102e6), "{rates:?}");
    }
}
