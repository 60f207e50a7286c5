//! Download of the state after one recent block, the *pivot*, in place of the execution of all blocks
//! below it.
//!
//! ```text
//!   key space: 16 parts, a worker each ── accounts of a range ─┬─ slots of those accounts ─┐
//!                                                              └─ their codes ─────────────┤
//!                        peers ◄── Askers: each answer checked against the root            ▼
//!                                       storage-writer ◄── many answers, and the progress of the part
//! ```
//!
//! A worker goes on to the next range when it has slots and codes of the last one. It gives ranges to the database in
//! pieces of some MiB, which become sorted files. What counts as done is whole and written, and a restart repeats at most what
//! each worker held. Each answer is
//! proved on its own: accounts by the state root, slots by the account, codes by their hash. At the end
//! storage-writer builds all tries from what was written. When peers no longer have the state, a newer
//! block becomes the pivot, and the ranges that are done stay. Access lists of the blocks in between move
//! them on to the new state, where the chain has such lists and a peer serves them. Otherwise, what differs
//! from the new state is replaced at the end.

mod ask;
mod check;
mod heal;
mod progress;
mod replay;
#[cfg(test)]
mod tests;
mod worker;

pub use progress::Progress;
pub use replay::{ListedBlock, path};

use crate::config::Config;
use ask::Asker;
use futures_util::{StreamExt, stream::FuturesUnordered};
use heal::heal;
use std::sync::Arc;
use tandem_primitives::B256;
use tandem_proto::{
    peer_sessions::{PeerId, PeerSessionsApi},
    storage::StateDownloads,
};
use tokio::sync::watch;
use tracing::{info, warn};
use worker::{Stop, Worker};

/// End of a download.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// Everything is written.
    Done,
    /// No peer has this state any more.
    Stale,
    /// The database failed; the log says why.
    Failed,
    /// The state does not become the wanted one, although what differs was replaced.
    Broken,
}

/// Surroundings of a download.
#[derive(Clone)]
pub struct Surroundings {
    pub sessions: Arc<dyn PeerSessionsApi>,
    pub downloads: Arc<dyn StateDownloads>,
    /// Peers that serve states.
    pub peers: watch::Receiver<Vec<PeerId>>,
}

/// Attempts to repair a state of one root. The first one mends what there is to mend.
const REPAIRS_MAX: usize = 3;

/// Downloads what is missing of the state with this root, and builds its tries. Ranges that are done
/// may be of other blocks; what differs is replaced.
pub async fn download(
    around: Surroundings,
    config: &Config,
    root: B256,
    progress: Arc<Progress>,
) -> Ended {
    match whole(around, config, root, progress).await {
        Ok(true) => Ended::Done,
        Ok(false) => Ended::Broken,
        Err(Stop::Stale) => Ended::Stale,
        Err(Stop::Failed(error)) => {
            warn!(%error, "downloaded state not written, or not read");
            Ended::Failed
        }
    }
}

/// Moves what is downloaded on to a newer block, the last of these ([`path`]). If that fails on the way,
/// [`download`] replaces what differs.
pub async fn move_on(
    around: &Surroundings,
    config: &Config,
    blocks: &[ListedBlock],
    progress: &Progress,
) {
    let Some(last) = blocks.last() else { return };
    match replay::replay(around, config, blocks, progress).await {
        Ok(()) => info!(to = %last.id, blocks = blocks.len(), "state moved on by access lists"),
        Err(Stop::Stale) => info!("no peer has the access lists, so what differs is looked for"),
        Err(Stop::Failed(error)) => warn!(%error, "access list not used"),
    }
}

/// Returns whether the state that is there has the wanted root.
async fn whole(
    around: Surroundings,
    config: &Config,
    root: B256,
    progress: Arc<Progress>,
) -> Result<bool, Stop> {
    let Surroundings { sessions, downloads, peers } = around;
    let asker = Arc::new(Asker::new(sessions, peers, config.requests_per_peer_max));
    let of_part =
        |part| Worker::new(asker.clone(), downloads.clone(), progress.clone(), root, part);
    let workers: Vec<_> = (0..progress::PARTS).map(of_part).collect();
    let ended = run(&workers).await;
    if !matches!(ended, Err(Stop::Failed(_))) {
        // The ranges that came before the state was too old stay of use.
        for worker in &workers {
            worker.flush().await?;
        }
    }
    ended?;
    let any = of_part(0);
    for _ in 0..REPAIRS_MAX {
        let built = any.blocking(|downloads| downloads.build_tries()).await?;
        if built == root {
            return Ok(true);
        }
        info!(%built, wanted = %root, "state is of several blocks, replacing what differs");
        heal(&any).await?;
    }
    Ok(any.blocking(|downloads| downloads.build_tries()).await? == root)
}

/// Runs workers until all are done, or one cannot go on.
async fn run(workers: &[Worker]) -> Result<(), Stop> {
    let mut under_way: FuturesUnordered<_> = workers.iter().map(Worker::run).collect();
    while let Some(ended) = under_way.next().await {
        ended?;
    }
    Ok(())
}
