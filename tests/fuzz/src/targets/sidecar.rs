//! Blob sidecars, through the running blob-validator.

use crate::{Reader, Target, structures};
use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use prost::Message;
use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};
use tandem_blob_validator::{BlobValidator, Config, Deps};
use tandem_kzg::{Setup, versioned_hash};
use tandem_primitives::B256;
use tandem_proto::{
    blob_validator::{BLOB_BYTES, BlobApi, Bundle, Commitment, Form, Proof, Rule, Verdict},
    convert::{BlobRequest, OutgoingBlobRequest},
    wire::blob_validator::v1,
};
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;

/// Target for scripts that build a sidecar. Blobs are large and mean little, so an input says how
/// to fill them.
pub const TARGET: Target = Target {
    name: "sidecar",
    bytes_per_byte: 0,
    structures: structures::none,
    constant: 0,
    input_len_max: 1 << 10,
    mutations: 500,
    seeds,
    dictionary: &[b"\xc0\x00", b"\x73\xed\xa7\x53", b"\xff\xff\xff\xff", b"\x80\x00", b"\xe0\x00"],
    run: validate,
};

static SERVICE: LazyLock<Arc<BlobValidator>> = LazyLock::new(|| {
    let deps = Deps { bus: Default::default(), fatal: CancellationToken::new() };
    let service = BlobValidator::start(Config::default(), deps).unwrap();
    Setup::load();
    service
});

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().enable_time().build().unwrap());

/// First byte of the point at infinity, which is both commitment and proof of a blob of zeros.
const INFINITY: u8 = 0xc0;

fn seeds() -> Vec<Vec<u8>> {
    let mut point = [0; 48];
    point[0] = INFINITY;
    let mut seeds = Vec::new();
    for (form, rule) in [(0, 0), (1, 1), (0, 1)] {
        // Form, rule, blobs, then for each: fill, commitment, whether the hash is right.
        let mut seed = vec![form, rule, 6, 1, 0, 0];
        seed.extend(point);
        seed.push(1);
        seed.extend(point);
        seeds.push(seed);
    }
    let mut wrong = seeds[0].clone();
    wrong[5] = 1;
    seeds.push(wrong);
    seeds
}

fn form(byte: u8) -> Form {
    if byte & 1 == 0 { Form::BlobProofs } else { Form::CellProofs }
}

fn point(reader: &mut Reader<'_>) -> [u8; 48] {
    let mut point = [0; 48];
    let bytes = reader.take(48);
    point[..bytes.len()].copy_from_slice(bytes);
    point
}

/// Returns a blob: zeros, or zeros with a few other bytes, or a blob of another length.
fn blob(reader: &mut Reader<'_>) -> Bytes {
    match reader.byte() % 4 {
        0 => vec![0; BLOB_BYTES].into(),
        1 => {
            let mut blob = vec![0; BLOB_BYTES];
            let at = reader.number() as usize % BLOB_BYTES;
            let len = usize::from(reader.byte() % 40).min(BLOB_BYTES - at);
            let bytes = reader.take(len);
            blob[at..at + bytes.len()].copy_from_slice(bytes);
            blob.into()
        }
        2 => vec![reader.byte(); BLOB_BYTES].into(),
        _ => vec![reader.byte(); reader.number() as usize % (2 * BLOB_BYTES)].into(),
    }
}

fn bundle(reader: &mut Reader<'_>) -> Bundle {
    let (form, rule_form) = (form(reader.byte()), form(reader.byte()));
    let blobs_max = u32::from(reader.byte());
    let mut blobs = Vec::new();
    let (mut commitments, mut versioned_hashes) = (Vec::<Commitment>::new(), Vec::new());
    let mut proofs = Vec::<Proof>::new();
    for _ in 0..reader.byte() % 4 {
        blobs.push(blob(reader));
        let flags = reader.byte();
        let commitment = point(reader);
        commitments.push(commitment);
        let right = versioned_hash(&commitment);
        versioned_hashes.push(if flags & 1 == 0 { right } else { B256::from(reader.word()) });
        let count = if reader.byte() == 0 { 0 } else { form.proofs_per_blob() };
        let proof = point(reader);
        proofs.extend(std::iter::repeat_n(proof, count));
    }
    // A list may have another length than that of the blobs.
    match reader.byte() {
        1 => drop(proofs.pop()),
        2 => drop(commitments.pop()),
        3 => drop(versioned_hashes.pop()),
        4 => proofs.push(point(reader)),
        _ => {}
    }
    let blobs = blobs.into_iter().map(Into::into).collect();
    let rule = Rule { form: rule_form, blobs_max };
    Bundle { form, blobs, commitments, proofs, versioned_hashes, rule }
}

/// Sends the bundle as another process would, with some bytes of the message changed. Returns the
/// received bundle, if it is still a sidecar.
fn over_the_wire(bundle: &Arc<Bundle>, reader: &mut Reader<'_>) -> Option<Arc<Bundle>> {
    let request = BlobRequest { bundle: bundle.clone(), timeout: Duration::from_secs(60) };
    let outgoing = OutgoingBlobRequest::from(request);
    let len = outgoing.encoded_len();
    let mut message = outgoing.into_parts(BytesMut::new()).concat();
    assert_eq!(message.len(), len);
    let whole = reader.is_empty();
    while !reader.is_empty() {
        let at = reader.number() as usize % message.len();
        message[at] = reader.byte();
        if reader.byte() == 1 {
            message.truncate(at.max(1));
        }
    }
    let arrived = v1::ValidateRequest::decode(&message[..]).ok();
    let arrived = arrived.and_then(|message| BlobRequest::try_from(message).ok());
    assert!(!whole || arrived.as_ref().is_some_and(|arrived| arrived.bundle == *bundle));
    arrived.map(|arrived| arrived.bundle)
}

fn validate(input: &[u8]) {
    let mut reader = Reader(input);
    let sent = Arc::new(bundle(&mut reader));
    judge(sent.clone());
    if let Some(arrived) = over_the_wire(&sent, &mut reader)
        && arrived != sent
    {
        judge(arrived);
    }
}

fn verdict_of(bundle: Arc<Bundle>) -> Verdict {
    RUNTIME.block_on(SERVICE.validate(bundle, Duration::from_secs(60))).unwrap()
}

fn judge(bundle: Arc<Bundle>) {
    let verdict = verdict_of(bundle.clone());
    if verdict == Verdict::Valid {
        assert_eq!(bundle.form, bundle.rule.form);
        assert!((1..=bundle.rule.blobs_max as usize).contains(&bundle.blobs.len()));
        let kept = SERVICE.get_blobs(&bundle.versioned_hashes).now_or_never().unwrap().unwrap();
        assert_eq!(kept.len(), bundle.blobs.len());
    }
    // A repeated question has the same answer.
    assert_eq!(verdict_of(bundle), verdict);
}
