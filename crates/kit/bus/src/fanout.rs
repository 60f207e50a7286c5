//! Fan-out within the process: part of every bus, and all that a bus of one process does.

use crate::{CAPACITY, Message, stats::Counts};
use bytes::Bytes;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::{
    Notify,
    broadcast::{self, error::RecvError, error::TryRecvError},
};

/// Subjects that were ever published on or subscribed to: a few, all known at compile time.
#[derive(Default)]
pub(crate) struct Fanout {
    topics: Mutex<HashMap<&'static str, Arc<Topic>>>,
}

/// One subject.
pub(crate) struct Topic {
    pub subject: &'static str,
    sender: broadcast::Sender<Message>,
    /// Notified when a subscriber comes or goes. At most one task listens.
    interest: Arc<Notify>,
}

/// Receiving end of one subscriber.
pub struct Subscription {
    // Declared before `_leaving`, so that the subscriber is gone when its leaving is announced.
    receiver: broadcast::Receiver<Message>,
    _leaving: Leaving,
    counts: Arc<Counts>,
}

struct Leaving(Arc<Notify>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

impl Fanout {
    pub fn topic(&self, subject: &'static str) -> Arc<Topic> {
        let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || {
            let (sender, interest) = (broadcast::channel(CAPACITY).0, Arc::default());
            Arc::new(Topic { subject, sender, interest })
        };
        topics.entry(subject).or_insert_with(new).clone()
    }
}

impl Topic {
    /// Sends a message to all current subscribers.
    pub fn give(&self, message: Message) {
        // An error means that there are no subscribers, which does not concern the publisher.
        let _ = self.sender.send(message);
    }

    pub fn subscribe(&self, counts: Arc<Counts>) -> Subscription {
        let receiver = self.sender.subscribe();
        self.interest.notify_one();
        Subscription { receiver, _leaving: Leaving(self.interest.clone()), counts }
    }

    /// Waits until there is a subscriber, or until there is none.
    pub async fn until_wanted(&self, wanted: bool) {
        while (self.sender.receiver_count() > 0) != wanted {
            self.interest.notified().await;
        }
    }
}

impl Subscription {
    /// Returns the payload of [`Self::try_next_message`].
    pub fn try_next(&mut self) -> Option<Bytes> {
        self.try_next_message().map(|message| message.payload)
    }

    /// Returns the payload of [`Self::next_message`].
    pub async fn next(&mut self) -> Option<Bytes> {
        self.next_message().await.map(|message| message.payload)
    }

    /// Returns the next message that has already arrived, `None` if there is none. Lost messages
    /// are skipped and counted.
    pub fn try_next_message(&mut self) -> Option<Message> {
        loop {
            match self.receiver.try_recv() {
                Ok(message) => return Some(message),
                Err(TryRecvError::Lagged(messages)) => self.counts.lagged(messages),
                Err(_) => return None,
            }
        }
    }

    /// Waits for the next message; `None` once the bus is gone. Dropping the future loses no
    /// message.
    pub async fn next_message(&mut self) -> Option<Message> {
        loop {
            match self.receiver.recv().await {
                Ok(message) => return Some(message),
                Err(RecvError::Lagged(messages)) => self.counts.lagged(messages),
                Err(RecvError::Closed) => return None,
            }
        }
    }
}
