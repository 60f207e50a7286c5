//! Accounts, slots and diffs.

use super::{
    error::{At, ConvertError, Reason},
    field::{count, hash_list, items, length, range, size, total},
};
use crate::{multiproof::StateUpdate, wire::multiproof_workers, wire::types::v1};
use tandem_primitives::{
    Account, AccountUpdate, B256, Bytes, EMPTY_CODE_HASH, SlotUpdate, StateDiff, U256,
};

const EXISTS: u8 = 1;
const HAS_CODE: u8 = 2;

/// Required order of keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Each key is greater than the previous one.
    Ascending,
    /// Any order without duplicates.
    Any,
}

impl Order {
    fn check(self, keys: &[[u8; 32]]) -> Result<(), ConvertError> {
        let Some(index) = keys.windows(2).position(|pair| pair[0] >= pair[1]) else {
            return Ok(());
        };
        if self == Self::Ascending {
            let same = keys[index] == keys[index + 1];
            let reason = if same { Reason::Duplicate } else { Reason::NotAscending };
            return Err(reason).at_index(index + 1);
        }
        let mut sorted: Vec<_> = keys.iter().enumerate().map(|(index, key)| (key, index)).collect();
        sorted.sort_unstable();
        match sorted.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            Some(pair) => Err(Reason::Duplicate).at_index(pair[1].1),
            None => Ok(()),
        }
    }
}

/// Encodes a list of numbers as a field.
pub fn number_list(numbers: impl Iterator<Item = U256>) -> v1::Uint256List {
    let (mut lengths, mut digits) = (Vec::new(), Vec::new());
    for number in numbers {
        let length = number.byte_len();
        lengths.push(length as u8);
        digits.extend_from_slice(&number.to_be_bytes::<32>()[32 - length..]);
    }
    v1::Uint256List { lengths: lengths.into(), digits: digits.into() }
}

/// Reads `expected` numbers.
pub fn numbers(wire: &v1::Uint256List, expected: usize) -> Result<Vec<U256>, ConvertError> {
    count(expected as u64, wire.lengths.len()).at("lengths")?;
    for (index, &length) in wire.lengths.iter().enumerate() {
        range(0, 32, length).at_index(index).at("lengths")?;
    }
    length(total(&wire.lengths), wire.digits.len()).at("digits")?;
    let mut numbers = Vec::with_capacity(expected);
    let mut rest = &wire.digits[..];
    for (index, &length) in wire.lengths.iter().enumerate() {
        let (digits, behind) = rest.split_at(length.into());
        if digits.first() == Some(&0) {
            return Err(Reason::LeadingZero).at_index(index).at("digits");
        }
        numbers.push(U256::from_be_slice(digits));
        rest = behind;
    }
    Ok(numbers)
}

/// Encodes a list of accounts as a field.
pub fn account_list(accounts: impl Iterator<Item = Option<Account>> + Clone) -> v1::Accounts {
    let (mut flags, mut nonces, mut code_hashes) = (Vec::new(), Vec::new(), Vec::new());
    for account in accounts.clone() {
        let Some(account) = account else {
            flags.push(0);
            continue;
        };
        nonces.push(account.nonce);
        if account.code_hash == EMPTY_CODE_HASH {
            flags.push(EXISTS);
        } else {
            flags.push(EXISTS | HAS_CODE);
            code_hashes.extend_from_slice(account.code_hash.as_slice());
        }
    }
    let balances = number_list(accounts.flatten().map(|account| account.balance));
    v1::Accounts {
        flags: flags.into(),
        nonces,
        balances: Some(balances),
        code_hashes: code_hashes.into(),
    }
}

/// Reads `expected` accounts, present or not.
pub fn accounts(
    wire: &v1::Accounts,
    expected: usize,
) -> Result<Vec<Option<Account>>, ConvertError> {
    count(expected as u64, wire.flags.len()).at("flags")?;
    let (mut existing, mut with_code) = (0, 0);
    for (index, &flags) in wire.flags.iter().enumerate() {
        match flags {
            0 => {}
            EXISTS => existing += 1,
            // Code without an account is as invalid as an unknown bit.
            HAS_CODE | 4.. => {
                let reason = Reason::OutOfRange { min: 0, max: 3, got: flags.into() };
                return Err(reason).at_index(index).at("flags");
            }
            _ => {
                existing += 1;
                with_code += 1;
            }
        }
    }
    count(existing as u64, wire.nonces.len()).at("nonces")?;
    let balances = match &wire.balances {
        Some(balances) => numbers(balances, existing),
        None => numbers(&v1::Uint256List::default(), existing),
    };
    let balances = balances.at("balances")?;
    length(with_code * 32, wire.code_hashes.len()).at("code_hashes")?;

    let mut present = wire.nonces.iter().zip(balances);
    let mut code_hashes = items(&wire.code_hashes).at("code_hashes")?.iter().map(B256::from);
    let accounts = wire.flags.iter().map(|&flags| {
        if flags & EXISTS == 0 {
            return None;
        }
        let (&nonce, balance) = present.next()?;
        let code_hash = if flags & HAS_CODE == 0 { EMPTY_CODE_HASH } else { code_hashes.next()? };
        Some(Account { nonce, balance, code_hash })
    });
    Ok(accounts.collect())
}

/// Encodes updates of accounts as a field.
pub fn update_list(updates: &[AccountUpdate]) -> v1::AccountUpdates {
    let slots = || updates.iter().flat_map(|update| &update.slots);
    let slot_count = updates.iter().map(|update| update.slots.len()).sum::<usize>();
    let mut slot_keys = Vec::with_capacity(slot_count * 32);
    for slot in slots() {
        slot_keys.extend_from_slice(slot.key.as_slice());
    }
    let wiped = updates.iter().enumerate().filter(|(_, update)| update.wiped);
    v1::AccountUpdates {
        address_hashes: hash_list(updates.iter().map(|update| &update.address_hash)),
        accounts: Some(account_list(updates.iter().map(|update| update.account))),
        wiped: wiped.map(|(index, _)| size(index)).collect(),
        slot_counts: updates.iter().map(|update| size(update.slots.len())).collect(),
        slot_keys: slot_keys.into(),
        slot_values: Some(number_list(slots().map(|slot| slot.value))),
    }
}

/// Reads updates of accounts. Each account and each of its slots occurs once.
pub fn updates(wire: v1::AccountUpdates, order: Order) -> Result<Vec<AccountUpdate>, ConvertError> {
    let addresses = items(&wire.address_hashes).at("address_hashes")?;
    order.check(addresses).at("address_hashes")?;
    let accounts = accounts(&wire.accounts.unwrap_or_default(), addresses.len()).at("accounts")?;
    check_positions(&wire.wiped, addresses.len()).at("wiped")?;
    count(addresses.len() as u64, wire.slot_counts.len()).at("slot_counts")?;
    let mut keys: &[[u8; 32]] = items(&wire.slot_keys).at("slot_keys")?;
    count(total(&wire.slot_counts), keys.len()).at("slot_keys")?;
    let values = numbers(&wire.slot_values.unwrap_or_default(), keys.len()).at("slot_values")?;

    let mut values = values.into_iter();
    let mut wiped = wire.wiped.iter().map(|&position| position as usize).peekable();
    let mut updates = Vec::with_capacity(addresses.len());
    let rows = addresses.iter().zip(accounts).zip(&wire.slot_counts).enumerate();
    for (position, ((address, account), &slot_count)) in rows {
        let (own, behind) = keys.split_at(slot_count as usize);
        order.check(own).at("slot_keys").at_index(position)?;
        keys = behind;
        let slots = own.iter().zip(&mut values);
        updates.push(AccountUpdate {
            address_hash: address.into(),
            account,
            wiped: wiped.next_if_eq(&position).is_some(),
            slots: slots.map(|(key, value)| SlotUpdate { key: key.into(), value }).collect(),
        });
    }
    Ok(updates)
}

/// Checks positions in a list of `items` items, which must ascend.
fn check_positions(positions: &[u32], items: usize) -> Result<(), ConvertError> {
    for (index, pair) in positions.windows(2).enumerate() {
        if pair[0] >= pair[1] {
            return Err(Reason::NotAscending).at_index(index + 1);
        }
    }
    match positions.last() {
        Some(&last) if last as usize >= items => {
            let max = (items as u64).saturating_sub(1);
            let reason = Reason::OutOfRange { min: 0, max, got: last.into() };
            Err(reason).at_index(positions.len() - 1)
        }
        _ => Ok(()),
    }
}

impl From<&StateDiff> for v1::StateDiff {
    fn from(diff: &StateDiff) -> Self {
        let mut codes = Vec::with_capacity(diff.codes.iter().map(|(_, code)| code.len()).sum());
        for (_, code) in &diff.codes {
            codes.extend_from_slice(code);
        }
        Self {
            accounts: Some(update_list(&diff.accounts)),
            code_hashes: hash_list(diff.codes.iter().map(|(hash, _)| hash)),
            code_sizes: diff.codes.iter().map(|(_, code)| size(code.len())).collect(),
            codes: codes.into(),
        }
    }
}

impl TryFrom<v1::StateDiff> for StateDiff {
    type Error = ConvertError;

    fn try_from(wire: v1::StateDiff) -> Result<Self, ConvertError> {
        let accounts = updates(wire.accounts.unwrap_or_default(), Order::Ascending);
        let hashes = items::<32>(&wire.code_hashes).at("code_hashes")?;
        count(hashes.len() as u64, wire.code_sizes.len()).at("code_sizes")?;
        let codes = codes(&wire.code_sizes, &wire.codes)?;
        let codes = hashes.iter().map(B256::from).zip(codes).collect();
        Ok(Self { accounts: accounts.at("accounts")?, codes })
    }
}

/// Reads codes by their sizes and copies each one. Code lives long in caches, where a slice would
/// keep the whole message alive.
pub fn codes<'a>(
    sizes: &'a [u32],
    bytes: &'a [u8],
) -> Result<impl Iterator<Item = Bytes> + 'a, ConvertError> {
    length(total(sizes), bytes.len()).at("codes")?;
    let mut rest = bytes;
    Ok(sizes.iter().map(move |&size| {
        let (code, behind) = rest.split_at(size as usize);
        rest = behind;
        Bytes::copy_from_slice(code)
    }))
}

impl From<&StateUpdate> for multiproof_workers::v1::StateUpdate {
    fn from(update: &StateUpdate) -> Self {
        Self { accounts: Some(update_list(&update.accounts)) }
    }
}

impl TryFrom<multiproof_workers::v1::StateUpdate> for StateUpdate {
    type Error = ConvertError;

    fn try_from(wire: multiproof_workers::v1::StateUpdate) -> Result<Self, ConvertError> {
        let accounts = updates(wire.accounts.unwrap_or_default(), Order::Any);
        Ok(Self { accounts: accounts.at("accounts")? })
    }
}
