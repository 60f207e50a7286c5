//! eth_call and similar methods: a message is executed on a block's state, and the changes are
//! dropped.

mod access_list;
mod estimate;
mod guard;

pub use access_list::AccessListOutcome;
pub use estimate::GasEstimate;

use crate::{
    block::evm::evm_env,
    chain::{BlockTag, Chain},
    error::Error,
    state::{BlockState, StateReader, past::BlockView},
};
use access_list::Touched;
use alloy_consensus::Header;
use alloy_eips::{
    eip2930::AccessList, eip7702::SignedAuthorization, eip7825::MAX_TX_GAS_LIMIT_OSAKA,
};
use alloy_evm::{EvmEnv, eth::EthEvmBuilder};
use guard::{Guarded, guard};
use revm::{
    ExecuteEvm, InspectEvm,
    context::{
        TxEnv,
        result::{EVMError, ExecutionResult, HaltReason, InvalidTransaction},
    },
    primitives::TxKind,
};
use std::sync::Arc;
use tandem_chain::Fork;
use tandem_http::usage::Running;
use tandem_primitives::{Address, B256, BlockId, Bytes, U256, keccak256};

/// The message (execution-apis, `GenericTransaction`).
#[derive(Clone, Default, Debug)]
pub struct CallRequest {
    /// Caller; the zero address if absent.
    pub from: Option<Address>,
    /// Called contract; `None` creates one.
    pub to: Option<Address>,
    /// Gas limit; the node's maximum if absent.
    pub gas: Option<u64>,
    /// Gas price in wei. Without any price the base fee counts as zero.
    pub gas_price: Option<u128>,
    /// EIP-1559 fee cap, in wei.
    pub max_fee_per_gas: Option<u128>,
    /// EIP-1559 tip cap, in wei.
    pub max_priority_fee_per_gas: Option<u128>,
    /// Value in wei.
    pub value: Option<U256>,
    /// Call data, or init code.
    pub data: Bytes,
    /// Nonce, used only for contract addresses: calls do not check nonces.
    pub nonce: Option<u64>,
    /// Access list (EIP-2930).
    pub access_list: Option<AccessList>,
    /// Cap on the price of blob gas, in wei (EIP-4844). Without one the price counts as zero.
    pub max_fee_per_blob_gas: Option<u128>,
    /// Versioned hashes of blobs (EIP-4844).
    pub blob_versioned_hashes: Vec<B256>,
    /// Authorizations (EIP-7702).
    pub authorization_list: Vec<SignedAuthorization>,
}

/// Result of the message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CallOutcome {
    /// The message returned this data.
    Return(Bytes),
    /// The message reverted with this data.
    Revert(Bytes),
    /// The message ran into an exception, in geth's words.
    Halt(String),
}

impl From<ExecutionResult> for CallOutcome {
    fn from(result: ExecutionResult) -> Self {
        match result {
            ExecutionResult::Success { output, .. } => Self::Return(output.into_data()),
            ExecutionResult::Revert { output, .. } => Self::Revert(output),
            ExecutionResult::Halt { reason, .. } => Self::Halt(halt_text(&reason)),
        }
    }
}

/// Describes the reason. Callers match on the text, so the wording is geth's if it has one.
fn halt_text(reason: &HaltReason) -> String {
    let text = match reason {
        HaltReason::OutOfGas(_) => "out of gas",
        HaltReason::OpcodeNotFound | HaltReason::NotActivated => "invalid opcode",
        HaltReason::InvalidFEOpcode => "invalid opcode: INVALID",
        HaltReason::InvalidJump => "invalid jump destination",
        HaltReason::OutOfOffset => "return data out of bounds",
        HaltReason::CreateCollision => "contract address collision",
        HaltReason::NonceOverflow => "nonce uint64 overflow",
        HaltReason::CreateContractSizeLimit => "max code size exceeded",
        HaltReason::CreateContractStartingWithEF => "invalid code: must not begin with 0xef",
        HaltReason::CreateInitCodeSizeLimit => "max initcode size exceeded",
        HaltReason::StateChangeDuringStaticCall | HaltReason::CallNotAllowedInsideStatic => {
            "write protection"
        }
        HaltReason::OutOfFunds => "insufficient balance for transfer",
        HaltReason::CallTooDeep => "max call depth exceeded",
        other => return other.to_string(),
    };
    text.to_owned()
}

/// The calls of users.
pub struct Calls {
    chain: Arc<Chain>,
    gas_max: u64,
}

impl Calls {
    /// Calls that get at most so much gas.
    pub fn new(chain: Arc<Chain>, gas_max: u64) -> Self {
        Self { chain, gas_max }
    }

    /// Executes a message on the state after a block.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if the caller could not send it (balance, fee caps, gas),
    /// [`Error::Cut`] if it takes too long, otherwise the same as [`Chain::account`].
    pub fn call(
        &self,
        tag: BlockTag,
        request: CallRequest,
        running: &Running<'_>,
    ) -> Result<CallOutcome, Error> {
        let message = Message::new(self, tag, request, running)?;
        let result = message.run(message.transaction.clone(), None)?;
        result.map(CallOutcome::from).map_err(invalid_call)
    }

    /// Searches a gas limit with which the message succeeds on the state after a block.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] when no limit allowed suffices or the caller could not send the
    /// message; others as [`Calls::call`].
    pub fn estimate_gas(
        &self,
        tag: BlockTag,
        request: CallRequest,
        running: &Running<'_>,
    ) -> Result<GasEstimate, Error> {
        let limit = request.gas;
        let mut message = Message::new(self, tag, request, running)?;
        if message.fork() >= Fork::Amsterdam {
            // Gas beyond the cap pays for state alone, so the split is part of what is searched.
            message.env.cfg_env.tx_gas_limit_cap = Some(MAX_TX_GAS_LIMIT_OSAKA);
        }
        estimate::estimate_gas(&message, limit)
    }

    /// Finds what a message touches on the state after a block. Caller, callee, precompiles and
    /// signers of authorizations are warm anyway and are not listed, but their slots are.
    ///
    /// # Errors
    /// As [`Calls::call`].
    pub fn create_access_list(
        &self,
        tag: BlockTag,
        request: CallRequest,
        running: &Running<'_>,
    ) -> Result<AccessListOutcome, Error> {
        let given = request.access_list.clone().unwrap_or_default();
        let authorizations = request.authorization_list.clone();
        let message = Message::new(self, tag, request, running)?;
        access_list::create(&message, &given, &authorizations)
    }
}

fn invalid_call(error: InvalidTransaction) -> Error {
    Error::InvalidCall(error.to_string())
}

/// Message with its environment, for any number of runs.
struct Message<'a> {
    chain: &'a Chain,
    gas_max: u64,
    running: &'a Running<'a>,
    block: BlockId,
    header: Arc<Header>,
    view: BlockView,
    env: EvmEnv,
    transaction: TxEnv,
}

impl<'a> Message<'a> {
    fn new(
        calls: &'a Calls,
        tag: BlockTag,
        request: CallRequest,
        running: &'a Running<'a>,
    ) -> Result<Self, Error> {
        let Calls { chain, gas_max } = calls;
        let (block, view) = chain.view(tag)?;
        let (_, header) = chain.header_by_hash(block.hash)?.ok_or(Error::UnknownBlock)?;
        let mut env = evm_env(&chain.spec, &header);
        env.cfg_env.disable_eip3607 = true;
        env.cfg_env.disable_block_gas_limit = true;
        env.cfg_env.disable_nonce_check = true;
        // The cap of EIP-7825 applies to transactions, not to calls.
        env.cfg_env.tx_gas_limit_cap = Some(u64::MAX);
        if request.gas_price.or(request.max_fee_per_gas).unwrap_or(0) == 0 {
            env.block_env.basefee = 0;
        }
        if request.max_fee_per_blob_gas.unwrap_or(0) == 0
            && let Some(blob) = &mut env.block_env.blob_excess_gas_and_price
        {
            blob.blob_gasprice = 0;
        }
        let caller = request.from.unwrap_or_default();
        let nonce = match request.nonce {
            Some(nonce) => nonce,
            None => view.account(&keccak256(caller))?.map_or(0, |account| account.nonce),
        };
        let transaction = transaction(calls, request, caller, nonce)?;
        Ok(Self { chain, gas_max: *gas_max, running, block, header, view, env, transaction })
    }

    /// Returns the fork of the block.
    fn fork(&self) -> Fork {
        self.chain.spec.fork_of(&self.header)
    }

    /// Runs a transaction, and records the keys it touches if requested. The inner error is the
    /// sender's fault.
    fn run(
        &self,
        transaction: TxEnv,
        touched: Option<&mut Touched>,
    ) -> Result<Result<ExecutionResult, InvalidTransaction>, Error> {
        self.running.check_gas()?;
        let hashes = Box::new(|number| self.chain.block_hash(self.block, number));
        let mut state = BlockState::new(&self.view, hashes, None);
        let database = Guarded::new(&mut state, self.running);
        let builder = EthEvmBuilder::new(database, self.env.clone());
        let result = match touched {
            Some(touched) => {
                let mut evm = builder.activate_inspector(touched).build().into_inner();
                guard(&mut evm.instruction);
                evm.inspect_tx(transaction)
            }
            None => {
                let mut evm = builder.build().into_inner();
                guard(&mut evm.instruction);
                evm.transact(transaction)
            }
        };
        if let Some(error) = state.take_error() {
            return Err(error);
        }
        match result {
            Ok(result) => {
                self.running.add_gas(result.result.tx_gas_used());
                Ok(Ok(result.result))
            }
            Err(EVMError::Transaction(error)) => Ok(Err(error)),
            Err(EVMError::Database(error)) => Err(error),
            Err(error) => Err(Error::Evm(error.to_string())),
        }
    }
}

fn transaction(
    calls: &Calls,
    request: CallRequest,
    caller: Address,
    nonce: u64,
) -> Result<TxEnv, Error> {
    let has_1559_fee =
        request.max_fee_per_gas.is_some() || request.max_priority_fee_per_gas.is_some();
    if request.gas_price.is_some() && has_1559_fee {
        let error = "both gasPrice and (maxFeePerGas or maxPriorityFeePerGas) specified";
        return Err(Error::InvalidCall(error.into()));
    }
    let has_blobs = !request.blob_versioned_hashes.is_empty();
    let has_authorizations = !request.authorization_list.is_empty();
    // Transactions with blobs or authorizations always have a tip, even if zero.
    let needs_tip = has_blobs || has_authorizations;
    let mut builder = TxEnv::builder()
        .caller(caller)
        .nonce(nonce)
        .gas_limit(request.gas.unwrap_or(calls.gas_max).min(calls.gas_max))
        .max_fee_per_gas(request.gas_price.or(request.max_fee_per_gas).unwrap_or(0))
        .value(request.value.unwrap_or_default())
        .data(request.data)
        .kind(request.to.map_or(TxKind::Create, TxKind::Call))
        .chain_id(Some(calls.chain.spec.chain_id()))
        .gas_priority_fee(request.max_priority_fee_per_gas.or(needs_tip.then_some(0)));
    if let Some(access_list) = request.access_list {
        builder = builder.access_list(access_list);
    }
    if has_blobs {
        builder = builder
            .blob_hashes(request.blob_versioned_hashes)
            .max_fee_per_blob_gas(request.max_fee_per_blob_gas.unwrap_or(0));
    }
    if has_authorizations {
        builder = builder.authorization_list_signed(request.authorization_list);
    }
    builder.build().map_err(|error| Error::InvalidCall(error.to_string()))
}
