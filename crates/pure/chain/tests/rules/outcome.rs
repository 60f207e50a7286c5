use crate::common::{child, payload, raw, rehash, spec_of, transfer};
use alloy_consensus::{
    EMPTY_ROOT_HASH, ReceiptEnvelope, TxReceipt, TxType, proofs::calculate_receipt_root,
};
use alloy_eips::eip7928::AccountChanges;
use alloy_evm::{EthEvmFactory, block::BlockExecutorFactory, eth::EthBlockExecutorFactory};
use alloy_primitives::{Address, B256, Bloom, Bytes, Log};
use alloy_rlp::Decodable;
use proptest::prelude::*;
use std::sync::LazyLock;
use tandem_chain::*;

fn log(topics: usize, data: Vec<u8>, seed: u8) -> Log {
    let topics = (0..topics).map(|topic| B256::repeat_byte(seed ^ topic as u8)).collect();
    Log::new_unchecked(Address::repeat_byte(seed), topics, data.into())
}

fn receipts() -> impl Strategy<Value = Vec<Receipt>> {
    let logs = prop::collection::vec(
        (0..5usize, prop::collection::vec(any::<u8>(), 0..90), any::<u8>()),
        0..4,
    )
    .prop_map(|logs| {
        logs.into_iter().map(|(topics, data, seed)| log(topics, data, seed)).collect()
    });
    let post_state = prop::option::of(any::<u8>().prop_map(B256::repeat_byte));
    let receipt = (0..5u8, any::<bool>(), any::<u64>(), logs, post_state).prop_map(
        |(ty, success, cumulative_gas_used, logs, post_state)| Receipt {
            tx_type: TxType::try_from(ty).unwrap(),
            success,
            cumulative_gas_used,
            logs,
            post_state,
        },
    );
    prop::collection::vec(receipt, 0..40)
}

fn envelope(receipt: &Receipt) -> ReceiptEnvelope {
    let Receipt { tx_type, cumulative_gas_used, logs, .. } = receipt.clone();
    let status = receipt.status_or_post_state();
    let alloys = alloy_consensus::Receipt { status, cumulative_gas_used, logs };
    ReceiptEnvelope::from_typed(tx_type, alloys.with_bloom())
}

proptest! {
    #[test]
    fn receipts_root_and_bloom_are_those_of_alloy(receipts in receipts()) {
        let envelopes: Vec<ReceiptEnvelope> = receipts.iter().map(envelope).collect();
        let bloom = envelopes.iter().fold(Bloom::ZERO, |all, receipt| all | *receipt.logs_bloom());
        prop_assert_eq!(receipts_root(&receipts), (calculate_receipt_root(&envelopes), bloom));
        let mut trie = ReceiptsTrie::default();
        receipts.iter().for_each(|receipt| trie.push(receipt));
        let (root, bloom, stored) = trie.finish();
        prop_assert_eq!((root, bloom), receipts_root(&receipts), "one after the other");
        prop_assert_eq!(stored, encode_receipts(&receipts));
    }

    #[test]
    fn receipts_survive_the_database(receipts in receipts()) {
        let mut bytes = encode_receipts(&receipts).to_vec();
        let decoded = decode_receipts(&bytes);
        prop_assert_eq!(decoded.as_ref(), Ok(&receipts));
        bytes.push(0);
        prop_assert!(decode_receipts(&bytes).is_err());
        prop_assert!(decode_receipts(&bytes[..bytes.len() - 2]).is_err());
    }

    #[test]
    fn receipts_for_peers_have_a_status_or_a_state_root(
        mut receipts in receipts(), root in prop::option::of(any::<[u8; 32]>()),
    ) {
        let root = root.map(B256::from);
        receipts.iter_mut().for_each(|receipt| receipt.post_state = root);
        let sent = network_receipts(&encode_receipts(&receipts)).unwrap();
        let mut items = alloy_rlp::Header::decode_bytes(&mut &sent[..], true).unwrap();
        for receipt in &receipts {
            let mut fields = alloy_rlp::Header::decode_bytes(&mut items, true).unwrap();
            prop_assert_eq!(u8::decode(&mut fields), Ok(receipt.tx_type as u8));
            match root {
                Some(root) => prop_assert_eq!(B256::decode(&mut fields), Ok(root)),
                None => prop_assert_eq!(bool::decode(&mut fields), Ok(receipt.success)),
            }
            prop_assert_eq!(u64::decode(&mut fields), Ok(receipt.cumulative_gas_used));
            prop_assert_eq!(Vec::<Log>::decode(&mut fields), Ok(receipt.logs.clone()));
            prop_assert!(fields.is_empty());
        }
        prop_assert!(items.is_empty());
    }
}

/// Returns a list of accounts without changes.
fn access_list(accounts: &[u8]) -> AccessList {
    let account = |n: &u8| AccountChanges::new(Address::repeat_byte(*n));
    let mut rlp = Vec::new();
    let list: Vec<_> = accounts.iter().map(account).collect();
    alloy_rlp::encode_list::<_, AccountChanges>(&list, &mut rlp);
    AccessList::decode(rlp.into()).unwrap()
}

#[test]
fn each_result_of_execution_is_compared_with_the_header() {
    let spec = spec_of(Fork::Amsterdam);
    let receipt = |gas, log| Receipt {
        tx_type: TxType::Eip1559,
        success: true,
        cumulative_gas_used: gas,
        logs: vec![log],
        post_state: None,
    };
    let receipts = [receipt(21_000, log(3, vec![1], 1)), receipt(42_000, log(0, vec![], 2))];
    let requests = Requests::new(vec![Bytes::from([0, 1, 2]), Bytes::from([2, 3])]);
    let list = access_list(&[1, 2]);
    let outcome = |receipts: &[Receipt]| {
        let (receipts_root, logs_bloom) = receipts_root(receipts);
        let (gas_used, blob_gas_used) = (42_000, 0);
        let (requests, access_list) = (&requests, Some(&list));
        Outcome { receipts_root, logs_bloom, gas_used, blob_gas_used, requests, access_list }
    };
    let good = outcome(&receipts);

    let mut header = child(&spec, &spec.genesis_header(EMPTY_ROOT_HASH));
    let bloom;
    (header.receipts_root, bloom) = receipts_root(&receipts);
    header.gas_used = 42_000;
    let (mut payload, mut sidecar) = payload(&header, vec![raw(transfer()), raw(transfer())]);
    payload.logs_bloom = bloom;
    sidecar.execution_requests = Some(requests.to_vec());
    payload.block_access_list = Some(list.rlp().clone());
    let block = rehash(payload, &sidecar).unwrap();
    assert_eq!(validate_outcome(&spec, &block, &good), Ok(()));

    let kind = |outcome: &Outcome<'_>| validate_outcome(&spec, &block, outcome).unwrap_err().kind();
    assert_eq!(kind(&Outcome { gas_used: 42_001, ..good }), "gas_used");
    assert_eq!(kind(&Outcome { blob_gas_used: 1, ..good }), "blob_gas_used");
    assert_eq!(kind(&Outcome { requests: &Requests::default(), ..good }), "requests_hash");
    let failed = [Receipt { success: false, ..receipts[0].clone() }, receipts[1].clone()];
    assert_eq!(kind(&outcome(&failed)), "receipts_root");
    let other_log = [receipt(21_000, log(2, vec![1], 1)), receipts[1].clone()];
    assert_eq!(kind(&outcome(&other_log)), "logs_bloom");
    for (accounts, difference) in [
        (&[1][..], "execution does not access account 0x0202020202020202020202020202020202020202"),
        (&[2], "execution does not access account 0x0101010101010101010101010101010101010101"),
        (&[1, 2, 3], "account 0x0303030303030303030303030303030303030303 is missing"),
        (&[0, 1, 2], "account 0x0000000000000000000000000000000000000000 is missing"),
    ] {
        let list = access_list(accounts);
        let other = Outcome { access_list: Some(&list), ..good };
        let error = validate_outcome(&spec, &block, &other).unwrap_err();
        assert_eq!(error.kind(), "access_list");
        assert!(error.to_string().ends_with(difference), "{error}");
    }
    // 2,000 gas an item.
    let long = access_list(&[7; 15_001]);
    assert_eq!(kind(&Outcome { access_list: Some(&long), ..good }), "access_list_too_long");
}

#[test]
fn alloys_block_executor_takes_our_types() {
    fn executes<F>(_: F)
    where
        F: BlockExecutorFactory<Transaction = Transaction, Receipt = Receipt>,
    {
    }
    static SPEC: LazyLock<ChainSpec> = LazyLock::new(|| spec_of(Fork::Osaka));
    let rules = SPEC.rules(&SPEC.genesis_header(EMPTY_ROOT_HASH));
    executes(EthBlockExecutorFactory::new(ReceiptBuilder, rules, EthEvmFactory::default()));
}
