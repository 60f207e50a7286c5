//! One block as the executor sees it: the in-process transport of the proof stream. Updates pass as
//! shared values, no encoding.

use crate::worker::{Message, WorkerRoots};
use crossbeam_channel::{Receiver, bounded};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};
use tandem_actor::Mailbox;
use tandem_primitives::Shard;
use tandem_proto::multiproof::{Begin, Error, ProofSession, ProofStats, ShardRoots, StateUpdate};

/// Numbers sessions over all workers of the process.
static SESSIONS: AtomicU64 = AtomicU64::new(0);

pub struct LocalSession {
    /// Goes with every message, so that what is still on its way for a block that was given up
    /// never gets into the next one.
    id: u64,
    workers: Arc<[Mailbox<Message>]>,
    answers: Receiver<Result<WorkerRoots, Error>>,
    state: State,
}

#[derive(PartialEq)]
enum State {
    Open,
    Finishing,
    Answered,
}

impl LocalSession {
    pub fn begin(workers: Arc<[Mailbox<Message>]>, begin: Begin) -> Result<Self, Error> {
        let id = SESSIONS.fetch_add(1, Relaxed);
        let (reply, answers) = bounded(workers.len());
        for worker in workers.iter() {
            let message = Message::Begin { session: id, begin, reply: reply.clone() };
            worker.send(message).map_err(|_| Error::Unavailable)?;
        }
        Ok(Self { id, workers, answers, state: State::Open })
    }

    /// A worker that has stopped shows up as a missing answer in `roots`.
    fn broadcast(&self, message: impl Fn() -> Message) {
        for worker in self.workers.iter() {
            let _ = worker.send(message());
        }
    }
}

impl ProofSession for LocalSession {
    fn update(&mut self, update: Arc<StateUpdate>) {
        self.broadcast(|| Message::Update { session: self.id, update: update.clone() });
    }

    fn finish(&mut self) {
        self.state = State::Finishing;
        self.broadcast(|| Message::Finish { session: self.id });
    }

    fn roots(mut self: Box<Self>) -> Result<ShardRoots, Error> {
        if self.state == State::Open {
            self.finish();
        }
        let mut roots: [_; Shard::COUNT] = std::array::from_fn(|_| None);
        let mut stats = ProofStats::default();
        let mut failed = None;
        for _ in 0..self.workers.len() {
            match self.answers.recv() {
                Ok(Ok(worker)) => {
                    for (shard, root) in worker.roots {
                        roots[shard.index()] = root;
                    }
                    stats.targets += worker.stats.targets;
                    stats.walks += worker.stats.walks;
                    stats.nodes += worker.stats.nodes;
                    stats.busy += worker.stats.busy;
                    stats.updates = stats.updates.max(worker.stats.updates);
                }
                Ok(Err(error)) => failed = Some(error),
                Err(_) => failed = Some(Error::Unavailable),
            }
        }
        self.state = State::Answered;
        failed.map_or(Ok(ShardRoots { roots, stats }), Err)
    }
}

impl Drop for LocalSession {
    fn drop(&mut self) {
        if self.state != State::Answered {
            self.broadcast(|| Message::Cancel { session: self.id });
        }
    }
}
