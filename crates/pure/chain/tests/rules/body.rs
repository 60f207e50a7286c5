use crate::common::{child, payload, raw, rehash, spec, spec_of, transfer};
use alloy_consensus::{EMPTY_ROOT_HASH, TxEip1559, TxEip4844, TxEip7702, TxLegacy};
use alloy_eips::{eip4844::DATA_GAS_PER_BLOB, eip7702::Authorization};
use alloy_primitives::{Address, B256, Bytes, U256};
use tandem_chain::*;

/// Returns the result of [`validate_body`] for a block of this fork with these transactions.
fn validate(fork: Fork, blobs: u64, transactions: Vec<Bytes>) -> Result<(), BlockError> {
    let spec = spec_of(fork);
    let header = child(&spec, &spec.genesis_header(EMPTY_ROOT_HASH));
    let blob_gas_used = header.blob_gas_used.map(|_| blobs * DATA_GAS_PER_BLOB);
    let (payload, sidecar) = payload(&Header { blob_gas_used, ..header }, transactions);
    validate_body(&spec, &rehash(payload, &sidecar).unwrap())
}

fn blob_transaction(blobs: usize) -> TxEip4844 {
    TxEip4844 {
        chain_id: 1,
        to: Address::repeat_byte(7),
        blob_versioned_hashes: vec![B256::repeat_byte(1); blobs],
        ..Default::default()
    }
}

fn set_code_transaction(authorizations: usize) -> TxEip7702 {
    let authorization = Authorization { chain_id: U256::from(1), address: Address::ZERO, nonce: 0 };
    let signed = authorization.into_signed(alloy_primitives::Signature::test_signature());
    TxEip7702 {
        chain_id: 1,
        authorization_list: vec![signed; authorizations],
        ..Default::default()
    }
}

#[test]
fn transaction_types_come_with_their_forks() {
    for fork in Fork::MERGED {
        let unknown = |ty| Err(BlockError::TransactionType { index: 1, ty, fork });
        let blob = validate(fork, 2, vec![raw(transfer()), raw(blob_transaction(2))]);
        assert_eq!(blob, if fork >= Fork::Cancun { Ok(()) } else { unknown(3) });
        let set_code = validate(fork, 0, vec![raw(transfer()), raw(set_code_transaction(1))]);
        assert_eq!(set_code, if fork >= Fork::Prague { Ok(()) } else { unknown(4) });
    }
}

#[test]
fn transactions_for_another_chain_are_refused() {
    let other = TxEip1559 { chain_id: 2, ..transfer() };
    let want = Err(BlockError::ChainId { index: 0, got: 2, want: 1 });
    assert_eq!(validate(Fork::Osaka, 0, vec![raw(other)]), want);
    let other = TxLegacy { chain_id: Some(2), ..Default::default() };
    assert_eq!(validate(Fork::Paris, 0, vec![raw(other)]), want);
    for chain_id in [None, Some(1)] {
        let legacy = TxLegacy { chain_id, ..Default::default() };
        assert_eq!(validate(Fork::Osaka, 0, vec![raw(legacy)]), Ok(()));
    }
}

#[test]
fn in_osaka_a_transaction_has_at_most_2_to_the_24_gas() {
    let limit = 1 << 24;
    let with_gas = |gas_limit| vec![raw(TxEip1559 { gas_limit, ..transfer() })];
    assert_eq!(validate(Fork::Osaka, 0, with_gas(limit)), Ok(()));
    let want = BlockError::TransactionGasLimit { index: 0, got: limit + 1, limit };
    assert_eq!(validate(Fork::Osaka, 0, with_gas(limit + 1)), Err(want));
    assert_eq!(validate(Fork::Prague, 0, with_gas(limit + 1)), Ok(()));
    // The cap is on the gas of execution alone, and revm splits the two (EIP-8037).
    assert_eq!(validate(Fork::Amsterdam, 0, with_gas(limit + 1)), Ok(()));
}

#[test]
fn a_blob_transaction_has_a_blob_and_not_too_many() {
    let blobs =
        |fork, count: usize| validate(fork, count as u64, vec![raw(blob_transaction(count))]);
    for (fork, limit) in [(Fork::Cancun, 6), (Fork::Prague, 9), (Fork::Osaka, 6)] {
        assert_eq!(blobs(fork, 0), Err(BlockError::NoBlobs { index: 0 }));
        assert_eq!(blobs(fork, limit), Ok(()));
        let limit = limit as u64;
        let got = limit as usize + 1;
        let want = BlockError::TransactionBlobs { index: 0, got, limit };
        assert_eq!(blobs(fork, got), Err(want));
    }
}

#[test]
fn versioned_hashes_are_of_version_1() {
    let mut transaction = blob_transaction(2);
    let hash = B256::repeat_byte(2);
    transaction.blob_versioned_hashes[1] = hash;
    let want = Err(BlockError::BlobVersion { index: 0, hash });
    assert_eq!(validate(Fork::Osaka, 2, vec![raw(transaction)]), want);
}

#[test]
fn blob_gas_is_that_of_all_blob_transactions() {
    let transactions = || vec![raw(blob_transaction(2)), raw(transfer()), raw(blob_transaction(3))];
    assert_eq!(validate(Fork::Prague, 5, transactions()), Ok(()));
    let (got, want) = (4 * DATA_GAS_PER_BLOB, 5 * DATA_GAS_PER_BLOB);
    let want = Err(BlockError::BlobGasUsed { got, want });
    assert_eq!(validate(Fork::Prague, 4, transactions()), want);
}

#[test]
fn a_set_code_transaction_has_authorizations() {
    let want = Err(BlockError::NoAuthorizations { index: 0 });
    assert_eq!(validate(Fork::Prague, 0, vec![raw(set_code_transaction(0))]), want);
}

#[test]
fn a_blob_parameter_fork_lifts_the_limit_of_the_block_but_not_of_a_transaction() {
    let spec = spec(
        r#""shanghaiTime": 0, "cancunTime": 0, "pragueTime": 0, "osakaTime": 0, "bpo1Time": 0,
        "blobSchedule": {"bpo1": {"target": 10, "max": 15, "baseFeeUpdateFraction": 8346193}}"#,
    );
    let parent = spec.genesis_header(EMPTY_ROOT_HASH);
    let with_blobs = |counts: &[usize]| {
        let sum = counts.iter().sum::<usize>() as u64;
        let blob_gas_used = Some(sum * DATA_GAS_PER_BLOB);
        let header = Header { blob_gas_used, ..child(&spec, &parent) };
        let transactions = counts.iter().map(|&count| raw(blob_transaction(count))).collect();
        let (payload, sidecar) = payload(&header, transactions);
        let block = rehash(payload, &sidecar).unwrap();
        validate_header(&spec, &block.header, &parent)?;
        validate_body(&spec, &block)
    };
    assert_eq!(with_blobs(&[6, 6, 3]), Ok(()));
    let limit = 15 * DATA_GAS_PER_BLOB;
    let want = BlockError::BlobGasOverLimit { got: limit + DATA_GAS_PER_BLOB, limit };
    assert_eq!(with_blobs(&[6, 6, 4]), Err(want));
    let want = BlockError::TransactionBlobs { index: 0, got: 7, limit: 6 };
    assert_eq!(with_blobs(&[7]), Err(want));
}

#[test]
fn from_osaka_on_a_block_has_at_most_8_mib_of_rlp_as_it_is_wrapped() {
    let spec = spec_of(Fork::Osaka);
    let header = child(&spec, &spec.genesis_header(EMPTY_ROOT_HASH));
    let block = |input_len: usize| {
        let input = Bytes::from(vec![1; input_len]);
        let (payload, sidecar) = payload(&header, vec![raw(TxEip1559 { input, ..transfer() })]);
        rehash(payload, &sidecar).unwrap()
    };
    let limit = 8 << 20;
    let rest = block(limit - 1024).rlp_len() - (limit - 1024);
    let largest = block(limit - rest);
    assert_eq!(largest.rlp_len(), limit);
    assert_eq!(validate_body(&spec, &largest), Ok(()));
    let larger = block(limit - rest + 1);
    let want = BlockError::BlockTooLarge { got: limit + 1, limit };
    assert_eq!(validate_body(&spec, &larger), Err(want));
    let prague = spec_of(Fork::Prague);
    assert_eq!(validate_body(&prague, &larger), Ok(()));
}

#[test]
fn a_signature_with_a_high_s_is_refused() {
    use alloy_consensus::SignableTransaction;
    use alloy_eips::Encodable2718;
    let low = alloy_primitives::Signature::test_signature();
    let order = alloy_primitives::uint!(
        0xfffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141_U256
    );
    let high = alloy_primitives::Signature::new(low.r(), order - low.s(), !low.v());
    let spec = spec_of(Fork::Osaka);
    let header = child(&spec, &spec.genesis_header(EMPTY_ROOT_HASH));
    let block = |signature| {
        let signed = Transaction::from(transfer().into_signed(signature));
        let raw = vec![raw(transfer()), signed.encoded_2718().into()];
        let (payload, sidecar) = payload(&header, raw);
        rehash(payload, &sidecar).unwrap()
    };
    assert!(recover_senders(&block(low)).is_ok());
    assert_eq!(recover_senders(&block(high)), Err(BlockError::Signature { index: 1 }));
}
