//! Thread between the streams and the workers.

use std::sync::Arc;
use tandem_actor::Queued;
use tandem_primitives::B256;
use tandem_proto::{
    convert::{Command, SessionAnswer, SessionCommand},
    multiproof::{Begin, Error, ProofApi, ProofSession, ShardRoots},
    wire::multiproof_workers::v1,
};
use tandem_telemetry::set_remote_parent;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tonic::Status;
use tracing::{Span, debug, info_span, warn};

/// Sender for the answers of one stream. Bounded; a client that reads none loses its stream.
pub type Answers = mpsc::Sender<Result<v1::ProcessBlockResponse, Status>>;

/// Input of the thread.
#[allow(clippy::large_enum_variant, reason = "nearly all are commands")]
pub enum Input {
    /// Message of a stream, as it arrived.
    Command {
        stream: u64,
        message: v1::ProcessBlockRequest,
        answers: Answers,
        /// Share of the bytes that may wait, which the message takes.
        _room: OwnedSemaphorePermit,
    },
    /// End of a stream; its block is given up.
    Closed { stream: u64 },
    /// Refusal of a block, by a call of its own.
    Discard(B256),
    /// End of the thread; the open block is given up.
    Stop,
}

/// Open block.
struct Open {
    stream: u64,
    session: u64,
    answers: Answers,
    inner: Box<dyn ProofSession>,
    span: Span,
}

pub struct Bridge {
    api: Arc<dyn ProofApi>,
    open: Option<Open>,
}

impl Bridge {
    pub fn new(api: Arc<dyn ProofApi>) -> Self {
        Self { api, open: None }
    }

    /// Serves until it is told to stop, or no sender is left.
    pub fn run(mut self, mut inbox: mpsc::Receiver<Queued<Input>>) {
        while let Some(input) = inbox.blocking_recv() {
            match input.take() {
                Input::Command { stream, message, answers, _room } => {
                    self.take(stream, message, answers);
                }
                Input::Closed { stream } => {
                    self.open.take_if(|open| open.stream == stream);
                }
                Input::Discard(block) => self.api.discard(block),
                Input::Stop => return,
            }
        }
    }

    fn take(&mut self, stream: u64, message: v1::ProcessBlockRequest, answers: Answers) {
        match SessionCommand::try_from(message) {
            Ok(SessionCommand { session, command }) => {
                self.command(stream, session, command, answers);
            }
            Err(error) => {
                warn!(%error, "malformed command, the stream ends");
                self.open.take_if(|open| open.stream == stream);
                let _ = answers.try_send(Err(error.into()));
            }
        }
    }

    fn command(&mut self, stream: u64, session: u64, command: Command, answers: Answers) {
        match command {
            Command::Begin { begin, traceparent } => {
                self.begin(stream, session, begin, &traceparent, answers);
            }
            Command::Update(update) => {
                if let Some(open) = self.of(stream, session) {
                    open.inner.update(update);
                }
            }
            Command::Finish => match self.open.take_if(|open| open.is(stream, session)) {
                Some(open) => finish(open),
                // Given up for another block, or never begun.
                None => answer(&answers, session, Err(Error::Unavailable)),
            },
            Command::Cancel => {
                self.open.take_if(|open| open.is(stream, session));
            }
            Command::Prefetch { block, keys } => self.api.prefetch(block, keys),
            Command::Foresee { block, foresight } => self.api.foresee(block, foresight),
            Command::Discard(block) => self.api.discard(block),
        }
    }

    fn of(&mut self, stream: u64, session: u64) -> Option<&mut Open> {
        self.open.as_mut().filter(|open| open.is(stream, session))
    }

    fn begin(
        &mut self,
        stream: u64,
        session: u64,
        begin: Begin,
        traceparent: &str,
        answers: Answers,
    ) {
        if let Some(before) = self.open.take() {
            debug!(block = %begin.block, "another block begins, the open one is given up");
            answer(&before.answers, before.session, Err(Error::Unavailable));
        }
        let number = begin.block.number;
        let span = info_span!("process_block", otel.kind = "server", block.number = number);
        set_remote_parent(&span, traceparent);
        match span.in_scope(|| self.api.begin(begin)) {
            Ok(inner) => self.open = Some(Open { stream, session, answers, inner, span }),
            Err(error) => answer(&answers, session, Err(error)),
        }
    }
}

impl Open {
    fn is(&self, stream: u64, session: u64) -> bool {
        self.stream == stream && self.session == session
    }
}

fn finish(open: Open) {
    let Open { session, answers, mut inner, span, .. } = open;
    let result = span.in_scope(|| {
        inner.finish();
        inner.roots()
    });
    // The span ends before the answer, because the block ends with the answer.
    drop(span);
    answer(&answers, session, result);
}

fn answer(answers: &Answers, session: u64, result: Result<ShardRoots, Error>) {
    let message = SessionAnswer { session, result }.into();
    if answers.try_send(Ok(message)).is_err() {
        debug!(session, "nobody takes the answer");
    }
}
