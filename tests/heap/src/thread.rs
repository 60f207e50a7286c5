//! Counts of the calling thread.

use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    // A thread may free what another allocated, so this may go below zero.
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

pub(crate) fn took(bytes: usize) {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
    LIVE.set(LIVE.get() + bytes as isize);
    PEAK.set(PEAK.get().max(LIVE.get()));
}

pub(crate) fn gave(bytes: usize) {
    LIVE.set(LIVE.get() - bytes as isize);
}

/// Returns the number of allocations by this thread while `run` ran, and the result of `run`.
/// Growing in place counts too.
pub fn allocations<T>(run: impl FnOnce() -> T) -> (usize, T) {
    let before = ALLOCATIONS.get();
    let value = run();
    (ALLOCATIONS.get() - before, value)
}

/// Returns the peak of bytes that this thread held while `run` ran, beyond those held before, and
/// the result of `run`. The result is still alive then.
pub fn peak<T>(run: impl FnOnce() -> T) -> (usize, T) {
    let start = LIVE.get();
    PEAK.set(start);
    let value = run();
    ((PEAK.get() - start).unsigned_abs(), value)
}
