//! Verdict on a payload: whether its execution and its state root went on at the same time.
//!
//! The executor says it on its spans and in its metrics, and the analysis of traces says it on any
//! client's. Both use these bounds.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

use serde::Serialize;
use std::fmt;

/// Verdict on whether the two sides ran at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Verdict {
    /// The shorter side hides behind the longer one: total time ≈ the longer side.
    Parallel,
    /// Both sides were under way at the same time, but took turns on the processors.
    Concurrent,
    /// State between PARALLEL and SEQUENTIAL.
    Partial,
    /// One side waits for the other: total time ≈ the sum.
    Sequential,
    /// The shorter side is so small that hiding it saves next to nothing.
    NothingToGain,
}

impl Verdict {
    /// All verdicts.
    pub const ALL: [Self; 5] =
        [Self::Parallel, Self::Concurrent, Self::Partial, Self::Sequential, Self::NothingToGain];

    /// Returns the verdict as one word, for attributes and labels: `NOTHING_TO_GAIN`.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Parallel => "PARALLEL",
            Self::Concurrent => "CONCURRENT",
            Self::Partial => "PARTIAL",
            Self::Sequential => "SEQUENTIAL",
            Self::NothingToGain => "NOTHING_TO_GAIN",
        }
    }
}

impl fmt::Display for Verdict {
    /// Writes the verdict for people: `NOTHING TO GAIN`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NothingToGain => f.pad("NOTHING TO GAIN"),
            other => f.pad(other.word()),
        }
    }
}

/// Bounds between the verdicts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Thresholds {
    /// Least part of the possible gain that [`Verdict::Parallel`] has reached.
    pub parallel: f64,
    /// Part of the possible gain below which the verdict is [`Verdict::Sequential`].
    pub sequential: f64,
    /// Largest tail of [`Verdict::Parallel`], as a part of the payload.
    pub tail: f64,
    /// Weight below which the verdict is [`Verdict::NothingToGain`].
    pub weight: f64,
    /// Least part of the overlap that processor time proves, if it is known: below it,
    /// [`Verdict::Parallel`] is [`Verdict::Concurrent`].
    pub proved: f64,
}

impl Default for Thresholds {
    /// Returns the bounds 0.80 and 0.30 on the gain, and 0.10 on tail and weight. Below 0.30, more
    /// than 70 % of the shorter side adds to the block time. The pipeline that lost its parallelism
    /// in the published regression (309 ms and 321 ms of work in 555 ms) had reached 0.24. With a
    /// tail beyond 0.10, the answer waits for side B although its work may be hidden.
    fn default() -> Self {
        Self { parallel: 0.80, sequential: 0.30, tail: 0.10, weight: 0.10, proved: 0.50 }
    }
}

impl Thresholds {
    /// Returns the verdict on a part of the possible gain, the weight of the shorter side, the tail
    /// as a part of the payload, and the part of the overlap that processor time proves. `None` when
    /// a side has no work.
    pub fn verdict(
        &self,
        reached: Option<f64>,
        weight: Option<f64>,
        tail: Option<f64>,
        proved: Option<f64>,
    ) -> Option<Verdict> {
        let reached = reached?;
        Some(if weight? < self.weight {
            Verdict::NothingToGain
        } else if reached < self.sequential {
            Verdict::Sequential
        } else if reached >= self.parallel && tail.is_none_or(|tail| tail <= self.tail) {
            match proved {
                Some(proved) if proved < self.proved => Verdict::Concurrent,
                _ => Verdict::Parallel,
            }
        } else {
            Verdict::Partial
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_json() {
        for verdict in Verdict::ALL {
            let json = serde_json::to_string(&verdict).unwrap();
            assert_eq!(json, format!("\"{}\"", verdict.word()));
        }
    }

    #[test]
    fn each_bound_decides() {
        let bounds = Thresholds::default();
        let verdict = |reached, weight, tail, proved| {
            bounds.verdict(Some(reached), Some(weight), Some(tail), proved).unwrap()
        };
        assert_eq!(verdict(0.80, 0.10, 0.10, None), Verdict::Parallel);
        assert_eq!(verdict(0.79, 0.10, 0.10, None), Verdict::Partial);
        assert_eq!(verdict(0.80, 0.10, 0.11, None), Verdict::Partial);
        assert_eq!(verdict(0.80, 0.10, 0.10, Some(0.49)), Verdict::Concurrent);
        assert_eq!(verdict(0.80, 0.10, 0.10, Some(0.50)), Verdict::Parallel);
        assert_eq!(verdict(0.30, 0.10, 0.10, None), Verdict::Partial);
        assert_eq!(verdict(0.29, 0.10, 0.10, None), Verdict::Sequential);
        assert_eq!(verdict(0.80, 0.09, 0.10, None), Verdict::NothingToGain);
        assert_eq!(bounds.verdict(None, Some(1.0), None, None), None);
    }
}
