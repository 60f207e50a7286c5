//! eth_call: a message executed on a block's state, nothing kept.

use crate::{
    chain::{BlockTag, Chain},
    error::Error,
    state::{BlockState, StateReader},
};
use alloy_eips::eip2930::AccessList;
use alloy_evm::{Evm, EvmEnv, eth::EthEvmBuilder};
use revm::{
    context::{
        TxEnv,
        result::{EVMError, ExecutionResult},
    },
    primitives::TxKind,
};
use tandem_primitives::{Address, Bytes, U256, keccak256};

/// The message (execution-apis, `GenericTransaction`).
#[derive(Clone, Default, Debug)]
pub struct CallRequest {
    /// The caller, the zero address when not given.
    pub from: Option<Address>,
    /// The contract called; `None` creates one.
    pub to: Option<Address>,
    /// Gas limit; as much as the node allows when not given.
    pub gas: Option<u64>,
    /// In wei. Without any price the base fee is taken as zero.
    pub gas_price: Option<u128>,
    /// EIP-1559 fee cap, in wei.
    pub max_fee_per_gas: Option<u128>,
    /// EIP-1559 tip cap, in wei.
    pub max_priority_fee_per_gas: Option<u128>,
    /// In wei.
    pub value: Option<U256>,
    /// Call data, or init code.
    pub data: Bytes,
    /// Ignored but for contract addresses: calls do not check nonces.
    pub nonce: Option<u64>,
    /// EIP-2930.
    pub access_list: Option<AccessList>,
}

/// How the message ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CallOutcome {
    /// It returned.
    Return(Bytes),
    /// It reverted, with this data.
    Revert(Bytes),
    /// It ran into an exception, by name.
    Halt(String),
}

impl Chain {
    /// Executes a message on the state after a block.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] when the caller could not send it (balance, fee caps, gas), others as
    /// [`Chain::account`].
    pub fn call(&self, tag: BlockTag, request: CallRequest) -> Result<CallOutcome, Error> {
        let (id, view) = self.view(tag)?;
        let (_, header) = self.header_by_hash(id.hash)?.ok_or(Error::UnknownBlock)?;
        let (rules, blob_params) = (self.spec.rules(&header), self.spec.blob_params_of(&header));
        let mut env = EvmEnv::for_eth_block(&*header, rules, self.spec.chain_id(), blob_params);
        env.cfg_env.disable_eip3607 = true;
        env.cfg_env.disable_block_gas_limit = true;
        // The cap of EIP-7825 is one on transactions; a call is none.
        env.cfg_env.tx_gas_limit_cap = Some(u64::MAX);
        if request.gas_price.or(request.max_fee_per_gas).unwrap_or(0) == 0 {
            env.block_env.basefee = 0;
        }
        let caller = request.from.unwrap_or_default();
        let nonce = match request.nonce {
            Some(nonce) => nonce,
            None => view.account(&keccak256(caller))?.map_or(0, |account| account.nonce),
        };
        env.cfg_env.disable_nonce_check = true;
        let transaction = self.transaction_env(request, caller, nonce)?;
        let hashes = Box::new(|number| self.block_hash(id, number));
        let mut state = BlockState::new(&view, hashes, None);
        let result = EthEvmBuilder::new(&mut state, env).build().transact(transaction);
        if let Some(error) = state.take_error() {
            return Err(error);
        }
        match result {
            Ok(result) => Ok(match result.result {
                ExecutionResult::Success { output, .. } => CallOutcome::Return(output.into_data()),
                ExecutionResult::Revert { output, .. } => CallOutcome::Revert(output),
                ExecutionResult::Halt { reason, .. } => CallOutcome::Halt(format!("{reason:?}")),
            }),
            Err(EVMError::Transaction(error)) => Err(Error::InvalidCall(error.to_string())),
            Err(error) => Err(Error::Execution(error.to_string())),
        }
    }

    fn transaction_env(
        &self,
        request: CallRequest,
        caller: Address,
        nonce: u64,
    ) -> Result<TxEnv, Error> {
        if request.gas_price.is_some()
            && (request.max_fee_per_gas.is_some() || request.max_priority_fee_per_gas.is_some())
        {
            let error = "both gasPrice and (maxFeePerGas or maxPriorityFeePerGas) specified";
            return Err(Error::InvalidCall(error.into()));
        }
        let price = request.gas_price.or(request.max_fee_per_gas).unwrap_or(0);
        let mut builder = TxEnv::builder()
            .caller(caller)
            .nonce(nonce)
            .gas_limit(request.gas.unwrap_or(self.call_gas_max).min(self.call_gas_max))
            .max_fee_per_gas(price)
            .value(request.value.unwrap_or_default())
            .data(request.data)
            .kind(request.to.map_or(TxKind::Create, TxKind::Call))
            .chain_id(Some(self.spec.chain_id()));
        if let Some(tip) = request.max_priority_fee_per_gas {
            builder = builder.gas_priority_fee(Some(tip));
        }
        if let Some(access_list) = request.access_list {
            builder = builder.access_list(access_list);
        }
        builder.build().map_err(|error| Error::InvalidCall(format!("{error:?}")))
    }
}
