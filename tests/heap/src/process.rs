//! Counts of all threads together.

use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering::Relaxed};

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
// Signed, because a thread's free may be seen before another thread's allocation.
static LIVE: AtomicIsize = AtomicIsize::new(0);
static PEAK: AtomicIsize = AtomicIsize::new(0);

pub(crate) fn took(bytes: usize) {
    ALLOCATIONS.fetch_add(1, Relaxed);
    let live = LIVE.fetch_add(bytes as isize, Relaxed) + bytes as isize;
    PEAK.fetch_max(live, Relaxed);
}

pub(crate) fn gave(bytes: usize) {
    LIVE.fetch_sub(bytes as isize, Relaxed);
}

/// Returns the bytes that are allocated now.
pub fn live() -> usize {
    LIVE.load(Relaxed).max(0).unsigned_abs()
}

/// Returns the number of allocations by any thread while `run` ran, and the result of `run`.
/// Growing in place counts too.
pub fn allocations<T>(run: impl FnOnce() -> T) -> (usize, T) {
    let before = ALLOCATIONS.load(Relaxed);
    let value = run();
    (ALLOCATIONS.load(Relaxed) - before, value)
}

/// Returns the peak of bytes allocated while `run` ran, beyond those allocated before, and the
/// result of `run`. The result is still alive then. Calls must not overlap: a second call elsewhere
/// would reset the peak.
pub fn peak<T>(run: impl FnOnce() -> T) -> (usize, T) {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let value = run();
    ((PEAK.load(Relaxed) - before).max(0).unsigned_abs(), value)
}
