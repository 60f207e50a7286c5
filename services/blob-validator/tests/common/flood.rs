//! An overloaded service.

use super::{TIMEOUT, cells_garbage, status, until};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};
use tandem_blob_validator::{BlobValidator, Config};
use tandem_proto::blob_validator::{BlobApi, Error, Status, Verdict};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

/// Number of blobs that wait at any time. Each takes a thread some milliseconds, so anything behind
/// them waits for at least a second.
const QUEUED: u64 = 300;

/// Makes a configuration of one thread, with one blob at a time.
pub fn one_by_one() -> Config {
    Config { threads: 1, batch_blobs_max: 1, ..Config::default() }
}

/// Flood that keeps the queue of a service long until it is told to end. So the speed of the
/// machine does not decide whether a caller still waits.
pub struct Flood {
    service: Arc<BlobValidator>,
    /// Number of blobs that were submitted.
    sent: Arc<AtomicU64>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Flood {
    pub async fn start(service: &Arc<BlobValidator>) -> Self {
        let (sent, stop) = (Arc::new(AtomicU64::new(0)), CancellationToken::new());
        let task = tokio::spawn(pour(service.clone(), sent.clone(), stop.clone()));
        until(|| status(service).queued >= QUEUED).await;
        Self { service: service.clone(), sent, stop, task }
    }

    /// Waits until `count` blobs of others have arrived.
    pub async fn until_behind(&self, count: u64) {
        let so = || {
            let Status { queued, verified, .. } = status(&self.service);
            // One blob may be on its way through the only thread.
            queued + verified + 1 >= self.sent.load(Relaxed) + count
        };
        until(so).await;
    }

    /// Returns the number of blobs it brought, once they are all verified.
    pub async fn end(self) -> u64 {
        self.stop.cancel();
        self.task.await.unwrap();
        self.sent.load(Relaxed)
    }
}

async fn pour(service: Arc<BlobValidator>, sent: Arc<AtomicU64>, stop: CancellationToken) {
    let mut callers = JoinSet::new();
    // These are a few more than must wait: some are on their way, one is being verified.
    let mut seeds = 1..;
    while !stop.is_cancelled() {
        while callers.len() < QUEUED as usize + 20 {
            let service = service.clone();
            let bundle = cells_garbage(seeds.next().unwrap());
            callers.spawn(async move { service.validate(bundle, TIMEOUT).await });
            sent.fetch_add(1, Relaxed);
        }
        check(callers.join_next().await.unwrap().unwrap());
    }
    callers.join_all().await.into_iter().for_each(check);
}

fn check(answer: Result<Verdict, Error>) {
    assert!(matches!(answer, Ok(Verdict::Invalid(_))), "{answer:?}");
}
