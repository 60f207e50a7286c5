//! Checks that need no lock on the pool: decoding, rules, signature, verdict on blobs.
//!
//! Few threads of the class idle take transactions from two bounded queues, one for this node's
//! users, which goes first, and one for peers. A thread waits for the verdict on a transaction's
//! blobs, which blob-validator's own threads find. Then it hands the transaction to the actor, and
//! waits while that one's mailbox is full. It takes several that wait together, whose senders it reads in one
//! call.
//!
//! **Overload.** What finds its queue full is refused at once. The bytes of a queued transaction count
//! until it is judged. A transaction that the pool holds is found by its hash, before it is decoded.
//! All rules and the room in the pool are checked before KZG.

use crate::{
    actor::{Insert, Message},
    blobs::form_of,
    error::Error,
    locals::Place,
    metrics,
    peers::News,
    pool::{PoolError, Pooled},
    service::Shared,
};
use ::metrics::counter;
use alloy_consensus::{Transaction as _, TxType};
use crossbeam_channel::{Receiver, bounded, select};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tandem_actor::{Mailbox, Queued, SendError, ThreadSender, take_idle_priority, thread_queue};
use tandem_admission::{Submitted, check, check_account, decode, pooled_hash};
use tandem_chain::{Fork, Sidecar};
use tandem_primitives::{Address, B256, Bytes};
use tandem_proto::{
    blob_validator::{Bundle, Form, Rule, Verdict},
    peer_sessions::{Misconduct, TransactionPeer},
};
use tokio::{runtime, sync::oneshot};
use tokio_util::sync::CancellationToken;
use tracing::debug;

/// Maximum waiting time of a transaction for the verdict on its blobs.
const VERDICT_TIME_MAX: Duration = Duration::from_secs(10);

/// Time between two verifications of blobs whose transaction the pool refuses. A verification takes about 26
/// ms for each blob.
const UNWANTED_EVERY: Duration = Duration::from_secs(1);

/// Number of transactions after which a thread gathers no more to judge together. Their senders' accounts
/// are read in one call. Those of one call, and those that are added again, come together, so it may have more.
const GROUP_MAX: usize = 32;

/// Way of an answer to a user, and its end.
pub(crate) type Reply = oneshot::Sender<Result<B256, Error>>;
pub(crate) type Answer = oneshot::Receiver<Result<B256, Error>>;

/// Source of a transaction.
pub(crate) enum Origin {
    /// A user of this node, who waits for the answer.
    Local(Reply),
    /// The actor.
    Again(Again),
    /// A peer.
    Peer,
}

/// Source of a transaction that the actor adds again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Again {
    /// The journal, or a user's transaction that was evicted.
    User,
    /// A block that left the chain.
    Reorg,
}

impl Origin {
    /// Returns the word that metrics have for it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Local(_) => "local",
            Self::Again(Again::User) => "again",
            Self::Again(Again::Reorg) => "reorg",
            Self::Peer => "peer",
        }
    }

    /// Answers the user, if one waits.
    pub fn answer(self, answer: Result<B256, Error>) {
        if let Self::Local(reply) = self {
            // The user may have gone.
            let _ = reply.send(answer);
        }
    }
}

/// Result for a transaction that a peer sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Judgment {
    /// It is in the pool, or will never be.
    Settled,
    /// Its blobs are wrong. Another peer may have the right ones.
    Invalid,
    /// It could not be judged now.
    Undecided,
}

/// Transactions of one message of a peer.
pub(crate) struct Batch {
    /// Peer that sent them.
    pub peer: Arc<dyn TransactionPeer>,
    /// Transactions in their network form.
    pub transactions: Vec<Bytes>,
}

/// Transaction that waits to be checked.
struct Job<T> {
    what: T,
    _room: Room,
}

/// Bytes of a queue, given back on drop.
struct Room {
    bytes: usize,
    held: Arc<AtomicUsize>,
}

impl Room {
    fn take(held: &Arc<AtomicUsize>, bytes: usize, max: usize) -> Option<Self> {
        let before = held.fetch_add(bytes, Relaxed);
        let room = Self { bytes, held: held.clone() };
        // A single one always fits.
        (before == 0 || before + bytes <= max).then_some(room)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes, Relaxed);
    }
}

/// Transactions of this node, in the order in which they are judged.
type Group = Vec<(Bytes, Origin)>;

/// Sending end of the queues.
#[derive(Clone)]
pub(crate) struct Intake {
    locals: ThreadSender<Job<Group>>,
    peers: ThreadSender<Job<Batch>>,
    local_bytes: Arc<AtomicUsize>,
    peer_bytes: Arc<AtomicUsize>,
    jobs_max: usize,
    bytes_max: usize,
}

/// Receiving end of the queues.
#[derive(Clone)]
pub(crate) struct Queues {
    locals: Receiver<Queued<Job<Group>>>,
    peers: Receiver<Queued<Job<Batch>>>,
}

/// Creates the queues, each for so many calls or messages, and bytes of them.
pub(crate) fn queues(jobs_max: usize, bytes_max: usize) -> (Intake, Queues) {
    let jobs_max = jobs_max.max(2);
    let (locals, local_queue) = thread_queue("tx-intake", jobs_max);
    let (peers, peer_queue) = thread_queue("tx-intake-peers", jobs_max);
    let (local_bytes, peer_bytes) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
    let intake = Intake { locals, peers, local_bytes, peer_bytes, jobs_max, bytes_max };
    (intake, Queues { locals: local_queue, peers: peer_queue })
}

impl Intake {
    /// Queues transactions of a user, and returns where the answer to each comes. One thread judges them in
    /// their order, up to the next one with blobs: with two, many of one sender could come too far ahead of
    /// its nonce. Never blocks.
    ///
    /// # Errors
    /// [`Error::Overloaded`], [`Error::Stopping`].
    pub fn submit(&self, raw: &[Bytes]) -> Vec<Result<Answer, Error>> {
        let mut submitted = Vec::with_capacity(raw.len());
        for raw in raw.chunk_by(|one, _| !has_blobs(one)) {
            let (replies, answers): (Vec<Reply>, Vec<Answer>) =
                raw.iter().map(|_| oneshot::channel()).unzip();
            let group = raw.iter().cloned().zip(replies.into_iter().map(Origin::Local));
            match self.submit_locals(group.collect()) {
                Ok(()) => submitted.extend(answers.into_iter().map(Ok)),
                Err(error) => submitted.extend(raw.iter().map(|_| Err(error.clone()))),
            }
        }
        submitted
    }

    /// Queues the first of these transactions, of which the last one may have blobs. One thread
    /// judges them in their order, and then sends [`Message::AddedAgain`]. Returns their number.
    /// Never blocks.
    ///
    /// # Errors
    /// [`Error::Overloaded`], [`Error::Stopping`].
    pub fn submit_again(&self, waiting: &VecDeque<(Bytes, Again)>) -> Result<usize, Error> {
        let count = waiting.iter().take(GROUP_MAX).position(|(raw, _)| has_blobs(raw));
        let count = count.map_or(GROUP_MAX, |index| index + 1).min(waiting.len());
        let group = waiting.iter().take(count);
        self.submit_locals(group.map(|(raw, why)| (raw.clone(), Origin::Again(*why))).collect())?;
        Ok(count)
    }

    fn submit_locals(&self, group: Group) -> Result<(), Error> {
        let bytes = group.iter().map(|(raw, _)| raw.len()).sum();
        let room = Room::take(&self.local_bytes, bytes, self.bytes_max);
        let job = Job { _room: room.ok_or(Error::Overloaded)?, what: group };
        self.locals.try_send(job).map_err(refusal)
    }

    /// Queues transactions of a peer. Never blocks.
    ///
    /// # Errors
    /// [`Error::Overloaded`], [`Error::Stopping`].
    pub fn submit_batch(&self, batch: Batch) -> Result<(), Error> {
        let bytes = batch.transactions.iter().map(|raw| raw.len()).sum();
        let room = Room::take(&self.peer_bytes, bytes, self.bytes_max);
        let job = Job { _room: room.ok_or(Error::Overloaded)?, what: batch };
        self.peers.try_send(job).map_err(refusal)
    }

    /// Returns whether at least half of the first queue is free, which is left to users.
    pub fn is_quiet(&self) -> bool {
        self.local_bytes.load(Relaxed) <= self.bytes_max / 2
            && self.locals.room() > self.jobs_max / 2
    }
}

fn refusal(error: SendError) -> Error {
    match error {
        SendError::Full => Error::Overloaded,
        SendError::Closed => Error::Stopping,
    }
}

/// Checks transactions until the service stops.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    actor: Mailbox<Message>,
    runtime: runtime::Runtime,
    stopping: CancellationToken,
}

/// Transaction that passed the checks for which nothing is read.
enum Begun {
    /// Transaction that the pool holds. Perhaps only its blobs were missing.
    Known(Arc<Pooled>, Submitted),
    /// Transaction that is new, with its sender and the hash of the head by whose rules it was checked.
    New(Submitted, Address, B256),
}

impl Begun {
    fn place(&self) -> Place {
        match self {
            Self::Known(tx, _) => Place::of(tx),
            Self::New(submitted, sender, _) => {
                let (nonce, hash) = (submitted.transaction.nonce(), submitted.hash());
                Place { sender: *sender, nonce, hash }
            }
        }
    }
}

/// Transaction that passed all checks but those of the pool.
struct Checked {
    tx: Arc<Pooled>,
    /// Whether the pool holds it, and only its blobs were missing.
    is_known: bool,
}

impl Worker {
    /// Creates a worker of these queues.
    ///
    /// # Errors
    /// Error of the operating system.
    pub fn new(
        shared: Arc<Shared>,
        actor: Mailbox<Message>,
        stopping: CancellationToken,
    ) -> std::io::Result<Self> {
        // For waiting on verdicts only.
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { shared, actor, runtime, stopping })
    }

    /// Runs until the service stops, which is when the other end of `ended` is dropped: a waiting
    /// thread ends at once.
    pub fn run(self, queues: &Queues, ended: &Receiver<Infallible>) {
        take_idle_priority();
        while !self.stopping.is_cancelled() {
            self.take_locals(queues);
            select! {
                recv(ended) -> _ => return,
                recv(queues.locals) -> job => match job {
                    Ok(job) => self.locals(job, queues),
                    Err(_) => return,
                },
                recv(queues.peers) -> job => match job {
                    Ok(job) => self.batch(job, queues),
                    Err(_) => return,
                },
            }
        }
    }

    fn take_locals(&self, queues: &Queues) {
        while let Ok(job) = queues.locals.try_recv() {
            self.locals(job, queues);
        }
    }

    /// Checks transactions of this node, and those that wait behind them. One with blobs is the
    /// last, as it may wait for long.
    fn locals(&self, first: Queued<Job<Group>>, queues: &Queues) {
        let Job { what: mut group, _room: room } = first.take();
        let mut rooms = vec![room];
        while group.len() < GROUP_MAX && group.last().is_none_or(|(raw, _)| !has_blobs(raw)) {
            let Ok(job) = queues.locals.try_recv() else { break };
            let Job { what, _room: room } = job.take();
            group.extend(what);
            rooms.push(room);
        }
        let is_again = group.iter().any(|(_, origin)| matches!(origin, Origin::Again(_)));
        let hashes: Vec<_> = group.iter().map(|(raw, _)| pooled_hash(raw)).collect();
        let begun = self.begin_all(group.iter().map(|(raw, _)| raw).zip(&hashes));
        for (((raw, origin), hash), begun) in group.into_iter().zip(hashes).zip(begun) {
            self.local(raw, origin, hash, begun);
        }
        if is_again {
            // The service ends if the actor does.
            let _ = self.actor.send(Message::AddedAgain);
        }
    }

    fn local(&self, raw: Bytes, origin: Origin, hash: Option<B256>, begun: Result<Begun, Error>) {
        let source = origin.name();
        let place = begun.as_ref().ok().map(Begun::place);
        match begun.and_then(|begun| self.finish(begun, true)) {
            Ok(Checked { is_known: false, tx }) => {
                let insert = Insert { tx, network: Some(raw), origin };
                // The service ends if the actor does.
                let _ = self.actor.send(Message::Insert(insert));
            }
            Ok(Checked { is_known: true, tx }) => origin.answer(Ok(tx.hash)),
            Err(error) => {
                count(source, error.kind());
                debug!(%error, source, "transaction refused");
                if matches!(origin, Origin::Again(Again::User)) {
                    let known = || self.shared.pool.lock().get(&hash?).map(|tx| Place::of(tx));
                    self.keep(place.or_else(known), raw, &error);
                }
                origin.answer(Err(error));
            }
        }
    }

    /// Hands a user's transaction that could not be added again back to the actor, unless it is of
    /// no use any more.
    fn keep(&self, place: Option<Place>, raw: Bytes, error: &Error) {
        if matches!(error, Error::Pool(PoolError::AlreadyKnown)) || error.may_pass() {
            let message = match place {
                Some(place) => Message::Keep(place, raw),
                None => Message::Later(raw),
            };
            // The service ends if the actor does.
            let _ = self.actor.send(message);
        }
    }

    fn batch(&self, job: Queued<Job<Batch>>, queues: &Queues) {
        let Job { what: Batch { peer, transactions }, _room } = job.take();
        let hashes: Vec<_> = transactions.iter().map(|raw| pooled_hash(raw)).collect();
        let has = hashes.iter().copied().flatten().collect();
        self.shared.tell_peers(News::Has(peer.id(), has));
        let mut judged = Vec::with_capacity(transactions.len());
        let mut begun = Vec::new().into_iter();
        for (index, &hash) in hashes.iter().enumerate() {
            self.take_locals(queues);
            if self.stopping.is_cancelled() {
                return;
            }
            if index % GROUP_MAX == 0 {
                let group = transactions[index..].iter().zip(&hashes[index..]).take(GROUP_MAX);
                begun = self.begin_all(group).into_iter();
            }
            let Some(begun) = begun.next() else { break };
            let error = match begun.and_then(|begun| self.finish(begun, false)) {
                Ok(Checked { is_known: true, .. }) => None,
                Ok(Checked { tx, .. }) => {
                    let insert = Insert { tx, network: None, origin: Origin::Peer };
                    let _ = self.actor.send(Message::Insert(insert));
                    None
                }
                Err(error) => Some(error),
            };
            let judgment = match &error {
                None => Judgment::Settled,
                Some(error) if error.is_final() => Judgment::Settled,
                Some(error) if error.is_of_blobs() => Judgment::Invalid,
                Some(_) => Judgment::Undecided,
            };
            judged.extend(hash.map(|hash| (hash, judgment)));
            let Some(error) = error else { continue };
            count("peer", error.kind());
            debug!(%error, peer = %peer.id(), "transaction of a peer refused");
            let is_breach = judgment == Judgment::Invalid
                || matches!(error, Error::Rule(tandem_admission::Refused::Malformed(_)));
            if is_breach {
                peer.report(Misconduct::Invalid);
                break;
            }
        }
        self.shared.tell_peers(News::Judged(peer.id(), judged));
    }

    /// Begins to check transactions, and reads the accounts of their senders together.
    fn begin_all<'a>(
        &self,
        transactions: impl Iterator<Item = (&'a Bytes, &'a Option<B256>)>,
    ) -> Vec<Result<Begun, Error>> {
        let begun: Vec<_> = transactions.map(|(raw, hash)| self.begin(raw, *hash)).collect();
        let mut senders = BTreeMap::<B256, BTreeSet<Address>>::new();
        for begun in &begun {
            if let Ok(Begun::New(_, sender, head)) = begun {
                senders.entry(*head).or_default().insert(*sender);
            }
        }
        for (head, senders) in senders {
            let senders: Vec<_> = senders.into_iter().collect();
            // The chain remembers them. An error comes again with each transaction.
            let _ = self.shared.chain.accounts(head, &senders);
        }
        begun
    }

    /// Checks what a transaction says of itself.
    fn begin(&self, raw: &Bytes, hash: Option<B256>) -> Result<Begun, Error> {
        let (shared, chain) = (&self.shared, &self.shared.chain);
        let head = chain.head()?;
        if head.id != shared.head().id {
            self.wait_for_head();
        }
        let is_plain = |hash| shared.pool.lock().get(&hash).is_some_and(|it| it.sidecar.is_none());
        if hash.is_some_and(is_plain) {
            return Err(PoolError::AlreadyKnown.into());
        }
        let submitted = decode(raw).map_err(tandem_admission::Refused::from)?;
        let known = shared.pool.lock().get(&submitted.hash()).cloned();
        if let Some(known) = known {
            return Ok(Begun::Known(known, submitted));
        }
        let sender = check(chain.spec(), &head.header, &submitted, shared.tip_min)?;
        Ok(Begun::New(submitted, sender, head.id.hash))
    }

    /// Checks a transaction of a user of this node or of a peer against the chain and the pool.
    fn finish(&self, begun: Begun, is_local: bool) -> Result<Checked, Error> {
        let (submitted, sender, head) = match begun {
            Begun::Known(known, submitted) => return self.check_known(known, submitted),
            Begun::New(submitted, sender, head) => (submitted, sender, head),
        };
        let shared = &self.shared;
        let account = shared.chain.account(head, sender)?;
        check_account(&submitted.transaction, &account)?;
        let tx = Arc::new(Pooled::new(&submitted, sender));
        // The actor decides whether a transaction is kept for which there is no room now.
        if !is_local || tx.sidecar.is_some() {
            let refused = shared.pool.lock().check(&tx, &account);
            if let Err(refused) = refused {
                // A peer that sends wrong blobs risks its session, even if their transaction is not wanted.
                if !is_local && tx.sidecar.is_some() && shared.may_verify_unwanted() {
                    self.verify(&tx, submitted.sidecar)?;
                }
                return Err(refused.into());
            }
        }
        self.verify(&tx, submitted.sidecar)?;
        Ok(Checked { tx, is_known: false })
    }

    /// Waits until the pool stands on the chain's head. Otherwise a transaction that returns with a
    /// reorg would look unknown.
    fn wait_for_head(&self) {
        let (waiting, followed) = bounded::<()>(0);
        if self.actor.send(Message::Stand(waiting)).is_ok() {
            // Ends when the actor drops its end.
            let _ = followed.recv();
        }
    }

    /// Has the blobs of a pooled transaction verified again, if they came in another form or
    /// blob-validator keeps them no longer.
    fn check_known(&self, tx: Arc<Pooled>, submitted: Submitted) -> Result<Checked, Error> {
        let (Some(held), Some(sidecar)) = (&tx.sidecar, submitted.sidecar) else {
            return Err(PoolError::AlreadyKnown.into());
        };
        if held.wrapper == sidecar.wrapper {
            let stored = self.runtime.block_on(self.shared.blobs.get_blobs(&held.versioned_hashes));
            if stored.is_ok_and(|stored| stored.iter().all(Option::is_some)) {
                return Err(PoolError::AlreadyKnown.into());
            }
        }
        self.verify(&tx, Some(sidecar))?;
        Ok(Checked { tx, is_known: true })
    }

    fn verify(&self, tx: &Pooled, sidecar: Option<Sidecar>) -> Result<(), Error> {
        let (Some(sidecar), Some(held)) = (sidecar, &tx.sidecar) else { return Ok(()) };
        let bundle = self.shared.bundle(sidecar, held.versioned_hashes.clone());
        let verdict = self.shared.blobs.validate(Arc::new(bundle), VERDICT_TIME_MAX);
        let verdict = self.runtime.block_on(async {
            tokio::select! {
                verdict = verdict => verdict.map_err(Error::from),
                () = self.stopping.cancelled() => Err(Error::Stopping),
            }
        });
        match verdict? {
            Verdict::Valid => Ok(()),
            Verdict::Invalid(refusal) => Err(Error::Sidecar(refusal)),
        }
    }
}

impl Shared {
    /// Returns whether it is time to verify blobs that the pool has no use for.
    fn may_verify_unwanted(&self) -> bool {
        let (now, mut next) = (self.now(), self.unwanted_next.lock());
        let may = now >= *next;
        if may {
            *next = now + UNWANTED_EVERY;
        }
        may
    }

    fn bundle(&self, sidecar: Sidecar, versioned_hashes: Vec<B256>) -> Bundle {
        let (head, spec) = (self.head(), self.chain.spec());
        let cells = spec.fork_of(&head.header) >= Fork::Osaka;
        let max = spec.blob_params_of(&head.header).map_or(0, |params| params.max_blobs_per_tx);
        let Sidecar { wrapper, blobs, commitments, proofs } = sidecar;
        Bundle {
            form: form_of(wrapper),
            blobs,
            commitments,
            proofs,
            versioned_hashes,
            rule: Rule {
                form: if cells { Form::CellProofs } else { Form::BlobProofs },
                blobs_max: u32::try_from(max).unwrap_or(u32::MAX),
            },
        }
    }
}

/// Returns whether a transaction in its network form has the type of those with blobs.
fn has_blobs(raw: &Bytes) -> bool {
    raw.first() == Some(&(TxType::Eip4844 as u8))
}

/// Counts a transaction by its source and what became of it.
pub(crate) fn count(source: &'static str, outcome: &'static str) {
    counter!(metrics::TRANSACTIONS, "source" => source, "outcome" => outcome).increment(1);
}
