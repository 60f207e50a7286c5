//! What the asking thread takes.

use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    // A thread may free what another took, so this may go below zero.
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

/// How often this thread asked for memory while this ran, growing in place included; and what it
/// returned.
pub fn allocations<T>(run: impl FnOnce() -> T) -> (usize, T) {
    let before = ALLOCATIONS.get();
    let value = run();
    (ALLOCATIONS.get() - before, value)
}

/// Bytes that this thread held at once at most while this ran, beyond what it held before; and what
/// it returned, which is alive then.
pub fn peak<T>(run: impl FnOnce() -> T) -> (usize, T) {
    let start = LIVE.get();
    PEAK.set(start);
    let value = run();
    ((PEAK.get() - start).unsigned_abs(), value)
}
