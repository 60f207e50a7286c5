//! What the service adds to the library. Measures, so it is run by hand:
//! `cargo test --release -p tandem-blob-validator --test throughput -- --ignored --nocapture`
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

mod common;

use common::{bundle, cells_bundle, samples, start, status};
use std::{
    slice,
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_blob_validator::Config;
use tandem_kzg::{Item, Setup, verify};
use tandem_proto::blob_validator::{BlobApi, Bundle, Verdict};

const TIMEOUT: Duration = Duration::from_secs(120);

fn per_blob(name: &str, blobs: usize, took: Duration) -> f64 {
    let micros = took.as_secs_f64() * 1e6 / blobs as f64;
    println!("{name}: {micros:.0} µs a blob");
    micros
}

/// Valid sidecars that differ: those of constant polynomials, whose proof is the point at infinity.
fn constants(count: u8) -> Vec<Arc<Bundle>> {
    let setup = Setup::load();
    let mut infinity = [0; 48];
    infinity[0] = 0xc0;
    let bundle_of = |number| {
        let mut element = [0; 32];
        element[31] = number;
        let blob = element.repeat(4096);
        let mut bundle = bundle(1);
        bundle.commitments[0] = setup.commit(&blob).unwrap();
        bundle.versioned_hashes[0] = tandem_kzg::versioned_hash(&bundle.commitments[0]);
        bundle.proofs[0] = infinity;
        bundle.blobs[0] = blob.into();
        Arc::new(bundle)
    };
    (1..=count).map(bundle_of).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures"]
async fn the_service_is_as_fast_as_the_library() {
    let setup = Setup::load();
    let sidecars = constants(128);
    let items: Vec<_> = sidecars
        .iter()
        .map(|b| Item::new(&b.blobs[0], &b.commitments[0], slice::from_ref(&b.proofs[0])).unwrap())
        .collect();
    let threads = Config::default().threads;
    let started = Instant::now();
    std::thread::scope(|scope| {
        for share in items.chunks(items.len().div_ceil(threads)) {
            scope.spawn(move || assert!(verify(setup, share).results.iter().all(Result::is_ok)));
        }
    });
    let library = per_blob("library, all cores, one batch each", 128, started.elapsed());

    let (service, _) = start(Config::default());
    let started = Instant::now();
    let pending: Vec<_> = sidecars.iter().map(|b| service.validate(b.clone(), TIMEOUT)).collect();
    for answer in pending {
        assert_eq!(answer.await, Ok(Verdict::Valid));
    }
    let ours = per_blob("service, 128 sidecars at once", 128, started.elapsed());
    println!("{:.2} of the library, {} batches", library / ours, status(&service).batches);

    let started = Instant::now();
    for sidecar in &sidecars {
        assert_eq!(service.validate(sidecar.clone(), TIMEOUT).await, Ok(Verdict::Valid));
    }
    per_blob("repeated, one after the other", 128, started.elapsed());
    let six = Arc::new(bundle(6));
    assert_eq!(service.validate(six.clone(), TIMEOUT).await, Ok(Verdict::Valid));
    let started = Instant::now();
    for _ in 0..20 {
        assert_eq!(service.validate(six.clone(), TIMEOUT).await, Ok(Verdict::Valid));
    }
    per_blob("repeated sidecars of six", 120, started.elapsed());

    let cells = cells_bundle();
    let proofs = &cells.proofs;
    let item = Item::new(&samples()[0].blob, &cells.commitments[0], proofs).unwrap();
    for count in [1, 8, 32] {
        let started = Instant::now();
        assert!(verify(setup, &vec![item; count]).results.iter().all(Result::is_ok));
        per_blob(&format!("library, one core, cells of {count}"), count, started.elapsed());
    }
}
