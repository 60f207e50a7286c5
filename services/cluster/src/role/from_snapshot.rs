//! First database of a follower from a snapshot, before it is opened.

use super::services::blocking;
use crate::Error;
use parking_lot::Mutex;
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_primitives::BlockId;
use tandem_proto::{
    feed::{FeedMessage, FollowRequest, LeaderApi},
    storage,
};
use tandem_snapshot::{Manifest, PARALLEL, Repository, Subject, abandon, refuse_occupied, restore};
use tandem_storage_writer::mark_as_copy;
use tandem_storage_writer_client::Client;
use tracing::{info, warn};

/// Snapshots that are looked at, from the newest one on.
const LOOKED_AT_MAX: usize = 16;

/// Time for which a leader is asked whether its feed goes on after a snapshot.
const ANSWER_WAIT: Duration = Duration::from_secs(20);

/// Time for which leaders that do not answer are asked again, and the pause before.
const LEADER_WAIT: Duration = Duration::from_secs(60);
const LEADER_PAUSE: Duration = Duration::from_secs(1);

/// Pause between two messages about the progress.
const REPORT_EVERY: Duration = Duration::from_secs(30);

/// Restores the newest snapshot at an address that a leader's feed goes on from, or goes on with a restore
/// that was interrupted. Without such a snapshot it does nothing, and the log has the reason. A process
/// that ends meanwhile leaves what it has for the next one.
///
/// # Errors
/// [`Error::Snapshot`] when the snapshots cannot be read, or the files are not those of the snapshot or
/// have a wrong state.
pub async fn restore_first(
    address: &str,
    datadir: &Path,
    leaders: &[(String, Arc<Client>)],
) -> Result<(), Error> {
    // Clients of buckets speak TLS.
    tandem_rpc::install_ring();
    let begun = {
        let datadir = datadir.to_owned();
        blocking(move || refuse_occupied(&datadir).map_err(Error::snapshot)).await?
    };
    let opened = address.to_owned();
    let repository =
        blocking(move || Repository::open(&opened, false).map_err(Error::snapshot)).await?;
    if let Some(manifest) = begun {
        if is_followed(&manifest, leaders).await? {
            return restore_one(manifest, &repository, datadir).await;
        }
        let datadir = datadir.to_owned();
        blocking(move || abandon(&datadir).map_err(Error::snapshot)).await?;
    }
    let names = repository.names().await.map_err(Error::snapshot)?;
    for name in names.into_iter().rev().take(LOOKED_AT_MAX) {
        let manifest = repository.manifest(&name).await.map_err(Error::snapshot)?;
        if is_followed(&manifest, leaders).await? {
            return restore_one(manifest, &repository, datadir).await;
        }
    }
    warn!(address, "no snapshot to begin with: the state is copied from a leader");
    Ok(())
}

async fn restore_one(
    manifest: Manifest,
    repository: &Repository,
    datadir: &Path,
) -> Result<(), Error> {
    let name = manifest.name();
    info!(snapshot = name, bytes = manifest.bytes(), "a snapshot is restored");
    let (started, told) = (Instant::now(), Mutex::new(Instant::now()));
    let progress = |done: u64, total: u64| {
        let mut told = told.lock();
        if told.elapsed() >= REPORT_EVERY {
            *told = Instant::now();
            info!(bytes = done, of = total, "restoring");
        }
    };
    let restored = restore(datadir, manifest, repository, PARALLEL, &progress).await;
    let restored = restored.map_err(Error::snapshot)?;
    let (fetched, kept) = (restored.fetched_bytes, restored.kept_bytes);
    info!(fetched, kept, seconds = started.elapsed().as_secs(), "its state is verified");
    blocking(move || {
        restored.check(true).map_err(Error::snapshot)?;
        // All of it can be had again, so a copy that is too old may be removed.
        mark_as_copy(&restored.datadir())?;
        restored.finish().map_err(Error::snapshot)
    })
    .await?;
    info!(snapshot = name, seconds = started.elapsed().as_secs(), "snapshot restored");
    Ok(())
}

/// Returns whether a leader has the chain of a snapshot, and its feed the changes after it. Leaders that do
/// not answer are asked again for a while.
async fn is_followed(
    manifest: &Manifest,
    leaders: &[(String, Arc<Client>)],
) -> Result<bool, Error> {
    let (name, subject) = (manifest.name(), manifest.subject.clone());
    let leaders = leaders.to_vec();
    blocking(move || {
        let begun = Instant::now();
        loop {
            let mut last = storage::Error::Unavailable("there is no leader".to_owned());
            let mut answers = 0;
            for (leader, api) in &leaders {
                match goes_on(&**api, &subject) {
                    Ok(None) => return Ok(true),
                    Ok(Some(reason)) => {
                        answers += 1;
                        info!(snapshot = name, leader, reason, "a snapshot is of no use");
                    }
                    Err(error) => {
                        warn!(leader, %error, "the leader does not answer");
                        last = error;
                    }
                }
            }
            if answers > 0 {
                return Ok(false);
            }
            if begun.elapsed() > LEADER_WAIT {
                return Err(last.into());
            }
            std::thread::sleep(LEADER_PAUSE);
        }
    })
    .await
}

/// Asks a leader whether its feed goes on after a snapshot. Returns the reason if it does not.
fn goes_on(leader: &dyn LeaderApi, subject: &Subject) -> storage::Result<Option<String>> {
    let genesis = leader.checkpoint()?.genesis;
    if genesis.hash != subject.genesis {
        return Ok(Some(format!("its genesis block is {}", subject.genesis)));
    }
    let base = BlockId::new(subject.base.number, subject.base.hash);
    let mut known = vec![BlockId::new(subject.head.number, subject.head.hash), base, genesis];
    known.dedup();
    let feed = leader.follow(FollowRequest { known, without_changes_to: 0 });
    let (mut feed, until) = (feed?, Instant::now() + ANSWER_WAIT);
    let (mut head, mut resumed) = (None, None);
    while Instant::now() < until {
        match feed.next(Duration::from_secs(1)) {
            Ok(Some(FeedMessage::Status(status))) => head = Some(status.forkchoice.head),
            Ok(Some(FeedMessage::Resume(block))) if block.number < base.number => {
                return Ok(Some(format!("its block {base} is not in the leader's chain")));
            }
            Ok(Some(FeedMessage::Resume(block))) => resumed = Some(block),
            Ok(Some(FeedMessage::Block(_))) => return Ok(None),
            Ok(None) => {}
            Err(storage::Error::TooFarBehind { oldest, .. }) => {
                return Ok(Some(format!("the leader has no changes before block {oldest}")));
            }
            Err(error) => return Err(error),
        }
        if head.is_some() && head == resumed {
            return Ok(None);
        }
    }
    Err(storage::Error::Unavailable("it does not say where its feed begins".to_owned()))
}
