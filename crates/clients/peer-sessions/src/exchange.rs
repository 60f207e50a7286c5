//! Exchange of transactions with the peers of a peer-sessions in another process.
//!
//! One stream carries all of it. When it is lost, the pool is told that all sessions have ended, and
//! the next stream begins with those that are there.

use crate::client::{Calls, Shared, calls};
use std::{
    collections::{HashMap, HashSet},
    future::ready,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tandem_actor::{Queued, SendError, TaskSender, WeakTaskSender, task_queue};
use tandem_proto::{
    exchange::{PoolMessage, SessionsMessage},
    limits::{SESSIONS_MAX, WANTED_TRANSACTIONS_MAX},
    peer_sessions::{
        Error, Found, Gossip, Misconduct, PeerId, Pending, Result, TransactionExchange,
        TransactionPeer, Wanted,
    },
    wire::peer_sessions::v1,
};
use tokio::{
    runtime::Handle,
    sync::{Semaphore, oneshot},
    task::spawn_blocking,
    time::sleep,
};
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Status, Streaming};
use tracing::{debug, info};

/// Messages that wait for the connection. Most have at most 100 KiB.
const QUEUE_MAX: usize = 256;

/// Places of the queue that news leave to questions and reports.
const RESERVED: usize = 32;

/// Bytes after about which an answer ends. One more transaction fits into the message.
const POOLED_BYTES_MAX: usize = 2 << 20;

/// Questions of peers that are answered at once.
const ANSWERS_MAX: usize = 4;

/// Questions of peers that wait for that; further ones get an empty answer.
const WANTED_MAX: usize = 64;

/// Time until the next stream.
const AGAIN: Duration = Duration::from_secs(1);

/// Exchange with a pool, which ends when this is dropped.
pub struct Exchange {
    _task: AbortOnDropHandle<()>,
}

impl Exchange {
    /// Begins the exchange between a pool and the peers of a connection, which may be lost and made
    /// again meanwhile.
    pub(crate) fn start(
        shared: Arc<Shared>,
        pool: Arc<dyn TransactionExchange>,
        runtime: &Handle,
    ) -> Self {
        let task = runtime.spawn(async move {
            loop {
                let channel = shared.connection.newer_than(0).await.client;
                exchange(calls(channel), &pool).await;
                sleep(AGAIN).await;
            }
        });
        Self { _task: AbortOnDropHandle::new(task) }
    }
}

/// Exchanges transactions over one stream, until it is lost.
async fn exchange(mut calls: Calls, pool: &Arc<dyn TransactionExchange>) {
    let (queue, waiting) = task_queue("tx-pool-sessions", QUEUE_MAX);
    let messages = ReceiverStream::new(waiting);
    let messages = messages
        .map(|message: Queued<PoolMessage>| v1::ExchangeTransactionsRequest::from(message.take()));
    let lost = match calls.exchange_transactions(messages).await {
        Ok(answer) => {
            info!("transactions are exchanged with peers");
            Peers::new(pool.clone(), queue).read(answer.into_inner()).await
        }
        Err(status) => status,
    };
    debug!(%lost, "transactions are not exchanged with peers");
}

/// Questions that wait for their answers, by number.
type Asked = HashMap<u64, oneshot::Sender<Result<Found>>>;

/// Sending end of a stream.
struct Link {
    /// The stream ends with the other sender.
    queue: WeakTaskSender<PoolMessage>,
    asked: Mutex<Asked>,
    next: AtomicU64,
}

impl Link {
    fn asked(&self) -> MutexGuard<'_, Asked> {
        // A thread that panicked ends the process.
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a message if that leaves so many free places. Never blocks.
    fn send(&self, message: PoolMessage, places: usize) -> Result<()> {
        let queue = self.queue.upgrade().ok_or(Error::Gone)?;
        queue.try_send_leaving(places, message).map_err(|error| match error {
            SendError::Full => Error::Busy,
            SendError::Closed => Error::Gone,
        })
    }
}

/// Session of peer-sessions, as the pool sees it.
struct RemotePeer {
    id: PeerId,
    link: Arc<Link>,
}

impl TransactionPeer for RemotePeer {
    fn id(&self) -> PeerId {
        self.id
    }

    fn send(&self, gossip: Gossip) -> Result<()> {
        self.link.send(PoolMessage::Tell { peer: self.id, gossip }, RESERVED)
    }

    fn request(&self, wanted: Wanted) -> Pending<Found> {
        let items = wanted.hashes.len();
        if !(1..=WANTED_TRANSACTIONS_MAX).contains(&items) {
            let reason = format!("{items} items; expected 1 to {WANTED_TRANSACTIONS_MAX}");
            return Box::pin(ready(Err(Error::Refused(reason))));
        }
        let id = self.link.next.fetch_add(1, Relaxed);
        let (reply, answer) = oneshot::channel();
        self.link.asked().insert(id, reply);
        let sent = self.link.send(PoolMessage::Ask { id, peer: self.id, wanted }, 0);
        if sent.is_err() {
            self.link.asked().remove(&id);
        }
        Box::pin(async move {
            sent?;
            answer.await.unwrap_or(Err(Error::Gone))
        })
    }

    fn report(&self, misconduct: Misconduct) {
        if let Err(error) = self.link.send(PoolMessage::Report { peer: self.id, misconduct }, 0) {
            debug!(%error, peer = %self.id, "misconduct of a peer not reported");
        }
    }
}

/// Receiving end of a stream. When it is dropped, all sessions have ended for the pool.
struct Peers {
    pool: Arc<dyn TransactionExchange>,
    /// Keeps the stream to peer-sessions open.
    queue: Option<TaskSender<PoolMessage>>,
    link: Arc<Link>,
    joined: HashSet<PeerId>,
    /// Places for questions of peers that wait or are being answered.
    wanted: Arc<Semaphore>,
    answering: Arc<Semaphore>,
}

impl Drop for Peers {
    fn drop(&mut self) {
        // First, so that a session that has ended takes nothing more.
        self.queue = None;
        self.joined.iter().for_each(|peer| self.pool.left(peer));
        // Callers that wait hear that the session is gone.
        self.link.asked().clear();
    }
}

impl Peers {
    fn new(pool: Arc<dyn TransactionExchange>, queue: TaskSender<PoolMessage>) -> Self {
        let asked = Mutex::default();
        let link = Arc::new(Link { queue: queue.downgrade(), asked, next: AtomicU64::new(1) });
        let (wanted, answering) = (Semaphore::new(WANTED_MAX), Semaphore::new(ANSWERS_MAX));
        Self {
            pool,
            queue: Some(queue),
            link,
            joined: HashSet::new(),
            wanted: Arc::new(wanted),
            answering: Arc::new(answering),
        }
    }

    /// Takes messages until the stream ends. Returns the reason.
    async fn read(&mut self, mut messages: Streaming<v1::ExchangeTransactionsResponse>) -> Status {
        loop {
            let message = match messages.message().await {
                Ok(Some(message)) => SessionsMessage::try_from(message),
                Ok(None) => return Status::unavailable("the stream ended"),
                Err(status) => return status,
            };
            match message {
                Ok(message) => self.take(message),
                Err(error) => return error.into(),
            }
        }
    }

    fn take(&mut self, message: SessionsMessage) {
        match message {
            SessionsMessage::Joined(id) => {
                // A second session of a peer replaces the first.
                if self.joined.len() < SESSIONS_MAX || self.joined.contains(&id) {
                    self.joined.insert(id);
                    self.pool.joined(Arc::new(RemotePeer { id, link: self.link.clone() }));
                }
            }
            SessionsMessage::Left(id) => {
                if self.joined.remove(&id) {
                    self.pool.left(&id);
                }
            }
            SessionsMessage::Announced { peer, announcements } => {
                self.pool.announced(&peer, announcements);
            }
            SessionsMessage::Received { peer, transactions } => {
                self.pool.received(&peer, transactions);
            }
            SessionsMessage::Answer { id, result } => {
                if let Some(reply) = self.link.asked().remove(&id) {
                    // The asker may have gone.
                    let _ = reply.send(result);
                }
            }
            SessionsMessage::Wanted { id, wanted, bytes_max } => self.answer(id, wanted, bytes_max),
        }
    }

    /// Answers a question of a peer, beside the stream.
    fn answer(&self, id: u64, wanted: Wanted, bytes_max: u64) {
        let (pool, link, answering) =
            (self.pool.clone(), self.link.clone(), self.answering.clone());
        let place = self.wanted.clone().try_acquire_owned().ok();
        tokio::spawn(async move {
            let nothing = Found::Transactions(Vec::new());
            let found = match &place {
                Some(_) => {
                    let Ok(_turn) = answering.acquire().await else { return };
                    let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
                    let bytes_max = bytes_max.min(POOLED_BYTES_MAX);
                    let read = spawn_blocking(move || pool.pooled(&wanted, bytes_max));
                    read.await.unwrap_or(nothing)
                }
                None => nothing,
            };
            if let Some(queue) = link.queue.upgrade() {
                let _ = queue.send(PoolMessage::Pooled { id, found }).await;
            }
        });
    }
}
