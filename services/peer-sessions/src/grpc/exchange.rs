//! Exchange of transactions with a pool in another process.
//!
//! ```text
//!  sessions ── joined, left, announced, received ─► RemotePool ── queue ──► stream of messages ──► pool
//!           ◄─ tell, ask, report ─────────────────────┘ ◄────────────────── messages ◄────────── pool
//!  answer threads ── pooled: Wanted, then a wait ─────┘
//! ```
//!
//! **Overload.** The queue to the pool is bounded in number and bytes. Announcements and transactions
//! beyond that are dropped and counted. Beginnings and ends of sessions are never dropped: if there is
//! no room for one, the stream ends, and the next begins with the sessions that are there.
//!
//! **Loss.** Without a pool, peers are heard and answered with nothing.

use crate::metrics;
use ::metrics::counter;
use std::{
    collections::HashMap,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc::{SyncSender, sync_channel},
    },
    task::{Context, Poll},
    time::Duration,
};
use tandem_actor::{Queued, TaskSender, WeakTaskSender, task_queue};
use tandem_primitives::Bytes;
use tandem_proto::{
    exchange::{PoolMessage, SessionsMessage},
    limits::{SESSIONS_MAX, WANTED_TRANSACTIONS_MAX},
    peer_sessions::{
        Announcement, Error, Found, PeerId, TransactionExchange, TransactionPeer, Wanted,
    },
    wire::peer_sessions::v1,
};
use tokio::{sync::mpsc::Receiver, task::AbortHandle};
use tokio_stream::Stream;
use tonic::{Status, Streaming};
use tracing::{debug, info};

/// Messages that wait for the pool: the sessions that are there, and as many again.
const QUEUE_MAX: usize = 2 * SESSIONS_MAX;

/// Bytes of announcements and transactions that wait for the pool. Those of one message always have
/// room.
const QUEUE_BYTES_MAX: usize = 32 << 20;

/// Longest wait for transactions that a peer asks for.
const POOLED_WAIT_MAX: Duration = Duration::from_secs(2);

/// Questions of the pool to peers under way.
const ASKED_MAX: usize = 1024;

/// Pool of transactions in another process, as the sessions see it.
#[derive(Default)]
pub struct RemotePool {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    peers: HashMap<PeerId, Arc<dyn TransactionPeer>>,
    /// Pool that exchanges now.
    attached: Option<Attached>,
    /// Number of pools so far.
    pools: u64,
}

/// Stream to a pool.
struct Attached {
    number: u64,
    queue: TaskSender<Waiting>,
    bytes: Arc<AtomicUsize>,
    /// Questions of peers that wait for the pool's answer.
    wanted: HashMap<u64, SyncSender<Found>>,
    questions: u64,
}

/// Message that waits for the pool, with its place.
struct Waiting {
    message: SessionsMessage,
    _place: Place,
}

/// Bytes of the queue, given back on drop.
struct Place {
    bytes: usize,
    held: Arc<AtomicUsize>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes, Relaxed);
    }
}

impl Attached {
    /// Queues a message of so many bytes, if there is room. Never blocks.
    fn offer(&self, message: SessionsMessage, bytes: usize) -> bool {
        let before = self.bytes.fetch_add(bytes, Relaxed);
        let place = Place { bytes, held: self.bytes.clone() };
        if bytes > 0 && before > 0 && before + bytes > QUEUE_BYTES_MAX {
            return false;
        }
        self.queue.try_send(Waiting { message, _place: place }).is_ok()
    }
}

impl RemotePool {
    fn state(&self) -> MutexGuard<'_, State> {
        // A thread that panicked ends the process.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes on what must not be lost.
    fn tell(state: &mut State, message: SessionsMessage) {
        if state.attached.as_ref().is_some_and(|pool| !pool.offer(message, 0)) {
            debug!("the pool does not keep up with the sessions, and begins anew");
            state.attached = None;
        }
    }

    /// Passes on news of a peer, or drops them.
    fn pass(&self, message: SessionsMessage, bytes: usize) {
        let state = self.state();
        if state.attached.as_ref().is_some_and(|pool| !pool.offer(message, bytes)) {
            counter!(metrics::DROPPED_TRANSACTIONS, "direction" => "in").increment(1);
        }
    }

    /// Begins the exchange with a pool, which replaces the one before. The messages begin with the
    /// sessions that are there, and end when the exchange does.
    pub(super) fn attach(
        self: &Arc<Self>,
        from: Streaming<v1::ExchangeTransactionsRequest>,
    ) -> ToPool {
        let (queue, waiting) = task_queue("peer-sessions-pool", QUEUE_MAX);
        let answers = queue.downgrade();
        let mut state = self.state();
        state.pools += 1;
        let number = state.pools;
        let attached =
            Attached { number, queue, bytes: Arc::default(), wanted: HashMap::new(), questions: 0 };
        for peer in state.peers.keys() {
            attached.offer(SessionsMessage::Joined(*peer), 0);
        }
        state.attached = Some(attached);
        drop(state);
        info!("a pool exchanges transactions with peers");
        let reading = tokio::spawn(self.clone().read(number, from, answers));
        ToPool { waiting, reading: reading.abort_handle(), pool: self.clone(), number }
    }

    fn detach(&self, number: u64) {
        let mut state = self.state();
        drop(state.attached.take_if(|attached| attached.number == number));
    }

    /// Takes the messages of a pool until its stream ends.
    async fn read(
        self: Arc<Self>,
        number: u64,
        mut from: Streaming<v1::ExchangeTransactionsRequest>,
        answers: WeakTaskSender<Waiting>,
    ) {
        let asked = Arc::<AtomicUsize>::default();
        loop {
            let message = match from.message().await {
                Ok(Some(message)) => PoolMessage::try_from(message),
                Ok(None) => break,
                Err(error) => {
                    debug!(%error, "the pool is lost");
                    break;
                }
            };
            if let Err(error) = message.map(|it| self.take(number, it, &answers, &asked)) {
                debug!(%error, "a message of the pool is malformed");
                break;
            }
        }
        self.detach(number);
    }

    fn take(
        &self,
        number: u64,
        message: PoolMessage,
        answers: &WeakTaskSender<Waiting>,
        asked: &Arc<AtomicUsize>,
    ) {
        let peer = |id: &PeerId| self.state().peers.get(id).cloned();
        match message {
            PoolMessage::Tell { peer: id, gossip } => {
                let sent = peer(&id).map(|peer| peer.send(gossip));
                if sent.is_some_and(|sent| sent.is_err()) {
                    counter!(metrics::DROPPED_TRANSACTIONS, "direction" => "out").increment(1);
                }
            }
            PoolMessage::Report { peer: id, misconduct } => {
                if let Some(peer) = peer(&id) {
                    peer.report(misconduct);
                }
            }
            PoolMessage::Ask { id, peer: of, wanted } => self.ask(id, &of, wanted, answers, asked),
            PoolMessage::Pooled { id, found } => {
                let mut state = self.state();
                let attached = state.attached.as_mut().filter(|it| it.number == number);
                if let Some(waits) = attached.and_then(|pool| pool.wanted.remove(&id)) {
                    // The thread may have given up.
                    let _ = waits.try_send(found);
                }
            }
        }
    }

    /// Asks a peer, and passes its answer on.
    fn ask(
        &self,
        id: u64,
        peer: &PeerId,
        wanted: Wanted,
        answers: &WeakTaskSender<Waiting>,
        asked: &Arc<AtomicUsize>,
    ) {
        let peer = self.state().peers.get(peer).cloned();
        let held = asked.clone();
        // Each has a place from the question to the end of its answer.
        let place = Place { bytes: 1, held };
        let busy = asked.fetch_add(1, Relaxed) >= ASKED_MAX;
        let answers = answers.clone();
        tokio::spawn(async move {
            let result = match peer {
                Some(peer) if !busy => peer.request(wanted).await,
                Some(_) => Err(Error::Busy),
                None => Err(Error::Gone),
            };
            let message = SessionsMessage::Answer { id, result };
            // An answer waits for room, unless the exchange has ended.
            if let Some(queue) = answers.upgrade() {
                let _ = queue.send(Waiting { message, _place: place }).await;
            }
        });
    }
}

impl TransactionExchange for RemotePool {
    fn joined(&self, peer: Arc<dyn TransactionPeer>) {
        let (mut state, id) = (self.state(), peer.id());
        state.peers.insert(id, peer);
        Self::tell(&mut state, SessionsMessage::Joined(id));
    }

    fn left(&self, peer: &PeerId) {
        let mut state = self.state();
        if state.peers.remove(peer).is_some() {
            Self::tell(&mut state, SessionsMessage::Left(*peer));
        }
    }

    fn announced(&self, peer: &PeerId, announcements: Vec<Announcement>) {
        let bytes = size_of_val(&announcements[..]);
        self.pass(SessionsMessage::Announced { peer: *peer, announcements }, bytes);
    }

    fn received(&self, peer: &PeerId, transactions: Vec<Bytes>) {
        let bytes = transactions.iter().map(|raw| raw.len() + size_of::<Bytes>()).sum();
        self.pass(SessionsMessage::Received { peer: *peer, transactions }, bytes);
    }

    fn pooled(&self, wanted: &Wanted, bytes_max: usize) -> Found {
        let nothing = Found::Transactions(Vec::new());
        let mut wanted = wanted.clone();
        wanted.hashes.truncate(WANTED_TRANSACTIONS_MAX);
        if wanted.hashes.is_empty() {
            return nothing;
        }
        let (sender, answer) = sync_channel(1);
        let (number, id) = {
            let mut state = self.state();
            let Some(pool) = state.attached.as_mut() else { return nothing };
            pool.questions += 1;
            let id = pool.questions;
            let bytes_max = bytes_max as u64;
            if !pool.offer(SessionsMessage::Wanted { id, wanted, bytes_max }, 0) {
                return nothing;
            }
            pool.wanted.insert(id, sender);
            (pool.number, id)
        };
        let found = answer.recv_timeout(POOLED_WAIT_MAX).unwrap_or(nothing);
        let mut state = self.state();
        if let Some(pool) = state.attached.as_mut().filter(|pool| pool.number == number) {
            pool.wanted.remove(&id);
        }
        found
    }
}

/// Messages to a pool. The exchange ends with them, unless another pool has replaced this one.
pub(super) struct ToPool {
    waiting: Receiver<Queued<Waiting>>,
    reading: AbortHandle,
    pool: Arc<RemotePool>,
    number: u64,
}

impl Drop for ToPool {
    fn drop(&mut self) {
        self.reading.abort();
        self.pool.detach(self.number);
    }
}

impl Stream for ToPool {
    type Item = Result<v1::ExchangeTransactionsResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = self.waiting.poll_recv(cx);
        next.map(|waiting| waiting.map(|it| Ok(it.take().message.into())))
    }
}
