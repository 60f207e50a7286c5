//! Stream of one connection to the workers, from its opening to its loss.

use crossbeam_channel::{Receiver, Sender, bounded};
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    mem,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};
use tandem_actor::{Queued, TaskSender, WeakTaskSender};
use tandem_primitives::{B256, ShardSet};
use tandem_proto::{
    convert::{Command, SessionAnswer, SessionCommand, UpdateParts},
    multiproof::{Error, MergedUpdates, ShardRoots, StateUpdate, Status},
    wire::multiproof_workers::v1::{
        self, multiproof_workers_client::MultiproofWorkersClient,
        process_block_request::Command as WireCommand,
    },
};
use tokio::{
    runtime::Handle,
    sync::mpsc,
    time::{Sleep, sleep},
};
use tokio_stream::Stream;
use tonic::transport::Channel;

/// Rest after updates, in which the next ones come together. The clock of the runtime counts in
/// milliseconds.
const REST: Duration = Duration::from_millis(1);

/// Number of changed keys from which on an update takes no other into its message. A few large updates
/// would otherwise fill the queue of the workers, which is bounded by number.
const MERGED_KEYS: usize = 512;

/// Outcome of one session.
#[derive(Debug)]
pub struct SessionOutcome {
    pub result: Result<ShardRoots, Error>,
    /// Time of its arrival.
    pub at: Instant,
}

impl SessionOutcome {
    fn now(result: Result<ShardRoots, Error>) -> Self {
        Self { result, at: Instant::now() }
    }
}

/// Sessions that wait for their answers; `None` after the loss of the connection.
type PendingSessions = Option<HashMap<u64, Sender<SessionOutcome>>>;

/// Stream of commands to the workers, and the sessions that wait for an answer over it.
pub struct ProofStream {
    /// The sender itself is with the reader of the answers, so the stream ends with that reader.
    commands: WeakTaskSender<SessionCommand>,
    pending: Mutex<PendingSessions>,
    calls: MultiproofWorkersClient<Channel>,
    urgency: Arc<Urgency>,
}

/// Error of a command that was not taken: the connection is lost, or did not take it in time.
#[derive(Debug)]
pub struct NotSent;

impl ProofStream {
    pub fn new(
        commands: &TaskSender<SessionCommand>,
        calls: MultiproofWorkersClient<Channel>,
        urgency: Arc<Urgency>,
    ) -> Self {
        let pending = Mutex::new(Some(HashMap::new()));
        Self { commands: commands.downgrade(), pending, calls, urgency }
    }

    /// Returns the receiver of a session's answer, `None` after the loss of the connection.
    pub fn register(&self, session: u64) -> Option<Receiver<SessionOutcome>> {
        let (sender, receiver) = bounded(1);
        self.pending.lock().as_mut()?.insert(session, sender);
        Some(receiver)
    }

    /// Forgets a session that does not wait for its answer any more.
    pub fn forget(&self, session: u64) {
        if let Some(pending) = self.pending.lock().as_mut() {
            pending.remove(&session);
        }
    }

    /// Delivers an answer to the session that waits for it, if it still does.
    pub fn deliver(&self, SessionAnswer { session, result }: SessionAnswer) {
        let sender = self.pending.lock().as_mut().and_then(|pending| pending.remove(&session));
        if let Some(sender) = sender {
            let _ = sender.try_send(SessionOutcome::now(result));
        }
    }

    /// Fails all sessions, because the connection is lost.
    pub fn close(&self, error: &Error) {
        for (_, sender) in self.pending.lock().take().into_iter().flatten() {
            let _ = sender.try_send(SessionOutcome::now(Err(error.clone())));
        }
    }

    /// Puts a command into the queue. Waits at most `wait_max` while the queue is full.
    pub fn send(
        &self,
        command: SessionCommand,
        runtime: &Handle,
        wait_max: Duration,
    ) -> Result<(), NotSent> {
        let commands = self.commands.upgrade().ok_or(NotSent)?;
        let may_rest = may_rest(&command.command);
        commands.send_within(wait_max, runtime, command).map_err(|_| NotSent)?;
        if !may_rest {
            self.urgency.raise();
        }
        Ok(())
    }

    /// Puts a command into the queue if there is room at once, and `keep_free` more places.
    pub fn try_send(&self, command: SessionCommand, keep_free: usize) -> Result<(), NotSent> {
        let commands = self.commands.upgrade().ok_or(NotSent)?;
        let may_rest = may_rest(&command.command);
        commands.try_send_leaving(keep_free, command).map_err(|_| NotSent)?;
        if !may_rest {
            self.urgency.raise();
        }
        Ok(())
    }

    /// Asks for the status of the workers.
    pub async fn status(&self) -> Result<Status, Error> {
        let answer = self.calls.clone().get_status(v1::GetStatusRequest {}).await?;
        Ok(answer.into_inner().try_into()?)
    }
}

/// Returns a command that belongs to no session.
pub fn without_session(command: Command) -> SessionCommand {
    SessionCommand { session: 0, command }
}

/// Returns the command that refuses a block.
pub fn discard(block: B256) -> SessionCommand {
    without_session(Command::Discard(block))
}

/// Returns whether a command may wait a little for the next ones.
fn may_rest(command: &Command) -> bool {
    matches!(command, Command::Update(_) | Command::Prefetch { .. } | Command::Foresee { .. })
}

/// Signal that a command must not wait for others.
#[derive(Default, Debug)]
pub struct Urgency {
    is_raised: AtomicBool,
    waker: AtomicWaker,
}

impl Urgency {
    fn raise(&self) {
        self.is_raised.store(true, SeqCst);
        self.waker.wake();
    }

    /// Returns whether the signal was raised since the last call. Otherwise wakes the task at the
    /// next one.
    fn poll(&self, cx: &Context<'_>) -> bool {
        self.waker.register(cx.waker());
        self.is_raised.swap(false, SeqCst)
    }
}

/// Outgoing stream of commands: the queue as messages. Updates that follow each other become one
/// message, with the last value of each key. It is reduced to the shards of its block, and a large
/// one is sent in parts. All messages that wait when the connection can take more go out in one frame.
///
/// After updates, the stream rests until more have come together or an urgent command comes. Without
/// that, each transaction of a block would wake a thread here and one at the workers.
pub struct CommandStream {
    queue: mpsc::Receiver<Queued<SessionCommand>>,
    /// Command that was taken from the queue after the last update.
    next: Option<SessionCommand>,
    urgency: Arc<Urgency>,
    rest_time: Duration,
    /// End of the current rest.
    rest: Pin<Box<Sleep>>,
    is_resting: bool,
    /// Whether an update was sent since the last rest.
    has_sent: bool,
    /// Shards that the open block asks for.
    shards: ShardSet,
    parts: Option<(u64, UpdateParts)>,
}

impl CommandStream {
    /// Creates the stream. Must be called in a runtime.
    pub fn new(queue: mpsc::Receiver<Queued<SessionCommand>>, urgency: Arc<Urgency>) -> Self {
        Self {
            queue,
            next: None,
            urgency,
            rest_time: REST,
            rest: Box::pin(sleep(Duration::ZERO)),
            is_resting: false,
            has_sent: false,
            shards: ShardSet::ALL,
            parts: None,
        }
    }

    /// Rests if there is nothing to send after an update, until the rest ends or is cut short.
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.is_resting {
            if !self.has_sent || self.next.is_some() || !self.queue.is_empty() {
                return Poll::Ready(());
            }
            self.has_sent = false;
            self.is_resting = true;
            self.rest.as_mut().reset(tokio::time::Instant::now() + self.rest_time);
        }
        if !self.urgency.poll(cx) {
            ready!(self.rest.as_mut().poll(cx));
        }
        self.is_resting = false;
        Poll::Ready(())
    }

    /// Takes the next command.
    fn poll_command(&mut self, cx: &mut Context<'_>) -> Poll<Option<SessionCommand>> {
        match self.next.take() {
            Some(command) => Poll::Ready(Some(command)),
            None => self.queue.poll_recv(cx).map(|queued| queued.map(Queued::take)),
        }
    }

    /// Returns an update of a session and those that follow it in the queue as one.
    fn with_following(&mut self, session: u64, first: Arc<StateUpdate>) -> Arc<StateUpdate> {
        let mut merged = MergedUpdates::default();
        let mut keys = key_count(&first);
        let mut last = first;
        while keys < MERGED_KEYS {
            match self.queue.try_recv().map(Queued::take) {
                Ok(SessionCommand { session: of, command: Command::Update(update) })
                    if of == session =>
                {
                    keys += key_count(&update);
                    merged.add(Arc::unwrap_or_clone(mem::replace(&mut last, update)));
                }
                Ok(command) => {
                    self.next = Some(command);
                    break;
                }
                Err(_) => break,
            }
        }
        if merged.is_empty() {
            return last;
        }
        merged.add(Arc::unwrap_or_clone(last));
        Arc::new(merged.take())
    }

    fn next_part(&mut self) -> Option<v1::ProcessBlockRequest> {
        let (session, parts) = self.parts.as_mut()?;
        let part = parts.next();
        let session = *session;
        if part.is_none() {
            self.parts = None;
        }
        let command = Some(WireCommand::Update(part?));
        Some(v1::ProcessBlockRequest { session, command })
    }
}

/// Returns the number of keys that an update changes, at least 1.
fn key_count(update: &StateUpdate) -> usize {
    let slots: usize = update.accounts.iter().map(|account| account.slots.len()).sum();
    (update.accounts.len() + slots).max(1)
}

impl Stream for CommandStream {
    type Item = v1::ProcessBlockRequest;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(message) = this.next_part() {
                return Poll::Ready(Some(message));
            }
            ready!(this.poll_rest(cx));
            match ready!(this.poll_command(cx)) {
                Some(SessionCommand { session, command: Command::Update(update) }) => {
                    this.has_sent = true;
                    let update = this.with_following(session, update);
                    this.parts = Some((session, UpdateParts::of_shards(update, this.shards)));
                }
                Some(command) => {
                    if let Command::Begin { begin, .. } = &command.command {
                        this.shards = begin.shards;
                    }
                    return Poll::Ready(Some(command.into()));
                }
                None => return Poll::Ready(None),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_actor::task_queue;
    use tandem_primitives::{Account, AccountUpdate};

    type Ends = (ProofStream, TaskSender<SessionCommand>, mpsc::Receiver<Queued<SessionCommand>>);

    fn stream(capacity: usize) -> Ends {
        let (sender, receiver) = task_queue("proof-commands", capacity);
        let channel = tonic::transport::Endpoint::from_static("http://127.0.0.1:1").connect_lazy();
        (
            ProofStream::new(&sender, MultiproofWorkersClient::new(channel), Arc::default()),
            sender,
            receiver,
        )
    }

    #[test]
    fn a_full_queue_is_waited_for_only_so_long() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let _entered = runtime.enter();
        let (stream, sender, mut receiver) = stream(2);
        let wait = Duration::from_millis(20);
        let send = || stream.send(discard(B256::ZERO), runtime.handle(), wait);
        assert!(send().is_ok());
        assert!(stream.try_send(discard(B256::ZERO), 1).is_err(), "one place is kept free");
        assert!(stream.try_send(discard(B256::ZERO), 0).is_ok());
        assert!(send().is_err());
        receiver.try_recv().unwrap();
        assert!(send().is_ok());
        receiver.try_recv().unwrap();
        drop(sender);
        assert!(send().is_err());
    }

    #[tokio::test]
    async fn updates_come_together_and_a_finish_is_not_kept_waiting() {
        let (sender, receiver) = task_queue("proof-commands", 8);
        let urgency = Arc::<Urgency>::default();
        let channel = tonic::transport::Endpoint::from_static("http://127.0.0.1:1").connect_lazy();
        let calls = MultiproofWorkersClient::new(channel);
        let stream = ProofStream::new(&sender, calls, urgency.clone());
        // A rest that only urgency ends.
        let rest_time = Duration::from_secs(3_600);
        let mut messages = CommandStream { rest_time, ..CommandStream::new(receiver, urgency) };
        let update = Command::Update(Arc::new(StateUpdate {
            accounts: vec![AccountUpdate {
                address_hash: B256::ZERO,
                account: None,
                wiped: false,
                slots: Vec::new(),
            }],
        }));
        let send = |command| stream.try_send(SessionCommand { session: 1, command }, 0).unwrap();
        let mut next = || {
            let mut cx = Context::from_waker(std::task::Waker::noop());
            Pin::new(&mut messages).poll_next(&mut cx).map(|message| message.unwrap().command)
        };
        send(update.clone());
        assert!(matches!(next(), Poll::Ready(Some(WireCommand::Update(_)))), "at once");
        assert!(next().is_pending());
        send(update);
        assert!(next().is_pending(), "it waits for more");
        send(Command::Finish);
        assert!(matches!(next(), Poll::Ready(Some(WireCommand::Update(_)))));
        assert!(matches!(next(), Poll::Ready(Some(WireCommand::Finish(_)))));
        assert!(next().is_pending());
    }

    #[tokio::test]
    async fn updates_that_follow_each_other_become_one_message() {
        let (sender, receiver) = task_queue("proof-commands", 2 * MERGED_KEYS);
        let urgency = Arc::<Urgency>::default();
        let channel = tonic::transport::Endpoint::from_static("http://127.0.0.1:1").connect_lazy();
        let calls = MultiproofWorkersClient::new(channel);
        let stream = ProofStream::new(&sender, calls, urgency.clone());
        let mut messages = CommandStream::new(receiver, urgency);
        let send =
            |session, command| stream.try_send(SessionCommand { session, command }, 0).unwrap();
        let update = |nonces: &[u64]| {
            let account = |nonce: &u64| AccountUpdate {
                address_hash: B256::repeat_byte(*nonce as u8 % 2),
                account: Some(Account { nonce: *nonce, ..Account::default() }),
                wiped: false,
                slots: Vec::new(),
            };
            Command::Update(Arc::new(StateUpdate {
                accounts: nonces.iter().map(account).collect(),
            }))
        };
        // Returns the session of the next message, and its update if it is one.
        let mut next = || {
            let mut cx = Context::from_waker(std::task::Waker::noop());
            let message = Pin::new(&mut messages).poll_next(&mut cx);
            let Poll::Ready(Some(message)) = message else { panic!("{message:?}") };
            let session = message.session;
            match SessionCommand::try_from(message).unwrap().command {
                Command::Update(update) => (session, Some(update)),
                _ => (session, None),
            }
        };
        let want = |nonces: &[u64]| match update(nonces) {
            Command::Update(update) => Some(update),
            _ => None,
        };
        (1..=3).for_each(|nonce| send(1, update(&[nonce])));
        send(1, Command::Finish);
        send(2, update(&[4]));
        send(3, update(&[5, 6]));
        send(3, update(&[7]));
        assert_eq!(next(), (1, want(&[3, 2])), "the last value of each account");
        assert_eq!(next(), (1, None));
        assert_eq!(next(), (2, want(&[4])), "of another session");
        assert_eq!(next(), (3, want(&[7, 6])));
        (0..MERGED_KEYS + 1).for_each(|_| send(3, update(&[9])));
        assert_eq!(next(), (3, want(&[9])), "a message takes in a bounded number");
        assert_eq!(next(), (3, want(&[9])));
    }

    #[test]
    fn a_lost_connection_fails_all_that_wait_and_takes_nobody_in() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let _entered = runtime.enter();
        let (stream, _sender, _receiver) = stream(2);
        let (one, two) = (stream.register(1).unwrap(), stream.register(2).unwrap());
        stream.forget(2);
        stream.close(&Error::Trie("lost".into()));
        assert_eq!(one.recv().unwrap().result.unwrap_err(), Error::Trie("lost".into()));
        assert!(two.recv().is_err());
        assert!(stream.register(3).is_none());
    }
}
