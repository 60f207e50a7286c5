use crate::common::{child, payload, raw, rehash, spec_of, transfer};
use alloy_consensus::{
    BlockBody, EMPTY_ROOT_HASH, Signed, TxEip1559, TxEip2930, TxEip4844, TxEip7702, TxLegacy,
    proofs::calculate_transaction_root,
};
use alloy_eips::{
    Encodable2718,
    eip2930::{AccessList, AccessListItem},
    eip7702::{Authorization, SignedAuthorization},
};
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U256};
use alloy_rlp::Encodable;
use proptest::{collection::vec, prelude::*};
use tandem_chain::*;

fn u256() -> impl Strategy<Value = U256> {
    // Numbers of all bit lengths, so that every length of an RLP integer occurs.
    (any::<[u8; 32]>(), 0..256usize).prop_map(|(bytes, shift)| U256::from_be_bytes(bytes) >> shift)
}

fn u64s() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0..64u32).prop_map(|(number, shift)| number >> shift)
}

fn u128s() -> impl Strategy<Value = u128> {
    (any::<u128>(), 0..128u32).prop_map(|(number, shift)| number >> shift)
}

fn address() -> impl Strategy<Value = Address> {
    any::<[u8; 20]>().prop_map(Address::from)
}

fn hashes() -> impl Strategy<Value = Vec<B256>> {
    vec(any::<[u8; 32]>().prop_map(B256::from), 0..4)
}

fn kind() -> impl Strategy<Value = TxKind> {
    prop_oneof![Just(TxKind::Create), address().prop_map(TxKind::Call)]
}

fn access_list() -> impl Strategy<Value = AccessList> {
    let item = (address(), hashes())
        .prop_map(|(address, storage_keys)| AccessListItem { address, storage_keys });
    vec(item, 0..4).prop_map(AccessList)
}

fn authorizations() -> impl Strategy<Value = Vec<SignedAuthorization>> {
    let signed = (u256(), address(), u64s(), any::<u8>(), u256(), u256()).prop_map(
        |(chain_id, address, nonce, parity, r, s)| {
            let authorization = Authorization { chain_id, address, nonce };
            SignedAuthorization::new_unchecked(authorization, parity, r, s)
        },
    );
    vec(signed, 0..3)
}

prop_compose! {
    /// Generates a transaction of any type, legacy ones with and without a chain id (EIP-155).
    fn transaction()(
        ty in 0..6u8,
        (chain_id, nonce, gas_limit) in (u64s(), u64s(), u64s()),
        (fee, tip, blob_fee) in (u128s(), u128s(), u128s()),
        (kind, to, value) in (kind(), address(), u256()),
        input in vec(any::<u8>(), 0..300).prop_map(Bytes::from),
        access_list in access_list(),
        blob_versioned_hashes in hashes(),
        authorization_list in authorizations(),
        (r, s, parity) in (u256(), u256(), any::<bool>()),
    ) -> Transaction {
        let signature = Signature::new(r, s, parity);
        let (max_fee_per_gas, max_priority_fee_per_gas) = (fee, tip);
        match ty {
            0 | 1 => {
                let chain_id = (ty == 1).then_some(chain_id);
                let gas_price = fee;
                let tx = TxLegacy { chain_id, nonce, gas_price, gas_limit, to: kind, value, input };
                Signed::new_unhashed(tx, signature).into()
            }
            2 => Signed::new_unhashed(
                TxEip2930 { chain_id, nonce, gas_price: fee, gas_limit, to: kind, value, access_list, input },
                signature,
            ).into(),
            3 => Signed::new_unhashed(
                TxEip1559 { chain_id, nonce, gas_limit, max_fee_per_gas, max_priority_fee_per_gas,
                    to: kind, value, access_list, input },
                signature,
            ).into(),
            4 => Signed::new_unhashed(
                TxEip4844 { chain_id, nonce, gas_limit, max_fee_per_gas, max_priority_fee_per_gas, to,
                    value, access_list, blob_versioned_hashes, max_fee_per_blob_gas: blob_fee, input },
                signature,
            ).into(),
            _ => Signed::new_unhashed(
                TxEip7702 { chain_id, nonce, gas_limit, max_fee_per_gas, max_priority_fee_per_gas, to,
                    value, access_list, authorization_list, input },
                signature,
            ).into(),
        }
    }
}

fn withdrawals() -> impl Strategy<Value = Option<Vec<Withdrawal>>> {
    let withdrawal = (u64s(), u64s(), address(), u64s()).prop_map(
        |(index, validator_index, address, amount)| Withdrawal {
            index,
            validator_index,
            address,
            amount,
        },
    );
    prop::option::of(vec(withdrawal, 0..17))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_block_rewrapped_from_raw_bytes_is_the_one_that_alloy_encodes(
        transactions in vec(transaction(), 0..24),
        withdrawals in withdrawals(),
    ) {
        // The optional header fields that are present must follow each other without gaps.
        let spec = spec_of(if withdrawals.is_some() { Fork::Osaka } else { Fork::Paris });
        let header = child(&spec, &spec.genesis_header(EMPTY_ROOT_HASH));
        let raw = transactions.iter().map(|tx| tx.encoded_2718().into()).collect();
        let (mut payload, sidecar) = payload(&header, raw);
        payload.withdrawals = withdrawals.clone();
        let block = rehash(payload, &sidecar).unwrap();

        let body = BlockBody { transactions, ommers: vec![], withdrawals: withdrawals.map(Into::into) };
        let mut body_rlp = Vec::new();
        body.encode(&mut body_rlp);
        prop_assert_eq!(&block.body_rlp[..], &body_rlp[..]);
        prop_assert_eq!(block.header.transactions_root, calculate_transaction_root(&body.transactions));
        let hashes: Vec<B256> = body.transactions.iter().map(|tx| *tx.hash()).collect();
        prop_assert_eq!(&block.transaction_hashes[..], &hashes[..]);
        let whole = alloy_consensus::Block { header: block.header.clone(), body };
        let rlp = alloy_rlp::encode(&whole);
        prop_assert_eq!(block.rlp_len(), rlp.len());
        let from_rlp = Block::from_rlp(&rlp);
        prop_assert_eq!(from_rlp.as_ref(), Ok(&block));
        let decoded = Block::decode(block.header_rlp.clone(), block.body_rlp.clone());
        prop_assert_eq!(decoded.as_ref(), Ok(&block));
        prop_assert_eq!(block.transactions, whole.body.transactions);
    }

    #[test]
    fn no_two_byte_strings_decode_to_the_same_transaction(
        transaction in transaction(),
        position in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut raw = transaction.encoded_2718();
        let decoded = decode_transaction(&raw);
        prop_assert_eq!(decoded.as_ref(), Ok(&transaction));
        prop_assert!(decode_transaction(&raw[..raw.len() - 1]).is_err());
        let index = position.index(raw.len());
        raw[index] = byte;
        if let Ok(other) = decode_transaction(&raw) {
            prop_assert_eq!(other.encoded_2718(), raw.clone());
        }
        raw.push(byte);
        prop_assert!(decode_transaction(&raw).is_err() || raw[index] != byte);
    }

    #[test]
    fn broken_blocks_are_errors_not_panics(
        transactions in vec(transaction(), 0..4),
        position in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let spec = spec_of(Fork::Osaka);
        let header = child(&spec, &spec.genesis_header(EMPTY_ROOT_HASH));
        let raw = transactions.iter().map(|tx| tx.encoded_2718().into()).collect();
        let (payload, sidecar) = payload(&header, raw);
        let block = rehash(payload, &sidecar).unwrap();
        let mut body = block.body_rlp.to_vec();
        body[position.index(block.body_rlp.len())] = byte;
        if let Ok(other) = Block::decode(block.header_rlp.clone(), body.clone().into()) {
            prop_assert_eq!(&other.body_rlp[..], &body[..]);
            let (mut payload, mut sidecar) = Payload::from_block(&other);
            payload.block_hash = B256::ZERO;
            sidecar.execution_requests = Some(vec![]);
            // A body that decodes is the same when built from its parts.
            let again = rehash(payload, &sidecar).unwrap();
            prop_assert_eq!(&again.body_rlp[..], &body[..]);
        }
        let mut header = block.header_rlp.to_vec();
        header[position.index(block.header_rlp.len())] = byte;
        let _ = Block::decode(header.into(), block.body_rlp);
    }
}

fn list(items: &[&[u8]]) -> Vec<u8> {
    let payload_length = items.iter().map(|item| item.len()).sum();
    let mut out = Vec::new();
    alloy_rlp::Header { list: true, payload_length }.encode(&mut out);
    items.iter().for_each(|item| out.extend_from_slice(item));
    out
}

#[test]
fn the_pooled_form_of_a_blob_transaction_has_no_place_in_a_block() {
    let transaction = TxEip4844 { chain_id: 1, ..Default::default() };
    let canonical = raw(transaction);
    assert!(decode_transaction(&canonical).is_ok());
    let mut pooled = vec![3];
    pooled.extend(list(&[&canonical[1..], &[0xc0], &[0xc0], &[0xc0]]));
    assert!(decode_transaction(&pooled).is_err());
}

#[test]
fn a_blob_or_set_code_transaction_cannot_create() {
    let recipient = Address::repeat_byte(0xee);
    let blob = raw(TxEip4844 { chain_id: 1, to: recipient, ..Default::default() });
    let set_code = raw(TxEip7702 { chain_id: 1, to: recipient, ..Default::default() });
    for raw in [blob, set_code] {
        assert!(decode_transaction(&raw).is_ok());
        // The recipient's 21 bytes become the one byte of an empty string, as in a contract
        // creation.
        let encoded = [&[0x94][..], recipient.as_slice()].concat();
        let start = raw.windows(21).position(|window| window == encoded).unwrap();
        let fields = alloy_rlp::Header::decode_bytes(&mut &raw[1..], true).unwrap();
        let start = start - (raw.len() - fields.len());
        let mut creating = vec![raw[0]];
        creating.extend(list(&[&fields[..start], &[0x80], &fields[start + 21..]]));
        assert!(decode_transaction(&creating).is_err());
    }
}

#[test]
fn a_typed_envelope_around_a_legacy_transaction_is_refused() {
    let legacy = raw(TxLegacy { chain_id: Some(1), ..Default::default() });
    assert!(decode_transaction(&legacy).is_ok());
    let typed = [&[0][..], &legacy].concat();
    assert!(decode_transaction(&typed).is_err());
    // It may not be wrapped in a string inside a body either.
    let mut wrapped = Vec::new();
    legacy.encode(&mut wrapped);
    let body = list(&[&list(&[&wrapped]), &[0xc0]]);
    let header = alloy_rlp::encode(spec_of(Fork::Paris).genesis_header(EMPTY_ROOT_HASH));
    let error = Block::decode(header.into(), body.into()).unwrap_err();
    assert_eq!(error.kind(), "rlp");
}

#[test]
fn a_body_with_ommers_or_more_fields_is_refused() {
    let spec = spec_of(Fork::Paris);
    let header = Bytes::from(alloy_rlp::encode(spec.genesis_header(EMPTY_ROOT_HASH)));
    let kind = |body: Vec<u8>| {
        Block::decode(header.clone(), body.into()).map(drop).map_err(|error| error.kind())
    };
    let transactions = list(&[&raw(transfer()).iter().fold(
        vec![0xb8, raw(transfer()).len() as u8],
        |mut all, byte| {
            all.push(*byte);
            all
        },
    )]);
    assert_eq!(kind(list(&[&transactions, &[0xc0]])), Ok(()));
    assert_eq!(kind(list(&[&transactions, &list(&[&header])])), Err("ommers"));
    assert_eq!(kind(list(&[&transactions, &[0xc0], &[0xc0]])), Err("withdrawals_root"));
    assert_eq!(kind(list(&[&transactions, &[0xc0], &[0xc0], &[0xc0]])), Err("rlp"));
    assert_eq!(kind(list(&[&transactions])), Err("rlp"));
    assert_eq!(kind(vec![]), Err("rlp"));
}

#[test]
fn a_list_of_a_million_empty_transactions_ends_at_the_first() {
    let spec = spec_of(Fork::Paris);
    let header = Bytes::from(alloy_rlp::encode(spec.genesis_header(EMPTY_ROOT_HASH)));
    for (item, kind) in [(0xc0, "transaction_encoding"), (0x05, "unknown_type")] {
        let transactions = list(&[&vec![item; 1 << 20]]);
        let error = Block::decode(header.clone(), list(&[&transactions, &[0xc0]]).into());
        let error = error.unwrap_err();
        assert_eq!(error.kind(), kind);
    }
}
