//! Paired comparison: how far two sides differ on the same blocks, and how certain that is. Used by
//! `tandem overlap compare` and the lab.

use std::cmp::Ordering;
use std::fmt;

use serde::Serialize;

/// Number of resamples of a bootstrap.
const RESAMPLES: usize = 4_000;
/// Minimum number of blocks. With fewer blocks a bootstrap interval is not reliable.
pub const BLOCKS_MIN: usize = 8;

/// Median with its bootstrap 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// Number of blocks in the input. Each may hold the values of several rounds.
    pub blocks: usize,
    /// Median of all values.
    pub median: f64,
    /// 2.5th percentile of the resamples' medians.
    pub low: f64,
    /// 97.5th percentile of the resamples' medians.
    pub high: f64,
}

impl Estimate {
    /// Returns the estimate from values grouped by block, or `None` without a value. Whole blocks
    /// are drawn, with replacement: the values of two rounds of one block are not independent
    /// observations.
    pub fn of(blocks: &[Vec<f64>], seed: u64) -> Option<Self> {
        let blocks: Vec<&Vec<f64>> = blocks.iter().filter(|values| !values.is_empty()).collect();
        let mut random = SplitMix(seed);
        let mut medians = Vec::with_capacity(RESAMPLES);
        for _ in 0..RESAMPLES {
            let drawn = (0..blocks.len()).flat_map(|_| blocks[random.below(blocks.len())]);
            medians.push(median(drawn.copied().collect())?);
        }
        medians.sort_by(f64::total_cmp);
        Some(Self {
            blocks: blocks.len(),
            median: median(blocks.iter().flat_map(|values| *values).copied().collect())?,
            low: quantile(&medians, 0.025)?,
            high: quantile(&medians, 0.975)?,
        })
    }

    /// Returns the side of `value` on which the whole interval lies. Returns [`Ordering::Equal`] if
    /// the interval contains `value`, or if there are too few blocks.
    pub fn side_of(&self, value: f64) -> Ordering {
        match self {
            _ if self.blocks < BLOCKS_MIN => Ordering::Equal,
            _ if self.high < value => Ordering::Less,
            _ if self.low > value => Ordering::Greater,
            _ => Ordering::Equal,
        }
    }

    /// Returns the verdict on a ratio to the base, given the ratio of the base to itself.
    pub fn verdict(&self, noise: &Self) -> Verdict {
        // Distance from 1 in factors: half the time is as far as twice the time.
        let distance = |ratio: f64| ratio.ln().abs();
        let floor = distance(noise.low).max(distance(noise.high));
        let covers_one = self.low <= 1.0 && self.high >= 1.0;
        let too_few = self.blocks.min(noise.blocks) < BLOCKS_MIN;
        // NaN is never beyond the noise.
        let beyond_the_noise = distance(self.median) > floor;
        if too_few || covers_one || !beyond_the_noise {
            Verdict::NoDifference
        } else if self.median < 1.0 {
            Verdict::Faster
        } else {
            Verdict::Slower
        }
    }
}

/// Verdict of an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The experiment takes less time than the base.
    Faster,
    /// The experiment takes more time than the base.
    Slower,
    /// The interval includes 1, the ratio is within the noise of the base's own ratio, or there are
    /// too few blocks.
    NoDifference,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::NoDifference => "no difference that this machine can see",
        })
    }
}

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014). It is
/// small, and a seed always gives the same numbers, so a report can be reproduced.
pub struct SplitMix(pub u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`, which must not be 0. The bias is below 2^-32 for all uses
    /// here.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    /// Returns a random order of `0..len`.
    pub fn order(&mut self, len: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..len).collect();
        for last in (1..len).rev() {
            order.swap(last, self.below(last + 1));
        }
        order
    }
}

/// Returns the median of values in any order.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    quantile(&values, 0.5)
}

/// Returns a quantile of sorted values, by linear interpolation between the closest ranks.
pub fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let at = q * sorted.len().checked_sub(1)? as f64;
    let (low, high) = (at.floor() as usize, at.ceil() as usize);
    let (low_value, high_value) = (*sorted.get(low)?, *sorted.get(high)?);
    Some(low_value + (high_value - low_value) * at.fract())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate_between_the_closest_ranks() {
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[7.0], 0.99), Some(7.0));
        assert_eq!(quantile(&[1.0, 2.0], 0.5), Some(1.5));
        let values: Vec<f64> = (0..=100).map(f64::from).collect();
        assert_eq!(quantile(&values, 0.95), Some(95.0));
        assert_eq!(quantile(&values, 1.0), Some(100.0));
    }

    #[test]
    fn an_interval_lies_on_a_side_when_all_of_it_does() {
        for (low, high, side) in [
            (0.8, 0.9, Ordering::Less),
            (1.1, 1.2, Ordering::Greater),
            (0.9, 1.1, Ordering::Equal),
            (1.0, 1.1, Ordering::Equal),
            (f64::NAN, f64::NAN, Ordering::Equal),
        ] {
            assert_eq!(interval(1.0, low, high).side_of(1.0), side, "{low}..{high}");
        }
        let few = Estimate { blocks: BLOCKS_MIN - 1, ..interval(2.0, 1.9, 2.1) };
        assert_eq!(few.side_of(1.0), Ordering::Equal);
    }

    fn single(values: impl IntoIterator<Item = f64>) -> Vec<Vec<f64>> {
        values.into_iter().map(|value| vec![value]).collect()
    }

    fn interval(median: f64, low: f64, high: f64) -> Estimate {
        Estimate { blocks: 100, median, low, high }
    }

    #[test]
    fn equal_values_have_an_interval_of_no_width() {
        let estimate = Estimate::of(&single([1.25; 20]), 1).unwrap();
        assert_eq!(estimate, Estimate { blocks: 20, median: 1.25, low: 1.25, high: 1.25 });
        assert_eq!(Estimate::of(&[], 1), None);
        assert_eq!(Estimate::of(&[vec![]], 1), None);
    }

    #[test]
    fn the_same_seed_gives_the_same_interval() {
        let values = single((0..50).map(|i| f64::from(i * 37 % 50)));
        assert_eq!(Estimate::of(&values, 7), Estimate::of(&values, 7));
        // With gaps between the values, the ends would hardly agree by chance under every seed.
        let others: Vec<_> = (0..20).map(|seed| Estimate::of(&values, seed)).collect();
        assert!(others.iter().any(|other| *other != others[0]));
    }

    #[test]
    fn the_interval_is_the_one_that_order_statistics_give() {
        // For 1..=99 the exact 95 % interval of the median reaches from the 40th to the 60th value
        // (binomial, n = 99). The bootstrap interval may be off by one or two ranks.
        let estimate = Estimate::of(&single((1..=99).map(f64::from)), 3).unwrap();
        assert_eq!(estimate.median, 50.0);
        assert!((38.0..=42.0).contains(&estimate.low), "{estimate:?}");
        assert!((58.0..=62.0).contains(&estimate.high), "{estimate:?}");
    }

    #[test]
    fn an_interval_covers_the_true_median_about_as_often_as_it_says() {
        let mut random = SplitMix(11);
        let covered = (0..200)
            .filter(|seed| {
                // Sum of four uniform numbers, with the median 2.
                let mut draw = || (0..4).map(|_| random.below(1 << 20) as f64).sum::<f64>();
                let values = single((0..60).map(|_| draw() / f64::from(1 << 20)));
                let estimate = Estimate::of(&values, *seed).unwrap();
                estimate.low <= 2.0 && estimate.high >= 2.0
            })
            .count();
        assert!((180..=199).contains(&covered), "{covered} of 200");
    }

    #[test]
    fn rounds_of_one_block_do_not_narrow_the_interval() {
        let once = single((0..30).map(f64::from));
        let thrice: Vec<_> = (0..30).map(|value| vec![f64::from(value); 3]).collect();
        let [once, thrice] = [once, thrice].map(|values| Estimate::of(&values, 5).unwrap());
        let width = |estimate: Estimate| estimate.high - estimate.low;
        assert!((width(once) - width(thrice)).abs() < 2.0, "{once:?} {thrice:?}");
    }

    #[test]
    fn a_difference_must_leave_one_and_the_noise_floor_behind() {
        let noise = interval(1.0, 0.98, 1.01);
        for (ratio, verdict) in [
            (interval(1.10, 1.05, 1.15), Verdict::Slower),
            (interval(0.90, 0.85, 0.95), Verdict::Faster),
            (interval(1.10, 0.99, 1.15), Verdict::NoDifference),
            // The noise floor reaches as far up as down.
            (interval(1.015, 1.005, 1.03), Verdict::NoDifference),
            (interval(0.985, 0.97, 0.99), Verdict::NoDifference),
            (interval(f64::NAN, f64::NAN, f64::NAN), Verdict::NoDifference),
        ] {
            assert_eq!(ratio.verdict(&noise), verdict, "{ratio:?}");
        }
        let few = Estimate { blocks: BLOCKS_MIN - 1, ..interval(2.0, 1.9, 2.1) };
        assert_eq!(few.verdict(&noise), Verdict::NoDifference);
    }

    #[test]
    fn orders_are_permutations_and_every_place_gets_everyone() {
        let mut random = SplitMix(2);
        let mut first = [0; 5];
        for _ in 0..1_000 {
            let order = random.order(5);
            first[order[0]] += 1;
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3, 4]);
        }
        assert!(first.iter().all(|count| (150..250).contains(count)), "{first:?}");
    }
}
