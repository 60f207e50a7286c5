//! CallScheduler for calls: each lane runs a limited number of calls on threads that may wait.
//!
//! A call holds its place in a lane while it is computed, never while its answer is sent. So a
//! client that does not read delays no other call. The executor's calls have lanes of their own. So
//! other callers, however many, cannot keep an executor from starting or taking over.

use crate::metrics as names;
use metrics::{counter, gauge};
use std::{
    net::IpAddr,
    pin::pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tandem_proto::{
    access::EXECUTOR,
    storage::{Error, StorageApi},
};
use tandem_rpc::{Caller, LogRateLimit, remote_span};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::spawn_blocking,
    time::timeout,
};
use tonic::{Request, Status};
use tracing::{info_span, warn};

/// Time after which the log reports that a call still waits for its turn.
const WAIT_TOLD: Duration = Duration::from_secs(2);
/// Marker for no connection: connections are counted from 0.
const NOBODY: u64 = u64::MAX;

/// Kind of calls that share a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lane {
    /// Reads, walks, and other calls that take no longer. Wider than the number of cores, because
    /// these calls wait for the disk.
    Short,
    /// Lists of blocks and trie diffs, which may have to be computed. They hold much memory.
    Long,
    /// Writes of an executor, one after the other in order of arrival.
    Write,
    /// Grants. An executor that takes over does not wait for a write of its predecessor.
    Grant,
    /// Calls of the executor that are in [`Self::Short`] for other callers.
    ExecutorShort,
    /// Calls of the executor that are in [`Self::Long`] for other callers.
    ExecutorLong,
}

impl Lane {
    const ALL: [Self; 6] = [
        Self::Short,
        Self::Long,
        Self::Write,
        Self::Grant,
        Self::ExecutorShort,
        Self::ExecutorLong,
    ];

    fn width(self) -> usize {
        match self {
            Self::Short | Self::ExecutorShort => 32,
            Self::Long | Self::ExecutorLong => 4,
            Self::Write | Self::Grant => 1,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::Long => "long",
            Self::Write => "write",
            Self::Grant => "grant",
            Self::ExecutorShort => "executor_short",
            Self::ExecutorLong => "executor_long",
        }
    }

    /// Returns the lane for this kind of call when the executor makes it.
    fn of_executor(self) -> Self {
        match self {
            Self::Short => Self::ExecutorShort,
            Self::Long => Self::ExecutorLong,
            other => other,
        }
    }
}

pub struct CallScheduler {
    /// Service behind the calls. It is gone once the server has ended, though connections may
    /// linger.
    api: Weak<dyn StorageApi>,
    lanes: [Arc<Semaphore>; 6],
    /// Connection over which the newest epoch was granted or kept.
    writer: AtomicU64,
    /// Longest time for which a client may read nothing from a stream.
    pub unread_max: Duration,
    told: LogRateLimit<(&'static str, Option<IpAddr>)>,
}

/// Place in a lane, held by a call that runs or waits to run.
pub struct Place {
    _permit: OwnedSemaphorePermit,
    _counted: Counted,
}

impl CallScheduler {
    pub fn new(api: &Arc<dyn StorageApi>, unread_max: Duration) -> Self {
        let lanes = Lane::ALL.map(|lane| Arc::new(Semaphore::new(lane.width())));
        let (api, writer) = (Arc::downgrade(api), AtomicU64::new(NOBODY));
        Self { api, lanes, writer, unread_max, told: LogRateLimit::minutely() }
    }

    /// Returns the lane in which a call of this kind runs for this caller. The executor is
    /// identified by its certificate, or by the connection over which it holds the newest epoch.
    pub fn lane(&self, lane: Lane, caller: &Caller) -> Lane {
        let writes = caller.connection().is_some_and(|id| id == self.writer.load(Relaxed));
        let is_executor = writes || caller.roles.iter().any(|role| role == EXECUTOR);
        if is_executor { lane.of_executor() } else { lane }
    }

    /// Notes that this caller has the newest epoch.
    pub fn has_epoch(&self, caller: &Caller) {
        self.writer.store(caller.connection().unwrap_or(NOBODY), Relaxed);
    }

    /// Returns the service behind the calls, while it is there.
    pub fn api(&self) -> Option<Arc<dyn StorageApi>> {
        self.api.upgrade()
    }

    /// Makes a call on a thread, when it is its turn. A call whose caller has gone before that is
    /// not made. The place in the lane is free again when the call has returned.
    pub async fn run<R, A>(
        &self,
        lane: Lane,
        request: Request<R>,
        call: impl FnOnce(&dyn StorageApi, R) -> Result<A, Status> + Send + 'static,
    ) -> Result<A, Status>
    where
        R: Send + 'static,
        A: Send + 'static,
    {
        let place = self.place(lane, &caller(&request)).await?;
        let api = self.api().ok_or_else(stopping)?;
        let span =
            remote_span(request.metadata(), || info_span!("storage_call", otel.kind = "server"));
        let run = move || {
            let _place = place;
            span.in_scope(|| call(&*api, request.into_inner()))
        };
        spawn_blocking(run).await.unwrap_or_else(|_| Err(failed()))
    }

    /// Returns a place if one is free at once. It overtakes no waiting call, because these get a free
    /// place first.
    pub fn free_place(&self, lane: Lane, caller: &Caller) -> Option<Place> {
        let lane = self.lane(lane, caller);
        let permit = self.lanes[lane as usize].clone().try_acquire_owned().ok()?;
        Some(Place { _permit: permit, _counted: Counted::new(lane) })
    }

    /// Waits for a place. The log reports callers that wait for long.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the server stops.
    pub async fn place(&self, lane: Lane, caller: &Caller) -> Result<Place, Status> {
        // The usual case, without a timer.
        if let Some(place) = self.free_place(lane, caller) {
            return Ok(place);
        }
        let lane = self.lane(lane, caller);
        let counted = Counted::new(lane);
        let semaphore = &self.lanes[lane as usize];
        let mut turn = pin!(semaphore.clone().acquire_owned());
        let permit = match timeout(WAIT_TOLD, &mut turn).await {
            Ok(permit) => permit,
            Err(_) => {
                if let Some(kept_back) = self.speaks("waits", caller) {
                    let (lane, width) = (lane.name(), lane.width());
                    warn!(peer = %caller, lane, width, kept_back, "a call waits for its turn");
                }
                turn.await
            }
        };
        Ok(Place { _permit: permit.map_err(|_| stopping())?, _counted: counted })
    }

    /// Notes that a stream ends because the client read nothing from it.
    pub fn unread(&self, call: &'static str, caller: &Caller) {
        counter!(names::STREAMS_UNREAD).increment(1);
        if let Some(kept_back) = self.speaks("unread", caller) {
            let seconds = self.unread_max.as_secs_f64();
            warn!(peer = %caller, call, seconds, kept_back,
                "stream ended: the client takes nothing of it");
        }
    }

    fn speaks(&self, what: &'static str, caller: &Caller) -> Option<u64> {
        self.told.allow(Instant::now(), (what, caller.address))
    }
}

/// Returns the caller of a request.
pub fn caller<R>(request: &Request<R>) -> Caller {
    request.extensions().get().cloned().unwrap_or_default()
}

fn stopping() -> Status {
    Error::Unavailable("stopping".to_owned()).into()
}

/// Returns the status of a call whose thread panicked.
pub fn failed() -> Status {
    Error::Store("the call failed within storage-writer".to_owned()).into()
}

/// One call that waits or runs, or one part of a stream, in the metrics.
struct Counted(Lane);

impl Counted {
    fn new(lane: Lane) -> Self {
        gauge!(names::CALLS, "lane" => lane.name()).increment(1);
        Self(lane)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        gauge!(names::CALLS, "lane" => self.0.name()).decrement(1);
    }
}

#[cfg(test)]
mod tests;
