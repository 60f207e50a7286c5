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
/// Average nanoseconds of a call above which a reader should do other work meanwhile.
const LONG_NANOS: u64 = 30_000;
/// Nanoseconds that most calls take more than where storage-writer is another process. Of the reads
/// within one process, nineteen in twenty take less than 10,000 while the database is in memory. One
/// from another process of an idle machine takes about 20,000.
const REMOTE_NANOS: u64 = 12_000;
/// Share of all calls.
const ALL: u64 = 1_024;

/// Moving averages over the latest calls for a few keys.
#[derive(Default)]
pub struct ReadTimes {
    /// Nanoseconds of a call.
    nanos: AtomicU64,
    /// Share of the calls that took more than [`REMOTE_NANOS`], of [`ALL`].
    remote: AtomicU64,
}

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
        add(&self.nanos, nanos);
        add(&self.remote, if nanos > REMOTE_NANOS { ALL } else { 0 });
    }

    /// Returns the average.
    pub fn average(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Relaxed))
    }

    /// Returns whether a call takes longer than switching to other work and back: on average, which a
    /// few reads from a disk suffice for, or mostly.
    pub fn are_long(&self) -> bool {
        self.nanos.load(Relaxed) > LONG_NANOS || self.remote.load(Relaxed) > ALL / 2
    }
}

/// Adds a sample to a moving average.
fn add(average: &AtomicU64, sample: u64) {
    // Threads may overwrite each other's samples: an average needs none of them in particular.
    let before = average.load(Relaxed);
    average.store(before - before / 8 + sample / 8, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_of_the_same_machine_is_far() {
        let times = ReadTimes::default();
        times.measure(|| Ok::<_, ()>(())).unwrap();
        assert!(!times.are_long());
        (0..8).for_each(|_| times.note(1, Duration::from_micros(20)));
        assert!(times.are_long());
        // Some reads from a disk make the average 25 µs, but most do not wait.
        for _ in 0..40 {
            (0..9).for_each(|_| times.note(1, Duration::from_micros(5)));
            times.note(1, Duration::from_micros(100));
        }
        assert!(!times.are_long(), "{:?}", times.average());
        (0..40).for_each(|_| times.note(1, Duration::from_micros(35)));
        assert!(times.are_long());
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
