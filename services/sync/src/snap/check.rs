//! Checks of parts of a state. Pure: each is proved by the root, the account or the hash that it was
//! asked for by.

use alloy_rlp::Decodable;
use std::collections::HashMap;
use tandem_primitives::{Account, B256, Bytes, U256, keccak256};
use tandem_proto::snap::{Leaf, StateItems};
use tandem_trie::{check_range, decode_account_leaf};

/// Reason why an answer is of no use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The peer does not have what was asked for.
    Absent,
    /// The peer sent what its proof or hash disproves.
    Lie,
}

/// Account by its hashed address, and the root of its storage.
pub type FoundAccount = (B256, Account, B256);

/// Accounts of a range.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccountRange {
    /// Accounts in the order of their keys.
    pub accounts: Vec<FoundAccount>,
    /// Whether the trie has further accounts.
    pub more: bool,
}

/// Slots of one account from a key on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SlotRange {
    /// Hashed address.
    pub owner: B256,
    /// Slots by their hashes.
    pub slots: Vec<(B256, U256)>,
    /// Whether the account has further slots.
    pub more: bool,
}

fn pairs(leaves: Vec<Leaf>) -> Vec<(B256, Bytes)> {
    leaves.into_iter().map(|Leaf { key, value }| (key, value)).collect()
}

/// Checks accounts from a key on.
///
/// # Errors
/// [`Fault`].
pub fn accounts(root: B256, start: B256, items: StateItems) -> Result<AccountRange, Fault> {
    let StateItems::Accounts { leaves, proof } = items else { return Err(Fault::Lie) };
    if leaves.is_empty() && proof.is_empty() {
        return Err(Fault::Absent);
    }
    let leaves = pairs(leaves);
    let more = check_range(root, start, &leaves, &proof).map_err(|_| Fault::Lie)?;
    let account = |(key, value): &(B256, Bytes)| {
        let (account, root) = decode_account_leaf(value)?;
        Some((*key, account, root))
    };
    // The root vouches for the bytes, so a value that is no account cannot be replaced.
    let accounts = leaves.iter().map(account).collect::<Option<_>>().ok_or(Fault::Lie)?;
    Ok(AccountRange { accounts, more })
}

/// Checks slots of these accounts, given with the roots of their storage. The first range begins at
/// `start`. Each of the accounts has slots. Returns those of the first accounts.
///
/// # Errors
/// [`Fault`].
pub fn slots(
    wanted: &[(B256, B256)],
    start: B256,
    items: StateItems,
) -> Result<Vec<SlotRange>, Fault> {
    let StateItems::Slots { tries, proof } = items else { return Err(Fault::Lie) };
    if tries.is_empty() && proof.is_empty() {
        return Err(Fault::Absent);
    }
    // A range from a later key on may be empty, and is proved to be.
    let count = tries.len().max(1);
    if count > wanted.len() {
        return Err(Fault::Lie);
    }
    let mut tries = tries.into_iter();
    let mut ranges = Vec::with_capacity(count);
    for (at, (owner, root)) in wanted[..count].iter().enumerate() {
        let leaves = pairs(tries.next().unwrap_or_default());
        let start = if at == 0 { start } else { B256::ZERO };
        // Only the last range may need a proof.
        let proof = if at + 1 == count { &proof[..] } else { &[] };
        let more = check_range(*root, start, &leaves, proof).map_err(|_| Fault::Lie)?;
        let slot = |(key, value): (B256, Bytes)| {
            let value = U256::decode(&mut &value[..]).ok().filter(|value| !value.is_zero())?;
            Some((key, value))
        };
        let slots = leaves.into_iter().map(slot).collect::<Option<_>>().ok_or(Fault::Lie)?;
        ranges.push(SlotRange { owner: *owner, slots, more });
    }
    Ok(ranges)
}

/// Checks access lists of blocks by their hashes. A peer may lack some, and leave out the last ones.
/// Returns those before the first one that lacks.
///
/// # Errors
/// [`Fault`].
pub fn access_lists(wanted: &[B256], lists: Vec<Option<Bytes>>) -> Result<Vec<Bytes>, Fault> {
    let mut found = Vec::with_capacity(lists.len());
    for (hash, list) in wanted.iter().zip(lists) {
        let Some(list) = list else { break };
        if keccak256(&list) != *hash {
            return Err(Fault::Lie);
        }
        found.push(list);
    }
    if found.is_empty() { Err(Fault::Absent) } else { Ok(found) }
}

/// Checks codes. A peer may leave out some.
///
/// # Errors
/// [`Fault`].
pub fn codes(wanted: &[B256], items: StateItems) -> Result<HashMap<B256, Bytes>, Fault> {
    let StateItems::Codes(codes) = items else { return Err(Fault::Lie) };
    if codes.is_empty() {
        return Err(Fault::Absent);
    }
    let mut left = wanted.iter();
    let mut found = HashMap::with_capacity(codes.len());
    for code in codes {
        let hash = keccak256(&code);
        if !left.any(|wanted| *wanted == hash) {
            return Err(Fault::Lie);
        }
        found.insert(hash, code);
    }
    Ok(found)
}
