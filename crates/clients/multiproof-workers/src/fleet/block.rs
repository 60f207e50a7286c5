//! One block at several workers.

use super::{
    core::{Core, FinishedBlock},
    deal::deal,
    gather::{Gathered, WorkerShare},
};
use crate::metrics as names;
use metrics::counter;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_membership::WorkerId;
use tandem_proto::multiproof::{Begin, Error, ProofSession, ShardRoots, StateUpdate};

/// Block at several workers, or in this process.
pub struct FleetSession {
    core: Arc<Core>,
    begin: Begin,
    began: Instant,
    /// Time at which the last update was in.
    finished: Option<Instant>,
    /// Updates so far, for workers that take over.
    kept: Vec<Arc<StateUpdate>>,
    parts: Vec<WorkerShare>,
    /// Parts at workers on trial, beside those that answer.
    trials: Vec<WorkerShare>,
    /// Session in this process, if it computes from the beginning.
    local: Option<Box<dyn ProofSession>>,
    /// Earlier answer for the same block, to be compared.
    first: Option<FinishedBlock>,
}

impl FleetSession {
    /// Creates a block at these workers.
    pub fn new(
        core: Arc<Core>,
        begin: Begin,
        parts: Vec<WorkerShare>,
        trials: Vec<WorkerShare>,
    ) -> Self {
        let (began, finished, kept) = (Instant::now(), None, Vec::new());
        let (local, first) = (None, None);
        Self { core, begin, began, finished, kept, parts, trials, local, first }
    }

    /// Returns this block, computed in this process.
    pub fn computed_by(self, local: Box<dyn ProofSession>) -> Self {
        Self { local: Some(local), ..self }
    }

    /// Returns this block, whose roots are compared with those given before.
    pub fn compared_with(self, first: Option<FinishedBlock>) -> Self {
        Self { first, ..self }
    }

    /// Asks free workers for the missing shards.
    fn redispatch(&mut self, got: &mut Gathered) {
        let missing = self.begin.shards.difference(got.shards);
        let free = std::mem::take(&mut got.free);
        if missing.is_empty() || free.is_empty() {
            return;
        }
        let ids: Vec<WorkerId> = free.iter().map(|worker| worker.id.clone()).collect();
        let mut parts = Vec::new();
        for (worker, shards) in free.into_iter().zip(deal(&ids)) {
            let shards = shards.intersection(missing);
            if shards.is_empty() {
                continue;
            }
            if let Some(mut session) = worker.client.open(self.begin.of_shards(shards), true) {
                self.kept.iter().for_each(|update| session.update(update.clone()));
                session.finish();
                counter!(names::REDISPATCHED).increment(shards.len() as u64);
                parts.push(WorkerShare { worker, session, cold: true });
            }
        }
        got.wait_for(parts, Instant::now(), Duration::ZERO, &self.core.patience);
    }

    /// Computes the missing shards in this process.
    fn compute(&mut self, got: &mut Gathered) -> Result<(), Error> {
        let missing = self.begin.shards.difference(got.shards);
        if missing.is_empty() {
            return Ok(());
        }
        let session = match self.local.take() {
            Some(session) => session,
            None => {
                counter!(names::COMPUTED_LOCALLY, "reason" => "missing").increment(1);
                let mut session = self.core.local.begin(self.begin.of_shards(missing))?;
                self.kept.iter().for_each(|update| session.update(update.clone()));
                session.finish();
                session
            }
        };
        let roots = session.roots()?;
        got.add(missing, &roots, None);
        Ok(())
    }
}

impl ProofSession for FleetSession {
    fn update(&mut self, update: Arc<StateUpdate>) {
        for part in self.parts.iter_mut().chain(&mut self.trials) {
            part.session.update(update.clone());
        }
        if let Some(local) = &mut self.local {
            local.update(update.clone());
        }
        self.kept.push(update);
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
        let patience = self.core.patience;
        let (parts, mut got) = (std::mem::take(&mut self.parts), Gathered::default());
        let asked = parts.len();
        got.wait_for(parts, finished, executed, &patience);
        let mut took = std::mem::take(&mut got.took);
        self.redispatch(&mut got);
        self.compute(&mut got)?;
        if asked == 0 {
            // Workers on trial are then measured against this process.
            took.push(finished.elapsed());
        }
        got.stats.updates = self.kept.len() as u64;
        let answer =
            ShardRoots { shards: self.begin.shards, roots: got.roots.clone(), stats: got.stats };
        if let Some(first) = self.first.take() {
            self.core.compare(&first, &answer);
        }
        let trials = std::mem::take(&mut self.trials);
        self.core.done(FinishedBlock {
            block: self.begin.block,
            shards: self.begin.shards,
            roots: got.roots,
            by: got.by,
            trials,
            trials_end: finished + patience.wait(executed, &took, asked.max(1)),
        });
        Ok(answer)
    }
}
