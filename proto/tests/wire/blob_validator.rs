//! Sidecars, verdicts and validated blobs sent and received, and malformed ones.

use super::{refused, sent};
use bytes::{Bytes, BytesMut};
use proptest::{collection::vec, option, prelude::*};
use prost::Message;
use std::{sync::Arc, time::Duration};
use tandem_primitives::B256;
use tandem_proto::{
    blob_validator::{
        BLOB_BYTES, Bundle, CELLS, Content, Error, Form, Part, PointFault, Proof, Reason, Refusal,
        Rule, Status, StoredBlob, Verdict,
    },
    convert::{BlobRequest, BlobStreamAnswer, BlobStreamRequest, OutgoingBlobRequest},
    event::BlobsValidated,
    limits::{BLOB_MESSAGE_BYTES_MAX, BLOBS_PER_BUNDLE_MAX, GET_BLOBS_MAX},
    wire::{blob_validator::v1, event::v1 as event},
};
use tandem_testkit::messages::values;
use tonic::Code;

fn form() -> impl Strategy<Value = Form> {
    prop_oneof![Just(Form::BlobProofs), Just(Form::CellProofs)]
}

fn points(max: usize) -> impl Strategy<Value = Vec<Proof>> {
    vec(any::<[u8; 24]>().prop_map(|half| [half; 2].as_flattened().try_into().unwrap()), 0..max)
}

/// Generates a bundle with any lengths and counts, which the codec does not judge.
fn bundle() -> impl Strategy<Value = Bundle> {
    let lists = (vec(values::bytes(300), 0..5), points(5), points(200), vec(values::hash(), 0..5));
    (form(), form(), any::<u32>(), lists).prop_map(|(form, rule, blobs_max, lists)| {
        let (blobs, commitments, proofs, versioned_hashes) = lists;
        let rule = Rule { form: rule, blobs_max };
        Bundle { form, blobs, commitments, proofs, versioned_hashes, rule }
    })
}

fn fault() -> impl Strategy<Value = PointFault> {
    prop_oneof![
        Just(PointFault::Encoding),
        Just(PointFault::NotOnCurve),
        Just(PointFault::NotInSubgroup),
    ]
}

fn reason() -> impl Strategy<Value = Reason> {
    let part =
        prop_oneof![Just(Part::Commitments), Just(Part::Proofs), Just(Part::VersionedHashes)];
    prop_oneof![
        Just(Reason::NoBlobs),
        any::<[u32; 2]>().prop_map(|[max, got]| Reason::TooManyBlobs { max, got }),
        (part, any::<[u32; 2]>()).prop_map(|(part, [expected, got])| Reason::Count {
            part,
            expected,
            got
        }),
        (form(), form()).prop_map(|(expected, got)| Reason::WrongForm { expected, got }),
        any::<u64>().prop_map(|got| Reason::BlobLength { got }),
        Just(Reason::VersionedHash),
        any::<u32>().prop_map(|element| Reason::NotCanonical { element }),
        fault().prop_map(Reason::Commitment),
        (any::<u32>(), fault()).prop_map(|(proof, fault)| Reason::Proof { proof, fault }),
        Just(Reason::ProofInvalid),
    ]
}

fn verdict() -> impl Strategy<Value = Verdict> {
    let refusal = (option::of(any::<u32>()), reason())
        .prop_map(|(blob, reason)| Verdict::Invalid(Refusal { blob, reason }));
    prop_oneof![Just(Verdict::Valid), refusal]
}

fn error() -> impl Strategy<Value = Error> {
    let overloaded = any::<u64>()
        .prop_map(|millis| Error::Overloaded { retry_after: Duration::from_millis(millis) });
    prop_oneof![
        overloaded,
        Just(Error::DeadlineExceeded),
        ".{0,200}".prop_map(Error::Library),
        ".{0,200}".prop_map(Error::Unavailable),
    ]
}

proptest! {
    #[test]
    fn sidecars_survive(bundle in bundle(), millis: u64, id: u64) {
        let request = BlobRequest { bundle: Arc::new(bundle), timeout: Duration::from_millis(millis) };
        let arrived: BlobRequest = sent::<v1::ValidateRequest, _>((&request).into());
        prop_assert_eq!(&arrived, &request);
        let outgoing = OutgoingBlobRequest::from(request.clone());
        let len = outgoing.encoded_len();
        let written = outgoing.into_parts(BytesMut::from(&b"head"[..])).concat().split_off(4);
        prop_assert_eq!(written.len(), len);
        let read = v1::ValidateRequest::decode(Bytes::from(written)).unwrap();
        prop_assert_eq!(&BlobRequest::try_from(read).unwrap(), &request);
        let message = BlobStreamRequest { id, request };
        let arrived: BlobStreamRequest = sent::<v1::ValidateStreamRequest, _>((&message).into());
        prop_assert_eq!(arrived, message);
    }

    #[test]
    fn verdicts_and_errors_survive(verdict in verdict(), error in error(), id: u64) {
        prop_assert_eq!(sent::<v1::ValidateResponse, Verdict>(verdict.into()), verdict);
        for result in [Ok(verdict), Err(error.clone())] {
            let answer = BlobStreamAnswer { id, result };
            let arrived: BlobStreamAnswer = sent::<v1::ValidateStreamResponse, _>(answer.clone().into());
            prop_assert_eq!(arrived, answer);
        }
        prop_assert_eq!(Error::from(tonic::Status::from(error.clone())), error);
    }

    #[test]
    fn names_of_content_survive(form in form(), keys in vec(values::hash(), 0..BLOBS_PER_BUNDLE_MAX)) {
        let versioned_hashes = keys.iter().rev().copied().collect();
        let content = Content { form, keys, versioned_hashes };
        let arrived: Content = sent::<v1::RecallRequest, _>((&content).into());
        prop_assert_eq!(arrived, content);
    }

    #[test]
    fn blobs_and_their_names_survive(
        hashes in vec(values::hash(), 0..GET_BLOBS_MAX), byte: u8, proofs in option::of(points(2)),
    ) {
        let arrived: Vec<B256> = sent::<v1::GetBlobsRequest, _>(hashes[..].into());
        prop_assert_eq!(&arrived, &hashes);
        let arrived: Vec<B256> = sent::<v1::ForgetRequest, _>(hashes[..].into());
        prop_assert_eq!(&arrived, &hashes);
        let stored = StoredBlob {
            blob: vec![byte; BLOB_BYTES].into(),
            commitment: [byte; 48],
            proof: proofs.as_ref().and_then(|proofs| proofs.first().copied()),
            cell_proofs: proofs.map(|_| vec![[byte; 48]; CELLS].into()),
        };
        let arrived: Option<StoredBlob> = sent::<v1::GetBlobsResponse, _>(Some(&stored).into());
        prop_assert_eq!(arrived, Some(stored));
        let event = BlobsValidated { versioned_hashes: hashes[..hashes.len().min(64)].to_vec() };
        prop_assert_eq!(BlobsValidated::decode(&event.encode()), Some(event));
    }

    #[test]
    fn a_status_survives(counts: [u64; 11], ready: bool) {
        let [verified, batches, shared, hits, overloaded, expired, abandoned, queued, verdicts, stored_blobs, stored_bytes] = counts;
        let status = Status {
            ready, verified, batches, shared, hits, overloaded, expired, abandoned, queued, verdicts, stored_blobs, stored_bytes,
        };
        let message = v1::GetStatusResponse::from(status).encode_to_vec();
        prop_assert_eq!(Status::from(v1::GetStatusResponse::decode(&message[..]).unwrap()), status);
    }
}

#[test]
fn an_absent_blob_stays_absent() {
    assert_eq!(sent::<v1::GetBlobsResponse, Option<StoredBlob>>(None.into()), None);
}

fn largest() -> Bundle {
    let form = Form::CellProofs;
    Bundle {
        form,
        blobs: vec![vec![1; BLOB_BYTES].into(); BLOBS_PER_BUNDLE_MAX],
        commitments: vec![[2; 48]; BLOBS_PER_BUNDLE_MAX],
        proofs: vec![[3; 48]; BLOBS_PER_BUNDLE_MAX * CELLS],
        versioned_hashes: vec![B256::ZERO; BLOBS_PER_BUNDLE_MAX],
        rule: Rule { form, blobs_max: 64 },
    }
}

#[test]
fn the_largest_sidecar_fits_and_its_blobs_are_not_copied() {
    let request = BlobRequest { bundle: Arc::new(largest()), timeout: Duration::ZERO };
    let bytes = Bytes::from(v1::ValidateRequest::from(&request).encode_to_vec());
    assert!(bytes.len() < BLOB_MESSAGE_BYTES_MAX);
    let arrived: BlobRequest =
        v1::ValidateRequest::decode(bytes.clone()).unwrap().try_into().unwrap();
    assert_eq!(arrived, request);
    let within = bytes.as_ptr_range();
    assert!(arrived.bundle.blobs.iter().all(|blob| within.contains(&blob.as_ptr())));
}

/// Returns the receiver's error about a sidecar with one fault.
fn bad_bundle(spoil: impl FnOnce(&mut v1::Bundle)) -> String {
    let mut small = largest();
    small.blobs = vec![vec![1; 3].into(), vec![2; 2].into()];
    let request = BlobRequest { bundle: Arc::new(small), timeout: Duration::ZERO };
    let mut message = v1::ValidateRequest::from(&request);
    spoil(message.bundle.as_mut().unwrap());
    let error = BlobRequest::try_from(message).unwrap_err().to_string();
    error.strip_prefix("validate.bundle.").map(str::to_owned).unwrap_or(error)
}

#[test]
fn a_malformed_sidecar_names_the_field() {
    let zeros = |length: usize| Bytes::from(vec![0; length]);
    let expect = [
        (bad_bundle(|b| b.form = 0), "form: is missing"),
        (bad_bundle(|b| b.form = 3), "form: 3 is not in 1..=2"),
        (bad_bundle(|b| b.rule = None), "rule: is missing"),
        (bad_bundle(|b| b.rule.as_mut().unwrap().form = 0), "rule.form: is missing"),
        (bad_bundle(|b| b.blob_sizes = vec![5, 1]), "blobs: expected 6 bytes, got 5"),
        (
            bad_bundle(|b| b.blob_sizes = vec![u32::MAX; 2]),
            "blobs: expected 8589934590 bytes, got 5",
        ),
        (bad_bundle(|b| b.blob_sizes = vec![0; 65]), "blob_sizes: 65 are more than 64"),
        (
            bad_bundle(|b| b.commitments = zeros(47)),
            "commitments: 47 bytes are not a multiple of 48",
        ),
        (bad_bundle(|b| b.commitments = zeros(48 * 65)), "commitments: 65 are more than 64"),
        (bad_bundle(|b| b.proofs = zeros(49)), "proofs: 49 bytes are not a multiple of 48"),
        (bad_bundle(|b| b.proofs = zeros(48 * 8193)), "proofs: 8193 are more than 8192"),
        (
            bad_bundle(|b| b.versioned_hashes = zeros(31)),
            "versioned_hashes: 31 bytes are not a multiple of 32",
        ),
        (
            bad_bundle(|b| b.versioned_hashes = zeros(32 * 65)),
            "versioned_hashes: 65 are more than 64",
        ),
    ];
    expect.iter().for_each(|(got, want)| assert_eq!(got, want));
    let missing = BlobRequest::try_from(v1::ValidateRequest::default()).unwrap_err();
    assert_eq!(missing.to_string(), "validate.bundle: is missing");
}

#[test]
fn malformed_names_of_content_name_the_field() {
    let refusal = |spoil: fn(&mut v1::RecallRequest)| {
        let mut wire = v1::RecallRequest {
            form: v1::Form::BlobProofs.into(),
            keys: vec![0; 64].into(),
            versioned_hashes: vec![0; 64].into(),
        };
        spoil(&mut wire);
        refused::<_, Content>(wire)
    };
    let expect = [
        (refusal(|_| ()), ""),
        (refusal(|r| r.form = 0), "recall.form: is missing"),
        (
            refusal(|r| r.versioned_hashes = vec![0; 32].into()),
            "recall.versioned_hashes: expected 64 bytes, got 32",
        ),
        (refusal(|r| r.keys = vec![0; 32 * 65].into()), "recall.keys: 65 are more than 64"),
    ];
    expect.iter().for_each(|(got, want)| assert_eq!(got, want));
    assert!(refusal(|r| r.keys = vec![0; 33].into()).starts_with("recall.keys: "));
}

#[test]
fn malformed_answers_name_the_field() {
    let stored = |spoil: fn(&mut v1::StoredBlob)| {
        let mut blob = v1::StoredBlob {
            blob: vec![0; BLOB_BYTES].into(),
            commitment: vec![0; 48].into(),
            ..Default::default()
        };
        spoil(&mut blob);
        refused::<_, Option<StoredBlob>>(v1::GetBlobsResponse { blob: Some(blob) })
    };
    let verdict = |reason| {
        let refusal = Some(v1::Refusal { blob: None, reason });
        refused::<_, Verdict>(v1::ValidateResponse { refusal })
    };
    use v1::refusal::{BadProof, Count, Reason as Wire};
    let expect = [
        (stored(|b| b.blob = Bytes::new()), "get_blobs.blob.blob: expected 131072 bytes, got 0"),
        (
            stored(|b| b.commitment = Bytes::new()),
            "get_blobs.blob.commitment: expected 48 bytes, got 0",
        ),
        (
            stored(|b| b.proof = Some(Bytes::new())),
            "get_blobs.blob.proof: expected 48 bytes, got 0",
        ),
        (
            stored(|b| b.cell_proofs = Some(vec![0; 48].into())),
            "get_blobs.blob.cell_proofs: expected 6144 bytes, got 48",
        ),
        (verdict(None), "validate.refusal.reason: is missing"),
        (verdict(Some(Wire::Commitment(0))), "validate.refusal.commitment: is missing"),
        (
            verdict(Some(Wire::Proof(BadProof { proof: 0, fault: 4 }))),
            "validate.refusal.proof.fault: 4 is not in 1..=3",
        ),
        (
            verdict(Some(Wire::Count(Count { part: -1, expected: 0, got: 0 }))),
            "validate.refusal.count.part: 18446744073709551615 is not in 1..=3",
        ),
    ];
    expect.iter().for_each(|(got, want)| assert_eq!(got, want));
    let many = v1::GetBlobsRequest { versioned_hashes: vec![0; 129 * 32].into() };
    let many = refused::<_, Vec<B256>>(many);
    assert_eq!(many, "get_blobs.versioned_hashes: 129 are more than 128");
    let event = event::BlobsValidated { versioned_hashes: vec![0; 31].into() };
    assert!(BlobsValidated::decode(&event.encode_to_vec()).is_none());
}

#[test]
fn a_code_says_what_any_client_understands() {
    let code = |error: Error| tonic::Status::from(error).code();
    let retry_after = Duration::from_secs(1);
    assert_eq!(code(Error::Overloaded { retry_after }), Code::ResourceExhausted);
    assert_eq!(code(Error::DeadlineExceeded), Code::DeadlineExceeded);
    assert_eq!(code(Error::Library(String::new())), Code::Internal);
    assert_eq!(code(Error::Unavailable(String::new())), Code::Unavailable);
    let late = tonic::Status::deadline_exceeded("grpc");
    assert_eq!(Error::from(late), Error::DeadlineExceeded);
    let gone = Error::from(tonic::Status::unavailable("refused"));
    assert_eq!(gone, Error::Unavailable("Unavailable: refused".to_owned()));
}
