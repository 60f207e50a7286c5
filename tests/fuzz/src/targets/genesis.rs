//! Genesis files: the state of `alloc`, then the chain that the rest describes.

use crate::{Target, heap, seeds::FORKS, structures};
use alloy_primitives::B256;
use serde_json::Value;
use tandem_chain::ChainSpec;
use tandem_storage_writer::read_genesis;

/// Target for genesis files.
pub const TARGET: Target = Target {
    name: "genesis",
    bytes_per_byte: 4,
    structures: structures::none,
    constant: 6 << 10,
    input_len_max: 32 << 10,
    mutations: 20_000,
    seeds,
    dictionary: &[
        b"null",
        b"{}",
        b"[]",
        b"\"0x\"",
        b"\"\"",
        b"0",
        b"-1",
        b"1e400",
        b"\"alloc\":",
        b"\"config\":",
        b"\"blobSchedule\":",
        b"\"osakaTime\":",
        b"\"bpo1Time\":",
        b"\"londonBlock\":",
        b"\"storage\":",
        b"\"target\":",
        b"\"max\":",
        b"\"baseFeeUpdateFraction\":",
        b"18446744073709551615",
        b"\"amsterdamTime\":",
        b"\"terminalTotalDifficulty\":0,",
        b"\"\\u0000\":",
        b"[[[[[[[[",
    ],
    run: read,
};

fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for chain in FORKS.iter() {
        let mut file: Value = serde_json::from_str(&chain.genesis).unwrap();
        // A few accounts suffice.
        let alloc = file["alloc"].as_object_mut().unwrap();
        let mut kept = 0;
        alloc.retain(|_, account| {
            let small = account.to_string().len() < 600;
            kept += usize::from(small);
            small && kept <= 4
        });
        seeds.push(file.to_string().into_bytes());
    }
    seeds.push(
        br#"{"config":{"chainId":1,"terminalTotalDifficulty":58750000000000000000000,
        "terminalTotalDifficultyPassed":true,"homesteadBlock":0,"londonBlock":0,"shanghaiTime":0,
        "cancunTime":1,"pragueTime":2,"osakaTime":3,"bpo1Time":4,"blobSchedule":{
        "cancun":{"target":3,"max":6,"baseFeeUpdateFraction":3338477},
        "bpo1":{"target":10,"max":15,"baseFeeUpdateFraction":8346193}}},"gasLimit":"30000000",
        "difficulty":"0x0","alloc":{"0x0000000000000000000000000000000000000001":{"balance":"0x10",
        "storage":{"0x1":"0x02","0x2":"0x"}},"0000000000000000000000000000000000000002":{"balance":"16",
        "nonce":1,"code":"0x6000","secretKey":"0x00"}},"timestamp":"0x5"}"#
            .to_vec(),
    );
    seeds
}

fn read(input: &[u8]) {
    let (mut accounts, mut slots) = (0, 0);
    let file = heap::measured(|| {
        let file = read_genesis(input, &mut |entry| {
            match entry {
                tandem_storage_writer::GenesisEntry::Account { .. } => accounts += 1,
                tandem_storage_writer::GenesisEntry::Slot { .. } => slots += 1,
            }
            Ok(())
        });
        file.map(|file| (ChainSpec::from_genesis_json(&file.json), file))
    });
    let Ok((spec, file)) = file else { return };
    assert_eq!((file.accounts, file.slots), (accounts, slots));
    // Without `alloc` the file describes the same chain, with no accounts.
    let rest = read_genesis(file.json.as_bytes(), &mut |_| panic!("an account in the rest"));
    assert_eq!(rest.unwrap().json, file.json);
    let Ok(spec) = spec else { return };
    assert_eq!(spec.genesis_header(B256::ZERO).state_root, B256::ZERO);
    for time in [0, 1, 5, u64::MAX] {
        assert!(
            spec.blob_params_at(time)
                .is_none_or(|params| params.target_blob_count <= params.max_blob_count)
        );
        let _ = spec.fork_at(time);
    }
}
