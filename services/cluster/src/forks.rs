//! Tells discovery which fork the chain is on.

use std::{io, sync::Arc};
use tandem_actor::Running;
use tandem_bus::{Bus, Subscription};
use tandem_discovery::Discovery;
use tandem_discv4::ForkId;
use tandem_executor::Chain;
use tandem_proto::event::CHAIN_HEAD;
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// Starts the thread that looks at each new head. It runs beside the engine, whose answers do not
/// wait for it. The fork id changes once in months.
///
/// # Errors
/// Returns the error of the operating system if the thread cannot be started.
pub fn follow_forks(
    bus: &Bus,
    chain: Arc<Chain>,
    discovery: Arc<Discovery>,
    fatal: CancellationToken,
) -> io::Result<Running> {
    let heads = bus.subscribe(CHAIN_HEAD);
    let running = Running::new(fatal);
    let stopping = running.stopping().clone();
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    running.spawn("fork-id", move || {
        let fork_id = || match chain.fork_id() {
            Ok(fork_id) => Some(fork_id),
            Err(error) => {
                warn!(%error, "fork id not known, the last one stays announced");
                None
            }
        };
        let tell = |fork_id| discovery.set_fork_id(fork_id);
        runtime.block_on(follow(heads, &stopping, fork_id, tell));
    })?;
    Ok(running)
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
