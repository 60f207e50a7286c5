//! Execution of a block whose transactions are chosen one by one while it executes.
//!
//! The EVM, the system calls and the rules are those of [`execute`](super::execute). A transaction
//! that breaks a rule leaves no trace, and the block goes on without it.

use crate::{
    block::{
        execute::{
            Executed, Executor, Failure, begin_accesses, close, end, has_room, open, system_call,
            transaction_rule,
        },
        requests::have_deposit_layout,
    },
    error::Error,
    state::{BlockState, StateReader},
};
use alloy_consensus::{Header, Transaction as _, transaction::Recovered};
use alloy_eips::eip4895::Withdrawal;
use alloy_evm::{
    Evm, FromRecoveredTx,
    block::{BlockExecutionError, BlockExecutionResult, BlockExecutor, BlockValidationError},
};
use revm::{
    context::{TxEnv, result::InvalidTransaction},
    context_interface::Cfg as _,
};
use tandem_chain::{ChainSpec, Fork, Receipt, Transaction, TransactionRule};
use tandem_primitives::{Address, U256};

/// Gas below which no transaction fits into a block: the least that any transaction uses in any
/// fork (EIP-2780 for Amsterdam).
const LEAST_GAS: u64 = 21_000;
const LEAST_GAS_AMSTERDAM: u64 = 4_500;

/// Transaction that may get into the block.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The transaction, without blobs.
    pub transaction: Transaction,
    /// Sender, recovered from the signature.
    pub sender: Address,
}

/// Result of a candidate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Judgment {
    /// It is in the block.
    Taken,
    /// The block has no room for its gas any more.
    NoRoom,
    /// It breaks this rule; the text is for people.
    Refused(TransactionRule, String),
}

/// Source of the transactions of a block.
pub trait Candidates {
    /// Returns the next candidate, `None` if the block is to be closed.
    ///
    /// # Errors
    /// The build is given up.
    fn next(&mut self) -> Result<Option<Candidate>, Error>;

    /// Learns what became of the last candidate.
    fn judged(&mut self, judgment: Judgment);
}

/// Executed block, and what its transactions paid.
pub struct Filled {
    /// Result of the execution.
    pub executed: Executed,
    /// Income of the fee recipient, in wei.
    pub value: U256,
}

/// Executes a block with this header and the candidates that fit. The header needs neither roots nor
/// gas used. The changes are in `state` afterwards.
///
/// # Errors
/// [`Failure`]: [`Failure::Invalid`] if no block can be built at all.
pub fn fill<R: StateReader>(
    spec: &ChainSpec,
    header: &Header,
    withdrawals: Option<&[Withdrawal]>,
    state: &mut BlockState<'_, R>,
    candidates: &mut dyn Candidates,
) -> Result<Filled, Failure> {
    let mut value = U256::ZERO;
    let result = run(spec, header, withdrawals, state, candidates, &mut value);
    Ok(Filled { executed: end(state, result)?, value })
}

fn run<R: StateReader>(
    spec: &ChainSpec,
    header: &Header,
    withdrawals: Option<&[Withdrawal]>,
    state: &mut BlockState<'_, R>,
    candidates: &mut dyn Candidates,
    value: &mut U256,
) -> Result<BlockExecutionResult<Receipt>, Failure> {
    let fork = spec.fork_of(header);
    let base_fee = header.base_fee_per_gas.unwrap_or_default();
    let mut executor = open(spec, header, &[], withdrawals, state);
    executor.apply_pre_execution_changes().map_err(system_call)?;
    executor.evm_mut().db_mut().flush();
    while !is_full(&executor, fork)
        && let Some(candidate) = candidates.next().map_err(Failure::Internal)?
    {
        let gas = attempt(spec, &mut executor, &candidate)?;
        let judgment = gas.map_or_else(
            |judgment| judgment,
            |gas| {
                let tip = candidate.transaction.effective_tip_per_gas(base_fee).unwrap_or_default();
                *value += U256::from(tip) * U256::from(gas);
                executor.evm_mut().db_mut().end_transaction(gas);
                Judgment::Taken
            },
        );
        candidates.judged(judgment);
    }
    close(executor, spec, fork, withdrawals)
}

/// Executes a candidate and commits it. Returns its gas, or the reason why it is not in the block.
fn attempt<R: StateReader>(
    spec: &ChainSpec,
    executor: &mut Executor<'_, '_, '_, R>,
    candidate: &Candidate,
) -> Result<Result<u64, Judgment>, Failure> {
    let Candidate { transaction, sender } = candidate;
    if !has_room(executor, transaction.gas_limit()) {
        return Ok(Err(Judgment::NoRoom));
    }
    let index = executor.receipts().len() + 1;
    begin_accesses(executor, index);
    let environment = TxEnv::from_recovered_tx(transaction, *sender);
    let recovered = Recovered::new_unchecked(transaction, *sender);
    let result = match executor.execute_transaction_without_commit((environment, recovered)) {
        Ok(result) => result,
        Err(BlockExecutionError::Validation(error)) => {
            let (rule, reason) = (transaction_rule(&error), reason(*sender, &error));
            return Ok(Err(Judgment::Refused(rule, reason)));
        }
        Err(BlockExecutionError::Internal(error)) => {
            return Err(Failure::Internal(Error::Evm(error.to_string())));
        }
    };
    // A deposit whose log cannot be read would make the block invalid (EIP-6110).
    if !have_deposit_layout(spec.deposit_contract(), result.result.result.logs()) {
        let reason = "its deposit cannot be read".to_owned();
        return Ok(Err(Judgment::Refused(TransactionRule::Other, reason)));
    }
    Ok(Ok(executor.commit_transaction(result).tx_gas_used()))
}

/// Describes why a transaction is refused. Callers match on the text, so the wording of the most
/// frequent reasons is geth's.
fn reason(sender: Address, error: &BlockValidationError) -> String {
    let invalid = match error {
        BlockValidationError::InvalidTx { error, .. } => error.as_invalid_tx_err(),
        _ => None,
    };
    match invalid {
        Some(InvalidTransaction::NonceTooHigh { tx, state }) => {
            format!("nonce too high: address {sender}, tx: {tx} state: {state}")
        }
        Some(InvalidTransaction::NonceTooLow { tx, state }) => {
            format!("nonce too low: address {sender}, tx: {tx} state: {state}")
        }
        Some(invalid) => invalid.to_string(),
        None => error.to_string(),
    }
}

/// Returns whether no further transaction can fit.
fn is_full<R: StateReader>(executor: &Executor<'_, '_, '_, R>, fork: Fork) -> bool {
    let least = if fork >= Fork::Amsterdam { LEAST_GAS_AMSTERDAM } else { LEAST_GAS };
    debug_assert!(least <= executor.evm().cfg_env().tx_gas_limit_cap());
    !has_room(executor, least)
}
