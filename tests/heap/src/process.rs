//! What all threads take together.

use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering::Relaxed};

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
// Signed, because a thread may be seen to free before another was seen to take.
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

/// Bytes that are taken now.
pub fn live() -> usize {
    LIVE.load(Relaxed).max(0).unsigned_abs()
}

/// How often any thread asked for memory while this ran, growing in place included; and what it
/// returned.
pub fn allocations<T>(run: impl FnOnce() -> T) -> (usize, T) {
    let before = ALLOCATIONS.load(Relaxed);
    let value = run();
    (ALLOCATIONS.load(Relaxed) - before, value)
}

/// Bytes that were taken at once at most while this ran, beyond what was taken before; and what it
/// returned, which is alive then. One at a time: a second one elsewhere would begin anew.
pub fn peak<T>(run: impl FnOnce() -> T) -> (usize, T) {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let value = run();
    ((PEAK.load(Relaxed) - before).max(0).unsigned_abs(), value)
}
