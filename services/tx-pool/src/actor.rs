//! The only thread that changes the pool. It follows the head, keeps the journal, and tells
//! blob-validator which blobs are needed no longer.

use crate::{
    blobs::BlobReferences,
    chain::{Head, Passed, RecentBlocks},
    error::Error,
    intake::{Again, Intake, Origin, count},
    journal::Journal,
    locals::{Locals, Place},
    metrics,
    pool::{Added, Pooled, Sizes},
    service::Shared,
};
use ::metrics::{counter, gauge, histogram};
use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_actor::{Inbox, Received, take_idle_priority};
use tandem_admission::{Market, Refused, SenderAccount};
use tandem_primitives::{Address, B256, Bytes};
use tracing::{debug, info, warn};

/// Time between looks at ages, at lost events and at the journal.
const TICK: Duration = Duration::from_secs(1);

/// Type of blob transactions.
const BLOB_TYPE: u8 = 3;

/// Transactions that peers are told of together.
const PROMOTED_MAX: usize = 512;

/// Largest number of transactions that wait to be added again.
const AGAIN_MAX: usize = 16_384;

/// Transaction that passed all checks but those of the pool.
pub(crate) struct Insert {
    pub tx: Arc<Pooled>,
    /// Network form of a transaction of this node.
    pub network: Option<Bytes>,
    pub origin: Origin,
}

/// Request to the actor.
pub(crate) enum Message {
    Insert(Insert),
    /// A transaction of a user, from the journal, is to be remembered: the pool has it from a peer,
    /// or may take it later.
    Keep(Place, Bytes),
    /// A transaction of a user could not be judged, and is to be added again later.
    Later(Bytes),
    /// The transactions that the actor submitted last are judged.
    AddedAgain,
    /// The head may have moved.
    Head,
    /// The head has moved, and the sender waits until the pool stands on it: until this is dropped.
    Stand(crossbeam_channel::Sender<()>),
    Stop,
}

pub(crate) struct Actor {
    shared: Arc<Shared>,
    intake: Intake,
    head: Head,
    recent: RecentBlocks,
    references: BlobReferences,
    locals: Locals,
    journal: Option<Journal>,
    /// Transactions that became pending, of which peers have not been told.
    promoted: Vec<Arc<Pooled>>,
    /// Transactions to be added again, group after group: in another order, some would lack those in
    /// front of them.
    again: VecDeque<(Bytes, Again)>,
    /// Whether a group of them is being judged.
    is_adding_again: bool,
    /// Transactions of users to be added again after a while.
    later: Vec<Bytes>,
    retry_every: Duration,
    retried: Instant,
}

impl Actor {
    /// Creates the actor over a journal and its content.
    pub fn new(
        shared: Arc<Shared>,
        intake: Intake,
        locals: Locals,
        retry_every: Duration,
        journal: Option<(Journal, Vec<Bytes>)>,
    ) -> Self {
        let (journal, found) = journal.unzip();
        let again = found.into_iter().flatten().map(|raw| (raw, Again::User)).collect();
        let (head, retried) = (Head::clone(&shared.head()), Instant::now());
        Self {
            shared,
            intake,
            head,
            recent: RecentBlocks::default(),
            references: BlobReferences::default(),
            locals,
            journal,
            promoted: Vec::new(),
            again,
            is_adding_again: false,
            later: Vec::new(),
            retry_every,
            retried,
        }
    }

    /// Runs until it is told to stop, or no sender is left.
    pub fn run(mut self, inbox: &Inbox<Message>) {
        take_idle_priority();
        if !self.again.is_empty() {
            info!(transactions = self.again.len(), "transactions of the journal are added again");
        }
        self.stand_on_head();
        let mut ticked = Instant::now();
        loop {
            let wait = if self.again.is_empty() { TICK } else { TICK / 50 };
            match inbox.receive(wait) {
                Received::Message(envelope) => match envelope.message {
                    Message::Insert(insert) => self.insert(insert),
                    Message::Keep(place, network) => {
                        self.protect(place, network, false);
                    }
                    Message::Later(raw) => self.later.push(raw),
                    Message::AddedAgain => self.is_adding_again = false,
                    Message::Head => self.follow(),
                    Message::Stand(_waiting) => self.follow(),
                    Message::Stop => return self.keep_journal_short(),
                },
                Received::Idle => {}
                Received::Closed => return,
            }
            if inbox.is_empty() || self.promoted.len() >= PROMOTED_MAX {
                self.shared.tell_of_pending(std::mem::take(&mut self.promoted));
            }
            self.add_again();
            if ticked.elapsed() >= TICK {
                self.tick();
                ticked = Instant::now();
            }
        }
    }

    fn tick(&mut self) {
        self.follow();
        let expired = self.shared.pool.lock().expire(self.shared.now());
        self.left(&expired);
        if self.retried.elapsed() >= self.retry_every {
            self.retried = Instant::now();
            let missing = self.locals.missing(&self.shared.pool.lock());
            let all = self.later.drain(..).chain(missing);
            let again = all.map(|raw| (raw, Again::User));
            self.again.extend(again.take(AGAIN_MAX.saturating_sub(self.again.len())));
        }
        self.keep_journal_short();
        self.show();
    }

    fn show(&self) {
        let Sizes { plain, blobs, slots, blob_bytes } = self.shared.pool.lock().sizes();
        for (kind, (pending, queued)) in [("plain", plain), ("blobs", blobs)] {
            gauge!(metrics::POOLED, "kind" => kind, "state" => "pending").set(pending as f64);
            gauge!(metrics::POOLED, "kind" => kind, "state" => "queued").set(queued as f64);
        }
        gauge!(metrics::SLOTS).set(slots as f64);
        gauge!(metrics::BLOB_BYTES).set(blob_bytes as f64);
        gauge!(metrics::LOCALS).set(self.locals.len() as f64);
    }

    /// Gives the next waiting transactions to the intake, if the last ones are judged and there is
    /// plenty of room.
    fn add_again(&mut self) {
        if self.again.is_empty() || self.is_adding_again || !self.intake.is_quiet() {
            return;
        }
        match self.intake.submit_again(&self.again) {
            Ok(count) => {
                self.again.drain(..count);
                self.is_adding_again = true;
            }
            Err(error) => debug!(%error, "transactions not added again yet"),
        }
    }

    fn insert(&mut self, insert: Insert) {
        let Insert { tx, network, origin } = insert;
        let result = self.add(&tx);
        count(origin.name(), result.as_ref().map_or_else(Error::kind, |()| "accepted"));
        let is_kept = match (&result, &origin) {
            (Ok(()), _) => true,
            // It is tried again later.
            (Err(error), Origin::Again(Again::User)) => error.may_pass(),
            (Err(Error::Pool(error)), _) => error.is_temporary(),
            (Err(_), _) => false,
        };
        let place = Place::of(&tx);
        let answer = match (network, &origin) {
            (Some(network), Origin::Local(_)) if is_kept => {
                let is_protected = self.protect(place, network, true);
                if is_protected { Ok(tx.hash) } else { result.map(|()| tx.hash) }
            }
            (Some(network), Origin::Again(Again::User)) if is_kept => {
                self.protect(place, network, false);
                Ok(tx.hash)
            }
            _ => result.map(|()| tx.hash),
        };
        origin.answer(answer);
    }

    /// Adds a transaction to the pool at the head.
    fn add(&mut self, tx: &Arc<Pooled>) -> Result<(), Error> {
        // The event of a new head may still be on its way.
        self.follow();
        let account = self.account(tx.sender)?;
        let (nonce, next) = (tx.nonce, account.nonce);
        let added = if nonce < next {
            Err(Refused::NonceTooLow { next, nonce }.into())
        } else {
            let now = self.shared.now();
            self.shared.pool.lock().add(now, tx.clone(), account).map_err(Error::from)
        };
        match added {
            Ok(added) => {
                self.references.hold(tx);
                self.added(added);
                Ok(())
            }
            Err(error) => {
                // Others may name the same blobs.
                let hashes = tx.sidecar.as_ref().map(|sidecar| sidecar.versioned_hashes.clone());
                let unnamed = self.references.unnamed(hashes.unwrap_or_default());
                self.shared.forget(&unnamed);
                Err(error)
            }
        }
    }

    fn account(&self, sender: Address) -> Result<SenderAccount, Error> {
        Ok(self.shared.chain.account(self.head.id.hash, sender)?)
    }

    fn added(&mut self, added: Added) {
        let Added { replaced, evicted, promoted } = added;
        let gone: Vec<_> = replaced.into_iter().chain(evicted).collect();
        self.left(&gone);
        self.promoted.extend(promoted);
    }

    /// Lets blobs go that no transaction names after these have left for good.
    fn left(&mut self, gone: &[Arc<Pooled>]) {
        for tx in gone {
            let blobs = self.references.release(tx);
            self.shared.forget(&blobs);
        }
    }

    /// Remembers a transaction of a user, and writes it to the journal if it is not from there.
    /// Returns whether there was room for it.
    fn protect(&mut self, place: Place, network: Bytes, is_new: bool) -> bool {
        if self.locals.has(&place) {
            return true;
        }
        if !self.locals.add(place, network.clone()) {
            counter!(metrics::UNPROTECTED).increment(1);
            return false;
        }
        if let Some(journal) = self.journal.as_mut().filter(|_| is_new)
            && let Err(error) = journal.append(&network)
        {
            counter!(metrics::JOURNAL_ERRORS).increment(1);
            warn!(%error, "transaction not written to the journal");
        }
        true
    }

    fn keep_journal_short(&mut self) {
        // Transactions that are not added again yet are in no other place.
        if self.is_adding_again || !self.again.is_empty() || !self.later.is_empty() {
            return;
        }
        let Some(journal) = self.journal.as_mut() else { return };
        if journal.is_wasteful(self.locals.bytes())
            && let Err(error) = journal.rewrite(self.locals.all())
        {
            counter!(metrics::JOURNAL_ERRORS).increment(1);
            warn!(%error, "journal of transactions not written anew");
        }
    }

    /// Follows the chain's head, if it moved.
    fn follow(&mut self) {
        let begin = Instant::now();
        let head = match self.shared.chain.head() {
            Ok(head) => head,
            Err(error) => return debug!(%error, "head not known, the pool stays on the last one"),
        };
        if head.id == self.head.id && head.finalized == self.head.finalized {
            return;
        }
        let from = std::mem::replace(&mut self.head, head);
        if from.id != self.head.id {
            self.walk(&from);
            histogram!(metrics::HEAD_SECONDS).record(begin.elapsed());
        }
        let left = self.references.follow(self.head.id, self.head.finalized);
        self.shared.forget(&left);
    }

    /// Goes from one head to the next: what is in blocks leaves, what is in none any more returns.
    fn walk(&mut self, from: &Head) {
        let way = match self.recent.way(&*self.shared.chain, from.id, self.head.id) {
            Ok(way) => way,
            Err(error) => {
                debug!(%error, "blocks between heads not known");
                return self.stand_on_head();
            }
        };
        let mut included = HashSet::new();
        for block in &way.added {
            included.extend(block.hashes.iter().copied());
            for hash in &block.contents.transactions {
                if let Some(tx) = self.shared.pool.lock().get(hash) {
                    self.references.set_aside(block.id.number, tx.clone());
                }
            }
            self.references.included.note(block.id, block.parent, block.contents.clone());
        }
        self.stand_on_head();
        for block in way.removed.iter().rev() {
            self.return_transactions(block, &included);
        }
    }

    fn return_transactions(&mut self, block: &Passed, included: &HashSet<B256>) {
        for (hash, raw) in block.hashes.iter().zip(&block.raw) {
            if included.contains(hash) {
                continue;
            }
            if let Some(tx) = self.references.take_back(hash) {
                let account = self.account(tx.sender).unwrap_or_default();
                let now = self.shared.now();
                let added = self.shared.pool.lock().add(now, tx.clone(), account);
                match added {
                    Ok(added) => self.added(added),
                    Err(_) => self.left(&[tx]),
                }
            } else if raw.first() != Some(&BLOB_TYPE) && self.again.len() < AGAIN_MAX {
                self.again.push_back((raw.clone(), Again::Reorg));
            }
        }
    }

    /// Brings the pool to the state and the prices of the head.
    fn stand_on_head(&mut self) {
        let (chain, header) = (self.shared.chain.clone(), self.head.header.clone());
        let senders: HashSet<_> =
            self.shared.pool.lock().senders().into_iter().chain(self.locals.senders()).collect();
        let senders: Vec<_> = senders.into_iter().collect();
        let read = chain.accounts(self.head.id.hash, &senders);
        let read = read.inspect_err(|error| debug!(%error, "accounts of senders not read"));
        let accounts: HashMap<_, _> = senders.into_iter().zip(read.unwrap_or_default()).collect();
        let market = Market::of(chain.spec(), &header);
        let reset = self.shared.pool.lock().reset(market, header.gas_limit, &accounts);
        self.shared.set_head(self.head.clone());
        let gone = reset.dropped.into_iter().filter(|tx| !self.references.is_set_aside(&tx.hash));
        let gone: Vec<_> = gone.collect();
        self.left(&gone);
        for sender in self.locals.senders() {
            if let Some(account) = accounts.get(&sender) {
                self.locals.advance(sender, account.nonce);
            }
        }
        self.promoted.extend(reset.promoted);
    }
}
