//! Promotion of a follower, by hand or by lease: it stops following, and its database becomes that of the
//! leading storage-writer, in the same process and at the same address.

use super::Process;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_executor::Replica;
use tandem_follower::Follower;
use tandem_lease::{Settings, Wish};
use tandem_proto::{
    feed::FeedReads,
    storage::{BaseReads, Error, Leadership, Promotion, Result, Standing, StateDownloads, Term},
};
use tandem_rpc::Identity;
use tandem_storage_writer::{FeedPublisher, StorageWriter};
use tandem_storage_writer_client::{Client, ClientConfig};
use tokio::{
    runtime::Handle,
    sync::watch,
    task::spawn_blocking,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

/// Interval at which the storage-writers that were followed are told who leads.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// Shortest time after its start in which a follower that has heard no leader takes no lease.
const COLD_START_MIN: Duration = Duration::from_secs(10);

/// Longest wait for one of them to answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Shortest time between two looks of JSON-RPC at the chain that an executor writes here.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Follower that may be promoted, or was.
pub struct Candidate {
    pub storage: Arc<StorageWriter>,
    /// The follower, `None` if the storage-writer has led since the start.
    pub follower: Option<Arc<Follower>>,
    /// Connections over which it follows.
    pub leaders: Vec<Arc<Client>>,
    /// Blocks that it may lack of its leader's head.
    pub lag_blocks_max: u64,
    /// Start of the process.
    pub started: Instant,
    /// Times of the lease that decides which storage-writer leads, `None` without a lease.
    pub lease: Option<Settings>,
    /// Cancelled when the process cannot go on.
    pub fatal: CancellationToken,
}

impl Candidate {
    /// Returns what this storage-writer wants of the lease.
    pub fn wish(&self) -> Wish {
        let standing = *self.standing().borrow();
        let (takes_over, Term(known_term)) = match standing {
            // Term 0 is that of every new database. In a later one, a lease tells those of its holder.
            Standing::Leads(term) => (true, term.max(Term(1))),
            Standing::Superseded(term) => (false, term),
            Standing::Follows => (self.may_take_over(), self.storage.known_term()),
        };
        Wish { takes_over, begins: standing.leads(), known_term }
    }

    /// Returns whether the follower has all that a leader needs.
    fn may_take_over(&self) -> bool {
        let (Some(follower), Some(lease)) = (&self.follower, &self.lease) else { return false };
        // If all processes start at the same time, the one that led before goes first.
        let cold_start = COLD_START_MIN.max(2 * lease.waits());
        let has_waited =
            follower.status().lag_blocks().is_some() || self.started.elapsed() >= cold_start;
        has_waited
            && matches!(self.storage.download_progress(), Ok(None))
            && self.check(follower).is_ok()
    }

    /// Returns whether another storage-writer leads in a later term, and this one does not follow.
    pub fn is_superseded(&self) -> bool {
        matches!(*self.standing().borrow(), Standing::Superseded(_))
    }

    /// Takes note of the term of the lease's holder. A storage-writer that leads in this term itself held
    /// the lease in an earlier process.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn hear_holder(&self, term: Term) -> Result<Term> {
        // Copied first: `hear_term` changes this channel, and waits while a borrow of it is held.
        let standing = *self.standing().borrow();
        match standing {
            Standing::Leads(own) if own >= term => Ok(own),
            _ => self.storage.hear_term(term),
        }
    }

    /// Leaves the leaders that answer calls, so that the rest of the chain comes from the stream. Their lead is
    /// over, and one that is silent would hold up the follower. May block.
    pub fn turn_to_stream(&self) {
        let Some(follower) = &self.follower else { return };
        follower.leave_leaders();
        self.leaders.iter().for_each(|leader| leader.stop());
    }

    /// Returns whether this storage-writer follows.
    pub fn follows(&self) -> bool {
        *self.standing().borrow() == Standing::Follows
    }

    /// Ends the following, if this one follows, and leads in this term or a later one.
    ///
    /// # Errors
    /// [`Error::Store`]; [`Error::Refused`] after the last term.
    pub fn lead(&self, least: Term) -> Result<Term> {
        let follows = self.follows();
        if let Some(follower) = self.follower.as_ref().filter(|_| follows) {
            // Calls that wait for a lost leader end, then the block that is being stored.
            self.leaders.iter().for_each(|leader| leader.stop());
            follower.stop();
        }
        self.storage.lead(least)
    }

    /// Returns an error with the reason why a promotion would lose what a leader has.
    fn check(&self, follower: &Follower) -> Result<()> {
        let status = follower.status();
        let at = self.storage.checkpoint()?;
        let reason = if at.forkchoice.head == at.genesis {
            "it has no block except genesis".to_owned()
        } else {
            match status.lag_blocks() {
                Some(blocks) if blocks > self.lag_blocks_max => {
                    format!("it is {blocks} blocks behind the head that its leader had")
                }
                _ => return Ok(()),
            }
        };
        Err(Error::Refused(format!("{reason}, or use --force")))
    }
}

impl Leadership for Candidate {
    fn standing(&self) -> watch::Receiver<Standing> {
        self.storage.standing()
    }

    fn hear_term(&self, term: Term) -> Result<Term> {
        self.storage.hear_term(term)
    }

    fn promote(&self, force: bool) -> Result<Promotion> {
        if self.lease.is_some() {
            let text = "a lease decides which storage-writer leads (`storage_writer.lead`): stop \
                        the one that holds it";
            return Err(Error::Refused(text.to_owned()));
        }
        let follows = self.follows();
        let Some(follower) = self.follower.as_ref().filter(|_| follows) else {
            return self.storage.promote(force);
        };
        if self.storage.download_progress()?.is_some() {
            let text = "its copy of a first state is not complete".to_owned();
            return Err(Error::Refused(text));
        }
        if !force {
            if follower.status().is_led() {
                let text = "its leader is in reach: stop it first, or use --force".to_owned();
                return Err(Error::Refused(text));
            }
            self.check(follower)?;
        }
        let promoted = self.lead(Term::default()).and_then(|_| self.storage.promote(force));
        if promoted.is_err() {
            // Nothing follows any more; the next start does.
            self.fatal.cancel();
        }
        promoted
    }
}

/// Starts what a promoted follower does: it tells the storage-writers at `leaders` that it leads, and
/// shows JSON-RPC the chain that an executor writes. The process ends when it is superseded; the next
/// start follows again.
pub fn follow_promotion(
    process: &mut Process,
    storage: &Arc<StorageWriter>,
    replica: Option<&Arc<Replica>>,
    leaders: &[String],
    proof: &Identity,
) {
    for url in leaders {
        process.beside(tell(url.clone(), proof.clone(), storage.clone()));
    }
    if let Some(replica) = replica {
        process.beside(show(storage.clone(), replica.clone()));
    }
    let (mut standing, fatal) = (storage.standing(), process.fatal().clone());
    process.beside(async move {
        let is_over = |standing: &Standing| matches!(standing, Standing::Superseded(_));
        if standing.wait_for(is_over).await.is_ok() {
            error!("another storage-writer leads: this one follows after a restart");
            fatal.cancel();
        }
    });
}

/// Publishes the chain to the stream, if the settings say so, from the moment when the storage-writer leads.
pub fn publish_when_led(process: &mut Process, storage: &Arc<StorageWriter>) {
    let (storage, bus) = (storage.clone(), process.bus().clone());
    let stopping = process.stopping().clone();
    process.beside(async move {
        if led(&storage).await.is_none() {
            return;
        }
        let started = FeedPublisher::start(&storage, &bus, &Handle::current());
        // The database ends when nothing uses it any more.
        drop(storage);
        match started {
            Ok(publisher) => {
                stopping.cancelled().await;
                drop(publisher);
            }
            Err(error) => error!(%error, "the feed is not published"),
        }
    });
}

/// Waits until the storage-writer leads, and returns the term; `None` when the process ends.
async fn led(storage: &StorageWriter) -> Option<Term> {
    let mut standing = storage.standing();
    let standing = *standing.wait_for(|standing| standing.leads()).await.ok()?;
    match standing {
        Standing::Leads(term) => Some(term),
        Standing::Follows | Standing::Superseded(_) => None,
    }
}

/// Tells another storage-writer, as long as this one leads, that it does. The other one may come back
/// at any time, also with an older database.
async fn tell(url: String, proof: Identity, storage: Arc<StorageWriter>) {
    let Some(term) = led(&storage).await else { return };
    let settings = ClientConfig { connection: proof.into(), ..ClientConfig::default() };
    let client = match Client::connect(&url, settings, &Handle::current()) {
        Ok(client) => client,
        Err(error) => return error!(%error, "a storage-writer cannot be told who leads"),
    };
    let mut told = None;
    loop {
        let answer = timeout(ANSWER_MAX, client.supersede(term)).await;
        let now = match answer {
            Ok(Ok(known)) if known > term => {
                let storage = storage.clone();
                let heard = spawn_blocking(move || storage.hear_term(known)).await;
                return debug!(?heard, "the other storage-writer knows of a later term");
            }
            Ok(Ok(_)) => Some(true),
            Ok(Err(Error::Refused(reason))) => {
                if told != Some(false) {
                    error!(
                        storage_writer = url,
                        reason, "another storage-writer does not give way"
                    );
                }
                Some(false)
            }
            Ok(Err(error)) => {
                debug!(storage_writer = url, %error, "not told who leads");
                None
            }
            Err(_) => None,
        };
        if now == Some(true) && told != now {
            info!(storage_writer = url, term = term.0, "the other storage-writer writes no more");
        }
        told = now.or(told);
        sleep(TELL_EVERY).await;
    }
}

/// Shows JSON-RPC the chain that an executor writes.
async fn show(storage: Arc<StorageWriter>, replica: Arc<Replica>) {
    if led(&storage).await.is_none() {
        return;
    }
    replica.set_target(None);
    let mut changes = storage.feed_changes();
    drop(storage);
    while changes.changed().await.is_ok() {
        changes.borrow_and_update();
        let shown = replica.clone();
        match spawn_blocking(move || shown.reload()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!(%error, "the view of the chain cannot be read"),
            Err(_) => return,
        }
        sleep(LOOK_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::mpsc, thread};
    use tandem_cluster_tests::Corpus;
    use tandem_storage_writer::{Config, Deps, StartsAs, init};

    /// Returns a candidate without leaders and without a lease.
    fn alone(storage: Arc<StorageWriter>) -> Candidate {
        Candidate {
            storage,
            follower: None,
            leaders: Vec::new(),
            lag_blocks_max: 4,
            started: Instant::now(),
            lease: None,
            fatal: CancellationToken::new(),
        }
    }

    /// Otherwise a new database of the genesis could not be told from that of the chain.
    #[test]
    fn no_lease_is_held_in_the_term_of_a_new_database() {
        let folder = tempfile::tempdir().unwrap();
        init(&Corpus::demo().genesis(), folder.path(), |_| {}).unwrap();
        let config = Config::with_small_limits(folder.path());
        let storage = StorageWriter::start(config, Deps::default()).unwrap();
        let candidate = alone(storage.clone());
        let wish = candidate.wish();
        assert_eq!((wish.takes_over, wish.begins, wish.known_term), (true, true, 1));
        // The holder leads in that term, and another new database hears of it.
        assert_eq!(candidate.lead(Term(1)), Ok(Term(1)));
        assert_eq!(candidate.wish().known_term, 1);
        assert!(!candidate.is_superseded());
        storage.stop();
    }

    #[test]
    fn a_follower_may_hear_of_a_new_holder_from_the_lease_first() {
        let folder = tempfile::tempdir().unwrap();
        init(&Corpus::demo().genesis(), folder.path(), |_| {}).unwrap();
        let config =
            Config { starts_as: StartsAs::Follower, ..Config::with_small_limits(folder.path()) };
        let storage = StorageWriter::start(config, Deps::default()).unwrap();
        let candidate = alone(storage.clone());
        let (sender, heard) = mpsc::channel();
        let hears = thread::spawn(move || sender.send(candidate.hear_holder(Term(2))));
        assert_eq!(heard.recv_timeout(Duration::from_secs(60)), Ok(Ok(Term(2))));
        assert_eq!(storage.known_term(), Term(2));
        hears.join().unwrap().unwrap();
        storage.stop();
    }
}
