//! Primitives of the status words. The test of schedules has others of the same names.

pub use parking_lot::{Condvar, Mutex};
pub use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize};
use std::{
    thread::{self, Thread},
    time::Instant,
};

/// Number of checks of a transaction running elsewhere before the engine sleeps.
pub const SPINS: usize = 200;

/// Thread that sleeps until another wakes it.
pub struct Sleeper(Thread);

impl Sleeper {
    /// Returns the thread that calls this.
    pub fn current() -> Self {
        Self(thread::current())
    }

    /// Sleeps until woken, but not beyond this time. It may also return earlier. Returns whether
    /// any time was left. The sleeper's own thread must call this.
    pub fn sleep(&self, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        thread::park_timeout(left);
        true
    }

    /// Ends the current sleep, or the next one.
    pub fn wake(&self) {
        self.0.unpark();
    }
}
