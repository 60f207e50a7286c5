//! Valid sidecars, and ways to spoil them.
#![allow(dead_code)]

pub mod flood;

use blst::min_pk::SecretKey;
use futures_util::FutureExt;
use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};
use tandem_blob_validator::{BlobValidator, Config, Deps};
use tandem_bus::Bus;
use tandem_kzg::{Setup, versioned_hash};
use tandem_proto::blob_validator::{
    BLOB_BYTES, BlobApi, Bundle, Commitment, Form, Pending, Proof, Rule, Status,
};
use tokio_util::sync::CancellationToken;

pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Blob with its commitment and proof.
pub struct Sample {
    pub blob: Vec<u8>,
    pub commitment: Commitment,
    pub proof: Proof,
}

/// Makes a blob of small numbers; each seed gives another.
pub fn blob(seed: u64) -> Vec<u8> {
    let mut blob = vec![0; BLOB_BYTES];
    for (element, bytes) in (0u64..).zip(blob.as_chunks_mut::<32>().0.iter_mut().take(64)) {
        bytes[24..].copy_from_slice(&(seed * 1000 + element).to_be_bytes());
    }
    blob
}

pub fn samples() -> &'static [Sample] {
    static SAMPLES: OnceLock<Vec<Sample>> = OnceLock::new();
    SAMPLES.get_or_init(|| {
        let setup = Setup::load();
        let sample = |seed| {
            let blob = blob(seed);
            let commitment = setup.commit(&blob).unwrap();
            let proof = setup.prove_blob(&blob, &commitment).unwrap();
            Sample { blob, commitment, proof }
        };
        (1..=6).map(sample).collect()
    })
}

/// Makes a valid sidecar of the first `count` samples.
pub fn bundle(count: usize) -> Bundle {
    let samples = &samples()[..count];
    let hash = |sample: &Sample| versioned_hash(&sample.commitment);
    Bundle {
        form: Form::BlobProofs,
        blobs: samples.iter().map(|sample| sample.blob.clone().into()).collect(),
        commitments: samples.iter().map(|sample| sample.commitment).collect(),
        proofs: samples.iter().map(|sample| sample.proof).collect(),
        versioned_hashes: samples.iter().map(hash).collect(),
        rule: Rule { form: Form::BlobProofs, blobs_max: 9 },
    }
}

/// Makes a sidecar of the first sample with proofs of its cells.
pub fn cells_bundle() -> Bundle {
    static PROOFS: OnceLock<Vec<Proof>> = OnceLock::new();
    let proofs = PROOFS.get_or_init(|| Setup::load().prove_cells(&samples()[0].blob).unwrap().1);
    let form = Form::CellProofs;
    Bundle { form, proofs: proofs.clone(), rule: Rule { form, blobs_max: 6 }, ..bundle(1) }
}

/// Makes a new sidecar of `count` blobs, all of them invalid.
pub fn garbage(seed: u64, count: usize) -> Arc<Bundle> {
    let mut bundle = bundle(count);
    for (index, place) in (0u64..).zip(&mut bundle.blobs) {
        *place = blob(1_000_000 + seed * 100 + index).into();
    }
    Arc::new(bundle)
}

/// Makes a new invalid blob with proofs of cells, which takes milliseconds to verify.
pub fn cells_garbage(seed: u64) -> Arc<Bundle> {
    Arc::new(Bundle { blobs: vec![blob(2_000_000 + seed).into()], ..cells_bundle() })
}

/// Makes a valid sidecar of blobs that no other sidecar has. A blob whose elements are all one
/// number is that of a constant polynomial. Its commitment is the number times the generator, and
/// its proof is infinity. This costs no KZG.
pub fn constants(numbers: std::ops::Range<u64>) -> Bundle {
    let mut infinity = [0; 48];
    infinity[0] = 0xc0;
    let mut bundle = bundle(0);
    for number in numbers {
        let mut element = [0; 32];
        element[24..].copy_from_slice(&number.to_be_bytes());
        // A public key is the secret key times the generator.
        let commitment = SecretKey::from_bytes(&element).unwrap().sk_to_pk().compress();
        bundle.blobs.push(element.repeat(BLOB_BYTES / 32).into());
        bundle.versioned_hashes.push(versioned_hash(&commitment));
        bundle.commitments.push(commitment);
        bundle.proofs.push(infinity);
    }
    bundle.rule.blobs_max = 64;
    bundle
}

pub fn start(config: Config) -> (Arc<BlobValidator>, Bus) {
    let bus = Bus::default();
    let deps = Deps { bus: bus.clone(), fatal: CancellationToken::new() };
    (BlobValidator::start(config, deps).unwrap(), bus)
}

/// Returns an answer that is ready at once.
pub fn now<T>(pending: Pending<T>) -> T {
    pending.now_or_never().expect("the service does not wait for this").unwrap()
}

pub fn status(service: &BlobValidator) -> Status {
    now(service.status())
}

/// Waits until a condition holds.
pub async fn until(mut so: impl FnMut() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !so() {
        assert!(Instant::now() < end, "it never came");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
