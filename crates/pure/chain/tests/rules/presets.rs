use alloy_consensus::constants::{
    HOLESKY_GENESIS_HASH, HOODI_GENESIS_HASH, MAINNET_GENESIS_HASH, SEPOLIA_GENESIS_HASH,
};
use alloy_hardforks::{
    EthereumChainHardforks, EthereumHardfork, EthereumHardforks, ForkCondition, mainnet,
};
use alloy_primitives::{B256, U256, address, b256};
use tandem_chain::*;

fn preset(chain_id: u64) -> ChainSpec {
    ChainSpec::for_chain_id(chain_id).unwrap()
}

#[test]
fn genesis_hashes_are_those_of_the_public_chains() {
    let chains = [
        (
            1,
            b256!("0xd7f8974fb5ac78d9ac099b9ad5018bedc2ce0a72dad1827a1709da30580f0544"),
            MAINNET_GENESIS_HASH,
        ),
        (
            11_155_111,
            b256!("0x5eb6e371a698b8d68f665192350ffcecbbbf322916f4b51bd79bb6887da3f494"),
            SEPOLIA_GENESIS_HASH,
        ),
        (
            17_000,
            b256!("0x69d8c9d72f6fa4ad42d4702b433707212f90db395eb54dc20bc85de253788783"),
            HOLESKY_GENESIS_HASH,
        ),
        (
            560_048,
            b256!("0xda87d7f5f91c51508791bbcbd4aa5baf04917830b86985eeb9ad3d5bfb657576"),
            HOODI_GENESIS_HASH,
        ),
    ];
    for (chain_id, state_root, hash) in chains {
        let spec = preset(chain_id);
        assert_eq!(spec.chain_id(), chain_id);
        assert_eq!(spec.genesis_header(state_root).hash_slow(), hash, "{chain_id}");
    }
    assert!(ChainSpec::for_chain_id(5).is_none());
}

#[test]
fn schedules_are_those_of_alloy() {
    let chains = [
        (1, EthereumChainHardforks::mainnet()),
        (11_155_111, EthereumChainHardforks::sepolia()),
        (17_000, EthereumChainHardforks::holesky()),
        (560_048, EthereumChainHardforks::hoodi()),
    ];
    for (chain_id, want) in chains {
        let spec = preset(chain_id);
        let mined = Header { difficulty: U256::from(131_072), ..Header::default() };
        for fork in EthereumHardfork::VARIANTS {
            let glacier = fork.name().ends_with("Glacier");
            // The merge does not depend on the block number here, and the DAO fork is tested
            // separately.
            if matches!(fork, EthereumHardfork::Dao | EthereumHardfork::Paris) {
                continue;
            }
            let header = if *fork < EthereumHardfork::Paris { &mined } else { &Header::default() };
            let got = spec.rules(header).ethereum_fork_activation(*fork);
            match want.ethereum_fork_activation(*fork) {
                // Testnets never had the bomb: alloy schedules its delays, but their genesis does
                // not.
                _ if glacier && chain_id != 1 => {}
                want => assert_eq!(got, want, "{chain_id} {fork}"),
            }
        }
    }
    let dao = Some(DaoFork { block: mainnet::MAINNET_DAO_BLOCK, support: true });
    assert_eq!(preset(1).dao_fork(), dao);
    assert_eq!(preset(1).terminal_total_difficulty(), mainnet::MAINNET_PARIS_TTD);
    assert_eq!(
        preset(11_155_111).terminal_total_difficulty(),
        U256::from(17_000_000_000_000_000_u64)
    );
    assert_eq!(preset(17_000).terminal_total_difficulty(), U256::ZERO);
    assert_eq!(preset(560_048).terminal_total_difficulty(), U256::ZERO);
}

#[test]
fn blob_schedules_and_deposit_contracts_are_those_of_the_public_chains() {
    let contracts = [
        (1, address!("0x00000000219ab540356cbb839cbe05303d7705fa")),
        (11_155_111, address!("0x7f02c3e3c98b133055b8b348b2ac625669ed295d")),
        (17_000, address!("0x4242424242424242424242424242424242424242")),
        (560_048, address!("0x00000000219ab540356cbb839cbe05303d7705fa")),
    ];
    for (chain_id, contract) in contracts {
        let spec = preset(chain_id);
        assert_eq!(spec.deposit_contract(), contract);
        let steps = [
            (EthereumHardfork::Cancun, BlobParams::cancun()),
            (EthereumHardfork::Prague, BlobParams::prague()),
            (EthereumHardfork::Osaka, BlobParams::osaka()),
            (EthereumHardfork::Bpo1, BlobParams::bpo1()),
            (EthereumHardfork::Bpo2, BlobParams::bpo2()),
        ];
        for (fork, params) in steps {
            let header = spec.genesis_header(B256::ZERO);
            let merged = Header { difficulty: U256::ZERO, ..header };
            let activation = spec.rules(&merged).ethereum_fork_activation(fork);
            let ForkCondition::Timestamp(time) = activation else { panic!("{fork}") };
            assert_eq!(spec.blob_params_at(time), Some(params), "{chain_id} {fork}");
            let number = match fork {
                EthereumHardfork::Bpo1 => Some(1),
                EthereumHardfork::Bpo2 => Some(2),
                _ => None,
            };
            let header = Header { timestamp: time, ..merged };
            assert_eq!(spec.blob_fork_of(&header), number, "{chain_id} {fork}");
        }
    }
}
