//! Properties of the node and its chain.

use super::super::hex::Quantity;
use super::{NoParams, Source, add_quick, add_reading, read_error};
use crate::{BlockTag, Chain};
use alloy_eips::{
    eip2935::HISTORY_STORAGE_ADDRESS, eip4788::BEACON_ROOTS_ADDRESS,
    eip7002::WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS,
    eip7251::CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS,
};
use alloy_evm::block::system_calls::{
    BUILDER_DEPOSIT_REQUEST_PREDEPLOY_ADDRESS, BUILDER_EXIT_REQUEST_PREDEPLOY_ADDRESS,
};
use alloy_primitives::{Address, B256, Bytes};
use revm::precompile::{PrecompileSpecId, Precompiles};
use revm::primitives::hardfork::SpecId;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use tandem_chain::{ChainSpec, Fork, ForkPoints};
use tandem_discv4::fork_id;
use tandem_http::{Answer, Methods, to_result};
use tandem_primitives::BlockId;

pub(super) fn add(methods: &mut Methods, source: &Arc<Source>) {
    add_quick(methods, source, "eth_chainId", |source| {
        to_result(&Quantity(source.spec.chain_id()))
    });
    add_quick(methods, source, "net_version", |source| {
        to_result(&source.spec.chain_id().to_string())
    });
    add_quick(methods, source, "web3_clientVersion", |source| {
        to_result(&source.client.version_line())
    });
    add_quick(methods, source, "eth_syncing", |source| syncing(&source.chain));
    add_reading(methods, source, "eth_capabilities", capabilities);
    add_reading(methods, source, "eth_config", config);
}

/// Answer of `eth_syncing` while blocks are missing (execution-apis, `SyncingStatus`).
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SyncingJson {
    starting_block: Quantity<u64>,
    current_block: Quantity<u64>,
    highest_block: Quantity<u64>,
    /// Blocks are on their way from peers.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    from_peers: Option<FromPeersJson>,
}

/// Progress of the blocks that come from peers.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FromPeersJson {
    stage: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    lowest_header: Option<Quantity<u64>>,
    peers: Quantity<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds_left: Option<Quantity<u64>>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    state: Option<StateJson>,
}

/// Progress of the download of a state, as geth names it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StateJson {
    synced_accounts: Quantity<u64>,
    synced_storage: Quantity<u64>,
    synced_bytecodes: Quantity<u64>,
}

/// Returns the answer of `eth_syncing`.
pub(in crate::rpc) fn syncing(chain: &Chain) -> Answer {
    let (target, progress) = (chain.sync_target(), chain.sync_progress());
    if target.is_none() && progress.is_none() {
        return to_result(&false);
    }
    let head = chain.head().number;
    let current = progress.map_or(head, |progress| progress.current.max(head));
    let highest = progress.map_or(0, |progress| progress.highest);
    to_result(&SyncingJson {
        starting_block: Quantity(progress.map_or(head, |progress| progress.starting)),
        current_block: Quantity(current),
        highest_block: Quantity(highest.max(target.unwrap_or_default()).max(current)),
        from_peers: progress.map(|progress| FromPeersJson {
            stage: progress.stage,
            lowest_header: progress.lowest_header.map(Quantity),
            peers: Quantity(progress.peers as u64),
            seconds_left: progress.seconds_left.map(Quantity),
            state: progress.state.map(|state| StateJson {
                synced_accounts: Quantity(state.accounts),
                synced_storage: Quantity(state.slots),
                synced_bytecodes: Quantity(state.codes),
            }),
        }),
    })
}

/// Answer of `eth_capabilities`: the oldest served block of each kind of data (execution-apis,
/// `src/eth/capabilities.yaml`).
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
struct CapabilitiesJson {
    head: HeadJson,
    state: ResourceJson,
    tx: ResourceJson,
    logs: ResourceJson,
    receipts: ResourceJson,
    blocks: ResourceJson,
    stateproofs: ResourceJson,
}

#[derive(Serialize)]
struct HeadJson {
    number: Quantity<u64>,
    hash: B256,
}

#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceJson {
    disabled: bool,
    oldest_block: Quantity<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delete_strategy: Option<WindowJson>,
}

/// Deletion strategy that keeps only the newest blocks.
#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct WindowJson {
    #[serde(rename = "type")]
    kind: &'static str,
    retention_blocks: Quantity<u64>,
}

fn capabilities(source: &Source, NoParams: NoParams) -> Answer {
    let BlockId { number, hash } = source.chain.head();
    let all = ResourceJson { disabled: false, oldest_block: Quantity(0), delete_strategy: None };
    // The state of the base and of every block above it.
    let recent = source.chain.state_blocks;
    let window = |oldest, blocks| ResourceJson {
        disabled: false,
        oldest_block: Quantity(oldest),
        delete_strategy: Some(WindowJson { kind: "window", retention_blocks: Quantity(blocks) }),
    };
    let proofs = window(source.chain.base().number, recent);
    // History has values of states, but no tries.
    let state = match source.chain.kept_states().map_err(read_error)? {
        Some(kept) => window(kept.oldest, kept.blocks_max.saturating_add(recent)),
        None => proofs.clone(),
    };
    to_result(&CapabilitiesJson {
        head: HeadJson { number: Quantity(number), hash },
        state,
        tx: all.clone(),
        logs: all.clone(),
        receipts: all.clone(),
        blocks: all,
        stateproofs: proofs,
    })
}

/// Answer of `eth_config` (EIP-7910).
#[derive(Serialize)]
struct ConfigJson {
    current: Option<ForkJson>,
    next: Option<ForkJson>,
    last: Option<ForkJson>,
}

/// Rules from one fork's activation on.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ForkJson {
    /// Activation time in seconds; 0 for a fork active at genesis.
    activation_time: u64,
    blob_schedule: Option<BlobScheduleJson>,
    chain_id: Quantity<u64>,
    fork_id: Bytes,
    precompiles: BTreeMap<&'static str, Address>,
    system_contracts: BTreeMap<&'static str, Address>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BlobScheduleJson {
    target: u64,
    max: u64,
    base_fee_update_fraction: u128,
}

fn config(source: &Source, NoParams: NoParams) -> Answer {
    let header = |tag| match source.chain.header(tag) {
        Ok(Some(found)) => Ok(found),
        Ok(None) => Err(read_error(crate::Error::UnknownBlock)),
        Err(error) => Err(read_error(error)),
    };
    let (genesis, genesis_header) = header(BlockTag::Earliest)?;
    let (_, head) = header(BlockTag::Latest)?;
    let forks = Forks::of(&source.spec, (genesis.hash, genesis_header.timestamp));
    to_result(&forks.config(&source.spec, head.timestamp))
}

/// Activation points of a chain's forks.
struct Forks {
    genesis: (B256, u64),
    points: ForkPoints,
}

impl Forks {
    fn of(spec: &ChainSpec, genesis: (B256, u64)) -> Self {
        Self { genesis, points: spec.fork_points() }
    }

    /// Returns the current fork, the next one and the last one scheduled. `last` is present only if
    /// `next` is.
    fn config(&self, spec: &ChainSpec, now: u64) -> ConfigJson {
        let times = &self.points.times;
        let (passed, coming) = times.split_at(times.partition_point(|&time| time <= now));
        let render = |time: Option<&u64>| time.map(|&time| self.fork(spec, time));
        ConfigJson {
            current: render(passed.last()),
            next: render(coming.first()),
            last: render(coming.last()),
        }
    }

    fn fork(&self, spec: &ChainSpec, time: u64) -> ForkJson {
        let (_, genesis_time) = self.genesis;
        let id = fork_id(self.genesis, &self.points.blocks, &self.points.times, (u64::MAX, time));
        let blob_schedule = spec.blob_params_at(time).map(|params| BlobScheduleJson {
            target: params.target_blob_count,
            max: params.max_blob_count,
            base_fee_update_fraction: params.update_fraction,
        });
        ForkJson {
            activation_time: if time <= genesis_time { 0 } else { time },
            blob_schedule,
            chain_id: Quantity(spec.chain_id()),
            fork_id: id.hash.into(),
            precompiles: precompiles(spec.fork_at(time)),
            system_contracts: system_contracts(spec, spec.fork_at(time)),
        }
    }
}

/// Names of precompiled contracts in EIP-7910.
const PRECOMPILES: [(u64, &str); 18] = [
    (0x01, "ECREC"),
    (0x02, "SHA256"),
    (0x03, "RIPEMD160"),
    (0x04, "ID"),
    (0x05, "MODEXP"),
    (0x06, "BN254_ADD"),
    (0x07, "BN254_MUL"),
    (0x08, "BN254_PAIRING"),
    (0x09, "BLAKE2F"),
    (0x0a, "KZG_POINT_EVALUATION"),
    (0x0b, "BLS12_G1ADD"),
    (0x0c, "BLS12_G1MSM"),
    (0x0d, "BLS12_G2ADD"),
    (0x0e, "BLS12_G2MSM"),
    (0x0f, "BLS12_PAIRING_CHECK"),
    (0x10, "BLS12_MAP_FP_TO_G1"),
    (0x11, "BLS12_MAP_FP2_TO_G2"),
    (0x100, "P256VERIFY"),
];

/// Returns the rules of the EVM under a fork.
fn evm_rules(fork: Fork) -> SpecId {
    match fork {
        Fork::Shanghai => SpecId::SHANGHAI,
        Fork::Cancun => SpecId::CANCUN,
        Fork::Prague => SpecId::PRAGUE,
        Fork::Osaka => SpecId::OSAKA,
        Fork::Amsterdam => SpecId::AMSTERDAM,
        // Forks by block number are not part of the configuration.
        _ => SpecId::MERGE,
    }
}

fn precompiles(fork: Fork) -> BTreeMap<&'static str, Address> {
    let active = Precompiles::new(PrecompileSpecId::from_spec_id(evm_rules(fork)));
    let named = PRECOMPILES
        .iter()
        .map(|&(number, name)| (name, Address::left_padding_from(&number.to_be_bytes())));
    named.filter(|(_, address)| active.contains(address)).collect()
}

fn system_contracts(spec: &ChainSpec, fork: Fork) -> BTreeMap<&'static str, Address> {
    let mut contracts = BTreeMap::new();
    if fork >= Fork::Cancun {
        contracts.insert("BEACON_ROOTS_ADDRESS", BEACON_ROOTS_ADDRESS);
    }
    if fork >= Fork::Prague {
        contracts.extend([
            ("CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS", CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS),
            ("DEPOSIT_CONTRACT_ADDRESS", spec.deposit_contract()),
            ("HISTORY_STORAGE_ADDRESS", HISTORY_STORAGE_ADDRESS),
            ("WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS", WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS),
        ]);
    }
    if fork >= Fork::Amsterdam {
        contracts.extend([
            ("BUILDER_DEPOSIT_CONTRACT_ADDRESS", BUILDER_DEPOSIT_REQUEST_PREDEPLOY_ADDRESS),
            ("BUILDER_EXIT_CONTRACT_ADDRESS", BUILDER_EXIT_REQUEST_PREDEPLOY_ADDRESS),
        ]);
    }
    contracts
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::b256;

    const GENESIS: &str = r#"{"config": {"chainId": 7, "londonBlock": 0, "terminalTotalDifficulty":
        0, "shanghaiTime": 0, "cancunTime": 100, "pragueTime": 200, "osakaTime": 300, "bpo1Time":
        400, "amsterdamTime": 500, "blobSchedule": {"bpo1": {"target": 10, "max": 15, "baseFeeUpdateFraction": 8346193}}},
        "gasLimit": "0x1000000", "difficulty": "0x0"}"#;

    fn config_at(now: u64) -> serde_json::Value {
        let spec = ChainSpec::from_genesis_json(GENESIS).unwrap();
        let forks = Forks::of(&spec, (B256::ZERO, 0));
        serde_json::to_value(forks.config(&spec, now)).unwrap()
    }

    #[test]
    fn the_config_names_the_current_the_next_and_the_last_fork() {
        let shanghai = config_at(99);
        assert_eq!(shanghai["current"]["activationTime"], 0);
        assert!(shanghai["current"]["blobSchedule"].is_null());
        assert_eq!(shanghai["current"]["precompiles"].as_object().unwrap().len(), 9);
        assert_eq!(shanghai["current"]["systemContracts"], serde_json::json!({}));
        assert_eq!(shanghai["next"]["activationTime"], 100);
        assert_eq!(shanghai["next"]["systemContracts"].as_object().unwrap().len(), 1);
        assert_eq!(shanghai["last"]["activationTime"], 500);
        assert_eq!(shanghai["last"]["blobSchedule"]["max"], 15);

        let osaka = config_at(399);
        assert_eq!(osaka["current"]["activationTime"], 300);
        assert_eq!(osaka["current"]["precompiles"].as_object().unwrap().len(), 18);
        assert_eq!(osaka["next"]["systemContracts"].as_object().unwrap().len(), 5);
        assert_eq!(osaka["last"]["systemContracts"].as_object().unwrap().len(), 7);
        assert_ne!(osaka["current"]["forkId"], osaka["next"]["forkId"]);

        let end = config_at(u64::MAX);
        assert_eq!(end["current"]["activationTime"], 500);
        assert_eq!(end["current"]["precompiles"].as_object().unwrap().len(), 18);
        assert!(end["next"].is_null() && end["last"].is_null());
    }

    /// Fork ids by EIP-2124 and EIP-6122, from the chains' own schedules.
    #[test]
    fn fork_ids_of_public_chains_are_those_they_announce() {
        let mainnet = b256!("0xd4e56740f876aef8c010b86a40d5f56745a118d0906a34e69aec8c0db1cb8fa3");
        let sepolia = b256!("0x25a5cc106eea7138acab33231d7160d69cb777ee0c2c553fcddf5138993e6dd9");
        for (chain_id, genesis, now, id) in [
            (1, mainnet, 1_681_338_455, "0xdce96c2d"),
            (1, mainnet, 1_746_612_311, "0xc376cf8b"),
            (1, mainnet, 1_767_747_671, "0x07c9462e"),
            (11_155_111, sepolia, 1_741_159_776, "0xed88b5fd"),
            (11_155_111, sepolia, 1_761_607_008, "0x268956b6"),
        ] {
            let spec = ChainSpec::for_chain_id(chain_id).unwrap();
            let config = Forks::of(&spec, (genesis, 0)).config(&spec, now);
            let config = serde_json::to_value(config).unwrap();
            assert_eq!(config["current"]["forkId"], id, "chain {chain_id} at {now}");
        }
    }
}
