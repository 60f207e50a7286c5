//! Verifying threads, and the state they share with callers.

use crate::{
    admission::Admission,
    config::{Config, Verification},
    metrics as names,
    state::{Caller, Done, Found, Job, State, Submission},
    store::{self, Store},
    trusted_setup::load_trusted_setup,
};
use metrics::{counter, gauge, histogram};
use parking_lot::{Condvar, Mutex};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tandem_blob_validator_client::bundle;
use tandem_bus::Bus;
use tandem_kzg::{Report, Setup, Verifier};
use tandem_primitives::B256;
use tandem_proto::{
    blob_validator::{Bundle, Content, Error, Form, Result, Status, Verdict},
    event::{BLOBS_VALIDATED, BlobsValidated},
};
use tandem_telemetry::{add_link, traceparent};
use tokio::sync::oneshot;
use tracing::{Span, field::Empty, info, info_span, warn};

/// Destination of one answer, with the admission that its sidecar holds until then.
pub struct Reply {
    /// Sender to a future, which its owner may have dropped.
    pub sender: oneshot::Sender<Result<Verdict>>,
    pub admission: Admission,
}

impl Reply {
    /// Sends the answer. Never blocks.
    fn send(self, result: Result<Verdict>) {
        let Self { sender, admission } = self;
        drop(admission);
        // An error means that the caller has given up.
        drop(sender.send(result));
    }
}

impl Caller for Reply {
    fn waits(&self) -> bool {
        !self.sender.is_closed()
    }
}

/// State shared by all threads. Locks are held for microseconds: no hashing, no copying of blobs
/// and no KZG happens under them.
pub struct Shared {
    pub state: Mutex<State<Reply>>,
    pub store: Mutex<Store>,
    /// Condition that something is queued, or that everything ends.
    work: Condvar,
    bus: Bus,
    verification: Verification,
    /// Number of blobs in the queue, for callers that only check whether it is full.
    queued: AtomicUsize,
    queue_blobs_max: usize,
}

impl Shared {
    /// Makes the state of a configuration with [`Config::clamped`] bounds.
    pub fn new(config: Config, bus: Bus) -> Self {
        let store = Store::new(config.store_bytes_max, config.store_time());
        let (verification, queue_blobs_max) = (config.verification, config.queue_blobs_max);
        let (state, store) = (Mutex::new(State::new(config)), Mutex::new(store));
        let (work, queued) = (Condvar::new(), AtomicUsize::new(0));
        Self { state, store, work, bus, verification, queued, queue_blobs_max }
    }

    /// Returns whether this many new blobs would be refused now.
    pub fn is_full_for(&self, blobs: usize) -> bool {
        self.queued.load(Relaxed).saturating_add(blobs) > self.queue_blobs_max
    }

    /// Hashes and submits a sidecar that passed [`bundle::check`], on this thread. `reply` gets the
    /// answer here, or later on another thread.
    pub fn submit(&self, bundle: Arc<Bundle>, deadline: Instant, span: Span, reply: Reply) {
        // Without a waiting caller the hash is not worth its time. The state answers, and counts
        // the request.
        let late = Instant::now() >= deadline || !reply.waits();
        let keys = match self.keys(&bundle, late) {
            Ok(keys) => keys,
            Err(error) => return reply.send(Err(Error::Library(error.to_string()))),
        };
        let submission = Submission { bundle, keys, deadline, reply, span };
        let (done, new) = self.change(|state| {
            let before = state.queued();
            let done = state.submit(Instant::now(), submission);
            (done, state.queued() - before)
        });
        // Each thread takes its share, so several may find something to do.
        for _ in 0..new {
            if !self.work.notify_one() {
                break;
            }
        }
        self.finish(done);
    }

    fn keys(
        &self,
        bundle: &Bundle,
        late: bool,
    ) -> std::result::Result<Vec<B256>, tandem_kzg::Error> {
        match self.verification {
            _ if late => Ok(Vec::new()),
            Verification::Once => bundle::keys(bundle),
            // The state makes unique keys: this policy never looks for known content.
            Verification::Legacy => Ok(vec![B256::ZERO; bundle.blobs.len()]),
        }
    }

    /// Refuses a request before its check.
    pub fn refuse_for_overload(&self) -> Error {
        self.change(State::overloaded)
    }

    /// Changes the state, and updates the metrics.
    fn change<T>(&self, change: impl FnOnce(&mut State<Reply>) -> T) -> T {
        let mut state = self.state.lock();
        let before = state.status();
        let result = change(&mut state);
        let after = state.status();
        self.queued.store(state.queued(), Relaxed);
        drop(state);
        publish(&before, &after);
        result
    }

    /// Answers requests. A valid sidecar's blobs can be read before its answer is sent.
    fn finish(&self, done: impl IntoIterator<Item = Done<Reply>>) {
        for Done { reply, result, bundle } in done {
            if result == Ok(Verdict::Valid) {
                self.keep(&bundle);
            }
            reply.send(result);
        }
    }

    fn keep(&self, bundle: &Bundle) {
        let Bundle { form, versioned_hashes, .. } = bundle;
        let missing = self.store.lock().touch(Instant::now(), *form, versioned_hashes);
        if missing.is_empty() {
            return;
        }
        let blobs = store::blobs(bundle, &missing);
        let mut store = self.store.lock();
        store.insert(Instant::now(), blobs);
        gauge!(names::STORE_BLOBS).set(store.len() as f64);
        gauge!(names::STORE_BYTES).set(store.bytes() as f64);
        drop(store);
        let event = BlobsValidated { versioned_hashes: bundle.versioned_hashes.clone() };
        self.bus.publish(BLOBS_VALIDATED, event.encode());
    }

    /// Returns whether all of this content is known to be valid and is kept. The store is asked
    /// first: missing content must be sent again, so it is not a hit.
    pub fn recall(&self, content: &Content) -> bool {
        let Content { form, keys, versioned_hashes } = content;
        !keys.is_empty()
            && keys.len() == versioned_hashes.len()
            && self.store.lock().touch(Instant::now(), *form, versioned_hashes).is_empty()
            && self.change(|state| state.recall(Instant::now(), keys))
    }

    /// Stops: waiting requests are answered, and threads return.
    pub fn stop(&self) {
        let done = self.change(State::stop);
        self.work.notify_all();
        self.finish(done);
    }

    /// Waits for something to verify, and calls `rest` before each wait; returns `None` at the end.
    fn next(&self, mut rest: impl FnMut()) -> Option<Vec<Job>> {
        loop {
            let (jobs, expired) = self.change(|state| state.take(Instant::now()));
            self.finish(expired);
            if !jobs.is_empty() {
                return Some(jobs);
            }
            rest();
            let mut state = self.state.lock();
            if state.stopped() {
                return None;
            }
            if state.queued() == 0 {
                self.work.wait(&mut state);
            }
        }
    }
}

/// Publishes the change between two states as metrics.
fn publish(before: &Status, after: &Status) {
    let counters = [
        (names::HITS, before.hits, after.hits),
        (names::SHARED, before.shared, after.shared),
        (names::OVERLOADED, before.overloaded, after.overloaded),
        (names::EXPIRED, before.expired, after.expired),
        (names::ABANDONED, before.abandoned, after.abandoned),
    ];
    for (name, before, after) in counters {
        if after > before {
            counter!(name).increment(after - before);
        }
    }
    if after.queued != before.queued {
        gauge!(names::QUEUE_BLOBS).set(after.queued as f64);
    }
    if after.verdicts != before.verdicts {
        gauge!(names::VERDICTS).set(after.verdicts as f64);
    }
}

/// Runs the loop of a verifier.
pub fn run(shared: &Shared) {
    let started = Instant::now();
    let loading = Setup::loaded().is_none();
    let setup = load_trusted_setup();
    if loading {
        info!(millis = started.elapsed().as_millis() as u64, "trusted setup loaded");
    }
    let layers = shared.verification.layers();
    let mut verifier = Verifier::new(setup);
    while let Some(jobs) = shared.next(|| verifier.rest()) {
        let Verified { found, batches, took } = verify_jobs(&mut verifier, &jobs, layers);
        let done = shared.change(|state| state.complete(Instant::now(), found, batches, took));
        shared.finish(done);
    }
}

/// Results of a batch, and its cost.
struct Verified {
    found: Vec<(B256, Found)>,
    batches: u32,
    took: Duration,
}

/// Verifies jobs of one form together; valid ones once for every layer.
fn verify_jobs(verifier: &mut Verifier, jobs: &[Job], layers: u32) -> Verified {
    let started = Instant::now();
    let form = match jobs.first().map(|job| job.bundle.form) {
        Some(Form::CellProofs) => "cells",
        _ => "blobs",
    };
    let waited = jobs.iter().map(|job| started.saturating_duration_since(job.since)).max();
    let waited = waited.unwrap_or_default();
    let span = batch_span(jobs, form, waited.as_micros() as u64);
    let entered = span.enter();
    let mut found: Vec<(B256, Found)> = Vec::with_capacity(jobs.len());
    let mut items = Vec::with_capacity(jobs.len());
    let mut places = Vec::with_capacity(jobs.len());
    for (place, job) in jobs.iter().enumerate() {
        let item = bundle::item(&job.bundle, job.index);
        // Results of valid items are replaced below; earlier checks let only valid items through.
        found.push((job.key, item.as_ref().map_or_else(Found::from, |_| Found::Valid)));
        if let Ok(item) = item {
            items.push(item);
            places.push(place);
        }
    }
    let Report { mut results, mut batches } = verifier.verify(&items);
    let mut verified = jobs.len() as u64;
    for _ in 1..layers {
        if results.iter().all(std::result::Result::is_ok) {
            let again = verifier.verify(&items);
            (results, batches) = (again.results, batches + again.batches);
            verified += jobs.len() as u64;
        }
    }
    for (place, result) in places.into_iter().zip(&results) {
        found[place].1 = result.as_ref().map_or_else(Found::from, |()| Found::Valid);
    }
    let refused = found.iter().filter(|(_, found)| matches!(found, Found::Invalid(_))).count();
    let failed = found.iter().find_map(|(_, found)| match found {
        Found::NoVerdict(error) => Some(error),
        Found::Valid | Found::Invalid(_) => None,
    });
    if let Some(error) = failed {
        warn!(%error, "kzg library failed");
    }
    span.record("batches", batches);
    span.record("refused", refused);
    drop(entered);
    let took = started.elapsed();
    counter!(names::VERIFIED, "form" => form).increment(verified);
    counter!(names::REFUSED, "form" => form).increment(refused as u64);
    counter!(names::BATCHES, "form" => form).increment(u64::from(batches));
    histogram!(names::VERIFY_SECONDS, "form" => form).record(took.as_secs_f64());
    histogram!(names::BATCH_BLOBS, "form" => form).record(jobs.len() as f64);
    histogram!(names::QUEUE_WAIT_SECONDS).record(waited.as_secs_f64());
    Verified { found, batches, took }
}

/// Makes the span of a batch: a child of its only request, or linked to each of several.
fn batch_span(jobs: &[Job], form: &'static str, queue_wait_us: u64) -> Span {
    let blobs = jobs.len();
    let first = jobs.first().map_or_else(Span::none, |job| job.span.clone());
    let alone = jobs.iter().all(|job| job.span.id() == first.id());
    let parent = if alone { first.id() } else { None };
    let span = info_span!(
        parent: parent, "validate_blobs",
        blobs, form, queue_wait_us, batches = Empty, refused = Empty,
    );
    if !alone {
        for job in jobs {
            if let Some(context) = traceparent(&job.span) {
                add_link(&span, &context);
            }
        }
    }
    span
}
