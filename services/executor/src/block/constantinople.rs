//! The rules of Constantinople, which revm does not support. Mainnet activated Petersburg in the
//! same block, and the two differ in SSTORE alone. Constantinople meters the net change of a slot
//! in a transaction (EIP-1283). Istanbul does so again, with other numbers (EIP-2200).

use alloy_evm::{Database, eth::EthEvmContext};
use revm::{
    bytecode::opcode::SSTORE,
    context_interface::{
        Host,
        cfg::gas_params::{GasId, GasParams},
    },
    handler::instructions::EthInstructions,
    interpreter::{
        Instruction, InstructionContext, InstructionResult, InterpreterTypes,
        instructions::host::sstore_with_gas_accounting, interpreter::EthInterpreter,
    },
    primitives::hardfork::SpecId,
};

/// Gas for a slot that is only read, or that the transaction wrote before.
const TOUCH: u64 = 200;
/// Gas for a slot that gets its first value.
const SET: u64 = 20_000;
/// Gas for a slot that gets another value.
const RESET: u64 = 5_000;

/// Returns the gas parameters of Constantinople: those of Petersburg, except for SSTORE.
pub fn gas_params() -> GasParams {
    let mut gas = GasParams::new_spec(SpecId::PETERSBURG);
    gas.override_gas([
        (GasId::sstore_static(), TOUCH),
        (GasId::sstore_set_without_load_cost(), SET - TOUCH),
        (GasId::sstore_reset_without_cold_load_cost(), RESET - TOUCH),
        (GasId::sstore_set_refund(), SET - TOUCH),
        (GasId::sstore_reset_refund(), RESET - TOUCH),
    ]);
    gas
}

/// Puts in the SSTORE of EIP-1283. The environment has the gas parameters of [`gas_params`].
pub fn meter_net_changes<DB: Database>(
    instructions: &mut EthInstructions<EthInterpreter, EthEvmContext<DB>>,
) {
    instructions.insert_instruction(SSTORE, Instruction::new(sstore), 0);
}

fn sstore<I: InterpreterTypes, H: Host + ?Sized>(
    context: InstructionContext<'_, H, I>,
) -> Result<(), InstructionResult> {
    sstore_with_gas_accounting(context, |context, _, slot| {
        let params = context.host.gas_params();
        let (cost, refund) =
            (params.sstore_dynamic_gas(true, slot, false), params.sstore_refund(true, slot));
        if !context.interpreter.gas.record_regular_cost(cost) {
            return Err(InstructionResult::OutOfGas);
        }
        context.interpreter.gas.record_refund(refund);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use crate::block::evm::{BlockEvm, evm_env};
    use alloy_consensus::Header;
    use alloy_evm::Evm;
    use alloy_primitives::hex;
    use revm::{
        context::TxEnv,
        database::{CacheDB, EmptyDB},
        primitives::TxKind,
        state::{AccountInfo, Bytecode},
    };
    use tandem_chain::{ChainSpec, Fork};
    use tandem_primitives::{Address, Bytes, U256};

    /// Returns the gas used by a transaction to this code, with `original` in slot 0 before it.
    fn gas_used(fork: &str, code: &[u8], original: u64) -> u64 {
        let json = format!(
            r#"{{"config": {{"chainId": 1, "terminalTotalDifficulty": 9999999, {fork}}},
                "gasLimit": 5000, "difficulty": 131072}}"#
        );
        let spec = ChainSpec::from_genesis_json(&json).unwrap();
        let header =
            Header { difficulty: U256::from(131_072), gas_limit: 1_000_000, ..Header::default() };
        let contract = Address::repeat_byte(7);
        let code = Bytecode::new_raw(Bytes::copy_from_slice(code));
        let mut state = CacheDB::new(EmptyDB::default());
        state.insert_account_info(contract, AccountInfo::from_bytecode(code));
        state.insert_account_storage(contract, U256::ZERO, U256::from(original)).unwrap();
        let env = evm_env(&spec, &header);
        let mut evm = match spec.fork_of(&header) {
            Fork::Constantinople => BlockEvm::constantinople(state, env),
            _ => BlockEvm::new(state, env),
        };
        let transaction = TxEnv::builder().kind(TxKind::Call(contract)).gas_limit(1_000_000);
        let result = evm.transact(transaction.build().unwrap()).unwrap().result;
        assert!(result.is_success());
        result.tx_gas_used()
    }

    #[test]
    fn sstore_costs_what_the_table_of_eip_1283_says() {
        let constantinople = r#""constantinopleBlock": 0, "petersburgBlock": 9"#;
        for (code, used, refund, original) in [
            ("60006000556000600055", 412, 0, 0),
            ("60006000556001600055", 20_212, 0, 0),
            ("60016000556000600055", 20_212, 19_800, 0),
            ("60016000556002600055", 20_212, 0, 0),
            ("60016000556001600055", 20_212, 0, 0),
            ("60006000556000600055", 5_212, 15_000, 1),
            ("60006000556001600055", 5_212, 4_800, 1),
            ("60006000556002600055", 5_212, 0, 1),
            ("60026000556000600055", 5_212, 15_000, 1),
            ("60026000556003600055", 5_212, 0, 1),
            ("60026000556001600055", 5_212, 4_800, 1),
            ("60026000556002600055", 5_212, 0, 1),
            ("60016000556000600055", 5_212, 15_000, 1),
            ("60016000556002600055", 5_212, 0, 1),
            ("60016000556001600055", 412, 0, 1),
            ("600160005560006000556001600055", 40_218, 19_800, 0),
            ("600060005560016000556000600055", 10_218, 19_800, 1),
        ] {
            let spent = 21_000 + used;
            let got = gas_used(constantinople, &hex::decode(code).unwrap(), original);
            assert_eq!(got, spent - refund.min(spent / 2), "{code} on {original}");
        }
    }

    #[test]
    fn constantinople_has_the_instructions_of_petersburg_and_not_its_sstore() {
        // PUSH1 1 PUSH1 1 SHL, then SSTORE of 1 to slot 0, twice.
        let code = hex!("6001600a1b5060016000556001600055");
        let byzantium = hex!("60016000556001600055");
        let petersburg = r#""petersburgBlock": 0, "constantinopleBlock": 0"#;
        assert_eq!(gas_used(petersburg, &code, 0), 21_000 + 25_012 + 11);
        let constantinople = r#""constantinopleBlock": 0, "petersburgBlock": 9"#;
        assert_eq!(gas_used(constantinople, &code, 0), 21_000 + 20_212 + 11);
        assert_eq!(gas_used(r#""byzantiumBlock": 0"#, &byzantium, 0), 21_000 + 25_012);
    }
}
