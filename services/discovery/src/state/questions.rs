//! Pace of the questions of lookups. Where nodes answer fast, lookups of three nodes at a time would
//! otherwise ask more of them than the legacy policy, which begins with one node each 100 ms.

use std::time::Duration;

/// Questions a second, in the long run.
const PER_SECOND: f64 = 5.0;
/// Questions that may be asked at once, so that a node that starts finds others soon.
const BURST: f64 = 64.0;
/// Time after which the next question is certain to be there, whatever was rounded.
const MARGIN: Duration = Duration::from_millis(1);

/// Questions that lookups may ask now.
pub struct Questions {
    there: f64,
    filled_at: Duration,
}

impl Default for Questions {
    fn default() -> Self {
        Self { there: BURST, filled_at: Duration::ZERO }
    }
}

impl Questions {
    /// Takes a question. Otherwise returns the time at which there is one.
    pub fn take(&mut self, now: Duration) -> Result<(), Duration> {
        let seconds = now.saturating_sub(self.filled_at).as_secs_f64();
        self.there = (self.there + seconds * PER_SECOND).min(BURST);
        self.filled_at = self.filled_at.max(now);
        if self.there < 1.0 {
            let wait = Duration::from_secs_f64((1.0 - self.there) / PER_SECOND);
            return Err(self.filled_at + wait + MARGIN);
        }
        self.there -= 1.0;
        Ok(())
    }

    /// Returns a question that was taken and not asked.
    pub fn give_back(&mut self) {
        self.there += 1.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_burst_is_followed_by_five_a_second() {
        let (mut questions, mut now, mut asked) = (Questions::default(), Duration::ZERO, 0);
        let minute = Duration::from_secs(60);
        while now < minute {
            match questions.take(now) {
                Ok(()) => asked += 1,
                Err(next) => {
                    assert!(next > now, "time passes");
                    now = next;
                }
            }
        }
        assert!((360..=364).contains(&asked), "{asked} in the first minute");
    }

    proptest! {
        #[test]
        fn no_span_of_time_has_more_than_its_questions(
            waits in prop::collection::vec(0u64..3_000, 1..400),
        ) {
            let (mut questions, mut now, mut asked) = (Questions::default(), 0, 0.0);
            for wait in waits {
                now += wait;
                let at = Duration::from_millis(now);
                while questions.take(at).is_ok() {
                    asked += 1.0;
                }
                prop_assert!(questions.take(at).unwrap_err() > at);
                prop_assert!(asked <= BURST + PER_SECOND * at.as_secs_f64() + 1e-6);
            }
        }
    }
}
