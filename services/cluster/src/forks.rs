//! Tells discovery which fork the chain is on.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
};
use tandem_actor::spawn;
use tandem_bus::{Bus, Subscription};
use tandem_discovery::Discovery;
use tandem_discv4::ForkId;
use tandem_executor::Chain;
use tandem_proto::event::CHAIN_HEAD;
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// Thread that looks at each new head. It runs beside the engine, whose answers do not wait for it.
/// The fork id changes once in months.
pub struct Forks {
    stop: CancellationToken,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Forks {
    /// Starts the thread.
    ///
    /// # Errors
    /// Returns the error of the operating system if the thread cannot be started.
    pub fn start(
        bus: &Bus,
        chain: Arc<Chain>,
        discovery: Arc<Discovery>,
        fatal: &CancellationToken,
    ) -> io::Result<Self> {
        let heads = bus.subscribe(CHAIN_HEAD);
        let stop = fatal.child_token();
        let stopped = stop.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        let thread = spawn("fork-id", fatal.clone(), move || {
            let fork_id = || match chain.fork_id() {
                Ok(fork_id) => Some(fork_id),
                Err(error) => {
                    warn!(%error, "fork id not known, the last one stays announced");
                    None
                }
            };
            let tell = |fork_id| discovery.set_fork_id(fork_id);
            runtime.block_on(follow(heads, &stopped, fork_id, tell));
        })?;
        Ok(Self { stop, thread: Mutex::new(Some(thread)) })
    }

    /// Stops the thread and waits for its end. May block.
    pub fn stop(&self) {
        self.stop.cancel();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Drop for Forks {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Looks at each head, and once at the start, because a head may have come before the subscription.
async fn follow(
    mut heads: Subscription,
    stop: &CancellationToken,
    fork_id: impl Fn() -> Option<ForkId>,
    tell: impl Fn(ForkId),
) {
    loop {
        if let Some(fork_id) = fork_id() {
            tell(fork_id);
        }
        let head = tokio::select! {
            () = stop.cancelled() => return,
            head = heads.next() => head,
        };
        if head.is_none() {
            return;
        }
        // Only the newest of the waiting heads counts, and it is read from the chain.
        while heads.try_next().is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{cell::RefCell, sync::mpsc};

    #[tokio::test]
    async fn each_new_head_is_looked_at_until_the_stop() {
        let (bus, stop) = (Bus::default(), CancellationToken::new());
        let (told, hear) = mpsc::channel();
        let next = RefCell::new(0);
        let fork_id = || {
            *next.borrow_mut() += 1;
            // The second time, the fork id is unknown.
            (*next.borrow() != 2).then_some(ForkId { hash: [0; 4], next: *next.borrow() })
        };
        let tell = |fork_id: ForkId| told.send(fork_id.next).unwrap();
        let heads = bus.subscribe(CHAIN_HEAD);
        let looked = async |times: u64| {
            while *next.borrow() < times {
                tokio::task::yield_now().await;
            }
        };
        let events = async {
            for times in 1..=3 {
                looked(times).await;
                bus.publish(CHAIN_HEAD, Vec::new().into());
            }
            looked(4).await;
            stop.cancel();
        };
        tokio::join!(follow(heads, &stop, fork_id, tell), events);
        assert_eq!(hear.try_iter().collect::<Vec<_>>(), [1, 3, 4]);
    }
}
