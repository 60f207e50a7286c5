use crate::text;
use core::time::Duration;

/// Way in which discovery looks for nodes, and its frequency.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Lookups {
    /// Kademlia lookups that ask three nodes at a time until the closest ones have answered. One
    /// timer alternates them with requests for records, and slows down with the number of peers.
    #[default]
    Kademlia,
    /// Lookups that send one find node packet to one random node, on the same timer as Kademlia.
    Single,
    /// One find node packet and one request for a record, each on its own timer between 100 and 600
    /// ms. The timers go on when there are enough peers. Exists for comparison measurements.
    Legacy,
}

/// Pauses between the turns of the timer that slows down.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LookupPauses {
    /// Pause while peers are scarce.
    pub fast: Duration,
    /// Pause while some peers are missing.
    pub base: Duration,
    /// Pause once there are enough peers.
    pub maintenance: Duration,
    /// Share of the wanted peers, 0 to 1, below which peers count as scarce.
    pub starving_below: f64,
}

/// Pauses of [`Lookups::Legacy`] without peers and with enough of them, in milliseconds.
const LEGACY_MS: (f64, f64) = (100.0, 600.0);

impl Lookups {
    /// Returns whether nodes and records each have their own timer.
    #[must_use]
    pub fn has_two_timers(self) -> bool {
        self == Self::Legacy
    }

    /// Returns the time a timer waits at this share of the wanted peers, 0 to 1.
    #[must_use]
    pub fn pause(self, completion: f64, pauses: &LookupPauses) -> Duration {
        match self {
            Self::Legacy => {
                let (low, high) = LEGACY_MS;
                Duration::from_secs_f64((low + (high - low) * ease(completion)) / 1000.0)
            }
            Self::Kademlia | Self::Single if completion >= 1.0 => pauses.maintenance,
            Self::Kademlia | Self::Single if completion < pauses.starving_below => pauses.fast,
            Self::Kademlia | Self::Single => pauses.base,
        }
    }
}

/// Applies cubic easing, in and out: 0 to 1, flat at both ends and steepest in the middle.
fn ease(completion: f64) -> f64 {
    // NaN counts as no peers.
    let x = if completion.is_nan() { 0.0 } else { completion.clamp(0.0, 1.0) };
    let rise = |x: f64| 4.0 * x * x * x;
    if x < 0.5 { rise(x) } else { 1.0 - rise(1.0 - x) }
}

text::words!(Lookups, "lookups", Kademlia => "kademlia", Single => "single", Legacy => "legacy");

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAUSES: LookupPauses = LookupPauses {
        fast: Duration::from_millis(500),
        base: Duration::from_secs(5),
        maintenance: Duration::from_secs(30),
        starving_below: 0.5,
    };

    #[test]
    fn texts_are_read_and_wrong_ones_named() {
        for policy in [Lookups::Kademlia, Lookups::Single, Lookups::Legacy] {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        let error = "none".parse::<Lookups>().unwrap_err().to_string();
        assert_eq!(
            error,
            "invalid value `none` for `lookups`; expected `kademlia`, `single` or `legacy`"
        );
    }

    #[test]
    fn pauses_grow_with_the_number_of_peers() {
        for policy in [Lookups::Kademlia, Lookups::Single] {
            let pause = |completion| policy.pause(completion, &PAUSES);
            assert_eq!([0.0, 0.49].map(pause), [PAUSES.fast; 2]);
            assert_eq!([0.5, 0.99].map(pause), [PAUSES.base; 2]);
            assert_eq!([1.0, 2.0].map(pause), [PAUSES.maintenance; 2]);
        }
        let legacy = |completion| Lookups::Legacy.pause(completion, &PAUSES).as_millis();
        assert_eq!([0.0, 0.25, 0.5, 0.75, 1.0].map(legacy), [100, 131, 350, 568, 600]);
        assert_eq!([f64::NAN, -1.0, 7.0].map(legacy), [100, 100, 600]);
    }

    proptest! {
        #[test]
        fn the_legacy_pause_never_falls_and_never_ends(a in 0.0..=1.0f64, b in 0.0..=1.0f64) {
            let legacy = |completion| Lookups::Legacy.pause(completion, &PAUSES);
            prop_assert!(legacy(a.min(b)) <= legacy(a.max(b)));
            prop_assert!(legacy(a) <= Duration::from_millis(600));
        }
    }
}
