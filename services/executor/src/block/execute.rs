//! Execution of one block in the EVM. State changes stream to the workers as each transaction
//! commits.

use crate::{
    ahead::{
        senders::Senders,
        speculate::{Ahead, Turns, position},
    },
    block::{
        access_list::AccessListBuilder,
        dao::apply_dao_fork,
        evm::{BlockEvm, Unrewarded, evm_env},
        followed::Followed,
        receipts::ReceiptsRooter,
        requests::{check_deposits, missing_contract},
    },
    error::Error,
    machines::complete,
    state::{BlockState, StateReader, published::Position},
};
use alloy_consensus::{Header, Transaction as _, transaction::Recovered};
use alloy_eips::{eip4895::Withdrawal, eip7685::Requests};
use alloy_evm::{
    Evm,
    block::{
        BlockExecutionError, BlockExecutionResult, BlockExecutor, BlockValidationError, GasOutput,
    },
    eth::{EthBlockExecutionCtx, EthBlockExecutor, EthTxResult},
};
use alloy_primitives::{B256, Bloom};
use revm::context_interface::Cfg as _;
use std::{
    borrow::Cow,
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_admission::broken_rule;
use tandem_chain::{
    AccessList, Block, BlockError, BlockRules, ChainSpec, Fork, Outcome, Receipt, ReceiptBuilder,
    Transaction, TransactionRule,
};
use tandem_proto::multiproof::StateUpdate;
use tracing::{Span, debug};

/// Result of execution besides the state changes.
#[derive(Debug)]
pub struct Executed {
    /// Receipts in block order.
    pub receipts: Vec<Receipt>,
    /// Gas used by the whole block.
    pub gas_used: u64,
    /// Blob gas used by the whole block (EIP-4844).
    pub blob_gas_used: u64,
    /// Requests to the consensus layer (EIP-7685).
    pub requests: Requests,
    /// Block-level access list, none before Amsterdam (EIP-7928).
    pub access_list: Option<AccessList>,
    /// Changes of each transaction before Byzantium, where a receipt holds the state root after its
    /// transaction. The code that knows the tries sets [`Receipt::post_state`]. Empty otherwise.
    pub steps: Vec<Arc<StateUpdate>>,
    /// Whether the changes are those of the block's access list, with which all results agree.
    pub is_followed: bool,
}

impl Executed {
    /// Returns what the header says of the execution, with these roots of the receipts.
    pub fn outcome(&self, receipts_root: B256, logs_bloom: Bloom) -> Outcome<'_> {
        Outcome {
            receipts_root,
            logs_bloom,
            gas_used: self.gas_used,
            blob_gas_used: self.blob_gas_used,
            requests: &self.requests,
            access_list: self.access_list.as_ref(),
        }
    }
}

/// Reason why a block has no result.
#[derive(Debug)]
pub enum Failure {
    /// The block breaks a rule.
    Invalid(BlockError),
    /// The failure is not the block's fault.
    Internal(Error),
}

/// Executes a block whose header and body already passed validation.
///
/// The changes are in `state` afterwards and were also sent to its session during execution. The
/// receipts went to `rooter` as they were made. With `ahead`, other threads execute transactions
/// ahead of their turn; the result is the same.
///
/// # Errors
/// [`Failure`].
pub fn execute<R: StateReader>(
    spec: &ChainSpec,
    block: &Arc<Block>,
    senders: &Senders,
    state: &mut BlockState<'_, R>,
    rooter: &mut ReceiptsRooter,
    ahead: Option<&Ahead<'_>>,
) -> Result<Executed, Failure> {
    let mut steps = Vec::new();
    let result = match run(spec, block, senders, state, rooter, ahead, &mut steps) {
        Ok(Ran::Committed(result)) => Ok(result),
        Ok(Ran::Followed(mut followed, Ok(result))) => {
            if followed.is_confirmed(state) {
                if let Some(error) = state.take_error() {
                    return Err(Failure::Internal(error));
                }
                let executed = executed(result, block.access_list.clone());
                return Ok(Executed { is_followed: true, ..executed });
            }
            followed.repeat(spec, block, state, result)
        }
        // A system call or a withdrawal failed on the list's values.
        Ok(Ran::Followed(_, Err(_))) => {
            state.restart();
            let again = run(spec, block, senders, state, rooter, None, &mut steps);
            again.and_then(|ran| match ran {
                Ran::Committed(result) => Ok(result),
                Ran::Followed(_, result) => result,
            })
        }
        Err(failure) => Err(failure),
    };
    Ok(Executed { steps, ..end(state, result)? })
}

/// End of an execution.
enum Ran {
    /// Everything was committed.
    Committed(BlockExecutionResult<Receipt>),
    /// The transactions agree with the list, and what follows them was executed on its values.
    Followed(Followed, Result<BlockExecutionResult<Receipt>, Failure>),
}

fn executed(result: BlockExecutionResult<Receipt>, access_list: Option<AccessList>) -> Executed {
    let BlockExecutionResult { receipts, requests, gas_used, blob_gas_used } = result;
    let (steps, is_followed) = (Vec::new(), false);
    Executed { receipts, gas_used, blob_gas_used, requests, access_list, steps, is_followed }
}

/// Sends the last changes to the workers. Returns the block's result with its access list.
///
/// # Errors
/// [`Failure`]. A failed read comes first, as it may be why the block seems invalid.
pub(super) fn end<R: StateReader>(
    state: &mut BlockState<'_, R>,
    result: Result<BlockExecutionResult<Receipt>, Failure>,
) -> Result<Executed, Failure> {
    state.flush();
    if let Some(error) = state.take_error() {
        return Err(Failure::Internal(error));
    }
    let result = result?;
    let accesses = state.take_accesses().map(AccessListBuilder::finish).transpose();
    Ok(executed(result, accesses.map_err(Failure::Invalid)?))
}

fn run<R: StateReader>(
    spec: &ChainSpec,
    block: &Arc<Block>,
    senders: &Senders,
    state: &mut BlockState<'_, R>,
    rooter: &mut ReceiptsRooter,
    ahead: Option<&Ahead<'_>>,
    steps: &mut Vec<Arc<StateUpdate>>,
) -> Result<Ran, Failure> {
    let header = &block.header;
    let fork = spec.fork_of(header);
    if fork < Fork::Byzantium {
        state.keep_steps();
    }
    if fork < Fork::Paris {
        apply_dao_fork(spec, header.number, state).map_err(Failure::Internal)?;
    }
    let withdrawals = block.withdrawals.as_deref();
    let mut executor = open(spec, header, &block.ommers, withdrawals, state);
    executor.reserve(block.transactions.len());
    // Only after the merge. Execution ahead does not support a root per transaction (before
    // Byzantium), Constantinople's EVM, or the rules about empty accounts (before EIP-161).
    let ahead = ahead.filter(|_| fork >= Fork::Paris);
    let mut turns = ahead.and_then(|ahead| ahead.start(block, senders, &evm_env(spec, header)));
    publish_next(&mut executor, turns.as_ref(), 0);
    if let Some(listed) = turns.as_ref().and(ahead).and_then(|ahead| ahead.listed.as_ref()) {
        // Without the parent's accounts, the block streams its changes as if there were no list.
        match listed.last_values() {
            Ok(update) => executor.evm_mut().db_mut().foretell(update),
            Err(error) => debug!(%error, "the last values of the access list are not complete"),
        }
    } else if let Some(ahead) = ahead {
        ahead.read_for_system_calls(header);
    }
    executor.apply_pre_execution_changes().map_err(system_call)?;
    executor.evm_mut().db_mut().flush();
    let sources = turns.as_ref().map(Turns::all_sources);
    let mut followed =
        sources.and_then(|sources| Followed::begin(sources, executor.evm_mut().db_mut()));
    let mut longest = Longest::default();
    for (index, transaction) in block.transactions.iter().enumerate() {
        begin_accesses(&mut executor, index + 1);
        let result = match &mut turns {
            Some(turns) => {
                let at = (index, transaction);
                commit_ahead(&mut executor, ahead, turns, at, &mut followed)?
            }
            None => None,
        };
        let gas = match result {
            Some((gas, took)) => {
                longest.note(index, took, true);
                gas
            }
            None => {
                let asked = Instant::now();
                let sender = senders.get(index);
                let sender = sender.ok_or(Failure::Invalid(BlockError::Signature { index }))?;
                let began = Instant::now();
                publish_next(&mut executor, turns.as_ref(), position(index));
                let environment = senders.environment(index, sender);
                let transaction = Recovered::new_unchecked(transaction, sender);
                let done = executor.execute_transaction((environment, transaction));
                let took = began.elapsed();
                longest.note(index, took, false);
                let gas = done.map_err(|error| {
                    failure(error, |error| {
                        let (rule, reason) = (transaction_rule(error), error.to_string());
                        BlockError::Transaction { index, sender, rule, reason }
                    })
                })?;
                if let Some(turns) = &mut turns {
                    turns.note_own(index, gas.tx_gas_used(), asked.elapsed());
                }
                gas
            }
        };
        if let Some(turns) = &turns {
            turns.committed(index);
        }
        let state = executor.evm_mut().db_mut();
        state.end_transaction(gas.tx_gas_used());
        steps.extend(state.take_step());
        rooter.follow(executor.receipts());
    }
    longest.record();
    if let Some(turns) = turns {
        executor.evm_mut().db_mut().publish(None);
        turns.record();
    }
    let Some(followed) = followed else {
        return Ok(Ran::Committed(close(executor, spec, fork, withdrawals)?));
    };
    followed.end_transactions(executor.evm_mut().db_mut());
    Ok(Ran::Followed(followed, close(executor, spec, fork, withdrawals)))
}

/// Returns the executor of a block with this header, before anything is executed.
pub(super) fn open<'b, 's, 'a, R: StateReader>(
    spec: &'s ChainSpec,
    header: &Header,
    ommers: &'b [Header],
    withdrawals: Option<&'b [Withdrawal]>,
    state: &'s mut BlockState<'a, R>,
) -> Executor<'b, 's, 'a, R> {
    let fork = spec.fork_of(header);
    if fork >= Fork::Amsterdam {
        state.list_accesses();
    }
    let (rules, env) = (spec.rules(header), evm_env(spec, header));
    let context = EthBlockExecutionCtx {
        parent_hash: header.parent_hash,
        parent_beacon_block_root: header.parent_beacon_block_root,
        ommers,
        withdrawals: withdrawals.map(Cow::Borrowed),
        extra_data: header.extra_data.clone(),
        tx_count_hint: None,
        slot_number: header.slot_number,
    };
    let evm = match fork {
        Fork::Constantinople => BlockEvm::constantinople(state, env),
        _ => BlockEvm::new(state, env),
    };
    EthBlockExecutor::new(evm, context, rules, ReceiptBuilder)
}

/// Executes what follows the last transaction: system calls, withdrawals, rewards.
///
/// # Errors
/// [`Failure`].
pub(super) fn close<R: StateReader>(
    mut executor: Executor<'_, '_, '_, R>,
    spec: &ChainSpec,
    fork: Fork,
    withdrawals: Option<&[Withdrawal]>,
) -> Result<BlockExecutionResult<Receipt>, Failure> {
    let transactions = executor.receipts().len();
    begin_accesses(&mut executor, transactions + 1);
    if fork >= Fork::Prague {
        check_deposits(spec.deposit_contract(), executor.receipts()).map_err(Failure::Invalid)?;
        let missing = missing_contract(fork, executor.evm_mut().db_mut());
        let missing = missing.map_err(Failure::Internal)?;
        if let Some(address) = missing {
            return Err(Failure::Invalid(BlockError::SystemContractMissing { address }));
        }
    }
    if let Some(accesses) = executor.evm_mut().db_mut().accesses() {
        // alloy-evm leaves out withdrawals of nothing, which access their account too.
        let withdrawals = withdrawals.unwrap_or_default();
        withdrawals.iter().for_each(|withdrawal| accesses.add_account(withdrawal.address));
    }
    let (_, result) = executor.finish().map_err(system_call)?;
    Ok(result)
}

/// Transaction that took longest, for traces.
#[derive(Default)]
struct Longest {
    index: usize,
    took: Duration,
    /// Whether its result came from a thread ahead.
    ahead: bool,
}

impl Longest {
    fn note(&mut self, index: usize, took: Duration, ahead: bool) {
        if took > self.took {
            *self = Self { index, took, ahead };
        }
    }

    /// Records it in the current span, if there was a transaction.
    fn record(&self) {
        if !self.took.is_zero() {
            let span = Span::current();
            span.record("longest.index", self.index);
            span.record("longest.us", self.took.as_micros() as u64);
            span.record("longest.ahead", self.ahead);
        }
    }
}

pub(super) type Executor<'b, 's, 'a, R> =
    EthBlockExecutor<'b, BlockEvm<&'s mut BlockState<'a, R>>, BlockRules<'s>, ReceiptBuilder>;

/// Sets the position of the next commits in the access list.
pub(super) fn begin_accesses<R: StateReader>(executor: &mut Executor<'_, '_, '_, R>, index: usize) {
    if let Some(accesses) = executor.evm_mut().db_mut().accesses() {
        accesses.set_index(index as u64);
    }
}

/// Tells execution ahead the changes of the next commits.
fn publish_next<R: StateReader>(
    executor: &mut Executor<'_, '_, '_, R>,
    turns: Option<&Turns<'_>>,
    position: Position,
) {
    if let Some(turns) = turns {
        let to = turns.sources().map(|sources| (sources, position));
        executor.evm_mut().db_mut().publish(to);
    }
}

/// Commits the result that was executed ahead of its turn, or keeps it if it agrees with the list that
/// the block follows. Returns its gas, and the time that its execution took. Returns `None` if there is
/// no such result, so the transaction must be executed now. A result shows that the signature is valid.
fn commit_ahead<'a, R: StateReader>(
    executor: &mut Executor<'_, '_, '_, R>,
    ahead: Option<&Ahead<'a>>,
    turns: &mut Turns<'a>,
    (index, transaction): (usize, &Transaction),
    followed: &mut Option<Followed>,
) -> Result<Option<(GasOutput, Duration)>, Failure> {
    let taken = match followed {
        Some(_) => turns.take_or_execute(index),
        None => turns.take(index),
    };
    let Some(mut speculation) = taken else {
        leave(executor, followed, index)?;
        return Ok(None);
    };
    // A transaction with more gas than the block has left gets its error from its execution.
    let fits = has_room(executor, transaction.gas_limit());
    let is_kept = match (followed.as_mut(), speculation.agreement.take().filter(|_| fits)) {
        (Some(followed), Some(agreement)) => {
            followed.keep(&agreement, &mut speculation);
            true
        }
        _ => {
            leave(executor, followed, index)?;
            let completed = complete(&mut speculation, index, turns.all_sources());
            completed.map_err(Failure::Internal)?;
            false
        }
    };
    let beneficiary = executor.evm().block().beneficiary;
    let state = executor.evm_mut().db_mut();
    let holds = is_kept || (fits && state.holds(&speculation.reads));
    turns.judge(index, &speculation, holds);
    if !holds {
        if let Some(ahead) = ahead.filter(|_| fits && turns.follows_list()) {
            turns.leave_list(ahead, index, state);
        }
        return Ok(None);
    }
    if let Some((ahead, machine)) = ahead.zip(speculation.executed_by) {
        ahead.foreign.borrow_mut().push((index, machine));
    }
    // The result is published already.
    state.publish(None);
    let Unrewarded { result, reward } = &mut speculation.outcome;
    if let Some(reward) = reward {
        state.reward(&mut result.state, beneficiary, *reward).map_err(Failure::Internal)?;
    }
    let gas = executor.commit_transaction(EthTxResult {
        result: speculation.outcome.result,
        blob_gas_used: transaction.blob_gas_used().unwrap_or_default(),
        tx_type: transaction.tx_type(),
    });
    Ok(Some((gas, speculation.took)))
}

/// Commits what was kept before this transaction, if anything was. From it on, each is committed.
fn leave<R: StateReader>(
    executor: &mut Executor<'_, '_, '_, R>,
    followed: &mut Option<Followed>,
    index: usize,
) -> Result<(), Failure> {
    if let Some(followed) = followed.take() {
        followed.commit(executor)?;
        begin_accesses(executor, index + 1);
    }
    Ok(())
}

/// Returns whether the block has room for a transaction with this gas limit. From Amsterdam on,
/// execution and state growth have a room each (EIP-8037).
pub(super) fn has_room<R: StateReader>(executor: &Executor<'_, '_, '_, R>, gas_limit: u64) -> bool {
    let left = |used| executor.evm().block().gas_limit.saturating_sub(used);
    let rules = executor.evm().cfg_env();
    if !rules.enable_amsterdam_eip8037 {
        return gas_limit <= left(executor.cumulative_tx_gas_used);
    }
    gas_limit.min(rules.tx_gas_limit_cap()) <= left(executor.block_regular_gas_used)
        && gas_limit <= left(executor.block_state_gas_used)
}

pub(super) fn system_call(error: BlockExecutionError) -> Failure {
    failure(error, |error| BlockError::SystemCall { reason: error.to_string() })
}

fn failure(
    error: BlockExecutionError,
    rule: impl FnOnce(&BlockValidationError) -> BlockError,
) -> Failure {
    match error {
        BlockExecutionError::Validation(error) => Failure::Invalid(rule(&error)),
        BlockExecutionError::Internal(error) => Failure::Internal(Error::Evm(error.to_string())),
    }
}

/// Returns the rule that an error of alloy-evm or revm refers to.
pub(super) fn transaction_rule(error: &BlockValidationError) -> TransactionRule {
    let invalid = match error {
        BlockValidationError::TransactionGasLimitMoreThanAvailableBlockGas { .. } => {
            return TransactionRule::BlockGasLeft;
        }
        BlockValidationError::InvalidTx { error, .. } => error.as_invalid_tx_err(),
        _ => None,
    };
    invalid.map_or(TransactionRule::Other, broken_rule)
}
