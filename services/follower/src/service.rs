//! Thread that follows the leaders, one at a time.

use crate::{
    ChainView, Config, Error, Status, apply::Applier, bootstrap::download, metrics as names,
};
use metrics::counter;
use std::{io, sync::Arc, time::Duration};
use tandem_actor::Running;
use tandem_proto::{
    feed::{CheckedWrites, FeedSource, LeaderApi},
    storage::{self, Epoch, Leadership, StateDownloads, StorageApi},
};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

/// Database of a follower.
pub trait FollowerStorage: StorageApi + CheckedWrites + StateDownloads + Leadership {}

impl<T: StorageApi + CheckedWrites + StateDownloads + Leadership> FollowerStorage for T {}

/// Source of a leader's feed, with its name for the log.
#[derive(Clone)]
pub struct Leader {
    /// Address of the leader, or name of the stream.
    pub name: String,
    /// Its feed.
    pub feed: Arc<dyn FeedSource>,
    /// Its other calls. `None` for a copy of the feed in a stream, which has no state to give.
    pub api: Option<Arc<dyn LeaderApi>>,
}

impl Leader {
    /// Makes a leader that answers calls.
    pub fn new(name: impl Into<String>, api: Arc<dyn LeaderApi>) -> Self {
        Self { name: name.into(), feed: api.clone(), api: Some(api) }
    }

    /// Makes a source of blocks alone.
    pub fn feed_only(name: impl Into<String>, feed: Arc<dyn FeedSource>) -> Self {
        Self { name: name.into(), feed, api: None }
    }
}

/// Dependencies of a follower.
pub struct Deps {
    /// Leaders, at least one. The first one is preferred at the start.
    pub leaders: Vec<Leader>,
    /// storage-writer of this process.
    pub storage: Arc<dyn FollowerStorage>,
    /// View for readers.
    pub view: Arc<dyn ChainView>,
    /// Cancelled when the follower cannot go on. The process must stop then.
    pub fatal: CancellationToken,
}

/// Parts that the follower's thread works with.
pub struct Shared {
    pub config: Config,
    pub storage: Arc<dyn FollowerStorage>,
    pub view: Arc<dyn ChainView>,
    pub status: Status,
    pub stopping: CancellationToken,
    /// Cancelled once only copies of the feed in a stream are read.
    pub left: CancellationToken,
}

/// Running follower.
pub struct Follower {
    running: Running,
    status: Status,
    left: CancellationToken,
}

impl Follower {
    /// Takes the right to write and starts the thread.
    ///
    /// # Errors
    /// When the operating system cannot create a thread, or the database fails.
    pub fn start(config: Config, deps: Deps) -> io::Result<Arc<Self>> {
        crate::metrics::describe();
        let Deps { leaders, storage, view, fatal } = deps;
        let epoch = storage.acquire_epoch("follower").map_err(io::Error::other)?;
        let head = storage.checkpoint().map_err(io::Error::other)?.forkchoice.head;
        let (running, status) = (Running::new(fatal.clone()), Status::default());
        status.set_head(head);
        let stopping = running.stopping().clone();
        let left = CancellationToken::new();
        let shared =
            Shared { config, storage, view, status: status.clone(), stopping, left: left.clone() };
        running.spawn("follower", move || {
            if let Err(error) = follow(&shared, &leaders, epoch) {
                if matches!(error, Error::TooFarBehind { .. }) {
                    shared.status.set_outdated();
                }
                error!(%error, "the follower stops");
                fatal.cancel();
            }
        })?;
        Ok(Arc::new(Self { running, status, left }))
    }

    /// Returns where the follower stands.
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// Leaves all leaders that answer calls, for good: their lead is over. Only copies of the feed in a
    /// stream are read from now on. A leader that is silent is left at once.
    pub fn leave_leaders(&self) {
        self.left.cancel();
    }

    /// Lets the thread finish its block, and waits for it. May block.
    pub fn stop(&self) {
        self.running.stop(|| {});
    }
}

/// Follows one leader after the other. Returns when the follower is told to end.
///
/// # Errors
/// When it cannot go on.
fn follow(shared: &Shared, leaders: &[Leader], epoch: Epoch) -> Result<(), Error> {
    let mut trusted: Vec<&Leader> = leaders.iter().collect();
    let (mut turn, mut pause) = (0, shared.config.retry_ms_min);
    loop {
        let Some(leader) = trusted.get(turn % trusted.len().max(1)) else {
            return Err(Error::Refused("no leader is left".to_owned()));
        };
        let before = shared.status.heads().0;
        info!(leader = leader.name, head = %before, "following");
        let ended = follow_one(shared, leader, epoch);
        if shared.status.heads().0 != before {
            pause = shared.config.retry_ms_min;
        }
        match ended {
            Err(Error::Stopping) | Ok(()) => return Ok(()),
            Err(Error::Refused(text)) => {
                shared.status.set_lost();
                counter!(names::REFUSED).increment(1);
                error!(leader = leader.name, reason = text, "leader refused");
                shared.status.set_refused(&text);
                if trusted.len() == 1 {
                    return Err(Error::Refused(text));
                }
                trusted.remove(turn % trusted.len());
            }
            Err(Error::Lost(error)) => {
                shared.status.set_lost();
                counter!(names::LOST).increment(1);
                warn!(leader = leader.name, %error, pause_ms = pause, "leader lost");
                turn += 1;
                if wait(shared, pause) {
                    return Ok(());
                }
                // A stream that a candidate waits for is asked often.
                pause = match shared.left.is_cancelled() {
                    true => shared.config.retry_ms_min,
                    false => (pause * 2).min(shared.config.retry_ms_max).max(1),
                };
            }
            Err(error) => return Err(error),
        }
    }
}

/// Follows a leader until it is lost or refused. Downloads a first state if that is necessary.
fn follow_one(shared: &Shared, leader: &Leader, epoch: Epoch) -> Result<(), Error> {
    let own = shared.storage.checkpoint().map_err(Error::Own)?;
    let is_downloading = shared.storage.download_progress().map_err(Error::Own)?.is_some();
    let Some(api) = leader.api.as_deref() else {
        if is_downloading {
            let text = "a state is being downloaded, which only another leader has".to_owned();
            return Err(Error::Lost(storage::Error::Unavailable(text)));
        }
        return Applier::new(shared, leader, epoch)?.run();
    };
    if shared.left.is_cancelled() {
        return Err(Error::left());
    }
    let theirs = api.checkpoint().map_err(Error::of_leader)?.genesis;
    if theirs != own.genesis {
        let text = format!("its genesis block is {theirs}, here it is {}", own.genesis);
        return Err(Error::Refused(text));
    }
    if is_downloading {
        download(shared, api)?;
    }
    let is_new = own.base == own.genesis && own.forkchoice.head == own.genesis;
    match Applier::new(shared, leader, epoch)?.run() {
        Err(Error::TooFarBehind { .. }) if is_new && !is_downloading => {
            download(shared, api)?;
            Applier::new(shared, leader, epoch)?.run()
        }
        ended => ended,
    }
}

/// Waits, in short steps, and not on when the leaders are left meanwhile. Returns whether the follower is
/// to end.
fn wait(shared: &Shared, milliseconds: u64) -> bool {
    const STEP: u64 = 50;
    let (mut left, were_left) = (milliseconds, shared.left.is_cancelled());
    while left > 0 && !shared.stopping.is_cancelled() && shared.left.is_cancelled() == were_left {
        std::thread::sleep(Duration::from_millis(left.min(STEP)));
        left = left.saturating_sub(STEP);
    }
    shared.stopping.is_cancelled()
}
