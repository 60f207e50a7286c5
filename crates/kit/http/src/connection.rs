//! State of one connection: its activity, and the conditions that end it.

use crate::limits::ConnectionLimits;
use crate::refusals::Reason;
use parking_lot::Mutex;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Value of a connection's `places` once it makes room for another.
const GIVEN_UP: usize = usize::MAX;

/// State of a connection. A handler finds it among the extensions of its request.
pub(crate) struct Connection {
    /// Group for counting connections: the caller's address, or the network of an IPv6 address.
    group: IpAddr,
    limits: Arc<ConnectionLimits>,
    opened: Instant,
    /// Number of requests whose answers are being made or sent.
    running: AtomicUsize,
    /// Number of running requests that hold a place, or [`GIVEN_UP`].
    places: AtomicUsize,
    /// Whether any request ever had a place.
    served: AtomicBool,
    /// Whether the caller has shown a token.
    trusted: AtomicBool,
    /// Time at which the last request ended, in milliseconds after `opened`.
    idle_since: AtomicU64,
    /// Arrival time of the first bytes of an incomplete request head; 0 if there are none.
    head_since: AtomicU64,
    /// Bytes sent.
    written: AtomicU64,
    answers: Mutex<Answers>,
    /// Whether the caller's remaining input is read for a moment after the end.
    lingers: AtomicBool,
    /// Notified when the connection must make room for another.
    pub(crate) evicted: Notify,
    /// Notified when the running answers are the last.
    pub(crate) closing: Notify,
}

/// Answers that are sent.
#[derive(Default)]
struct Answers {
    /// Number of answers begun.
    begun: u64,
    /// Number of answers fully sent.
    ended: u64,
    /// Number and deadline of each unsent answer.
    waiting: Vec<(u64, Instant)>,
}

/// Rank of a connection against eviction; the lowest is evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Worth {
    /// The connection waits for a request.
    Idle,
    /// The caller is receiving an answer.
    Busy,
    /// The caller has shown a token.
    Trusted,
}

/// Reason for ending a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// No request came for long enough.
    Idle,
    /// The caller is too slow.
    Refused(Reason),
}

/// Start of measuring the sending of answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    since: Instant,
    written: u64,
    ended: u64,
}

impl Connection {
    pub(crate) fn new(address: IpAddr, limits: Arc<ConnectionLimits>) -> Arc<Self> {
        Arc::new(Self {
            group: group(address),
            limits,
            opened: Instant::now(),
            running: AtomicUsize::new(0),
            places: AtomicUsize::new(0),
            served: AtomicBool::new(false),
            trusted: AtomicBool::new(false),
            idle_since: AtomicU64::new(0),
            head_since: AtomicU64::new(0),
            written: AtomicU64::new(0),
            answers: Mutex::default(),
            lingers: AtomicBool::new(false),
            evicted: Notify::new(),
            closing: Notify::new(),
        })
    }

    pub(crate) fn group(&self) -> IpAddr {
        self.group
    }

    fn millis(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.opened).as_millis() as u64
    }

    /// Notes the arrival of bytes that may begin a request.
    pub(crate) fn received(&self) {
        if self.head_since.load(Relaxed) == 0 && self.running.load(Relaxed) == 0 {
            self.head_since.store(self.millis(Instant::now()).max(1), Relaxed);
        }
    }

    /// Notes that this many bytes were sent.
    pub(crate) fn sent(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Relaxed);
    }

    /// Ends the connection after the answer. The caller's remaining input is not read.
    pub(crate) fn close_unread(&self) {
        self.lingers.store(true, Relaxed);
        self.closing.notify_one();
    }

    pub(crate) fn lingers(&self) -> bool {
        self.lingers.load(Relaxed)
    }

    /// Notes that the caller has shown a token: other connections make room first.
    pub(crate) fn trust(&self) {
        self.trusted.store(true, Relaxed);
    }

    /// Returns a place for one more request, or `None` if the connection was given up.
    pub(crate) fn place(self: &Arc<Self>) -> Option<ConnectionPlace> {
        let more = |places| (places != GIVEN_UP).then_some(places + 1);
        self.places.fetch_update(SeqCst, SeqCst, more).ok()?;
        self.served.store(true, Relaxed);
        Some(ConnectionPlace(self.clone()))
    }

    /// Returns whether any of its requests ever had a place.
    pub(crate) fn was_served(&self) -> bool {
        self.served.load(Relaxed)
    }

    /// Returns the rank for eviction, or `None` if the connection may not be evicted. The lowest
    /// goes first.
    pub(crate) fn worth(&self) -> Option<(Worth, Instant)> {
        let idle_since = Duration::from_millis(self.idle_since.load(Relaxed));
        // Requests are free where no token is needed, so they alone give no rank.
        let worth = match (self.trusted.load(Relaxed), self.is_answering()) {
            (true, _) => Worth::Trusted,
            (false, true) => Worth::Busy,
            (false, false) => Worth::Idle,
        };
        (self.places.load(SeqCst) == 0).then(|| (worth, self.opened + idle_since))
    }

    /// Returns whether the caller is receiving an answer.
    fn is_answering(&self) -> bool {
        let answers = self.answers.lock();
        answers.begun > answers.ended
    }

    /// Gives up the connection, unless a request came in between.
    pub(crate) fn give_up(&self) -> bool {
        let gone = self.places.compare_exchange(0, GIVEN_UP, SeqCst, SeqCst).is_ok();
        if gone {
            self.evicted.notify_one();
        }
        gone
    }

    /// Returns why the connection must end, if it must. Call regularly, with the progress kept from
    /// the last time.
    pub(crate) fn look(&self, now: Instant, kept: &mut Option<Progress>) -> Option<End> {
        let limits = &self.limits;
        let millis = self.millis(now);
        let longer = |since: u64, limit: Duration| {
            u128::from(millis.saturating_sub(since)) >= limit.as_millis()
        };
        let head_since = self.head_since.load(Relaxed);
        if head_since != 0 && longer(head_since, limits.head_time_max) {
            return Some(End::Refused(Reason::HeadTime));
        }
        if self.running.load(Relaxed) == 0 {
            *kept = None;
            let idle = longer(self.idle_since.load(Relaxed), limits.idle_time_max);
            return idle.then_some(End::Idle);
        }
        let answers = self.answers.lock();
        if answers.waiting.is_empty() {
            *kept = None;
            return None;
        }
        let is_late = answers.waiting.iter().any(|(_, deadline)| now >= *deadline);
        let (written, ended) = (self.written.load(Relaxed), answers.ended);
        drop(answers);
        if is_late {
            return Some(End::Refused(Reason::Reader));
        }
        let here = Progress { since: now, written, ended };
        let from = *kept.get_or_insert(here);
        if from.ended != ended {
            *kept = Some(here);
        } else if now.saturating_duration_since(from.since) >= limits.stall_time_max {
            let enough = limits.answer_rate_min as f64 * limits.stall_time_max.as_secs_f64();
            if ((written - from.written) as f64) < enough {
                return Some(End::Refused(Reason::Reader));
            }
            *kept = Some(here);
        }
        None
    }
}

/// Returns the group of an address. IPv6 networks of 64 bits count as one caller, because each has
/// as many addresses as it likes.
fn group(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let mut octets = address.octets();
            octets[8..].fill(0);
            octets.into()
        }
    }
}

/// Running request on a connection, from its head until its answer is made, or sent.
pub(crate) struct Running(Arc<Connection>);

impl Running {
    pub(crate) fn begin(connection: &Arc<Connection>) -> Self {
        connection.running.fetch_add(1, Relaxed);
        connection.head_since.store(0, Relaxed);
        Self(connection.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let now = self.0.millis(Instant::now());
        self.0.idle_since.store(now, Relaxed);
        self.0.running.fetch_sub(1, Relaxed);
    }
}

/// A request's place on its connection.
pub(crate) struct ConnectionPlace(Arc<Connection>);

impl ConnectionPlace {
    /// Begins to send its answer of `bytes` bytes.
    pub(crate) fn answer(&self, bytes: u64) -> Answer {
        let running = Running::begin(&self.0);
        let time_max = self.0.limits.answer_time_max(bytes);
        let mut answers = self.0.answers.lock();
        answers.begun += 1;
        let number = answers.begun;
        if let Some(deadline) = Instant::now().checked_add(time_max) {
            answers.waiting.push((number, deadline));
        }
        Answer { number, running }
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        self.0.places.fetch_sub(1, SeqCst);
    }
}

/// Answer that is being sent, until this is dropped.
pub(crate) struct Answer {
    number: u64,
    running: Running,
}

impl Drop for Answer {
    fn drop(&mut self) {
        let mut answers = self.running.0.answers.lock();
        answers.ended += 1;
        answers.waiting.retain(|(number, _)| *number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn limits() -> ConnectionLimits {
        ConnectionLimits {
            head_time_max: 10 * SECOND,
            idle_time_max: 30 * SECOND,
            stall_time_max: 20 * SECOND,
            answer_rate_min: 1000,
            ..Default::default()
        }
    }

    fn connection() -> Arc<Connection> {
        Connection::new([127, 0, 0, 1].into(), Arc::new(limits()))
    }

    /// Returns when and why the connection ends, checked each second.
    fn end(connection: &Connection, mut act: impl FnMut(u32)) -> Option<(u32, End)> {
        let mut kept = None;
        (0..200).find_map(|second| {
            act(second);
            let now = connection.opened + second * SECOND;
            connection.look(now, &mut kept).map(|end| (second, end))
        })
    }

    #[test]
    fn silence_and_slow_heads_end_a_connection_and_a_request_does_not() {
        assert_eq!(end(&connection(), |_| {}), Some((30, End::Idle)));
        let slow = connection();
        slow.received();
        let (at, why) = end(&slow, |_| slow.received()).unwrap();
        assert_eq!(why, End::Refused(Reason::HeadTime));
        assert!((10..12).contains(&at), "{at}");
        let busy = connection();
        busy.received();
        let running = Running::begin(&busy);
        assert_eq!(end(&busy, |_| busy.received()), None);
        drop(running);
        assert!(matches!(end(&busy, |_| {}), Some((30..33, End::Idle))));
    }

    #[test]
    fn an_answer_has_to_be_taken_at_a_rate_and_within_its_time() {
        let late = Some(End::Refused(Reason::Reader));
        // The caller reads nothing, or a byte a second.
        for bytes in [0, 1] {
            let reader = connection();
            let place = reader.place().unwrap();
            let _answer = place.answer(1_000_000);
            let cut = end(&reader, |_| reader.sent(bytes));
            assert_eq!(cut, late.map(|late| (20, late)));
        }
        // Fast enough, until the deadline.
        let reader = connection();
        let place = reader.place().unwrap();
        let answer = place.answer(80_000);
        let (at, why) = end(&reader, |_| reader.sent(1000)).unwrap();
        assert_eq!(Some(why), late);
        assert!((100..102).contains(&at), "{at}");
        drop(answer);
        // Small answers one after another: one is always being sent.
        let mut answer = Some(place.answer(10_000));
        let cut = end(&reader, |_| {
            let next = place.answer(1_000_000);
            answer = Some(next);
        });
        assert_eq!(cut, None);
        drop(answer);
        assert!(reader.answers.lock().waiting.is_empty());
    }

    #[test]
    fn a_connection_with_a_request_under_way_is_not_given_up() {
        let connection = connection();
        let worth = || connection.worth().map(|(worth, _)| worth);
        assert_eq!(worth(), Some(Worth::Idle));
        let place = connection.place().unwrap();
        assert!(worth().is_none() && !connection.give_up());
        let answer = place.answer(1);
        drop(place);
        assert_eq!(worth(), Some(Worth::Busy));
        drop(answer);
        assert_eq!(worth(), Some(Worth::Idle));
        connection.trust();
        assert_eq!(worth(), Some(Worth::Trusted));
        assert!(connection.give_up());
        assert!(connection.place().is_none(), "too late");
        assert!(connection.worth().is_none() && !connection.give_up());
    }

    #[test]
    fn networks_of_ipv6_are_one_caller() {
        let group_of = |text: &str| group(text.parse().unwrap());
        assert_eq!(group_of("2001:db8::1:2"), group_of("2001:db8::ffff:0:0:1"));
        assert_ne!(group_of("2001:db8::1"), group_of("2001:db8:0:1::1"));
        assert_eq!(group_of("::ffff:1.2.3.4"), group_of("1.2.3.4"));
        assert_ne!(group_of("1.2.3.4"), group_of("1.2.3.5"));
    }
}
