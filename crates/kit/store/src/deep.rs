//! Reads of many keys in several threads, where the disk is what takes the time: a disk answers many
//! reads at once nearly as fast as one. Where the keys are in memory, one thread is faster.
//!
//! A call measures its first keys. If they are slow, the others are read in pieces at the same time, and the
//! next call begins that way. Calls share the threads, so all of them together ask the disk for no more at
//! once than there are threads.
//!
//! Keys count as slow only if their thread read from the disk meanwhile, as the kernel counts. A thread that
//! lost its processor for a while is slow too, but more threads would make that worse.

use crate::Result;
use nix::sys::resource::{UsageWho, getrusage};
use rayon::{ThreadPool, ThreadPoolBuilder, iter::ParallelIterator, slice::ParallelSlice};
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// Keys that are read by one thread before it is decided, and the fewest of a piece.
const PROBE: usize = 8;

/// Time of a key from which on it comes from the disk. A key in the page cache takes some microseconds.
const DISK: Duration = Duration::from_micros(25);

/// Threads that read, for all views of a store.
pub struct DeepReads {
    /// `None` for stores that never read in several threads.
    pool: Option<ThreadPool>,
    threads: usize,
    /// Whether the last call with many keys waited for the disk.
    is_deep: AtomicBool,
    /// Number of keys that were read in several threads.
    keys: AtomicU64,
    /// Returns how much the calling thread has read from the disk.
    disk_reads: fn() -> i64,
}

impl DeepReads {
    /// Starts the threads, none for less than two. Without threads, which the operating system may refuse,
    /// the callers read for themselves.
    pub fn start(threads: usize) -> Self {
        let pool = ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|number| format!("disk-{number}"));
        let pool = (threads > 1).then(|| pool.build().ok()).flatten();
        let (is_deep, keys) = (AtomicBool::new(false), AtomicU64::new(0));
        Self { pool, threads, is_deep, keys, disk_reads }
    }

    /// Returns the number of keys that were read in several threads.
    pub fn keys(&self) -> u64 {
        self.keys.load(Relaxed)
    }

    /// Reads these keys. `read` returns the values of some of them, in their order.
    ///
    /// # Errors
    /// The first error of `read`.
    pub fn read<K: Sync, V: Send>(
        &self,
        keys: &[K],
        read: impl Fn(&[K]) -> Result<Vec<V>> + Sync,
    ) -> Result<Vec<V>> {
        let Some(pool) = self.pool.as_ref().filter(|_| keys.len() > PROBE) else {
            return read(keys);
        };
        let mut values = Vec::with_capacity(keys.len());
        let mut rest = keys;
        if !self.is_deep.load(Relaxed) {
            let (first, others) = keys.split_at(PROBE);
            let clock = DiskClock::start(self.disk_reads);
            values.extend(read(first)?);
            rest = others;
            if clock.elapsed() < DISK * PROBE as u32 {
                values.extend(read(rest)?);
                return Ok(values);
            }
        }
        let size = rest.len().div_ceil(self.threads).max(PROBE);
        let piece = |keys: &[K]| {
            let clock = DiskClock::start(self.disk_reads);
            read(keys).map(|values| (values, clock.elapsed()))
        };
        let pieces = rest.par_chunks(size).map(piece);
        let pieces = pool.install(|| pieces.collect::<Result<Vec<_>>>())?;
        let took: Duration = pieces.iter().map(|(_, took)| *took).sum();
        self.is_deep.store(took >= DISK * rest.len() as u32, Relaxed);
        self.keys.fetch_add(rest.len() as u64, Relaxed);
        values.extend(pieces.into_iter().flat_map(|(values, _)| values));
        Ok(values)
    }
}

/// Clock of a thread that reads.
struct DiskClock {
    disk_reads: fn() -> i64,
    before: i64,
    begun: Instant,
}

impl DiskClock {
    fn start(disk_reads: fn() -> i64) -> Self {
        Self { disk_reads, before: disk_reads(), begun: Instant::now() }
    }

    /// Returns the time since the start, zero if nothing came from the disk.
    fn elapsed(&self) -> Duration {
        let took = self.begun.elapsed();
        if (self.disk_reads)() == self.before { Duration::ZERO } else { took }
    }
}

/// Returns the number of blocks that the kernel has read from disks for the calling thread.
fn disk_reads() -> i64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.block_reads())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use std::{
        cell::Cell,
        collections::HashSet,
        thread::{self, ThreadId},
    };

    fn numbers(count: u64) -> Vec<u64> {
        (0..count).collect()
    }

    thread_local! {
        static DISK_READS: Cell<i64> = const { Cell::new(0) };
    }

    /// Starts the threads over a disk that [`threads_of`] reads.
    fn start(threads: usize) -> DeepReads {
        DeepReads { disk_reads: || DISK_READS.get(), ..DeepReads::start(threads) }
    }

    /// Reads from the disk, with this time for each key. Returns the threads that read.
    fn threads_of(deep: &DeepReads, count: u64, each: Duration) -> HashSet<ThreadId> {
        threads_with(deep, count, |keys| {
            DISK_READS.set(DISK_READS.get() + 1);
            thread::sleep(each * keys as u32);
        })
    }

    /// Reads, with this work for a number of keys. Returns the threads that read.
    fn threads_with(
        deep: &DeepReads,
        count: u64,
        work: impl Fn(usize) + Sync,
    ) -> HashSet<ThreadId> {
        let keys = numbers(count);
        let read = |keys: &[u64]| {
            work(keys.len());
            Ok(keys.iter().map(|key| (*key, thread::current().id())).collect())
        };
        let (read, threads): (Vec<_>, _) = deep.read(&keys, read).unwrap().into_iter().unzip();
        assert_eq!(read, keys);
        threads
    }

    #[test]
    fn slow_reads_are_spread_over_threads_and_fast_ones_are_not() {
        let deep = start(4);
        let own = HashSet::from([thread::current().id()]);
        assert_eq!(threads_of(&deep, 500, Duration::ZERO), own);
        assert_eq!(threads_of(&deep, 3, Duration::from_millis(1)), own, "a few keys");
        assert_eq!(deep.keys(), 0);
        let slow = threads_of(&deep, 500, Duration::from_micros(200));
        assert!(slow.len() > 2 && slow.is_superset(&own), "the first keys are measured");
        assert_eq!(deep.keys(), 492);
        let next = threads_of(&deep, 100, Duration::from_micros(200));
        assert!(!next.contains(&thread::current().id()), "the next call knows");
        // The first fast call notices, and the next one is read by its caller.
        threads_of(&deep, 500, Duration::ZERO);
        assert_eq!(threads_of(&deep, 500, Duration::ZERO), own);
    }

    #[test]
    fn a_thread_that_lost_its_processor_did_not_wait_for_the_disk() {
        let deep = start(4);
        let own = HashSet::from([thread::current().id()]);
        let preempted = |keys: usize| thread::sleep(2 * DISK * keys as u32);
        assert_eq!(threads_with(&deep, 100, preempted), own);
        deep.is_deep.store(true, Relaxed);
        // Several threads read once more, and notice.
        threads_with(&deep, 100, preempted);
        assert_eq!(threads_with(&deep, 100, preempted), own);
    }

    #[test]
    fn one_thread_and_none_read_in_the_callers() {
        for threads in [0, 1] {
            let deep = start(threads);
            let own = HashSet::from([thread::current().id()]);
            assert_eq!(threads_of(&deep, 100, Duration::from_micros(100)), own);
        }
    }

    #[test]
    fn an_error_of_any_piece_is_the_answer() {
        let deep = DeepReads::start(4);
        deep.is_deep.store(true, Relaxed);
        let keys = numbers(100);
        let read = |keys: &[u64]| match keys.contains(&77) {
            true => Err(Error::UnknownTable("t".to_owned())),
            false => Ok(keys.to_vec()),
        };
        assert!(matches!(deep.read(&keys, read), Err(Error::UnknownTable(_))));
    }
}
