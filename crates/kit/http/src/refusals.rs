//! Reasons for refusing requests and connections. Each refusal is counted, and logged once a minute
//! for each reason.

use crate::metrics::REFUSED_TOTAL;
use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tracing::{debug, warn};

/// Time between two warnings for one reason.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// Reason for refusing a request or a connection, the label `reason` of the counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The request has no valid token.
    Token,
    /// The request names a host that is not allowed on this port.
    Host,
    /// The web page has an origin that may not open WebSockets.
    Origin,
    /// The content type is not JSON.
    ContentType,
    /// The body is longer than allowed.
    BodySize,
    /// The body breaks off, or its framing is invalid.
    BodyBroken,
    /// The body takes too long.
    BodyTime,
    /// The request bodies together have too many bytes.
    Bodies,
    /// Too many requests run simultaneously.
    Overload,
    /// The unread answers together have too many bytes.
    Answers,
    /// The head of a request takes too long.
    HeadTime,
    /// The caller does not read its answer.
    Reader,
    /// A connection without a request made room for a newer one.
    Evicted,
    /// A connection found no room: all others have running requests.
    Crowded,
    /// No executor with the right to write could answer.
    NoHolder,
    /// No connection can be accepted, for example for lack of file descriptors.
    Accept,
}

impl Reason {
    const COUNT: usize = Self::Accept as usize + 1;

    fn name(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Host => "host",
            Self::Origin => "origin",
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

/// Refusals of one port.
pub(crate) struct Refusals {
    /// Name of the port, for the log.
    port: String,
    started: Instant,
    reasons: [Said; Reason::COUNT],
}

/// State of the warnings for one reason.
#[derive(Default)]
struct Said {
    /// Refusals since the last warning.
    unsaid: AtomicU64,
    /// Earliest time of the next warning, in milliseconds after the start.
    next: AtomicU64,
}

impl Refusals {
    pub(crate) fn new(port: impl Into<String>) -> Self {
        let reasons = std::array::from_fn(|_| Said::default());
        Self { port: port.into(), started: Instant::now(), reasons }
    }

    /// Counts a refusal, and logs a warning if one is due.
    pub(crate) fn count(&self, reason: Reason, text: impl Display) {
        metrics::counter!(REFUSED_TOTAL, "reason" => reason.name()).increment(1);
        match self.due(reason, self.started.elapsed()) {
            Some(refused) => {
                let (port, reason) = (&*self.port, reason.name());
                warn!(port, reason, refused, %text, "refused; this warning comes once a minute");
            }
            None => debug!(port = %self.port, reason = reason.name(), %text, "refused"),
        }
    }

    /// Returns the number of refusals since the last warning, if a warning is due.
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
