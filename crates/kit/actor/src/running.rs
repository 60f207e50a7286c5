//! Life of a service: its threads, and the signals that end them.

use crate::spawn;
use std::{
    io, mem,
    sync::{Mutex, PoisonError},
    thread::JoinHandle,
};
use tokio_util::sync::CancellationToken;

/// Threads of a running service. Every service holds one, so all of them live in the same way:
///
/// * **Start.** `X::start(Config, Deps)` makes it from `Deps::fatal` and spawns the threads that
///   live as long as the service. When a later step of the start fails, the threads end.
/// * **Failure.** A panic of any thread cancels `fatal`. A service that cannot go on for another
///   reason cancels it too. The process then stops all its services in order: half a client is
///   worse than a restarted one.
/// * **Stop.** `X::stop` calls [`Self::stop`]: it tells the threads to end and waits for them. The
///   process has one bound for the stop of all its services.
/// * **Drop.** Without a stop, the threads end by themselves.
#[derive(Debug)]
pub struct Running {
    stopping: CancellationToken,
    fatal: CancellationToken,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Running {
    /// Returns the life of a service without threads. `fatal` is cancelled when one panics.
    pub fn new(fatal: CancellationToken) -> Self {
        Self { stopping: CancellationToken::new(), fatal, threads: Mutex::default() }
    }

    /// Starts a thread of the service, as [`spawn`] does.
    ///
    /// # Errors
    /// Error of the operating system if it cannot create a thread.
    pub fn spawn(&self, name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let thread = spawn(name, self.fatal.clone(), run)?;
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        Ok(())
    }

    /// Returns the token that is cancelled when the service stops or is dropped.
    pub fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }

    /// Tells the threads to end and waits for them. `tell` reaches threads that do not listen to
    /// [`Self::stopping`], such as those that wait for a mailbox. Later calls change nothing. Blocks,
    /// so never call it in async code.
    pub fn stop(&self, tell: impl FnOnce()) {
        for thread in self.end(tell) {
            let _ = thread.join();
        }
    }

    /// Tells the threads to end, as [`Self::stop`] does, and returns those that have not been waited
    /// for.
    pub fn end(&self, tell: impl FnOnce()) -> Vec<JoinHandle<()>> {
        self.stopping.cancel();
        let threads = mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        if !threads.is_empty() {
            tell();
        }
        threads
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopping.cancel();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::mailbox;
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    };

    #[test]
    fn a_stop_reaches_all_threads_and_waits_for_them() {
        let (fatal, ended) = (CancellationToken::new(), Arc::<AtomicBool>::default());
        let running = Running::new(fatal.clone());
        let (sender, inbox) = mailbox::<()>("test", 1);
        let (seen, stopping) = (ended.clone(), running.stopping().clone());
        let run = move || {
            inbox.wait().unwrap();
            seen.store(stopping.is_cancelled(), Relaxed);
        };
        running.spawn("waits for a message", run).unwrap();
        running.stop(|| sender.send(()).unwrap());
        assert!(ended.load(Relaxed));
        running.stop(|| panic!("there is no thread to tell"));
        assert!(!fatal.is_cancelled());
    }

    #[test]
    fn a_panic_is_fatal_and_a_drop_is_not() {
        let fatal = CancellationToken::new();
        let running = Running::new(fatal.clone());
        let stopping = running.stopping().clone();
        drop(running);
        assert!(stopping.is_cancelled() && !fatal.is_cancelled());
        let running = Running::new(fatal.clone());
        running.spawn("doomed", || panic!("on purpose")).unwrap();
        running.stop(|| {});
        assert!(fatal.is_cancelled());
    }
}
