//! Connections of a listener: how many are allowed, which are evicted, and which are closed because
//! their client neither sends nor reads.

use crate::{log_rate_limit::LogRateLimit, metrics as names};
use futures_util::task::AtomicWaker;
use metrics::{counter, gauge};
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    fmt, io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};
use tonic::codegen::http::Uri;
use tracing::{debug, warn};

/// Number of bytes with which each HTTP/2 connection begins (RFC 9113, 3.4).
const PREFACE_BYTES: u64 = 24;

/// Limits of a listener.
#[derive(Clone, Copy, Debug)]
pub struct ListenerLimits {
    /// Connections at a time.
    pub connections_max: usize,
    /// Connections at a time from one address.
    pub address_connections_max: usize,
    /// Longest time until the HTTP/2 preface has arrived.
    pub silent_max: Duration,
    /// Longest time in which a client may read nothing of an answer.
    pub unread_max: Duration,
}

impl Default for ListenerLimits {
    fn default() -> Self {
        Self {
            connections_max: 512,
            address_connections_max: 128,
            silent_max: Duration::from_secs(5),
            unread_max: Duration::from_secs(20),
        }
    }
}

/// All open connections of a listener.
#[derive(Debug)]
pub struct Connections {
    service: &'static str,
    limits: ListenerLimits,
    start: Instant,
    next: AtomicU64,
    /// Open connections by age, oldest first.
    open: Mutex<BTreeMap<u64, Arc<Connection>>>,
    log_limit: LogRateLimit<&'static str>,
}

/// Reason why a connection is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum CloseReason {
    /// No preface arrived in time.
    Silent = 1,
    /// It had sent nothing, or made no call, and a new connection needed its slot.
    Evicted = 2,
    /// The client read nothing of an answer for too long.
    Unread = 3,
}

impl CloseReason {
    fn name(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Evicted => "gave_way",
            Self::Unread => "unread",
        }
    }
}

/// Connection as its socket, its answers and the listener see it.
pub struct Connection {
    id: u64,
    /// Address of the client.
    pub address: SocketAddr,
    start: Instant,
    opened: Duration,
    /// Bytes received, counted up to the length of the preface.
    received: AtomicU64,
    has_called: AtomicBool,
    /// Time since which the socket accepts no bytes, in milliseconds plus 1; 0 while it accepts
    /// them.
    blocked_since: AtomicU64,
    /// Pieces of answers that the client has taken.
    taken: AtomicU64,
    /// Unfinished answers, each in a slot of its own.
    answers: Mutex<Vec<Option<Answer>>>,
    /// Reason to close the connection: a [`CloseReason`], or 0 if it stays open.
    end: AtomicU8,
    waker: AtomicWaker,
}

struct Answer {
    uri: Uri,
    /// Time since which the client takes nothing of what is ready for it.
    unread_since: Option<Duration>,
}

/// Slot of a connection among the others; it is freed on drop.
#[derive(Debug)]
pub struct ConnectionSlot {
    connections: Arc<Connections>,
    connection: Arc<Connection>,
}

impl Connections {
    /// Makes an empty set of connections for the listener of this service.
    pub fn new(service: &'static str, limits: ListenerLimits) -> Arc<Self> {
        Arc::new(Self {
            service,
            limits,
            start: Instant::now(),
            next: AtomicU64::new(0),
            open: Mutex::default(),
            log_limit: LogRateLimit::minutely(),
        })
    }

    /// Admits a connection. If there is no room, the oldest connection that has sent nothing is
    /// evicted, otherwise the oldest one that has made no call. If there is neither, the new
    /// connection is refused.
    pub fn admit(self: &Arc<Self>, address: SocketAddr) -> Option<ConnectionSlot> {
        let now = self.start.elapsed();
        let mut open = self.open.lock();
        let here = |it: &&Arc<Connection>| it.address.ip() == address.ip();
        let of_address = open.values().filter(|it| it.is_open()).filter(here).count();
        let evicted = if of_address >= self.limits.address_connections_max {
            Some(self.find_idle(&open, here))
        } else if open.values().filter(|it| it.is_open()).count() >= self.limits.connections_max {
            Some(self.find_idle(&open, |_| true))
        } else {
            None
        };
        match evicted {
            Some(Some(idle)) => self.close(&idle, CloseReason::Evicted),
            Some(None) => {
                drop(open);
                counter!(names::REFUSED_CONNECTIONS, "reason" => "full").increment(1);
                if let Some(kept_back) = self.log_limit.allow(Instant::now(), "full") {
                    let (service, all) = (self.service, self.limits.connections_max);
                    let of_address_max = self.limits.address_connections_max;
                    warn!(peer = %address, service, of_address, of_address_max, all, kept_back,
                        "connection refused: too many are open");
                }
                return None;
            }
            None => {}
        }
        let id = self.next.fetch_add(1, Relaxed);
        let connection = Arc::new(Connection {
            id,
            address,
            start: self.start,
            opened: now,
            received: AtomicU64::new(0),
            has_called: AtomicBool::new(false),
            blocked_since: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            answers: Mutex::default(),
            end: AtomicU8::new(0),
            waker: AtomicWaker::new(),
        });
        open.insert(id, connection.clone());
        self.publish(open.len());
        Some(ConnectionSlot { connections: self.clone(), connection })
    }

    /// Closes the oldest connection that has sent nothing, to free its descriptor.
    pub fn close_one_silent(&self) {
        let silent =
            self.open.lock().values().find(|it| it.is_open() && !it.has_sent_preface()).cloned();
        if let Some(silent) = silent {
            self.close(&silent, CloseReason::Evicted);
        }
    }

    /// Closes connections that have sent or taken nothing for too long.
    pub fn sweep(&self, now: Instant) {
        let now = now.saturating_duration_since(self.start);
        let late: Vec<_> = self.open.lock().values().filter(|it| it.is_open()).cloned().collect();
        for connection in late {
            if !connection.has_sent_preface() {
                if now.saturating_sub(connection.opened) >= self.limits.silent_max {
                    self.close(&connection, CloseReason::Silent);
                }
            } else if let Some(unread) = connection.unread(now, self.limits.unread_max) {
                self.close(&connection, CloseReason::Unread);
                if let Some(kept_back) = self.log_limit.allow(self.start + now, "unread") {
                    let seconds = self.limits.unread_max.as_secs();
                    warn!(peer = %connection.address, service = self.service, unread, seconds,
                        kept_back, "connection ended: the client takes nothing of an answer");
                }
            }
        }
    }

    fn find_idle(
        &self,
        open: &BTreeMap<u64, Arc<Connection>>,
        of: impl Fn(&&Arc<Connection>) -> bool,
    ) -> Option<Arc<Connection>> {
        let mut open: Vec<_> = open.values().filter(|it| it.is_open()).filter(of).collect();
        let silent = open.iter().position(|it| !it.has_sent_preface());
        let idle = silent.or_else(|| open.iter().position(|it| !it.has_called.load(Relaxed)))?;
        Some(open.swap_remove(idle).clone())
    }

    fn close(&self, connection: &Connection, reason: CloseReason) {
        counter!(names::REFUSED_CONNECTIONS, "reason" => reason.name()).increment(1);
        debug!(peer = %connection.address, service = self.service, ?reason, "connection ended");
        connection.end.store(reason as u8, Relaxed);
        connection.waker.wake();
    }

    fn publish(&self, open: usize) {
        gauge!(names::CONNECTIONS, "service" => self.service).set(open as f64);
    }
}

impl ConnectionSlot {
    /// Returns the connection that has this slot.
    pub fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut open = self.connections.open.lock();
        open.remove(&self.connection.id);
        self.connections.publish(open.len());
    }
}

impl Connection {
    /// Returns its number among the connections of its listener.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns how many pieces of answers the client has taken so far.
    pub fn taken(&self) -> u64 {
        self.taken.load(Relaxed)
    }

    fn is_open(&self) -> bool {
        self.end.load(Relaxed) == 0
    }

    fn has_sent_preface(&self) -> bool {
        self.received.load(Relaxed) >= PREFACE_BYTES
    }

    /// Records that bytes arrived.
    pub fn record_received(&self, bytes: usize) {
        let received = self.received.load(Relaxed);
        if received < PREFACE_BYTES {
            // Only the connection's own task writes this.
            self.received.store(received.saturating_add(bytes as u64), Relaxed);
        }
    }

    /// Records whether the socket accepts bytes now.
    pub fn record_write(&self, is_blocked: bool) {
        let since = self.blocked_since.load(Relaxed);
        if is_blocked && since == 0 {
            let now = self.start.elapsed().as_millis() as u64;
            self.blocked_since.store(now + 1, Relaxed);
        } else if !is_blocked && since > 0 {
            self.blocked_since.store(0, Relaxed);
        }
    }

    /// Ready with an error once the connection must close; until then the task is registered to be
    /// woken.
    pub fn poll_end(&self, context: &Context<'_>) -> Poll<io::Error> {
        self.waker.register(context.waker());
        if self.is_open() { Poll::Pending } else { Poll::Ready(io::ErrorKind::TimedOut.into()) }
    }

    /// Begins an answer of which nothing is taken yet. Returns its slot among the answers.
    pub fn begin_answer(&self, uri: Uri) -> usize {
        self.has_called.store(true, Relaxed);
        let answer = Some(Answer { uri, unread_since: Some(self.start.elapsed()) });
        let mut answers = self.answers.lock();
        if let Some(free) = answers.iter().position(Option::is_none) {
            answers[free] = answer;
            return free;
        }
        answers.push(answer);
        answers.len() - 1
    }

    /// Records whether an answer has something that the client has not taken.
    pub fn set_unread(&self, answer: usize, is_unread: bool) {
        let unread_since = is_unread.then(|| self.start.elapsed());
        if is_unread {
            // A next piece exists only because the one before was taken.
            self.taken.fetch_add(1, Relaxed);
        }
        if let Some(Some(answer)) = self.answers.lock().get_mut(answer) {
            answer.unread_since = unread_since;
        }
    }

    /// Ends an answer and frees its slot.
    pub fn finish_answer(&self, answer: usize) {
        if let Some(answer) = self.answers.lock().get_mut(answer) {
            *answer = None;
        }
    }

    /// Returns the path of a call whose answer the client does not read, if there is one.
    fn unread(&self, now: Duration, longest: Duration) -> Option<String> {
        let is_late = |since: Duration| now.saturating_sub(since) >= longest;
        let since = self.blocked_since.load(Relaxed).checked_sub(1).map(Duration::from_millis);
        if since.is_some_and(is_late) {
            return Some("all".to_owned());
        }
        let answers = self.answers.lock();
        let late = answers.iter().flatten().find(|it| it.unread_since.is_some_and(is_late));
        late.map(|answer| answer.uri.path().to_owned())
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {}", self.id, self.address)
    }
}
