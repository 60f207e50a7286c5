//! One block over a connection.

use super::{
    client::Shared,
    proof_stream::{ProofStream, SessionOutcome},
};
use crate::metrics as names;
use crossbeam_channel::{Receiver, RecvTimeoutError};
use metrics::counter;
use std::sync::Arc;
use tandem_primitives::ShardSet;
use tandem_proto::{
    convert::{Command, SessionCommand},
    multiproof::{Begin, Error, ProofSession, ShardRoots, StateUpdate},
};
use tandem_telemetry::traceparent;
use tracing::{Span, debug, warn};

/// Block, or some of its shards, at the workers behind one connection.
pub struct RemoteSession {
    shared: Arc<Shared>,
    stream: Arc<ProofStream>,
    id: u64,
    shards: ShardSet,
    answer: Receiver<SessionOutcome>,
    finished: bool,
    answered: bool,
    /// Whether the connection takes no more.
    failed: bool,
    /// Whether to wait for room in the queue.
    waits_for_room: bool,
}

impl RemoteSession {
    /// Opens a block; `None` when the connection is lost. A session that does not wait for room in
    /// the queue fails when there is none.
    pub fn begin(
        shared: &Arc<Shared>,
        stream: Arc<ProofStream>,
        begin: Begin,
        waits_for_room: bool,
    ) -> Option<Self> {
        let id = shared.next_session();
        let answer = stream.register(id)?;
        let (shared, shards) = (shared.clone(), begin.shards);
        let session = Self {
            shared,
            stream,
            id,
            shards,
            answer,
            finished: false,
            answered: false,
            failed: false,
            waits_for_room,
        };
        let traceparent = traceparent(&Span::current()).unwrap_or_default();
        session.send(Command::Begin { begin, traceparent }).then_some(session)
    }

    /// Returns the shards that are asked for.
    pub fn shards(&self) -> ShardSet {
        self.shards
    }

    /// Returns the receiver of the answer, at most one. The caller passes the answer to
    /// [`Self::take`].
    pub fn answer(&self) -> &Receiver<SessionOutcome> {
        &self.answer
    }

    /// Returns whether something could not be sent, so that there will be no roots.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Returns the roots of an answer.
    pub fn take(&mut self, answer: SessionOutcome) -> Result<ShardRoots, Error> {
        self.answered = true;
        let roots = answer.result?;
        if roots.shards.contains_all(self.shards) {
            return Ok(roots);
        }
        let missing = self.shards.difference(roots.shards);
        Err(Error::Trie(format!("the workers have no roots of the shards {missing}")))
    }

    /// Returns whether to send this update. An answer before the end is an error.
    fn wants(&self, update: &StateUpdate) -> bool {
        let wanted = self.shards == ShardSet::ALL
            || update.accounts.iter().any(|account| self.shards.contains(account.shard()));
        wanted && !self.failed && self.answer.is_empty()
    }

    fn send(&self, command: Command) -> bool {
        let command = SessionCommand { session: self.id, command };
        if !self.waits_for_room {
            return self.stream.try_send(command, 0).is_ok();
        }
        let wait = self.shared.config.answer_wait();
        self.stream.send(command, &self.shared.runtime, wait).is_ok()
    }
}

impl ProofSession for RemoteSession {
    fn update(&mut self, update: Arc<StateUpdate>) {
        if self.wants(&update) {
            self.failed = !self.send(Command::Update(update));
        }
    }

    fn finish(&mut self) {
        self.finished = true;
        if !self.failed && self.answer.is_empty() {
            self.failed = !self.send(Command::Finish);
        }
    }

    fn roots(mut self: Box<Self>) -> Result<ShardRoots, Error> {
        if !self.finished {
            self.finish();
        }
        if self.failed {
            // With the reason, if the connection ended with one.
            return self.answer.try_recv().map_or(Err(Error::Unavailable), |answer| answer.result);
        }
        match self.answer.recv_timeout(self.shared.config.answer_wait()) {
            Ok(answer) => self.take(answer),
            Err(RecvTimeoutError::Disconnected) => Err(Error::Unavailable),
            Err(RecvTimeoutError::Timeout) => {
                counter!(names::TIMEOUTS).increment(1);
                warn!("the workers did not answer in time");
                Err(Error::Unavailable)
            }
        }
    }
}

impl Drop for RemoteSession {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        self.stream.forget(self.id);
        let command = SessionCommand { session: self.id, command: Command::Cancel };
        // A lost cancel leaves the block open until the next one begins.
        if self.stream.try_send(command, 0).is_err() {
            debug!("no room for a cancel");
        }
    }
}
