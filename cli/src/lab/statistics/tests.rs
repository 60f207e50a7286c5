//! Tests with simulated experiments, whose true effect is known.

use super::*;

/// Source of normal numbers, by the sum of twelve uniform ones.
struct Noise(SplitMix);

impl Noise {
    fn next(&mut self) -> f64 {
        (0..12).map(|_| self.0.below(1 << 30) as f64 / f64::from(1 << 30)).sum::<f64>() - 6.0
    }
}

/// How simulated times vary, in shares of a time.
#[derive(Clone, Copy)]
struct Machine {
    /// Deviation of a node's own noise.
    noise: f64,
    /// Share of the noise that the next block still has.
    memory: f64,
    /// Least share of experiments in which an effect is found with the number of blocks that a run
    /// of 120 asked for. Such a run underestimates a long memory.
    found_min: f64,
}

/// Returns an experiment: the base, the base again, and a variant with this effect on each of
/// `blocks` blocks. Blocks differ by much, the machine drifts for all nodes alike, and each node's
/// own noise remembers the last block.
fn simulate(blocks: usize, effect: f64, machine: Machine, seed: u64) -> (Comparison, Comparison) {
    let mut random = Noise(SplitMix(seed));
    let (mut drift, mut own) = (0.0, [0.0; 3]);
    let fresh = machine.noise * (1.0 - machine.memory * machine.memory).sqrt();
    let (mut again, mut variant) = (Vec::new(), Vec::new());
    for _ in 0..blocks {
        let block = (4.0 + 0.5 * random.next()).exp();
        drift = 0.9 * drift + 0.05 * random.next();
        for value in &mut own {
            *value = machine.memory * *value + fresh * random.next();
        }
        let [base, repeated, changed] = own.map(|own| block * (drift + own).exp());
        again.push(vec![(base, repeated)]);
        variant.push(vec![(base, changed * (1.0 + effect))]);
    }
    let compare = |blocks: &[Pairs], seed| Comparison::of(blocks, seed).unwrap();
    (compare(&variant, seed), compare(&again, seed + 1))
}

/// Returns the share of experiments in which the effect is found.
fn found(experiments: u64, blocks: usize, effect: f64, machine: Machine) -> f64 {
    let all = (0..experiments).map(|seed| simulate(blocks, effect, machine, 7_919 * seed + 13));
    let expected = if effect < 0.0 { Verdict::Faster } else { Verdict::Slower };
    let hits = all.filter(|pair| {
        let verdict = verdicts(std::slice::from_ref(pair))[0];
        if effect == 0.0 { verdict != Verdict::NoDifference } else { verdict == expected }
    });
    hits.count() as f64 / experiments as f64
}

const MACHINES: [Machine; 3] = [
    Machine { noise: 0.04, memory: 0.0, found_min: 0.8 },
    Machine { noise: 0.04, memory: 0.5, found_min: 0.8 },
    Machine { noise: 0.04, memory: 0.8, found_min: 0.6 },
];

/// Asserts what the statistics promise, with so many experiments of each kind.
fn promises_hold(experiments: u64, machines: &[Machine]) {
    for &machine in machines {
        for blocks in [54, 120] {
            let alarms = found(experiments, blocks, 0.0, machine);
            eprintln!("memory {}: {blocks} blocks, false alarms {alarms:.3}", machine.memory);
            assert!(alarms <= 0.05, "{alarms} at memory {}", machine.memory);
        }
        // A first run says how many blocks an effect of 3 % takes.
        let asked = (0..9).map(|seed| simulate(120, 0.0, machine, 31 * seed).0.blocks_for(0.03, 1));
        let asked = median(asked.map(|blocks| blocks as f64).collect()).unwrap() as usize;
        for effect in [0.03, -0.03] {
            let share = found(experiments / 2, asked, effect, machine);
            eprintln!("memory {}: {asked} blocks, {effect} found in {share:.3}", machine.memory);
            assert!(
                share >= machine.found_min,
                "{share} at memory {} with {asked} blocks",
                machine.memory
            );
        }
    }
}

#[test]
fn false_alarms_are_rare_and_effects_are_found() {
    promises_hold(60, &MACHINES[1..2]);
}

#[test]
#[ignore = "takes minutes: 2,000 simulated experiments of each kind"]
fn false_alarms_are_rare_and_effects_are_found_in_many_experiments() {
    promises_hold(2_000, &MACHINES);
}

#[test]
fn segments_are_as_long_as_the_memory_of_the_noise() {
    let lengths = MACHINES.map(|machine| {
        let lengths = (0..9).map(|seed| simulate(400, 0.0, machine, seed).0.segment as f64);
        median(lengths.collect()).unwrap()
    });
    assert!(lengths[0] <= 2.0 && lengths[0] < lengths[1] && lengths[1] < lengths[2], "{lengths:?}");
    assert_eq!(segment_length(&[1.0; 100]), 1);
    assert_eq!(segment_length(&[]), 1);
}

#[test]
fn several_comparisons_must_be_less_likely_by_chance() {
    assert_eq!(holm(&[0.01, 0.04, 0.03]), [0.03, 0.06, 0.06]);
    assert_eq!(holm(&[]), [0.0; 0]);
    let (variant, noise) = simulate(100, 0.0, MACHINES[0], 5);
    let interval = Interval { ratio: 1.2, low: 1.01, high: 1.4 };
    let doubtful = Comparison { median: interval, p: 0.03, ..variant };
    let alone = verdicts(&[(doubtful, noise)]);
    assert_eq!(alone, [Verdict::Slower]);
    let among = verdicts(&[(doubtful, noise), (Comparison { p: 0.5, ..doubtful }, noise)]);
    assert_eq!(among, [Verdict::NoDifference; 2]);
    assert!(variant.smallest_effect(10) > variant.smallest_effect(1));
    assert!(variant.blocks_for(0.03, 10) > variant.blocks_for(0.03, 1));
    assert!(variant.blocks_for(0.01, 1) > variant.blocks_for(0.03, 1));
}

#[test]
fn an_equal_factor_on_all_blocks_is_exact() {
    let blocks: Vec<Pairs> =
        (0..40).map(|at| vec![(f64::from(40 + at), f64::from(40 + at) * 1.5)]).collect();
    let comparison = Comparison::of(&blocks, 1).unwrap();
    for interval in [comparison.median, comparison.p50, comparison.p95, comparison.p99] {
        for value in [interval.ratio, interval.low, interval.high] {
            assert!((value - 1.5).abs() < 1e-9, "{comparison:?}");
        }
    }
    assert!(comparison.p < 1e-6, "{comparison:?}");
    assert_eq!(Comparison::of(&[], 1), None);
    assert_eq!(Comparison::of(&[vec![]], 1), None);
}

#[test]
fn a_tail_that_grows_shows_in_its_own_interval() {
    // One block in ten takes twice as long.
    let blocks: Vec<Pairs> = (0..200)
        .map(|at| {
            let base = 50.0 + f64::from(at * 37 % 50);
            vec![(base, if at % 10 == 0 { 2.0 * base } else { base })]
        })
        .collect();
    let comparison = Comparison::of(&blocks, 3).unwrap();
    assert_eq!(comparison.median.ratio, 1.0);
    assert!(comparison.p95.low > 1.0 && comparison.p99.low > 1.3, "{comparison:?}");
}

#[test]
fn distributions_are_those_of_the_tables() {
    for (share, z) in [(0.5, 0.0), (0.975, 1.959_964), (0.9, 1.281_552)] {
        assert!((normal_quantile(share) - z).abs() < 1e-4, "{share}");
        assert!((normal(z) - share).abs() < 1e-6, "{z}");
    }
    // Two-sided 5 % points of Student's distribution.
    for (freedom, t) in [(5.0, 2.571), (10.0, 2.228), (30.0, 2.042)] {
        assert!((two_sided(t, freedom) - 0.05).abs() < 0.003, "{freedom}");
        assert_eq!(two_sided(t, freedom), two_sided(-t, freedom));
    }
    assert_eq!((two_sided(f64::NAN, 9.0), two_sided(f64::INFINITY, 9.0)), (1.0, 0.0));
}
