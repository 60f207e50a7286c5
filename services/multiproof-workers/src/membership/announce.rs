use std::time::Duration;
use tandem_bus::Bus;
use tandem_membership::{Heartbeat, WorkerId};
use tandem_proto::{
    event::{WORKERS_ALIVE, WorkerAlive},
    limits::HEARTBEAT_MS,
};
use tokio::{
    runtime::Handle,
    task::JoinHandle,
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Longest time that the last message may take.
const GOODBYE_MAX: Duration = Duration::from_secs(1);

/// Identity under which a worker is known.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Name of the worker; a name that survives restarts keeps its shards.
    pub id: WorkerId,
    /// Start time, in milliseconds since the Unix epoch.
    pub incarnation: u64,
    /// Endpoint of its proof stream, at most [`tandem_proto::limits::ENDPOINT_BYTES_MAX`] bytes.
    pub endpoint: String,
    /// Interval between two heartbeats; clamped to [`HEARTBEAT_MS`].
    pub interval: Duration,
}

/// Announcer of a live worker. It announces the worker until it is dropped.
pub struct Announcer {
    stop: DropGuard,
    task: JoinHandle<()>,
}

impl Announcer {
    /// Starts to announce the worker, on `runtime`.
    pub fn start(bus: Bus, identity: Identity, runtime: &Handle) -> Self {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = runtime.spawn(announce(bus, identity, stopped));
        Self { stop: stop.drop_guard(), task }
    }

    /// Announces that the worker stops, and waits until that is sent, for a second at most. A drop
    /// announces it too, if the runtime lives long enough.
    pub async fn leave(self) {
        drop(self.stop);
        // The task ends in any case, and its panic does not matter to a worker that leaves.
        let _ = self.task.await;
    }
}

async fn announce(bus: Bus, identity: Identity, stopped: CancellationToken) {
    let [least, most] =
        [HEARTBEAT_MS.start(), HEARTBEAT_MS.end()].map(|&ms| Duration::from_millis(ms));
    let every = identity.interval.clamp(least, most);
    let name = identity.id.to_string();
    let mut heartbeat = Heartbeat {
        id: identity.id,
        incarnation: identity.incarnation,
        sequence: 0,
        endpoint: identity.endpoint,
        interval: every,
        leaving: false,
    };
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stopped.cancelled() => break,
            _ = ticks.tick() => {}
        }
        bus.publish_as(WORKERS_ALIVE, &name, WorkerAlive(heartbeat.clone()).encode());
        heartbeat.sequence += 1;
    }
    heartbeat.leaving = true;
    bus.publish_as(WORKERS_ALIVE, &name, WorkerAlive(heartbeat).encode());
    bus.flush(GOODBYE_MAX).await;
}
