//! How much heap a call takes at its peak, in all threads.

use std::{
    alloc::System,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};
use tandem_heap::{Counting, process};

#[global_allocator]
static ALLOCATOR: Counting<System> = Counting(System);

/// The largest growth that [`measured`] saw since [`reset`].
static LARGEST: AtomicUsize = AtomicUsize::new(0);

/// Runs a part of a target whose heap use counts; what it returns is still alive at the end.
pub fn measured<T>(run: impl FnOnce() -> T) -> T {
    let (peak, value) = process::peak(run);
    LARGEST.fetch_max(peak, Relaxed);
    value
}

/// Forgets what [`measured`] saw.
pub fn reset() {
    LARGEST.store(0, Relaxed);
}

/// Bytes of the largest growth inside [`measured`] since [`reset`].
pub fn largest() -> usize {
    LARGEST.load(Relaxed)
}
