//! All faults of a message or its content, over the wire.

use crate::{
    common::{TIMEOUT, bundle, cells_bundle, status},
    host::Host,
};
use std::sync::Arc;
use tandem_blob_validator::Config;
use tandem_kzg::versioned_hash;
use tandem_primitives::B256;
use tandem_proto::{
    blob_validator::{
        BLOB_BYTES, BlobApi, Bundle, CELLS, Part, PointFault, Reason, Refusal, Rule, Verdict,
    },
    convert::BlobRequest,
    limits::{BLOB_MESSAGE_BYTES_MAX, BLOBS_PER_BUNDLE_MAX, GET_BLOBS_MAX},
    wire::blob_validator::v1,
};
use tonic::Code;

/// Makes a sidecar of two blobs, and applies `spoil` to it.
fn spoiled(spoil: impl FnOnce(&mut Bundle)) -> Bundle {
    let mut bundle = bundle(2);
    spoil(&mut bundle);
    bundle
}

fn with_commitment(bytes: [u8; 48]) -> Bundle {
    spoiled(|b| (b.commitments[1], b.versioned_hashes[1]) = (bytes, versioned_hash(&bytes)))
}

fn infinity() -> [u8; 48] {
    let mut point = [0; 48];
    point[0] = 0xc0;
    point
}

/// Returns a point on the curve, outside G1.
fn outside() -> [u8; 48] {
    let mut point = [0; 48];
    (point[0], point[47]) = (0x80, 4);
    point
}

fn swapped_cells() -> Bundle {
    let mut cells = cells_bundle();
    cells.proofs.swap(3, 4);
    cells
}

/// Returns sidecars with the refusal that each must get.
fn cases() -> Vec<(Bundle, Option<u32>, Reason)> {
    let count = |part, expected, got| Reason::Count { part, expected, got };
    let (no_encoding, no_group) = (PointFault::Encoding, PointFault::NotInSubgroup);
    let not_canonical = spoiled(|b| {
        let mut bytes = b.blobs[1].to_vec();
        bytes[32 * 9..32 * 10].fill(0xff);
        b.blobs[1] = bytes.into();
    });
    let mut cases = vec![
        (bundle(0), None, Reason::NoBlobs),
        (spoiled(|b| b.rule.blobs_max = 1), None, Reason::TooManyBlobs { max: 1, got: 2 }),
        (spoiled(|b| b.commitments.clear()), None, count(Part::Commitments, 2, 0)),
        (spoiled(|b| b.proofs = vec![[0; 48]; 20]), None, count(Part::Proofs, 2, 20)),
        (spoiled(|b| b.versioned_hashes.truncate(1)), None, count(Part::VersionedHashes, 2, 1)),
        (spoiled(|b| b.versioned_hashes.swap(0, 1)), Some(0), Reason::VersionedHash),
        (not_canonical, Some(1), Reason::NotCanonical { element: 9 }),
        (with_commitment([0xff; 48]), Some(1), Reason::Commitment(no_encoding)),
        (with_commitment(outside()), Some(1), Reason::Commitment(no_group)),
        (with_commitment(infinity()), Some(1), Reason::ProofInvalid),
        (spoiled(|b| b.proofs[1] = infinity()), Some(1), Reason::ProofInvalid),
        (spoiled(|b| b.proofs.swap(0, 1)), Some(0), Reason::ProofInvalid),
        (
            spoiled(|b| b.proofs[0] = [0; 48]),
            Some(0),
            Reason::Proof { proof: 0, fault: no_encoding },
        ),
        (swapped_cells(), Some(0), Reason::ProofInvalid),
    ];
    for length in [0, 1, BLOB_BYTES - 1, BLOB_BYTES + 1, BLOB_BYTES * 10] {
        let reason = Reason::BlobLength { got: length as u64 };
        cases.push((spoiled(|b| b.blobs[1] = vec![1; length].into()), Some(1), reason));
    }
    let mut few = cells_bundle();
    few.proofs.truncate(CELLS - 1);
    cases.push((few, None, count(Part::Proofs, CELLS as u32, CELLS as u32 - 1)));
    cases
}

/// The client refuses some of these before it sends them; any other client sends them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_a_sidecar_is_said_to_any_client() {
    let host = Host::start(Config::default()).await;
    let (client, mut raw) = (host.client().await, host.raw().await);
    for (sidecar, blob, reason) in cases() {
        let expected = Verdict::Invalid(Refusal { blob, reason });
        let request = BlobRequest { bundle: Arc::new(sidecar), timeout: TIMEOUT };
        let answer = raw.validate(v1::ValidateRequest::from(&request)).await.unwrap();
        assert_eq!(Verdict::try_from(answer.into_inner()).unwrap(), expected);
        assert_eq!(client.validate(request.bundle, TIMEOUT).await, Ok(expected));
    }
    assert_eq!(client.validate(Arc::new(bundle(2)), TIMEOUT).await, Ok(Verdict::Valid));
    assert_eq!(status(&host.service).stored_blobs, 2, "nothing malformed is kept");
}

/// Returns the status with which this message is refused.
async fn refused(host: &Host, spoil: impl FnOnce(&mut v1::ValidateRequest)) -> (Code, String) {
    let request = BlobRequest { bundle: Arc::new(bundle(2)), timeout: TIMEOUT };
    let mut message = v1::ValidateRequest::from(&request);
    spoil(&mut message);
    let status = host.raw().await.validate(message).await.unwrap_err();
    (status.code(), status.message().to_owned())
}

async fn bundle_refused(host: &Host, spoil: impl FnOnce(&mut v1::Bundle)) -> String {
    let (code, text) = refused(host, |message| spoil(message.bundle.as_mut().unwrap())).await;
    assert_eq!(code, Code::InvalidArgument, "{text}");
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_no_sidecar_is_refused_with_the_field() {
    let host = Host::start(Config::default()).await;
    let many = BLOBS_PER_BUNDLE_MAX + 1;
    let texts = [
        bundle_refused(&host, |b| b.form = 0).await,
        bundle_refused(&host, |b| b.form = 3).await,
        bundle_refused(&host, |b| b.rule = None).await,
        bundle_refused(&host, |b| b.rule.as_mut().unwrap().form = -1).await,
        bundle_refused(&host, |b| b.blob_sizes = vec![u32::MAX; 2]).await,
        bundle_refused(&host, |b| b.blob_sizes.truncate(1)).await,
        bundle_refused(&host, |b| b.blob_sizes = vec![0; many]).await,
        bundle_refused(&host, |b| b.commitments = vec![0; 47].into()).await,
        bundle_refused(&host, |b| b.commitments = vec![0; 48 * many * 10].into()).await,
        bundle_refused(&host, |b| b.proofs = vec![0; 48 * (64 * CELLS + 1)].into()).await,
        bundle_refused(&host, |b| b.versioned_hashes = vec![0; 33].into()).await,
    ];
    let fields = [
        "form: is missing",
        "form: 3 is not in 1..=2",
        "rule: is missing",
        "rule.form:",
        "blobs: expected 8589934590 bytes, got 262144",
        "blobs: expected 131072 bytes, got 262144",
        "blob_sizes: 65 are more than 64",
        "commitments: 47 bytes are not a multiple of 48",
        "commitments: 650 are more than 64",
        "proofs: 8193 are more than 8192",
        "versioned_hashes: 33 bytes are not a multiple of 32",
    ];
    for (text, field) in texts.iter().zip(fields) {
        assert!(text.starts_with(&format!("validate.bundle.{field}")), "{text}");
    }
    let (code, text) = refused(&host, |message| message.bundle = None).await;
    assert_eq!((code, &text[..]), (Code::InvalidArgument, "validate.bundle: is missing"));
    let verdict = host.client().await.validate(Arc::new(bundle(2)), TIMEOUT).await;
    assert_eq!(verdict, Ok(Verdict::Valid), "nothing of this harms the next one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_beyond_all_limits_is_refused_before_it_is_read() {
    let host = Host::start(Config::default()).await;
    let bytes = BLOB_MESSAGE_BYTES_MAX * 10;
    let (code, text) = refused(&host, |message| {
        message.bundle.as_mut().unwrap().blobs = vec![0; bytes].into();
    })
    .await;
    // Either the refusal arrives, or the connection is gone while bytes are still being sent.
    assert!([Code::OutOfRange, Code::Internal, Code::Unknown].contains(&code), "{code}: {text}");
    let client = host.client().await;
    let rule = Rule { blobs_max: 1000, ..bundle(1).rule };
    let count = 130;
    let large = Bundle {
        blobs: vec![bundle(1).blobs[0].clone(); count],
        commitments: vec![bundle(1).commitments[0]; count],
        proofs: vec![bundle(1).proofs[0]; count],
        versioned_hashes: vec![bundle(1).versioned_hashes[0]; count],
        rule,
        ..bundle(1)
    };
    let refused = client.validate(Arc::new(large), TIMEOUT).await.unwrap_err();
    assert!(refused.to_string().contains("too large"), "{refused}");
    assert_eq!(client.validate(Arc::new(bundle(2)), TIMEOUT).await, Ok(Verdict::Valid));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_list_of_hashes_is_refused() {
    let host = Host::start(Config::default()).await;
    let mut raw = host.raw().await;
    let many = v1::GetBlobsRequest::from(&vec![B256::ZERO; GET_BLOBS_MAX + 1][..]);
    let status = raw.get_blobs(many).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(status.message(), "get_blobs.versioned_hashes: 129 are more than 128");
    let ragged = v1::ForgetRequest { versioned_hashes: vec![0; 31].into() };
    assert_eq!(raw.forget(ragged).await.unwrap_err().code(), Code::InvalidArgument);
    // On a stream, it ends the stream.
    let nothing = v1::ValidateStreamRequest { id: 1, request: None };
    let mut answers =
        raw.validate_stream(tokio_stream::iter([nothing])).await.unwrap().into_inner();
    let status = answers.message().await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(status.message(), "validate_stream.request: is missing");
}
