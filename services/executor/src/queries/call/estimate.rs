//! Gas estimation of a message.

use super::{Message, halt_text, invalid_call};
use crate::{error::Error, state::StateReader};
use alloy_eips::eip7825::MAX_TX_GAS_LIMIT_OSAKA;
use revm::context::result::{ExecutionResult, HaltReason, InvalidTransaction};
use tandem_chain::Fork;
use tandem_primitives::{Bytes, EMPTY_CODE_HASH, U256, keccak256};

/// Cost of the simplest transaction, in gas.
const TRANSFER_GAS: u64 = 21_000;
/// Gas that a call with value adds for the callee.
const CALL_STIPEND: u64 = 2_300;
/// Precision of the search, in thousandths. The search ends when the failing and the succeeding
/// limit differ by less. Callers add a margin of their own, so more runs would not help them.
const PRECISION_PER_MILLE: u64 = 15;

/// Result of an estimate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GasEstimate {
    /// Gas limit with which the message succeeds, slightly above the lowest possible.
    Gas(u64),
    /// The message reverts with any limit, with this data.
    Revert(Bytes),
    /// The message fails with any limit, for this reason.
    Halt(String),
}

/// Result of one run for the search.
enum Run {
    Succeeded {
        used: u64,
        used_max: u64,
    },
    /// More gas may help.
    TooLittle,
    /// The message reverted with this data.
    Reverted(Bytes),
    /// The message ran into an exception that more gas does not prevent.
    Halted(HaltReason),
}

/// Searches a gas limit with which the message succeeds. `limit` is the caller's.
///
/// # Errors
/// As [`super::Calls::estimate_gas`].
pub fn estimate_gas(message: &Message<'_>, limit: Option<u64>) -> Result<GasEstimate, Error> {
    let highest = highest_gas(message, limit)?;
    if is_transfer(message)?
        && let Ok(Run::Succeeded { used, .. }) = run_with(message, TRANSFER_GAS)
    {
        return Ok(GasEstimate::Gas(used));
    }
    let (used, used_max) = match run_with(message, highest)? {
        Run::Succeeded { used, used_max } => (used, used_max),
        Run::TooLittle => {
            let reason = format!("gas required exceeds allowance ({highest})");
            return Err(Error::InvalidCall(reason));
        }
        Run::Reverted(output) => return Ok(GasEstimate::Revert(output)),
        Run::Halted(reason) => return Ok(GasEstimate::Halt(halt_text(&reason))),
    };
    search(message, used, used_max, highest).map(GasEstimate::Gas)
}

/// Returns the highest limit that the chain, the node and the caller's balance allow.
fn highest_gas(message: &Message<'_>, asked: Option<u64>) -> Result<u64, Error> {
    let mut highest = match asked {
        Some(gas) if gas >= TRANSFER_GAS => gas,
        _ => message.header.gas_limit,
    };
    // From Amsterdam on, the cap is that of execution alone (EIP-8037).
    if message.fork() == Fork::Osaka {
        highest = highest.min(MAX_TX_GAS_LIMIT_OSAKA);
    }
    let transaction = &message.transaction;
    let price = transaction.gas_price;
    if price > 0 {
        let account = message.view.account(&keccak256(transaction.caller))?;
        let balance = account.map_or(U256::ZERO, |account| account.balance);
        let short = |what: &str| Error::InvalidCall(format!("insufficient funds for {what}"));
        let left = balance.checked_sub(transaction.value).filter(|left| !left.is_zero());
        let left = left.ok_or_else(|| short("transfer"))?;
        let blob_gas =
            alloy_eips::eip4844::DATA_GAS_PER_BLOB * transaction.blob_hashes.len() as u64;
        let blob_cost = U256::from(blob_gas) * U256::from(transaction.max_fee_per_blob_gas);
        let left = left.checked_sub(blob_cost);
        let left = left.ok_or_else(|| short("gas * price + value"))?;
        highest = highest.min((left / U256::from(price)).saturating_to());
    }
    Ok(highest.min(message.gas_max))
}

/// Returns whether the message runs no code.
fn is_transfer(message: &Message<'_>) -> Result<bool, Error> {
    let Some(to) = message.transaction.kind.to() else { return Ok(false) };
    if !message.transaction.data.is_empty() {
        return Ok(false);
    }
    let account = message.view.account(&keccak256(to))?;
    Ok(account.is_none_or(|account| account.code_hash == EMPTY_CODE_HASH))
}

fn run_with(message: &Message<'_>, gas_limit: u64) -> Result<Run, Error> {
    let mut transaction = message.transaction.clone();
    transaction.gas_limit = gas_limit;
    match message.run(transaction, None)? {
        Ok(ExecutionResult::Success { gas, .. }) => {
            let used_max = gas.total_gas_spent().max(gas.floor_gas());
            Ok(Run::Succeeded { used: gas.tx_gas_used(), used_max })
        }
        Ok(ExecutionResult::Halt { reason: HaltReason::OutOfGas(_), .. })
        | Err(
            InvalidTransaction::CallGasCostMoreThanGasLimit { .. }
            | InvalidTransaction::GasFloorMoreThanGasLimit { .. },
        ) => Ok(Run::TooLittle),
        Ok(ExecutionResult::Revert { output, .. }) => Ok(Run::Reverted(output)),
        Ok(ExecutionResult::Halt { reason, .. }) => Ok(Run::Halted(reason)),
        Err(error) => Err(invalid_call(error)),
    }
}

fn suffices(message: &Message<'_>, gas_limit: u64) -> Result<bool, Error> {
    Ok(matches!(run_with(message, gas_limit)?, Run::Succeeded { .. }))
}

/// Narrows the range between a failing and a succeeding limit. A run that inspects its own gas
/// may fail where a smaller limit succeeds. The returned limit was tried.
fn search(message: &Message<'_>, used: u64, used_max: u64, highest: u64) -> Result<u64, Error> {
    let (mut fails, mut succeeds) = (used.saturating_sub(1), highest);
    // Enough in nearly all cases: gas used before refunds, the stipend, and the 64th part that
    // calls hold back (EIP-150).
    let likely = (used_max + CALL_STIPEND) * 64 / 63;
    if likely < succeeds {
        match suffices(message, likely)? {
            true => succeeds = likely,
            false => fails = likely,
        }
    }
    let coarse = |fails: u64, succeeds: u64| {
        (succeeds - fails).saturating_mul(1000) >= succeeds.saturating_mul(PRECISION_PER_MILLE)
    };
    while fails + 1 < succeeds && coarse(fails, succeeds) {
        // The required gas is far more often near the lower end than near the upper end.
        let middle = (fails + (succeeds - fails) / 2).min(fails.saturating_mul(2));
        match suffices(message, middle)? {
            true => succeeds = middle,
            false => fails = middle,
        }
    }
    Ok(succeeds)
}
