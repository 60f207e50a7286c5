//! Many callers at once, too many of them, impatient ones.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{bundle, garbage, start, status};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_blob_validator::{BlobValidator, Config};
use tandem_proto::blob_validator::{BlobApi, Error, Verdict};
use tokio::task::JoinSet;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Starts with the trusted setup loaded.
fn ready(config: Config) -> Arc<BlobValidator> {
    common::samples();
    start(config).0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_peers_with_the_same_sidecar_cost_six_verifications() {
    let service = ready(Config::default());
    let mut peers = JoinSet::new();
    for _ in 0..100 {
        // Each peer has its own copy of the bytes.
        let (service, bundle) = (service.clone(), Arc::new(bundle(6)));
        peers.spawn(async move { service.validate(bundle, TIMEOUT).await });
    }
    let verdicts = peers.join_all().await;
    assert_eq!(verdicts, vec![Ok(Verdict::Valid); 100]);
    let status = status(&service);
    assert_eq!(status.verified, 6);
    assert_eq!(status.shared + status.hits, 99 * 6);
    assert_eq!((status.stored_blobs, status.queued), (6, 0));
}

#[test]
fn threads_may_ask_too() {
    let service = ready(Config::default());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let verdict = service.validate_blocking(Arc::new(bundle(3)), TIMEOUT);
                assert_eq!(verdict, Ok(Verdict::Valid));
            });
        }
    });
    assert_eq!(status(&service).verified, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_much_is_refused_with_a_hint_and_the_rest_is_answered() {
    // The queue is never smaller than the largest sidecar: 64 blobs.
    let service = ready(Config { threads: 1, queue_blobs_max: 1, ..Config::default() });
    let mut callers = JoinSet::new();
    for seed in 0..30 {
        let service = service.clone();
        callers.spawn(async move { service.validate(garbage(seed, 6), TIMEOUT).await });
    }
    let (mut answered, mut refused) = (0, 0);
    for answer in callers.join_all().await {
        match answer {
            Ok(verdict) => {
                assert!(matches!(verdict, Verdict::Invalid(_)));
                answered += 1;
            }
            Err(Error::Overloaded { retry_after }) => {
                assert!(retry_after >= Duration::from_millis(10));
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(answered >= 10 && refused >= 1, "{answered} answered, {refused} refused");
    let status = status(&service);
    assert_eq!((status.overloaded, status.verified), (refused, answered * 6));
    let verdict = service.validate(Arc::new(bundle(6)), TIMEOUT).await;
    assert_eq!(verdict, Ok(Verdict::Valid), "and it works again");
}

#[tokio::test]
async fn more_callers_than_may_wait_are_refused() {
    let service = ready(Config { threads: 1, requests_max: 2, ..Config::default() });
    // Nothing is awaited meanwhile: what the mailbox does not hold is refused at once.
    let pending: Vec<_> =
        (0..200).map(|seed| service.validate(garbage(seed, 6), TIMEOUT)).collect();
    let mut refused = 0;
    for answer in pending {
        refused += u64::from(matches!(answer.await, Err(Error::Overloaded { .. })));
    }
    assert!((1..200).contains(&refused), "{refused} refused");
    assert_eq!(status(&service).overloaded, refused);
}

#[tokio::test]
async fn more_bytes_than_may_wait_are_refused() {
    // The bound is never lower than the largest message: 16 MiB, 21 sidecars of six.
    let service = ready(Config { waiting_bytes_max: 0, ..Config::default() });
    for _round in 0..2 {
        let same = Arc::new(bundle(6));
        let pending: Vec<_> = (0..25).map(|_| service.validate(same.clone(), TIMEOUT)).collect();
        let mut refused = 0;
        for answer in pending {
            refused += usize::from(matches!(answer.await, Err(Error::Overloaded { .. })));
        }
        assert!(refused <= 4, "{refused} refused");
        service.forget(&same.versioned_hashes);
    }
    let cold = ready(Config { threads: 1, waiting_bytes_max: 0, ..Config::default() });
    let pending: Vec<_> = (0..40).map(|seed| cold.validate(garbage(seed, 6), TIMEOUT)).collect();
    assert!(status(&cold).overloaded >= 1, "40 sidecars are 30 MiB");
    for answer in pending {
        let _ = answer.await;
    }
    assert_eq!(cold.validate(Arc::new(bundle(6)), TIMEOUT).await, Ok(Verdict::Valid));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_longer_than_he_said() {
    let service = ready(Config { threads: 1, ..Config::default() });
    let busy: Vec<_> = (0..20).map(|seed| service.validate(garbage(seed, 6), TIMEOUT)).collect();
    let started = Instant::now();
    let late = service.validate(garbage(100, 6), Duration::from_millis(5)).await;
    assert_eq!(late, Err(Error::DeadlineExceeded));
    assert!(started.elapsed() < Duration::from_millis(500), "{:?}", started.elapsed());
    let impatient = service.validate_blocking(garbage(101, 6), Duration::ZERO);
    assert_eq!(impatient, Err(Error::DeadlineExceeded));
    for answer in busy {
        assert!(answer.await.is_ok());
    }
    // The one that is late may still be queued, until the thread finds out that nobody waits.
    while status(&service).expired < 2 {
        assert!(started.elapsed() < TIMEOUT);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(status(&service).verified, 20 * 6, "nothing was verified for nobody");
}

#[tokio::test]
async fn the_end_answers_those_who_wait() {
    let service = ready(Config { threads: 1, ..Config::default() });
    let pending: Vec<_> = (0..20).map(|seed| service.validate(garbage(seed, 6), TIMEOUT)).collect();
    let stopping = service.clone();
    tokio::task::spawn_blocking(move || stopping.stop()).await.unwrap();
    let mut unavailable = 0;
    for answer in pending {
        unavailable += u64::from(matches!(answer.await, Err(Error::Unavailable(_))));
    }
    assert!(unavailable > 0);
    let later = service.validate(Arc::new(bundle(1)), TIMEOUT).await;
    assert!(matches!(later, Err(Error::Unavailable(_))));
    let later = service.validate_blocking(Arc::new(bundle(1)), TIMEOUT);
    assert!(matches!(later, Err(Error::Unavailable(_))));
    service.stop();
}

/// The reactor has one thread; a heartbeat on it is late whenever something blocks it.
#[tokio::test(flavor = "current_thread")]
async fn the_reactor_beats_on_while_the_pool_is_full() {
    // One thread, so that a machine of two cores has one left for the reactor.
    let service = ready(Config { threads: 1, ..Config::default() });
    let bundles: Vec<_> = (0..80).map(|seed| garbage(seed, 6)).collect();
    let mut callers = JoinSet::new();
    for bundle in bundles {
        callers.spawn(service.validate(bundle, TIMEOUT));
    }
    let mut late = Vec::new();
    while status(&service).verified < 80 * 6 {
        let due = tokio::time::Instant::now() + Duration::from_millis(2);
        tokio::time::sleep_until(due).await;
        late.push(due.elapsed());
    }
    assert_eq!(callers.join_all().await.len(), 80);
    late.sort_unstable();
    let beats = late.len();
    assert!(beats > 50, "{beats} beats");
    // The clock of tokio ticks in milliseconds; a blocked reactor would miss whole batches, tens of
    // milliseconds each. (Others may use this machine: the worst beats say more about them.)
    let typical = late[beats / 2];
    assert!(typical < Duration::from_millis(3), "typically {typical:?} late");
    let bad = late[beats * 95 / 100];
    assert!(bad < Duration::from_millis(20), "5 % are {bad:?} late");
}
