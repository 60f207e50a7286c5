use crate::common::{DEMO, check, payload, rehash, spec_of};
use alloy_consensus::{EMPTY_ROOT_HASH, Transaction as _};
use alloy_primitives::{Address, B256, Bloom, Bytes, U256, hex};
use tandem_chain::*;

type Mutate = fn(&mut Payload, &mut PayloadSidecar);

/// Mutations that break a rule before execution, with the rule. The block hash is corrected after
/// each mutation, so that it does not reveal the change.
const STATIC: &[(&str, Mutate)] = &[
    ("parent_hash", |p, _| p.parent_hash = B256::ZERO),
    ("number", |p, _| p.block_number += 1),
    ("timestamp", |p, _| p.timestamp -= 12),
    ("gas_limit_change", |p, _| p.gas_limit += p.gas_limit / 1000),
    ("gas_used_over_limit", |p, _| p.gas_used = p.gas_limit + 1),
    ("extra_data_too_long", |p, _| p.extra_data = Bytes::from([0; 33])),
    ("base_fee", |p, _| p.base_fee_per_gas += U256::from(1)),
    ("base_fee_too_high", |p, _| p.base_fee_per_gas = U256::from(1) << 64),
    ("blob_gas_used", |p, _| *p.blob_gas_used.as_mut().unwrap() += 1),
    ("blob_gas_used", |p, _| p.blob_gas_used = Some(0)),
    ("excess_blob_gas", |p, _| *p.excess_blob_gas.as_mut().unwrap() += 131_072),
    ("missing_field", |p, _| p.withdrawals = None),
    ("missing_field", |p, _| p.blob_gas_used = None),
    ("missing_field", |p, _| p.excess_blob_gas = None),
    ("missing_field", |_, s| s.parent_beacon_block_root = None),
    ("missing_field", |_, s| s.execution_requests = None),
    ("versioned_hashes", |_, s| s.versioned_hashes.as_mut().unwrap()[1] = B256::ZERO),
    ("versioned_hashes", |_, s| s.versioned_hashes.as_mut().unwrap().truncate(1)),
    ("versioned_hashes", |_, s| s.versioned_hashes.as_mut().unwrap().push(B256::ZERO)),
    ("versioned_hashes", |p, s| {
        let raw = p.transactions.iter().position(|raw| raw[0] == 3).unwrap();
        p.transactions.remove(raw);
        assert!(!s.versioned_hashes.as_ref().unwrap().is_empty());
    }),
    ("request_empty", |_, s| s.execution_requests.as_mut().unwrap().push(Bytes::from([7]))),
    ("request_empty", |_, s| s.execution_requests.as_mut().unwrap().push(Bytes::new())),
    ("requests_order", |_, s| {
        s.execution_requests.as_mut().unwrap().push(Bytes::from([0, 1]));
    }),
    ("requests_order", |_, s| {
        s.execution_requests = Some(vec![Bytes::from([1, 1]), Bytes::from([1, 2])]);
    }),
    ("transaction_encoding", |p, _| p.transactions[3] = Bytes::new()),
    ("unknown_type", |p, _| p.transactions[3] = Bytes::from([0x05, 0xc0])),
    ("transaction_encoding", |p, _| p.transactions[3] = Bytes::from([0x80])),
    ("transaction_encoding", |p, _| {
        p.transactions[3] = [&p.transactions[3][..], &[0]].concat().into();
    }),
    ("transaction_encoding", |p, _| {
        let raw = &p.transactions[3];
        p.transactions[3] = raw.slice(..raw.len() - 1);
    }),
];

/// Mutations that only execution detects: every check before it must accept them.
const DYNAMIC: &[Mutate] = &[
    |p, _| p.fee_recipient = Address::ZERO,
    |p, _| p.state_root = B256::ZERO,
    |p, _| p.receipts_root = B256::ZERO,
    |p, _| p.logs_bloom = Bloom::ZERO,
    |p, _| p.prev_randao = B256::ZERO,
    |p, _| p.gas_used -= 1,
    |p, _| p.timestamp += 1,
    |p, _| drop(p.transactions.pop()),
    |p, _| p.transactions.swap(0, 1),
    |p, _| p.transactions.push(p.transactions[0].clone()),
    |p, _| p.withdrawals = Some(Vec::new()),
    |p, _| p.withdrawals.as_mut().unwrap()[0].amount += 1,
    |_, s| s.parent_beacon_block_root = Some(B256::ZERO),
    |_, s| s.execution_requests = Some(Vec::new()),
];

fn first() -> (Payload, PayloadSidecar) {
    DEMO.payloads[0].clone()
}

#[test]
fn each_rule_that_needs_no_execution_is_noticed_when_broken() {
    for (position, (kind, mutate)) in STATIC.iter().enumerate() {
        let (mut payload, mut sidecar) = first();
        mutate(&mut payload, &mut sidecar);
        let error = check(&DEMO.spec, &DEMO.genesis, payload, &sidecar).unwrap_err();
        assert_eq!(error.kind(), *kind, "mutation {position}: {error}");
    }
    let (payload, sidecar) = first();
    check(&DEMO.spec, &DEMO.genesis, payload, &sidecar).unwrap();
}

#[test]
fn what_only_execution_can_notice_passes_until_then() {
    for (position, mutate) in DYNAMIC.iter().enumerate() {
        let (mut payload, mut sidecar) = first();
        mutate(&mut payload, &mut sidecar);
        let result = check(&DEMO.spec, &DEMO.genesis, payload, &sidecar);
        assert_eq!(result.map(drop), Ok(()), "mutation {position}");
    }
}

#[test]
fn a_mutated_payload_under_its_old_hash_is_betrayed_by_the_hash() {
    let hidden = DYNAMIC.iter().chain(STATIC.iter().map(|(_, mutate)| mutate));
    for (position, mutate) in hidden.enumerate() {
        let (mut payload, mut sidecar) = first();
        let hash = payload.block_hash;
        mutate(&mut payload, &mut sidecar);
        match Block::from_payload(payload, &sidecar).unwrap_err() {
            BlockError::BlockHash { got, want } => assert!(got == hash && want != hash),
            // The error occurs before there is a header to hash, or the header does not reflect it.
            error => assert_ne!(error.fault(), Fault::Block, "mutation {position}: {error}"),
        }
    }
}

#[test]
fn one_changed_byte_of_a_transaction_never_goes_unnoticed() {
    let (payload, sidecar) = first();
    let senders = recover_senders(&rehash(payload.clone(), &sidecar).unwrap()).unwrap();
    for (index, raw) in payload.transactions.iter().enumerate().take(60) {
        let mut payload = payload.clone();
        let mut changed = raw.to_vec();
        let position = index * 7919 % changed.len();
        changed[position] ^= 1;
        payload.transactions[index] = changed.into();
        // Under its new hash, either a rule breaks or the signature yields another sender without a
        // balance.
        if let Ok(block) = check(&DEMO.spec, &DEMO.genesis, payload, &sidecar) {
            assert_ne!(recover_senders(&block).unwrap()[index], senders[index]);
        }
    }
}

#[test]
fn a_block_makes_its_payload_again() {
    let (payload, sidecar) = first();
    let block = Block::from_payload(payload.clone(), &sidecar).unwrap();
    assert!(block.transactions.iter().any(|tx| tx.blob_versioned_hashes().is_some()));
    let want = PayloadSidecar { execution_requests: None, ..sidecar };
    assert_eq!(Payload::from_block(&block), (payload, want));
}

#[test]
fn json_survives_the_round_trip() {
    let (payload, _) = first();
    let json = serde_json::to_string(&payload).unwrap();
    assert!(json.contains(r#""blockNumber":"0x1""#) && json.contains(r#""baseFeePerGas":"0x7""#));
    assert_eq!(serde_json::from_str::<Payload>(&json).unwrap(), payload);
}

#[test]
fn fields_of_later_versions_may_be_missing_or_null() {
    let spec = spec_of(Fork::Paris);
    let (payload, _) = payload(&spec.genesis_header(EMPTY_ROOT_HASH), Vec::new());
    let json = serde_json::to_string(&payload).unwrap();
    assert!(!json.contains("withdrawals") && !json.contains("lobGas"));
    assert_eq!(serde_json::from_str::<Payload>(&json).unwrap(), payload);
    let nulls = r#"{"withdrawals":null,"blobGasUsed":null,"excessBlobGas":null,"#;
    let json = json.replacen('{', nulls, 1);
    assert_eq!(serde_json::from_str::<Payload>(&json).unwrap(), payload);
}

#[test]
fn quantities_are_read_strictly() {
    let (payload, _) = first();
    let json = serde_json::to_value(&payload).unwrap();
    for wrong in
        [r#""1""#, "1", r#""0x""#, r#""0x01""#, r#""0xg""#, r#""-0x1""#, r#""0x+1""#, "null", "[]"]
    {
        for field in ["blockNumber", "gasUsed", "baseFeePerGas"] {
            let mut json = json.clone();
            json[field] = serde_json::from_str(wrong).unwrap();
            assert!(serde_json::from_value::<Payload>(json).is_err(), "{field}: {wrong}");
        }
    }
    let mut too_big = json;
    too_big["timestamp"] = "0x10000000000000000".into();
    assert!(serde_json::from_value::<Payload>(too_big).is_err());
}

#[test]
fn requests_hash_to_what_the_header_says() {
    // EIP-7685: sha256 over the sha256 of each request; mainnet's empty list.
    let empty = hex!("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    let (payload, sidecar) = DEMO.payloads[1].clone();
    let block = Block::from_payload(payload, &sidecar).unwrap();
    assert_eq!(sidecar.execution_requests, Some(Vec::new()));
    assert_eq!(block.header.requests_hash, Some(empty.into()));
}

/// Returns the payload with this list of transactions, read from JSON.
fn read_transactions(list: serde_json::Value) -> Result<Payload, serde_json::Error> {
    let mut json = serde_json::to_value(&DEMO.payloads[0].0)?;
    json["transactions"] = list;
    serde_json::from_value(json)
}

#[test]
fn transactions_are_read_from_strings_of_bytes_alone() {
    use serde_json::json;
    for wrong in [json!([[1, 2]]), json!(["c0"]), json!(["0xc"]), json!(["0xzz"]), json!([null])] {
        assert!(read_transactions(wrong.clone()).is_err(), "{wrong}");
    }
    let (valid, sidecar) = DEMO.payloads[0].clone();
    let list = json!(valid.transactions);
    assert_eq!(read_transactions(list).unwrap(), valid);
    // Entries after one that is too short for a transaction make no difference.
    let mut list = valid.transactions.clone();
    list.splice(1..1, [Bytes::new(), Bytes::from([0xc0])]);
    let read = read_transactions(json!(list)).unwrap();
    assert_eq!(read.transactions, list[..2]);
    for transactions in [list, read.transactions] {
        let error = Block::from_payload(Payload { transactions, ..valid.clone() }, &sidecar);
        let error = error.unwrap_err();
        assert!(matches!(error, BlockError::TransactionEncoding { index: 1, .. }), "{error}");
    }
}
