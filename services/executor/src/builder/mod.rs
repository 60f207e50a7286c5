//! Payload building: `payloadAttributes` of engine_forkchoiceUpdated, and engine_getPayload.
//!
//! ```text
//! forkchoiceUpdated ─► Builds ─► thread `builder`: empty payload, full payload, better ones
//!                        ▲                  │ pages of the best ──────────► tx-pool
//! getPayload ────────────┘                  │ blobs ──────────────────────► blob-validator
//!                                           │ execution, on a view of the parent
//!                                           └ changes, as they come ──────► workers of this process
//! ```
//!
//! * **Beside the engine.** The builder has a thread of its own, at a low priority, and reads the
//!   parent's state as calls of users do. While the engine is at work, the builder stands back, and
//!   its block at the workers ends ([`turn`]). So no newPayload waits for a build.
//! * **Order.** An empty payload is there first, then a full one at once. The newest build is improved
//!   when the pool has changed, until its payload is taken or [`builds::IMPROVED_FOR`] is over.
//! * **Answer.** getPayload has the best payload at once. If the first full one is still being built,
//!   it waits for that, at most [`WAIT_MAX`].
//! * **Choice.** By tip, each sender's in the order of nonces, as far as gas, blobs and bytes suffice
//!   ([`selection`]). One transaction is executed after the other.
//! * **Own blocks.** What a built block changes is kept, so that its newPayload need not execute it
//!   ([`BuiltBlocks`]).

mod assemble;
mod builds;
mod given;
mod pace;
mod pooled;
mod selection;
mod sidecars;
pub mod turn;
mod worker;

pub use assemble::{BlockResult, Tools};

use crate::{
    block::build::{BuiltPayload, PayloadAttributes, PayloadId},
    error::Error,
    metrics as names,
};
use builds::{Builds, Progress, Task};
use metrics::histogram;
use parking_lot::{Condvar, Mutex};
use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tandem_primitives::{B256, Bytes};
use tandem_proto::{blob_validator::BlobApi, tx_pool::TxPoolApi};
use tokio::{runtime, sync::oneshot, time::timeout};
use tokio_util::sync::CancellationToken;
use worker::Worker;

/// Longest wait of getPayload for the first full payload.
const WAIT_MAX: Duration = Duration::from_millis(900);

/// Maximum number of orders that wait.
const ORDERS_MAX: usize = 8;

/// Number of built blocks whose results are kept.
const RESULTS_MAX: usize = 4;

/// Results of the newest built blocks, for the engine.
#[derive(Default)]
pub struct BuiltBlocks(Mutex<VecDeque<(B256, BlockResult)>>);

impl BuiltBlocks {
    /// Takes out the result of executing the block with this hash.
    pub fn take(&self, hash: &B256) -> Option<BlockResult> {
        let mut kept = self.0.lock();
        let index = kept.iter().position(|(known, _)| known == hash)?;
        kept.remove(index).map(|(_, result)| result)
    }

    fn keep(&self, hash: B256, result: BlockResult) {
        let evicted = {
            let mut kept = self.0.lock();
            kept.push_back((hash, result));
            if kept.len() > RESULTS_MAX { kept.pop_front() } else { None }
        };
        // Outside of the lock, as it may be large.
        drop(evicted);
    }
}

/// Settings of the builder, and what it takes from.
pub struct Parts {
    /// Tools that blocks are made with.
    pub tools: Tools,
    /// Pool of transactions, empty while there is none.
    pub pool: Arc<OnceLock<Arc<dyn TxPoolApi>>>,
    /// Blobs of the pool's transactions.
    pub blobs: Arc<dyn BlobApi>,
    /// Maximum number of blobs in a block, besides the fork's limit.
    pub blobs_max: Option<u64>,
    /// Place of the results of built blocks.
    pub built: Arc<BuiltBlocks>,
}

/// Block that a caller describes in full and waits for, for tests of other clients.
pub struct Order {
    /// Block to build on.
    pub parent: B256,
    /// Attributes of the block, checked against the parent.
    pub attributes: PayloadAttributes,
    /// Transactions in their order, `None` for those of the pool.
    pub transactions: Option<Vec<Bytes>>,
    /// Extra data, `None` for that of all blocks that are built here.
    pub extra_data: Option<Bytes>,
}

/// Order, and where its result goes.
type Waiting = (Order, oneshot::Sender<Result<BuiltPayload, Error>>);

/// Requests to the builder.
#[derive(Default)]
struct Requests {
    builds: Builds,
    orders: VecDeque<Waiting>,
}

/// State that the builder's thread shares with its callers.
#[derive(Default)]
struct Shared {
    requests: Mutex<Requests>,
    changed: Condvar,
    /// See [`Builds::due`].
    due: AtomicU64,
}

impl Shared {
    /// Changes the builds, and tells the thread.
    fn change<T>(&self, change: impl FnOnce(&mut Builds) -> T) -> T {
        let mut requests = self.requests.lock();
        let result = change(&mut requests.builds);
        self.due.store(requests.builds.due(Instant::now()), Relaxed);
        drop(requests);
        self.changed.notify_one();
        result
    }

    /// Waits for work. Returns `None` when the builder is to stop.
    fn next(&self, stopping: &CancellationToken) -> Option<Job> {
        let mut requests = self.requests.lock();
        loop {
            if stopping.is_cancelled() {
                return None;
            }
            if let Some((order, reply)) = requests.orders.pop_front() {
                return Some(Job::Order(order, reply));
            }
            let now = Instant::now();
            self.due.store(requests.builds.due(now), Relaxed);
            match requests.builds.next(now) {
                Ok(task) => return Some(Job::Task(task)),
                Err(Some(wait)) => {
                    self.changed.wait_for(&mut requests, wait);
                }
                Err(None) => self.changed.wait(&mut requests),
            }
        }
    }
}

/// Work of the builder's thread.
enum Job {
    Task(Task),
    Order(Order, oneshot::Sender<Result<BuiltPayload, Error>>),
}

/// Handle to the builder. Cheap to clone.
#[derive(Clone, Default)]
pub struct Builder(Arc<Shared>);

impl Builder {
    /// Returns the loop of the builder's thread, which ends after `stopping` and [`Builder::stop`].
    ///
    /// # Errors
    /// Error of the operating system.
    pub fn worker(
        &self,
        parts: Parts,
        stopping: CancellationToken,
    ) -> io::Result<impl FnOnce() + Send + 'static> {
        let runtime = runtime::Builder::new_current_thread().enable_time().build()?;
        let worker = Worker { shared: self.0.clone(), parts, runtime };
        Ok(move || worker.run(&stopping))
    }

    /// Wakes the thread, so that it sees that it is to stop.
    pub fn stop(&self) {
        // With the lock, or else the thread may be about to wait.
        drop(self.0.requests.lock());
        self.0.due.store(0, Relaxed);
        self.0.changed.notify_one();
    }

    /// Begins to build on a valid block (Engine API, paris.md, "Payload building"). The attributes
    /// were checked against the block and the method's version.
    pub fn start(&self, parent: B256, attributes: PayloadAttributes) -> PayloadId {
        self.0.change(|builds| builds.start(Instant::now(), parent, attributes))
    }

    /// Returns the payload of a build. Returns `None` for an unknown build, or if its parent is too
    /// far behind the chain to build on.
    ///
    /// # Errors
    /// [`Error::NotBuiltYet`], [`Error::NothingToBuild`], and others for reading.
    pub async fn get(&self, id: PayloadId) -> Result<Option<Arc<BuiltPayload>>, Error> {
        let began = Instant::now();
        let Some(mut progress) = self.0.change(|builds| builds.want(id)) else { return Ok(None) };
        let settled = progress.wait_for(|progress| progress.is_settled);
        // Neither a timeout nor the end of the build changes what there is to answer.
        let _ = timeout(WAIT_MAX, settled).await.map(drop);
        let taken = self.0.change(|builds| builds.take(id));
        histogram!(names::GET_PAYLOAD_SECONDS).record(began.elapsed());
        let Some(Progress { best, error, .. }) = taken else { return Ok(None) };
        match (best, error) {
            (Some(best), _) => Ok(Some(best)),
            (None, Some(Error::UnknownBlock | Error::StateUnavailable { .. })) => Ok(None),
            (None, Some(error)) => Err(error),
            (None, None) => Err(Error::NotBuiltYet),
        }
    }

    /// Builds a block to order. It is not kept.
    ///
    /// # Errors
    /// [`Error::CannotInclude`], [`Error::NothingToBuild`], [`Error::Engine`] if too many wait, and
    /// others for reading.
    pub async fn build(&self, order: Order) -> Result<BuiltPayload, Error> {
        let (reply, answer) = oneshot::channel();
        {
            let mut requests = self.0.requests.lock();
            if requests.orders.len() >= ORDERS_MAX {
                return Err(tandem_actor::Error::Overloaded("builder").into());
            }
            requests.orders.push_back((order, reply));
        }
        self.0.changed.notify_one();
        answer.await.unwrap_or(Err(tandem_actor::Error::Stopped("builder").into()))
    }
}
