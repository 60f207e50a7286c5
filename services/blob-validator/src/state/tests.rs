use super::*;
use proptest::{collection::vec, prelude::*};
use std::{alloc::System, cell::Cell, collections::HashSet, rc::Rc};
use tandem_heap::{Counting, thread};
use tandem_primitives::U256;
use tandem_proto::blob_validator::Rule;

#[global_allocator]
static ALLOCATOR: Counting<System> = Counting(System);

fn config() -> Config {
    Config {
        threads: 2,
        queue_blobs_max: 8,
        batch_blobs_max: 4,
        requests_max: 16,
        ..Config::default()
    }
}

/// Makes an empty sidecar: the state looks at its form alone.
fn bundle(form: Form) -> Arc<Bundle> {
    Arc::new(Bundle {
        form,
        blobs: vec![],
        commitments: vec![],
        proofs: vec![],
        versioned_hashes: vec![],
        rule: Rule { form, blobs_max: 6 },
    })
}

fn key(number: u64) -> B256 {
    B256::from(U256::from(number))
}

/// Caller with a number.
struct Peer {
    number: u64,
    gone: Rc<Cell<bool>>,
}

impl Caller for Peer {
    fn waits(&self) -> bool {
        !self.gone.get()
    }
}

fn submission(number: u64, contents: &[u64], deadline: Instant) -> Submission<Peer> {
    let keys = contents.iter().map(|&content| key(content)).collect();
    let reply = Peer { number, gone: Rc::default() };
    Submission { bundle: bundle(Form::BlobProofs), keys, deadline, reply, span: Span::none() }
}

/// Caller's number with its result.
type Answered = (u64, Result<Verdict, Error>);

struct Driver {
    state: State<Peer>,
    now: Instant,
}

impl Driver {
    fn new(config: Config) -> Self {
        Self { state: State::new(config), now: Instant::now() }
    }

    fn submit(&mut self, reply: u64, contents: &[u64]) -> Option<Result<Verdict, Error>> {
        let deadline = self.now + Duration::from_secs(1);
        self.state.submit(self.now, submission(reply, contents, deadline)).map(|done| done.result)
    }

    /// Verifies the next batch; contents for which `bad` is true are refused.
    fn verify(&mut self, bad: impl Fn(u64) -> bool) -> (Vec<u64>, Vec<Answered>) {
        let (jobs, mut done) = self.state.take(self.now);
        let number = |job: &Job| U256::from_be_bytes(job.key.0).wrapping_to::<u64>();
        let numbers: Vec<_> = jobs.iter().map(number).collect();
        let verify = |job: &Job| match bad(number(job)) {
            true => Found::Invalid(Reason::ProofInvalid),
            false => Found::Valid,
        };
        let found = jobs.iter().map(|job| (job.key, verify(job))).collect();
        done.extend(self.state.complete(self.now, found, 1, Duration::from_millis(1)));
        (numbers, done.into_iter().map(|done| (done.reply.number, done.result)).collect())
    }
}

fn invalid(blob: u32) -> Result<Verdict, Error> {
    Ok(Verdict::Invalid(Refusal { blob: Some(blob), reason: Reason::ProofInvalid }))
}

#[test]
fn the_same_content_is_verified_once_and_known_afterwards() {
    let mut driver = Driver::new(config());
    assert_eq!(driver.submit(1, &[10, 11]), None);
    assert_eq!(driver.submit(2, &[11, 10]), None);
    assert_eq!(driver.submit(3, &[11, 11]), None);
    assert_eq!(driver.verify(|_| false), (vec![10], vec![]));
    let (verified, done) = driver.verify(|_| false);
    assert_eq!(verified, [11]);
    assert_eq!(done, [1, 2, 3].map(|reply| (reply, Ok(Verdict::Valid))));
    assert_eq!(driver.submit(4, &[10]), Some(Ok(Verdict::Valid)));
    let status = driver.state.status();
    assert_eq!((status.verified, status.shared, status.hits), (2, 4, 1));
}

#[test]
fn a_request_waits_for_all_its_blobs_and_names_the_first_bad_one() {
    let mut driver = Driver::new(config());
    driver.submit(1, &[1, 2, 3, 4]);
    driver.verify(|content| content == 2);
    let mut done = driver.verify(|content| content == 4).1;
    done.extend(driver.verify(|content| content == 4).1);
    assert_eq!(done, [(1, invalid(1))]);
    assert_eq!(driver.submit(2, &[9, 4]), Some(invalid(1)), "and what is known is not queued");
    assert_eq!(driver.state.queued(), 0);
    driver.now += Duration::from_secs(30);
    assert_eq!(driver.submit(3, &[4]), None, "a refusal is remembered briefly");
}

#[test]
fn a_thread_takes_its_share_and_no_more_than_a_batch() {
    let mut driver = Driver::new(config());
    driver.submit(1, &[1]);
    assert_eq!(driver.verify(|_| false).0, [1], "a single blob does not wait for company");
    driver.submit(2, &[2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(driver.verify(|_| false).0, [2, 3, 4, 5]);
    assert_eq!(driver.verify(|_| false).0, [6, 7]);
    let mut wide = Driver::new(Config { batch_blobs_max: 2, ..config() });
    wide.submit(1, &[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(wide.verify(|_| false).0, [1, 2]);
}

#[test]
fn a_batch_has_one_form_and_the_longest_waiting_comes_first() {
    let mut driver = Driver::new(config());
    let deadline = driver.now + Duration::from_secs(1);
    for (reply, form) in [(1, Form::CellProofs), (2, Form::BlobProofs), (3, Form::CellProofs)] {
        driver.now += Duration::from_millis(1);
        let submission =
            Submission { bundle: bundle(form), ..submission(reply, &[reply], deadline) };
        driver.state.submit(driver.now, submission);
    }
    let order: Vec<_> = (0..3).map(|_| driver.verify(|_| false).0).collect();
    assert_eq!(order, [[1], [2], [3]]);
}

#[test]
fn what_does_not_fit_is_refused_as_a_whole_with_a_hint() {
    let mut driver = Driver::new(config());
    assert_eq!(driver.submit(1, &[1, 2, 3, 4, 5, 6]), None);
    let Some(Err(Error::Overloaded { retry_after })) = driver.submit(2, &[7, 8, 9]) else {
        panic!("8 blobs fit")
    };
    assert!(retry_after >= RETRY_AFTER.0 && retry_after <= RETRY_AFTER.1);
    assert_eq!(driver.state.queued(), 6, "nothing of it was taken");
    assert_eq!(driver.submit(3, &[1, 2, 3, 7, 8]), None, "what is under way takes no room");
    assert_eq!(driver.state.status().overloaded, 1);
    for reply in 4..18 {
        assert_eq!(driver.submit(reply, &[1]), None);
    }
    assert!(matches!(driver.submit(18, &[1]), Some(Err(Error::Overloaded { .. }))), "16 may wait");
}

#[test]
fn a_blob_is_not_verified_for_nobody() {
    let mut driver = Driver::new(config());
    driver.submit(1, &[1, 2]);
    driver.now += Duration::from_millis(500);
    driver.submit(2, &[2]);
    driver.now += Duration::from_millis(500);
    let (verified, done) = driver.verify(|_| false);
    assert_eq!(verified, [2], "somebody still waits for it");
    assert_eq!(done, [(1, Err(Error::DeadlineExceeded)), (2, Ok(Verdict::Valid))]);
    let late = submission(3, &[1], driver.now);
    let done = driver.state.submit(driver.now, late).map(|done| done.result);
    assert_eq!(done, Some(Err(Error::DeadlineExceeded)));
    assert_eq!(driver.state.status().expired, 2);
}

#[test]
fn what_only_those_want_who_are_gone_is_not_verified() {
    let mut driver = Driver::new(config());
    let deadline = driver.now + Duration::from_secs(1);
    let leaves = submission(1, &[1, 2], deadline);
    let gone = leaves.reply.gone.clone();
    assert!(driver.state.submit(driver.now, leaves).is_none());
    driver.submit(2, &[2]);
    gone.set(true);
    let (verified, done) = driver.verify(|_| false);
    assert_eq!(verified, [2], "somebody else still waits for it");
    assert_eq!(done, [(1, Err(Error::DeadlineExceeded)), (2, Ok(Verdict::Valid))]);
    let late = submission(3, &[1], deadline);
    late.reply.gone.set(true);
    assert!(driver.state.submit(driver.now, late).is_some(), "not even queued");
    let status = driver.state.status();
    assert_eq!((status.abandoned, status.expired, status.verified), (2, 0, 1));
}

#[test]
fn legacy_verifies_every_sidecar_by_itself_and_twice() {
    let mut driver = Driver::new(Config { verification: Verification::Legacy, ..config() });
    driver.submit(1, &[10, 11, 12, 13, 14, 15]);
    driver.submit(2, &[10, 11]);
    assert_eq!(driver.verify(|_| false).1, [(1, Ok(Verdict::Valid))]);
    assert_eq!(driver.verify(|_| false).1, [(2, Ok(Verdict::Valid))]);
    driver.submit(3, &[10]);
    assert_eq!(driver.verify(|_| true).1, [(3, invalid(0))]);
    let status = driver.state.status();
    assert_eq!((status.verified, status.hits, status.shared), (2 * 6 + 2 * 2 + 1, 0, 0));
    assert_eq!(status.verdicts, 0);
}

#[test]
fn a_failing_library_is_no_verdict() {
    let mut driver = Driver::new(config());
    driver.submit(1, &[1, 2]);
    let (jobs, _) = driver.state.take(driver.now);
    let failed = vec![(jobs[0].key, Found::NoVerdict("out of memory".to_owned()))];
    let done = driver.state.complete(driver.now, failed, 1, Duration::ZERO);
    assert_eq!(done[0].result, Err(Error::Library("out of memory".to_owned())));
    assert_eq!(driver.verify(|_| false), (vec![], vec![]), "nobody waits for its other blob");
    assert_eq!(driver.submit(2, &[1]), None, "it is verified again");
}

#[test]
fn the_end_answers_everyone() {
    let mut driver = Driver::new(config());
    driver.submit(1, &[1, 2]);
    driver.submit(2, &[1]);
    let (jobs, _) = driver.state.take(driver.now);
    let mut replies: Vec<_> = driver.state.stop().iter().map(|done| done.reply.number).collect();
    replies.sort_unstable();
    assert_eq!(replies, [1, 2]);
    assert!(driver.verify(|_| false).0.is_empty());
    let found = vec![(jobs[0].key, Found::Valid)];
    assert!(driver.state.complete(driver.now, found, 1, Duration::ZERO).is_empty());
    assert!(matches!(driver.submit(3, &[1]), Some(Err(Error::Unavailable(_)))));
}

proptest! {
    /// Makes requests for few contents, verified in between, in any order.
    #[test]
    fn every_request_is_answered_once_and_rightly(
        steps in vec((vec(0..12u64, 1..5), any::<bool>()), 1..80), bad: [bool; 12],
    ) {
        let mut driver = Driver::new(Config { refusal_seconds: 3600, ..config() });
        let mut answers = HashMap::new();
        let mut verified = HashSet::new();
        let mut wanted = Vec::new();
        for (reply, (contents, verify)) in (0u64..).zip(steps) {
            if let Some(result) = driver.submit(reply, &contents) {
                prop_assert!(answers.insert(reply, result).is_none());
            }
            wanted.push(contents);
            if verify {
                let (contents, done) = driver.verify(|content| bad[content as usize]);
                for content in contents {
                    prop_assert!(verified.insert(content), "{} was verified twice", content);
                }
                for (reply, result) in done {
                    prop_assert!(answers.insert(reply, result).is_none());
                }
            }
            prop_assert!(driver.state.queued() <= 8 && driver.state.requests.len() <= 16);
        }
        while driver.state.queued() > 0 {
            answers.extend(driver.verify(|content| bad[content as usize]).1);
        }
        prop_assert!(driver.state.requests.is_empty() && driver.state.flights.is_empty());
        for (reply, contents) in (0u64..).zip(&wanted) {
            match &answers[&reply] {
                Ok(Verdict::Valid) => prop_assert!(contents.iter().all(|&content| !bad[content as usize])),
                Ok(Verdict::Invalid(refusal)) => {
                    prop_assert!(bad[contents[refusal.blob.unwrap() as usize] as usize]);
                }
                Err(error) => {
                    let overloaded = matches!(error, Error::Overloaded { .. });
                    prop_assert!(overloaded, "{}", error);
                }
            }
        }
    }
}

#[test]
fn memory_is_flat_over_a_million_contents() {
    const BYTES_MAX: usize = 4 << 20;
    let config = Config { verdict_bytes_max: BYTES_MAX, refusals_max: 1000, ..config() };
    let mut driver = Driver::new(config);
    let (peak, ()) = thread::peak(|| {
        for content in 0..1_000_000 {
            assert_eq!(driver.submit(content, &[content]), None);
            let (_, done) = driver.verify(|content| content % 8 == 0);
            assert_eq!(done.len(), 1);
        }
    });
    assert!(driver.state.flights.is_empty() && driver.state.requests.is_empty());
    assert!(driver.state.status().verdicts > 30_000, "the bound is made use of");
    // A growing table holds the old places beside the new ones for a moment.
    assert!(peak < BYTES_MAX * 3 / 2, "{peak} bytes");
}
