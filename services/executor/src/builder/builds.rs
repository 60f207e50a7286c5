//! Builds that were asked for, and which of them is worked on next. Pure: the time is an input.

use crate::{
    block::build::{BuiltPayload, PayloadAttributes, PayloadId},
    error::Error,
};
use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_primitives::B256;
use tokio::sync::watch;

/// Maximum number of remembered builds. The oldest are evicted first.
const BUILDS_MAX: usize = 16;

/// Time for which the newest build is improved, unless its payload is taken earlier: a slot.
pub const IMPROVED_FOR: Duration = Duration::from_secs(12);

/// Least time between two attempts at an improvement.
const IMPROVE_EVERY: Duration = Duration::from_millis(500);

/// Time between two attempts, as a multiple of what the last one took.
const REST_FACTOR: u32 = 4;

/// State of a build, for those that wait for it.
#[derive(Clone, Default, Debug)]
pub struct Progress {
    /// Best payload so far.
    pub best: Option<Arc<BuiltPayload>>,
    /// Whether there is no use in waiting: the first full payload is there, or there will be none.
    pub is_settled: bool,
    /// Reason why there is no payload.
    pub error: Option<Error>,
}

/// Kind of the work at a build.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Build the first payloads: an empty one if there is none, and a full one.
    First,
    /// Build a better one if the pool has changed since this version.
    Improve(Option<u64>),
}

/// Work to be done.
#[derive(Clone, Debug)]
pub struct Task {
    /// Number of the build.
    pub number: u64,
    /// Block to build on.
    pub parent: B256,
    /// Attributes of the payload.
    pub attributes: Arc<PayloadAttributes>,
    /// Kind of the work.
    pub work: Work,
}

struct Build {
    number: u64,
    id: PayloadId,
    parent: B256,
    attributes: Arc<PayloadAttributes>,
    progress: watch::Sender<Progress>,
    begun: Instant,
    /// Earliest time of the next improvement.
    improve_at: Instant,
    /// Version of the pool that the best payload knows.
    version: Option<u64>,
    /// Whether a caller waits for the payload.
    is_wanted: bool,
    /// Whether a caller has the payload: it is not improved any more.
    is_taken: bool,
}

impl Build {
    fn is_settled(&self) -> bool {
        self.progress.borrow().is_settled
    }

    fn task(&self, work: Work) -> Task {
        let Self { number, parent, .. } = *self;
        Task { number, parent, attributes: self.attributes.clone(), work }
    }
}

/// The builds.
#[derive(Default)]
pub struct Builds {
    /// The newest at the end.
    all: VecDeque<Build>,
    /// Number of builds so far.
    count: u64,
}

impl Builds {
    /// Begins a build, if there is none with the same id.
    pub fn start(
        &mut self,
        now: Instant,
        parent: B256,
        attributes: PayloadAttributes,
    ) -> PayloadId {
        let id = PayloadId::of(parent, &attributes);
        if self.all.iter().any(|build| build.id == id) {
            return id;
        }
        if self.all.len() == BUILDS_MAX {
            self.all.pop_front();
        }
        self.count += 1;
        self.all.push_back(Build {
            number: self.count,
            id,
            parent,
            attributes: Arc::new(attributes),
            progress: watch::Sender::default(),
            begun: now,
            improve_at: now,
            version: None,
            is_wanted: false,
            is_taken: false,
        });
        id
    }

    /// Notes that a caller waits for a payload, and returns the build's progress. Returns `None` for
    /// an unknown build.
    pub fn want(&mut self, id: PayloadId) -> Option<watch::Receiver<Progress>> {
        let build = self.all.iter_mut().find(|build| build.id == id)?;
        build.is_wanted = true;
        Some(build.progress.subscribe())
    }

    /// Returns the best payload of a build for a caller, after which it stays the same.
    pub fn take(&mut self, id: PayloadId) -> Option<Progress> {
        let build = self.all.iter_mut().find(|build| build.id == id)?;
        build.is_wanted = false;
        let progress = build.progress.borrow().clone();
        build.is_taken |= progress.best.is_some();
        Some(progress)
    }

    /// Notes a payload. Keeps it if it is better than the one before, and returns whether it is.
    pub fn offer(&mut self, number: u64, payload: Arc<BuiltPayload>) -> bool {
        let Some(build) = self.get(number) else { return false };
        if build.is_taken {
            return false;
        }
        let rank = |payload: &BuiltPayload| (payload.value, payload.payload.gas_used);
        let is_better =
            build.progress.borrow().best.as_ref().is_none_or(|best| rank(&payload) > rank(best));
        if is_better {
            build.progress.send_modify(|progress| progress.best = Some(payload));
        }
        is_better
    }

    /// Notes the end of an attempt that took this long. `version` is that of the pool, if it was
    /// read, and `error` the reason why there is no payload.
    pub fn attempted(
        &mut self,
        now: Instant,
        number: u64,
        took: Duration,
        version: Option<u64>,
        error: Option<Error>,
    ) {
        let Some(build) = self.get(number) else { return };
        build.version = version.or(build.version);
        build.improve_at = now + IMPROVE_EVERY.max(took * REST_FACTOR);
        build.progress.send_modify(|progress| {
            progress.is_settled = true;
            progress.error = error.or(progress.error.take());
        });
    }

    fn get(&mut self, number: u64) -> Option<&mut Build> {
        self.all.iter_mut().find(|build| build.number == number)
    }

    /// Returns the build that is most urgent: one that a caller waits for, else the newest, of those
    /// without a first full payload.
    fn first(&self) -> Option<&Build> {
        let open = || self.all.iter().rev().filter(|build| !build.is_settled());
        open().find(|build| build.is_wanted).or_else(|| open().next())
    }

    /// Returns the build that is improved while nothing is urgent.
    fn improved(&self, now: Instant) -> Option<&Build> {
        let newest = self.all.back()?;
        let is_of_use = !newest.is_taken
            && newest.progress.borrow().best.is_some()
            && now.saturating_duration_since(newest.begun) < IMPROVED_FOR;
        is_of_use.then_some(newest)
    }

    /// Returns the number of the build that may be worked on, 0 for none. An attempt at another one
    /// is given up.
    pub fn due(&self, now: Instant) -> u64 {
        self.first().or_else(|| self.improved(now)).map_or(0, |build| build.number)
    }

    /// Returns the work to be done now, or the time until there is some; `None` if only a call
    /// brings it.
    pub fn next(&self, now: Instant) -> Result<Task, Option<Duration>> {
        if let Some(build) = self.first() {
            return Ok(build.task(Work::First));
        }
        let build = self.improved(now).ok_or(None)?;
        match build.improve_at.saturating_duration_since(now) {
            Duration::ZERO => Ok(build.task(Work::Improve(build.version))),
            wait => Err(Some(wait)),
        }
    }
}

#[cfg(test)]
mod tests;
