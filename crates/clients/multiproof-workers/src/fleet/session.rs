//! One block at several workers.

use super::{
    assignment::assign_shards,
    collect::{CollectedRoots, WorkerShare},
    core::{FinishedBlock, FleetCore},
};
use crate::metrics as names;
use metrics::counter;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_membership::WorkerId;
use tandem_proto::multiproof::{Begin, Error, ProofSession, ShardRoots, StateUpdate};
use tandem_telemetry::union_of_intervals;

/// Block at several workers, or in this process.
pub struct FleetSession {
    core: Arc<FleetCore>,
    begin: Begin,
    began: Instant,
    /// Time at which the last update was in.
    finished: Option<Instant>,
    /// Updates so far, for workers that take over.
    updates: Vec<Arc<StateUpdate>>,
    parts: Vec<WorkerShare>,
    /// Parts at workers on trial, beside those that answer.
    trials: Vec<WorkerShare>,
    /// Session in this process, if it computes from the beginning.
    local: Option<Box<dyn ProofSession>>,
    /// Earlier answer for the same block, to be compared.
    earlier: Option<FinishedBlock>,
}

impl FleetSession {
    /// Creates a block at these workers.
    pub fn new(
        core: Arc<FleetCore>,
        begin: Begin,
        parts: Vec<WorkerShare>,
        trials: Vec<WorkerShare>,
    ) -> Self {
        let (began, finished, updates) = (Instant::now(), None, Vec::new());
        let (local, earlier) = (None, None);
        Self { core, begin, began, finished, updates, parts, trials, local, earlier }
    }

    /// Returns this block, computed in this process.
    pub fn computed_by(self, local: Box<dyn ProofSession>) -> Self {
        Self { local: Some(local), ..self }
    }

    /// Returns this block, whose roots are compared with those given before.
    pub fn compared_with(self, earlier: Option<FinishedBlock>) -> Self {
        Self { earlier, ..self }
    }

    /// Asks idle workers for the missing shards.
    fn redispatch(&mut self, collected: &mut CollectedRoots) {
        let missing = self.begin.shards.difference(collected.shards);
        let idle = std::mem::take(&mut collected.idle_workers);
        if missing.is_empty() || idle.is_empty() {
            return;
        }
        let ids: Vec<WorkerId> = idle.iter().map(|worker| worker.id.clone()).collect();
        let mut parts = Vec::new();
        for (worker, shards) in idle.into_iter().zip(assign_shards(&ids)) {
            let shards = shards.intersection(missing);
            if shards.is_empty() {
                continue;
            }
            if let Some(mut session) = worker.client.open(self.begin.of_shards(shards), true) {
                self.updates.iter().for_each(|update| session.update(update.clone()));
                session.finish();
                counter!(names::REDISPATCHED).increment(shards.len() as u64);
                parts.push(WorkerShare { worker, session, cold: true });
            }
        }
        collected.collect(parts, Instant::now(), Duration::ZERO, &self.core.lateness);
    }

    /// Computes the missing shards in this process.
    fn compute(&mut self, collected: &mut CollectedRoots) -> Result<(), Error> {
        let missing = self.begin.shards.difference(collected.shards);
        if missing.is_empty() {
            return Ok(());
        }
        let session = match self.local.take() {
            Some(session) => session,
            None => {
                counter!(names::COMPUTED_LOCALLY, "reason" => "missing").increment(1);
                let mut session = self.core.local.begin(self.begin.of_shards(missing))?;
                self.updates.iter().for_each(|update| session.update(update.clone()));
                session.finish();
                session
            }
        };
        let roots = session.roots()?;
        collected.add(missing, &roots, None);
        Ok(())
    }
}

impl ProofSession for FleetSession {
    fn executed(&mut self, unix_ns: u64) {
        if let Some(local) = &mut self.local {
            local.executed(unix_ns);
        }
    }

    fn has_taken_all(&self) -> bool {
        self.local.as_ref().is_none_or(|local| local.has_taken_all())
    }

    fn update(&mut self, update: Arc<StateUpdate>) {
        for part in self.parts.iter_mut().chain(&mut self.trials) {
            part.session.update(update.clone());
        }
        if let Some(local) = &mut self.local {
            local.update(update.clone());
        }
        self.updates.push(update);
    }

    fn finish(&mut self) {
        for part in self.parts.iter_mut().chain(&mut self.trials) {
            part.session.finish();
        }
        if let Some(local) = &mut self.local {
            local.finish();
        }
        self.finished = Some(Instant::now());
    }

    fn roots(mut self: Box<Self>) -> Result<ShardRoots, Error> {
        if self.finished.is_none() {
            self.finish();
        }
        let finished = self.finished.unwrap_or_else(Instant::now);
        let executed = finished - self.began;
        let lateness = self.core.lateness;
        let (parts, mut collected) = (std::mem::take(&mut self.parts), CollectedRoots::default());
        let asked = parts.len();
        collected.collect(parts, finished, executed, &lateness);
        let mut answer_times = std::mem::take(&mut collected.answer_times);
        self.redispatch(&mut collected);
        self.compute(&mut collected)?;
        if asked == 0 {
            // Workers on trial are then measured against this process.
            answer_times.push(finished.elapsed());
        }
        collected.stats.updates = self.updates.len() as u64;
        let answer = ShardRoots {
            shards: self.begin.shards,
            roots: collected.roots.clone(),
            stats: collected.stats,
            work: union_of_intervals(collected.work),
        };
        if let Some(earlier) = self.earlier.take() {
            self.core.quarantine_wrong_workers(&earlier, &answer);
        }
        let trials = std::mem::take(&mut self.trials);
        self.core.set_last_block(FinishedBlock {
            block: self.begin.block,
            shards: self.begin.shards,
            roots: collected.roots,
            computed_by: collected.computed_by,
            trials,
            trials_end: finished + lateness.time_limit(executed, &answer_times, asked.max(1)),
        });
        Ok(answer)
    }
}
