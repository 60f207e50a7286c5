//! Where calls run: on threads that may wait, so many of each kind at a time.

use crate::metrics as names;
use metrics::gauge;
use std::sync::{Arc, Weak};
use tandem_proto::storage::{Error, StorageApi};
use tandem_rpc::remote_span;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::spawn_blocking,
};
use tonic::{Request, Status};
use tracing::info_span;

/// What runs beside what.
#[derive(Clone, Copy)]
pub enum Lane {
    /// Reads, walks, and what takes no longer. More than there are cores: they wait for the disk.
    Short,
    /// Lists of blocks and trie diffs, which may have to be computed. They hold much memory.
    Long,
    /// Writes of an executor, one after the other in the order in which they came.
    Write,
    /// Grants. The executor that takes over does not wait for a write of the one before.
    Grant,
}

impl Lane {
    const ALL: [Self; 4] = [Self::Short, Self::Long, Self::Write, Self::Grant];

    fn width(self) -> usize {
        match self {
            Self::Short => 32,
            Self::Long => 4,
            Self::Write | Self::Grant => 1,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::Long => "long",
            Self::Write => "write",
            Self::Grant => "grant",
        }
    }
}

pub struct Lanes {
    /// Gone once the server has ended, though connections may linger.
    api: Weak<dyn StorageApi>,
    lanes: [Arc<Semaphore>; 4],
}

impl Lanes {
    pub fn new(api: &Arc<dyn StorageApi>) -> Self {
        let lanes = Lane::ALL.map(|lane| Arc::new(Semaphore::new(lane.width())));
        Self { api: Arc::downgrade(api), lanes }
    }

    /// Makes a call on a thread, when it is its turn. A call whose caller went away before that is
    /// not made. Its place in the lane is free again when the answer is dropped.
    pub async fn run<R, A>(
        &self,
        lane: Lane,
        request: Request<R>,
        call: impl FnOnce(&dyn StorageApi, R) -> Result<A, Status> + Send + 'static,
    ) -> Result<(A, OwnedSemaphorePermit), Status>
    where
        R: Send + 'static,
        A: Send + 'static,
    {
        let _counted = Counted::new(lane);
        let place = self.lanes[lane as usize].clone().acquire_owned().await;
        let place = place.map_err(|_| stopping())?;
        let api = self.api.upgrade().ok_or_else(stopping)?;
        let span = remote_span(request.metadata(), || info_span!("storage_call"));
        let run = move || {
            let answer = span.in_scope(|| call(&*api, request.into_inner()));
            answer.map(|answer| (answer, place))
        };
        spawn_blocking(run).await.unwrap_or_else(|_| Err(failed()))
    }
}

fn stopping() -> Status {
    Error::Unavailable("stopping".to_owned()).into()
}

/// The thread of a call panicked.
pub fn failed() -> Status {
    Error::Store("the call failed within storage-writer".to_owned()).into()
}

/// One call that waits or runs.
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
#[path = "lanes_tests.rs"]
mod tests;
