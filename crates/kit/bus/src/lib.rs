//! The event bus: subjects, fan-out to every subscriber, nothing kept for those who come later.
//!
//! Overload rule: each subscriber has a ring of [`CAPACITY`] messages; the oldest are dropped for
//! one that lags. Events are hints (the truth is asked of its owner), so a consumer that missed
//! some is slower at worst.

use bytes::Bytes;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::broadcast;

/// Messages that a subscriber may lag behind before it loses the oldest.
pub const CAPACITY: usize = 256;

/// The in-memory bus of one process. Clones share it.
#[derive(Clone, Default)]
pub struct Bus {
    subjects: Arc<Mutex<HashMap<&'static str, broadcast::Sender<Bytes>>>>,
}

/// One subscriber's end.
pub struct Subscription {
    receiver: broadcast::Receiver<Bytes>,
}

impl Bus {
    /// Gives the payload to everyone who is subscribed at this moment. Never waits.
    pub fn publish(&self, subject: &'static str, payload: Bytes) {
        // An error means that nobody listens, which is no concern of the publisher.
        let _ = self.sender(subject).send(payload);
    }

    /// Everything published on the subject from now on.
    pub fn subscribe(&self, subject: &'static str) -> Subscription {
        Subscription { receiver: self.sender(subject).subscribe() }
    }

    fn sender(&self, subject: &'static str) -> broadcast::Sender<Bytes> {
        let mut subjects = self.subjects.lock().unwrap_or_else(PoisonError::into_inner);
        subjects.entry(subject).or_insert_with(|| broadcast::channel(CAPACITY).0).clone()
    }
}

impl Subscription {
    /// The next message that is there already, `None` when there is none. Lost messages are
    /// skipped silently.
    pub fn try_next(&mut self) -> Option<Bytes> {
        loop {
            match self.receiver.try_recv() {
                Ok(payload) => return Some(payload),
                Err(broadcast::error::TryRecvError::Lagged(_)) => {}
                Err(_) => return None,
            }
        }
    }

    /// Waits for the next message; `None` once the bus is gone.
    pub async fn next(&mut self) -> Option<Bytes> {
        loop {
            match self.receiver.recv().await {
                Ok(payload) => return Some(payload),
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subscriber_gets_what_is_published_after_it_subscribed() {
        let bus = Bus::default();
        bus.publish("a", Bytes::from_static(b"0"));
        let (mut first, mut second) = (bus.subscribe("a"), bus.subscribe("a"));
        let mut other = bus.subscribe("b");
        bus.publish("a", Bytes::from_static(b"1"));
        assert_eq!(first.try_next().as_deref(), Some(&b"1"[..]));
        assert_eq!(second.try_next().as_deref(), Some(&b"1"[..]));
        assert_eq!(first.try_next(), None);
        assert_eq!(other.try_next(), None);
    }

    #[test]
    fn a_lagging_subscriber_loses_the_oldest() {
        let bus = Bus::default();
        let mut lagging = bus.subscribe("a");
        for n in 0..=CAPACITY {
            bus.publish("a", Bytes::copy_from_slice(&n.to_be_bytes()));
        }
        assert_eq!(lagging.try_next().as_deref(), Some(&1usize.to_be_bytes()[..]));
    }
}
