use crate::ignored_heartbeats::IgnoredHeartbeats;
use crate::metrics;
use ::metrics::gauge;
use parking_lot::Mutex;
use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tandem_bus::{Bus, Message, Subscription, subject_token};
use tandem_membership::{EndpointRules, Heartbeat, Members, Now, WorkerId};
use tandem_proto::event::{WORKERS_ALIVE, WorkerAlive};
use tokio::{
    runtime::Handle,
    sync::watch,
    time::{MissedTickBehavior, interval},
};
use tokio_util::task::AbortOnDropHandle;
use tracing::info;

/// Interval between two checks for workers that have fallen silent.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Listener for live workers. It listens until it is dropped.
pub struct Listener {
    alive: watch::Receiver<Arc<[Heartbeat]>>,
    proven: Arc<Mutex<Vec<WorkerId>>>,
    _task: AbortOnDropHandle<()>,
}

impl Listener {
    /// Starts to listen, on `runtime`, for workers at endpoints that the rules allow. No worker is
    /// known at the beginning.
    pub fn start(bus: Bus, rules: EndpointRules, runtime: &Handle) -> Self {
        metrics::describe_listener();
        let heartbeats = bus.subscribe(WORKERS_ALIVE);
        let (sender, alive) = watch::channel(Arc::default());
        let proven = Arc::<Mutex<_>>::default();
        let filter = HeartbeatFilter {
            rules,
            members: Members::default(),
            ignored: IgnoredHeartbeats::default(),
            start: Instant::now(),
        };
        let newly_proven = proven.clone();
        let task = runtime.spawn(async move {
            receive_heartbeats(&bus, filter, heartbeats, &newly_proven, &sender).await;
        });
        Self { alive, proven, _task: AbortOnDropHandle::new(task) }
    }

    /// Returns the last heartbeats of the live workers, ordered by name. Takes a lock for a moment.
    pub fn alive(&self) -> Arc<[Heartbeat]> {
        self.alive.borrow().clone()
    }

    /// Returns a channel with these heartbeats. It changes when a worker comes, goes, restarts or
    /// moves, not with every heartbeat.
    pub fn watch(&self) -> watch::Receiver<Arc<[Heartbeat]>> {
        self.alive.clone()
    }

    /// Notes that connections to these workers were made, so that no invented name takes their
    /// place.
    pub fn prove(&self, workers: Vec<WorkerId>) {
        *self.proven.lock() = workers;
    }
}

async fn receive_heartbeats(
    bus: &Bus,
    mut filter: HeartbeatFilter,
    mut heartbeats: Subscription,
    proven: &Mutex<Vec<WorkerId>>,
    alive: &watch::Sender<Arc<[Heartbeat]>>,
) {
    let mut ticks = interval(CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let message = tokio::select! {
            // Waiting messages are heard before any worker is given up.
            biased;
            message = heartbeats.next_message() => match message {
                Some(message) => Some(message),
                None => return,
            },
            _ = ticks.tick() => None,
        };
        for worker in std::mem::take(&mut *proven.lock()) {
            filter.members.prove(&worker);
        }
        let changed = match message {
            Some(message) => filter.receive(&message, unix_ms()),
            None if bus.is_connected() => filter.members.advance(filter.start.elapsed()),
            None => {
                filter.members.hold(filter.start.elapsed());
                false
            }
        };
        if changed {
            let now: Arc<[Heartbeat]> = filter.members.alive().cloned().collect();
            let names: Vec<_> = now.iter().map(|heartbeat| heartbeat.id.as_str()).collect();
            info!(workers = ?names, "workers alive");
            gauge!(metrics::ALIVE).set(names.len() as f64);
            alive.send_replace(now);
        }
    }
}

/// Returns the Unix time in milliseconds, by this process's clock.
fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// Known workers, and the rules for the heartbeats that count.
struct HeartbeatFilter {
    rules: EndpointRules,
    members: Members,
    ignored: IgnoredHeartbeats,
    start: Instant,
}

impl HeartbeatFilter {
    /// Takes in a heartbeat. Returns whether the live workers or their endpoints have changed.
    fn receive(&mut self, message: &Message, unix_ms: u64) -> bool {
        let now = Now { elapsed: self.start.elapsed(), unix_ms };
        let Some(WorkerAlive(heartbeat)) = WorkerAlive::decode(&message.payload) else {
            self.ignored.malformed(message.payload.len());
            return self.members.advance(now.elapsed);
        };
        let worker = heartbeat.id.clone();
        // NATS binds users to subjects, so the subject names the sender, and the payload must
        // agree.
        if message.member.as_deref() != Some(&*subject_token(worker.as_str())) {
            self.ignored.name(&worker, message.member.as_deref());
            return self.members.advance(now.elapsed);
        }
        if let Err(refusal) = self.rules.check(&heartbeat.endpoint) {
            self.ignored.endpoint(&worker, &heartbeat.endpoint, &refusal);
            return self.members.advance(now.elapsed);
        }
        let heard = self.members.hear(now, heartbeat);
        if let Some(ignored) = heard.ignored {
            self.ignored.ignored(&worker, &ignored);
        }
        heard.changed
    }
}

#[cfg(test)]
mod tests;
