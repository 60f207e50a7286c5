//! Reads of many keys in several threads, where the disk is what takes the time: a disk answers many
//! reads at once nearly as fast as one. Where the keys are in memory, one thread is faster.
//!
//! A call measures its first keys. If they are slow, the others are read in pieces at the same time, and the
//! next call begins that way. Calls share the threads, so all of them together ask the disk for no more at
//! once than there are threads.
//!
//! The threads sleep while there is nothing to read. Those of a pool for computation look for work for a while first,
//! which took a sixth of all processor time.
//!
//! Keys count as slow only if their thread read from the disk meanwhile, as the kernel counts. A thread that
//! lost its processor for a while is slow too, but more threads would make that worse.

use crate::{Error, Result};
use crossbeam_channel::{Receiver, Sender, bounded};
use nix::sys::resource::{UsageWho, getrusage};
use std::{
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Keys that are read by one thread before it is decided, and the fewest of a piece.
pub const PROBE: usize = 8;

/// Time of a key from which on it comes from the disk. A key in the page cache takes some microseconds.
const DISK: Duration = Duration::from_micros(25);

/// Pieces that may wait for a thread before their callers do.
const QUEUED_MAX: usize = 256;

/// Reads the keys in a range of those of a call, and returns the values in their order.
pub type Read<V> = dyn Fn(Range<usize>) -> Result<Vec<V>> + Send + Sync;

/// Piece of a call.
type Task = Box<dyn FnOnce() + Send>;

/// Threads that read, for all views of a store.
pub struct DeepReads {
    /// Tasks of the threads, `None` for stores that never read in several threads.
    tasks: Option<Sender<Task>>,
    threads: Vec<JoinHandle<()>>,
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
        let (tasks, queue) = bounded(QUEUED_MAX);
        let start = |number| {
            let queue: Receiver<Task> = queue.clone();
            // A task catches what its read panics with.
            let run = move || queue.iter().for_each(|task| task());
            thread::Builder::new().name(format!("disk-{number}")).spawn(run).ok()
        };
        let threads: Vec<_> = match threads > 1 {
            true => (0..threads).map_while(start).collect(),
            false => Vec::new(),
        };
        let tasks = (threads.len() > 1).then_some(tasks);
        let (is_deep, keys) = (AtomicBool::new(false), AtomicU64::new(0));
        Self { tasks, threads, is_deep, keys, disk_reads }
    }

    /// Returns the number of keys that were read in several threads.
    pub fn keys(&self) -> u64 {
        self.keys.load(Relaxed)
    }

    /// Reads a number of keys, and returns their values in order. No thread has `read` any more when it returns.
    ///
    /// # Errors
    /// The first error of `read`.
    pub fn read<V: Send + 'static>(&self, count: usize, read: &Arc<Read<V>>) -> Result<Vec<V>> {
        let Some(tasks) = self.tasks.as_ref().filter(|_| count > PROBE) else {
            return read(0..count);
        };
        let mut values = Vec::with_capacity(count);
        if !self.is_deep.load(Relaxed) {
            let clock = DiskClock::start(self.disk_reads);
            values.extend(read(0..PROBE)?);
            if clock.elapsed() < DISK * PROBE as u32 {
                values.extend(read(PROBE..count)?);
                return Ok(values);
            }
        }
        let rest = count - values.len();
        let size = rest.div_ceil(self.threads.len()).max(PROBE);
        let pieces =
            (values.len()..count).step_by(size).map(|start| start..count.min(start + size));
        let pieces = self.read_pieces(tasks, pieces.collect(), read)?;
        let took: Duration = pieces.iter().map(|(_, took)| *took).sum();
        self.is_deep.store(took >= DISK * rest as u32, Relaxed);
        self.keys.fetch_add(rest as u64, Relaxed);
        values.extend(pieces.into_iter().flat_map(|(values, _)| values));
        Ok(values)
    }

    /// Reads pieces at the same time, the last one in this thread. Returns their values, and the time that each
    /// waited for the disk.
    fn read_pieces<V: Send + 'static>(
        &self,
        tasks: &Sender<Task>,
        mut pieces: Vec<Range<usize>>,
        read: &Arc<Read<V>>,
    ) -> Result<Vec<(Vec<V>, Duration)>> {
        let disk_reads = self.disk_reads;
        let timed = move |read: &Read<V>, piece: Range<usize>| {
            let clock = DiskClock::start(disk_reads);
            read(piece).map(|values| (values, clock.elapsed()))
        };
        let Some(own) = pieces.pop() else { return Ok(Vec::new()) };
        let (answer, answers) = bounded(pieces.len());
        let mut all: Vec<_> = pieces.iter().map(|_| None).collect();
        for (place, piece) in pieces.into_iter().enumerate() {
            let (read, answer) = (read.clone(), answer.clone());
            let task = move || {
                let values = catch_unwind(AssertUnwindSafe(|| timed(&*read, piece)));
                // The caller may end what it reads from as soon as it has all answers.
                drop(read);
                let _ = answer.send((place, values));
            };
            // Threads end after the sender only. A piece without one would have no answer.
            let _ = tasks.send(Box::new(task));
        }
        drop(answer);
        let own = catch_unwind(AssertUnwindSafe(|| timed(&**read, own)));
        for (place, values) in answers {
            all[place] = Some(values);
        }
        let lost = || Ok(Err(Error::Database("no thread read a piece of a call".to_owned())));
        let values = all.into_iter().map(|values| values.unwrap_or_else(lost)).chain([own]);
        values.map(|values| values.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    }
}

impl Drop for DeepReads {
    fn drop(&mut self) {
        self.tasks = None;
        for thread in self.threads.drain(..) {
            // A thread catches all panics.
            let _ = thread.join();
        }
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
    use std::{cell::Cell, collections::HashSet, thread::ThreadId};

    thread_local! {
        static DISK_READS: Cell<i64> = const { Cell::new(0) };
    }

    /// Starts the threads over a disk that [`threads_of`] reads.
    fn start(threads: usize) -> DeepReads {
        let mut deep = DeepReads::start(threads);
        deep.disk_reads = || DISK_READS.get();
        deep
    }

    /// Reads from the disk, with this time for each key. Returns the threads that read.
    fn threads_of(deep: &DeepReads, count: usize, each: Duration) -> HashSet<ThreadId> {
        threads_with(deep, count, move |keys| {
            DISK_READS.set(DISK_READS.get() + 1);
            thread::sleep(each * keys as u32);
        })
    }

    /// Reads, with this work for a number of keys. Returns the threads that read.
    fn threads_with(
        deep: &DeepReads,
        count: usize,
        work: impl Fn(usize) + Send + Sync + 'static,
    ) -> HashSet<ThreadId> {
        let read: Arc<Read<_>> = Arc::new(move |keys: Range<usize>| {
            work(keys.len());
            Ok(keys.map(|key| (key, thread::current().id())).collect())
        });
        let (keys, threads): (Vec<_>, _) = deep.read(count, &read).unwrap().into_iter().unzip();
        assert_eq!(keys, (0..count).collect::<Vec<_>>());
        assert_eq!(Arc::strong_count(&read), 1, "no thread has what it read from");
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
        assert!(threads_of(&deep, 100, Duration::from_micros(200)).len() > 2);
        assert_eq!(deep.keys(), 592, "the next call knows");
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
        for bad in [3, 77, 99] {
            deep.is_deep.store(true, Relaxed);
            let read: Arc<Read<usize>> =
                Arc::new(move |keys: Range<usize>| match keys.contains(&bad) {
                    true => Err(Error::UnknownTable("t".to_owned())),
                    false => Ok(keys.collect()),
                });
            assert!(matches!(deep.read(100, &read), Err(Error::UnknownTable(_))));
            assert_eq!(Arc::strong_count(&read), 1);
        }
    }

    #[test]
    fn a_panic_of_any_piece_is_the_callers_and_threads_go_on() {
        let deep = DeepReads::start(4);
        for bad in [3, 77, 99] {
            deep.is_deep.store(true, Relaxed);
            let read: Arc<Read<usize>> = Arc::new(move |keys: Range<usize>| {
                assert!(!keys.contains(&bad), "key {bad}");
                Ok(keys.collect())
            });
            let read = || deep.read(100, &read);
            assert!(catch_unwind(AssertUnwindSafe(read)).is_err());
        }
        deep.is_deep.store(true, Relaxed);
        let read: Arc<Read<usize>> = Arc::new(|keys: Range<usize>| Ok(keys.collect()));
        assert_eq!(deep.read(100, &read).unwrap(), (0..100).collect::<Vec<_>>());
    }
}
