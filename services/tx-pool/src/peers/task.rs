//! The task that talks with peers.

use super::{
    News,
    fetch::{Fault, Fetcher},
    link::Link,
};
use crate::{
    actor::Message,
    intake::{Batch, Intake, Judgment},
    metrics,
    pool::Pooled,
    service::Shared,
};
use ::metrics::counter;
use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};
use tandem_actor::{Mailbox, Queued, take_idle_priority};
use tandem_admission::{TRANSACTION_BYTES_MAX, pooled_hash};
use tandem_bus::Subscription;
use tandem_primitives::{B256, Bytes};
use tandem_proto::peer_sessions::{Announcement, Error, Misconduct, PeerId};
use tokio::{
    sync::mpsc::Receiver,
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;
use tracing::debug;

/// Time between looks for due requests, and between messages with news for one peer.
const TICK: Duration = Duration::from_millis(25);
/// Ticks between looks for announcements that led to nothing.
const EXPIRE_TICKS: u32 = 400;
/// Highest known type of a transaction.
const KIND_MAX: u8 = 4;
/// Type of blob transactions.
const BLOB_TYPE: u8 = 3;

type Answer = (PeerId, Result<Vec<Bytes>, Error>);

/// State of the task.
pub(crate) struct Peers {
    shared: Arc<Shared>,
    intake: Intake,
    actor: Mailbox<Message>,
    links: HashMap<PeerId, Link>,
    changes: u64,
    fetcher: Fetcher,
    answers: JoinSet<Answer>,
    /// Draws the peers of a sender, in a way that no sender can foretell.
    lots: RandomState,
}

impl Peers {
    pub fn new(shared: Arc<Shared>, intake: Intake, actor: Mailbox<Message>) -> Self {
        Self {
            shared,
            intake,
            actor,
            links: HashMap::new(),
            changes: 0,
            fetcher: Fetcher::new(),
            answers: JoinSet::new(),
            lots: RandomState::new(),
        }
    }

    /// Runs until the service stops. Hears of new heads for the actor as well.
    pub async fn run(
        mut self,
        mut news: Receiver<Queued<News>>,
        mut heads: Subscription,
        stopping: CancellationToken,
    ) {
        take_idle_priority();
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ticked = 0_u32;
        loop {
            tokio::select! {
                () = stopping.cancelled() => return,
                Some(head) = heads.next() => {
                    drop(head);
                    // A full mailbox is no loss: the actor looks for itself every second.
                    let _ = self.actor.try_send(Message::Head);
                }
                heard = news.recv() => match heard {
                    Some(news) => self.hear(news.take()),
                    None => return,
                },
                Some(answer) = self.answers.join_next(), if !self.answers.is_empty() => {
                    if let Ok((peer, answer)) = answer {
                        self.take_answer(peer, answer);
                    }
                }
                _ = ticks.tick() => {
                    ticked = ticked.wrapping_add(1);
                    if ticked.is_multiple_of(EXPIRE_TICKS) {
                        self.fetcher.expire(self.shared.now());
                    }
                    self.compare_sessions();
                    self.flush();
                    self.ask();
                }
            }
        }
    }

    fn hear(&mut self, news: News) {
        self.compare_sessions();
        match news {
            News::Pending(transactions) => self.offer(&transactions),
            News::Announced(peer, announcements) => self.announced(peer, announcements),
            News::Has(peer, hashes) => {
                if let Some(link) = self.links.get_mut(&peer) {
                    hashes.iter().for_each(|hash| link.knows(hash));
                }
            }
            News::Judged(peer, judged) => self.judged(peer, &judged),
            News::Sessions => {}
        }
    }

    fn compare_sessions(&mut self) {
        let sessions = {
            let registry = self.shared.registry.lock();
            if registry.changes == self.changes {
                return;
            }
            self.changes = registry.changes;
            registry.sessions.clone()
        };
        let now = self.shared.now();
        let is_there = |id: &PeerId, link: &Link| {
            sessions.get(id).is_some_and(|peer| Arc::ptr_eq(peer, &link.peer))
        };
        let gone: Vec<_> = self.links.extract_if(|id, link| !is_there(id, link)).collect();
        for (id, _) in gone {
            self.fetcher.leave(now, &id);
        }
        for (id, peer) in sessions {
            if self.links.contains_key(&id) {
                continue;
            }
            self.fetcher.join(id);
            let mut link = Link::new(peer);
            let pool = self.shared.pool.lock();
            let pending = pool.all().filter(|(pending, _)| *pending);
            pending.for_each(|(_, tx)| link.offer(tx, false));
            self.links.insert(id, link);
        }
    }

    /// Offers new transactions to all peers that are not known to have them. The peers that get a
    /// transaction in full depend on its sender, so that a sender's transactions stay in order.
    fn offer(&mut self, transactions: &[Arc<Pooled>]) {
        let directs = ((self.links.len() as f64).sqrt() as usize).max(1);
        for tx in transactions {
            let lot = |id: &PeerId| self.lots.hash_one((tx.sender, id));
            let mut lots: Vec<_> = self.links.keys().map(lot).collect();
            lots.sort_unstable();
            let last = lots.get(directs - 1).or(lots.last()).copied().unwrap_or_default();
            for (id, link) in &mut self.links {
                link.offer(tx, self.lots.hash_one((tx.sender, id)) <= last);
            }
        }
    }

    /// Sends what waits for peers.
    fn flush(&mut self) {
        self.links.values_mut().for_each(Link::flush);
    }

    fn announced(&mut self, peer: PeerId, announcements: Vec<Announcement>) {
        let Some(link) = self.links.get_mut(&peer) else { return };
        counter!(metrics::ANNOUNCED, "direction" => "in").increment(announcements.len() as u64);
        let is_syncing = self.shared.chain.is_syncing();
        let now = self.shared.now();
        for announcement in announcements {
            let Announcement { kind, bytes, hash } = announcement;
            link.knows(&hash);
            let bytes_max = match kind {
                BLOB_TYPE => self.shared.network_bytes_max,
                _ => TRANSACTION_BYTES_MAX as u64,
            };
            if is_syncing || kind > KIND_MAX || bytes > bytes_max {
                continue;
            }
            if self.shared.pool.lock().get(&hash).is_none() {
                self.fetcher.announced(now, peer, announcement);
            }
        }
        self.ask();
    }

    fn judged(&mut self, peer: PeerId, judged: &[(B256, Judgment)]) {
        let now = self.shared.now();
        for (hash, judgment) in judged {
            self.fetcher.judged(now, &peer, hash, *judgment);
        }
        self.ask();
    }

    /// Sends the requests that are due.
    fn ask(&mut self) {
        for (id, hashes) in self.fetcher.due(self.shared.now()) {
            let Some(link) = self.links.get(&id) else { continue };
            counter!(metrics::REQUESTED).increment(hashes.len() as u64);
            let answer = link.peer.request(hashes);
            self.answers.spawn(async move { (id, answer.await) });
        }
    }

    fn take_answer(&mut self, id: PeerId, answer: Result<Vec<Bytes>, Error>) {
        let transactions = answer.unwrap_or_else(|error| {
            debug!(%error, "transactions not fetched");
            Vec::new()
        });
        let Some(link) = self.links.get_mut(&id) else { return };
        let described = |raw: &Bytes| {
            let kind = raw.first().copied().filter(|kind| *kind <= KIND_MAX).unwrap_or(0);
            Some((pooled_hash(raw)?, kind, raw.len() as u64))
        };
        let delivered: Option<Vec<_>> = transactions.iter().map(described).collect();
        let fault = match &delivered {
            Some(delivered) => self.fetcher.answered(self.shared.now(), &id, delivered).err(),
            None => {
                let _ = self.fetcher.answered(self.shared.now(), &id, &[]);
                Some(Fault::Unasked)
            }
        };
        if let Some(fault) = fault {
            debug!(?fault, peer = %id, "answer of a peer refused");
            return link.peer.report(Misconduct::Invalid);
        }
        let delivered = delivered.unwrap_or_default();
        let batch = Batch { peer: link.peer.clone(), transactions };
        if !batch.transactions.is_empty()
            && let Err(error) = self.intake.submit_batch(batch)
        {
            debug!(%error, "fetched transactions dropped");
            let undecided: Vec<_> =
                delivered.iter().map(|(hash, _, _)| (*hash, Judgment::Undecided)).collect();
            return self.judged(id, &undecided);
        }
        self.ask();
    }
}
