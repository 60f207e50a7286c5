//! Outcomes of transactions, by column.

use super::{
    error::{At, ConvertError, Reason},
    field::{count, items, range, size, split, total},
    state::{codes, number_list, numbers},
};
use crate::{
    tx_executor::{LoadedAccount, LoadedSlot, TxGas, TxLog, TxOutcome},
    wire::tx_executor::v1,
};
use tandem_primitives::{Address, B256, U256};

/// Bits of `Outcome.statuses` that have a meaning.
const STATUS_BITS: u8 = 0b1100_1111;
const HAS_INFO: u8 = 1;
const HAS_CODE: u8 = 2;
const TOPICS_MAX: u64 = 4;

impl From<TxOutcome> for v1::Outcome {
    fn from(outcome: TxOutcome) -> Self {
        let TxOutcome { success, gas, reward, accounts, logs } = outcome;
        let (mut statuses, mut changes, mut slot_changes) = (Vec::new(), Vec::new(), Vec::new());
        let (mut balances, mut slot_values, mut codes) = (Vec::new(), Vec::new(), Vec::new());
        let mut wire = Self {
            success,
            gas_spent: gas.spent,
            state_gas_spent: gas.state,
            gas_refunded: gas.refunded,
            gas_floor: gas.floor,
            reward: reward.map(|reward| reward.to_be_bytes_trimmed_vec().into()),
            ..Self::default()
        };
        for account in accounts {
            wire.accounts.push(account.place);
            statuses.push(account.status);
            let has_code = account.code.as_ref().map_or(0, |_| HAS_CODE);
            changes.push(account.changed.map_or(0, |_| HAS_INFO) | has_code);
            if let Some((nonce, balance)) = account.changed {
                wire.nonces.push(nonce);
                balances.push(balance);
            }
            if let Some(code) = account.code {
                wire.code_sizes.push(size(code.len()));
                codes.extend_from_slice(&code);
            }
            wire.slot_counts.push(size(account.slots.len()));
            for slot in account.slots {
                wire.slots.push(slot.place);
                slot_changes.push(u8::from(slot.changed.is_some()));
                slot_values.extend(slot.changed);
            }
        }
        let (mut addresses, mut topic_counts) = (Vec::new(), Vec::new());
        let (mut topics, mut data) = (Vec::new(), Vec::new());
        for log in logs {
            addresses.extend_from_slice(log.address.as_slice());
            topic_counts.push(log.topics.len() as u8);
            log.topics.iter().for_each(|topic| topics.extend_from_slice(topic.as_slice()));
            wire.log_data_sizes.push(size(log.data.len()));
            data.extend_from_slice(&log.data);
        }
        Self {
            statuses: statuses.into(),
            changes: changes.into(),
            balances: Some(number_list(balances.into_iter())),
            codes: codes.into(),
            slot_changes: slot_changes.into(),
            slot_values: Some(number_list(slot_values.into_iter())),
            log_addresses: addresses.into(),
            log_topic_counts: topic_counts.into(),
            log_topics: topics.into(),
            log_data: data.into(),
            ..wire
        }
    }
}

impl TryFrom<v1::Outcome> for TxOutcome {
    type Error = ConvertError;

    fn try_from(mut wire: v1::Outcome) -> Result<Self, ConvertError> {
        let reward = wire.reward.take().map(|digits| reward(&digits)).transpose().at("reward")?;
        Ok(Self {
            success: wire.success,
            gas: TxGas {
                spent: wire.gas_spent,
                state: wire.state_gas_spent,
                refunded: wire.gas_refunded,
                floor: wire.gas_floor,
            },
            reward,
            logs: logs(&wire)?,
            accounts: loaded(wire)?,
        })
    }
}

fn reward(digits: &[u8]) -> Result<U256, Reason> {
    range(0, 32, digits.len() as u64)?;
    match digits.first() {
        Some(0) => Err(Reason::LeadingZero),
        _ => Ok(U256::from_be_slice(digits)),
    }
}

fn loaded(wire: v1::Outcome) -> Result<Vec<LoadedAccount>, ConvertError> {
    let expected = wire.accounts.len() as u64;
    distinct(wire.accounts.iter().copied()).at("accounts")?;
    count(expected, wire.statuses.len()).at("statuses")?;
    count(expected, wire.changes.len()).at("changes")?;
    count(expected, wire.slot_counts.len()).at("slot_counts")?;
    count(total(&wire.slot_counts), wire.slots.len()).at("slots")?;
    count(wire.slots.len() as u64, wire.slot_changes.len()).at("slot_changes")?;
    for (index, (&status, &change)) in wire.statuses.iter().zip(&wire.changes).enumerate() {
        if status & !STATUS_BITS != 0 {
            let reason = Reason::OutOfRange { min: 0, max: STATUS_BITS.into(), got: status.into() };
            return Err(reason).at_index(index).at("statuses");
        }
        range(0, 3, change).at_index(index).at("changes")?;
    }
    for (index, &change) in wire.slot_changes.iter().enumerate() {
        range(0, 1, change).at_index(index).at("slot_changes")?;
    }
    let with = |bit| wire.changes.iter().filter(|change| **change & bit != 0).count();
    count(with(HAS_INFO) as u64, wire.nonces.len()).at("nonces")?;
    let balances = numbers(&wire.balances.unwrap_or_default(), wire.nonces.len());
    count(with(HAS_CODE) as u64, wire.code_sizes.len()).at("code_sizes")?;
    let changed = total(&wire.slot_changes) as usize;
    let values = numbers(&wire.slot_values.unwrap_or_default(), changed).at("slot_values")?;

    let mut infos = wire.nonces.iter().copied().zip(balances.at("balances")?);
    let mut codes = codes(&wire.code_sizes, &wire.codes)?;
    let mut slots = wire.slots.iter().zip(&wire.slot_changes);
    let mut values = values.into_iter();
    let rows = wire.accounts.iter().zip(&wire.statuses).zip(&wire.changes).zip(&wire.slot_counts);
    let mut accounts = Vec::with_capacity(wire.accounts.len());
    for (index, (((&place, &status), &change), &slot_count)) in rows.enumerate() {
        let own = slots.by_ref().take(slot_count as usize);
        let own = own.map(|(&place, &is_changed)| LoadedSlot {
            place,
            changed: if is_changed == 1 { values.next() } else { None },
        });
        let own: Vec<_> = own.collect();
        distinct(own.iter().map(|slot| slot.place)).at_index(index).at("slots")?;
        accounts.push(LoadedAccount {
            place,
            status,
            changed: if change & HAS_INFO != 0 { infos.next() } else { None },
            code: if change & HAS_CODE != 0 { codes.next() } else { None },
            slots: own,
        });
    }
    Ok(accounts)
}

fn logs(wire: &v1::Outcome) -> Result<Vec<TxLog>, ConvertError> {
    let addresses = items::<20>(&wire.log_addresses).at("log_addresses")?;
    count(addresses.len() as u64, wire.log_topic_counts.len()).at("log_topic_counts")?;
    count(addresses.len() as u64, wire.log_data_sizes.len()).at("log_data_sizes")?;
    for (index, &topics) in wire.log_topic_counts.iter().enumerate() {
        range(0, TOPICS_MAX, topics).at_index(index).at("log_topic_counts")?;
    }
    let mut topics = items::<32>(&wire.log_topics).at("log_topics")?;
    count(total(&wire.log_topic_counts), topics.len()).at("log_topics")?;
    let data = split(&wire.log_data_sizes, wire.log_data.clone()).at("log_data")?;
    let rows = addresses.iter().zip(&wire.log_topic_counts[..]).zip(data);
    let logs = rows.map(|((address, &topic_count), data)| {
        let (own, behind) = topics.split_at(topic_count.into());
        topics = behind;
        TxLog {
            address: Address::from(address),
            topics: own.iter().map(B256::from).collect(),
            data,
        }
    });
    Ok(logs.collect())
}

/// Refuses a number that occurs twice. Ascending ones, as tx-executors send them, take no sorting.
fn distinct(numbers: impl Iterator<Item = u32> + Clone) -> Result<(), ConvertError> {
    if numbers.clone().is_sorted_by(|one, next| one < next) {
        return Ok(());
    }
    let mut sorted: Vec<_> = numbers.enumerate().map(|(at, number)| (number, at)).collect();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(pair) => Err(Reason::Duplicate).at_index(pair[1].1),
        None => Ok(()),
    }
}
