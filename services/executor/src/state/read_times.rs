//! Time that a call of storage-writer takes, as measured.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// Maximum number of keys of a call that counts. Larger calls spend their time on the keys.
const KEYS_MAX: usize = 8;
/// Number of calls that [`ReadTimes::measure`] counts. They make the larger part of the average.
const MEASURED: usize = 8;
/// Maximum nanoseconds that count for one call, so that a single stall does not decide.
const NANOS_MAX: u64 = 1_000_000;
/// Nanoseconds of a call above which a reader should do other work meanwhile. Of the reads within one
/// process, nineteen in twenty take less than 10,000 while the database is in memory; one from another
/// process of an idle machine takes about 20,000.
const LONG_NANOS: u64 = 12_000;

/// Moving average over the latest calls for a few keys.
#[derive(Default)]
pub struct ReadTimes(AtomicU64);

impl ReadTimes {
    /// Makes a few calls for one key, before the first block.
    ///
    /// # Errors
    /// The errors of `read`.
    pub fn measure<E>(&self, read: impl Fn() -> Result<(), E>) -> Result<(), E> {
        // The first call may open a connection or a file.
        read()?;
        for _ in 0..MEASURED {
            let started = Instant::now();
            read()?;
            self.note(1, started.elapsed());
        }
        Ok(())
    }

    /// Notes a call for this many keys.
    pub fn note(&self, keys: usize, took: Duration) {
        if keys > KEYS_MAX {
            return;
        }
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(NANOS_MAX).min(NANOS_MAX);
        // Threads may overwrite each other's samples: an average needs none of them in particular.
        let before = self.0.load(Relaxed);
        self.0.store(before - before / 8 + nanos / 8, Relaxed);
    }

    /// Returns the average.
    pub fn average(&self) -> Duration {
        Duration::from_nanos(self.0.load(Relaxed))
    }

    /// Returns whether a call takes longer than switching to other work and back.
    pub fn are_long(&self) -> bool {
        self.0.load(Relaxed) > LONG_NANOS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_of_the_same_machine_is_far() {
        let times = ReadTimes::default();
        (0..40).for_each(|_| times.note(1, Duration::from_micros(20)));
        assert!(times.are_long());
        (0..40).for_each(|_| times.note(1, Duration::from_micros(9)));
        assert!(!times.are_long());
    }

    #[test]
    fn the_average_follows_calls_for_a_few_keys() {
        let times = ReadTimes::default();
        times.note(1, Duration::from_micros(300));
        assert!(times.are_long());
        for _ in 0..40 {
            times.note(1, Duration::from_micros(5));
        }
        assert!(!times.are_long());
        times.note(1, Duration::from_secs(5));
        assert!(times.are_long());
        for _ in 0..40 {
            times.note(1, Duration::from_micros(5));
        }
        assert!(!times.are_long());
        times.note(KEYS_MAX + 1, Duration::from_secs(5));
        assert!(!times.are_long());
    }
}
