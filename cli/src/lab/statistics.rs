//! Statistics of a comparison: how far a node is from the base, how certain that is, and what the
//! run could have found.
//!
//! Times of consecutive blocks are not independent: a slow second makes several blocks slow. The
//! bootstrap therefore draws segments of consecutive blocks, as long as the differences remember
//! one another (circular block bootstrap; Politis and Romano 1992, length by Politis and White
//! 2004). A segment brings all rounds of its blocks.

use serde::Serialize;
use tandem_overlap::stats::{BLOCKS_MIN, SplitMix, Verdict, median, quantile};

/// Number of resamples of a bootstrap.
const RESAMPLES: usize = 2_000;
/// Probability of a false alarm in a whole report, however many variants it has.
const ALPHA: f64 = 0.05;
/// Distance in standard errors that a true effect keeps from what counts as an effect, so that nine
/// runs in ten find it.
const POWER_Z: f64 = 2.0;
/// Mean distance from 1 of the base's ratio to itself, in standard errors.
const NOISE_Z: f64 = 0.8;

/// Times of one block on two nodes, one pair for each round.
pub type Pairs = Vec<(f64, f64)>;

/// A ratio with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval {
    /// The ratio.
    pub ratio: f64,
    /// 2.5th percentile of the resamples.
    pub low: f64,
    /// 97.5th percentile of the resamples.
    pub high: f64,
}

/// A node compared with the base.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Comparison {
    /// Number of blocks, each with all its rounds.
    pub blocks: usize,
    /// Number of consecutive blocks that are drawn together.
    pub segment: usize,
    /// Median over blocks of the time as a ratio to the base's on the same block.
    pub median: Interval,
    /// Ratio of the two medians.
    pub p50: Interval,
    /// Ratio of the two 95th percentiles.
    pub p95: Interval,
    /// Ratio of the two 99th percentiles.
    pub p99: Interval,
    /// Standard error of the logarithm of [`Comparison::median`].
    pub standard_error: f64,
    /// Probability of such a median ratio if there were no effect.
    pub p: f64,
}

impl Comparison {
    /// Compares the second times with the first. Blocks are in the order of the chain. Returns
    /// `None` without a time.
    pub fn of(blocks: &[Pairs], seed: u64) -> Option<Self> {
        let blocks: Vec<&Pairs> = blocks.iter().filter(|pairs| !pairs.is_empty()).collect();
        let log =
            |pairs: &Pairs| median(pairs.iter().map(|(base, own)| (own / base).ln()).collect());
        let logs: Vec<f64> = blocks.iter().filter_map(|pairs| log(pairs)).collect();
        let segment = segment_length(&logs);
        let mut random = SplitMix(seed);
        let mut resamples: [Vec<f64>; 4] = Default::default();
        let mut drawn = Vec::with_capacity(blocks.len());
        for _ in 0..RESAMPLES {
            drawn.clear();
            while drawn.len() < blocks.len() {
                let start = random.below(blocks.len());
                let left = segment.min(blocks.len() - drawn.len());
                drawn.extend((start..start + left).map(|at| blocks[at % blocks.len()]));
            }
            for (values, value) in resamples.iter_mut().zip(figures(&drawn)?) {
                values.push(value);
            }
        }
        let standard_error = deviation(resamples[0].iter().map(|ratio| ratio.ln()));
        // A segment is worth about one independent observation. The bootstrap's spread is too small
        // by the share that one segment has of the run.
        let independent = (blocks.len() as f64 / segment as f64).max(2.0);
        let standard_error = standard_error * (independent / (independent - 1.0)).sqrt();
        let values = figures(&blocks)?;
        let mut interval = |at: usize| {
            let sorted = &mut resamples[at];
            sorted.sort_by(f64::total_cmp);
            Some(Interval {
                ratio: values[at],
                low: quantile(sorted, 0.025)?,
                high: quantile(sorted, 0.975)?,
            })
        };
        Some(Self {
            blocks: blocks.len(),
            segment,
            median: interval(0)?,
            p50: interval(1)?,
            p95: interval(2)?,
            p99: interval(3)?,
            standard_error,
            p: two_sided(values[0].ln() / standard_error, independent - 1.0),
        })
    }

    /// Returns the smallest effect, as a share of the time, that nine runs like this one in ten
    /// would find among so many comparisons.
    pub fn smallest_effect(&self, comparisons: usize) -> f64 {
        (needed(comparisons) * self.standard_error).exp_m1()
    }

    /// Returns the number of blocks with which nine runs in ten would find an effect of this share
    /// of the time. The standard error falls with the root of their number.
    pub fn blocks_for(&self, effect: f64, comparisons: usize) -> u64 {
        let fold = needed(comparisons) * self.standard_error / effect.ln_1p();
        ((self.blocks as f64 * fold * fold).ceil() as u64).max(BLOCKS_MIN as u64)
    }
}

/// Decides on all comparisons of a report, each with the comparison of the base to itself in its
/// run. A difference must be beyond that noise, and its probability by chance below 5 % for all
/// comparisons together (Holm 1979).
pub fn verdicts(comparisons: &[(Comparison, Comparison)]) -> Vec<Verdict> {
    let adjusted = holm(&comparisons.iter().map(|(own, _)| own.p).collect::<Vec<_>>());
    let verdict = |((own, noise), p): (&(Comparison, Comparison), f64)| {
        // Distance from 1 in factors: half the time is as far as twice the time.
        let distance = |ratio: f64| ratio.ln().abs();
        let floor = distance(noise.median.low).max(distance(noise.median.high));
        let too_few = own.blocks.min(noise.blocks) < BLOCKS_MIN;
        // NaN is never beyond the noise.
        let beyond_the_noise = distance(own.median.ratio) > floor;
        if too_few || !beyond_the_noise || p >= ALPHA {
            Verdict::NoDifference
        } else if own.median.ratio < 1.0 {
            Verdict::Faster
        } else {
            Verdict::Slower
        }
    };
    comparisons.iter().zip(adjusted).map(verdict).collect()
}

/// Returns each probability as adjusted for their number.
fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|a, b| p[*a].total_cmp(&p[*b]));
    let mut adjusted = vec![1.0; p.len()];
    let mut largest: f64 = 0.0;
    for (rank, at) in order.into_iter().enumerate() {
        largest = largest.max(p[at] * (p.len() - rank) as f64);
        adjusted[at] = largest.min(1.0);
    }
    adjusted
}

/// Returns the distance in standard errors at which nine effects in ten are found.
fn needed(comparisons: usize) -> f64 {
    let beyond_chance = normal_quantile(1.0 - ALPHA / 2.0 / comparisons.max(1) as f64);
    beyond_chance.max(normal_quantile(1.0 - ALPHA / 2.0) + NOISE_Z) + POWER_Z
}

/// Returns the median ratio, and the ratios of p50, p95 and p99.
fn figures(blocks: &[&Pairs]) -> Option<[f64; 4]> {
    let pairs = || blocks.iter().flat_map(|pairs| pairs.iter());
    let ratios = pairs().map(|(base, own)| own / base).collect();
    let sorted = |values: &mut Vec<f64>| values.sort_unstable_by(f64::total_cmp);
    let mut base: Vec<f64> = pairs().map(|(base, _)| *base).collect();
    let mut own: Vec<f64> = pairs().map(|(_, own)| *own).collect();
    sorted(&mut base);
    sorted(&mut own);
    let of = |q: f64| Some(quantile(&own, q)? / quantile(&base, q)?);
    Some([median(ratios)?, of(0.5)?, of(0.95)?, of(0.99)?])
}

/// Returns the length of segments that suits the autocorrelation of these values: 1 if there is
/// none, at most a quarter of the values.
fn segment_length(values: &[f64]) -> usize {
    let n = values.len();
    if n < 2 * BLOCKS_MIN {
        return 1;
    }
    // Single blocks that are far off must not hide the memory of all others.
    let middle = median(values.to_vec()).unwrap_or_default();
    let mut distances: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
    let typical = median(distances.clone()).unwrap_or_default();
    if typical <= 0.0 {
        return 1;
    }
    distances.clear();
    distances.extend(values.iter().map(|value| ((value - middle) / typical).clamp(-4.0, 4.0)));
    let mean = distances.iter().sum::<f64>() / n as f64;
    let covariance = |lag: usize| {
        let products = (lag..n).map(|at| (distances[at] - mean) * (distances[at - lag] - mean));
        products.sum::<f64>() / n as f64
    };
    let variance = covariance(0);
    if variance <= 0.0 {
        return 1;
    }
    let digits = (n as f64).log10();
    let insignificant = 2.0 * (digits / n as f64).sqrt();
    let quiet_lags = 5.max(digits.sqrt().ceil() as usize);
    let lag_max = ((n as f64).sqrt().ceil() as usize + quiet_lags).min(n - 1);
    let correlations: Vec<f64> =
        (0..=lag_max + quiet_lags).map(|lag| covariance(lag.min(n - 1)) / variance).collect();
    let is_quiet = |after: usize| {
        correlations[after + 1..].iter().take(quiet_lags).all(|rho| rho.abs() < insignificant)
    };
    let remembered = (0..=lag_max).find(|lag| is_quiet(*lag)).unwrap_or(lag_max);
    if remembered == 0 {
        return 1;
    }
    let reach = (2 * remembered).min(lag_max);
    // Flat-top window: whole up to half the reach, then falling to nothing.
    let window = |lag: usize| (2.0 * (1.0 - lag as f64 / reach as f64)).clamp(0.0, 1.0);
    let (mut spectrum, mut slope) = (correlations[0], 0.0);
    for (lag, rho) in correlations.iter().enumerate().take(reach + 1).skip(1) {
        spectrum += 2.0 * window(lag) * rho;
        slope += 2.0 * window(lag) * lag as f64 * rho;
    }
    if spectrum <= 0.0 {
        return 1;
    }
    let length = (1.5 * slope * slope / (spectrum * spectrum) * n as f64).cbrt();
    (length.ceil() as usize).clamp(1, n / 4)
}

fn deviation(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let n = values.clone().count().max(2) as f64;
    let mean = values.clone().sum::<f64>() / n;
    (values.map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt()
}

/// Returns the probability of a distance of at least `t` standard errors by chance, by Student's
/// distribution (in the normal approximation of Wallace 1959).
fn two_sided(t: f64, freedom: f64) -> f64 {
    if t.is_nan() {
        return 1.0;
    }
    let t = t.abs();
    if t.is_infinite() {
        return 0.0;
    }
    let freedom = freedom.max(1.0);
    let z = (8.0 * freedom + 1.0) / (8.0 * freedom + 3.0)
        * (freedom * (t * t / freedom).ln_1p()).sqrt();
    2.0 * (1.0 - normal(z))
}

/// Returns the distribution function of the standard normal distribution (Abramowitz and Stegun
/// 26.2.17; the error is below 1e-7).
fn normal(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let coefficients =
        [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
    let sum = coefficients.iter().rev().fold(0.0, |sum, c| (sum + c) * t);
    let density = (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    if z >= 0.0 { 1.0 - density * sum } else { density * sum }
}

/// Returns the value below which this share of the standard normal distribution lies.
fn normal_quantile(share: f64) -> f64 {
    let (mut low, mut high) = (-10.0, 10.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if normal(middle) < share { low = middle } else { high = middle }
    }
    (low + high) / 2.0
}

#[cfg(test)]
mod tests;
