use crate::metrics;
use ::metrics::gauge;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_bus::{Bus, Subscription};
use tandem_membership::{Heartbeat, Members};
use tandem_proto::event::{WORKERS_ALIVE, WorkerAlive};
use tokio::{
    runtime::Handle,
    sync::watch,
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{info, warn};

/// How often those that have fallen silent are looked for.
const CHECK: Duration = Duration::from_millis(200);

/// Hears who is alive, for as long as this is.
pub struct Listener {
    alive: watch::Receiver<Arc<[Heartbeat]>>,
    _stop: DropGuard,
}

impl Listener {
    /// Hears from now on, on `runtime`; nobody is known at the beginning.
    pub fn start(bus: Bus, runtime: &Handle) -> Self {
        metrics::describe_listener();
        let heartbeats = bus.subscribe(WORKERS_ALIVE);
        let (sender, alive) = watch::channel(Arc::default());
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        runtime.spawn(async move {
            tokio::select! {
                () = stopped.cancelled() => {}
                () = hear(&bus, heartbeats, &sender) => {}
            }
        });
        Self { alive, _stop: stop.drop_guard() }
    }

    /// Last heartbeats of those who are alive, ordered by name. Takes a lock for a moment.
    pub fn alive(&self) -> Arc<[Heartbeat]> {
        self.alive.borrow().clone()
    }

    /// The same to wait on: it changes when somebody comes, goes, restarts or moves, not with
    /// every heartbeat.
    pub fn watch(&self) -> watch::Receiver<Arc<[Heartbeat]>> {
        self.alive.clone()
    }
}

async fn hear(bus: &Bus, mut heartbeats: Subscription, alive: &watch::Sender<Arc<[Heartbeat]>>) {
    let start = Instant::now();
    let mut members = Members::default();
    let mut ticks = interval(CHECK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let heard = tokio::select! {
            // What waits is heard before anybody is given up.
            biased;
            payload = heartbeats.next() => match payload {
                Some(payload) => Some(payload),
                None => return,
            },
            _ = ticks.tick() => None,
        };
        let now = start.elapsed();
        let changed = match heard.as_deref().map(WorkerAlive::decode) {
            Some(Some(WorkerAlive(heartbeat))) => members.hear(now, heartbeat),
            Some(None) => {
                warn!(
                    bytes = heard.map_or(0, |heard| heard.len()),
                    "malformed heartbeat of a worker"
                );
                false
            }
            None if bus.is_connected() => members.advance(now),
            None => {
                members.hold(now);
                false
            }
        };
        if changed {
            let now: Arc<[Heartbeat]> = members.alive().cloned().collect();
            let names: Vec<_> = now.iter().map(|heartbeat| heartbeat.id.as_str()).collect();
            info!(workers = ?names, "workers alive");
            gauge!(metrics::ALIVE).set(names.len() as f64);
            alive.send_replace(now);
        }
    }
}
