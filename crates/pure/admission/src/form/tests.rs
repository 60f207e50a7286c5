use super::*;
use alloy_consensus::{SignableTransaction, TxEip1559, TxEip4844, TxLegacy};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Signature, U256};
use alloy_rlp::Encodable;
use proptest::prelude::*;

fn signature() -> Signature {
    Signature::new(U256::from(5), U256::from(6), true)
}

fn blob_transaction(blobs: usize, input: usize) -> Transaction {
    let transaction = TxEip4844 {
        chain_id: 7,
        input: vec![9; input].into(),
        blob_versioned_hashes: vec![B256::repeat_byte(1); blobs],
        ..TxEip4844::default()
    };
    transaction.into_signed(signature()).into()
}

/// Encodes a transaction and its blobs.
type Encode = fn(&[u8], Wrapper, &[StoredParts<'_>]) -> Bytes;

fn wrapped(transaction: &Transaction, wrapper: Wrapper, blobs: usize) -> Bytes {
    encoded(transaction, wrapper, blobs, encode_network_form)
}

fn encoded(transaction: &Transaction, wrapper: Wrapper, blobs: usize, encode: Encode) -> Bytes {
    let proofs = match wrapper {
        Wrapper::BlobProofs => 1,
        Wrapper::CellProofs => CELLS_PER_EXT_BLOB,
    };
    let (blob, proofs) = (vec![3; BLOB_BYTES], vec![[4; 48]; proofs]);
    let parts: Vec<StoredParts<'_>> = vec![(&blob, &[5; 48], &proofs); blobs];
    encode(&transaction.encoded_2718(), wrapper, &parts)
}

#[test]
fn what_is_encoded_is_what_is_decoded_and_has_the_length_foretold() {
    for wrapper in [Wrapper::BlobProofs, Wrapper::CellProofs] {
        for (blobs, input) in [(1, 0), (2, 300), (6, 70_000)] {
            let transaction = blob_transaction(blobs, input);
            let raw = transaction.encoded_2718();
            let bytes = wrapped(&transaction, wrapper, blobs);
            assert_eq!(network_form_len(raw.len(), wrapper, blobs), bytes.len());
            let submitted = decode(&bytes).unwrap();
            assert_eq!((&submitted.transaction, &submitted.raw[..]), (&transaction, &raw[..]));
            assert_eq!(submitted.network_bytes, bytes.len());
            let sidecar = submitted.sidecar.clone().unwrap();
            assert_eq!((sidecar.wrapper, sidecar.blobs.len()), (wrapper, blobs));
            assert!(sidecar.commitments.iter().all(|it| it == &[5; 48]));
            assert_eq!(pooled_hash(&bytes), Some(submitted.hash()));
        }
    }
}

#[test]
fn a_transaction_without_its_blobs_gets_them_back() {
    for wrapper in [Wrapper::BlobProofs, Wrapper::CellProofs] {
        for (blobs, input) in [(1, 0), (2, 300), (6, 70_000)] {
            let transaction = blob_transaction(blobs, input);
            let whole = wrapped(&transaction, wrapper, blobs);
            let bytes = encoded(&transaction, wrapper, blobs, encode_without_blobs);
            let raw = transaction.encoded_2718().len();
            assert_eq!(whole.len() - bytes.len(), blobs_len(raw, wrapper, blobs));
            assert_eq!(pooled_hash(&bytes), Some(*transaction.hash()));
            let without = WithoutBlobs::of(&bytes).unwrap();
            assert_eq!(without.blobs(), blobs);
            assert_eq!(without.with(&vec![3; blobs * BLOB_BYTES]), whole);
            assert!(
                decode(&without.with(&[])).is_ok_and(|it| it.sidecar.unwrap().blobs.is_empty())
            );
            assert_eq!(WithoutBlobs::of(&whole), None, "its blobs are there");
            for end in (0..bytes.len()).step_by(7) {
                assert_eq!(WithoutBlobs::of(&bytes[..end]), None, "{end}");
            }
        }
    }
    let bare = blob_transaction(1, 0).encoded_2718();
    assert_eq!(WithoutBlobs::of(&bare), None);
}

#[test]
fn the_hash_is_that_of_the_transaction_in_every_form() {
    let plain: [Transaction; 2] = [
        TxLegacy { nonce: 3, ..TxLegacy::default() }.into_signed(signature()).into(),
        TxEip1559 { nonce: 4, ..TxEip1559::default() }.into_signed(signature()).into(),
    ];
    for transaction in plain {
        let raw = Bytes::from(transaction.encoded_2718());
        assert_eq!(pooled_hash(&raw), Some(*transaction.hash()));
        let submitted = decode(&raw).unwrap();
        assert_eq!((submitted.hash(), submitted.sidecar.is_none()), (*transaction.hash(), true));
    }
    let bare = blob_transaction(1, 0);
    let raw = Bytes::from(bare.encoded_2718());
    assert_eq!(pooled_hash(&raw), Some(*bare.hash()));
    assert_eq!(decode(&raw).unwrap_err(), MalformedError::NoSidecar);
    for none in [&[][..], &[3], &[3, 0xc1], &[0x80], &[0xbf, 1]] {
        assert_eq!(pooled_hash(none), None, "{none:?}");
    }
}

fn spec(max: u64, osaka: bool) -> ChainSpec {
    let osaka = if osaka { r#""pragueTime": 5, "osakaTime": 9,"# } else { "" };
    let genesis = format!(
        r#"{{"config": {{"chainId": 7, "londonBlock": 0, "terminalTotalDifficulty": 0,
        "shanghaiTime": 0, "cancunTime": 3, {osaka} "blobSchedule": {{"cancun": {{"target": 1,
        "max": {max}, "baseFeeUpdateFraction": 3338477}}}}}},
        "gasLimit": "0x1000000", "difficulty": "0x0"}}"#
    );
    ChainSpec::from_genesis_json(&genesis).unwrap()
}

/// Returns the bytes of the form with this many blobs and a transaction of maximum length.
fn form_len(blobs: usize, proofs: usize) -> usize {
    let list = list_len;
    let string = |len: usize| vec![1_u8; len].as_slice().length();
    let lists = list(blobs * string(BLOB_BYTES))
        + list(blobs * string(48))
        + list(blobs * proofs * string(48));
    1 + list(TRANSACTION_BYTES_MAX + 1 + lists)
}

#[test]
fn the_largest_form_that_any_fork_allows_fits() {
    const BLOBS_MAX: usize = 64;
    for (max, osaka, largest) in [
        (3, false, form_len(3, 1)),
        (21, false, form_len(21, 1)),
        // Osaka allows 6, with more proofs; an earlier fork may allow more blobs.
        (1, true, form_len(6, CELLS_PER_EXT_BLOB).max(form_len(9, 1))),
        (30, true, form_len(30, 1)),
        // Beyond the capacity of one message between services.
        (1_000, false, form_len(BLOBS_MAX, 1)),
    ] {
        let bytes = network_form_bytes_max(&spec(max, osaka), BLOBS_MAX);
        assert!((largest..largest + 1024).contains(&bytes), "{max}: {bytes}, not {largest}");
    }
    let genesis = r#"{"config": {"chainId": 7, "londonBlock": 0, "terminalTotalDifficulty": 0},
        "gasLimit": "0x1000000", "difficulty": "0x0"}"#;
    let without = ChainSpec::from_genesis_json(genesis).unwrap();
    assert_eq!(network_form_bytes_max(&without, BLOBS_MAX), 0);
}

proptest! {
    /// Whatever decodes has the hash that is found without decoding, and nothing panics.
    #[test]
    fn arbitrary_bytes_are_refused_or_agree(
        kind in any::<u8>(),
        mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
        list in any::<bool>(),
    ) {
        if list {
            let payload_length = bytes.len();
            let mut framed = Vec::new();
            RlpHeader { list: true, payload_length }.encode(&mut framed);
            framed.append(&mut bytes);
            bytes = framed;
        }
        bytes.insert(0, kind);
        let bytes = Bytes::from(bytes);
        if let Ok(submitted) = decode(&bytes) {
            prop_assert_eq!(pooled_hash(&bytes), Some(submitted.hash()));
        }
        if let Some(without) = WithoutBlobs::of(&bytes) {
            prop_assert_eq!(without.with(&[]), bytes);
        }
    }
}
