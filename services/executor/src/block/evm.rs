//! Configuration of revm for executing blocks.

use crate::block::{
    collision::{StorageOccupancy, run_frames},
    constantinople::{gas_params, meter_net_changes},
};
use alloy_consensus::Header;
use alloy_evm::{
    Database, Evm, EvmEnv,
    eth::{EthEvmBuilder, EthEvmContext},
    precompiles::PrecompilesMap,
};
use alloy_primitives::{Address, Bytes, U256};
use revm::{
    ExecuteEvm,
    context::{
        BlockEnv, CfgEnv, ContextSetters, Evm as RevmEvm, TxEnv,
        result::{EVMError, HaltReason, ResultAndState},
    },
    context_interface::{Cfg as _, Transaction as _},
    handler::{
        EthFrame, FrameResult, Handler, SystemCallTx, instructions::EthInstructions,
        post_execution::reward_beneficiary, system_call::SYSTEM_CALL_GAS_LIMIT,
    },
    inspector::NoOpInspector,
    interpreter::{
        GasTracker, InitialAndFloorGas, interpreter::EthInterpreter, interpreter_action::FrameInit,
    },
    primitives::hardfork::SpecId,
};
use std::{cell::Cell, marker::PhantomData};
use tandem_chain::{ChainSpec, Fork};

/// Gas of a system call (EIP-2935, 4788, 7002, 7251, 8282). From Amsterdam on it has a reservoir for
/// state growth beside it ([`SYSTEM_CALL_GAS_LIMIT`], EIP-8037).
const SYSTEM_CALL_GAS: u64 = 30_000_000;

/// Returns the environment of a block in the EVM.
pub fn evm_env(spec: &ChainSpec, header: &Header) -> EvmEnv {
    let (rules, blob_params) = (spec.rules(header), spec.blob_params_of(header));
    let mut env = EvmEnv::for_eth_block(header, rules, spec.chain_id(), blob_params);
    if spec.fork_of(header) == Fork::Constantinople {
        env.cfg_env = env.cfg_env.with_spec_and_gas_params(SpecId::PETERSBURG, gas_params());
    }
    env
}

/// revm's EVM, as configured for blocks.
pub type Inner<DB> = RevmEvm<
    EthEvmContext<DB>,
    NoOpInspector,
    EthInstructions<EthInterpreter, EthEvmContext<DB>>,
    PrecompilesMap,
    EthFrame,
>;

/// EVM over one block's state.
pub struct BlockEvm<DB: Database>(Inner<DB>);

impl<DB: Database + StorageOccupancy> BlockEvm<DB> {
    /// Creates the EVM for blocks in this environment.
    pub fn new(db: DB, env: EvmEnv) -> Self {
        Self(EthEvmBuilder::new(db, env).build().into_inner())
    }

    /// Creates the EVM for blocks of Constantinople.
    pub fn constantinople(db: DB, env: EvmEnv) -> Self {
        let mut evm = Self::new(db, env);
        meter_net_changes(&mut evm.0.instruction);
        evm
    }

    /// Returns the database.
    pub fn database(&mut self) -> &mut DB {
        &mut self.0.ctx.journaled_state.database
    }

    /// Sets whether transactions must have their sender's next nonce.
    pub fn check_nonces(&mut self, check: bool) {
        self.0.ctx.cfg.disable_nonce_check = !check;
    }

    /// Executes a transaction without paying the fee to its beneficiary. All transactions of a
    /// block pay the same account, so the payment alone would make each transaction depend on all
    /// before it. If the transaction itself loaded the beneficiary's account, the fee is paid as
    /// usual, and `reward` is `None`. For blocks after the merge.
    ///
    /// # Errors
    /// Same as [`Evm::transact_raw`].
    pub fn transact_unrewarded(&mut self, tx: TxEnv) -> Result<Unrewarded, EVMError<DB::Error>> {
        self.0.ctx.set_tx(tx);
        let mut handler = BlockHandler::new(Fee::KeptBack);
        let result = handler.run(&mut self.0);
        let state = self.0.finalize();
        Ok(Unrewarded { result: ResultAndState::new(result?, state), reward: handler.reward.get() })
    }
}

/// Outcome of a transaction without its beneficiary's fee.
#[derive(Debug)]
pub struct Unrewarded {
    /// Result and state changes, without the fee.
    pub result: ResultAndState<HaltReason>,
    /// Fee in wei, `None` if the result already includes it.
    pub reward: Option<U256>,
}

/// Whether the beneficiary is paid a transaction's fee at its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fee {
    Paid,
    KeptBack,
}

/// Handles transactions like mainnet, including EIP-7610, and keeps the fee back on request.
struct BlockHandler<DB> {
    fee: Fee,
    reward: Cell<Option<U256>>,
    /// Whether a system call runs instead of a transaction.
    system: bool,
    database: PhantomData<fn() -> DB>,
}

impl<DB> BlockHandler<DB> {
    fn new(fee: Fee) -> Self {
        Self { fee, reward: Cell::new(None), system: false, database: PhantomData }
    }
}

impl<DB: Database + StorageOccupancy> Handler for BlockHandler<DB> {
    type Evm = Inner<DB>;
    type Error = EVMError<DB::Error>;
    type HaltReason = HaltReason;

    fn tx_gas(&self, evm: &mut Self::Evm, initial: &InitialAndFloorGas) -> GasTracker {
        let limit = evm.ctx.tx.gas_limit;
        if self.system {
            // revm would let a system call spend the reservoir on execution.
            let gas = limit.min(SYSTEM_CALL_GAS);
            return GasTracker::new(limit, gas, limit - gas);
        }
        let cap = evm.ctx.cfg.tx_gas_limit_cap();
        let (gas, reservoir) = initial.initial_gas_and_reservoir(limit, cap);
        GasTracker::new(limit, gas, reservoir)
    }

    fn run_exec_loop(
        &mut self,
        evm: &mut Self::Evm,
        first_frame_input: FrameInit,
    ) -> Result<FrameResult, Self::Error> {
        run_frames(evm, first_frame_input)
    }

    fn reward_beneficiary(
        &self,
        evm: &mut Self::Evm,
        exec_result: &mut FrameResult,
    ) -> Result<(), Self::Error> {
        let context = &mut evm.ctx;
        let is_loaded =
            context.journaled_state.inner.state.contains_key(&context.block.beneficiary);
        if self.fee == Fee::Paid || is_loaded {
            return Ok(reward_beneficiary(context, exec_result.gas())?);
        }
        // EIP-1559: the base fee is burnt.
        let base_fee = u128::from(context.block.basefee);
        let tip = context.tx.effective_gas_price(base_fee).saturating_sub(base_fee);
        let gas = exec_result.gas();
        let used = gas.used().saturating_sub(gas.reservoir());
        self.reward.set(Some(U256::from(tip) * U256::from(used)));
        Ok(())
    }
}

impl<DB: Database + StorageOccupancy> Evm for BlockEvm<DB> {
    type DB = DB;
    type Tx = TxEnv;
    type Error = EVMError<DB::Error>;
    type HaltReason = HaltReason;
    type Spec = SpecId;
    type BlockEnv = BlockEnv;
    type Precompiles = PrecompilesMap;
    type Inspector = NoOpInspector;

    fn block(&self) -> &BlockEnv {
        &self.0.ctx.block
    }

    fn cfg_env(&self) -> &CfgEnv<SpecId> {
        &self.0.ctx.cfg
    }

    fn chain_id(&self) -> u64 {
        self.0.ctx.cfg.chain_id
    }

    fn transact_raw(&mut self, tx: TxEnv) -> Result<ResultAndState<HaltReason>, Self::Error> {
        self.0.ctx.set_tx(tx);
        let result = BlockHandler::new(Fee::Paid).run(&mut self.0);
        // Accounts that an invalid transaction has loaded are no accesses of the next one.
        let state = self.0.finalize();
        Ok(ResultAndState::new(result?, state))
    }

    fn transact_system_call(
        &mut self,
        caller: Address,
        contract: Address,
        data: Bytes,
    ) -> Result<ResultAndState<HaltReason>, Self::Error> {
        let mut tx = TxEnv::new_system_tx_with_caller(caller, contract, data);
        tx.gas_limit = match self.0.ctx.cfg.enable_amsterdam_eip8037 {
            true => SYSTEM_CALL_GAS_LIMIT,
            false => SYSTEM_CALL_GAS,
        };
        self.0.ctx.set_tx(tx);
        let mut handler = BlockHandler { system: true, ..BlockHandler::new(Fee::Paid) };
        let result = handler.run_system_call(&mut self.0);
        let state = self.0.finalize();
        Ok(ResultAndState::new(result?, state))
    }

    fn finish(self) -> (DB, EvmEnv<SpecId>) {
        let context = self.0.ctx;
        let env = EvmEnv { block_env: context.block, cfg_env: context.cfg };
        (context.journaled_state.database, env)
    }

    /// The only inspector does nothing.
    fn set_inspector_enabled(&mut self, _enabled: bool) {}

    fn components(&self) -> (&DB, &NoOpInspector, &PrecompilesMap) {
        (&self.0.ctx.journaled_state.database, &self.0.inspector, &self.0.precompiles)
    }

    fn components_mut(&mut self) -> (&mut DB, &mut NoOpInspector, &mut PrecompilesMap) {
        let inner = &mut self.0;
        (&mut inner.ctx.journaled_state.database, &mut inner.inspector, &mut inner.precompiles)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::address;
    use revm::{
        database::InMemoryDB,
        state::{AccountInfo, Bytecode},
    };

    const CONTRACT: Address = address!("0x00000961ef480eb55e80d19ad83579a64c007002");

    /// Runs a system call of a contract with this code.
    fn call(fork: SpecId, code: Vec<u8>) -> ResultAndState<HaltReason> {
        let mut db = InMemoryDB::default();
        let code = Bytecode::new_raw(code.into());
        db.insert_account_info(
            CONTRACT,
            AccountInfo { code_hash: code.hash_slow(), code: Some(code), ..Default::default() },
        );
        let mut env = EvmEnv::<SpecId>::default();
        env.cfg_env = env.cfg_env.with_spec_and_mainnet_gas_params(fork);
        let caller = alloy_eips::eip7002::SYSTEM_ADDRESS;
        BlockEvm::new(db, env).transact_system_call(caller, CONTRACT, Bytes::new()).unwrap()
    }

    #[test]
    fn a_system_call_has_thirty_million_gas() {
        // GAS, MSTORE at 0, RETURN 32 bytes.
        for fork in [SpecId::OSAKA, SpecId::AMSTERDAM] {
            let done = call(fork, vec![0x5a, 0x5f, 0x52, 0x60, 0x20, 0x5f, 0xf3]);
            let left = U256::from_be_slice(done.result.output().unwrap());
            // GAS itself costs 2.
            assert_eq!(left, U256::from(SYSTEM_CALL_GAS - 2), "{fork:?}");
        }
    }

    /// Builders go on after a transaction that is invalid. The block's access list must not have it.
    #[test]
    fn an_invalid_transaction_leaves_no_access() {
        let mut env = EvmEnv::<SpecId>::default();
        env.cfg_env = env.cfg_env.with_spec_and_mainnet_gas_params(SpecId::AMSTERDAM);
        let mut evm = BlockEvm::new(InMemoryDB::default(), env);
        let [first, second] = [1, 2].map(Address::repeat_byte);
        let tx = |caller, nonce| TxEnv { caller, nonce, gas_limit: 100_000, ..TxEnv::default() };
        assert!(evm.transact_raw(tx(first, 7)).is_err());
        let done = evm.transact_raw(tx(second, 0)).unwrap();
        assert!(done.state.contains_key(&second));
        assert!(!done.state.contains_key(&first));
    }

    #[test]
    fn a_system_call_that_uses_more_fails() {
        // PUSH1 1, PUSH2 n, SSTORE, for `count` slots: 22,106 gas each.
        let stores = |count: u16| {
            let store = |n: u16| [0x60, 1, 0x61, n.to_be_bytes()[0], n.to_be_bytes()[1], 0x55];
            (0..count).flat_map(store).collect::<Vec<u8>>()
        };
        assert!(call(SpecId::OSAKA, stores(1357)).result.is_success());
        assert!(!call(SpecId::OSAKA, stores(1358)).result.is_success());
    }
}
