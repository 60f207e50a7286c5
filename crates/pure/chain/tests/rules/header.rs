use crate::common::{DEMO, child, rehash, spec, spec_of};
use alloy_consensus::EMPTY_ROOT_HASH;
use alloy_eips::{eip4844::DATA_GAS_PER_BLOB, eip7685::EMPTY_REQUESTS_HASH};
use alloy_primitives::{B64, B256, Bytes, U256};
use tandem_chain::*;

#[test]
fn every_block_that_geth_built_follows_the_rules() {
    let mut parent = DEMO.genesis.clone();
    for (payload, sidecar) in &DEMO.payloads {
        let block = Block::from_payload(payload.clone(), sidecar).unwrap();
        validate_header(&DEMO.spec, &block.header, &parent).unwrap();
        validate_body(&DEMO.spec, &block).unwrap();
        assert_eq!(recover_senders(&block).unwrap().len(), block.transactions.len());
        parent = block.header;
    }
    assert_eq!(DEMO.payloads.len(), 64);
}

#[test]
fn each_header_rule_is_noticed_when_broken() {
    let (payload, sidecar) = DEMO.payloads[0].clone();
    let good = rehash(payload, &sidecar).unwrap().header;
    let parent = &DEMO.genesis;
    let limit_step = parent.gas_limit / 1024;
    let (time, fee) = (parent.timestamp, good.base_fee_per_gas.unwrap());
    type Mutation = (&'static str, Box<dyn Fn(&mut Header)>);
    let mutation = |kind, mutate: fn(&mut Header)| -> Mutation { (kind, Box::new(mutate)) };
    let mutations: Vec<Mutation> = vec![
        mutation("parent_hash", |header| header.parent_hash = B256::ZERO),
        mutation("number", |header| header.number = 0),
        mutation("number", |header| header.number = 2),
        ("timestamp", Box::new(move |header| header.timestamp = time)),
        ("timestamp", Box::new(move |header| header.timestamp = time - 1)),
        ("gas_limit_change", Box::new(move |header| header.gas_limit += limit_step)),
        ("gas_limit_change", Box::new(move |header| header.gas_limit -= limit_step)),
        mutation("gas_limit_too_low", |header| header.gas_limit = 4_999),
        mutation("gas_limit_too_high", |header| header.gas_limit = 1 << 63),
        mutation("gas_used_over_limit", |header| header.gas_used = header.gas_limit + 1),
        mutation("extra_data_too_long", |header| header.extra_data = Bytes::from([0; 33])),
        mutation("difficulty", |header| header.difficulty = U256::from(1)),
        mutation("nonce", |header| header.nonce = B64::with_last_byte(1)),
        mutation("ommers_hash", |header| header.ommers_hash = B256::ZERO),
        ("base_fee", Box::new(move |header| header.base_fee_per_gas = Some(fee + 1))),
        ("base_fee", Box::new(move |header| header.base_fee_per_gas = Some(fee - 1))),
        mutation("blob_gas_over_limit", |header| {
            header.blob_gas_used = Some(10 * DATA_GAS_PER_BLOB);
        }),
        mutation("excess_blob_gas", |header| {
            header.excess_blob_gas = Some(DATA_GAS_PER_BLOB);
        }),
    ];
    for (kind, mutate) in mutations {
        let mut header = good.clone();
        mutate(&mut header);
        let error = validate_header(&DEMO.spec, &header, parent).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
    validate_header(&DEMO.spec, &good, parent).unwrap();
}

#[test]
fn the_largest_gas_limit_steps_that_the_rule_allows_pass() {
    let spec = spec_of(Fork::Osaka);
    let parent = spec.genesis_header(EMPTY_ROOT_HASH);
    let step = parent.gas_limit / 1024 - 1;
    for gas_limit in [parent.gas_limit + step, parent.gas_limit - step] {
        let header = Header { gas_limit, ..child(&spec, &parent) };
        validate_header(&spec, &header, &parent).unwrap();
    }
}

#[test]
fn a_header_has_exactly_the_fields_of_its_fork() {
    type Field = (HeaderField, Fork, fn(&mut Header) -> bool);
    /// Sets a missing field and removes a present one. Returns whether it was present.
    fn toggle<T>(field: &mut Option<T>, value: T) -> bool {
        let present = field.is_some();
        *field = if present { None } else { Some(value) };
        present
    }
    let fields: [Field; 8] = [
        (HeaderField::BaseFeePerGas, Fork::Paris, |h| toggle(&mut h.base_fee_per_gas, 7)),
        (HeaderField::WithdrawalsRoot, Fork::Shanghai, |h| {
            toggle(&mut h.withdrawals_root, EMPTY_ROOT_HASH)
        }),
        (HeaderField::BlobGasUsed, Fork::Cancun, |h| toggle(&mut h.blob_gas_used, 0)),
        (HeaderField::ExcessBlobGas, Fork::Cancun, |h| toggle(&mut h.excess_blob_gas, 0)),
        (HeaderField::ParentBeaconBlockRoot, Fork::Cancun, |h| {
            toggle(&mut h.parent_beacon_block_root, B256::ZERO)
        }),
        (HeaderField::RequestsHash, Fork::Prague, |h| {
            toggle(&mut h.requests_hash, EMPTY_REQUESTS_HASH)
        }),
        (HeaderField::BlockAccessListHash, Fork::Amsterdam, |h| {
            toggle(&mut h.block_access_list_hash, B256::ZERO)
        }),
        (HeaderField::SlotNumber, Fork::Amsterdam, |h| toggle(&mut h.slot_number, 1)),
    ];
    for fork in Fork::MERGED {
        let spec = spec_of(fork);
        let parent = spec.genesis_header(EMPTY_ROOT_HASH);
        let good = child(&spec, &parent);
        validate_header(&spec, &good, &parent).unwrap();
        for (field, since, toggle) in fields {
            let mut header = good.clone();
            let present = toggle(&mut header);
            assert_eq!(present, fork >= since, "{fork} {field}");
            let want = match present {
                true => BlockError::MissingField { field, fork },
                false => BlockError::UnexpectedField { field, fork },
            };
            assert_eq!(validate_header(&spec, &header, &parent), Err(want));
        }
    }
}

/// Returns the excess blob gas after a parent with these blobs, at this base fee and time.
fn excess_after(spec: &ChainSpec, excess: u64, blobs: u64, base_fee: u64, time: u64) -> u64 {
    let parent = Header {
        timestamp: time - 12,
        gas_limit: 30_000_000,
        gas_used: 15_000_000,
        base_fee_per_gas: Some(base_fee),
        excess_blob_gas: Some(excess * DATA_GAS_PER_BLOB),
        blob_gas_used: Some(blobs * DATA_GAS_PER_BLOB),
        ..spec.genesis_header(EMPTY_ROOT_HASH)
    };
    let header = Header { excess_blob_gas: Some(u64::MAX), ..child(spec, &parent) };
    match validate_header(spec, &header, &parent) {
        Err(BlockError::ExcessBlobGas { got: u64::MAX, want }) => want,
        other => panic!("{other:?}"),
    }
}

#[test]
fn excess_blob_gas_follows_the_schedule_of_the_block_not_of_its_parent() {
    let schedule = r#""shanghaiTime": 0, "cancunTime": 0, "pragueTime": 1000, "osakaTime": 2000,
        "bpo1Time": 3000, "bpo2Time": 4000, "blobSchedule": {
            "cancun": {"target": 3, "max": 6, "baseFeeUpdateFraction": 3338477},
            "prague": {"target": 6, "max": 9, "baseFeeUpdateFraction": 5007716},
            "osaka": {"target": 6, "max": 9, "baseFeeUpdateFraction": 5007716},
            "bpo1": {"target": 10, "max": 15, "baseFeeUpdateFraction": 8346193},
            "bpo2": {"target": 14, "max": 21, "baseFeeUpdateFraction": 11684671}}"#;
    let spec = spec(schedule);
    let blobs = |count: u64| count * DATA_GAS_PER_BLOB;
    // EIP-4844: excess + used - target, at least 0.
    assert_eq!(excess_after(&spec, 5, 6, 7, 500), blobs(8));
    assert_eq!(excess_after(&spec, 0, 2, 7, 500), 0);
    // EIP-7691: the first block of Prague already counts with Prague's target.
    assert_eq!(excess_after(&spec, 5, 6, 7, 999), blobs(8));
    assert_eq!(excess_after(&spec, 5, 6, 7, 1000), blobs(5));
    // EIP-7918: at a base fee of 7 wei, blobs pay more than the reserve price …
    assert_eq!(excess_after(&spec, 5, 9, 7, 2000), blobs(8));
    // … at 1 gwei they pay less, and the excess grows by a third of the gas used.
    assert_eq!(excess_after(&spec, 5, 9, 1_000_000_000, 1999), blobs(8));
    assert_eq!(excess_after(&spec, 5, 9, 1_000_000_000, 2000), blobs(5 + 9 / 3));
    assert_eq!(excess_after(&spec, 5, 3, 1_000_000_000, 2000), blobs(5 + 3 / 3));
    // EIP-7892: blob parameter forks.
    assert_eq!(excess_after(&spec, 5, 9, 7, 3000), blobs(4));
    assert_eq!(excess_after(&spec, 5, 15, 1_000_000_000, 3000), blobs(5 + 15 / 3));
    assert_eq!(excess_after(&spec, 5, 15, 7, 4000), blobs(6));
    let limits = [999, 1000, 2000, 3000, 4000].map(|time| spec.blob_params_at(time).unwrap());
    assert_eq!(limits.map(|params| params.max_blob_count), [6, 9, 9, 15, 21]);
    let blob_fork = |timestamp| spec.blob_fork_of(&Header { timestamp, ..Header::default() });
    assert_eq!([2999, 3000, 3999, 4000].map(blob_fork), [None, Some(1), Some(1), Some(2)]);
    assert_eq!(limits.map(|params| params.max_blobs_per_tx), [6, 9, 6, 6, 6]);
}

#[test]
fn blob_gas_starts_at_zero_in_the_first_block_of_cancun() {
    let spec = spec(r#""shanghaiTime": 0, "cancunTime": 12"#);
    let parent = spec.genesis_header(EMPTY_ROOT_HASH);
    assert_eq!(parent.excess_blob_gas, None);
    let header = child(&spec, &parent);
    validate_header(&spec, &header, &parent).unwrap();
    let header = Header { excess_blob_gas: Some(1), ..header };
    let want = BlockError::ExcessBlobGas { got: 1, want: 0 };
    assert_eq!(validate_header(&spec, &header, &parent), Err(want));
}

#[test]
fn blocks_of_an_unknown_fork_are_refused_from_its_activation_on() {
    let spec = spec(
        r#""shanghaiTime": 0, "cancunTime": 0, "pragueTime": 0, "osakaTime": 0,
        "amsterdamTime": 0, "bogotaTime": 24, "laterTime": 100"#,
    );
    let genesis = spec.genesis_header(EMPTY_ROOT_HASH);
    let before = child(&spec, &genesis);
    validate_header(&spec, &before, &genesis).unwrap();
    let at = child(&spec, &before);
    let want = BlockError::UnsupportedFork { fork: "bogota".to_owned(), time: 24 };
    assert_eq!(validate_header(&spec, &at, &before), Err(want));
}
