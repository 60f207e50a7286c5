//! One established session: a task that reads, one that writes, and one that decides.

use crate::{
    admission::{Bucket, Direction},
    answer::answer,
    chain::{BlockSource, ChainStatus},
    config::Config,
    error::SessionError,
    link::{EMPTY, FAREWELL, Greeting, Link, Reader, UNASKED_BYTES_MAX, Writer},
    metrics,
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
    eth::{BlockRange, HeadersRequest, Message, Version},
    limits::{ACCESS_LISTS_MAX, BODIES_MAX, HEADERS_MAX, RECEIPTS_MAX},
};
use tandem_primitives::{B256, Bytes};
use tandem_rlpx::{
    self as rlpx, DISCONNECT, DisconnectReason, PING, PONG, Shared, decode_disconnect,
    is_empty_list,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::{JoinSet, spawn_blocking},
    time::{Instant, interval, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// Bytes that count as one more message for a peer's rate.
const BYTES_PER_TOKEN: f64 = (16 << 10) as f64;

/// Request to a peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Headers of the canonical chain.
    Headers(HeadersRequest),
    /// Bodies of these blocks.
    Bodies(Vec<B256>),
    /// Receipts of these blocks, of the first one from an index on (not before eth/70).
    Receipts {
        /// Index of the first wanted receipt of the first block.
        first: u64,
        /// Blocks.
        hashes: Vec<B256>,
    },
    /// Access lists of these blocks (not before eth/71).
    AccessLists(Vec<B256>),
}

/// Answer of a peer. Its items are RLP, and not checked yet; there are not more than asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Headers.
    Headers(Vec<Bytes>),
    /// Bodies.
    Bodies(Vec<Bytes>),
    /// Lists of receipts.
    Receipts {
        /// Whether the last list is cut.
        incomplete: bool,
        /// A list for each block.
        blocks: Vec<Bytes>,
    },
    /// Access lists, `None` where the peer has none.
    AccessLists(Vec<Option<Bytes>>),
}

/// Reason why a request has no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RequestError {
    /// Too many requests to this peer wait.
    #[error("too many requests to this peer are waiting")]
    Overloaded,
    /// The session has ended.
    #[error("the session has ended")]
    Ended,
    /// The version of the session has no such request, or the request has too many items.
    #[error("the request is not possible on this session")]
    Impossible,
}

/// State of a peer, as far as others may want to know.
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
}

/// Established session. Cheap to clone.
#[derive(Clone)]
pub struct Peer {
    info: Arc<PeerInfo>,
    range: watch::Receiver<BlockRange>,
    requests: TaskSender<(Request, oneshot::Sender<Answer>)>,
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
    /// [`RequestError`].
    pub async fn request(&self, request: Request) -> Result<Answer, RequestError> {
        if !is_possible(&request, self.info.version) {
            return Err(RequestError::Impossible);
        }
        let (reply, answer) = oneshot::channel();
        let sent = self.requests.try_send((request, reply));
        sent.map_err(|error| match error {
            tandem_actor::SendError::Full => RequestError::Overloaded,
            tandem_actor::SendError::Closed => RequestError::Ended,
        })?;
        answer.await.map_err(|_| RequestError::Ended)
    }
}

fn is_possible(request: &Request, version: Version) -> bool {
    match request {
        Request::Headers(request) => request.limit <= HEADERS_MAX as u64,
        Request::Bodies(hashes) => hashes.len() <= BODIES_MAX,
        Request::Receipts { first, hashes } => {
            hashes.len() <= RECEIPTS_MAX && (*first == 0 || version >= Version::Eth70)
        }
        Request::AccessLists(hashes) => {
            hashes.len() <= ACCESS_LISTS_MAX && version >= Version::Eth71
        }
    }
}

/// Surroundings that a session works in.
pub(crate) struct Surroundings {
    pub(crate) config: Config,
    pub(crate) source: Arc<dyn BlockSource>,
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
    let (range_sender, range) = watch::channel(greeting.status.range);
    let peer = Peer { info: Arc::new(info), range, requests };
    let work = run(link, greeting, range_sender, asked, around);
    (peer, work)
}

type Asked = mpsc::Receiver<Queued<(Request, oneshot::Sender<Answer>)>>;

/// Message that waits to be sent.
struct Outgoing {
    id: u64,
    content: Vec<u8>,
    /// Dropped when the message has been sent.
    sent: Option<oneshot::Sender<()>>,
}

/// Request under way.
struct Pending {
    request: Request,
    reply: oneshot::Sender<Answer>,
    sent: Instant,
}

struct Session {
    version: Version,
    shared: Shared,
    config: Config,
    source: Arc<dyn BlockSource>,
    range: watch::Sender<BlockRange>,
    outgoing: TaskSender<Outgoing>,
    pending: HashMap<u64, Pending>,
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
    mut asked: Asked,
    around: Surroundings,
) -> SessionError {
    let Surroundings { config, source, mut chain, stopping } = around;
    let Link { reader, mut writer } = link;
    let message_bytes_max = Arc::new(AtomicUsize::new(UNASKED_BYTES_MAX));
    let (incoming_sender, mut incoming) = mpsc::channel(1);
    let (outgoing, mut queued) = task_queue("peer-session-outgoing", config.outgoing_capacity);
    let mut tasks = JoinSet::new();
    let (read, write) = (config.read(), config.write());
    let bucket = f64::from(config.messages_per_second_max);
    tasks.spawn(read_all(reader, incoming_sender, message_bytes_max.clone(), read, bucket));
    let (mut ping, mut range_tick) = (
        interval(config.ping()),
        interval(Duration::from_secs(config.range_update_secs.max(1).into())),
    );
    let mut told = chain.borrow_and_update().range;
    let mut session = Session {
        version: greeting.version,
        shared: greeting.shared,
        config,
        source,
        range,
        outgoing,
        pending: HashMap::new(),
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
                message = incoming.recv(), if answers < session.config.answers_max => {
                    match message {
                        Some(Ok(message)) => session.receive(message).await,
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
                            let (request, reply) = request.take();
                            session.ask(request, reply).await
                        }
                        None => Err(SessionError::Local(DisconnectReason::Requested)),
                    }
                }
                () = overdue => Err(SessionError::Timeout("answer")),
                _ = ping.tick() => session.send(PING, EMPTY.to_vec()).await,
                _ = range_tick.tick() => {
                    let now = chain.borrow_and_update().range;
                    if now == told { Ok(()) } else {
                        told = now;
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

/// Reads messages, not faster than a peer may send them.
async fn read_all(
    mut reader: Reader,
    incoming: mpsc::Sender<Result<rlpx::Message, SessionError>>,
    message_bytes_max: Arc<AtomicUsize>,
    within: Duration,
    per_second: f64,
) {
    let begin = Instant::now();
    let mut bucket = Bucket::new(per_second, per_second * 4.0);
    loop {
        let message = timeout(within, reader.message(|| Some(message_bytes_max.load(Relaxed))));
        let message = message.await.unwrap_or(Err(SessionError::Timeout("message")));
        let bytes = message.as_ref().map_or(0, |message| message.content.len());
        let ended = message.is_err();
        if incoming.send(message).await.is_err() || ended {
            return;
        }
        let tokens = 1.0 + bytes as f64 / BYTES_PER_TOKEN;
        sleep(bucket.take_after(begin.elapsed(), tokens)).await;
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

    async fn ask(
        &mut self,
        request: Request,
        reply: oneshot::Sender<Answer>,
    ) -> Result<(), SessionError> {
        let id = self.next_id;
        self.next_id += 1;
        let message = match request.clone() {
            Request::Headers(request) => Message::GetBlockHeaders { id, request },
            Request::Bodies(hashes) => Message::GetBlockBodies { id, hashes },
            Request::Receipts { first, hashes } => Message::GetReceipts { id, first, hashes },
            Request::AccessLists(hashes) => Message::GetBlockAccessLists { id, hashes },
        };
        self.pending.insert(id, Pending { request, reply, sent: Instant::now() });
        self.message_bytes_max.store(MESSAGE_BYTES_MAX, Relaxed);
        self.tell(&message).await
    }

    /// Waits until the oldest request is overdue.
    fn overdue(&self) -> impl Future<Output = ()> + use<> {
        let oldest = self.pending.values().map(|pending| pending.sent).min();
        let deadline = oldest.map(|sent| sent + self.config.request());
        async move {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        }
    }

    async fn receive(&mut self, message: rlpx::Message) -> Result<(), SessionError> {
        match message.id {
            DISCONNECT => {
                return Err(SessionError::Remote(decode_disconnect(&message.content)?));
            }
            PING if is_empty_list(&message.content) => {
                return self.send(PONG, EMPTY.to_vec()).await;
            }
            PONG if is_empty_list(&message.content) => return Ok(()),
            _ => {}
        }
        let Some(number) = self.shared.number(message.id) else {
            return Err(SessionError::Unexpected("message id of no shared protocol"));
        };
        match Message::decode(self.version, number, &message.content.into())? {
            Message::Status(_) => Err(SessionError::Unexpected("second Status")),
            Message::BlockRangeUpdate(range) => {
                self.range.send_replace(range);
                Ok(())
            }
            // There is no pool yet that would take them.
            Message::Transactions(_) | Message::Announcements(_) => Ok(()),
            Message::BlockHeaders { id, headers } => self.take(id, Answer::Headers(headers)),
            Message::BlockBodies { id, bodies } => self.take(id, Answer::Bodies(bodies)),
            Message::Receipts { id, incomplete, blocks } => {
                self.take(id, Answer::Receipts { incomplete, blocks })
            }
            Message::BlockAccessLists { id, lists } => self.take(id, Answer::AccessLists(lists)),
            Message::PooledTransactions { .. } => {
                Err(SessionError::Unexpected("transactions that were not asked for"))
            }
            request => {
                self.read_blocks(request);
                Ok(())
            }
        }
    }

    /// Hands an answer to its asker.
    fn take(&mut self, id: u64, answer: Answer) -> Result<(), SessionError> {
        let Some(pending) = self.pending.remove(&id) else {
            return Err(SessionError::Unexpected("answer that was not asked for"));
        };
        if self.pending.is_empty() {
            self.message_bytes_max.store(UNASKED_BYTES_MAX, Relaxed);
        }
        if !fits(&pending.request, &answer) {
            return Err(SessionError::Unexpected("answer to another request"));
        }
        histogram!(metrics::REQUEST_SECONDS).record(pending.sent.elapsed());
        // The asker may have gone.
        let _ = pending.reply.send(answer);
        Ok(())
    }

    /// Reads what a peer asks for, on a thread that may block, and sends it. The answer counts as
    /// under way until it has been sent, so that a peer that does not read fills no queue with them.
    fn read_blocks(&mut self, request: Message) {
        let (source, version) = (self.source.clone(), self.version);
        let (outgoing, first_id) = (self.outgoing.clone(), self.shared.first_id);
        self.answers.spawn(async move {
            let read = spawn_blocking(move || {
                let begin = std::time::Instant::now();
                let answer = answer(&*source, request, version >= Version::Eth70)?;
                let content = answer.encode(version);
                histogram!(metrics::ANSWER_SECONDS).record(begin.elapsed());
                Some((first_id + answer.number(), content))
            });
            let Ok(Some((id, content))) = read.await else {
                return Err(SessionError::Local(DisconnectReason::Subprotocol));
            };
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

/// Returns whether an answer is of the request's kind, and not longer.
fn fits(request: &Request, answer: &Answer) -> bool {
    match (request, answer) {
        (Request::Headers(request), Answer::Headers(headers)) => {
            headers.len() as u64 <= request.limit
        }
        (Request::Bodies(hashes), Answer::Bodies(bodies)) => bodies.len() <= hashes.len(),
        (Request::Receipts { hashes, .. }, Answer::Receipts { blocks, .. }) => {
            blocks.len() <= hashes.len()
        }
        (Request::AccessLists(hashes), Answer::AccessLists(lists)) => lists.len() <= hashes.len(),
        _ => false,
    }
}
