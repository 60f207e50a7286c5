//! Known verdicts, current verifications, and waiting requests, without thread, clock or KZG. The
//! service takes jobs out and puts results in.

use crate::config::{Config, Verification};
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_blob_validator_client::verdicts::Verdicts;
use tandem_kzg::Error as KzgError;
use tandem_primitives::B256;
use tandem_proto::blob_validator::{
    Bundle, Error, Form, Part, PointFault, Reason, Refusal, Status, Verdict,
};
use tracing::Span;

/// Bounds of a retry hint.
const RETRY_AFTER: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(10));

/// Assumed time to verify a blob before one was measured.
const COST: Duration = Duration::from_millis(2);

/// Caller that waits for an answer.
pub trait Caller {
    /// Returns whether the caller still waits.
    fn waits(&self) -> bool;
}

/// Sidecar that passed the checks without KZG.
pub struct Submission<R> {
    pub bundle: Arc<Bundle>,
    /// Content keys of its blobs.
    pub keys: Vec<B256>,
    pub deadline: Instant,
    /// Destination of the answer.
    pub reply: R,
    pub span: Span,
}

/// Blob to be verified.
#[derive(Clone)]
pub struct Job {
    pub key: B256,
    pub bundle: Arc<Bundle>,
    /// Position of the blob in the bundle.
    pub index: usize,
    /// Time at which it was queued.
    pub since: Instant,
    /// Span of the request that brought it.
    pub span: Span,
}

/// Request that is answered.
pub struct Done<R> {
    pub reply: R,
    pub result: Result<Verdict, Error>,
    pub bundle: Arc<Bundle>,
}

/// Result of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    /// The blob is valid.
    Valid,
    /// The blob is invalid, for this reason.
    Invalid(Reason),
    /// The KZG library failed, with this text. The blob may be valid.
    NoVerdict(String),
}

impl From<&KzgError> for Found {
    /// Returns the result that an error of the KZG crate stands for.
    fn from(error: &KzgError) -> Self {
        let narrow = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        Self::Invalid(match error {
            &KzgError::BlobLength { got } => Reason::BlobLength { got: got as u64 },
            &KzgError::ProofCount { expected, got } => {
                Reason::Count { part: Part::Proofs, expected: narrow(expected), got: narrow(got) }
            }
            &KzgError::NotCanonical { element } => {
                Reason::NotCanonical { element: narrow(element) }
            }
            &KzgError::Commitment(fault) => Reason::Commitment(point_fault(fault)),
            &KzgError::Proof { proof, fault } => {
                Reason::Proof { proof: narrow(proof), fault: point_fault(fault) }
            }
            KzgError::ProofInvalid => Reason::ProofInvalid,
            KzgError::Library(text) => return Self::NoVerdict(text.clone()),
        })
    }
}

fn point_fault(fault: tandem_kzg::PointFault) -> PointFault {
    match fault {
        tandem_kzg::PointFault::Encoding => PointFault::Encoding,
        tandem_kzg::PointFault::NotOnCurve => PointFault::NotOnCurve,
        tandem_kzg::PointFault::NotInSubgroup => PointFault::NotInSubgroup,
    }
}

/// Verdicts, current verifications, and waiting requests.
pub struct State<R> {
    config: Config,
    verdicts: Verdicts,
    flights: HashMap<B256, Flight>,
    /// Queues by form, because a batch has one form.
    queues: [VecDeque<Job>; 2],
    requests: HashMap<u64, Request<R>>,
    next_request: u64,
    /// Recent time to verify a blob on one thread.
    cost: Duration,
    counts: Status,
    stopped: bool,
}

/// The only verification of some content, from the first request for it to its verdict.
struct Flight {
    /// Waiting requests, with the position of the blob in each.
    waiters: Vec<(u64, u32)>,
}

struct Request<R> {
    reply: R,
    bundle: Arc<Bundle>,
    /// Number of blobs without a verdict.
    remaining: usize,
    refusal: Option<Refusal>,
    deadline: Instant,
}

impl<R: Caller> State<R> {
    pub fn new(config: Config) -> Self {
        let verdicts = match config.verification {
            Verification::Once => Verdicts::new(
                config.verdicts_max,
                config.verdict_bytes_max,
                config.refusals_max,
                config.refusal_time(),
            ),
            Verification::Legacy => Verdicts::new(0, 0, 0, Duration::ZERO),
        };
        Self {
            config,
            verdicts,
            flights: HashMap::new(),
            queues: Default::default(),
            requests: HashMap::new(),
            next_request: 0,
            cost: COST,
            counts: Status::default(),
            stopped: false,
        }
    }

    /// Submits a sidecar. Known verdicts are used and current verifications are shared. The other
    /// blobs are queued, all of them or none. Returns the request if it can be answered at once.
    pub fn submit(&mut self, now: Instant, submission: Submission<R>) -> Option<Done<R>> {
        let Submission { bundle, mut keys, deadline, reply, span } = submission;
        if self.config.verification == Verification::Legacy {
            self.disguise(&mut keys);
        }
        let answer = |reply, bundle, result| Some(Done { reply, result, bundle });
        if self.stopped {
            return answer(reply, bundle, Err(stopping()));
        }
        if deadline <= now || !reply.waits() {
            self.count_late(now, deadline);
            return answer(reply, bundle, Err(Error::DeadlineExceeded));
        }
        let mut refusal = None;
        let mut unknown = Vec::new();
        for (index, key) in (0u32..).zip(&keys) {
            match self.verdicts.get(now, key) {
                Some(Ok(())) => self.counts.hits += 1,
                Some(Err(reason)) => {
                    self.counts.hits += 1;
                    refusal.get_or_insert(Refusal { blob: Some(index), reason });
                }
                None => unknown.push((index, *key)),
            }
        }
        if let Some(refusal) = refusal {
            return answer(reply, bundle, Ok(Verdict::Invalid(refusal)));
        }
        if unknown.is_empty() {
            return answer(reply, bundle, Ok(Verdict::Valid));
        }
        let new = unknown.iter().filter(|(_, key)| !self.flights.contains_key(key)).count();
        if self.requests.len() >= self.config.requests_max
            || self.queued() + new > self.config.queue_blobs_max
        {
            return answer(reply, bundle, Err(self.overloaded()));
        }

        let id = self.next_request;
        self.next_request += 1;
        let remaining = unknown.len();
        for (index, key) in unknown {
            self.wait_for(now, (id, index), key, &bundle, &span);
        }
        let request = Request { reply, bundle, remaining, refusal: None, deadline };
        self.requests.insert(id, request);
        None
    }

    /// Makes keys differ from all others, so that no content is ever known.
    fn disguise(&self, keys: &mut [B256]) {
        for (index, key) in (0u64..).zip(keys) {
            key.0[..8].copy_from_slice(&self.next_request.to_be_bytes());
            key.0[8..16].copy_from_slice(&index.to_be_bytes());
        }
    }

    /// Joins the current verification of some content, or queues it.
    fn wait_for(
        &mut self,
        now: Instant,
        waiter: (u64, u32),
        key: B256,
        bundle: &Arc<Bundle>,
        span: &Span,
    ) {
        if let Some(flight) = self.flights.get_mut(&key) {
            flight.waiters.push(waiter);
            self.counts.shared += 1;
            return;
        }
        self.flights.insert(key, Flight { waiters: vec![waiter] });
        let (bundle, index, span) = (bundle.clone(), waiter.1 as usize, span.clone());
        self.queues[queue_of(bundle.form)].push_back(Job { key, bundle, index, since: now, span });
    }

    /// Refuses a request for lack of room, and counts it.
    pub fn overloaded(&mut self) -> Error {
        self.counts.overloaded += 1;
        let queued = u32::try_from(self.queued()).unwrap_or(u32::MAX);
        let threads = u32::try_from(self.config.threads).unwrap_or(u32::MAX).max(1);
        let wait = self.cost.saturating_mul(queued) / threads;
        Error::Overloaded { retry_after: wait.clamp(RETRY_AFTER.0, RETRY_AFTER.1) }
    }

    /// Returns the next batch: a thread's share of the queue, all of one form, the longest waiting
    /// first. Blobs without a waiting caller are left out, and their requests are answered.
    pub fn take(&mut self, now: Instant) -> (Vec<Job>, Vec<Done<R>>) {
        let (mut jobs, mut done) = (Vec::new(), Vec::new());
        let Some(queue) = self.longest_waiting() else { return (jobs, done) };
        let share = self.queues[queue].len().div_ceil(self.config.threads.max(1));
        let share = share.clamp(1, self.config.batch_blobs_max);
        let legacy = self.config.verification == Verification::Legacy;
        while let Some(next) = self.queues[queue].front()
            && match jobs.first() {
                // A legacy batch is one whole sidecar.
                Some(Job { bundle, .. }) if legacy => Arc::ptr_eq(bundle, &next.bundle),
                _ => jobs.len() < share,
            }
            && let Some(job) = self.queues[queue].pop_front()
        {
            if self.is_awaited(now, &job.key) {
                jobs.push(job);
            } else {
                done.extend(self.expire(now, &job.key));
            }
        }
        (jobs, done)
    }

    /// Returns whether all of this content is known to be valid; if so, counts it as hits.
    pub fn recall(&mut self, now: Instant, keys: &[B256]) -> bool {
        let known = !self.stopped
            && keys.iter().all(|key| matches!(self.verdicts.get(now, key), Some(Ok(()))));
        if known {
            self.counts.hits += keys.len() as u64;
        }
        known
    }

    fn longest_waiting(&self) -> Option<usize> {
        let heads = self.queues.iter().enumerate();
        let heads = heads.filter_map(|(place, queue)| Some((queue.front()?.since, place)));
        heads.min().map(|(_, place)| place)
    }

    /// Returns whether a caller still waits for a verification, and has time left.
    fn is_awaited(&self, now: Instant, key: &B256) -> bool {
        let waiters = self.flights.get(key).map_or(&[][..], |flight| &flight.waiters);
        let mut requests = waiters.iter().filter_map(|(id, _)| self.requests.get(id));
        requests.any(|request| request.deadline > now && request.reply.waits())
    }

    /// Gives up a verification that comes too late for all its callers.
    fn expire(&mut self, now: Instant, key: &B256) -> Vec<Done<R>> {
        let waiters = self.flights.remove(key).map(|flight| flight.waiters).unwrap_or_default();
        let mut done = Vec::with_capacity(waiters.len());
        for (id, _) in waiters {
            if let Some(request) = self.requests.get(&id) {
                self.count_late(now, request.deadline);
                done.extend(self.end(id, Err(Error::DeadlineExceeded)));
            }
        }
        done
    }

    /// Counts a request without an answer. A caller that gives up after its deadline counts as
    /// expired, not as gone.
    fn count_late(&mut self, now: Instant, deadline: Instant) {
        if deadline <= now {
            self.counts.expired += 1;
        } else {
            self.counts.abandoned += 1;
        }
    }

    fn end(&mut self, id: u64, result: Result<Verdict, Error>) -> Option<Done<R>> {
        let Request { reply, bundle, .. } = self.requests.remove(&id)?;
        Some(Done { reply, result, bundle })
    }

    /// Takes the results of a batch, which took `elapsed` and `batches` batch verifications.
    /// Returns the requests that now have all their verdicts.
    pub fn complete(
        &mut self,
        now: Instant,
        found: Vec<(B256, Found)>,
        batches: u32,
        elapsed: Duration,
    ) -> Vec<Done<R>> {
        self.counts.batches += u64::from(batches);
        let valid = found.iter().all(|(_, found)| *found == Found::Valid);
        let layers = if valid { self.config.verification.layers() } else { 1 };
        self.counts.verified += found.len() as u64 * u64::from(layers);
        if let Some(cost) = elapsed.checked_div(u32::try_from(found.len()).unwrap_or(u32::MAX)) {
            self.cost = (self.cost * 7 + cost) / 8;
        }
        let mut done = Vec::new();
        for (key, found) in found {
            match found {
                Found::Valid => self.verdicts.insert(now, key, Ok(())),
                Found::Invalid(reason) => self.verdicts.insert(now, key, Err(reason)),
                Found::NoVerdict(_) => {}
            }
            let Some(flight) = self.flights.remove(&key) else { continue };
            for (id, index) in flight.waiters {
                done.extend(self.answer(now, id, index, &found));
            }
        }
        done
    }

    /// Records one blob's verdict; returns the request if that was the last one.
    fn answer(&mut self, now: Instant, id: u64, index: u32, found: &Found) -> Option<Done<R>> {
        // The request is gone if another blob of it could not be verified.
        let request = self.requests.get_mut(&id)?;
        match found {
            Found::Valid => {}
            &Found::Invalid(reason) => {
                if request.refusal.is_none_or(|earlier| earlier.blob > Some(index)) {
                    request.refusal = Some(Refusal { blob: Some(index), reason });
                }
            }
            Found::NoVerdict(text) => return self.end(id, Err(Error::Library(text.clone()))),
        }
        request.remaining -= 1;
        if request.remaining > 0 {
            return None;
        }
        if request.deadline <= now {
            self.counts.expired += 1;
        }
        let verdict = request.refusal.map_or(Verdict::Valid, Verdict::Invalid);
        self.end(id, Ok(verdict))
    }

    /// Stops: answers every request, empties the queue, and accepts nothing any more.
    pub fn stop(&mut self) -> Vec<Done<R>> {
        self.stopped = true;
        self.flights.clear();
        self.queues.iter_mut().for_each(VecDeque::clear);
        let ids: Vec<_> = self.requests.keys().copied().collect();
        ids.into_iter().filter_map(|id| self.end(id, Err(stopping()))).collect()
    }

    /// Returns whether it has stopped.
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// Returns the number of blobs that wait for a thread.
    pub fn queued(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
    }

    /// Returns the counts so far, without the store's content and whether the setup is loaded.
    pub fn status(&self) -> Status {
        Status {
            queued: self.queued() as u64,
            verdicts: self.verdicts.count() as u64,
            ..self.counts
        }
    }
}

fn stopping() -> Error {
    Error::Unavailable("stopping".to_owned())
}

fn queue_of(form: Form) -> usize {
    usize::from(form == Form::CellProofs)
}

#[cfg(test)]
mod tests;
