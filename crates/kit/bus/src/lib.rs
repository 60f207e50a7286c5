//! The event bus: subjects, fan-out to every subscriber, nothing kept for those who come later.
//!
//! ```text
//!  publish ──┬─► fan-out: a ring of 256 for each subscriber ──► Subscription    (this process)
//!            │        ▲
//!            └─► outbox ── one task ──► NATS ──► one task per subject           (Bus::connect)
//!                    set_key ────────────┴─► key-value bucket ──► WatchedKey
//! ```
//!
//! [`Bus::default`] is the bus of one process. [`Bus::connect`] gives the same type over NATS: who
//! publishes and subscribes cannot tell the difference. Within one process a message never takes
//! the way through the server, so services that share a process understand each other without it.
//!
//! **Nobody waits, nothing fails.** [`Bus::publish`] and [`Bus::subscribe`] may be called from any
//! thread and return at once, whatever the server does. Without a server what is published for
//! other processes is dropped and counted; the connection is tried again for ever, with jitter, and
//! subscriptions come back with it.
//!
//! **Overload.** Each subscriber has a ring of [`CAPACITY`] messages; the oldest are dropped for
//! one that lags. The outbox holds [`OUTBOX_MESSAGES`] messages and [`OUTBOX_BYTES`]; the oldest are
//! dropped there too. A payload over [`PAYLOAD_BYTES_MAX`] is dropped. Events are hints (the truth is
//! asked of its owner), so a consumer that missed some is slower at worst. [`Stats`] and the metrics
//! `tandem_bus_*` count what was lost.
//!
//! **Order.** A subscriber sees what one publisher published in the order in which it did. Between
//! publishers there is none.
//!
//! **Traces.** A message carries the span that published it ([`Message::context`]), through NATS as
//! the header `traceparent`.

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
    Entry, Error, MissingBucket, NotSet, OUTBOX_BYTES, OUTBOX_MESSAGES, Options, VALUE_BYTES_MAX,
    WatchedKey,
};
pub use stats::Stats;

/// The end of a subject that stands for many, in the place of a publisher's token.
const ANY_MEMBER: char = '*';

/// Messages that a subscriber may lag behind before it loses the oldest.
pub const CAPACITY: usize = 256;

/// Bytes of a payload at most: half of what NATS takes by default, headers included.
pub const PAYLOAD_BYTES_MAX: usize = 512 * 1024;

/// The bus: within this process, or over NATS. Clones share it.
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

/// Looks whether these are addresses of NATS servers. Connects to none.
///
/// # Errors
/// [`Error::NoServer`], [`Error::Server`], [`Error::PasswordInAddress`].
pub fn check_servers(servers: &[String]) -> Result<(), Error> {
    nats::addresses(servers).map(drop)
}

impl Bus {
    /// A bus over these NATS servers, which belong to one cluster: `nats://10.0.0.7:4222`, `tls://…`,
    /// or `10.0.0.7:4222`. It connects in the background, on `runtime`; that nobody is there is no
    /// error. Reads the files that the options name. The connection ends with the last clone.
    ///
    /// # Errors
    /// [`Error`]: an address is none, a file cannot be used, options contradict each other.
    pub fn connect(servers: &[String], options: &Options, runtime: &Handle) -> Result<Self, Error> {
        metrics::describe();
        let counts = Arc::<Counts>::default();
        let nats = Nats::connect(servers, options, counts.clone(), runtime)?;
        let fanout = Fanout::default();
        Ok(Self { inner: Arc::new(Inner { fanout, counts, nats: Some(nats) }) })
    }

    /// Gives the payload to everyone who is subscribed at this moment, with the current span. Never
    /// waits, in no thread; a payload over [`PAYLOAD_BYTES_MAX`] is dropped.
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

    /// The same for a subject that each publisher has for itself. `family` ends in `.*`, which
    /// stands for the publisher's token; subscribers of the family hear all of them, with
    /// [`Message::member`] set.
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

    /// Gives the payload to the subscribers of this process alone: for what is known here without the
    /// bus, and would come over it too while there is a server. Never waits.
    pub fn publish_here(&self, subject: &'static str, payload: Bytes) {
        self.inner.fanout.topic(subject).give(Message::here(payload));
    }

    /// Everything published on the subject from now on. Over NATS, what other processes publish is
    /// heard from the moment at which the server knows of it, usually within a round trip.
    pub fn subscribe(&self, subject: &'static str) -> Subscription {
        let topic = self.inner.fanout.topic(subject);
        let subscription = topic.subscribe(self.inner.counts.clone());
        if let Some(nats) = &self.inner.nats {
            nats.hear(topic);
        }
        subscription
    }

    /// Subscribes to what this process itself publishes on the subject, for a service that passes on
    /// its own events. The server hears nothing of it, so a user at NATS needs no permission for it.
    pub fn subscribe_here(&self, subject: &'static str) -> Subscription {
        self.inner.fanout.topic(subject).subscribe(self.inner.counts.clone())
    }

    /// Watches one key of a key-value bucket (JetStream). On a bus of one process there is none:
    /// [`WatchedKey::changed`] says so at once. Never waits.
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

    /// Has one key of a key-value bucket hold these bytes, at most [`VALUE_BYTES_MAX`], for all who
    /// watch it, and waits until the server has them. On a bus of one process there is nobody to be
    /// told, and nothing is done.
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

    /// Whether there are other processes on it: never on a bus of one process.
    pub fn is_shared(&self) -> bool {
        self.inner.nats.is_some()
    }

    /// Whether what is published reaches the other processes now: always on a bus of one process.
    /// The loss of a server that does not answer is noticed after some seconds.
    pub fn is_connected(&self) -> bool {
        self.inner.nats.as_ref().is_none_or(Nats::is_connected)
    }

    /// Waits until what was published so far is on its way to the server, at most this long: for a
    /// last word before the process ends. False when it is not.
    pub async fn flush(&self, wait: Duration) -> bool {
        match &self.inner.nats {
            Some(nats) => nats.flush(wait).await,
            None => true,
        }
    }

    /// What the bus has done since it was made.
    pub fn stats(&self) -> Stats {
        self.inner.counts.stats()
    }
}
