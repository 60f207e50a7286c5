//! Actors as this project builds them. Each has a thread of its own (CPU work never runs on the
//! async reactor) and a bounded mailbox. Every envelope carries the caller's span.

#![forbid(unsafe_code)]

mod memory;
mod metrics;
mod processor;
mod queue;
mod running;
mod sender;

pub use memory::at_most_of_memory;
pub use metrics::describe as describe_metrics;
pub use processor::{AffinityGuard, CpuAffinity, processor};
pub use queue::Queued;
pub use running::Running;
pub use sender::{
    SendError, Sender, TaskSender, ThreadSender, WeakTaskSender, task_queue, thread_queue,
};

use crossbeam_channel::{Receiver, RecvTimeoutError, select};
use queue::Queue;
use sender::thread_queue_with;
use std::{
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tracing::Span;

/// Message on its way. It carries its span, so that a trace does not break at the mailbox, and the
/// time it was sent.
#[derive(Debug)]
pub struct Envelope<M> {
    /// The message.
    pub message: M,
    /// The sender's current span.
    pub span: Span,
    /// Time at which it was put into the mailbox; the wait shows where work piles up.
    pub sent: Instant,
}

/// Reason why a message was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// The mailbox is full: the caller may try again later.
    #[error("{0} is overloaded")]
    Overloaded(&'static str),
    /// The actor has stopped.
    #[error("{0} has stopped")]
    Stopped(&'static str),
}

/// Sending end of a bounded mailbox. Cheap to clone.
#[derive(Debug)]
pub struct Mailbox<M> {
    name: &'static str,
    sender: ThreadSender<(M, Span)>,
}

impl<M> Clone for Mailbox<M> {
    fn clone(&self) -> Self {
        Self { name: self.name, sender: self.sender.clone() }
    }
}

/// Receiving end of a mailbox.
#[derive(Debug)]
pub struct Inbox<M> {
    receiver: Receiver<Queued<(M, Span)>>,
}

/// Result of waiting on an inbox.
#[derive(Debug)]
pub enum Received<M> {
    /// A message.
    Message(Envelope<M>),
    /// No message came within the time the actor was willing to wait.
    Idle,
    /// No sender is left.
    Closed,
}

/// Result of waiting on an inbox and on a channel beside it.
#[derive(Debug)]
pub enum ReceivedOr<M, R> {
    /// A message.
    Message(Envelope<M>),
    /// A value from the channel.
    Other(R),
    /// Nothing came within the time the actor was willing to wait.
    Idle,
    /// No sender is left, either of messages or of the channel.
    Closed,
}

/// Creates a mailbox that holds `capacity` messages. `name` is the actor's name in errors and
/// metrics. Metrics of mailboxes with the same name are added up.
pub fn mailbox<M>(name: &'static str, capacity: usize) -> (Mailbox<M>, Inbox<M>) {
    mailbox_with(name, capacity, Queue::named(name))
}

fn mailbox_with<M>(name: &'static str, capacity: usize, queue: Queue) -> (Mailbox<M>, Inbox<M>) {
    let (sender, receiver) = thread_queue_with(queue, capacity);
    (Mailbox { name, sender }, Inbox { receiver })
}

impl<M> Mailbox<M> {
    /// Puts a message into the mailbox, or refuses it at once if the mailbox is full. The message
    /// holds the current span, which cannot end before the message is taken.
    ///
    /// # Errors
    /// [`Error::Overloaded`], [`Error::Stopped`].
    pub fn try_send(&self, message: M) -> Result<(), Error> {
        self.try_send_in(Span::current(), message)
    }

    /// Puts a message into the mailbox like [`Mailbox::try_send`], with this span.
    /// [`Span::none`] keeps no span open.
    ///
    /// # Errors
    /// [`Error::Overloaded`], [`Error::Stopped`].
    pub fn try_send_in(&self, span: Span, message: M) -> Result<(), Error> {
        self.sender.try_send((message, span)).map_err(|error| match error {
            SendError::Full => Error::Overloaded(self.name),
            SendError::Closed => Error::Stopped(self.name),
        })
    }

    /// Returns how many more messages fit at this moment.
    pub fn room(&self) -> usize {
        self.sender.room()
    }

    /// Returns whether no message is waiting at this moment.
    pub fn is_empty(&self) -> bool {
        self.sender.is_empty()
    }

    /// Puts a message into the mailbox. Blocks while the mailbox is full, so never call it in async
    /// code. The message holds the current span, which cannot end before the message is taken.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub fn send(&self, message: M) -> Result<(), Error> {
        self.send_in(Span::current(), message)
    }

    /// Puts a message into the mailbox like [`Mailbox::send`], with this span. [`Span::none`] keeps
    /// no span open.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub fn send_in(&self, span: Span, message: M) -> Result<(), Error> {
        let sent = self.sender.send((message, span));
        sent.map_err(|_| Error::Stopped(self.name))
    }

    /// Sends a question at once and returns a future of its answer, which may be awaited elsewhere
    /// and later. `message` makes the message from the channel for the answer.
    ///
    /// # Errors
    /// [`Error::Overloaded`], [`Error::Stopped`] (also if the actor drops the question).
    pub fn ask<R, F>(&self, message: F) -> impl Future<Output = Result<R, Error>> + use<M, R, F>
    where
        F: FnOnce(oneshot::Sender<R>) -> M,
    {
        let (reply, answer) = oneshot::channel();
        let (sent, name) = (self.try_send(message(reply)), self.name);
        async move {
            sent?;
            answer.await.map_err(|_| Error::Stopped(name))
        }
    }
}

fn envelope<M>(queued: Queued<(M, Span)>) -> Envelope<M> {
    let ((message, span), sent) = queued.take_with_time();
    Envelope { message, span, sent }
}

impl<M> Inbox<M> {
    /// Waits for the next message without a time limit; `None` if no sender is left.
    pub fn wait(&self) -> Option<Envelope<M>> {
        self.receiver.recv().ok().map(envelope)
    }

    /// Waits for the next message, at most `wait`.
    pub fn receive(&self, wait: Duration) -> Received<M> {
        match self.receiver.recv_timeout(wait) {
            Ok(queued) => Received::Message(envelope(queued)),
            Err(RecvTimeoutError::Timeout) => Received::Idle,
            Err(RecvTimeoutError::Disconnected) => Received::Closed,
        }
    }

    /// Waits for the next message or for a value from a channel beside the mailbox, whichever comes
    /// first, at most `wait`.
    pub fn receive_or<R>(&self, other: &Receiver<R>, wait: Duration) -> ReceivedOr<M, R> {
        select! {
            recv(self.receiver) -> message => {
                message.map_or(ReceivedOr::Closed, |queued| ReceivedOr::Message(envelope(queued)))
            }
            recv(other) -> value => value.map_or(ReceivedOr::Closed, ReceivedOr::Other),
            default(wait) => ReceivedOr::Idle,
        }
    }

    /// Returns the next message if one is already waiting.
    pub fn try_receive(&self) -> Option<Envelope<M>> {
        self.receiver.try_recv().ok().map(envelope)
    }

    /// Returns the number of messages that are waiting.
    pub fn len(&self) -> usize {
        self.receiver.len()
    }

    /// Returns whether no message is waiting.
    pub fn is_empty(&self) -> bool {
        self.receiver.is_empty()
    }
}

impl<M> Drop for Inbox<M> {
    fn drop(&mut self) {
        // No one takes these messages any more, but the channel keeps them while a sender exists.
        self.receiver.try_iter().for_each(drop);
    }
}

/// Runs an actor's loop on a thread of its own. If an actor panics, `fatal` is cancelled and the
/// process's services stop in order: half a client is worse than a restarted one.
///
/// # Errors
/// Error of the operating system if it cannot create a thread.
pub fn spawn(
    name: &str,
    fatal: CancellationToken,
    run: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    let builder = thread::Builder::new().name(name.to_owned());
    builder.spawn(move || {
        let guard = CancelOnPanic(fatal);
        run();
        std::mem::forget(guard);
    })
}

/// Runs an actor's loop as [`spawn`] does, for work that can wait. Beside threads that a block
/// waits for, it gets little processor time (on Linux, where threads have priorities of their own).
/// A loop that works for long should yield now and then: a low priority does not cut short a time
/// slice that has begun.
///
/// # Errors
/// See [`spawn`].
pub fn spawn_in_background(
    name: &str,
    fatal: CancellationToken,
    run: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    spawn(name, fatal, || {
        take_background_priority();
        run();
    })
}

/// Gives the calling thread the priority of [`spawn_in_background`], for good.
pub fn take_background_priority() {
    #[cfg(target_os = "linux")]
    lower_priority(BACKGROUND_NICENESS);
}

/// Gives the calling thread the lowest priority of its kind, for good, for work that no block waits
/// for. The thread still gets a little of a busy processor, so a lock that it holds is released
/// soon. Has no effect on systems where threads have no priorities of their own.
pub fn take_lowest_priority() {
    #[cfg(target_os = "linux")]
    lower_priority(LOWEST_NICENESS);
}

/// Gives the calling thread the class `SCHED_IDLE` (sched(7)), for good, for what strangers send. To a thread that
/// wakes up, a processor that runs threads of this class alone is free. It may wait for one with a thread of the
/// lowest niceness. Between threads of other classes, such a thread gets a three hundredth of a busy processor.
/// Elsewhere than on Linux, or where the class is refused, it is the lowest priority.
pub fn take_idle_priority() {
    take_lowest_priority();
    #[cfg(target_os = "linux")]
    {
        use thread_priority::{
            NormalThreadSchedulePolicy::Idle, ThreadPriority, ThreadSchedulePolicy::Normal,
            set_thread_priority_and_policy, thread_native_id,
        };
        let _ =
            set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, Normal(Idle));
    }
}

/// Lowers the priority of the calling thread: here the kernel treats threads as processes.
#[cfg(target_os = "linux")]
fn lower_priority(niceness: i32) {
    use rustix::process::{getpriority_process, setpriority_process};
    if getpriority_process(None).is_ok_and(|current| current < niceness) {
        // Lowering a priority is always allowed.
        let _ = setpriority_process(None, niceness);
    }
}

/// Niceness that gives a thread a tenth of the usual weight.
#[cfg(target_os = "linux")]
const BACKGROUND_NICENESS: i32 = 10;

/// Niceness that gives a thread a seventieth of the usual weight.
#[cfg(target_os = "linux")]
const LOWEST_NICENESS: i32 = 19;

struct CancelOnPanic(CancellationToken);

impl Drop for CancelOnPanic {
    fn drop(&mut self) {
        tracing::error!(thread = thread::current().name(), "actor panicked, stopping");
        self.0.cancel();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn what_runs_in_the_background_lowers_itself_alone() {
        use rustix::process::getpriority_process;
        let here = getpriority_process(None).unwrap();
        let (sender, there) = std::sync::mpsc::channel();
        let run = move || sender.send(getpriority_process(None).unwrap()).unwrap();
        spawn_in_background("background", CancellationToken::new(), run).unwrap().join().unwrap();
        assert_eq!(there.recv().unwrap(), here.max(BACKGROUND_NICENESS));
        assert_eq!(getpriority_process(None).unwrap(), here);
        let lowest = thread::spawn(|| {
            take_lowest_priority();
            getpriority_process(None).unwrap()
        });
        assert_eq!(lowest.join().unwrap(), LOWEST_NICENESS);
        let class = || {
            let text = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            // The class is the 39th field after the name, which ends with a bracket. 5 is SCHED_IDLE.
            text.rsplit(')').next().unwrap().split_whitespace().nth(38).unwrap().to_owned()
        };
        let idle = thread::spawn(move || {
            take_idle_priority();
            class()
        });
        assert_eq!(idle.join().unwrap(), "5");
        assert_eq!((getpriority_process(None).unwrap(), class()), (here, "0".to_owned()));
    }

    #[test]
    fn a_full_mailbox_refuses_and_an_abandoned_one_says_so() {
        let (mailbox, inbox) = mailbox::<u8>("test", 1);
        mailbox.try_send(1).unwrap();
        assert_eq!(mailbox.try_send(2), Err(Error::Overloaded("test")));
        assert!(matches!(inbox.receive(Duration::ZERO), Received::Message(e) if e.message == 1));
        assert!(matches!(inbox.receive(Duration::ZERO), Received::Idle));
        drop(inbox);
        assert_eq!(mailbox.send(3), Err(Error::Stopped("test")));
    }

    #[test]
    fn messages_that_wait_are_counted_until_they_are_taken_and_refused_ones_too() {
        let shown = queue::tests::Shown::default();
        let (mailbox, inbox) = mailbox_with::<u8>("test", 3, shown.queue());
        mailbox.try_send(1).unwrap();
        mailbox.send(2).unwrap();
        mailbox.clone().send(3).unwrap();
        assert_eq!(mailbox.try_send(4), Err(Error::Overloaded("test")));
        assert_eq!(shown.counts(), (3.0, 0, 1));
        assert!(inbox.try_receive().is_some() && inbox.wait().is_some());
        assert_eq!(shown.counts(), (1.0, 2, 1));
        mailbox.send(5).unwrap();
        drop(inbox);
        assert_eq!(mailbox.try_send(6), Err(Error::Stopped("test")));
        assert_eq!(shown.counts(), (0.0, 2, 1), "with the actor goes what it had not taken");
    }

    #[test]
    fn an_actor_without_a_timer_waits_until_nobody_is_left_to_send() {
        let (mailbox, inbox) = mailbox::<u8>("test", 2);
        let actor = thread::spawn(move || std::iter::from_fn(|| inbox.wait()).count());
        mailbox.send(1).unwrap();
        mailbox.send(2).unwrap();
        drop(mailbox);
        assert_eq!(actor.join().unwrap(), 2);
    }

    #[test]
    fn an_actor_hears_its_mailbox_and_a_channel_beside_it() {
        let (mailbox, inbox) = mailbox::<u8>("test", 1);
        let (sender, side) = crossbeam_channel::bounded::<char>(1);
        assert!(matches!(inbox.receive_or(&side, Duration::ZERO), ReceivedOr::Idle));
        mailbox.try_send(1).unwrap();
        assert_eq!(mailbox.room(), 0);
        let received = inbox.receive_or(&side, Duration::from_secs(10));
        assert!(matches!(received, ReceivedOr::Message(e) if e.message == 1));
        sender.send('a').unwrap();
        let received = inbox.receive_or(&side, Duration::from_secs(10));
        assert!(matches!(received, ReceivedOr::Other('a')));
        drop(sender);
        assert!(matches!(inbox.receive_or(&side, Duration::ZERO), ReceivedOr::Closed));
    }

    #[test]
    fn a_panicking_actor_cancels_the_rest() {
        let fatal = CancellationToken::new();
        let thread = spawn("doomed", fatal.clone(), || panic!("on purpose")).unwrap();
        assert!(thread.join().is_err());
        assert!(fatal.is_cancelled());
    }

    #[tokio::test]
    async fn asking_gets_the_answer_or_learns_that_nobody_is_there() {
        let (mailbox, inbox) = mailbox::<oneshot::Sender<u8>>("test", 1);
        let fatal = CancellationToken::new();
        let actor = spawn("answering", fatal, move || {
            if let Received::Message(envelope) = inbox.receive(Duration::from_secs(10)) {
                let _ = envelope.message.send(7);
            }
        });
        assert_eq!(mailbox.ask(|reply| reply).await, Ok(7));
        actor.unwrap().join().unwrap();
        assert_eq!(mailbox.ask(|reply| reply).await, Err(Error::Stopped("test")));
    }
}
