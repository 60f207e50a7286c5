//! ValidatorPool servers, seen as one.

use crate::{
    common::{TIMEOUT, constants, status, until},
    host::Host,
};
use std::sync::Arc;
use tandem_blob_validator::Config;
use tandem_blob_validator_client::{ClientConfig, ValidatorPool};
use tandem_proto::blob_validator::{BlobApi, Bundle, Verdict};
use tokio::runtime::Handle;

async fn connect(hosts: &[Host]) -> Arc<ValidatorPool> {
    let endpoints: Vec<_> = hosts.iter().map(Host::endpoint).collect();
    let several =
        ValidatorPool::connect(&endpoints, ClientConfig::default(), &Handle::current()).unwrap();
    until(|| several.connected() == hosts.len()).await;
    several
}

async fn three() -> Vec<Host> {
    let config = Config { threads: 1, ..Config::default() };
    let mut hosts = Vec::new();
    for _ in 0..3 {
        hosts.push(Host::start(config.clone()).await);
    }
    hosts
}

/// Makes sidecars of two blobs each, which no other sidecar has.
fn sidecars(count: u64) -> Vec<Arc<Bundle>> {
    (0..count).map(|n| Arc::new(constants(1 + 2 * n..3 + 2 * n))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_work_is_shared_and_the_same_content_is_verified_once() {
    let hosts = three().await;
    let several = connect(&hosts).await;
    let sidecars = sidecars(30);
    for _ in 0..2 {
        for sidecar in &sidecars {
            assert_eq!(several.validate(sidecar.clone(), TIMEOUT).await, Ok(Verdict::Valid));
        }
    }
    let verified: Vec<_> = hosts.iter().map(|host| status(&host.service).verified).collect();
    assert_eq!(verified.iter().sum::<u64>(), 60, "each blob once: {verified:?}");
    assert!(verified.iter().all(|&count| count > 0), "{verified:?}");
    assert_eq!(several.status().await.unwrap().verified, 60);

    // All blobs are found, wherever they are, in the order of the request.
    let hashes: Vec<_> = sidecars.iter().flat_map(|it| it.versioned_hashes.clone()).rev().collect();
    let found = several.get_blobs(&hashes).await.unwrap();
    let commitments: Vec<_> = found.iter().map(|it| it.as_ref().unwrap().commitment).collect();
    let want: Vec<_> = sidecars.iter().flat_map(|it| it.commitments.clone()).rev().collect();
    assert_eq!(commitments, want);
    several.forget(&hashes);
    until(|| hosts.iter().all(|host| status(&host.service).stored_blobs == 0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_goes_is_passed_over() {
    let mut hosts = three().await;
    let several = connect(&hosts).await;
    let sidecars = sidecars(12);
    for sidecar in &sidecars[..6] {
        assert_eq!(several.validate(sidecar.clone(), TIMEOUT).await, Ok(Verdict::Valid));
    }
    hosts.pop().unwrap().cut().await;
    // Whether the loss is known or not yet, there is a verdict.
    for sidecar in &sidecars {
        assert_eq!(several.validate(sidecar.clone(), TIMEOUT).await, Ok(Verdict::Valid));
    }
    until(|| several.connected() == 2).await;
    let hashes: Vec<_> = sidecars.iter().flat_map(|it| it.versioned_hashes.clone()).collect();
    assert!(several.get_blobs(&hashes).await.unwrap().iter().all(Option::is_some));
    for host in hosts {
        host.stop().await;
    }
    until(|| several.connected() == 0).await;
    assert!(several.status().await.is_err());
}
