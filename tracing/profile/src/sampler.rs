//! Samples of this process. The kernel sends SIGPROF (`ITIMER_PROF`) whenever the process has used
//! one period of processor time, to a thread that is running. The handler walks that thread's stack
//! by the unwind tables, which Rust and C++ code have, so frame pointers are not needed.

use crate::{
    profile::{Builder, Profile},
    symbols::Symbols,
};
use nix::sys::signal::{Signal, raise};
use pprof::{ProfilerGuard, ProfilerGuardBuilder};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

/// Maximum frequency in samples per second of processor time. The kernel's clock ticks no faster
/// on most systems.
const FREQUENCY_MAX: u32 = 1_000;

/// Whether the process is being sampled: it has one timer.
static SAMPLING: AtomicBool = AtomicBool::new(false);

/// Sampling that could not begin or end.
#[derive(Debug, thiserror::Error)]
pub enum SampleError {
    /// A process can be sampled only once at a time.
    #[error("the process is being sampled already")]
    Busy,
    /// The frequency is out of range.
    #[error("{0} samples a second: from 1 to {FREQUENCY_MAX} are possible")]
    Frequency(u32),
    /// The sampler failed.
    #[error("sample the process: {0}")]
    Failed(#[from] pprof::Error),
    /// The first signal could not be sent.
    #[error("send a signal to this thread: {0}")]
    Signal(#[from] nix::errno::Errno),
}

/// Sampling of this process, from its creation until it is finished or dropped.
pub struct Sampler {
    guard: ProfilerGuard<'static>,
    frequency: u32,
    _slot: Slot,
}

/// The right to sample this process.
struct Slot;

impl Slot {
    fn take() -> Result<Self, SampleError> {
        let busy = SAMPLING.swap(true, Ordering::AcqRel);
        if busy { Err(SampleError::Busy) } else { Ok(Self) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        SAMPLING.store(false, Ordering::Release);
    }
}

impl Sampler {
    /// Starts to take samples, so many for each second of processor time. May block for some
    /// milliseconds the first time, while unwind tables are read.
    ///
    /// # Errors
    /// Returns an error if somebody else is sampling, or the frequency is out of range.
    pub fn start(frequency: u32) -> Result<Self, SampleError> {
        if !(1..=FREQUENCY_MAX).contains(&frequency) {
            return Err(SampleError::Frequency(frequency));
        }
        let slot = Slot::take()?;
        prepare()?;
        let guard = ProfilerGuardBuilder::default().frequency(frequency as i32).build()?;
        Ok(Self { guard, frequency, _slot: slot })
    }

    /// Stops, and names the functions. Blocks: it reads the symbols of the binary and its libraries.
    ///
    /// # Errors
    /// Returns an error if the samples cannot be read.
    pub fn finish(self) -> Result<Profile, SampleError> {
        let Self { guard, frequency, _slot } = self;
        let report = guard.report().build_unresolved()?;
        drop(guard);
        let period = Duration::from_secs(1) / frequency;
        let mut builder = Builder::new(Profile::new(report.timing.duration, period));
        let mut symbols = Symbols::of_this_process();
        for (stack, samples) in &report.data {
            let mut names = Vec::new();
            for (depth, frame) in stack.frames.iter().enumerate() {
                // A caller's address is that after its call, which may be in another function.
                let called = usize::from(depth > 0);
                names.push(symbols.name(frame.ip.saturating_sub(called) as u64));
            }
            let samples = u64::try_from(*samples).unwrap_or(0);
            let thread = &stack.thread_name[..stack.thread_name_length];
            let thread = String::from_utf8_lossy(thread);
            builder.add("", &thread, names.iter().map(|name| &**name), samples);
        }
        Ok(builder.finish())
    }
}

/// Takes one sample of this thread. The handler reads the unwind tables on its first run and
/// allocates memory for them, which it may not do in a thread that is inside of the allocator.
fn prepare() -> Result<(), SampleError> {
    static PREPARED: AtomicBool = AtomicBool::new(false);
    if PREPARED.load(Ordering::Acquire) {
        return Ok(());
    }
    // The timer of this guard runs out after a second of processor time, long after the signal.
    let guard = ProfilerGuardBuilder::default().frequency(1).build()?;
    raise(Signal::SIGPROF)?;
    drop(guard);
    PREPARED.store(true, Ordering::Release);
    Ok(())
}
