//! Answers over gRPC, which equal those in one process.

use crate::{
    common::{TIMEOUT, blob, bundle, cells_bundle, constants, samples, status, until},
    host::Host,
};
use std::{collections::HashMap, sync::Arc, time::Duration};
use tandem_blob_validator::Config;
use tandem_primitives::B256;
use tandem_proto::{
    blob_validator::{BLOB_BYTES, BlobApi, Bundle, CELLS, Form, Reason, Refusal, Rule, Verdict},
    convert::{BlobRequest, BlobStreamAnswer, BlobStreamRequest},
    limits::BLOBS_PER_BUNDLE_MAX,
    wire::blob_validator::v1,
};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_gives_the_answers_of_the_service_behind_it() {
    let host = Host::start(Config::default()).await;
    let client = host.client().await;
    let mut bad = bundle(3);
    bad.blobs[1] = blob(77).into();
    let early = Bundle { rule: Rule { form: Form::BlobProofs, blobs_max: 6 }, ..cells_bundle() };
    for bundle in [bundle(2), cells_bundle(), bad, early, bundle(0)].map(Arc::new) {
        let remote = client.validate(bundle.clone(), TIMEOUT).await;
        assert_eq!(remote, host.service.validate(bundle, TIMEOUT).await);
    }
    let mut asked = bundle(2).versioned_hashes;
    asked.insert(1, B256::ZERO);
    let found = client.get_blobs(&asked).await.unwrap();
    assert_eq!(found, host.service.get_blobs(&asked).await.unwrap());
    let first = found[0].as_ref().unwrap();
    assert_eq!((&first.blob[..], first.proof), (&samples()[0].blob[..], Some(samples()[0].proof)));
    assert_eq!(first.cell_proofs.as_deref(), Some(&cells_bundle().proofs[..]));
    assert!(found[1].is_none() && found[2].is_some());
    assert_eq!(client.status().await.unwrap(), status(&host.service));
    client.forget(&asked[..1]);
    until(|| status(&host.service).stored_blobs == 1).await;
    assert!(client.get_blobs(&asked).await.unwrap()[0].is_none());
    assert_eq!(client.get_blobs(&[]).await.unwrap(), []);
    assert_eq!(client.get_blobs(&vec![asked[2]; 300]).await.unwrap().len(), 300, "in parts");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_largest_sidecar_fits_in_both_forms() {
    let host = Host::start(Config::default()).await;
    let client = host.client().await;
    for one in [bundle(1), cells_bundle()] {
        let (form, count) = (one.form, BLOBS_PER_BUNDLE_MAX);
        let many = Bundle {
            form,
            blobs: vec![one.blobs[0].clone(); count],
            commitments: vec![one.commitments[0]; count],
            proofs: one.proofs.repeat(count),
            versioned_hashes: vec![one.versioned_hashes[0]; count],
            rule: Rule { form, blobs_max: count as u32 },
        };
        assert_eq!(client.validate(Arc::new(many), TIMEOUT).await, Ok(Verdict::Valid));
    }
    assert_eq!(status(&host.service).verified, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_answers_many_sidecars_by_their_numbers() {
    let host = Host::start(Config::default()).await;
    let mut bad = bundle(2);
    bad.blobs[1] = blob(78).into();
    let mut sidecars: Vec<_> = (0..20u64).map(|at| constants(1 + 2 * at..3 + 2 * at)).collect();
    sidecars.extend([bad, cells_bundle(), bundle(2), bundle(0)]);
    let messages: Vec<_> = (0u64..)
        .zip(&sidecars)
        .map(|(at, bundle)| {
            let bundle = Arc::new(bundle.clone());
            let request = BlobRequest { bundle, timeout: TIMEOUT };
            v1::ValidateStreamRequest::from(&BlobStreamRequest { id: at * 7, request })
        })
        .collect();
    let messages = tokio_stream::iter(messages);
    let mut answers = host.raw().await.validate_stream(messages).await.unwrap().into_inner();
    let mut verdicts = HashMap::new();
    while let Some(answer) = answers.message().await.unwrap() {
        let BlobStreamAnswer { id, result } = answer.try_into().unwrap();
        assert!(verdicts.insert(id, result.unwrap()).is_none());
    }
    assert_eq!(verdicts.len(), sidecars.len());
    let refusal = |blob, reason| Verdict::Invalid(Refusal { blob, reason });
    for (id, verdict) in verdicts {
        let expected = match id / 7 {
            20 => refusal(Some(1), Reason::ProofInvalid),
            23 => refusal(None, Reason::NoBlobs),
            _ => Verdict::Valid,
        };
        assert_eq!(verdict, expected, "sidecar {}", id / 7);
    }
    let status = status(&host.service);
    // These are 20 times 2 blobs, the bad sidecar's two, of which the good one is shared, and one
    // of cells.
    assert_eq!(status.verified, 40 + 2 + 1 + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_says_when_it_serves() {
    let host = Host::start(Config::default()).await;
    let mut health = HealthClient::new(host.channel().await);
    let request =
        HealthCheckRequest { service: "tandem.blob_validator.v1.BlobValidator".to_owned() };
    let mut watched = health.watch(request.clone()).await.unwrap().into_inner();
    let mut current = watched.message().await.unwrap().unwrap().status();
    while current != ServingStatus::Serving {
        current = watched.message().await.unwrap().unwrap().status();
    }
    assert_eq!(health.check(request).await.unwrap().into_inner().status(), current);
    let service = host.stop().await;
    // The watcher is told that the server stops, or the connection is cut first.
    let last = watched.message().await;
    let told = last.as_ref().ok().and_then(Option::as_ref);
    assert!(told.is_none_or(|told| told.status() == ServingStatus::NotServing), "{last:?}");
    service.stop();
}

#[test]
fn a_message_holds_the_largest_sidecar_twice_over() {
    let bytes = BLOBS_PER_BUNDLE_MAX * (BLOB_BYTES + CELLS * 48 + 48 + 32);
    assert!(bytes * 3 / 2 < tandem_proto::limits::BLOB_MESSAGE_BYTES_MAX);
    assert!(TIMEOUT > Duration::from_secs(1));
}
