//! The task that talks with peers.

use super::{
    News,
    fetch::{Fault, Fetcher},
    link::Link,
};
use crate::{
    actor::Message,
    blobs::{blobs_of, has_own_commitments},
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
use tandem_admission::{TRANSACTION_BYTES_MAX, WithoutBlobs, pooled_hash};
use tandem_bus::Subscription;
use tandem_primitives::{B256, Bytes};
use tandem_proto::{
    blob_validator::CellSet,
    peer_sessions::{Announcement, Error, Found, Misconduct, Part, PeerId, Wanted},
};
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

/// Answer of a peer.
enum Answer {
    /// To a request for transactions.
    Transactions(Result<Found, Error>),
    /// To a request for the blobs of this transaction.
    Cells(B256, Bytes, Result<Found, Error>),
}

/// State of the task.
pub(crate) struct Peers {
    shared: Arc<Shared>,
    intake: Intake,
    actor: Mailbox<Message>,
    links: HashMap<PeerId, Link>,
    changes: u64,
    fetcher: Fetcher,
    answers: JoinSet<(PeerId, Answer)>,
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
                    match answer {
                        Ok((peer, Answer::Transactions(found))) => self.take_answer(peer, found),
                        Ok((peer, Answer::Cells(hash, raw, found))) => {
                            self.take_cells(peer, hash, &raw, found);
                        }
                        Err(_) => {}
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
            let Announcement { kind, bytes, hash, .. } = announcement;
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
            let answer = link.peer.request(Wanted { hashes, part: Part::WithBlobs });
            self.answers.spawn(async move { (id, Answer::Transactions(answer.await)) });
        }
    }

    fn take_answer(&mut self, id: PeerId, answer: Result<Found, Error>) {
        let transactions = match answer {
            Ok(found) => found.into_transactions(),
            Err(error) => {
                debug!(%error, "transactions not fetched");
                Vec::new()
            }
        };
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
        let all = delivered.unwrap_or_default().into_iter().map(|(hash, _, _)| hash);
        let is_wrong =
            |raw: &Bytes| WithoutBlobs::of(raw).is_some_and(|it| !has_own_commitments(&it));
        if transactions.iter().any(is_wrong) {
            debug!(peer = %id, "commitments of a peer refused");
            link.peer.report(Misconduct::Invalid);
            let judged: Vec<_> = all.map(|hash| (hash, Judgment::Invalid)).collect();
            return self.judged(id, &judged);
        }
        let (mut hashes, mut whole) = (Vec::new(), Vec::new());
        for (hash, raw) in all.zip(transactions) {
            if WithoutBlobs::of(&raw).is_none() {
                hashes.push(hash);
                whole.push(raw);
                continue;
            }
            self.fetcher.begin_cells(&id);
            let part = Part::Cells(CellSet::BLOB);
            let answer = link.peer.request(Wanted { hashes: vec![hash], part });
            self.answers.spawn(async move { (id, Answer::Cells(hash, raw, answer.await)) });
        }
        self.submit(id, &hashes, whole);
    }

    /// Takes the blobs of a transaction that a peer delivered without them.
    fn take_cells(&mut self, id: PeerId, hash: B256, raw: &[u8], found: Result<Found, Error>) {
        self.fetcher.end_cells(&id);
        let Some(without) = WithoutBlobs::of(raw) else { return };
        let cells = match found {
            Ok(found) => found.into_cells(),
            Err(error) => {
                debug!(%error, "blobs not fetched");
                Vec::new()
            }
        };
        let Some(found) = cells.first() else {
            return self.judged(id, &[(hash, Judgment::Undecided)]);
        };
        let is_asked = cells.len() == 1 && found.hash == hash;
        match blobs_of(&found.cells, without.blobs()).filter(|_| is_asked) {
            Some(blobs) => self.submit(id, &[hash], vec![without.with(&blobs)]),
            None => {
                debug!(peer = %id, "cells of a peer refused");
                self.judged(id, &[(hash, Judgment::Invalid)]);
                if let Some(link) = self.links.get(&id) {
                    link.peer.report(Misconduct::Invalid);
                }
            }
        }
    }

    /// Has transactions judged that a peer delivered.
    fn submit(&mut self, id: PeerId, hashes: &[B256], transactions: Vec<Bytes>) {
        let Some(link) = self.links.get(&id) else { return };
        let batch = Batch { peer: link.peer.clone(), transactions };
        if !batch.transactions.is_empty()
            && let Err(error) = self.intake.submit_batch(batch)
        {
            debug!(%error, "fetched transactions dropped");
            let undecided: Vec<_> =
                hashes.iter().map(|hash| (*hash, Judgment::Undecided)).collect();
            return self.judged(id, &undecided);
        }
        self.ask();
    }
}
