//! Results of transactions, as they travel from a tx-executor.

use crate::{
    ahead::speculate::{Miss, Reader, Speculation, position},
    block::evm::Unrewarded,
    error::Error,
    state::{
        code::analyze,
        listed::{ListedAccount, ListedState, agreement::Reward},
        reads::{Reads, Recorder, Sources},
        state_after,
    },
};
use alloy_primitives::{Bytes, Log, LogData, map::HashMap};
use revm::{
    Database as _,
    context::result::{
        ExecutionResult, HaltReason, Output, ResultAndState, ResultGas, SuccessReason,
    },
    state::{
        Account as EvmAccount, AccountStatus, Bytecode, EvmState, EvmStorageSlot, TransactionId,
    },
};
use std::{sync::Arc, time::Duration};
use tandem_primitives::{Address, EMPTY_CODE_HASH, keccak256};
use tandem_proto::tx_executor::{LoadedAccount, LoadedSlot, TxGas, TxLog, TxOutcome};

/// Returns what travels of a result. `None` if it touches what the list does not name.
pub fn outcome_of(speculation: Speculation, listed: &ListedState) -> Option<TxOutcome> {
    let Unrewarded { result: ResultAndState { result, state }, reward } = speculation.outcome;
    let accounts = state.iter().map(|(address, account)| loaded(listed.get(address)?, account));
    let (mut accounts, gas) = (accounts.collect::<Option<Vec<_>>>()?, gas_of(&result));
    // The receiver need not sort them to find one that is there twice.
    accounts.sort_unstable_by_key(|account| account.place);
    let success = result.is_success();
    let logs = result.into_logs().into_iter().map(|log| TxLog {
        address: log.address,
        topics: log.data.topics().to_vec(),
        data: log.data.data,
    });
    Some(TxOutcome { success, gas, reward, accounts, logs: logs.collect() })
}

fn gas_of(result: &ExecutionResult<HaltReason>) -> TxGas {
    let gas = result.gas();
    TxGas {
        spent: gas.total_gas_spent(),
        state: gas.state_gas_spent_final(),
        refunded: gas.inner_refunded(),
        floor: gas.floor_gas(),
    }
}

/// Returns what travels of an account. `None` if the list lacks a slot of it.
pub fn loaded(listed: &ListedAccount, account: &EvmAccount) -> Option<LoadedAccount> {
    let (before, after) = (account.original_info(), &account.info);
    let is_changed = (before.nonce, before.balance) != (after.nonce, after.balance);
    let has_code = before.code_hash != after.code_hash;
    let code = has_code.then(|| after.code.as_ref().map(Bytecode::original_bytes));
    let slots = account.storage.iter().map(|(key, slot)| {
        let place = u32::try_from(listed.slot_place(key)?).ok()?;
        Some(LoadedSlot { place, changed: slot.is_changed().then_some(slot.present_value) })
    });
    let mut slots = slots.collect::<Option<Vec<_>>>()?;
    slots.sort_unstable_by_key(|slot| slot.place);
    Some(LoadedAccount {
        place: u32::try_from(listed.place).ok()?,
        status: account.status.difference(AccountStatus::Cold).bits(),
        changed: is_changed.then_some((after.nonce, after.balance)),
        code: code.map(Option::unwrap_or_default),
        slots,
    })
}

/// Makes the result of a transaction with this gas limit from what travelled. The values of its
/// reads come from the recorder, so the tx-executor has no say in them. The result has an agreement
/// ([`Speculation::agreement`]) if it leaves what the list has at its position.
///
/// # Errors
/// [`Error`] if a value cannot be read. `None` inside if the outcome names what is not in the list,
/// or is impossible.
pub fn speculation_of(
    outcome: TxOutcome,
    (index, gas_limit, beneficiary): (usize, u64, Address),
    recorder: &mut Recorder<Reader<'_>>,
    listed: &ListedState,
    (took, executed_by): (Duration, usize),
) -> Result<Option<Speculation>, Error> {
    let TxOutcome { success, gas, reward, accounts, logs } = outcome;
    if gas.spent > gas_limit || gas.floor > gas_limit || gas.refunded > gas.spent {
        return Ok(None);
    }
    recorder.begin(position(index));
    let reward_of = |amount| -> Result<Reward, Error> {
        let before = recorder.account_before(beneficiary)?;
        Ok(Reward { beneficiary, amount, before })
    };
    let fee = reward.map(reward_of).transpose()?;
    let agreement = listed.agreement_of_loaded(position(index), &accounts, fee);
    let (state, reads, agreement, loaded) = match agreement {
        Some(agreement) => (EvmState::default(), Reads::default(), Some(agreement), Some(accounts)),
        None => {
            let made = state_of(accounts, index, recorder, listed)?;
            let Some((state, reads)) = made else { return Ok(None) };
            let agreement = listed.agreement(position(index), &state, fee);
            (state, reads, agreement, None)
        }
    };
    let gas = ResultGas::new_with_state_gas(gas.spent, gas.refunded, gas.floor, gas.state);
    let logs = logs.into_iter().map(|log| Log {
        address: log.address,
        data: LogData::new_unchecked(log.topics, log.data),
    });
    let logs = logs.collect();
    // Reason and output are in no receipt.
    let result = match success {
        true => {
            let (reason, output) = (SuccessReason::Stop, Output::Call(Bytes::new()));
            ExecutionResult::Success { reason, gas, logs, output }
        }
        false => ExecutionResult::Revert { gas, logs, output: Bytes::new() },
    };
    let outcome = Unrewarded { result: ResultAndState::new(result, state), reward };
    let executed_by = Some(executed_by);
    Ok(Some(Speculation { outcome, reads, took, executed_by, agreement, loaded }))
}

/// Makes state and reads of a result of which it has only what a tx-executor sent.
///
/// # Errors
/// [`Error`] if a value cannot be read.
pub fn complete(
    speculation: &mut Speculation,
    index: usize,
    sources: &Arc<Sources>,
) -> Result<(), Error> {
    let Some(loaded) = speculation.loaded.take() else { return Ok(()) };
    (speculation.outcome.result.state, speculation.reads) = loaded_state(loaded, index, sources)?;
    Ok(())
}

/// Returns the state that a transaction leaves, and its reads, from what travelled of a result that agrees
/// with the list.
///
/// # Errors
/// [`Error`] if a value cannot be read.
pub fn loaded_state(
    loaded: Vec<LoadedAccount>,
    index: usize,
    sources: &Arc<Sources>,
) -> Result<(EvmState, Reads), Error> {
    let reader = Reader::new(sources.parent.clone(), Miss::Read);
    let mut recorder = Recorder::new(sources.clone(), reader);
    let listed = sources.listed.as_deref().ok_or(Error::NotInMemory)?;
    // A result that agrees names only what the list has.
    state_of(loaded, index, &mut recorder, listed)?.ok_or(Error::NotInMemory)
}

/// Returns the state that a transaction leaves, and its reads. `None` if the list lacks one of its keys.
fn state_of(
    accounts: Vec<LoadedAccount>,
    index: usize,
    recorder: &mut Recorder<Reader<'_>>,
    listed: &ListedState,
) -> Result<Option<(EvmState, Reads)>, Error> {
    recorder.begin(position(index));
    let mut state = EvmState::default();
    for loaded in accounts {
        let Some((address, at)) = listed.at(loaded.place as usize) else { return Ok(None) };
        let Some(account) = account_of(loaded, address, at, recorder)? else { return Ok(None) };
        state.insert(address, account);
    }
    Ok(Some((state, recorder.take_reads())))
}

/// Returns the account as the transaction leaves it.
fn account_of(
    loaded: LoadedAccount,
    address: Address,
    listed: &ListedAccount,
    recorder: &mut Recorder<Reader<'_>>,
) -> Result<Option<EvmAccount>, Error> {
    let Some(status) = AccountStatus::from_bits(loaded.status) else { return Ok(None) };
    let info = recorder.basic(address)?;
    let is_missing = info.is_none();
    let mut account = match info {
        Some(info) => EvmAccount::from(info),
        None => EvmAccount::new_not_existing(TransactionId::ZERO),
    };
    account.status = status;
    account.status.set(AccountStatus::LoadedAsNotExisting, is_missing);
    if let Some((nonce, balance)) = loaded.changed {
        (account.info.nonce, account.info.balance) = (nonce, balance);
    }
    if let Some(code) = loaded.code {
        let hash = if code.is_empty() { EMPTY_CODE_HASH } else { keccak256(&code) };
        (account.info.code_hash, account.info.code) = (hash, Some(analyze(code)));
    }
    let mut storage = HashMap::default();
    for slot in loaded.slots {
        let Some((key, _)) = listed.slot_at(slot.place as usize) else { return Ok(None) };
        // A new account has no storage, and the EVM reads none.
        let original = match account.is_created() {
            true => alloy_primitives::U256::ZERO,
            false => recorder.storage(address, key)?,
        };
        let present = slot.changed.unwrap_or(original);
        storage.insert(key, EvmStorageSlot::new_changed(original, present, TransactionId::ZERO));
    }
    account.storage = storage;
    Ok(Some(account))
}

/// Returns whether two results of a transaction have the same effect.
pub fn is_same(own: &Speculation, foreign: &Speculation) -> bool {
    let (a, b) = (&own.outcome, &foreign.outcome);
    let is_written = |state: &EvmState, other: &EvmState| {
        state.iter().all(|(address, account)| {
            let Some(other) = other.get(address) else { return false };
            let slots = account.storage.iter().all(|(key, slot)| {
                other.storage.get(key).is_some_and(|other| {
                    (slot.original_value, slot.present_value)
                        == (other.original_value, other.present_value)
                })
            });
            let effect = |account: &EvmAccount| {
                let after = account.is_touched().then(|| state_after(account));
                (after, account.is_selfdestructed_locally(), account.is_created_locally())
            };
            slots && effect(account) == effect(other)
        })
    };
    a.reward == b.reward
        && a.result.result.is_success() == b.result.result.is_success()
        && gas_of(&a.result.result) == gas_of(&b.result.result)
        && a.result.result.logs() == b.result.result.logs()
        && a.result.state.len() == b.result.state.len()
        && is_written(&a.result.state, &b.result.state)
        && is_written(&b.result.state, &a.result.state)
}
