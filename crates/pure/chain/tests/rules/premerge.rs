use crate::common::raw;
use alloy_consensus::{
    EMPTY_OMMER_ROOT_HASH, EMPTY_ROOT_HASH, TxEip1559, TxEip2930, TxLegacy,
    proofs::{calculate_ommers_root, ordered_trie_root_encoded},
    transaction::SignerRecoverable,
};
use alloy_eips::eip1559::BaseFeeParams;
use alloy_primitives::{B256, Bytes, U256};
use alloy_rlp::Decodable;
use serde::Deserialize;
use std::collections::BTreeMap;
use tandem_chain::*;

#[derive(Deserialize)]
struct Pair {
    parent: Bytes,
    header: Bytes,
}

fn decode(rlp: &Bytes) -> Header {
    Header::decode(&mut rlp.as_ref()).unwrap()
}

/// Returns the first block of Homestead, Spurious Dragon and proof of stake, with their parents.
fn mainnet_pairs() -> BTreeMap<u64, (Header, Header)> {
    let json = include_str!("../data/mainnet-premerge-headers.json");
    let pairs: BTreeMap<u64, Pair> = serde_json::from_str(json).unwrap();
    pairs
        .into_iter()
        .map(|(number, pair)| (number, (decode(&pair.parent), decode(&pair.header))))
        .collect()
}

fn kind(result: Result<(), BlockError>) -> Result<(), &'static str> {
    result.map_err(|error| error.kind())
}

#[test]
fn headers_of_mainnet_follow_the_rules() {
    let spec = ChainSpec::for_chain_id(1).unwrap();
    for (number, (parent, header)) in mainnet_pairs() {
        assert_eq!(header.number, number);
        assert_eq!(validate_header(&spec, &header, &parent), Ok(()), "{number}");
    }
}

#[test]
fn each_header_rule_is_noticed_when_broken() {
    let spec = ChainSpec::for_chain_id(1).unwrap();
    let (parent, good) = mainnet_pairs().remove(&2_675_000).unwrap();
    type Breaker = fn(&mut Header);
    let broken: [(&str, Breaker); 10] = [
        ("parent_hash", |h| h.parent_hash = B256::ZERO),
        ("number", |h| h.number += 1),
        ("timestamp", |h| h.timestamp = 0),
        ("difficulty", |h| h.difficulty += U256::ONE),
        ("difficulty", |h| h.timestamp += 1000),
        ("gas_limit_change", |h| h.gas_limit *= 2),
        ("gas_used_over_limit", |h| h.gas_used = h.gas_limit + 1),
        ("extra_data_too_long", |h| h.extra_data = vec![0; 33].into()),
        ("unexpected_field", |h| h.base_fee_per_gas = Some(7)),
        ("unexpected_field", |h| h.withdrawals_root = Some(EMPTY_ROOT_HASH)),
    ];
    for (want, break_it) in broken {
        let mut header = good.clone();
        break_it(&mut header);
        assert_eq!(kind(validate_header(&spec, &header, &parent)), Err(want));
    }
}

#[test]
fn proof_of_work_does_not_come_back() {
    let spec = ChainSpec::for_chain_id(1).unwrap();
    let (parent, mut header) = mainnet_pairs().remove(&15_537_394).unwrap();
    header.difficulty = next_difficulty(&spec, &parent, header.timestamp);
    assert_eq!(kind(validate_header(&spec, &header, &parent)), Ok(()));
    let merged = Header { difficulty: U256::ZERO, ..parent };
    header.parent_hash = merged.hash_slow();
    assert_eq!(kind(validate_header(&spec, &header, &merged)), Err("difficulty"));
}

/// Returns a chain of proof of work with these forks.
fn chain(forks: &str) -> ChainSpec {
    let json = format!(
        r#"{{"config": {{"chainId": 1, "terminalTotalDifficulty": "0xffffffffffff" {forks}}},
            "gasLimit": 5000000, "difficulty": 131072}}"#
    );
    ChainSpec::from_genesis_json(&json).unwrap()
}

const ALL_FORKS: &str = r#", "homesteadBlock": 10, "eip150Block": 20, "eip158Block": 30,
    "byzantiumBlock": 40, "constantinopleBlock": 50, "istanbulBlock": 60, "muirGlacierBlock": 70,
    "berlinBlock": 80, "londonBlock": 90, "arrowGlacierBlock": 100, "grayGlacierBlock": 110"#;

#[test]
fn difficulty_moves_by_the_formula_of_its_fork() {
    let spec = chain(ALL_FORKS);
    let step = 1 << 20;
    let start = step * 2048;
    let next = |number: u64, elapsed, ommers| {
        let ommers_hash = if ommers { B256::ZERO } else { EMPTY_OMMER_ROOT_HASH };
        let difficulty = U256::from(start);
        let parent = Header { number: number - 1, difficulty, ommers_hash, ..Header::default() };
        let next: i64 = next_difficulty(&spec, &parent, elapsed).to();
        (next - start) / step
    };
    // Frontier: up below 13 seconds, else down.
    assert_eq!([1, 12, 13, 5000].map(|elapsed| next(5, elapsed, true)), [1, 1, -1, -1]);
    // Homestead: in steps of 10 seconds, down to -99.
    let times = [1, 9, 10, 19, 20, 1009, 100_000];
    assert_eq!(times.map(|elapsed| next(15, elapsed, true)), [1, 1, 0, 0, -1, -99, -99]);
    // Byzantium: in steps of 9 seconds, plus one if the parent has ommers.
    let times = [8, 9, 17, 18, 899, 909, 100_000];
    assert_eq!(times.map(|elapsed| next(45, elapsed, false)), [1, 0, 0, -1, -98, -99, -99]);
    assert_eq!(times.map(|elapsed| next(115, elapsed, true)), [2, 1, 1, 0, -97, -99, -99]);
}

#[test]
fn the_bomb_is_delayed_by_each_fork_that_says_so() {
    let bomb = |forks: &str, number: u64| {
        let ommers_hash = EMPTY_OMMER_ROOT_HASH;
        let difficulty = U256::from(131_072);
        let parent = Header { number: number - 1, difficulty, ommers_hash, ..Header::default() };
        next_difficulty(&chain(forks), &parent, 15) - difficulty
    };
    let two = |exponent: usize| U256::ONE << exponent;
    // In Frontier, 15 seconds cause a step down, which the minimum difficulty prevents.
    assert_eq!(bomb("", 199_999), U256::ZERO);
    assert_eq!(bomb("", 200_000), two(0));
    assert_eq!(bomb(r#", "homesteadBlock": 0"#, 300_000), two(1));
    let delays = [
        (r#", "byzantiumBlock": 0"#, 3_000_000),
        (r#", "constantinopleBlock": 0"#, 5_000_000),
        (r#", "constantinopleBlock": 0, "muirGlacierBlock": 0"#, 9_000_000),
        // A glacier that is omitted does not activate with the next fork.
        (r#", "berlinBlock": 0"#, 5_000_000),
        (r#", "londonBlock": 0"#, 9_700_000),
        (r#", "londonBlock": 0, "arrowGlacierBlock": 0"#, 10_700_000),
        (r#", "londonBlock": 0, "grayGlacierBlock": 0"#, 11_400_000),
    ];
    for (forks, delay) in delays {
        assert_eq!(bomb(forks, delay + 199_999), U256::ZERO, "{forks}");
        assert_eq!(bomb(forks, delay + 200_000), two(0), "{forks}");
        assert_eq!(bomb(forks, delay + 1_500_000), two(13), "{forks}");
    }
    assert_eq!(bomb("", u64::MAX), U256::MAX - U256::from(131_072));
}

/// Returns a valid empty header on top of this parent.
fn mined(spec: &ChainSpec, parent: &Header, seed: u8) -> Header {
    let timestamp = parent.timestamp + 10;
    Header {
        parent_hash: parent.hash_slow(),
        number: parent.number + 1,
        timestamp,
        gas_limit: parent.gas_limit,
        difficulty: next_difficulty(spec, parent, timestamp),
        extra_data: vec![seed].into(),
        ..Header::default()
    }
}

#[test]
fn the_first_block_of_london_may_hold_twice_as_much() {
    let spec = chain(r#", "londonBlock": 1"#);
    let genesis = spec.genesis_header(EMPTY_ROOT_HASH);
    let mut header = mined(&spec, &genesis, 0);
    header.base_fee_per_gas = Some(1_000_000_000);
    assert_eq!(kind(validate_header(&spec, &header, &genesis)), Err("gas_limit_change"));
    header.gas_limit *= 2;
    assert_eq!(kind(validate_header(&spec, &header, &genesis)), Ok(()));
    let without = Header { base_fee_per_gas: None, ..header.clone() };
    assert_eq!(kind(validate_header(&spec, &without, &genesis)), Err("missing_field"));
    let cheap = Header { base_fee_per_gas: Some(999_999_999), ..header };
    assert_eq!(kind(validate_header(&spec, &cheap, &genesis)), Err("base_fee"));
}

#[test]
fn ten_blocks_say_on_which_side_of_the_dao_fork_the_chain_is() {
    for support in [true, false] {
        let forks =
            format!(r#", "homesteadBlock": 0, "daoForkBlock": 5, "daoForkSupport": {support}"#);
        let spec = chain(&forks);
        for number in 1..20 {
            let genesis = spec.genesis_header(EMPTY_ROOT_HASH);
            let parent = Header { number: number - 1, ..genesis };
            let plain = mined(&spec, &parent, 0);
            let marked = Header { extra_data: b"dao-hard-fork"[..].into(), ..plain.clone() };
            let in_range = (5..15).contains(&number);
            let want = |ok: bool| if ok { Ok(()) } else { Err("dao_extra_data") };
            assert_eq!(kind(validate_header(&spec, &plain, &parent)), want(!in_range || !support));
            assert_eq!(kind(validate_header(&spec, &marked, &parent)), want(!in_range || support));
        }
    }
}

/// Wraps RLP items in a list.
fn list(items: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    let payload_length = items.iter().map(Vec::len).sum();
    alloy_rlp::Header { list: true, payload_length }.encode(&mut out);
    items.iter().for_each(|item| out.extend_from_slice(item));
    out
}

fn with_body(mut header: Header, transactions: &[Bytes], ommers: &[Header]) -> Vec<u8> {
    header.transactions_root = ordered_trie_root_encoded(transactions);
    header.ommers_hash = calculate_ommers_root(ommers);
    let wrapped = |raw: &Bytes| match raw[0] {
        0..0x80 => alloy_rlp::encode(raw),
        _ => raw.to_vec(),
    };
    let transactions: Vec<_> = transactions.iter().map(wrapped).collect();
    let ommers: Vec<_> = ommers.iter().map(alloy_rlp::encode).collect();
    list(&[alloy_rlp::encode(&header), list(&transactions), list(&ommers)])
}

#[test]
fn ommers_are_kept_and_compared_with_their_hash() {
    let spec = chain("");
    let genesis = spec.genesis_header(EMPTY_ROOT_HASH);
    let ommer = mined(&spec, &genesis, 1);
    let rlp = with_body(mined(&spec, &genesis, 0), &[], std::slice::from_ref(&ommer));
    let block = Block::from_rlp(&rlp).unwrap();
    assert_eq!((&block.ommers[..], block.rlp_len()), (&[ommer][..], rlp.len()));
    let again = Block::decode(block.header_rlp.clone(), block.body_rlp.clone());
    assert_eq!(again.as_ref(), Ok(&block));
    let other = list(&[block.header_rlp.to_vec(), list(&[]), list(&[])]);
    assert_eq!(kind(Block::from_rlp(&other).map(drop)), Err("ommers_hash"));
}

#[test]
fn ommers_are_recent_relatives_named_once() {
    let spec = chain(r#", "homesteadBlock": 0"#);
    let mut headers = vec![spec.genesis_header(EMPTY_ROOT_HASH)];
    for _ in 0..10 {
        let next = mined(&spec, headers.last().unwrap(), 0);
        headers.push(next);
    }
    let named = mined(&spec, &headers[6], 9);
    let ancestors: Vec<Ancestor> = headers
        .iter()
        .rev()
        .take(OMMER_GENERATIONS)
        .map(|header| Ancestor {
            hash: header.hash_slow(),
            header: header.clone(),
            ommers: if header.number == 9 { vec![named.hash_slow()] } else { vec![] },
        })
        .collect();
    let check = |ommers: &[Header]| {
        let rlp = with_body(mined(&spec, &headers[10], 0), &[], ommers);
        kind(validate_ommers(&spec, &Block::from_rlp(&rlp).unwrap(), &ancestors))
    };
    let ommer = |parent: usize| mined(&spec, &headers[parent], 1);
    assert_eq!(check(&[]), Ok(()));
    for parent in 4..10 {
        assert_eq!(check(&[ommer(parent)]), Ok(()), "{parent}");
    }
    assert_eq!(check(&[ommer(8), ommer(9)]), Ok(()));
    assert_eq!(check(&[ommer(7), ommer(8), ommer(9)]), Err("ommer_count"));
    assert_eq!(check(&[ommer(9), ommer(9)]), Err("ommer_repeated"));
    assert_eq!(check(std::slice::from_ref(&named)), Err("ommer_repeated"));
    assert_eq!(check(&headers[8..9]), Err("ommer_ancestor"));
    // A sibling of the block, and an ommer that is too old.
    assert_eq!(check(&[ommer(10)]), Err("ommer_parent"));
    assert_eq!(check(&[ommer(3)]), Err("ommer_parent"));
    let cheap = Header { difficulty: U256::ONE, ..ommer(8) };
    assert_eq!(check(&[cheap]), Err("ommer_header"));
    let merged = Header { difficulty: U256::ZERO, ..ommer(8) };
    assert_eq!(check(&[merged]), Err("ommer_header"));
    // As in the specification, headers are checked before number and kinship.
    let cheap = || Header { difficulty: U256::ONE, ..ommer(8) };
    assert_eq!(check(&[ommer(7), ommer(9), cheap()]), Err("ommer_header"));
    assert_eq!(check(&[ommer(9), ommer(9), cheap()]), Err("ommer_header"));
    assert_eq!(check(&[headers[8].clone(), cheap()]), Err("ommer_header"));
    assert_eq!(check(&[Header { difficulty: U256::ONE, ..ommer(10) }]), Err("ommer_header"));
    assert_eq!(check(&[ommer(9), ommer(9), ommer(10)]), Err("ommer_count"));
    assert_eq!(check(&[ommer(10), ommer(10)]), Err("ommer_repeated"));
}

#[test]
fn header_rules_are_checked_in_the_order_of_the_specification() {
    type Fault = (&'static str, fn(&mut Header));
    let before_london: [Fault; 7] = [
        ("gas_used_over_limit", |header| header.gas_used = u64::MAX),
        ("timestamp", |header| header.timestamp = 0),
        ("number", |header| header.number = 9),
        ("gas_limit_too_low", |header| header.gas_limit = 4_999),
        ("extra_data_too_long", |header| header.extra_data = [0; 33].into()),
        ("difficulty", |header| header.difficulty = U256::ONE),
        ("parent_hash", |header| header.parent_hash = B256::ZERO),
    ];
    let mut since_london = before_london.to_vec();
    let gas_limit = since_london.remove(3);
    since_london.insert(1, gas_limit);
    since_london.insert(2, ("base_fee", |header| header.base_fee_per_gas = Some(1)));
    let london = r#", "londonBlock": 0"#;
    for (forks, faults) in [("", before_london.to_vec()), (london, since_london)] {
        let spec = chain(forks);
        let genesis = spec.genesis_header(EMPTY_ROOT_HASH);
        for (first, (kind_of_first, _)) in faults.iter().enumerate() {
            let mut header = mined(&spec, &genesis, 0);
            header.base_fee_per_gas = genesis.next_block_base_fee(BaseFeeParams::ethereum());
            faults[first..].iter().for_each(|(_, break_rule)| break_rule(&mut header));
            let broken = kind(validate_header(&spec, &header, &genesis));
            assert_eq!(broken, Err(*kind_of_first), "{forks}");
        }
    }
}

#[test]
fn proof_of_work_ends_with_the_first_block_that_reaches_the_terminal_total_difficulty() {
    let json = r#"{"config": {"chainId": 1, "terminalTotalDifficulty": 300}, "gasLimit": 5000,
        "difficulty": 100}"#;
    let spec = ChainSpec::from_genesis_json(json).unwrap();
    let block =
        |difficulty: u64| Header { difficulty: U256::from(difficulty), ..Header::default() };
    let check = |header: u64, parent: u64, total: u64| {
        kind(check_terminal(&spec, &block(header), &block(parent), U256::from(total)))
    };
    assert_eq!(check(1, 100, 299), Ok(()));
    assert_eq!(check(1, 100, 300), Err("terminal_passed"));
    assert_eq!(check(0, 100, 299), Err("terminal_not_reached"));
    assert_eq!(check(0, 100, 300), Ok(()));
    assert_eq!(check(0, 100, 399), Ok(()));
    assert_eq!(check(0, 100, 400), Err("terminal_passed"));
    let zero = ChainSpec::from_genesis_json(&json.replace("300", "0")).unwrap();
    let genesis = zero.genesis_header(EMPTY_ROOT_HASH);
    let check = |header: u64, total: u64| {
        kind(check_terminal(&zero, &block(header), &genesis, U256::from(total)))
    };
    // Genesis ends proof of work before it began; a block of proof of work on top comes too late.
    assert_eq!(check(0, 100), Ok(()));
    assert_eq!(check(1, 100), Err("terminal_passed"));
    assert_eq!(check(0, 200), Err("terminal_passed"));
}

#[test]
fn transactions_are_those_that_the_fork_knows() {
    let spec = chain(ALL_FORKS);
    let validate = |number: u64, raw: &Bytes| {
        let header = Header { number, difficulty: U256::ONE, ..Header::default() };
        let block = Block::from_rlp(&with_body(header, std::slice::from_ref(raw), &[])).unwrap();
        kind(validate_body(&spec, &block))
    };
    let first_valid = |raw: Bytes, want: &'static str| {
        let results: Vec<_> = (0..12).map(|index| validate(index * 10, &raw)).collect();
        let first = results.iter().position(Result::is_ok).unwrap();
        assert!(results[..first].iter().all(|result| *result == Err(want)), "{results:?}");
        assert!(results[first..].iter().all(Result::is_ok), "{results:?}");
        first
    };
    let legacy = |chain_id| raw(TxLegacy { chain_id, ..Default::default() });
    assert_eq!(first_valid(legacy(None), ""), 0);
    assert_eq!(first_valid(legacy(Some(1)), "signature"), 3);
    let access_list = raw(TxEip2930 { chain_id: 1, ..Default::default() });
    assert_eq!(first_valid(access_list, "transaction_type"), 8);
    let dynamic_fee = raw(TxEip1559 { chain_id: 1, ..Default::default() });
    assert_eq!(first_valid(dynamic_fee, "transaction_type"), 9);
}

#[test]
fn a_high_s_was_valid_before_homestead() {
    use alloy_consensus::SignableTransaction;
    use alloy_eips::Encodable2718;
    use alloy_primitives::{Signature, uint};

    let order = uint!(0xfffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141_U256);
    let low = Signature::test_signature();
    let high = Signature::new(low.r(), order - low.s(), !low.v());
    let transaction = TxLegacy::default();
    let raw = Bytes::from(Transaction::from(transaction.into_signed(high)).encoded_2718());
    let spec = chain(ALL_FORKS);
    let block = |number| {
        let header = Header { number, difficulty: U256::ONE, ..Header::default() };
        Block::from_rlp(&with_body(header, std::slice::from_ref(&raw), &[])).unwrap()
    };
    assert_eq!(kind(validate_body(&spec, &block(9))), Ok(()));
    assert_eq!(kind(validate_body(&spec, &block(10))), Err("signature"));
    let low = Transaction::from(TxLegacy::default().into_signed(low)).recover_signer().unwrap();
    assert_eq!(recover_senders(&block(9)).unwrap(), [low]);
}
