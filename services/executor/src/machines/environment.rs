//! Environment of a block, as it travels to a tx-executor.

use alloy_eips::eip7825::MAX_TX_GAS_LIMIT_OSAKA;
use alloy_evm::EvmEnv;
use alloy_primitives::U256;
use revm::{
    context::{BlockEnv, CfgEnv},
    context_interface::block::BlobExcessGasAndPrice,
    primitives::hardfork::SpecId,
};
use tandem_proto::tx_executor::{Environment, TxFork};

/// Returns the environment that a tx-executor makes the same EVM of. `None` if there is none, as for
/// another fork.
pub fn environment(env: &EvmEnv) -> Option<Environment> {
    let (cfg, block) = (&env.cfg_env, &env.block_env);
    let blob = block.blob_excess_gas_and_price?;
    let environment = Environment {
        fork: TxFork::Amsterdam,
        chain_id: cfg.chain_id,
        number: block.number.saturating_to(),
        beneficiary: block.beneficiary,
        timestamp: block.timestamp.saturating_to(),
        gas_limit: block.gas_limit,
        base_fee: block.basefee,
        prev_randao: block.prevrandao?,
        excess_blob_gas: blob.excess_blob_gas,
        blob_gas_price: blob.blob_gasprice,
        slot_number: block.slot_num,
        blobs_per_tx_max: cfg.max_blobs_per_tx,
    };
    (evm_env(&environment) == *env).then_some(environment)
}

/// Returns the environment in the EVM.
pub fn evm_env(environment: &Environment) -> EvmEnv {
    let spec = match environment.fork {
        TxFork::Amsterdam => SpecId::AMSTERDAM,
    };
    let mut cfg_env = CfgEnv::new_with_spec(spec).with_chain_id(environment.chain_id);
    cfg_env.max_blobs_per_tx = environment.blobs_per_tx_max;
    cfg_env.tx_gas_limit_cap = Some(MAX_TX_GAS_LIMIT_OSAKA);
    let block_env = BlockEnv {
        number: U256::from(environment.number),
        beneficiary: environment.beneficiary,
        timestamp: U256::from(environment.timestamp),
        difficulty: U256::ZERO,
        prevrandao: Some(environment.prev_randao),
        gas_limit: environment.gas_limit,
        basefee: environment.base_fee,
        blob_excess_gas_and_price: Some(BlobExcessGasAndPrice {
            excess_blob_gas: environment.excess_blob_gas,
            blob_gasprice: environment.blob_gas_price,
        }),
        slot_num: environment.slot_number,
    };
    EvmEnv::new(cfg_env, block_env)
}
