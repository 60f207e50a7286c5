//! Numbers of verifications.

use crate::{
    common::{
        TIMEOUT, bundle, constants,
        flood::{Flood, one_by_one},
        garbage, status, until,
    },
    host::Host,
};
use std::{sync::Arc, time::Duration};
use tandem_blob_validator::Config;
use tandem_kzg::{Item, content_key};
use tandem_primitives::B256;
use tandem_proto::{
    blob_validator::{BLOB_BYTES, BlobApi, Bundle, Content, Error, Form, Reason, Refusal, Verdict},
    convert::BlobRequest,
    wire::blob_validator::v1,
};
use tokio::task::JoinSet;
use tonic::{Code, Request};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_peers_with_the_same_sidecar_cost_six_verifications() {
    let host = Host::start(Config::default()).await;
    let mut peers = JoinSet::new();
    for _ in 0..100 {
        // Each peer has its own connection and its own copy of the bytes.
        let (client, bundle) = (host.client().await, Arc::new(bundle(6)));
        peers.spawn(async move { client.validate(bundle, TIMEOUT).await });
    }
    assert_eq!(peers.join_all().await, vec![Ok(Verdict::Valid); 100]);
    let status = status(&host.service);
    assert_eq!(status.verified, 6);
    assert_eq!(status.shared + status.hits, 99 * 6);
    assert_eq!((status.overloaded, status.expired, status.abandoned, status.queued), (0, 0, 0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_bad_blob_among_64_costs_a_bisection_and_harms_no_other() {
    let config = Config { threads: 1, batch_blobs_max: 64, ..Config::default() };
    let host = Host::start(config).await;
    let client = host.client().await;
    for (round, hidden) in [0usize, 37, 63].into_iter().enumerate() {
        let first = 1 + 64 * round as u64;
        let mut sidecar = constants(first..first + 64);
        let mut bytes = sidecar.blobs[hidden].to_vec();
        bytes[BLOB_BYTES - 1] ^= 1;
        sidecar.blobs[hidden] = bytes.into();
        let before = status(&host.service);
        let verdict = client.validate(Arc::new(sidecar), TIMEOUT).await;
        let refusal = Refusal { blob: Some(hidden as u32), reason: Reason::ProofInvalid };
        assert_eq!(verdict, Ok(Verdict::Invalid(refusal)));
        let after = status(&host.service);
        assert_eq!(after.verified - before.verified, 64);
        let batches = after.batches - before.batches;
        assert!(batches <= 2 * 6 + 1, "{batches} batches");
        // The others were found valid, so none of them is verified again.
        let hidden = first + hidden as u64;
        for others in [first..hidden, hidden + 1..first + 64] {
            if !others.is_empty() {
                let verdict = client.validate(Arc::new(constants(others)), TIMEOUT).await;
                assert_eq!(verdict, Ok(Verdict::Valid));
            }
        }
        assert_eq!(status(&host.service).verified, after.verified);
        assert_eq!(status(&host.service).hits - after.hits, 63);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sidecar_that_is_known_is_not_sent_again() {
    let host = Host::start(Config::default()).await;
    let (client, sent) = host.counted_client().await;
    let sidecar = Arc::new(bundle(6));
    for _ in 0..10 {
        // Each copy has bytes of its own: only the content counts.
        let sidecar = Arc::new(Bundle::clone(&sidecar));
        assert_eq!(client.validate(sidecar, TIMEOUT).await, Ok(Verdict::Valid));
    }
    let status = status(&host.service);
    assert_eq!((status.verified, status.hits), (6, 54));
    // Its blobs are gone. They must be sent again to be kept, though the verdict is known.
    host.service.forget(&sidecar.versioned_hashes);
    assert_eq!(client.validate(sidecar.clone(), TIMEOUT).await, Ok(Verdict::Valid));
    let kept = client.get_blobs(&sidecar.versioned_hashes).await.unwrap();
    assert!(kept.iter().all(Option::is_some));
    drop(client);
    let (sent, size) = (sent.await.unwrap() as usize, 6 * BLOB_BYTES);
    assert!((2 * size..3 * size).contains(&sent), "{sent} bytes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn content_is_recalled_only_as_a_whole() {
    let host = Host::start(Config::default()).await;
    let client = host.client().await;
    let sidecar = bundle(2);
    let keys = bundle_keys(&sidecar);
    let versioned_hashes = sidecar.versioned_hashes.clone();
    let content = Content { form: Form::BlobProofs, keys, versioned_hashes };
    assert_eq!(client.recall(content.clone()).await, Ok(false));
    assert_eq!(client.validate(Arc::new(sidecar), TIMEOUT).await, Ok(Verdict::Valid));
    assert_eq!(client.recall(content.clone()).await, Ok(true));
    let spoiled: [fn(&mut Content); 4] = [
        |content| content.keys[1].0[0] ^= 1,
        |content| content.versioned_hashes[0].0[31] ^= 1,
        |content| content.form = Form::CellProofs,
        |content| (content.keys, content.versioned_hashes) = Default::default(),
    ];
    for spoil in spoiled {
        let mut content = content.clone();
        spoil(&mut content);
        assert_eq!(client.recall(content.clone()).await, Ok(false), "{content:?}");
    }
}

fn bundle_keys(bundle: &Bundle) -> Vec<B256> {
    let parts = bundle.blobs.iter().zip(&bundle.commitments).zip(bundle.proofs.chunks(1));
    let items = parts.map(|((blob, commitment), proofs)| Item::new(blob, commitment, proofs));
    items.map(|item| content_key(&item.unwrap())).collect()
}

/// Checks a case that a cache by versioned hash, commitment and proof alone would let pass.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_blob_under_a_known_good_triple_is_verified_and_refused() {
    let host = Host::start(Config::default()).await;
    let client = host.client().await;
    let good = bundle(1);
    assert_eq!(client.validate(Arc::new(good.clone()), TIMEOUT).await, Ok(Verdict::Valid));
    let mut attack = good.clone();
    let mut bytes = attack.blobs[0].to_vec();
    bytes[BLOB_BYTES / 2] ^= 1;
    attack.blobs[0] = bytes.into();
    let refusal = Refusal { blob: Some(0), reason: Reason::ProofInvalid };
    let verdict = client.validate(Arc::new(attack), TIMEOUT).await;
    assert_eq!(verdict, Ok(Verdict::Invalid(refusal)));
    assert_eq!(status(&host.service).verified, 2);
    let kept = client.get_blobs(&good.versioned_hashes).await.unwrap();
    assert_eq!(kept[0].as_ref().unwrap().blob, good.blobs[0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_queue_has_no_room_for_is_refused_before_it_is_read() {
    // The flood fits, 64 more blobs do not.
    let host = Host::start(Config { queue_blobs_max: 340, ..one_by_one() }).await;
    let (client, sent) = host.counted_client().await;
    let flood = Flood::start(&host.service).await;
    let sidecar = Arc::new(constants(1 << 32..(1 << 32) + 64));
    let size = 64 * BLOB_BYTES as u64;
    for _ in 0..3 {
        let answer = client.validate(sidecar.clone(), TIMEOUT).await;
        assert!(matches!(answer, Err(Error::Overloaded { .. })), "{answer:?}");
    }
    flood.end().await;
    assert_eq!(status(&host.service).overloaded, 3);
    assert_eq!(client.validate(sidecar, TIMEOUT).await, Ok(Verdict::Valid));
    drop(client);
    let sent = sent.await.unwrap();
    assert!((size..2 * size + size / 2).contains(&sent), "{sent} bytes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_much_is_refused_with_a_hint_that_any_client_understands() {
    // The queue is never smaller than the largest sidecar: 64 blobs.
    let host = Host::start(Config { threads: 1, queue_blobs_max: 1, ..Config::default() }).await;
    let client = host.client().await;
    // A client without knowledge of this project's errors is in the same storm.
    let mut raw = host.raw().await;
    let (mut answered, mut refused, mut strange) = (0, 0, None);
    // The machine decides how many sidecars are too many: storms go on until each client was
    // refused once.
    for storm in 0..100 {
        if refused > 0 && strange.is_some() {
            break;
        }
        let mut callers = JoinSet::new();
        for seed in 0..30 {
            let (client, sidecar) = (client.clone(), garbage(storm * 60 + seed, 6));
            callers.spawn(async move { client.validate(sidecar, TIMEOUT).await });
        }
        for seed in 30..60 {
            let bundle = garbage(storm * 60 + seed, 6);
            let request = BlobRequest { bundle, timeout: Duration::from_millis(1) };
            if let Err(status) = raw.validate(v1::ValidateRequest::from(&request)).await
                && status.code() == Code::ResourceExhausted
            {
                strange = Some(status);
                break;
            }
        }
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
    }
    assert!(answered > 0 && refused > 0, "{answered} answered, {refused} refused");
    assert!(status(&host.service).overloaded >= refused);
    let strange = strange.unwrap();
    let millis = strange.metadata().get("grpc-retry-pushback-ms").unwrap();
    assert!(millis.to_str().unwrap().parse::<u64>().unwrap() >= 10);
    let verdict = client.validate(Arc::new(bundle(6)), TIMEOUT).await;
    assert_eq!(verdict, Ok(Verdict::Valid), "and it works again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_client_wanted_that_has_gone_is_not_verified() {
    let host = Host::start(one_by_one()).await;
    let client = host.client().await;
    let flood = Flood::start(&host.service).await;
    let mut leaving = JoinSet::new();
    for seed in [1000, 1001] {
        let client = client.clone();
        leaving.spawn(async move { client.validate(garbage(seed, 6), TIMEOUT).await });
    }
    flood.until_behind(12).await;
    // One call is cancelled, then the connection is lost with the other.
    leaving.abort_all();
    drop((leaving, client));
    until(|| status(&host.service).abandoned == 2).await;
    let others = flood.end().await;
    assert_eq!(status(&host.service).verified, others);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_in_the_metadata_or_in_the_message_holds() {
    let host = Host::start(one_by_one()).await;
    let (client, mut raw) = (host.client().await, host.raw().await);
    let flood = Flood::start(&host.service).await;
    let short = Duration::from_millis(20);
    assert_eq!(client.validate(garbage(1000, 6), short).await, Err(Error::DeadlineExceeded));
    let wire = |seed, timeout| {
        let request = BlobRequest { bundle: garbage(seed, 6), timeout };
        Request::new(v1::ValidateRequest::from(&request))
    };
    let refused = raw.validate(wire(1001, short)).await.unwrap_err();
    assert_eq!(Error::from(refused), Error::DeadlineExceeded, "time in the message alone");
    // The time is in the metadata alone; whichever clock is first decides what the client sees.
    let mut request = wire(1002, Duration::ZERO);
    request.set_timeout(short);
    let code = raw.validate(request).await.unwrap_err().code();
    assert!([Code::DeadlineExceeded, Code::Cancelled].contains(&code), "{code}");
    let refused = raw.validate(wire(1003, Duration::ZERO)).await.unwrap_err();
    assert_eq!(Error::from(refused), Error::DeadlineExceeded, "no time at all");
    let late = || status(&host.service).expired + status(&host.service).abandoned;
    until(|| late() == 4).await;
    let others = flood.end().await;
    assert_eq!((status(&host.service).verified, late()), (others, 4));
}
