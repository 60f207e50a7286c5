//! Messages that wait to be sent: a bounded queue that drops the oldest.

use super::{OUTBOX_BYTES, OUTBOX_MESSAGES};
use crate::{Message, metrics};
use ::metrics::{Gauge, Histogram, gauge, histogram};
use std::{
    borrow::Cow,
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};
use tokio::sync::{Notify, oneshot};

/// Order to the sending task.
pub enum Item {
    /// A message on a subject.
    Message(Cow<'static, str>, Message),
    /// Request to answer once everything before it is on its way.
    Flush(oneshot::Sender<()>),
}

impl Item {
    fn bytes(&self) -> usize {
        match self {
            Self::Message(_, message) => message.payload.len(),
            Self::Flush(_) => 0,
        }
    }
}

/// Queue that any thread fills and one task empties.
pub struct Outbox {
    queue: Mutex<Queue>,
    filled: Notify,
    /// Metric looked up once, as many events pass here.
    waiting: Gauge,
    waits: Histogram,
}

impl Default for Outbox {
    fn default() -> Self {
        Self {
            queue: Mutex::default(),
            filled: Notify::new(),
            waiting: gauge!(metrics::OUTBOX),
            waits: histogram!(metrics::OUTBOX_WAIT_SECONDS),
        }
    }
}

#[derive(Default)]
struct Queue {
    /// Items with the time at which their wait began.
    items: VecDeque<(Instant, Item)>,
    bytes: usize,
}

impl Queue {
    fn push(&mut self, item: Item) {
        self.bytes += item.bytes();
        self.items.push_back((Instant::now(), item));
    }

    fn pop(&mut self) -> Option<(Instant, Item)> {
        let (since, item) = self.items.pop_front()?;
        self.bytes -= item.bytes();
        Some((since, item))
    }
}

impl Outbox {
    /// Appends an item. Returns the number of messages dropped to make room for it.
    pub fn push(&self, item: Item) -> u64 {
        let mut dropped = 0;
        {
            let mut queue = self.queue();
            queue.push(item);
            // A message is smaller than the limit, so the new one stays.
            while queue.items.len() > OUTBOX_MESSAGES || queue.bytes > OUTBOX_BYTES {
                dropped += u64::from(matches!(queue.pop(), Some((_, Item::Message(..)))));
            }
            self.waiting.set(queue.items.len() as f64);
        }
        self.filled.notify_one();
        dropped
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pop(&self) -> Option<Item> {
        let (since, item) = {
            let mut queue = self.queue();
            let oldest = queue.pop()?;
            self.waiting.set(queue.items.len() as f64);
            oldest
        };
        self.waits.record(since.elapsed());
        Some(item)
    }

    /// Takes the oldest item; waits while there is none.
    pub async fn next(&self) -> Item {
        loop {
            if let Some(item) = self.pop() {
                return item;
            }
            self.filled.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAYLOAD_BYTES_MAX;
    use futures_util::FutureExt;

    fn message(payload: Vec<u8>) -> Item {
        Item::Message("a".into(), Message { payload: payload.into(), context: None, member: None })
    }

    fn first_byte(item: Option<Item>) -> Option<u8> {
        match item {
            Some(Item::Message(_, message)) => message.payload.first().copied(),
            _ => None,
        }
    }

    #[test]
    fn the_oldest_makes_room_by_number() {
        let outbox = Outbox::default();
        assert_eq!(outbox.push(message(vec![1])), 0);
        for _ in 1..OUTBOX_MESSAGES {
            assert_eq!(outbox.push(message(vec![2])), 0);
        }
        assert_eq!(outbox.push(message(vec![3])), 1);
        for _ in 1..OUTBOX_MESSAGES {
            assert_eq!(first_byte(outbox.next().now_or_never()), Some(2));
        }
        assert_eq!(first_byte(outbox.next().now_or_never()), Some(3));
        assert!(outbox.next().now_or_never().is_none());
    }

    #[test]
    fn the_oldest_makes_room_by_bytes() {
        let outbox = Outbox::default();
        let fit = OUTBOX_BYTES / PAYLOAD_BYTES_MAX;
        for n in 0..fit {
            assert_eq!(outbox.push(message(vec![n as u8; PAYLOAD_BYTES_MAX])), 0);
        }
        assert_eq!(outbox.push(message(vec![99])), 1);
        assert_eq!(first_byte(outbox.next().now_or_never()), Some(1));
    }

    #[test]
    fn a_flush_that_made_room_is_no_lost_message_and_its_caller_learns_of_it() {
        let outbox = Outbox::default();
        let (done, mut answer) = oneshot::channel();
        assert_eq!(outbox.push(Item::Flush(done)), 0);
        for _ in 0..OUTBOX_MESSAGES {
            assert_eq!(outbox.push(message(vec![1])), 0);
        }
        assert!(matches!(answer.try_recv(), Err(oneshot::error::TryRecvError::Closed)));
    }
}
