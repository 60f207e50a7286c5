use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Largest number of subjects remembered.
const KEPT: usize = 64;

/// Limit on how often the log mentions a subject.
///
/// At most 64 subjects are remembered. While all of them were logged within the interval, a further
/// subject stays silent. So a flood of invented subjects writes at most 64 lines an interval.
#[derive(Debug)]
pub struct LogRateLimit<T> {
    every: Duration,
    spoken: Mutex<VecDeque<Spoken<T>>>,
}

#[derive(Debug)]
struct Spoken<T> {
    subject: T,
    at: Instant,
    kept_back: u64,
}

impl<T: PartialEq> LogRateLimit<T> {
    /// Makes a limit of one line per subject in this time.
    pub fn new(every: Duration) -> Self {
        Self { every, spoken: Mutex::default() }
    }

    /// Makes a limit of one line per subject in a minute.
    pub fn minutely() -> Self {
        Self::new(Duration::from_secs(60))
    }

    /// Returns `None` if this line must be suppressed. Otherwise returns how many lines about the
    /// subject were suppressed since the last one.
    pub fn speaks(&self, now: Instant, subject: T) -> Option<u64> {
        let is_over = |spoken: &Spoken<T>| now.duration_since(spoken.at) >= self.every;
        let mut spoken = self.spoken.lock().unwrap_or_else(PoisonError::into_inner);
        let known = spoken.iter().position(|spoken| spoken.subject == subject);
        let kept_back = match known {
            Some(at) if is_over(&spoken[at]) => spoken.remove(at).map_or(0, |it| it.kept_back),
            Some(at) => {
                spoken[at].kept_back += 1;
                return None;
            }
            None if spoken.len() < KEPT => 0,
            None if spoken.front().is_some_and(is_over) => {
                spoken.pop_front();
                0
            }
            None => return None,
        };
        // The order is by time, as each new entry goes to the back.
        spoken.push_back(Spoken { subject, at: now, kept_back: 0 });
        Some(kept_back)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_subject_speaks_once_a_minute_and_says_how_much_was_kept_back() {
        let (seldom, start) = (LogRateLimit::minutely(), Instant::now());
        assert_eq!(seldom.speaks(start, "a"), Some(0));
        assert_eq!(seldom.speaks(start, "b"), Some(0), "another subject");
        for _ in 0..5 {
            assert_eq!(seldom.speaks(start + SECOND, "a"), None);
        }
        assert_eq!(seldom.speaks(start + 59 * SECOND, "a"), None);
        assert_eq!(seldom.speaks(start + 60 * SECOND, "a"), Some(6));
        assert_eq!(seldom.speaks(start + 61 * SECOND, "a"), None);
    }

    #[test]
    fn invented_subjects_cannot_flood_the_log() {
        let (seldom, start) = (LogRateLimit::minutely(), Instant::now());
        let lines = |range: std::ops::Range<u64>, now: Instant| {
            range.filter(|&n| seldom.speaks(now, n).is_some()).count()
        };
        assert_eq!(lines(0..10_000, start), KEPT);
        assert_eq!(lines(10_000..20_000, start + 60 * SECOND), KEPT);
    }
}
