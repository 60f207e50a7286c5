//! Follows the base, for a process that drops old layers once they are below it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tandem_bus::Bus;
use tandem_proto::{
    event::{CHAIN_PERSISTED, ChainEvent},
    storage::BaseReads,
};
use tokio::{
    task::spawn_blocking,
    time::{MissedTickBehavior, interval},
};
use tracing::debug;

/// Interval at which storage-writer is asked.
const EVERY: Duration = Duration::from_secs(1);

/// Asks storage-writer once a second for the position of the base and publishes it on the bus of
/// this process. Never ends. `writes_fail` is set while writes to the database fail.
/// `chain.persisted` comes over NATS sooner, but may be lost. Without this poll, layers would then
/// stay and memory would grow.
pub async fn follow_base(storage: Arc<dyn BaseReads>, bus: Bus, writes_fail: Arc<AtomicBool>) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let storage = storage.clone();
        match spawn_blocking(move || storage.checkpoint()).await {
            Ok(Ok(checkpoint)) => {
                writes_fail.store(checkpoint.writes_fail, Relaxed);
                let event = ChainEvent { block: checkpoint.base };
                bus.publish_here(CHAIN_PERSISTED, event.encode());
            }
            Ok(Err(error)) => debug!(%error, "the base is not known now"),
            Err(_) => return std::future::pending().await,
        }
    }
}
