use parking_lot::Mutex;
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// Largest number of subjects remembered.
const SUBJECTS_MAX: usize = 64;

/// Limit on how often the log mentions a subject.
///
/// At most 64 subjects are remembered. While all of them were logged within the interval, a further
/// subject stays silent. So a flood of invented subjects writes at most 64 lines an interval.
#[derive(Debug)]
pub struct LogRateLimit<T> {
    every: Duration,
    entries: Mutex<VecDeque<Entry<T>>>,
}

#[derive(Debug)]
struct Entry<T> {
    subject: T,
    at: Instant,
    suppressed: u64,
}

impl<T: PartialEq> LogRateLimit<T> {
    /// Makes a limit of one line per subject in this time.
    pub fn new(every: Duration) -> Self {
        Self { every, entries: Mutex::default() }
    }

    /// Makes a limit of one line per subject in a minute.
    pub fn minutely() -> Self {
        Self::new(Duration::from_secs(60))
    }

    /// Returns `None` if this line must be suppressed. Otherwise returns how many lines about the
    /// subject were suppressed since the last one.
    pub fn allow(&self, now: Instant, subject: T) -> Option<u64> {
        let is_over = |entry: &Entry<T>| now.duration_since(entry.at) >= self.every;
        let mut entries = self.entries.lock();
        let known = entries.iter().position(|entry| entry.subject == subject);
        let suppressed = match known {
            Some(at) if is_over(&entries[at]) => entries.remove(at).map_or(0, |it| it.suppressed),
            Some(at) => {
                entries[at].suppressed += 1;
                return None;
            }
            None if entries.len() < SUBJECTS_MAX => 0,
            None if entries.front().is_some_and(is_over) => {
                entries.pop_front();
                0
            }
            None => return None,
        };
        // The order is by time, as each new entry goes to the back.
        entries.push_back(Entry { subject, at: now, suppressed: 0 });
        Some(suppressed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_subject_speaks_once_a_minute_and_says_how_much_was_kept_back() {
        let (limit, start) = (LogRateLimit::minutely(), Instant::now());
        assert_eq!(limit.allow(start, "a"), Some(0));
        assert_eq!(limit.allow(start, "b"), Some(0), "another subject");
        for _ in 0..5 {
            assert_eq!(limit.allow(start + SECOND, "a"), None);
        }
        assert_eq!(limit.allow(start + 59 * SECOND, "a"), None);
        assert_eq!(limit.allow(start + 60 * SECOND, "a"), Some(6));
        assert_eq!(limit.allow(start + 61 * SECOND, "a"), None);
    }

    #[test]
    fn invented_subjects_cannot_flood_the_log() {
        let (limit, start) = (LogRateLimit::minutely(), Instant::now());
        let lines = |range: std::ops::Range<u64>, now: Instant| {
            range.filter(|&n| limit.allow(now, n).is_some()).count()
        };
        assert_eq!(lines(0..10_000, start), SUBJECTS_MAX);
        assert_eq!(lines(10_000..20_000, start + 60 * SECOND), SUBJECTS_MAX);
    }
}
