//! One established session: a task that reads, one that writes, and one that decides.

use crate::{
    admission::Bucket,
    answer::answer,
    chain::{BlockSource, ChainStatus},
    config::Config,
    error::SessionError,
    link::{EMPTY, FAREWELL, Greeting, Link, Reader, Snap, UNASKED_BYTES_MAX, Writer},
    metrics,
    request::{check, fits},
    snap as state,
    transactions::{News, Transactions, tell},
};
use ::metrics::histogram;
use std::{
    collections::HashMap,
    net::SocketAddr,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tandem_actor::{Queued, TaskSender, task_queue};
use tandem_discv4::PublicKey;
use tandem_eth_wire::{
    MESSAGE_BYTES_MAX,
    eth::{self, BlockRange, BlockStart, HeadersRequest, Message, Version},
    snap,
};
use tandem_primitives::Bytes;
use tandem_proto::{
    peer_sessions::{Direction, Error, Fetch, Fetched, TransactionExchange},
    storage::BlockRef,
};
use tandem_rlpx::{
    self as rlpx, DISCONNECT, DisconnectReason, PING, PONG, Shared, decode_disconnect,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::{JoinSet, spawn_blocking},
    time::{Instant, interval, interval_at, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

/// Bytes that count as one more message for a peer's rate.
const BYTES_PER_TOKEN: f64 = (16 << 10) as f64;

/// State of a peer that does not change during its session.
#[derive(Clone, Debug)]
pub struct PeerInfo {
    /// Public key.
    pub id: PublicKey,
    /// Name and version of its client.
    pub client: String,
    /// Address of the connection.
    pub address: SocketAddr,
    /// Side that opened the session.
    pub direction: Direction,
    /// Version of eth.
    pub version: Version,
    /// Version of snap, if the peer has it.
    pub snap: Option<snap::Version>,
}

/// Established session. Cheap to clone.
#[derive(Clone)]
pub struct Peer {
    info: Arc<PeerInfo>,
    range: watch::Receiver<BlockRange>,
    requests: TaskSender<(Fetch, Reply)>,
    news: TaskSender<News>,
    dismissal: mpsc::Sender<DisconnectReason>,
}

impl Peer {
    /// Returns what is known of the peer.
    pub fn info(&self) -> &PeerInfo {
        &self.info
    }

    /// Returns the blocks that the peer has, as it last said.
    pub fn range(&self) -> BlockRange {
        *self.range.borrow()
    }

    /// Asks the peer. A peer that does not answer in time loses its session.
    ///
    /// # Errors
    /// [`Error`], except [`Error::Unavailable`].
    pub async fn fetch(&self, fetch: Fetch) -> Result<Fetched, Error> {
        check(&fetch, &self.info)?;
        let (reply, answer) = oneshot::channel();
        let sent = self.requests.try_send((fetch, reply));
        sent.map_err(|error| match error {
            tandem_actor::SendError::Full => Error::Busy,
            tandem_actor::SendError::Closed => Error::Gone,
        })?;
        answer.await.unwrap_or(Err(Error::Gone))
    }

    /// Tells the session news of the pool, if it keeps up.
    ///
    /// # Errors
    /// [`Error::Busy`], [`Error::Gone`].
    pub(crate) fn tell(&self, news: News) -> Result<(), Error> {
        tell(&self.news, news)
    }

    /// Ends the session, and tells the peer this reason.
    pub(crate) fn dismiss(&self, reason: DisconnectReason) {
        // A session that ends already needs no second reason.
        let _ = self.dismissal.try_send(reason);
    }
}

/// Surroundings that a session works in.
pub(crate) struct Surroundings {
    pub(crate) config: Config,
    pub(crate) source: Arc<dyn BlockSource>,
    pub(crate) transactions: Option<Arc<dyn TransactionExchange>>,
    pub(crate) chain: watch::Receiver<ChainStatus>,
    pub(crate) stopping: CancellationToken,
}

/// Makes a session of a connection. Returns what others use it with, and its work.
pub(crate) fn session(
    link: Link,
    greeting: Greeting,
    info: PeerInfo,
    around: Surroundings,
) -> (Peer, impl Future<Output = SessionError>) {
    let (requests, asked) = task_queue("peer-session-requests", around.config.requests_max);
    let (news, told) = task_queue("peer-session-news", around.config.outgoing_capacity);
    let (range_sender, range) = watch::channel(greeting.status.range);
    let (dismissal, dismissed) = mpsc::channel(1);
    let transactions = Transactions::new(around.transactions.clone(), info.id, greeting.version);
    let peer = Peer { info: Arc::new(info), range, requests, news, dismissal };
    let inbox = Inbox { asked, told, dismissed };
    let work = run(link, greeting, range_sender, inbox, (around, transactions));
    (peer, work)
}

/// Way of an answer to its asker.
type Reply = oneshot::Sender<Result<Fetched, Error>>;

/// Messages from this process to a session.
struct Inbox {
    asked: mpsc::Receiver<Queued<(Fetch, Reply)>>,
    told: mpsc::Receiver<Queued<News>>,
    dismissed: mpsc::Receiver<DisconnectReason>,
}

/// Message that waits to be sent.
struct Outgoing {
    id: u64,
    content: Vec<u8>,
    /// Dropped when the message has been sent.
    sent: Option<oneshot::Sender<()>>,
}

/// Request under way.
struct Pending {
    fetch: Fetch,
    reply: Reply,
    sent: Instant,
}

struct Session {
    version: Version,
    shared: Shared,
    snap: Option<Snap>,
    config: Config,
    source: Arc<dyn BlockSource>,
    range: watch::Sender<BlockRange>,
    outgoing: TaskSender<Outgoing>,
    pending: HashMap<u64, Pending>,
    transactions: Transactions,
    next_id: u64,
    /// Content of a message that is accepted now.
    message_bytes_max: Arc<AtomicUsize>,
    /// Answers that are being read, or wait to be sent.
    answers: JoinSet<Result<(), SessionError>>,
}

async fn run(
    link: Link,
    greeting: Greeting,
    range: watch::Sender<BlockRange>,
    inbox: Inbox,
    (around, transactions): (Surroundings, Transactions),
) -> SessionError {
    let Surroundings { config, source, mut chain, stopping, .. } = around;
    let Inbox { mut asked, mut told, mut dismissed } = inbox;
    let Link { reader, mut writer } = link;
    let message_bytes_max = Arc::new(AtomicUsize::new(UNASKED_BYTES_MAX));
    let (incoming_sender, mut incoming) = mpsc::channel(1);
    let (outgoing, mut queued) = task_queue("peer-session-outgoing", config.outgoing_capacity);
    let mut tasks = JoinSet::new();
    let (read, write) = (config.read(), config.write());
    tasks.spawn(read_all(reader, incoming_sender, message_bytes_max.clone(), read));
    let per_second = f64::from(config.messages_per_second_max);
    let bucket = Bucket::new(per_second, per_second * 4.0);
    let mut pace = Pace { bucket, begin: Instant::now(), next: Instant::now() };
    let (mut ping, mut range_tick) = (
        interval_at(Instant::now() + config.ping(), config.ping()),
        interval(Duration::from_secs(config.range_update_secs.max(1).into())),
    );
    let mut told_range = chain.borrow_and_update().range;
    let mut session = Session {
        version: greeting.version,
        shared: greeting.shared,
        snap: greeting.snap,
        config,
        source,
        range,
        outgoing,
        pending: HashMap::new(),
        transactions,
        next_id: 1,
        message_bytes_max,
        answers: JoinSet::new(),
    };
    // The writer runs beside the loop, so that a peer that does not read delays only itself.
    let writing = write_all(&mut writer, &mut queued, write);
    let deciding = async {
        loop {
            let (answers, overdue) = (session.answers.len(), session.overdue());
            let done = tokio::select! {
                () = stopping.cancelled() => Err(SessionError::Local(DisconnectReason::Quitting)),
                Some(reason) = dismissed.recv() => Err(SessionError::Local(reason)),
                message = pace.next(&mut incoming), if answers < session.config.answers_max => {
                    match message {
                        Some(Ok(message)) => {
                            if !session.is_answer(message.id) {
                                pace.count(message.content.len());
                            }
                            session.receive(message).await
                        }
                        Some(Err(error)) => Err(error),
                        None => Err(SessionError::Timeout("message")),
                    }
                }
                Some(answer) = session.answers.join_next(), if answers > 0 => {
                    answer.unwrap_or(Err(SessionError::Local(DisconnectReason::Subprotocol)))
                }
                request = asked.recv(), if session.pending.len() < session.config.requests_max => {
                    match request {
                        Some(request) => {
                            let (fetch, reply) = request.take();
                            session.ask(fetch, reply).await
                        }
                        None => Err(SessionError::Local(DisconnectReason::Requested)),
                    }
                }
                Some(news) = told.recv(), if session.transactions.has_room() => {
                    session.pass_on(news.take()).await
                }
                () = overdue => {
                    session.give_up();
                    Err(SessionError::Timeout("answer"))
                }
                _ = ping.tick() => session.send(PING, EMPTY.to_vec()).await,
                _ = range_tick.tick() => {
                    let now = chain.borrow_and_update().range;
                    if now == told_range { Ok(()) } else {
                        told_range = now;
                        session.tell(&Message::BlockRangeUpdate(now)).await
                    }
                }
            };
            if let Err(error) = done {
                return error;
            }
        }
    };
    let (error, flushed) = {
        let mut writing = pin!(writing);
        let decided = tokio::select! {
            error = deciding => Ok(error),
            error = &mut writing => Err(error),
        };
        match decided {
            Ok(error) => {
                // A frame that has begun is sent to its end; the queue closes with the session.
                drop(session);
                let flushed = timeout(write.min(FAREWELL), writing).await;
                (error, matches!(flushed, Ok(SessionError::Local(_))))
            }
            Err(error) => (error, true),
        }
    };
    if let Some(reason) = error.reason().filter(|_| flushed) {
        writer.farewell(reason).await;
        // The reader still takes what the peer sends, so that the reason reaches it.
        let _ = timeout(FAREWELL, async { while let Some(Ok(_)) = incoming.recv().await {} }).await;
    }
    error
}

/// Pace at which messages of a peer are taken. Answers do not count: they were asked for.
struct Pace {
    bucket: Bucket,
    begin: Instant,
    /// Time at which the next message may be taken.
    next: Instant,
}

impl Pace {
    /// Waits for the next message. Can be cancelled without losing it.
    async fn next<T>(&self, incoming: &mut mpsc::Receiver<T>) -> Option<T> {
        sleep_until(self.next).await;
        incoming.recv().await
    }

    /// Counts a message of this size.
    fn count(&mut self, bytes: usize) {
        let tokens = 1.0 + bytes as f64 / BYTES_PER_TOKEN;
        self.next = Instant::now() + self.bucket.take_after(self.begin.elapsed(), tokens);
    }
}

/// Reads messages until one cannot be read.
async fn read_all(
    mut reader: Reader,
    incoming: mpsc::Sender<Result<rlpx::Message, SessionError>>,
    message_bytes_max: Arc<AtomicUsize>,
    within: Duration,
) {
    loop {
        let message = timeout(within, reader.message(|| Some(message_bytes_max.load(Relaxed))));
        let message = message.await.unwrap_or(Err(SessionError::Timeout("message")));
        let ended = message.is_err();
        if incoming.send(message).await.is_err() || ended {
            return;
        }
    }
}

/// Sends messages until one cannot be sent.
async fn write_all(
    writer: &mut Writer,
    queued: &mut mpsc::Receiver<Queued<Outgoing>>,
    within: Duration,
) -> SessionError {
    while let Some(message) = queued.recv().await {
        let Outgoing { id, content, sent: _until_sent } = message.take();
        match timeout(within, writer.send(id, &content)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return error,
            // The peer does not read, so it cannot be told either.
            Err(elapsed) => return std::io::Error::from(elapsed).into(),
        }
    }
    SessionError::Local(DisconnectReason::Requested)
}

impl Session {
    async fn send(&self, id: u64, content: Vec<u8>) -> Result<(), SessionError> {
        let sent = self.outgoing.send(Outgoing { id, content, sent: None }).await;
        sent.map_err(|_| closed())
    }

    async fn tell(&self, message: &Message) -> Result<(), SessionError> {
        let id = self.shared.first_id + message.number();
        self.send(id, message.encode(self.version)).await
    }

    async fn ask(&mut self, fetch: Fetch, reply: Reply) -> Result<(), SessionError> {
        let id = self.next_id;
        self.next_id += 1;
        let message = match fetch.clone() {
            Fetch::Headers { start, limit, skip, reverse } => {
                let start = match start {
                    BlockRef::Hash(hash) => BlockStart::Hash(hash),
                    BlockRef::Number(number) => BlockStart::Number(number),
                };
                let request = HeadersRequest { start, limit: limit.into(), skip, reverse };
                Message::GetBlockHeaders { id, request }
            }
            Fetch::Bodies(hashes) => Message::GetBlockBodies { id, hashes },
            Fetch::Receipts { first, hashes } => Message::GetReceipts { id, first, hashes },
            Fetch::AccessLists(hashes) => Message::GetBlockAccessLists { id, hashes },
            Fetch::State(request) => {
                // Checked before: the peer has snap.
                let Some(Snap { shared, .. }) = self.snap else { return Ok(()) };
                let message = state::request(id, request);
                self.await_answer(id, fetch, reply);
                let number = shared.first_id + message.number();
                return self.send(number, message.encode()).await;
            }
        };
        self.await_answer(id, fetch, reply);
        self.tell(&message).await
    }

    /// Passes news of the pool on to the peer. Gossip is dropped while the peer does not read.
    async fn pass_on(&mut self, news: News) -> Result<(), SessionError> {
        let (message, is_request) = self.transactions.message(self.next_id, news);
        if is_request {
            self.next_id += 1;
            self.message_bytes_max.store(MESSAGE_BYTES_MAX, Relaxed);
            return self.tell(&message).await;
        }
        let (id, content) = (self.shared.first_id + message.number(), message.encode(self.version));
        let _ = self.outgoing.try_send(Outgoing { id, content, sent: None });
        Ok(())
    }

    fn await_answer(&mut self, id: u64, fetch: Fetch, reply: Reply) {
        self.pending.insert(id, Pending { fetch, reply, sent: Instant::now() });
        self.message_bytes_max.store(MESSAGE_BYTES_MAX, Relaxed);
    }

    /// Tells those who wait for an answer that it did not come in time.
    fn give_up(&mut self) {
        for (_, pending) in self.pending.drain() {
            // The asker may have gone.
            let _ = pending.reply.send(Err(Error::Timeout));
        }
        self.transactions.give_up();
    }

    /// Waits until the oldest request is overdue.
    fn overdue(&self) -> impl Future<Output = ()> + use<> {
        let sent = self.pending.values().map(|pending| pending.sent);
        let oldest = sent.chain(self.transactions.oldest()).min();
        let deadline = oldest.map(|sent| sent + self.config.request());
        async move {
            match deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        }
    }

    /// Returns whether messages with this id answer what was asked. One that was not asked for ends
    /// the session.
    fn is_answer(&self, id: u64) -> bool {
        let of_snap =
            || self.snap.and_then(|snap| snap.shared.number(id)).is_some_and(snap::is_answer);
        self.shared.number(id).map_or_else(of_snap, eth::is_answer)
    }

    async fn receive(&mut self, message: rlpx::Message) -> Result<(), SessionError> {
        match message.id {
            DISCONNECT => {
                return Err(SessionError::Remote(decode_disconnect(&message.content)?));
            }
            // The content has no meaning. Some clients send an empty string, others an empty list.
            PING => return self.send(PONG, EMPTY.to_vec()).await,
            PONG => return Ok(()),
            _ => {}
        }
        let Some(number) = self.shared.number(message.id) else {
            if let Some(snap) = self.snap
                && let Some(number) = snap.shared.number(message.id)
            {
                return self.receive_snap(snap, number, message.content.into());
            }
            return Err(SessionError::Unexpected("message id of no shared protocol"));
        };
        match Message::decode(self.version, number, &message.content.into())? {
            Message::Status(_) => Err(SessionError::Unexpected("second Status")),
            Message::BlockRangeUpdate(range) => {
                self.range.send_replace(range);
                Ok(())
            }
            Message::Transactions(transactions) => self.transactions.received(transactions),
            Message::Announcements { transactions, cells } => {
                self.transactions.announced(transactions, cells);
                Ok(())
            }
            Message::BlockHeaders { id, headers } => self.take(id, Fetched::Headers(headers)),
            Message::BlockBodies { id, bodies } => self.take(id, Fetched::Bodies(bodies)),
            Message::Receipts { id, incomplete, blocks } => {
                self.take(id, Fetched::Receipts { incomplete, blocks })
            }
            Message::BlockAccessLists { id, lists } => self.take(id, Fetched::AccessLists(lists)),
            Message::PooledTransactions { id, transactions } => {
                self.transactions.take(id, transactions)?;
                self.expect_less();
                Ok(())
            }
            Message::Cells { id, transactions, cells } => {
                self.transactions.take_cells(id, transactions, cells)?;
                self.expect_less();
                Ok(())
            }
            Message::GetPooledTransactions { id, hashes } => {
                self.answer_from_pool(self.transactions.answer(id, hashes));
                Ok(())
            }
            Message::GetCells { id, hashes, cells } => {
                self.answer_from_pool(self.transactions.answer_cells(id, hashes, cells));
                Ok(())
            }
            request => {
                let (first_id, version) = (self.shared.first_id, self.version);
                self.answer(move |source| {
                    let answer = answer(source, request, version >= Version::Eth70);
                    let answer = answer.ok_or_else(closed)?;
                    Ok((first_id + answer.number(), answer.encode(version)))
                });
                Ok(())
            }
        }
    }

    fn answer_from_pool(&mut self, read: impl FnOnce() -> Message + Send + 'static) {
        let (first_id, version) = (self.shared.first_id, self.version);
        self.answer(move |_| {
            let answer = read();
            Ok((first_id + answer.number(), answer.encode(version)))
        });
    }

    fn receive_snap(
        &mut self,
        snap: Snap,
        number: u64,
        content: Bytes,
    ) -> Result<(), SessionError> {
        let Snap { version, shared } = snap;
        let message = snap::Message::decode(version, number, &content)?;
        if message.is_answer() {
            let (id, answer) = state::fetched(message)?;
            return self.take(id, answer);
        }
        self.answer(move |source| {
            let answer = state::answer(source, message)?;
            Ok((shared.first_id + answer.number(), answer.encode()))
        });
        Ok(())
    }

    /// Refuses long messages again once no request is under way.
    fn expect_less(&self) {
        if self.pending.is_empty() && self.transactions.is_idle() {
            self.message_bytes_max.store(UNASKED_BYTES_MAX, Relaxed);
        }
    }

    /// Hands an answer to its asker.
    fn take(&mut self, id: u64, answer: Fetched) -> Result<(), SessionError> {
        let Some(pending) = self.pending.remove(&id) else {
            return Err(SessionError::Unexpected("answer that was not asked for"));
        };
        self.expect_less();
        if !fits(&pending.fetch, &answer) {
            return Err(SessionError::Unexpected("answer to another request"));
        }
        histogram!(metrics::REQUEST_SECONDS).record(pending.sent.elapsed());
        // The asker may have gone.
        let _ = pending.reply.send(Ok(answer));
        Ok(())
    }

    /// Reads what a peer asks for, on a thread that may block, and sends it. The answer counts as
    /// under way until it has been sent, so that a peer that does not read fills no queue with them.
    fn answer(
        &mut self,
        read: impl FnOnce(&dyn BlockSource) -> Result<(u64, Vec<u8>), SessionError> + Send + 'static,
    ) {
        let (source, outgoing) = (self.source.clone(), self.outgoing.clone());
        self.answers.spawn(async move {
            let read = spawn_blocking(move || {
                let begin = std::time::Instant::now();
                let answer = read(&*source);
                histogram!(metrics::ANSWER_SECONDS).record(begin.elapsed());
                answer
            });
            let Ok(answer) = read.await else {
                return Err(SessionError::Local(DisconnectReason::Subprotocol));
            };
            let (id, content) = answer?;
            let (sent, until_sent) = oneshot::channel();
            let message = Outgoing { id, content, sent: Some(sent) };
            outgoing.send(message).await.map_err(|_| closed())?;
            let _ = until_sent.await;
            Ok(())
        });
    }
}

/// Returns the error of a session whose writer has ended.
fn closed() -> SessionError {
    SessionError::Local(DisconnectReason::Requested)
}
