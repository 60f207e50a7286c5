//! Valid and invalid sidecars, with the reasons.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{blob, bundle, cells_bundle, now, samples, start, status};
use proptest::{prelude::*, sample::Index};
use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};
use tandem_blob_validator::{BlobValidator, Config};
use tandem_kzg::versioned_hash;
use tandem_primitives::B256;
use tandem_proto::{
    blob_validator::{
        BLOB_BYTES, BlobApi, Bundle, CELLS, Form, Part, PointFault, Reason, Refusal, Verdict,
    },
    event::{BLOBS_VALIDATED, BlobsValidated},
};
use tokio::runtime::Builder;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns one service for all tests that do not count.
fn service() -> &'static BlobValidator {
    static SERVICE: OnceLock<Arc<BlobValidator>> = OnceLock::new();
    SERVICE.get_or_init(|| start(Config::default()).0)
}

fn refusal_of(service: &BlobValidator, bundle: Bundle) -> Option<(Option<u32>, Reason)> {
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    match runtime.block_on(service.validate(Arc::new(bundle), TIMEOUT)).unwrap() {
        Verdict::Valid => None,
        Verdict::Invalid(Refusal { blob, reason }) => Some((blob, reason)),
    }
}

/// Applies `spoil` to a valid sidecar of two blobs and returns the refusal it gets.
fn spoiled(spoil: impl FnOnce(&mut Bundle)) -> Option<(Option<u32>, Reason)> {
    let mut bundle = bundle(2);
    spoil(&mut bundle);
    refusal_of(service(), bundle)
}

#[test]
fn valid_sidecars_are_kept_and_announced() {
    let (service, bus) = start(Config::default());
    let mut events = bus.subscribe(BLOBS_VALIDATED);
    let (both, cells) = (bundle(2), cells_bundle());
    let hashes = both.versioned_hashes.clone();
    let mut asked = hashes.clone();
    asked.push(B256::ZERO);
    assert_eq!(now(service.get_blobs(&asked)), [None, None, None]);

    assert_eq!(refusal_of(&service, both), None);
    let event = BlobsValidated::decode(&events.try_next().unwrap()).unwrap();
    assert_eq!(event.versioned_hashes, hashes);
    let found = now(service.get_blobs(&asked));
    assert_eq!(found[1].as_ref().unwrap().blob, samples()[1].blob);
    assert_eq!(found[0].as_ref().unwrap().proof, Some(samples()[0].proof));
    assert!(found[0].as_ref().unwrap().cell_proofs.is_none() && found[2].is_none());

    assert_eq!(refusal_of(&service, cells.clone()), None);
    assert!(events.try_next().is_some());
    let found = now(service.get_blobs(&hashes));
    let first = found[0].as_ref().unwrap();
    assert_eq!(first.cell_proofs.as_deref(), Some(&cells.proofs[..]));
    assert_eq!(first.proof, Some(samples()[0].proof), "both forms are there");

    assert_eq!(refusal_of(&service, cells), None);
    assert!(events.try_next().is_none(), "nothing new");
    service.forget(&hashes[..1]);
    let there: Vec<_> = now(service.get_blobs(&hashes)).iter().map(Option::is_some).collect();
    assert_eq!(there, [false, true]);
    let status = status(&service);
    assert!(status.ready && service.ready());
    assert_eq!((status.verified, status.hits, status.stored_blobs), (3, 1, 1));
}

/// Checks a case that a cache by versioned hash, commitment and proof alone would let pass.
#[test]
fn another_blob_under_a_known_good_triple_is_verified_and_refused() {
    for good in [bundle(1), cells_bundle()] {
        let (service, _) = start(Config::default());
        assert_eq!(refusal_of(&service, good.clone()), None);
        let mut attack = good.clone();
        let mut bytes = attack.blobs[0].to_vec();
        bytes[BLOB_BYTES - 1] ^= 1;
        attack.blobs[0] = bytes.into();
        assert_eq!(refusal_of(&service, attack), Some((Some(0), Reason::ProofInvalid)));
        assert_eq!(status(&service).verified, 2);
        let kept = now(service.get_blobs(&good.versioned_hashes));
        assert_eq!(kept[0].as_ref().unwrap().blob, good.blobs[0], "and the good one stays");
        assert_eq!(refusal_of(&service, good), None);
    }
}

#[test]
fn a_refusal_is_remembered_and_harms_nobody_else() {
    let (service, _) = start(Config::default());
    let mut bad = bundle(3);
    bad.blobs[1] = blob(77).into();
    let refused = Some((Some(1), Reason::ProofInvalid));
    assert_eq!(refusal_of(&service, bad.clone()), refused);
    assert_eq!(status(&service).stored_blobs, 0, "a sidecar is kept as a whole or not");
    assert_eq!(refusal_of(&service, bad), refused);
    assert_eq!(refusal_of(&service, bundle(3)), None);
    let status = status(&service);
    assert_eq!((status.verified, status.hits), (4, 3 + 2));
}

#[test]
fn what_is_wrong_with_the_sidecar_as_a_whole_is_said() {
    let count = |part, expected, got| Some((None, Reason::Count { part, expected, got }));
    assert_eq!(spoiled(|b| b.blobs.clear()), Some((None, Reason::NoBlobs)));
    let too_many = Some((None, Reason::TooManyBlobs { max: 1, got: 2 }));
    assert_eq!(spoiled(|b| b.rule.blobs_max = 1), too_many);
    for got in (0..40).filter(|&got| got != 2) {
        let hash = B256::ZERO;
        assert_eq!(
            spoiled(|b| b.commitments.resize(got, [0; 48])),
            count(Part::Commitments, 2, got as u32)
        );
        assert_eq!(spoiled(|b| b.proofs.resize(got, [0; 48])), count(Part::Proofs, 2, got as u32));
        assert_eq!(
            spoiled(|b| b.versioned_hashes.resize(got, hash)),
            count(Part::VersionedHashes, 2, got as u32)
        );
    }
    let (blobs, cells) = (Form::BlobProofs, Form::CellProofs);
    let wrong = |expected, got| Some((None, Reason::WrongForm { expected, got }));
    assert_eq!(spoiled(|b| b.rule.form = cells), wrong(cells, blobs), "EIP-4844 after Osaka");
    let mut early = cells_bundle();
    early.rule.form = blobs;
    assert_eq!(refusal_of(service(), early), wrong(blobs, cells), "EIP-7594 before Osaka");
    let mut fewer = cells_bundle();
    fewer.proofs.pop();
    let all = CELLS as u32;
    assert_eq!(refusal_of(service(), fewer), count(Part::Proofs, all, all - 1));
}

#[test]
fn a_blob_of_any_other_length_is_refused() {
    let lengths = [0, 1, 31, 32, 4096, BLOB_BYTES - 1, BLOB_BYTES + 1, BLOB_BYTES * 10];
    for length in lengths {
        let refused = spoiled(|b| b.blobs[1] = vec![0; length].into());
        assert_eq!(refused, Some((Some(1), Reason::BlobLength { got: length as u64 })));
    }
}

#[test]
fn a_versioned_hash_of_something_else_is_refused() {
    let refused = Some((Some(1), Reason::VersionedHash));
    assert_eq!(spoiled(|b| b.versioned_hashes[1] = b.versioned_hashes[0]), refused);
    assert_eq!(spoiled(|b| b.versioned_hashes[1].0[0] = 2), refused, "another version");
    assert_eq!(spoiled(|b| b.commitments.swap(0, 1)), Some((Some(0), Reason::VersionedHash)));
}

#[test]
fn what_is_malformed_inside_is_named() {
    let element = |b: &mut Bundle| {
        let mut bytes = b.blobs[1].to_vec();
        bytes[BLOB_BYTES - 32..].fill(0xff);
        b.blobs[1] = bytes.into();
    };
    assert_eq!(spoiled(element), Some((Some(1), Reason::NotCanonical { element: 4095 })));
    let commitment = |bytes: [u8; 48]| {
        spoiled(|b| (b.commitments[1], b.versioned_hashes[1]) = (bytes, versioned_hash(&bytes)))
    };
    let fault = |fault| Some((Some(1), Reason::Commitment(fault)));
    assert_eq!(commitment([0xff; 48]), fault(PointFault::Encoding));
    let mut infinity = [0; 48];
    infinity[0] = 0xc0;
    assert_eq!(commitment(infinity), Some((Some(1), Reason::ProofInvalid)));
    // The point is on the curve, outside G1.
    let mut point = [0; 48];
    (point[0], point[47]) = (0x80, 4);
    assert_eq!(commitment(point), fault(PointFault::NotInSubgroup));
    let refused = spoiled(|b| b.proofs[1] = point);
    let fault = PointFault::NotInSubgroup;
    assert_eq!(refused, Some((Some(1), Reason::Proof { proof: 0, fault })));
    assert_eq!(spoiled(|b| b.proofs[1] = infinity), Some((Some(1), Reason::ProofInvalid)));
    assert_eq!(spoiled(|b| b.proofs.swap(0, 1)), Some((Some(0), Reason::ProofInvalid)));
    let mut cells = cells_bundle();
    cells.proofs[100] = [0; 48];
    let fault = PointFault::Encoding;
    assert_eq!(refusal_of(service(), cells), Some((Some(0), Reason::Proof { proof: 100, fault })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Checks that one flipped bit anywhere never gives a valid verdict, and never causes a panic.
    #[test]
    fn a_flipped_bit_is_found(part in 0..4usize, place: Index, bit in 0..8u8) {
        let refused = spoiled(|bundle| {
            let flip = |bytes: &mut [u8]| bytes[place.index(bytes.len())] ^= 1 << bit;
            match part {
                0 => {
                    let mut bytes = bundle.blobs[0].to_vec();
                    flip(&mut bytes);
                    bundle.blobs[0] = bytes.into();
                }
                1 => flip(&mut bundle.commitments[0]),
                2 => flip(&mut bundle.proofs[0]),
                _ => flip(&mut bundle.versioned_hashes[0].0),
            }
        });
        let (blob, reason) = refused.unwrap();
        prop_assert_eq!(blob, Some(0));
        prop_assert!((reason == Reason::VersionedHash) == (part == 1 || part == 3), "{}", reason);
    }
}
