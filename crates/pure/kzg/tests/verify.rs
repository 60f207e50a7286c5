//! Batches that contain every kind of error.
#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::OnceLock;
use tandem_kzg::{
    BLOB_BYTES, CELLS, Commitment, Error, Item, PointFault, Proof, Proofs, Setup, Verifier, verify,
    versioned_hash,
};

struct Sample {
    blob: Vec<u8>,
    commitment: Commitment,
    proof: Proof,
}

/// Returns a blob of one small polynomial; `seed` makes it differ from others.
fn blob(seed: u8) -> Vec<u8> {
    let mut blob = vec![0; BLOB_BYTES];
    for element in 0..32 {
        blob[element * 32 + 31] = seed.wrapping_mul(31).wrapping_add(element as u8);
        blob[element * 32 + 5] = seed;
    }
    blob
}

fn samples() -> &'static [Sample] {
    static SAMPLES: OnceLock<Vec<Sample>> = OnceLock::new();
    SAMPLES.get_or_init(|| {
        let setup = Setup::load();
        let sample = |seed| {
            let blob = blob(seed);
            let commitment = setup.commit(&blob).unwrap();
            let proof = setup.prove_blob(&blob, &commitment).unwrap();
            Sample { blob, commitment, proof }
        };
        (1..=4).map(sample).collect()
    })
}

fn items(count: usize) -> Vec<Item<'static>> {
    let item = |sample: &'static Sample| {
        Item::new(&sample.blob, &sample.commitment, std::slice::from_ref(&sample.proof)).unwrap()
    };
    samples().iter().cycle().take(count).map(item).collect()
}

fn cell_proofs() -> &'static [Proof] {
    static PROOFS: OnceLock<Vec<Proof>> = OnceLock::new();
    PROOFS.get_or_init(|| Setup::load().prove_cells(&samples()[0].blob).unwrap().1)
}

fn cells_item(proofs: &[Proof]) -> Item<'_> {
    let sample = &samples()[0];
    Item::new(&sample.blob, &sample.commitment, proofs).unwrap()
}

/// Returns a point of the curve outside G1: x = 4 has y² = 68, a square.
fn outside_subgroup() -> [u8; 48] {
    let mut point = [0; 48];
    (point[0], point[47]) = (0x80, 4);
    point
}

#[test]
fn an_invalid_blob_hidden_among_64_is_found_at_the_cost_of_a_bisection() {
    for hidden in [0, 31, 63] {
        let mut items = items(64);
        items[hidden].commitment = &samples()[(hidden + 1) % 4].commitment;
        let report = verify(Setup::load(), &items);
        for (place, result) in report.results.iter().enumerate() {
            let expected = if place == hidden { Err(Error::ProofInvalid) } else { Ok(()) };
            assert_eq!(*result, expected, "item {place}");
        }
        assert!(report.batches <= 2 * 6 + 1, "{} batches", report.batches);
    }
}

#[test]
fn malformed_items_are_named_and_the_others_verified() {
    let mut huge = samples()[0].blob.clone();
    huge[7 * 32..8 * 32].fill(0xff);
    let (no_point, outside) = ([0; 48], outside_subgroup());
    let mut items = items(8);
    items[1].blob = huge.as_slice().try_into().unwrap();
    items[3].commitment = &no_point;
    items[4].commitment = &outside;
    items[5].proofs = Proofs::Blob(&outside);
    items[6].commitment = &samples()[0].commitment;
    let report = verify(Setup::load(), &items);
    let fault = PointFault::NotInSubgroup;
    let expected = [
        Ok(()),
        Err(Error::NotCanonical { element: 7 }),
        Ok(()),
        Err(Error::Commitment(PointFault::Encoding)),
        Err(Error::Commitment(fault)),
        Err(Error::Proof { proof: 0, fault }),
        Err(Error::ProofInvalid),
        Ok(()),
    ];
    assert_eq!(report.results, expected);
}

#[test]
fn cell_proofs_are_verified_all_of_them_and_in_their_order() {
    let setup = Setup::load();
    let good = cell_proofs();
    let mut swapped = good.to_vec();
    swapped.swap(3, 4);
    let mut malformed = good.to_vec();
    malformed[CELLS - 1] = [0xff; 48];
    let mut infinity = good.to_vec();
    infinity[5] = [0; 48];
    infinity[5][0] = 0xc0;
    let other = &samples()[1];
    let foreign = Item::new(&other.blob, &samples()[0].commitment, good).unwrap();
    let items = [
        cells_item(good),
        cells_item(&swapped),
        cells_item(&malformed),
        cells_item(&infinity),
        foreign,
    ];
    let report = verify(setup, &items);
    let expected = [
        Ok(()),
        Err(Error::ProofInvalid),
        Err(Error::Proof { proof: CELLS - 1, fault: PointFault::Encoding }),
        Err(Error::ProofInvalid),
        Err(Error::ProofInvalid),
    ];
    assert_eq!(report.results, expected);
}

#[test]
fn both_forms_may_come_together() {
    let mut items = items(2);
    items.insert(1, cells_item(cell_proofs()));
    let report = verify(Setup::load(), &items);
    assert_eq!(report.results, vec![Ok(()); 3]);
    assert_eq!(report.batches, 2);
    assert_eq!(verify(Setup::load(), &[]).batches, 0);
}

#[test]
fn a_batch_sees_nothing_of_those_before_it() {
    let mut verifier = Verifier::new(Setup::load());
    let (good, invalid) = (Ok(()), Err(Error::ProofInvalid));
    let mut many = items(9);
    many[7].commitment = &samples()[0].commitment;
    let mut swapped = cell_proofs().to_vec();
    swapped.swap(0, 1);
    for round in 0..3 {
        let results = verifier.verify(&many).results;
        assert!(results.iter().enumerate().all(|(place, result)| (place == 7) == result.is_err()));
        // A shorter batch, with another blob and other cells in places that held good ones.
        let mut few = items(3);
        few[0].blob = samples()[2].blob.as_slice().try_into().unwrap();
        few.insert(1, cells_item(&swapped));
        few.push(cells_item(cell_proofs()));
        let expected = [&invalid, &invalid, &good, &good, &good].map(Clone::clone);
        assert_eq!(verifier.verify(&few).results, expected, "round {round}");
        assert_eq!(verifier.verify(&items(2)).results, [good.clone(), good.clone()]);
        if round == 1 {
            verifier.rest();
        }
    }
}

#[test]
fn parts_of_any_other_length_are_refused() {
    let commitment = [0; 48];
    let whole = vec![0; BLOB_BYTES * 10];
    for length in [0, 1, 31, 32, BLOB_BYTES - 1, BLOB_BYTES + 1, BLOB_BYTES * 10] {
        let refused = Item::new(&whole[..length], &commitment, &[[0; 48]]).unwrap_err();
        assert_eq!(refused, Error::BlobLength { got: length });
        assert_eq!(Setup::load().cells(&whole[..length]), Err(Error::BlobLength { got: length }));
    }
    for count in (0..=CELLS * 2).filter(|&count| count != 1 && count != CELLS) {
        let proofs = vec![[0; 48]; count];
        let refused = Item::new(&whole[..BLOB_BYTES], &commitment, &proofs).unwrap_err();
        assert_eq!(refused, Error::ProofCount { expected: CELLS, got: count });
    }
}

#[test]
fn a_versioned_hash_starts_with_its_version() {
    assert!(samples().iter().all(|sample| versioned_hash(&sample.commitment)[0] == 1));
}
