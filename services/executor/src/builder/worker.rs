//! The builder's thread.

use super::{
    Job, Order, Parts, Shared,
    assemble::{Assembled, Draft, EXTRA_DATA},
    builds::{Task, Work},
    given::Given,
    pace::Pace,
    pooled::{Contents, Pooled, Sources, Target},
};
use crate::{
    block::{
        build::BuiltPayload,
        execute::Failure,
        fill::{Candidate, Candidates, Judgment},
    },
    error::Error,
    metrics as names,
};
use metrics::{counter, histogram};
use std::{
    sync::{Arc, atomic::AtomicU64},
    time::{Duration, Instant},
};
use tandem_actor::take_background_priority;
use tandem_primitives::B256;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, info_span, warn};

/// Time after which the first full block is closed, so that getPayload has it in time.
const FIRST_FILL_MAX: Duration = Duration::from_millis(450);

/// Time after which a better block is closed.
const FILL_MAX: Duration = Duration::from_secs(3);

/// State of the thread.
pub(super) struct Worker {
    pub shared: Arc<Shared>,
    pub parts: Parts,
    /// Reactor for the answers of other services.
    pub runtime: Runtime,
}

impl Worker {
    /// Works until the builder is to stop.
    pub fn run(self, stopping: &CancellationToken) {
        take_background_priority();
        while let Some(job) = self.shared.next(stopping) {
            match job {
                Job::Task(task) => self.attempt(&task),
                Job::Order(order, reply) => {
                    let built = self.build(&order);
                    // A caller that has gone needs no answer.
                    let _ = reply.send(built.map_err(|failure| reason(order.parent, failure)));
                }
            }
        }
    }

    fn attempt(&self, task: &Task) {
        let began = Instant::now();
        let (version, error) = match self.work(task, began) {
            Ok(version) => (version, None),
            Err(Failure::Internal(Error::BuildGivenUp)) => {
                counter!(names::BUILDS, "outcome" => "given_up").increment(1);
                return;
            }
            Err(failure) => (None, Some(reason(task.parent, failure))),
        };
        if let Some(error) = &error {
            counter!(names::BUILDS, "outcome" => "failed").increment(1);
            warn!(parent = %task.parent, %error, "payload not built");
        }
        let now = Instant::now();
        self.shared.change(|builds| {
            builds.attempted(now, task.number, now - began, version, error);
        });
    }

    /// Works at a build. Returns the version of the pool that its payload knows.
    fn work(&self, task: &Task, began: Instant) -> Result<Option<u64>, Failure> {
        let Task { number, parent, attributes, work } = task;
        let _span = info_span!("build_payload", parent = %parent).entered();
        let (known, fill_max) = match work {
            Work::First => (None, FIRST_FILL_MAX),
            Work::Improve(version) => (*version, FILL_MAX),
        };
        let tools = &self.parts.tools;
        let draft = || {
            let draft = Draft::new(tools, *parent, attributes, EXTRA_DATA.into());
            draft.map_err(Failure::Internal)
        };
        if *work == Work::First {
            let assembled = draft()?.assemble(Nothing, |_| Ok(Contents::default()))?;
            self.offer(task, assembled, "empty", began);
        }
        let pace = Pace::new(&tools.turn, &self.shared.due, *number, fill_max);
        let Some((assembled, version)) = self.fill(draft()?, pace, known)? else { return Ok(None) };
        let kind = if *work == Work::First { "full" } else { "better" };
        self.offer(task, assembled, kind, began);
        Ok(Some(version))
    }

    /// Builds a block from the pool. Returns it with the version of the pool, or `None` if the pool
    /// has no transaction for it or still is at the version `unless`.
    fn fill(
        &self,
        draft: Draft<'_>,
        pace: Pace<'_>,
        unless: Option<u64>,
    ) -> Result<Option<(Assembled, u64)>, Failure> {
        let Parts { tools, pool, blobs, blobs_max, .. } = &self.parts;
        let Some(pool) = pool.get() else { return Ok(None) };
        let target = Target::new(tools.chain.spec(), &draft, *blobs_max, pace);
        let sources = Sources { pool: &**pool, blobs: &**blobs, runtime: &self.runtime };
        let Some(pooled) = Pooled::open(&sources, target, unless) else { return Ok(None) };
        let version = pooled.version;
        Ok(Some((draft.assemble(pooled, |pooled| Ok(pooled.taken))?, version)))
    }

    fn offer(&self, task: &Task, assembled: Assembled, kind: &'static str, began: Instant) {
        let Assembled { payload, result } = assembled;
        let payload = Arc::new(payload);
        let (hash, number) = (payload.payload.block_hash, payload.payload.block_number);
        let is_better = self.shared.change(|builds| builds.offer(task.number, payload.clone()));
        let took = began.elapsed();
        histogram!(names::BUILD_SECONDS, "payload" => kind).record(took);
        let outcome = if is_better { "better" } else { "no_better" };
        counter!(names::BUILDS, "outcome" => outcome).increment(1);
        if !is_better {
            return debug!(number, %hash, kind, "payload is no better than the last one");
        }
        self.parts.built.keep(hash, result);
        info!(
            number,
            %hash,
            kind,
            transactions = payload.payload.transactions.len(),
            mgas = payload.payload.gas_used as f64 / 1e6,
            value = %payload.value,
            ms = took.as_secs_f64() * 1e3,
            "payload built"
        );
    }

    /// Builds a block to order.
    fn build(&self, order: &Order) -> Result<BuiltPayload, Failure> {
        let Order { parent, attributes, transactions, extra_data } = order;
        let extra_data = extra_data.clone().unwrap_or_else(|| EXTRA_DATA.into());
        let Parts { tools, blobs, .. } = &self.parts;
        let draft =
            Draft::new(tools, *parent, attributes, extra_data).map_err(Failure::Internal)?;
        let Some(raw) = transactions else {
            // Nothing is more urgent than an order that has begun.
            let due = AtomicU64::new(0);
            let pace = Pace::new(&tools.turn, &due, 0, FILL_MAX);
            return match self.fill(draft.clone(), pace, None)? {
                Some((assembled, _)) => Ok(assembled.payload),
                None => Ok(draft.assemble(Nothing, |_| Ok(Contents::default()))?.payload),
            };
        };
        let fork = tools.chain.spec().fork_of(&draft.header);
        let given = Given::new(raw, fork, &**blobs, &self.runtime).map_err(Failure::Internal)?;
        Ok(draft.assemble(given, Given::finish)?.payload)
    }
}

/// Returns the reason for callers why there is no payload.
fn reason(parent: B256, failure: Failure) -> Error {
    match failure {
        Failure::Internal(error) => error,
        Failure::Invalid(reason) => Error::NothingToBuild { parent, reason: Box::new(reason) },
    }
}

/// No candidates at all.
struct Nothing;

impl Candidates for Nothing {
    fn next(&mut self) -> Result<Option<Candidate>, Error> {
        Ok(None)
    }

    fn judged(&mut self, _: Judgment) {}
}
