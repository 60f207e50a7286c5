use crate::common::{DEMO, EMPTY_LIST, genesis_json, spec, spec_of};
use alloy_consensus::{EMPTY_ROOT_HASH, constants::MAINNET_GENESIS_HASH};
use alloy_evm::eth::spec::EthExecutorSpec;
use alloy_hardforks::{EthereumHardfork, EthereumHardforks, ForkCondition};
use alloy_primitives::{Address, B64, U256, b256, keccak256};
use tandem_chain::*;

fn error(json: &str) -> GenesisError {
    ChainSpec::from_genesis_json(json).unwrap_err()
}

fn config_error(config: &str) -> String {
    error(&genesis_json(config)).to_string()
}

#[test]
fn genesis_hashes_are_those_of_geth() {
    assert_eq!(
        DEMO.genesis.hash_slow(),
        b256!("0x973e09a5071160bad48ea3620c84cf600e1ccbbdf6172f141eed12ba0b4efdd1")
    );
    // Mainnet, whose genesis has none of the later fields.
    let json = r#"{"config": {"chainId": 1, "londonBlock": 12965000, "shanghaiTime": 1681338455,
        "terminalTotalDifficulty": 58750000000000000000000,
        "terminalTotalDifficultyPassed": true}, "nonce": "0x42",
        "extraData": "0x11bbe8db4e347b4e8c937c1c8370e4b5ed33adb3db69cbdb7a38e1e50b1b82fa",
        "gasLimit": "5000", "difficulty": 17179869184, "alloc": {"not": ["read", {}]}}"#;
    let spec = ChainSpec::from_genesis_json(json).unwrap();
    let state_root = b256!("0xd7f8974fb5ac78d9ac099b9ad5018bedc2ce0a72dad1827a1709da30580f0544");
    let header = spec.genesis_header(state_root);
    assert_eq!(header.hash_slow(), MAINNET_GENESIS_HASH);
    assert_eq!(header.nonce, B64::with_last_byte(0x42));
    assert_eq!(spec.fork_at(1681338454), Fork::Paris);
    assert_eq!(spec.fork_at(1681338455), Fork::Shanghai);
}

#[test]
fn the_genesis_header_has_the_fields_of_its_fork() {
    for fork in Fork::MERGED {
        let header = spec_of(fork).genesis_header(EMPTY_ROOT_HASH);
        assert_eq!(header.base_fee_per_gas, Some(1_000_000_000));
        assert_eq!(header.withdrawals_root.is_some(), fork >= Fork::Shanghai);
        assert_eq!(header.blob_gas_used, (fork >= Fork::Cancun).then_some(0));
        assert_eq!(header.excess_blob_gas, (fork >= Fork::Cancun).then_some(0));
        assert_eq!(header.parent_beacon_block_root.is_some(), fork >= Fork::Cancun);
        assert_eq!(header.requests_hash.is_some(), fork >= Fork::Prague);
        let amsterdam = fork >= Fork::Amsterdam;
        assert_eq!(header.block_access_list_hash, amsterdam.then(|| keccak256(EMPTY_LIST)));
        assert_eq!(header.slot_number, amsterdam.then_some(0));
    }
}

#[test]
fn forks_activate_at_their_times() {
    let spec =
        spec(r#""shanghaiTime": 10, "cancunTime": "0x14", "pragueTime": "30", "osakaTime": 30"#);
    let times = [0, 9, 10, 19, 20, 29, 30, u64::MAX];
    let want = [
        Fork::Paris,
        Fork::Paris,
        Fork::Shanghai,
        Fork::Shanghai,
        Fork::Cancun,
        Fork::Cancun,
        Fork::Osaka,
        Fork::Osaka,
    ];
    assert_eq!(times.map(|time| spec.fork_at(time)), want);
    assert_eq!(spec.blob_params_at(19), None);
    assert_eq!(spec.blob_params_at(20), Some(BlobParams::cancun()));
    assert_eq!(spec.blob_params_at(30), Some(BlobParams::osaka()));
    // The rules as alloy-evm sees them.
    let header = spec.genesis_header(EMPTY_ROOT_HASH);
    let activation = |fork| spec.rules(&header).ethereum_fork_activation(fork);
    assert_eq!(activation(EthereumHardfork::Cancun), ForkCondition::Timestamp(20));
    assert_eq!(activation(EthereumHardfork::London), ForkCondition::ZERO_BLOCK);
    assert_eq!(activation(EthereumHardfork::Paris), ForkCondition::ZERO_BLOCK);
    assert_eq!(activation(EthereumHardfork::Dao), ForkCondition::Never);
    assert_eq!(activation(EthereumHardfork::Bpo1), ForkCondition::Never);
    assert_eq!(activation(EthereumHardfork::Amsterdam), ForkCondition::Never);
    assert_eq!(spec.rules(&header).deposit_contract_address(), Some(Address::ZERO));
    assert_ne!(DEMO.spec.deposit_contract(), Address::ZERO);
}

#[test]
fn what_is_missing_or_malformed_is_named() {
    assert!(matches!(error("nonsense"), GenesisError::Json(_)));
    assert!(matches!(error("[]"), GenesisError::Json(_)));
    let missing = |json: &str, path: &str| {
        assert_eq!(error(json), GenesisError::Missing { field: path.to_owned() });
    };
    let good = genesis_json("");
    missing("{}", "config");
    missing(&good.replace(r#""chainId": 1, "#, ""), "config.chainId");
    let no_terminal = good.replace(r#", "terminalTotalDifficulty": 0"#, "");
    missing(&no_terminal, "config.terminalTotalDifficulty");
    missing(&good.replace("gasLimit", "limit"), "gasLimit");
    missing(&good.replace(r#"difficulty": "0x0""#, r#"difficulty": null"#), "difficulty");
    let malformed = |json: &str, path: &str| match error(json) {
        GenesisError::Field { field, .. } => assert_eq!(field, path),
        other => panic!("{other}"),
    };
    malformed(&good.replace(r#""0x1c9c380""#, r#""0x10000000000000000""#), "gasLimit");
    malformed(&good.replace(r#""0x1c9c380""#, r#""-1""#), "gasLimit");
    malformed(&good.replace(r#""0x1c9c380""#, "1.5"), "gasLimit");
    malformed(&good.replace(r#""chainId": 1"#, r#""chainId": {}"#), "config.chainId");
    malformed(&genesis_json(r#""blobSchedule": []"#), "config.blobSchedule");
    malformed(
        &genesis_json(r#""depositContractAddress": "0x12""#),
        "config.depositContractAddress",
    );
}

#[test]
fn forks_out_of_order_are_refused() {
    let at = config_error(r#""shanghaiTime": 10, "cancunTime": 5"#);
    assert!(at.contains("cancun is scheduled at 5") && at.contains("shanghai, is at 10"), "{at}");
    let without = config_error(r#""cancunTime": 5"#);
    assert!(without.contains("shanghai, is not scheduled"), "{without}");
    let blob_fork = config_error(
        r#""bpo1Time": 5, "blobSchedule": {"bpo1": {"target": 1, "max": 1, "baseFeeUpdateFraction": 1}}"#,
    );
    assert!(blob_fork.contains("osaka, is not scheduled"), "{blob_fork}");
    let amsterdam = config_error(r#""amsterdamTime": 5"#);
    assert!(amsterdam.contains("osaka, is not scheduled"), "{amsterdam}");
}

#[test]
fn blob_forks_come_before_and_after_amsterdam() {
    let entry = |max: u64| format!(r#"{{"target": 1, "max": {max}, "baseFeeUpdateFraction": 1}}"#);
    let with = |amsterdam: &str| {
        spec(&format!(
            r#""shanghaiTime": 0, "cancunTime": 0, "pragueTime": 0, "osakaTime": 0, "bpo1Time": 10,
                "amsterdamTime": 20, "bpo2Time": 30,
                "blobSchedule": {{"bpo1": {}, "bpo2": {} {amsterdam}}}"#,
            entry(11),
            entry(31),
        ))
    };
    let max_at = |spec: &ChainSpec| {
        [9, 10, 20, 30].map(|time| spec.blob_params_at(time).unwrap().max_blob_count)
    };
    let inherits = with("");
    assert_eq!(max_at(&inherits), [9, 11, 11, 31]);
    let own = with(&format!(r#", "amsterdam": {}"#, entry(21)));
    assert_eq!(max_at(&own), [9, 11, 21, 31]);
    assert_eq!(own.blob_params_at(20).unwrap().max_blobs_per_tx, 6);
    assert_eq!(
        [19, 20, 30].map(|time| own.fork_at(time)),
        [Fork::Osaka, Fork::Amsterdam, Fork::Amsterdam]
    );
    assert_eq!(own.fork_points().times, [0, 10, 20, 30]);
    let blob_fork = |timestamp| own.blob_fork_of(&Header { timestamp, ..Header::default() });
    assert_eq!([9, 10, 20, 30].map(blob_fork), [None, Some(1), None, Some(2)]);
    let header = own.genesis_header(EMPTY_ROOT_HASH);
    let activation = own.rules(&header).ethereum_fork_activation(EthereumHardfork::Amsterdam);
    assert_eq!(activation, ForkCondition::Timestamp(20));
}

#[test]
fn blob_parameters_that_make_no_sense_are_refused() {
    let forks = r#""shanghaiTime": 0, "cancunTime": 0, "pragueTime": 0, "osakaTime": 0"#;
    let entry = |target: u64, max: u64, fraction: u64| {
        format!(
            r#"{forks}, "blobSchedule": {{"cancun": {{"target": {target}, "max": {max},
                "baseFeeUpdateFraction": {fraction}}}}}"#
        )
    };
    spec(&entry(3, 6, 1));
    for (target, max, fraction) in [(0, 0, 1), (7, 6, 1), (3, 6, 0), (1, 1 << 40, 1)] {
        assert!(config_error(&entry(target, max, fraction)).contains("blobSchedule.cancun"));
    }
    let missing = config_error(&format!(r#"{forks}, "bpo1Time": 5"#));
    assert_eq!(missing, "genesis: config.blobSchedule.bpo1 is missing");
}

#[test]
fn forks_of_proof_of_work_activate_at_their_blocks() {
    let spec = spec(
        r#""homesteadBlock": 0, "eip150Block": 6, "eip158Block": 12, "byzantiumBlock": 18,
        "constantinopleBlock": 24, "petersburgBlock": 30, "istanbulBlock": 36,
        "muirGlacierBlock": 42, "berlinBlock": 48, "londonBlock": 54, "arrowGlacierBlock": 60,
        "grayGlacierBlock": 66, "shanghaiTime": 5"#,
    );
    let header = |number, difficulty: u64| Header {
        number,
        timestamp: 10,
        difficulty: U256::from(difficulty),
        ..Header::default()
    };
    assert_eq!(spec.fork_of(&header(0, 131_072)), Fork::Homestead);
    for (index, fork) in Fork::ALL[2..13].iter().enumerate() {
        let number = 6 * (index as u64 + 1);
        assert_eq!(spec.fork_of(&header(number - 1, 131_072)), Fork::ALL[index + 1]);
        assert_eq!(spec.fork_of(&header(number, 131_072)), *fork);
        // The block itself shows whether the merge has happened.
        assert_eq!(spec.fork_of(&header(number, 0)), Fork::Shanghai);
    }
    let rules = |header: Header, fork| {
        let rules = spec.rules(&header);
        (rules.is_ethereum_fork_active_at_block(fork, 29), rules.ethereum_fork_activation(fork))
    };
    let before = header(29, 131_072);
    assert!(rules(before.clone(), EthereumHardfork::Constantinople).0);
    assert!(!rules(before.clone(), EthereumHardfork::Petersburg).0);
    assert_eq!(rules(before.clone(), EthereumHardfork::Paris).1, ForkCondition::Never);
    assert_eq!(rules(before, EthereumHardfork::Shanghai).1, ForkCondition::Never);
    assert!(rules(header(29, 0), EthereumHardfork::Petersburg).0);
}

#[test]
fn forks_that_the_file_leaves_out_come_with_the_next_one() {
    let json = |difficulty: u64, forks: &str| {
        let json = format!(
            r#"{{"config": {{"chainId": 1, "terminalTotalDifficulty": 1000000 {forks}}},
                "gasLimit": 5000, "difficulty": {difficulty}}}"#
        );
        ChainSpec::from_genesis_json(&json).unwrap()
    };
    let fork = |spec: &ChainSpec, number| {
        spec.fork_of(&Header { number, difficulty: U256::from(1), ..Header::default() })
    };
    let london = json(131_072, r#", "homesteadBlock": 3, "londonBlock": 7"#);
    assert_eq!([2, 3, 6, 7].map(|number| fork(&london, number)), {
        [Fork::Frontier, Fork::Homestead, Fork::Homestead, Fork::London]
    });
    // Petersburg undoes a part of Constantinople and activates with it when it is not named.
    let petersburg = json(131_072, r#", "constantinopleBlock": 3, "istanbulBlock": 7"#);
    assert_eq!([2, 3, 7].map(|number| fork(&petersburg, number)), {
        [Fork::Frontier, Fork::Petersburg, Fork::Istanbul]
    });
    assert_eq!(fork(&json(131_072, ""), u64::MAX), Fork::Frontier);
    assert_eq!(fork(&json(1_000_000, ""), 0), Fork::London);
    assert_eq!(json(1, "").terminal_total_difficulty(), U256::from(1_000_000));
    assert_eq!(json(1, "").dao_fork(), None);
    let dao = json(1, r#", "daoForkBlock": 5, "daoForkSupport": true"#);
    assert_eq!(dao.dao_fork(), Some(DaoFork { block: 5, support: true }));
}

#[test]
fn forks_of_proof_of_work_out_of_order_are_refused() {
    let order = config_error(r#""byzantiumBlock": 10, "istanbulBlock": 5"#);
    assert!(order.contains("istanbul is scheduled at 5") && order.contains("byzantium, is at 10"));
    let split = config_error(r#""eip155Block": 10, "eip158Block": 11"#);
    assert!(split.contains("config.eip155Block"), "{split}");
}

#[test]
fn an_unknown_fork_is_an_error_only_once_it_is_active() {
    let later = spec(r#""laterTime": 200, "bogotaTime": 100, "someTime": null"#);
    let want = UnsupportedFork { name: "bogota".to_owned(), time: 100 };
    assert_eq!(later.unsupported_fork(), Some(&want));
    assert_eq!(spec("").unsupported_fork(), None);
    let active = error(&genesis_json(r#""bogotaTime": 0"#));
    assert_eq!(active, GenesisError::UnsupportedFork { name: "bogota".to_owned() });
}

#[test]
fn what_a_file_says_at_length_is_not_repeated() {
    let long = "\u{7f}".repeat(1 << 16);
    for error in [
        config_error(&format!(r#""terminalTotalDifficulty": 0, "osakaTime": "{long}""#)),
        config_error(&format!(r#""terminalTotalDifficulty": 0, "blobSchedule": "{long}""#)),
        config_error(&format!(
            r#""terminalTotalDifficulty": 0, "depositContractAddress": "{long}""#
        )),
    ] {
        assert!(error.len() < 1024, "{} bytes", error.len());
    }
    let members: String = (0..2000).map(|index| format!(r#""a{index}": 1,"#)).collect();
    let error = config_error(&format!("{members} \"terminalTotalDifficulty\": 0"));
    assert!(error.contains("more than 1024 members"), "{error}");
}
