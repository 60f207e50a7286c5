//! Answers of one stream. Results that are ready at about the same time travel in one message, because
//! each message costs both sides a wake-up.

use crate::service::TxExecutor;
use prost::Message as _;
use std::{
    future::Future as _,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tandem_actor::{Queued, TaskSender, task_queue};
use tandem_proto::{
    convert::{EncodedResults, TxAnswer},
    limits::TX_MESSAGE_BYTES_MAX,
    tx_executor::{TxReply, TxResult},
    wire::tx_executor::v1,
};
use tokio::{
    runtime::Handle,
    sync::mpsc,
    time::{Instant, Sleep, sleep},
};
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tonic::Status;

/// Answers that a client may leave unread.
const ANSWERS_MAX: usize = 256;
/// Longest wait for a client that does not take its results. It loses its stream then.
const ROOM_MAX: Duration = Duration::from_secs(1);
/// Part of the time since a block's first result for which a result waits for others, while there is
/// more to execute.
const WAIT_PART: u32 = 25;
/// Shortest and longest such wait. Timers round it up by a millisecond at most.
const WAIT_MIN: Duration = Duration::from_millis(1);
const WAIT_MAX: Duration = Duration::from_millis(16);
/// Bytes of a message besides those of its results, at most.
const FRAME_BYTES: usize = 64;

/// Creates the sending and the receiving end of a stream's answers.
pub fn answers(
    executor: Arc<TxExecutor>,
    runtime: Handle,
    end: CancellationToken,
) -> (Answers, AnswerStream) {
    let (sender, queue) = task_queue("tx-executor-answers", ANSWERS_MAX);
    let (pause, next) = (Box::pin(sleep(Duration::ZERO)), None);
    let first = (0, Instant::now());
    let stream = AnswerStream { queue, executor, next, gathered: None, first, pause };
    (Answers { sender, runtime, end }, stream)
}

/// Message on its way to the stream.
enum Outgoing {
    /// Encoded result of a transaction.
    Result { session: u64, bytes: Vec<u8> },
    /// Any other answer.
    Other(v1::ExecuteBlocksResponse),
}

/// Sending end.
#[derive(Clone)]
pub struct Answers {
    sender: TaskSender<Outgoing>,
    runtime: Handle,
    /// Cancelled to end the stream.
    pub end: CancellationToken,
}

impl Answers {
    /// Sends a result from a thread.
    pub fn send_result(&self, session: u64, result: TxResult) {
        let mut result = v1::Result::from(result);
        if result.encoded_len() + FRAME_BYTES > TX_MESSAGE_BYTES_MAX {
            // The executor executes it itself.
            result.outcome = None;
        }
        self.send(Outgoing::Result { session, bytes: result.encode_to_vec() });
    }

    /// Says from a thread that the block cannot be executed.
    pub fn refuse(&self, session: u64, reason: String) {
        let reply = TxReply::Refused(reason);
        self.send(Outgoing::Other(TxAnswer { session, reply }.into()));
    }

    fn send(&self, message: Outgoing) {
        if self.sender.send_within(ROOM_MAX, &self.runtime, message).is_err() {
            self.end.cancel();
        }
    }

    /// Sends an answer that is no result.
    pub async fn answer(&self, session: u64, reply: TxReply) {
        let message = Outgoing::Other(TxAnswer { session, reply }.into());
        if self.sender.send(message).await.is_err() {
            self.end.cancel();
        }
    }
}

/// Receiving end, as the client's stream.
pub struct AnswerStream {
    queue: mpsc::Receiver<Queued<Outgoing>>,
    executor: Arc<TxExecutor>,
    /// Message that did not go with those before it.
    next: Option<Outgoing>,
    /// Session and results that wait for others until `pause` ends.
    gathered: Option<(u64, EncodedResults)>,
    /// Session of the newest result, and the time of its first one.
    first: (u64, Instant),
    pause: Pin<Box<Sleep>>,
}

impl AnswerStream {
    /// Adds results of the same session that are in the queue, as far as they fit.
    fn gather(&mut self, session: u64, results: &mut EncodedResults) {
        while let Ok(message) = self.queue.try_recv() {
            let rest = match message.take() {
                Outgoing::Result { session: at, bytes } if at == session => {
                    results.add(bytes).map(|bytes| Outgoing::Result { session, bytes })
                }
                other => Some(other),
            };
            if rest.is_some() {
                self.next = rest;
                return;
            }
        }
    }
}

/// Returns the wait of a result that is ready so long after the first one of its block.
fn wait_after(elapsed: Duration) -> Duration {
    (elapsed / WAIT_PART).clamp(WAIT_MIN, WAIT_MAX)
}

impl Stream for AnswerStream {
    type Item = Result<v1::ExecuteBlocksResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.gathered.is_none() {
            let message = match this.next.take() {
                Some(message) => message,
                None => match ready!(this.queue.poll_recv(context)) {
                    Some(message) => message.take(),
                    None => return Poll::Ready(None),
                },
            };
            let (session, bytes) = match message {
                Outgoing::Result { session, bytes } => (session, bytes),
                Outgoing::Other(answer) => return Poll::Ready(Some(Ok(answer))),
            };
            let mut results = EncodedResults::default();
            results.add(bytes);
            this.gathered = Some((session, results));
            // The last results of a block do not wait. The queue is not polled meanwhile, so that
            // further ones wake nobody.
            let now = Instant::now();
            if this.first.0 != session {
                this.first = (session, now);
            }
            let wait = match this.executor.has_work() {
                true => wait_after(now - this.first.1),
                false => Duration::ZERO,
            };
            this.pause.as_mut().reset(now + wait);
        }
        if this.next.is_none() {
            ready!(this.pause.as_mut().poll(context));
        }
        let Some((session, mut results)) = this.gathered.take() else { return Poll::Pending };
        if this.next.is_none() {
            this.gather(session, &mut results);
        }
        Poll::Ready(Some(Ok(results.into_message(session))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_waits_for_others_longer_in_a_long_block() {
        let wait = |elapsed| wait_after(Duration::from_millis(elapsed)).as_millis();
        assert_eq!([0, 25, 200, 400, 10_000].map(wait), [1, 1, 8, 16, 16]);
    }
}
