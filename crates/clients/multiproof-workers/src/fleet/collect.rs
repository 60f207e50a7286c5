//! Collection of the answers of several workers.

use super::{lateness::LatenessPolicy, roster::Worker};
use crate::{metrics as names, proof_stream::SessionOutcome, session::RemoteSession};
use crossbeam_channel::{Select, TryRecvError};
use metrics::counter;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_primitives::{Shard, ShardSet, SubtrieRoot};
use tandem_proto::multiproof::{Error, ProofStats, ShardRoots};
use tracing::warn;

/// Some shards of a block, at one worker.
pub struct WorkerShare {
    pub worker: Arc<Worker>,
    pub session: RemoteSession,
    /// Whether some of the shards were another worker's before. Only the longest time counts then.
    pub cold: bool,
}

/// Roots that are in, and the workers that gave them.
#[derive(Default)]
pub struct CollectedRoots {
    pub shards: ShardSet,
    pub roots: [SubtrieRoot; Shard::COUNT],
    pub computed_by: [Option<Arc<Worker>>; Shard::COUNT],
    pub stats: ProofStats,
    /// Times at which any worker was busy, in any order.
    pub work: Vec<(u64, u64)>,
    /// Workers that have answered.
    pub idle_workers: Vec<Arc<Worker>>,
    /// Time from the last update to each answer.
    pub answer_times: Vec<Duration>,
}

impl CollectedRoots {
    /// Adds the roots of these shards.
    pub fn add(&mut self, shards: ShardSet, answer: &ShardRoots, by: Option<&Arc<Worker>>) {
        self.shards = self.shards.union(shards);
        for index in shards.iter().map(Shard::index) {
            self.roots[index].clone_from(&answer.roots[index]);
            self.computed_by[index] = by.cloned();
        }
        self.stats.targets += answer.stats.targets;
        self.stats.walks += answer.stats.walks;
        self.stats.nodes += answer.stats.nodes;
        self.stats.busy += answer.stats.busy;
        self.stats.wasted += answer.stats.wasted;
        self.work.extend_from_slice(&answer.work);
    }

    /// Waits until each part has answered, has failed or is late. A part without roots is over
    /// then. `finished` is the time when all its updates were sent, `executed` the time that this
    /// had taken.
    pub fn collect(
        &mut self,
        mut parts: Vec<WorkerShare>,
        finished: Instant,
        executed: Duration,
        lateness: &LatenessPolicy,
    ) {
        let asked = parts.len();
        let mut took = Vec::with_capacity(asked);
        while !parts.is_empty() {
            let usual = lateness.time_limit(executed, &took, asked);
            let until =
                |part: &WorkerShare| finished + if part.cold { lateness.max } else { usual };
            let Some(ready) = wait_until(&parts, parts.iter().map(until).min()) else {
                let now = Instant::now();
                parts.retain(|part| {
                    let late = until(part) <= now;
                    if late {
                        give_up(part, "late", "worker is late");
                    }
                    !late
                });
                continue;
            };
            let part = &mut parts[ready];
            let answer = match part.session.answer().try_recv() {
                Ok(answer) => answer,
                Err(TryRecvError::Empty) if !part.session.has_failed() => continue,
                Err(_) => {
                    give_up(part, "lost", "worker is lost");
                    parts.swap_remove(ready);
                    continue;
                }
            };
            took.extend(self.take(part, answer, finished));
            parts.swap_remove(ready);
        }
        self.answer_times.append(&mut took);
    }

    /// Takes an answer. Returns the time that it took if it has roots.
    fn take(
        &mut self,
        part: &mut WorkerShare,
        answer: SessionOutcome,
        finished: Instant,
    ) -> Option<Duration> {
        let took = answer.at.saturating_duration_since(finished);
        match part.session.take(answer) {
            Ok(roots) => {
                self.add(part.session.shards(), &roots, Some(&part.worker));
                self.idle_workers.push(part.worker.clone());
                part.worker.record_in_time();
                Some(took)
            }
            // The base moved meanwhile: this happens to good workers too, and to all at once.
            Err(error @ Error::ParentUnreachable { .. }) => {
                counter!(names::FAILURES, "reason" => "error").increment(1);
                warn!(worker = %part.worker.id, %error, "worker has no roots");
                None
            }
            Err(Error::Unavailable) => {
                give_up(part, "lost", "worker is lost");
                None
            }
            Err(error) => {
                give_up(part, "error", &error.to_string());
                None
            }
        }
    }
}

/// Returns the position of a part that has answered or failed, `None` when none has by `until`.
fn wait_until(parts: &[WorkerShare], until: Option<Instant>) -> Option<usize> {
    if let Some(failed) = parts.iter().position(|part| part.session.has_failed()) {
        return Some(failed);
    }
    let mut select = Select::new();
    for part in parts {
        select.recv(part.session.answer());
    }
    select.ready_deadline(until?).ok()
}

fn give_up(part: &WorkerShare, reason: &'static str, error: &str) {
    counter!(names::FAILURES, "reason" => reason).increment(1);
    warn!(worker = %part.worker.id, shards = %part.session.shards(), error, "worker gave no roots");
    part.worker.record_failure();
}
