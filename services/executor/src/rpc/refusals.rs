//! Why requests and connections are refused: each is counted, and said once a minute for each reason.

use super::metrics::RPC_REFUSED_TOTAL;
use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tracing::{debug, warn};

/// Between two warnings for one reason.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// Why a request or a connection is refused, the label `reason` of the counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// No valid token.
    Token,
    /// The request names a host that this port is not.
    Host,
    /// The body is not said to be JSON.
    ContentType,
    /// The body is longer than allowed.
    BodySize,
    /// The body breaks off, or its framing is wrong.
    BodyBroken,
    /// The body takes too long.
    BodyTime,
    /// Too many bytes of bodies at once.
    Bodies,
    /// Too many requests at once.
    Overload,
    /// Too many bytes of answers that nobody has taken yet.
    Answers,
    /// The head of a request takes too long.
    HeadTime,
    /// The caller does not take its answer.
    Reader,
    /// A connection without a request made room for a newer one.
    Evicted,
    /// A connection found no room: all others have requests under way.
    Crowded,
    /// No executor has the right to write that could answer.
    NoHolder,
    /// No connection can be taken, such as for want of file descriptors.
    Accept,
}

impl Reason {
    const COUNT: usize = Self::Accept as usize + 1;

    fn name(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Host => "host",
            Self::ContentType => "content_type",
            Self::BodySize => "body_size",
            Self::BodyBroken => "body_broken",
            Self::BodyTime => "body_time",
            Self::Bodies => "bodies",
            Self::Overload => "overload",
            Self::Answers => "answers",
            Self::HeadTime => "head_time",
            Self::Reader => "reader",
            Self::Evicted => "evicted",
            Self::Crowded => "crowded",
            Self::NoHolder => "no_holder",
            Self::Accept => "accept",
        }
    }
}

/// The refusals of one port.
pub(super) struct Refusals {
    /// Which port it is, for the log.
    port: String,
    started: Instant,
    reasons: [Said; Reason::COUNT],
}

/// What was said of one reason.
#[derive(Default)]
struct Said {
    /// Refusals since the last warning.
    unsaid: AtomicU64,
    /// When the next warning may come, in milliseconds after the start.
    next: AtomicU64,
}

impl Refusals {
    pub(super) fn new(port: impl Into<String>) -> Self {
        let reasons = std::array::from_fn(|_| Said::default());
        Self { port: port.into(), started: Instant::now(), reasons }
    }

    /// Counts a refusal, and says so where that is due.
    pub(super) fn count(&self, reason: Reason, text: impl Display) {
        metrics::counter!(RPC_REFUSED_TOTAL, "reason" => reason.name()).increment(1);
        match self.due(reason, self.started.elapsed()) {
            Some(refused) => {
                let (port, reason) = (&*self.port, reason.name());
                warn!(port, reason, refused, %text, "refused; this warning comes once a minute");
            }
            None => debug!(port = %self.port, reason = reason.name(), %text, "refused"),
        }
    }

    /// How many were refused since the last warning, where one is due.
    fn due(&self, reason: Reason, now: Duration) -> Option<u64> {
        let said = &self.reasons[reason as usize];
        said.unsaid.fetch_add(1, Relaxed);
        let now = now.as_millis() as u64;
        let next = said.next.load(Relaxed);
        let after = now + WARN_EVERY.as_millis() as u64;
        let is_due =
            now >= next && said.next.compare_exchange(next, after, Relaxed, Relaxed).is_ok();
        is_due.then(|| said.unsaid.swap(0, Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_said_once_a_minute_with_how_often_it_was_there() {
        let refusals = Refusals::new("a port");
        let at = |reason, seconds| refusals.due(reason, Duration::from_secs(seconds));
        assert_eq!(at(Reason::Token, 0), Some(1));
        assert_eq!([at(Reason::Token, 1), at(Reason::Token, 59)], [None, None]);
        assert_eq!(at(Reason::Host, 59), Some(1), "each reason has its own minute");
        assert_eq!(at(Reason::Token, 60), Some(3));
        assert_eq!(at(Reason::Token, 61), None);
    }
}
