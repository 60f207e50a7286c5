//! The event bus: subjects with fan-out to every subscriber. Nothing is kept for late subscribers.
//!
//! ```text
//!  publish ──┬─► fan-out: a ring of 256 for each subscriber ──► Subscription    (this process)
//!            │        ▲
//!            └─► outbox ── one task ──► NATS ──► one task per subject           (Bus::connect)
//!                    set_key ────────────┴─► key-value bucket ──► WatchedKey
//!                    Log::append ────────┴─► stream ──► Log::read
//! ```
//!
//! [`Bus::default`] is the bus of one process. [`Bus::connect`] gives the same type over NATS;
//! publishers and subscribers cannot tell the difference. Within one process a message never passes
//! through the server, so services that share a process understand each other without it.
//!
//! **No call waits or fails.** [`Bus::publish`] and [`Bus::subscribe`] may be called from any
//! thread and return at once, whatever the server does. Without a server, messages for other
//! processes are dropped and counted. The connection is retried for ever, with jitter, and
//! subscriptions come back with it.
//!
//! **Overload.** Each subscriber has a ring of [`CAPACITY`] messages; a lagging subscriber loses
//! the oldest. The outbox holds [`OUTBOX_MESSAGES`] messages and [`OUTBOX_BYTES`]; the oldest are
//! dropped there too. A payload over [`PAYLOAD_BYTES_MAX`] is dropped. Events are hints (their
//! owner has the truth), so a consumer that missed some is slower at worst. [`Stats`] and the
//! metrics `tandem_bus_*` count the losses.
//!
//! **Logs** are apart from events: an append waits for its answer, and nothing of it is dropped.
//!
//! **Order.** A subscriber sees the messages of one publisher in the order of publication. There is
//! no order between publishers.
//!
//! **Traces.** A message carries the span that published it ([`Message::context`]), over NATS in
//! the header `traceparent`.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod fanout;
mod message;
mod metrics;
mod nats;
mod stats;

use bytes::Bytes;
use fanout::Fanout;
use nats::Nats;
use stats::Counts;
use std::{sync::Arc, time::Duration};
use tokio::runtime::Handle;

pub use fanout::Subscription;
pub use message::{Message, subject_token};
pub use metrics::describe as describe_metrics;
pub use nats::{
    ComparedKey, Entry, Error, Log, LogBounds, LogError, LogMessage, LogOptions, MissingBucket,
    NotSet, OUTBOX_BYTES, OUTBOX_MESSAGES, Options, VALUE_BYTES_MAX, WatchedKey,
};
pub use stats::Stats;

/// Wildcard at the end of a subject, in the place of a publisher's token.
const ANY_MEMBER: char = '*';

/// Number of messages that a subscriber may lag behind before it loses the oldest.
pub const CAPACITY: usize = 256;

/// Largest payload in bytes: half of what NATS accepts by default, headers included.
pub const PAYLOAD_BYTES_MAX: usize = 512 * 1024;

/// Event bus within this process, or over NATS. Clones share it.
#[derive(Clone, Default)]
pub struct Bus {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    fanout: Fanout,
    counts: Arc<Counts>,
    /// `None` on a bus of one process.
    nats: Option<Nats>,
}

/// Checks that these are addresses of NATS servers, without connecting to them.
///
/// # Errors
/// [`Error::NoServer`], [`Error::Server`], [`Error::PasswordInAddress`].
pub fn check_servers(servers: &[String]) -> Result<(), Error> {
    nats::addresses(servers).map(drop)
}

impl Bus {
    /// Makes a bus over these NATS servers, which belong to one cluster: `nats://10.0.0.7:4222`,
    /// `tls://…`, or `10.0.0.7:4222`. It connects in the background, on `runtime`; an unreachable
    /// server is not an error. Reads the files that the options name. The connection ends with the
    /// last clone.
    ///
    /// # Errors
    /// [`Error`]: an invalid address, an unusable file, or contradictory options.
    pub fn connect(servers: &[String], options: &Options, runtime: &Handle) -> Result<Self, Error> {
        metrics::describe();
        let counts = Arc::<Counts>::default();
        let nats = Nats::connect(servers, options, counts.clone(), runtime)?;
        let fanout = Fanout::default();
        Ok(Self { inner: Arc::new(Inner { fanout, counts, nats: Some(nats) }) })
    }

    /// Sends the payload to all current subscribers, with the current span. Never blocks; a payload
    /// over [`PAYLOAD_BYTES_MAX`] is dropped.
    pub fn publish(&self, subject: &'static str, payload: Bytes) {
        if payload.len() > PAYLOAD_BYTES_MAX {
            self.inner.counts.dropped("payload", 1);
            tracing::warn!(subject, bytes = payload.len(), "payload is too large for the bus");
            return;
        }
        let message = Message::here(payload);
        if let Some(nats) = &self.inner.nats {
            nats.publish(subject.into(), message.clone());
        }
        self.inner.fanout.topic(subject).give(message);
    }

    /// Publishes as [`Self::publish`] does, on a subject that belongs to one publisher. `family`
    /// ends in `.*`, which stands for the publisher's token. Subscribers of the family hear all its
    /// publishers, with [`Message::member`] set.
    pub fn publish_as(&self, family: &'static str, member: &str, payload: Bytes) {
        let token = subject_token(member);
        if payload.len() > PAYLOAD_BYTES_MAX {
            self.inner.counts.dropped("payload", 1);
            tracing::warn!(
                family,
                token,
                bytes = payload.len(),
                "payload is too large for the bus"
            );
            return;
        }
        let message = Message { member: Some(token.as_str().into()), ..Message::here(payload) };
        if let Some(nats) = &self.inner.nats {
            let prefix = family.strip_suffix(ANY_MEMBER).unwrap_or(family);
            nats.publish(format!("{prefix}{token}").into(), message.clone());
        }
        self.inner.fanout.topic(family).give(message);
    }

    /// Sends the payload to the subscribers in this process only. It is for news that is known here
    /// without the bus and would also come over it while there is a server. Never blocks.
    pub fn publish_here(&self, subject: &'static str, payload: Bytes) {
        self.inner.fanout.topic(subject).give(Message::here(payload));
    }

    /// Subscribes to everything published on the subject from now on. Over NATS, messages of other
    /// processes arrive once the server knows of the subscription, usually within a round trip.
    pub fn subscribe(&self, subject: &'static str) -> Subscription {
        let topic = self.inner.fanout.topic(subject);
        let subscription = topic.subscribe(self.inner.counts.clone());
        if let Some(nats) = &self.inner.nats {
            nats.hear(topic);
        }
        subscription
    }

    /// Subscribes to what this process itself publishes on the subject, for a service that passes
    /// on its own events. The server does not learn of it, so a NATS user needs no permission for
    /// it.
    pub fn subscribe_here(&self, subject: &'static str) -> Subscription {
        self.inner.fanout.topic(subject).subscribe(self.inner.counts.clone())
    }

    /// Watches one key of a key-value bucket (JetStream). On a bus of one process there is none,
    /// and [`WatchedKey::changed`] reports that at once. Never blocks.
    pub fn watch_key(
        &self,
        bucket: &'static str,
        key: &'static str,
        missing: MissingBucket,
    ) -> WatchedKey {
        match &self.inner.nats {
            Some(nats) => nats.watch_key(bucket, key, missing),
            None => WatchedKey::never(),
        }
    }

    /// Sets one key of a key-value bucket to these bytes, at most [`VALUE_BYTES_MAX`], for all its
    /// watchers. Waits until the server has stored them. Does nothing on a bus of one process,
    /// which has no other watchers.
    ///
    /// # Errors
    /// [`NotSet`]: no connection, no JetStream, no permission.
    pub async fn set_key(
        &self,
        bucket: &'static str,
        key: &'static str,
        value: Bytes,
    ) -> Result<(), NotSet> {
        match &self.inner.nats {
            Some(nats) => nats.set_key(bucket, key, value).await,
            None => Ok(()),
        }
    }

    /// Opens a log: a stream of JetStream with one writer at a time. Makes it if it is missing.
    ///
    /// # Errors
    /// [`LogError`]; [`LogError::NoConnection`] on a bus of one process.
    pub async fn open_log(&self, options: &LogOptions) -> Result<Log, LogError> {
        match &self.inner.nats {
            Some(nats) => nats.open_log(options).await,
            None => Err(LogError::NoConnection),
        }
    }

    /// Opens a log that exists, to read it.
    ///
    /// # Errors
    /// As for [`Self::open_log`], and [`LogError::Missing`].
    pub async fn find_log(&self, name: &'static str, subject: String) -> Result<Log, LogError> {
        match &self.inner.nats {
            Some(nats) => nats.find_log(name, subject).await,
            None => Err(LogError::NoConnection),
        }
    }

    /// Returns a key of a key-value bucket that is changed by compare-and-set. The bucket is made with this
    /// number of copies (1, 3 or 5) if it is missing. `None` on a bus of one process.
    pub fn compared_key(
        &self,
        bucket: &'static str,
        key: String,
        replicas: usize,
    ) -> Option<ComparedKey> {
        Some(self.inner.nats.as_ref()?.compared_key(bucket, key, replicas))
    }

    /// Returns whether other processes share the bus: never on a bus of one process.
    pub fn is_shared(&self) -> bool {
        self.inner.nats.is_some()
    }

    /// Returns whether published messages reach the other processes now: always on a bus of one
    /// process. The loss of a server that does not answer is noticed after some seconds.
    pub fn is_connected(&self) -> bool {
        self.inner.nats.as_ref().is_none_or(Nats::is_connected)
    }

    /// Waits at most `wait` until everything published so far is on its way to the server, for a
    /// last message before the process ends. Returns false if it is not.
    pub async fn flush(&self, wait: Duration) -> bool {
        match &self.inner.nats {
            Some(nats) => nats.flush(wait).await,
            None => true,
        }
    }

    /// Returns the counters since the bus was made.
    pub fn stats(&self) -> Stats {
        self.inner.counts.stats()
    }
}
