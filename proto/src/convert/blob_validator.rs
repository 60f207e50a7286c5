use super::{
    error::{At, ConvertError, Reason as Fault},
    field::{at_most, hash_list, items, length, nested, required, size, split},
};
use crate::{
    blob_validator::{
        BLOB_BYTES, Bundle, CELLS, Commitment, Content, Error, Form, Part, PointFault, Proof,
        Reason, Refusal, Rule, Status, StoredBlob, Verdict,
    },
    event::BlobsValidated,
    limits::{BLOBS_PER_BUNDLE_MAX, GET_BLOBS_MAX},
    wire::{
        blob_validator::v1::{
            self, refusal as refusal_wire, validate_stream_response::Answer as WireAnswer,
        },
        event,
    },
};
use std::{sync::Arc, time::Duration};
use tandem_primitives::B256;

/// Sidecar with the time its caller waits for the verdict.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlobRequest {
    /// Sidecar to verify.
    pub bundle: Arc<Bundle>,
    /// Time the caller waits, in whole milliseconds on the wire, rounded up.
    pub timeout: Duration,
}

/// Message of the stream to the service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlobStreamRequest {
    /// Id of the request within the stream, never reused.
    pub id: u64,
    /// Request for a verdict.
    pub request: BlobRequest,
}

/// Message of the stream from the service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlobStreamAnswer {
    /// Id of the answered request.
    pub id: u64,
    /// Verdict, or the reason why there is none.
    pub result: Result<Verdict, Error>,
}

impl BlobRequest {
    pub(super) fn timeout_ms(&self) -> u64 {
        millis(self.timeout)
    }
}

impl From<Form> for v1::Form {
    fn from(form: Form) -> Self {
        match form {
            Form::BlobProofs => Self::BlobProofs,
            Form::CellProofs => Self::CellProofs,
        }
    }
}

fn form(number: i32) -> Result<Form, Fault> {
    match v1::Form::try_from(number) {
        Ok(v1::Form::BlobProofs) => Ok(Form::BlobProofs),
        Ok(v1::Form::CellProofs) => Ok(Form::CellProofs),
        _ => Err(choice(2, number)),
    }
}

fn form_number(form: Form) -> i32 {
    v1::Form::from(form).into()
}

/// Returns the fault of an enum's number: a missing field reads as 0.
fn choice(max: u64, number: i32) -> Fault {
    match u64::try_from(number) {
        Ok(0) => Fault::Missing,
        Ok(got) => Fault::OutOfRange { min: 1, max, got },
        // Negative numbers travel sign-extended.
        Err(_) => Fault::OutOfRange { min: 1, max, got: i64::from(number) as u64 },
    }
}

fn points(points: &[[u8; 48]]) -> bytes::Bytes {
    bytes::Bytes::copy_from_slice(points.as_flattened())
}

fn point(bytes: &[u8]) -> Result<[u8; 48], Fault> {
    bytes.try_into().map_err(|_| Fault::Length { expected: 48, got: bytes.len() as u64 })
}

/// Returns the time in milliseconds, rounded up so that a short time does not become zero.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

impl v1::Bundle {
    /// Converts everything except the field `blobs`, which stays empty.
    pub(super) fn without_blobs(bundle: &Bundle) -> Self {
        let rule =
            v1::Rule { form: form_number(bundle.rule.form), blobs_max: bundle.rule.blobs_max };
        Self {
            form: form_number(bundle.form),
            blob_sizes: bundle.blobs.iter().map(|blob| size(blob.len())).collect(),
            blobs: bytes::Bytes::new(),
            commitments: points(&bundle.commitments),
            proofs: points(&bundle.proofs),
            versioned_hashes: hash_list(bundle.versioned_hashes.iter()),
            rule: Some(rule),
        }
    }
}

impl From<&Bundle> for v1::Bundle {
    fn from(bundle: &Bundle) -> Self {
        let blobs: Vec<&[u8]> = bundle.blobs.iter().map(|blob| &blob[..]).collect();
        Self { blobs: blobs.concat().into(), ..Self::without_blobs(bundle) }
    }
}

impl TryFrom<v1::Bundle> for Bundle {
    type Error = ConvertError;

    /// Converts a bundle whose blobs share the buffer of the message.
    fn try_from(wire: v1::Bundle) -> Result<Self, ConvertError> {
        at_most(BLOBS_PER_BUNDLE_MAX, wire.blob_sizes.len()).at("blob_sizes")?;
        let blobs = split(&wire.blob_sizes, wire.blobs).at("blobs")?.collect();
        let commitments: &[Commitment] = items(&wire.commitments).at("commitments")?;
        at_most(BLOBS_PER_BUNDLE_MAX, commitments.len()).at("commitments")?;
        let proofs: &[Proof] = items(&wire.proofs).at("proofs")?;
        at_most(BLOBS_PER_BUNDLE_MAX * CELLS, proofs.len()).at("proofs")?;
        let hashes = items::<32>(&wire.versioned_hashes).at("versioned_hashes")?;
        at_most(BLOBS_PER_BUNDLE_MAX, hashes.len()).at("versioned_hashes")?;
        let rule = required(wire.rule).at("rule")?;
        Ok(Self {
            form: form(wire.form).at("form")?,
            blobs,
            commitments: commitments.to_vec(),
            proofs: proofs.to_vec(),
            versioned_hashes: hashes.iter().map(B256::from).collect(),
            rule: Rule { form: form(rule.form).at("rule.form")?, blobs_max: rule.blobs_max },
        })
    }
}

impl From<&BlobRequest> for v1::ValidateRequest {
    fn from(request: &BlobRequest) -> Self {
        Self { bundle: Some((&*request.bundle).into()), timeout_ms: request.timeout_ms() }
    }
}

impl TryFrom<v1::ValidateRequest> for BlobRequest {
    type Error = ConvertError;

    fn try_from(wire: v1::ValidateRequest) -> Result<Self, ConvertError> {
        let bundle: Bundle = nested(wire.bundle).at("validate.bundle")?;
        Ok(Self { bundle: Arc::new(bundle), timeout: Duration::from_millis(wire.timeout_ms) })
    }
}

impl From<&BlobStreamRequest> for v1::ValidateStreamRequest {
    fn from(message: &BlobStreamRequest) -> Self {
        Self { id: message.id, request: Some((&message.request).into()) }
    }
}

impl TryFrom<v1::ValidateStreamRequest> for BlobStreamRequest {
    type Error = ConvertError;

    fn try_from(wire: v1::ValidateStreamRequest) -> Result<Self, ConvertError> {
        Ok(Self { id: wire.id, request: nested(wire.request).at("validate_stream.request")? })
    }
}

impl From<PointFault> for v1::PointFault {
    fn from(fault: PointFault) -> Self {
        match fault {
            PointFault::Encoding => Self::Encoding,
            PointFault::NotOnCurve => Self::NotOnCurve,
            PointFault::NotInSubgroup => Self::NotInSubgroup,
        }
    }
}

fn point_fault(number: i32) -> Result<PointFault, Fault> {
    match v1::PointFault::try_from(number) {
        Ok(v1::PointFault::Encoding) => Ok(PointFault::Encoding),
        Ok(v1::PointFault::NotOnCurve) => Ok(PointFault::NotOnCurve),
        Ok(v1::PointFault::NotInSubgroup) => Ok(PointFault::NotInSubgroup),
        _ => Err(choice(3, number)),
    }
}

fn part_number(part: Part) -> i32 {
    let part = match part {
        Part::Commitments => v1::Part::Commitments,
        Part::Proofs => v1::Part::Proofs,
        Part::VersionedHashes => v1::Part::VersionedHashes,
    };
    part.into()
}

fn part(number: i32) -> Result<Part, Fault> {
    match v1::Part::try_from(number) {
        Ok(v1::Part::Commitments) => Ok(Part::Commitments),
        Ok(v1::Part::Proofs) => Ok(Part::Proofs),
        Ok(v1::Part::VersionedHashes) => Ok(Part::VersionedHashes),
        _ => Err(choice(3, number)),
    }
}

impl From<Refusal> for v1::Refusal {
    fn from(refusal: Refusal) -> Self {
        use refusal_wire::{BadProof, Count, Nothing, Reason as Wire, TooManyBlobs, WrongForm};
        let fault = |fault| v1::PointFault::from(fault).into();
        let reason = match refusal.reason {
            Reason::NoBlobs => Wire::NoBlobs(Nothing {}),
            Reason::TooManyBlobs { max, got } => Wire::TooManyBlobs(TooManyBlobs { max, got }),
            Reason::Count { part, expected, got } => {
                Wire::Count(Count { part: part_number(part), expected, got })
            }
            Reason::WrongForm { expected, got } => Wire::WrongForm(WrongForm {
                expected: form_number(expected),
                got: form_number(got),
            }),
            Reason::BlobLength { got } => Wire::BlobLength(got),
            Reason::VersionedHash => Wire::VersionedHash(Nothing {}),
            Reason::NotCanonical { element } => Wire::NotCanonical(element),
            Reason::Commitment(what) => Wire::Commitment(fault(what)),
            Reason::Proof { proof, fault: what } => {
                Wire::Proof(BadProof { proof, fault: fault(what) })
            }
            Reason::ProofInvalid => Wire::ProofInvalid(Nothing {}),
        };
        Self { blob: refusal.blob, reason: Some(reason) }
    }
}

impl TryFrom<v1::Refusal> for Refusal {
    type Error = ConvertError;

    fn try_from(wire: v1::Refusal) -> Result<Self, ConvertError> {
        use refusal_wire::Reason as Wire;
        let reason = match required(wire.reason).at("reason")? {
            Wire::NoBlobs(_) => Reason::NoBlobs,
            Wire::TooManyBlobs(blobs) => Reason::TooManyBlobs { max: blobs.max, got: blobs.got },
            Wire::Count(count) => Reason::Count {
                part: part(count.part).at("count.part")?,
                expected: count.expected,
                got: count.got,
            },
            Wire::WrongForm(wrong) => Reason::WrongForm {
                expected: form(wrong.expected).at("wrong_form.expected")?,
                got: form(wrong.got).at("wrong_form.got")?,
            },
            Wire::BlobLength(got) => Reason::BlobLength { got },
            Wire::VersionedHash(_) => Reason::VersionedHash,
            Wire::NotCanonical(element) => Reason::NotCanonical { element },
            Wire::Commitment(fault) => Reason::Commitment(point_fault(fault).at("commitment")?),
            Wire::Proof(bad) => {
                Reason::Proof { proof: bad.proof, fault: point_fault(bad.fault).at("proof.fault")? }
            }
            Wire::ProofInvalid(_) => Reason::ProofInvalid,
        };
        Ok(Self { blob: wire.blob, reason })
    }
}

impl From<Verdict> for v1::ValidateResponse {
    fn from(verdict: Verdict) -> Self {
        let refusal = match verdict {
            Verdict::Valid => None,
            Verdict::Invalid(refusal) => Some(refusal.into()),
        };
        Self { refusal }
    }
}

impl TryFrom<v1::ValidateResponse> for Verdict {
    type Error = ConvertError;

    fn try_from(wire: v1::ValidateResponse) -> Result<Self, ConvertError> {
        let refusal = wire.refusal.map(Refusal::try_from).transpose().at("validate.refusal")?;
        Ok(refusal.map_or(Self::Valid, Self::Invalid))
    }
}

impl From<BlobStreamAnswer> for v1::ValidateStreamResponse {
    fn from(message: BlobStreamAnswer) -> Self {
        let answer = match message.result {
            Ok(verdict) => WireAnswer::Verdict(verdict.into()),
            Err(error) => WireAnswer::Error((&error).into()),
        };
        Self { id: message.id, answer: Some(answer) }
    }
}

impl TryFrom<v1::ValidateStreamResponse> for BlobStreamAnswer {
    type Error = ConvertError;

    fn try_from(wire: v1::ValidateStreamResponse) -> Result<Self, ConvertError> {
        let result = match required(wire.answer).at("validate_stream.answer")? {
            WireAnswer::Verdict(verdict) => Ok(verdict.try_into().at("validate_stream.verdict")?),
            WireAnswer::Error(error) => Err(error.try_into().at("validate_stream.error")?),
        };
        Ok(Self { id: wire.id, result })
    }
}

impl From<&Content> for v1::RecallRequest {
    fn from(content: &Content) -> Self {
        Self {
            form: form_number(content.form),
            keys: hash_list(content.keys.iter()),
            versioned_hashes: hash_list(content.versioned_hashes.iter()),
        }
    }
}

impl TryFrom<v1::RecallRequest> for Content {
    type Error = ConvertError;

    fn try_from(wire: v1::RecallRequest) -> Result<Self, ConvertError> {
        let keys = items::<32>(&wire.keys).at("recall.keys")?;
        at_most(BLOBS_PER_BUNDLE_MAX, keys.len()).at("recall.keys")?;
        length(wire.keys.len() as u64, wire.versioned_hashes.len())
            .at("recall.versioned_hashes")?;
        let hashes = items::<32>(&wire.versioned_hashes).at("recall.versioned_hashes")?;
        Ok(Self {
            form: form(wire.form).at("recall.form")?,
            keys: keys.iter().map(B256::from).collect(),
            versioned_hashes: hashes.iter().map(B256::from).collect(),
        })
    }
}

impl From<&[B256]> for v1::GetBlobsRequest {
    fn from(hashes: &[B256]) -> Self {
        Self { versioned_hashes: hash_list(hashes.iter()) }
    }
}

impl TryFrom<v1::GetBlobsRequest> for Vec<B256> {
    type Error = ConvertError;

    fn try_from(wire: v1::GetBlobsRequest) -> Result<Self, ConvertError> {
        let hashes = items::<32>(&wire.versioned_hashes).at("get_blobs.versioned_hashes")?;
        at_most(GET_BLOBS_MAX, hashes.len()).at("get_blobs.versioned_hashes")?;
        Ok(hashes.iter().map(B256::from).collect())
    }
}

impl From<&[B256]> for v1::ForgetRequest {
    fn from(hashes: &[B256]) -> Self {
        Self { versioned_hashes: hash_list(hashes.iter()) }
    }
}

impl TryFrom<v1::ForgetRequest> for Vec<B256> {
    type Error = ConvertError;

    fn try_from(wire: v1::ForgetRequest) -> Result<Self, ConvertError> {
        let hashes = items::<32>(&wire.versioned_hashes).at("forget.versioned_hashes")?;
        Ok(hashes.iter().map(B256::from).collect())
    }
}

impl From<Option<&StoredBlob>> for v1::GetBlobsResponse {
    fn from(blob: Option<&StoredBlob>) -> Self {
        let blob = blob.map(|blob| v1::StoredBlob {
            blob: blob.blob.0.clone(),
            commitment: points(&[blob.commitment]),
            proof: blob.proof.map(|proof| points(&[proof])),
            cell_proofs: blob.cell_proofs.as_deref().map(points),
        });
        Self { blob }
    }
}

impl TryFrom<v1::GetBlobsResponse> for Option<StoredBlob> {
    type Error = ConvertError;

    fn try_from(wire: v1::GetBlobsResponse) -> Result<Self, ConvertError> {
        wire.blob.map(stored).transpose().at("get_blobs.blob")
    }
}

fn stored(wire: v1::StoredBlob) -> Result<StoredBlob, ConvertError> {
    length(BLOB_BYTES as u64, wire.blob.len()).at("blob")?;
    let cell_proofs = match &wire.cell_proofs {
        None => None,
        Some(bytes) => {
            length((CELLS * 48) as u64, bytes.len()).at("cell_proofs")?;
            let proofs: &[Proof] = items(bytes).at("cell_proofs")?;
            Some(proofs.into())
        }
    };
    Ok(StoredBlob {
        blob: wire.blob.into(),
        commitment: point(&wire.commitment).at("commitment")?,
        proof: wire.proof.as_deref().map(point).transpose().at("proof")?,
        cell_proofs,
    })
}

impl From<Status> for v1::GetStatusResponse {
    fn from(status: Status) -> Self {
        Self {
            ready: status.ready,
            verified: status.verified,
            batches: status.batches,
            shared: status.shared,
            hits: status.hits,
            overloaded: status.overloaded,
            expired: status.expired,
            abandoned: status.abandoned,
            queued: status.queued,
            verdicts: status.verdicts,
            stored_blobs: status.stored_blobs,
            stored_bytes: status.stored_bytes,
        }
    }
}

impl From<v1::GetStatusResponse> for Status {
    fn from(wire: v1::GetStatusResponse) -> Self {
        Self {
            ready: wire.ready,
            verified: wire.verified,
            batches: wire.batches,
            shared: wire.shared,
            hits: wire.hits,
            overloaded: wire.overloaded,
            expired: wire.expired,
            abandoned: wire.abandoned,
            queued: wire.queued,
            verdicts: wire.verdicts,
            stored_blobs: wire.stored_blobs,
            stored_bytes: wire.stored_bytes,
        }
    }
}

impl From<&BlobsValidated> for event::v1::BlobsValidated {
    fn from(event: &BlobsValidated) -> Self {
        Self { versioned_hashes: hash_list(event.versioned_hashes.iter()) }
    }
}

impl TryFrom<event::v1::BlobsValidated> for BlobsValidated {
    type Error = ConvertError;

    fn try_from(wire: event::v1::BlobsValidated) -> Result<Self, ConvertError> {
        let hashes = items::<32>(&wire.versioned_hashes).at("blobs_validated.versioned_hashes")?;
        at_most(BLOBS_PER_BUNDLE_MAX, hashes.len()).at("blobs_validated.versioned_hashes")?;
        Ok(Self { versioned_hashes: hashes.iter().map(B256::from).collect() })
    }
}
