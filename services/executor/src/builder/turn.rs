//! Order between the engine and the builder: the engine always goes first.
//!
//! Both use the workers of this process, which have one block open at a time. A block that the
//! engine begins there ends the builder's. The builder must not begin while the engine has a block
//! open, and stands back from the processors meanwhile.

use parking_lot::{Condvar, Mutex};
use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};
use tandem_proto::multiproof::{Begin, Error, ProofApi, ProofSession};

/// Whether the engine is at work.
#[derive(Default)]
pub struct EngineTurn {
    taken: Mutex<bool>,
    left: Condvar,
    /// Copy of `taken`, for a look without the lock.
    is_taken: AtomicBool,
}

impl EngineTurn {
    /// Notes that the engine is at work until the guard is dropped. Waits at most as long as the
    /// builder takes to begin a block at the workers.
    pub fn take(&self) -> Taken<'_> {
        self.is_taken.store(true, Relaxed);
        *self.taken.lock() = true;
        Taken(self)
    }

    /// Returns whether the engine is at work.
    pub fn is_taken(&self) -> bool {
        self.is_taken.load(Relaxed)
    }

    /// Waits until the engine has nothing to do, at most for this time. Returns whether it has.
    pub fn wait(&self, max: Duration) -> bool {
        let mut taken = self.taken.lock();
        self.left.wait_while_for(&mut taken, |taken| *taken, max);
        !*taken
    }

    /// Begins a block for the builder. Returns `None` while the engine is at work.
    ///
    /// # Errors
    /// Error of the workers.
    pub fn begin(
        &self,
        proof: &dyn ProofApi,
        begin: Begin,
    ) -> Result<Option<Box<dyn ProofSession>>, Error> {
        // Held for as long as it takes to put a message into each worker's mailbox.
        let taken = self.taken.lock();
        if *taken { Ok(None) } else { proof.begin(begin).map(Some) }
    }
}

/// Time in which the engine is at work.
pub struct Taken<'a>(&'a EngineTurn);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        *self.0.taken.lock() = false;
        self.0.is_taken.store(false, Relaxed);
        self.0.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::Arc, thread, time::Instant};

    #[test]
    fn the_builder_waits_for_the_engine_and_not_for_ever() {
        let turn = Arc::new(EngineTurn::default());
        assert!(turn.wait(Duration::ZERO));
        let taken = turn.take();
        assert!(turn.is_taken());
        assert!(!turn.wait(Duration::from_millis(1)));
        let waiting = turn.clone();
        let began = Instant::now();
        let waits = thread::spawn(move || waiting.wait(Duration::from_secs(60)));
        drop(taken);
        assert!(waits.join().unwrap());
        assert!(began.elapsed() < Duration::from_secs(30));
        assert!(!turn.is_taken());
    }
}
