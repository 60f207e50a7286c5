//! Lead by lease: the storage-writer that holds the lease in NATS leads, and stops by itself when it cannot
//! renew it. A follower takes the lease when its holder falls silent.

use super::{Process, promotion::Candidate};
use crate::Error;
use std::{
    process,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tandem_bus::ComparedKey;
use tandem_lease::{Answer, Lease, Record, Request, Settings};
use tandem_proto::storage::Term;
use tandem_storage_writer::{Config, grpc::HeldLead};
use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

/// Bucket with the lease.
const BUCKET: &str = "tandem_lead";

/// Key of the lease.
const KEY: &str = "holder";

/// Longest wait at the end for the lease to be given back.
const LEAVE_MAX: Duration = Duration::from_secs(1);

/// Starts to hold or await the lease, if there is one. Returns until when the storage-writer leads.
///
/// # Errors
/// [`Error::Lease`] for times that are of no use; [`Error::NoBus`].
pub fn follow_lease(
    process: &mut Process,
    config: &Config,
    candidate: &Arc<Candidate>,
) -> Result<Option<HeldLead>, Error> {
    if config.lead_lease_ms == 0 {
        return Ok(None);
    }
    let ms = Duration::from_millis;
    let settings = Settings::new(ms(config.lead_lease_ms), ms(config.lead_margin_ms))?;
    let key = process.bus().compared_key(BUCKET, KEY).ok_or(Error::NoBus)?;
    let (held, holds) = watch::channel(None);
    let (given_back, mut leaves) = watch::channel(false);
    let name = unique_name();
    info!(name, ?settings, "the lead is leased");
    let keeper = Keeper {
        begun: Instant::now(),
        lease: Lease::new(name.clone(), settings),
        name,
        settings,
        key,
        candidate: candidate.clone(),
        held,
        given_back,
        leaving: process.leaving().clone(),
        fatal: process.fatal().clone(),
    };
    process.beside(keeper.run());
    process.at_farewell(async move {
        let _ = timeout(LEAVE_MAX, leaves.wait_for(|given_back| *given_back)).await;
    });
    Ok(Some(holds))
}

/// Returns a name that no other process has or had: the process and the time of its start.
fn unique_name() -> String {
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}-{}", process::id(), started.as_nanos())
}

/// Task that holds or awaits the lease.
struct Keeper {
    /// Beginning of the own time.
    begun: Instant,
    lease: Lease,
    name: String,
    settings: Settings,
    key: ComparedKey,
    candidate: Arc<Candidate>,
    held: watch::Sender<Option<Instant>>,
    given_back: watch::Sender<bool>,
    leaving: CancellationToken,
    fatal: CancellationToken,
}

impl Keeper {
    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    async fn run(mut self) {
        let mut leaves = false;
        loop {
            let is_over = self.candidate.is_superseded() || self.leaving.is_cancelled();
            if is_over && !leaves {
                leaves = true;
                self.held.send_replace(None);
                self.lease.leave(self.now());
            }
            if self.turn().await.is_none() {
                return;
            }
            if self.lease.is_given_back() {
                self.given_back.send_replace(true);
            }
            let mut next = self.lease.next();
            if let Some((_, until)) = self.lease.held(self.now()) {
                next = next.min(until);
            }
            tokio::select! {
                () = sleep_until((self.begun + next).into()) => {}
                () = self.leaving.cancelled(), if !leaves => {}
            }
        }
    }

    /// Makes the request that is due, and shows what the candidate holds. Returns `None` when the
    /// process is to end.
    async fn turn(&mut self) -> Option<()> {
        let candidate = self.candidate.clone();
        let wish = spawn_blocking(move || candidate.wish()).await.ok()?;
        if let Some((number, request)) = self.lease.poll(self.now(), wish) {
            let answer = ask(&mut self.key, request, self.settings.interval()).await;
            self.hear(&answer).await?;
            self.lease.answer(self.now(), number, answer);
        }
        let Some((term, until)) = self.lease.held(self.now()) else {
            if self.held.send_if_modified(|held| held.take().is_some()) {
                warn!("the lease of the lead is lost: nothing is written here");
            }
            return Some(());
        };
        let candidate = self.candidate.clone();
        match spawn_blocking(move || candidate.lead(Term(term))).await.ok()? {
            Ok(_) => {
                let until = self.begun + until;
                if self.held.send_replace(Some(until)).is_none() {
                    info!(term, "the lease of the lead is held");
                }
                Some(())
            }
            Err(failure) => {
                error!(error = %failure, "the lead cannot be taken");
                self.fatal.cancel();
                None
            }
        }
    }

    /// Takes note of the term of another holder.
    async fn hear(&self, answer: &Answer) -> Option<()> {
        let Answer::Found(Some((_, record))) = answer else { return Some(()) };
        if record.holder == self.name {
            return Some(());
        }
        let (candidate, term) = (self.candidate.clone(), Term(record.term));
        if let Err(reason) = spawn_blocking(move || candidate.hear_holder(term)).await.ok()? {
            warn!(%reason, "the term of the lease's holder is not noted");
        }
        Some(())
    }
}

/// Asks NATS.
async fn ask(key: &mut ComparedKey, request: Request, wait: Duration) -> Answer {
    let asked = match request {
        Request::Read => key.read(wait).await.and_then(|(revision, text)| {
            let Some(text) = text else { return Ok(Answer::Found(None)) };
            let record = text.parse::<Record>().map_err(|error| error.to_string())?;
            Ok(Answer::Found(Some((revision, record))))
        }),
        Request::Write { expected, record } => {
            let written = key.replace(expected, record.to_string(), wait).await;
            written.map(|revision| revision.map_or(Answer::Conflict, Answer::Written))
        }
    };
    asked.unwrap_or_else(|reason| {
        debug!(reason, "the lease cannot be asked for");
        Answer::Failed
    })
}
