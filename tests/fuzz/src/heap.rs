//! Peak heap use of a call, over all threads.

use std::{
    alloc::System,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};
use tandem_heap::{Counting, process};

#[global_allocator]
static ALLOCATOR: Counting<System> = Counting(System);

/// Largest growth that [`measured`] saw since [`reset`].
static LARGEST: AtomicUsize = AtomicUsize::new(0);

/// Runs a part of a target whose heap use counts; its result is still alive at the end.
pub fn measured<T>(run: impl FnOnce() -> T) -> T {
    let (peak, value) = process::peak(run);
    LARGEST.fetch_max(peak, Relaxed);
    value
}

/// Resets [`largest`].
pub fn reset() {
    LARGEST.store(0, Relaxed);
}

/// Returns the bytes of the largest growth inside [`measured`] since [`reset`].
pub fn largest() -> usize {
    LARGEST.load(Relaxed)
}
