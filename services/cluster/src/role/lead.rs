//! Lead by lease: the storage-writer that holds the lease in NATS leads, and stops by itself when it cannot
//! renew it. A follower takes the lease when its holder falls silent. `crates/pure/lease` decides; here are
//! its clock and its store.

use super::{
    Process,
    promotion::Candidate,
    stream_end::{self, CatchUp, Reached},
};
use crate::Error;
use std::{
    process,
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_bus::ComparedKey;
use tandem_lease::{Answer, Lease, Record, Request, Settings};
use tandem_proto::{
    event::{LEAD_BUCKET, lead_key},
    storage::{BaseReads, Term},
};
use tandem_storage_writer::{LeadConfig, LeadLease};
use tokio::{sync::watch, task::spawn_blocking, time::sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

/// Returns the times of the lease, `None` without a lease.
///
/// # Errors
/// [`Error::Lease`] for times that are of no use, [`Error::LeaseReplicas`].
pub fn lease_settings(config: &LeadConfig) -> Result<Option<Settings>, Error> {
    if !config.is_leased() {
        return Ok(None);
    }
    if !matches!(config.replicas, 1 | 3 | 5) {
        return Err(Error::LeaseReplicas(config.replicas));
    }
    let ms = Duration::from_millis;
    Ok(Some(Settings::new(ms(config.lease_ms), ms(config.margin_ms))?))
}

/// Starts to hold or await the lease, if there is one. Returns the right to write that depends on it. A
/// follower leads only at the end of `catch_up`.
///
/// # Errors
/// [`Error::LeaseWithoutNats`]; [`Error::Storage`] if genesis cannot be read.
pub fn follow_lease(
    process: &mut Process,
    config: &LeadConfig,
    candidate: &Arc<Candidate>,
    catch_up: Option<CatchUp>,
) -> Result<Option<Arc<LeadLease>>, Error> {
    let Some(settings) = candidate.lease else { return Ok(None) };
    let key = lead_key(candidate.storage.checkpoint()?.genesis.hash);
    let key = process.bus().compared_key(LEAD_BUCKET, key, config.replicas);
    let key = key.ok_or(Error::LeaseWithoutNats)?;
    let right = Arc::<LeadLease>::default();
    let (given_back, mut leaves) = watch::channel(false);
    let name = unique_name();
    info!(name, ?settings, "a lease in NATS decides which storage-writer leads");
    let keeper = Keeper {
        begun: Instant::now(),
        lease: Lease::new(name.clone(), settings),
        name,
        settings,
        key,
        candidate: candidate.clone(),
        catch_up,
        right: right.clone(),
        given_back,
        leaving: process.leaving().clone(),
        fatal: process.fatal().clone(),
        said: String::new(),
    };
    process.beside(keeper.run());
    // Gets a second at most.
    process.at_farewell(async move {
        let _ = leaves.wait_for(|given_back| *given_back).await;
    });
    Ok(Some(right))
}

/// Returns a name that no other process has or had.
fn unique_name() -> String {
    format!("{}-{:016x}", process::id(), rand::random::<u64>())
}

/// Task that holds or awaits the lease.
struct Keeper {
    /// Moment from which the lease counts its time.
    begun: Instant,
    lease: Lease,
    name: String,
    settings: Settings,
    key: ComparedKey,
    candidate: Arc<Candidate>,
    /// Way to the end of the stream of blocks, `None` without a stream.
    catch_up: Option<CatchUp>,
    right: Arc<LeadLease>,
    given_back: watch::Sender<bool>,
    leaving: CancellationToken,
    fatal: CancellationToken,
    /// Reason of the last failure that was logged.
    said: String,
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
                // First, because the store tells others that they need not wait.
                self.right.release();
                self.lease.leave(self.now());
            }
            if self.turn().await.is_none() {
                return;
            }
            if self.lease.is_given_back() {
                self.given_back.send_replace(true);
            }
            let mut next = self.lease.next();
            if let Some(held) = self.lease.held(self.now()) {
                next = next.min(held.until);
                if self.catch_up.is_some() && self.candidate.follows() {
                    next = next.min(self.now() + stream_end::LOOK_EVERY);
                }
            }
            tokio::select! {
                () = sleep_until((self.begun + next).into()) => {}
                () = self.leaving.cancelled(), if !leaves => {}
            }
        }
    }

    /// Makes the request that is due, and lets the candidate lead while it holds the lease. Returns
    /// `None` when the process is to end.
    async fn turn(&mut self) -> Option<()> {
        let candidate = self.candidate.clone();
        let wish = spawn_blocking(move || candidate.wish()).await.ok()?;
        if let Some((number, request)) = self.lease.poll(self.now(), wish) {
            let answer = self.ask(request).await;
            self.hear(&answer).await?;
            self.lease.answer(self.now(), number, answer);
        }
        if self.lease.held(self.now()).is_some() && !self.has_caught_up().await? {
            return Some(());
        }
        let Some(held) = self.lease.held(self.now()) else {
            if let Some(catch_up) = &mut self.catch_up {
                catch_up.reset();
            }
            if self.right.release() {
                warn!("the lease of the lead is lost: no more writes here until it is held again");
            }
            return Some(());
        };
        let candidate = self.candidate.clone();
        match spawn_blocking(move || candidate.lead(Term(held.term))).await.ok()? {
            Ok(_) => {
                if self.right.hold_until(self.begun + held.until) {
                    info!(term = held.term, name = self.name, "the lease of the lead is held");
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

    /// Returns whether the holder of the lease has every block in the stream, as one that led before has.
    /// Returns `None` when the process is to end.
    async fn has_caught_up(&mut self) -> Option<bool> {
        let Some(catch_up) = self.catch_up.as_mut().filter(|_| self.candidate.follows()) else {
            return Some(true);
        };
        match catch_up.look(&self.candidate).await {
            Reached::Yes => Some(true),
            Reached::NotYet => Some(false),
            Reached::Never(reason) => {
                error!(reason, "the lead cannot be taken: another follower may have the blocks");
                self.fatal.cancel();
                // The lease is given back when the process leaves.
                self.leaving.cancelled().await;
                Some(false)
            }
        }
    }

    /// Takes note of the term of another holder.
    async fn hear(&self, answer: &Answer) -> Option<()> {
        let Answer::Found { record: Some(record), .. } = answer else { return Some(()) };
        if record.holder == self.name {
            return Some(());
        }
        let (candidate, term) = (self.candidate.clone(), Term(record.term));
        if let Err(reason) = spawn_blocking(move || candidate.hear_holder(term)).await.ok()? {
            warn!(%reason, "the term of the lease's holder is not noted");
        }
        Some(())
    }

    /// Asks NATS.
    async fn ask(&mut self, request: Request) -> Answer {
        let wait = self.settings.interval();
        let asked = match request {
            Request::Read => self.key.read(wait).await.and_then(|(revision, text)| {
                let record = text.map(|text| text.parse::<Record>()).transpose();
                let record = record.map_err(|error| error.to_string())?;
                Ok(Answer::Found { revision, record })
            }),
            Request::Write { expected, record } => {
                let written = self.key.replace(expected, record.to_string(), wait).await;
                written.map(|revision| revision.map_or(Answer::Conflict, Answer::Written))
            }
        };
        match asked {
            Ok(answer) => {
                self.said.clear();
                answer
            }
            Err(reason) => {
                self.right.count_failure();
                if self.said != reason {
                    warn!(reason, "NATS does not answer about the lease of the lead");
                    self.said = reason;
                }
                Answer::Failed
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_off_by_default_and_its_settings_are_checked() {
        assert_eq!(lease_settings(&LeadConfig::default()).unwrap(), None);
        let config = LeadConfig { lease_ms: 3_000, ..LeadConfig::default() };
        let settings = lease_settings(&config).unwrap().expect("a lease");
        assert_eq!(settings.waits(), Duration::from_millis(3_300));
        let wrong = |config| lease_settings(&config).unwrap_err().to_string();
        let copies = wrong(LeadConfig { replicas: 2, ..config.clone() });
        assert!(copies.contains("invalid value 2 for `storage_writer.lead.replicas`"), "{copies}");
        let margin = wrong(LeadConfig { margin_ms: 2_000, ..config });
        assert!(margin.starts_with("`storage_writer.lead`: invalid margin of 2s"), "{margin}");
    }

    #[test]
    fn names_differ_and_are_valid_in_a_record() {
        let (one, two) = (unique_name(), unique_name());
        assert_ne!(one, two);
        let stands = Duration::from_millis(3_300);
        let record = Record { holder: one, term: 1, write: 1, stands, is_free: false };
        assert_eq!(record.to_string().parse(), Ok(record));
    }
}
