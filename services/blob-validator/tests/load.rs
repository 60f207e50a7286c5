//! Many callers at once, too many callers, and impatient ones.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{
    TIMEOUT, bundle,
    flood::{Flood, one_by_one},
    garbage, start, status, until,
};
use std::{sync::Arc, time::Duration};
use tandem_blob_validator::{BlobValidator, Config};
use tandem_proto::blob_validator::{BlobApi, Error, Verdict};
use tokio::task::JoinSet;

/// Starts a service with the trusted setup loaded.
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_much_is_refused_with_a_hint_and_the_rest_is_answered() {
    // The queue is never smaller than the largest sidecar: 64 blobs.
    let service = ready(Config { threads: 1, queue_blobs_max: 1, ..Config::default() });
    // All are sent before any is awaited, and hashing is ten times faster than verifying.
    let pending: Vec<_> =
        (0..100).map(|seed| service.validate(garbage(seed, 6), TIMEOUT)).collect();
    let (mut answered, mut refused) = (0, 0);
    for answer in pending {
        match answer.await {
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
    // None is awaited meanwhile, so requests that the mailbox cannot hold are refused at once.
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
    let service = ready(one_by_one());
    let flood = Flood::start(&service).await;
    // The blobs queued before it take longer than this, and never end before it is answered.
    let late = service.validate(garbage(100, 6), Duration::from_millis(5)).await;
    assert_eq!(late, Err(Error::DeadlineExceeded));
    let impatient = service.validate(garbage(101, 6), Duration::ZERO).await;
    assert_eq!(impatient, Err(Error::DeadlineExceeded));
    // The late one may still be queued until the thread finds that no caller waits.
    until(|| status(&service).expired == 2).await;
    let others = flood.end().await;
    assert_eq!(status(&service).verified, others, "nothing was verified for nobody");
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
    service.stop();
}
