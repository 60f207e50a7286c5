//! Download of the state after one recent block, the *pivot*, in place of the execution of all blocks
//! below it.
//!
//! ```text
//!   key space: 16 parts, a worker each ── accounts of a range ─┬─ slots of those accounts ─┐
//!                                                              └─ their codes ─────────────┤
//!                        peers ◄── Askers: each answer checked against the root            ▼
//!                                                     storage-writer ◄── one write, with the progress
//! ```
//!
//! A worker goes on to the next range only when slots and codes of the last one are written. So what
//! counts as done is whole, and a restart repeats one range of each part at most. Each answer is
//! proved on its own: accounts by the state root, slots by the account, codes by their hash. At the end
//! storage-writer builds all tries from what was written, and compares the root.

mod ask;
mod check;
mod progress;
mod worker;

pub use progress::Progress;

use crate::config::Config;
use ask::Asker;
use futures_util::{StreamExt, stream::FuturesUnordered};
use std::sync::Arc;
use tandem_primitives::B256;
use tandem_proto::{
    peer_sessions::{PeerId, PeerSessionsApi},
    storage::StateDownloads,
};
use tokio::sync::watch;
use tracing::warn;
use worker::Worker;

/// End of a download.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// Everything is written.
    Done,
    /// No peer has this state any more.
    Stale,
    /// The database failed; the log says why.
    Failed,
}

/// Surroundings of a download.
#[derive(Clone)]
pub struct Surroundings {
    pub sessions: Arc<dyn PeerSessionsApi>,
    pub downloads: Arc<dyn StateDownloads>,
    /// Peers that serve states.
    pub peers: watch::Receiver<Vec<PeerId>>,
}

/// Downloads what is missing of the state with this root.
pub async fn download(
    around: Surroundings,
    config: &Config,
    root: B256,
    progress: Arc<Progress>,
) -> Ended {
    let Surroundings { sessions, downloads, peers } = around;
    let asker = Arc::new(Asker::new(sessions, peers, config.requests_per_peer_max));
    let workers = (0..progress::PARTS).map(|part| {
        let worker = Worker {
            asker: asker.clone(),
            downloads: downloads.clone(),
            progress: progress.clone(),
            root,
            part,
        };
        worker.run()
    });
    let mut workers: FuturesUnordered<_> = workers.collect();
    while let Some(ended) = workers.next().await {
        match ended {
            Ok(()) => {}
            Err(worker::Stop::Stale) => return Ended::Stale,
            Err(worker::Stop::Failed(error)) => {
                warn!(%error, "downloaded state not written");
                return Ended::Failed;
            }
        }
    }
    Ended::Done
}
