//! Selection of exported traces. The ring has the recent traces in any case.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Number of random bits of a trace id (W3C Trace Context, level 2: its last seven bytes).
const RANDOM_BITS: u32 = 56;

/// Selection of exported traces, always whole.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Sampling {
    /// All traces.
    #[default]
    Always,
    /// Share of the traces, 0 to 1, chosen by trace id: all processes choose the same traces.
    Ratio(f64),
    /// Traces with an `on_new_payload` of at least this length, which is known at its end.
    Slow(Duration),
}

impl Sampling {
    /// Returns whether [`Self::Ratio`] takes this trace. The last 56 bits of the id are compared
    /// with a threshold, as in OpenTelemetry's consistent sampling. A larger share therefore takes
    /// all traces that a smaller share takes.
    pub(crate) fn takes(share: f64, trace_id: u128) -> bool {
        let whole = (1u64 << RANDOM_BITS) as f64;
        let random = (trace_id as u64) & ((1 << RANDOM_BITS) - 1);
        // A float has 53 bits: the last three bits have no significant effect.
        random as f64 >= (1.0 - share) * whole
    }
}

/// Error for a text that is not a valid [`Sampling`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid sampling of traces `{0}`; expected `always`, `ratio{{SHARE}}` with a share \
     from 0 to 1, or `slow{{MILLISECONDS}}`"
)]
pub struct NoSampling(String);

impl FromStr for Sampling {
    type Err = NoSampling;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || NoSampling(text.to_owned());
        if text == "always" {
            return Ok(Self::Always);
        }
        let (name, value) =
            text.strip_suffix('}').and_then(|text| text.split_once('{')).ok_or_else(wrong)?;
        match name {
            "ratio" => {
                let share = value.parse().ok().filter(|share: &f64| (0.0..=1.0).contains(share));
                share.map(Self::Ratio).ok_or_else(wrong)
            }
            "slow" => {
                let milliseconds = value.parse().map_err(|_| wrong())?;
                Ok(Self::Slow(Duration::from_millis(milliseconds)))
            }
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Sampling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Always => f.write_str("always"),
            Self::Ratio(share) => write!(f, "ratio{{{share}}}"),
            Self::Slow(threshold) => write!(f, "slow{{{}}}", threshold.as_millis()),
        }
    }
}

impl Serialize for Sampling {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Sampling {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_was_read() {
        for (text, sampling) in [
            ("always", Sampling::Always),
            ("ratio{0.25}", Sampling::Ratio(0.25)),
            ("ratio{1}", Sampling::Ratio(1.0)),
            ("slow{150}", Sampling::Slow(Duration::from_millis(150))),
            ("slow{0}", Sampling::Slow(Duration::ZERO)),
        ] {
            assert_eq!(text.parse(), Ok(sampling));
            assert_eq!(sampling.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_sampling_is_named() {
        for wrong in [
            "",
            "never",
            "ratio",
            "ratio{}",
            "ratio{2}",
            "ratio{-0.1}",
            "ratio{NaN}",
            "slow{1",
            "slow{-1}",
            "slow{1.5}",
            "slow{1}}",
            "fast{1}",
            "Always",
        ] {
            let error = wrong.parse::<Sampling>().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("invalid sampling of traces `{wrong}`;")),
                "{error}"
            );
        }
    }

    #[test]
    fn a_share_is_taken_and_a_larger_share_takes_the_same_and_more() {
        // The random bits of the ids are spread evenly. The bits above them must not matter.
        let ids: Vec<u128> =
            (0..1_000u128).map(|n| ((n % 7) << 100) | (n * ((1 << 56) / 1_000))).collect();
        let taken = |share: f64| -> Vec<u128> {
            ids.iter().copied().filter(|id| Sampling::takes(share, *id)).collect()
        };
        assert_eq!((taken(0.0).len(), taken(1.0).len()), (0, 1_000));
        let (tenth, half) = (taken(0.1), taken(0.5));
        assert!((99..=101).contains(&tenth.len()), "{}", tenth.len());
        assert!((499..=501).contains(&half.len()), "{}", half.len());
        assert!(tenth.iter().all(|id| half.contains(id)));
    }
}
