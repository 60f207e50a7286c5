use super::*;
use tandem_chain::Fork;
use tandem_chain::{Header, Payload};
use tandem_primitives::U256;

fn attributes(timestamp: u64) -> PayloadAttributes {
    PayloadAttributes { timestamp, ..PayloadAttributes::default() }
}

fn payload(value: u64) -> Arc<BuiltPayload> {
    let payload = Payload::from_header(&Header::default(), B256::ZERO, Vec::new(), None);
    let (requests, blobs) = (Vec::new(), Vec::new());
    Arc::new(BuiltPayload { fork: Fork::Osaka, payload, requests, value: U256::from(value), blobs })
}

/// Builds, and the time of the test.
struct Case {
    builds: Builds,
    now: Instant,
}

impl Case {
    fn new() -> Self {
        Self { builds: Builds::default(), now: Instant::now() }
    }

    fn start(&mut self, timestamp: u64) -> PayloadId {
        self.builds.start(self.now, B256::ZERO, attributes(timestamp))
    }

    /// Returns timestamp and work of the next task.
    fn next(&self) -> Result<(u64, Work), Option<Duration>> {
        self.builds.next(self.now).map(|task| (task.attributes.timestamp, task.work))
    }

    /// Ends the next task with a payload of this value.
    fn finish(&mut self, value: u64, took: Duration) -> bool {
        let task = self.builds.next(self.now).unwrap();
        self.now += took;
        let is_better = self.builds.offer(task.number, payload(value));
        self.builds.attempted(self.now, task.number, took, Some(value), None);
        is_better
    }

    fn best(&mut self, id: PayloadId) -> Option<u64> {
        let progress = self.builds.want(id)?;
        let best = progress.borrow().best.clone();
        best.map(|best| best.value.to())
    }
}

const SHORT: Duration = Duration::from_millis(10);

#[test]
fn the_oldest_build_is_forgotten_first_and_the_same_one_not_begun_again() {
    let mut case = Case::new();
    let first = case.start(0);
    for timestamp in 0..BUILDS_MAX as u64 {
        assert_eq!(case.start(timestamp) == first, timestamp == 0);
    }
    assert!(case.builds.want(first).is_some(), "begun once, forgotten too early");
    let newest = case.start(1_000);
    assert!(case.builds.want(first).is_none());
    assert!(case.builds.want(newest).is_some());
    assert_eq!(case.builds.all.len(), BUILDS_MAX);
}

#[test]
fn wanted_builds_come_first_then_new_ones_then_improvements() {
    let mut case = Case::new();
    assert_eq!(case.next(), Err(None));
    let [one, _, three] = [1, 2, 3].map(|timestamp| case.start(timestamp));
    assert_eq!(case.next(), Ok((3, Work::First)));
    case.builds.want(one);
    assert_eq!(case.next(), Ok((1, Work::First)));
    assert_eq!(case.builds.due(case.now), 1, "work at another one is given up");
    assert!(case.finish(5, SHORT));
    case.builds.take(one);
    assert_eq!(case.next(), Ok((3, Work::First)));
    assert!(case.finish(5, SHORT));
    assert_eq!(case.next(), Ok((2, Work::First)));
    assert!(case.finish(5, SHORT));
    let wait = case.next().unwrap_err().unwrap();
    assert!(wait < IMPROVE_EVERY);
    case.now += wait;
    assert_eq!(case.next(), Ok((3, Work::Improve(Some(5)))));
    // After a long attempt the builder rests longer.
    let long = Duration::from_secs(1);
    case.finish(6, long);
    assert_eq!(case.next(), Err(Some(long * REST_FACTOR)));
    assert_eq!(case.best(three), Some(6));
    case.start(4);
    assert_eq!(case.next(), Ok((4, Work::First)));
}

#[test]
fn only_a_better_payload_replaces_and_none_after_it_was_taken() {
    let mut case = Case::new();
    let id = case.start(1);
    assert!(case.finish(5, SHORT));
    for (value, is_better) in [(4, false), (5, false), (6, true)] {
        case.now += Duration::from_secs(1);
        assert_eq!(case.finish(value, SHORT), is_better, "{value}");
    }
    assert_eq!(case.best(id), Some(6));
    assert_eq!(case.builds.take(id).unwrap().best.unwrap().value, U256::from(6));
    assert!(!case.builds.offer(1, payload(7)));
    assert_eq!(case.best(id), Some(6));
    case.now += Duration::from_secs(1);
    assert_eq!((case.next(), case.builds.due(case.now)), (Err(None), 0));
}

#[test]
fn a_build_is_improved_for_a_slot() {
    let mut case = Case::new();
    case.start(1);
    case.finish(5, SHORT);
    case.now += IMPROVED_FOR - Duration::from_millis(100);
    assert_eq!(case.next(), Ok((1, Work::Improve(Some(5)))));
    case.now += Duration::from_millis(100);
    assert_eq!((case.next(), case.builds.due(case.now)), (Err(None), 0));
}

#[test]
fn a_build_that_failed_is_settled_and_says_why() {
    let mut case = Case::new();
    let id = case.start(1);
    let progress = case.builds.want(id).unwrap();
    assert!(!progress.borrow().is_settled);
    case.builds.attempted(case.now, 1, SHORT, None, Some(Error::UnknownBlock));
    let now = progress.borrow().clone();
    assert!(now.is_settled && matches!(now.error, Some(Error::UnknownBlock)));
    assert_eq!(case.next(), Err(None), "nothing to improve");
    // A caller without a payload has taken nothing.
    assert!(case.builds.take(id).unwrap().best.is_none());
    assert!(case.builds.offer(1, payload(1)));
}
