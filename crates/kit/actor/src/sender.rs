//! Sending end of a queue: a channel with metrics.

use crate::{Queue, Queued};
use crossbeam_channel as crossbeam;
use std::time::Duration;
use tokio::{
    runtime::Handle,
    sync::mpsc::{self, error::TrySendError},
    time::timeout,
};

/// Sending end of a bounded queue over a channel of crossbeam ([`ThreadSender`]) or of tokio
/// ([`TaskSender`]). A message counts as waiting until the receiver takes it out, and as refused if
/// there is no room for it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Sender<C> {
    channel: C,
    queue: Queue,
}

/// Sender to a thread.
pub type ThreadSender<T> = Sender<crossbeam::Sender<Queued<T>>>;
/// Sender to a task of a reactor.
pub type TaskSender<T> = Sender<mpsc::Sender<Queued<T>>>;
/// Sender to a task that does not keep the queue open.
pub type WeakTaskSender<T> = Sender<mpsc::WeakSender<Queued<T>>>;

/// Reason why a message was not sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendError {
    /// There was no room.
    Full,
    /// The receiver is gone.
    Closed,
}

/// Creates a queue to a thread that holds `capacity` messages. Its metrics are shown under `name`;
/// those of queues with the same name are added up.
pub fn thread_queue<T>(
    name: &'static str,
    capacity: usize,
) -> (ThreadSender<T>, crossbeam::Receiver<Queued<T>>) {
    thread_queue_with(Queue::named(name), capacity)
}

pub(crate) fn thread_queue_with<T>(
    queue: Queue,
    capacity: usize,
) -> (ThreadSender<T>, crossbeam::Receiver<Queued<T>>) {
    let (channel, receiver) = crossbeam::bounded(capacity);
    (Sender { channel, queue }, receiver)
}

/// Creates a queue to a task; otherwise as [`thread_queue`]. It has room for at least one message.
pub fn task_queue<T>(
    name: &'static str,
    capacity: usize,
) -> (TaskSender<T>, mpsc::Receiver<Queued<T>>) {
    task_queue_with(Queue::named(name), capacity)
}

fn task_queue_with<T>(queue: Queue, capacity: usize) -> (TaskSender<T>, mpsc::Receiver<Queued<T>>) {
    let (channel, receiver) = mpsc::channel(capacity.max(1));
    (Sender { channel, queue }, receiver)
}

impl<T> ThreadSender<T> {
    /// Sends a message, or refuses it at once if there is no room.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn try_send(&self, message: T) -> Result<(), SendError> {
        self.channel.try_send(self.queue.put(message)).map_err(|error| match error {
            crossbeam::TrySendError::Full(_) => self.queue.refuse(),
            crossbeam::TrySendError::Disconnected(_) => SendError::Closed,
        })
    }

    /// Sends a message. Blocks while there is no room, so never call it in async code.
    ///
    /// # Errors
    /// [`SendError::Closed`].
    pub fn send(&self, message: T) -> Result<(), SendError> {
        self.channel.send(self.queue.put(message)).map_err(|_| SendError::Closed)
    }

    /// Returns how many more messages fit at this moment.
    pub fn room(&self) -> usize {
        self.channel.capacity().map_or(usize::MAX, |capacity| capacity - self.channel.len())
    }

    /// Returns whether no message is waiting at this moment.
    pub fn is_empty(&self) -> bool {
        self.channel.is_empty()
    }
}

impl<T> TaskSender<T> {
    /// Sends a message, or refuses it at once if there is no room.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn try_send(&self, message: T) -> Result<(), SendError> {
        self.try_send_leaving(0, message)
    }

    /// Sends a message, or refuses it at once if that would leave fewer than `places` free places.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn try_send_leaving(&self, places: usize, message: T) -> Result<(), SendError> {
        if places > 0 && self.channel.capacity() <= places {
            return Err(self.queue.refuse());
        }
        self.channel.try_send(self.queue.put(message)).map_err(|error| match error {
            TrySendError::Full(_) => self.queue.refuse(),
            TrySendError::Closed(_) => SendError::Closed,
        })
    }

    /// Sends a message as soon as there is room.
    ///
    /// # Errors
    /// [`SendError::Closed`].
    pub async fn send(&self, message: T) -> Result<(), SendError> {
        self.channel.send(self.queue.put(message)).await.map_err(|_| SendError::Closed)
    }

    /// Sends a message from a thread. Blocks at most `wait_max` while there is no room, so never
    /// call it in async code.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send_within(
        &self,
        wait_max: Duration,
        runtime: &Handle,
        message: T,
    ) -> Result<(), SendError> {
        let message = match self.channel.try_send(self.queue.put(message)) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Closed(_)) => return Err(SendError::Closed),
            Err(TrySendError::Full(message)) => message,
        };
        let sent = async { timeout(wait_max, self.channel.send(message)).await };
        match runtime.block_on(sent) {
            Ok(sent) => sent.map_err(|_| SendError::Closed),
            Err(_) => Err(self.queue.refuse()),
        }
    }

    /// Returns a sender that does not keep the queue open.
    pub fn downgrade(&self) -> WeakTaskSender<T> {
        Sender { channel: self.channel.downgrade(), queue: self.queue.clone() }
    }
}

impl<T> WeakTaskSender<T> {
    /// Returns a sender that can send, as long as another one still exists.
    pub fn upgrade(&self) -> Option<TaskSender<T>> {
        Some(Sender { channel: self.channel.upgrade()?, queue: self.queue.clone() })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::queue::tests::Shown;

    #[test]
    fn a_thread_that_has_no_room_refuses_and_counts_it() {
        let shown = Shown::default();
        let (sender, receiver) = thread_queue_with(shown.queue(), 2);
        sender.try_send(1).unwrap();
        sender.clone().send(2).unwrap();
        assert_eq!((sender.room(), sender.try_send(3)), (0, Err(SendError::Full)));
        assert_eq!(shown.counts(), (2.0, 0, 1));
        assert_eq!(receiver.recv().unwrap().take(), 1);
        assert_eq!(sender.room(), 1);
        drop(receiver);
        assert_eq!(sender.try_send(4), Err(SendError::Closed));
        assert_eq!(sender.send(5), Err(SendError::Closed));
        assert_eq!(shown.counts().2, 1, "nobody there is no lack of room");
    }

    #[tokio::test]
    async fn a_task_that_has_no_room_refuses_and_counts_it() {
        let shown = Shown::default();
        let (sender, mut receiver) = task_queue_with(shown.queue(), 2);
        sender.send(1).await.unwrap();
        assert_eq!(sender.try_send_leaving(1, 2), Err(SendError::Full));
        sender.try_send(2).unwrap();
        assert_eq!(sender.try_send(3), Err(SendError::Full));
        assert_eq!(shown.counts(), (2.0, 0, 2));
        assert_eq!(receiver.recv().await.unwrap().take(), 1);
        sender.try_send_leaving(0, 4).unwrap();
        drop(receiver);
        assert_eq!(sender.try_send(5), Err(SendError::Closed));
        assert_eq!(sender.send(6).await, Err(SendError::Closed));
        assert_eq!(shown.counts(), (0.0, 1, 2));
    }

    #[test]
    fn who_waited_for_room_in_vain_is_refused_and_who_got_it_is_not() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let shown = Shown::default();
        let (sender, mut receiver) = task_queue_with(shown.queue(), 1);
        let send = |millis| sender.send_within(Duration::from_millis(millis), runtime.handle(), 1);
        send(0).unwrap();
        assert_eq!(send(10), Err(SendError::Full));
        assert_eq!(shown.counts(), (1.0, 0, 1));
        let taken = runtime.spawn(async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            receiver.recv().await.unwrap().take();
            receiver
        });
        send(60_000).unwrap();
        let receiver = runtime.block_on(taken).unwrap();
        assert_eq!(shown.counts(), (1.0, 1, 1));
        drop(receiver);
        assert_eq!(send(0), Err(SendError::Closed));
    }

    #[test]
    fn a_weak_sender_keeps_nobody_waiting() {
        let (sender, mut receiver) = task_queue_with(Shown::default().queue(), 1);
        let weak = sender.downgrade();
        weak.upgrade().unwrap().try_send(1).unwrap();
        assert_eq!(receiver.blocking_recv().unwrap().take(), 1);
        drop(sender);
        assert!(weak.upgrade().is_none() && receiver.blocking_recv().is_none());
    }
}
