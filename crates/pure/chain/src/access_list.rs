//! Block-level access list (EIP-7928) in its RLP form, checked without being decoded into objects.
//!
//! A list of many megabytes comes with a payload before anything about the block is proved. So the
//! check walks over the bytes once and allocates nothing.

use crate::{BlockError, codec::take_item};
use alloy_primitives::{Address, B256, Bytes, b256, keccak256};
use std::cmp::Ordering;
use std::fmt;

/// Hash of the empty list.
pub(crate) const EMPTY_ACCESS_LIST_HASH: B256 =
    b256!("0x1dcc4de8dec75d7aab85b567b6ccd41ad312451b948a7413f0a142fd40d49347");

/// Gas of a block per item that its list may have.
const ITEM_GAS: u64 = 2_000;

/// List that decodes, with its measures and the first rule of form that it breaks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccessList {
    rlp: Bytes,
    hash: B256,
    items: u64,
    changed: u64,
    index_max: u32,
    flaw: Option<AccessListFlaw>,
}

/// Rule of order or uniqueness that an access list breaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccessListFlaw {
    /// Account whose entry breaks the rule.
    pub account: Address,
    /// Broken rule.
    pub rule: AccessListRule,
}

/// Rule about the order and uniqueness of a list's parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessListRule {
    /// Accounts ascend by address.
    Accounts,
    /// Slots of one of the account's two lists ascend.
    Slots,
    /// A slot is in one of the account's two lists.
    SlotTwice,
    /// A changed slot has a change.
    NoChange,
    /// Changes of one value ascend by index.
    Indices,
}

impl fmt::Display for AccessListFlaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let broken = match self.rule {
            AccessListRule::Accounts => "is not above the account before it",
            AccessListRule::Slots => "has slots that do not ascend",
            AccessListRule::SlotTwice => "has a slot that is both changed and read",
            AccessListRule::NoChange => "has a changed slot without a change",
            AccessListRule::Indices => "has changes whose indices do not ascend",
        };
        write!(f, "account {} {broken}", self.account)
    }
}

/// Account, slot or change that is being walked over, and what was found so far.
#[derive(Default)]
struct Walk {
    account: Address,
    items: u64,
    changed: u64,
    index_max: u32,
    flaw: Option<AccessListFlaw>,
}

/// Big-endian integer without leading zeros.
type Integer<'a> = &'a [u8];

impl AccessList {
    /// Decodes a list that uses up all bytes. Order and uniqueness are checked later, by
    /// [`AccessList::check`].
    ///
    /// # Errors
    /// [`BlockError::AccessListEncoding`].
    pub fn decode(rlp: Bytes) -> Result<Self, BlockError> {
        match Walk::over(&rlp) {
            Ok(Walk { items, changed, index_max, flaw, .. }) => {
                let hash = keccak256(&rlp);
                Ok(Self { rlp, hash, items, changed, index_max, flaw })
            }
            Err(reason) => Err(BlockError::AccessListEncoding { reason }),
        }
    }

    /// Returns the bytes of the list.
    pub fn rlp(&self) -> &Bytes {
        &self.rlp
    }

    /// Returns the hash of the list, as headers have it.
    pub fn hash(&self) -> B256 {
        self.hash
    }

    /// Returns the number of accounts and slots, which a block's gas limit bounds.
    pub fn items(&self) -> u64 {
        self.items
    }

    /// Returns the number of accounts whose balance, nonce or code changes, and of changed slots.
    pub fn changed(&self) -> u64 {
        self.changed
    }

    /// Checks the list against the rules that need no execution: order, uniqueness, the largest
    /// index, the number of items.
    ///
    /// # Errors
    /// [`BlockError::AccessListForm`], [`BlockError::AccessListIndex`],
    /// [`BlockError::AccessListTooLong`].
    pub fn check(&self, transactions: usize, gas_limit: u64) -> Result<(), BlockError> {
        if let Some(flaw) = self.flaw {
            return Err(BlockError::AccessListForm { flaw });
        }
        // 0 stands for before the transactions, the last index for after them.
        let limit = u32::try_from(transactions).unwrap_or(u32::MAX).saturating_add(1);
        if self.index_max > limit {
            return Err(BlockError::AccessListIndex { got: self.index_max, limit });
        }
        check_items(self.items, gas_limit)
    }
}

/// Checks the number of accounts and slots against the block's gas limit.
///
/// # Errors
/// [`BlockError::AccessListTooLong`].
pub(crate) fn check_items(got: u64, gas_limit: u64) -> Result<(), BlockError> {
    let limit = gas_limit / ITEM_GAS;
    if got > limit {
        return Err(BlockError::AccessListTooLong { got, limit });
    }
    Ok(())
}

/// Returns in words which account is the first that two decodable lists have different entries of.
pub(crate) fn first_difference(given: &[u8], executed: &[u8]) -> Option<String> {
    let (mut given, mut executed) = (Entries::of(given), Entries::of(executed));
    loop {
        match (given.next(), executed.next()) {
            (None, None) => return None,
            (Some(given), Some(executed)) if given == executed => {}
            (Some((given, _)), Some((executed, _))) if given == executed => {
                return Some(format!("execution gives other accesses of account {given}"));
            }
            (Some((given, _)), Some((executed, _))) if given > executed => {
                return Some(format!("account {executed} is missing"));
            }
            (None, Some((executed, _))) => return Some(format!("account {executed} is missing")),
            (Some((given, _)), _) => {
                return Some(format!("execution does not access account {given}"));
            }
        }
    }
}

/// Accounts of a list with their entries. Ends at bytes of another form.
struct Entries<'a>(&'a [u8]);

impl<'a> Entries<'a> {
    fn of(mut rlp: &'a [u8]) -> Self {
        Self(take_list(&mut rlp).unwrap_or_default())
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = (Address, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let entry = take_list(&mut self.0).ok()?;
        let address = take_string(&mut { entry }).ok()?;
        Some((Address::try_from(address).ok()?, entry))
    }
}

impl Walk {
    fn over(mut rlp: &[u8]) -> alloy_rlp::Result<Self> {
        let mut walk = Self::default();
        let mut accounts = take_list(&mut rlp)?;
        if !rlp.is_empty() {
            return Err(alloy_rlp::Error::UnexpectedLength);
        }
        let mut before: Option<Address> = None;
        while !accounts.is_empty() {
            let mut fields = take_list(&mut accounts)?;
            let address = take_string(&mut fields)?;
            walk.account =
                Address::try_from(address).map_err(|_| alloy_rlp::Error::UnexpectedLength)?;
            walk.items += 1;
            walk.demand(
                before.is_none_or(|before| before < walk.account),
                AccessListRule::Accounts,
            );
            before = Some(walk.account);
            walk.slots(&mut fields)?;
            let mut is_changed = false;
            for value in [Value::Balance, Value::Nonce, Value::Code] {
                let changes = take_list(&mut fields)?;
                is_changed |= !changes.is_empty();
                walk.changes(changes, value)?;
            }
            walk.changed += u64::from(is_changed);
            if !fields.is_empty() {
                return Err(alloy_rlp::Error::UnexpectedLength);
            }
        }
        Ok(walk)
    }

    fn demand(&mut self, holds: bool, rule: AccessListRule) {
        if !holds && self.flaw.is_none() {
            self.flaw = Some(AccessListFlaw { account: self.account, rule });
        }
    }

    /// Walks over the changed and the read slots of an account.
    fn slots(&mut self, fields: &mut &[u8]) -> alloy_rlp::Result<()> {
        let changed = take_list(fields)?;
        let (mut rest, mut before) = (changed, None);
        while !rest.is_empty() {
            let mut slot = take_list(&mut rest)?;
            let key = take_integer(&mut slot, 32)?;
            self.ascend(&mut before, key);
            self.changed += 1;
            let changes = take_list(&mut slot)?;
            self.demand(!changes.is_empty(), AccessListRule::NoChange);
            self.changes(changes, Value::Slot)?;
            if !slot.is_empty() {
                return Err(alloy_rlp::Error::UnexpectedLength);
            }
        }
        let (mut rest, mut before) = (take_list(fields)?, None);
        let (mut others, mut other) = (changed, None);
        while !rest.is_empty() {
            let key = take_integer(&mut rest, 32)?;
            self.ascend(&mut before, key);
            // Both lists ascend, so one pass finds the slots that are in both.
            while other.is_none_or(|other| compare(other, key).is_lt()) && !others.is_empty() {
                other = Some(take_integer(&mut take_list(&mut others)?, 32)?);
            }
            self.demand(other != Some(key), AccessListRule::SlotTwice);
        }
        Ok(())
    }

    /// Counts a slot and compares it with the one before.
    fn ascend<'a>(&mut self, before: &mut Option<Integer<'a>>, key: Integer<'a>) {
        self.items += 1;
        let ascends = before.is_none_or(|before| compare(before, key).is_lt());
        self.demand(ascends, AccessListRule::Slots);
        *before = Some(key);
    }

    /// Walks over the changes of one value: pairs of index and new value.
    fn changes(&mut self, mut changes: &[u8], value: Value) -> alloy_rlp::Result<()> {
        let mut before = None;
        while !changes.is_empty() {
            let mut change = take_list(&mut changes)?;
            let index = take_integer(&mut change, 4)?;
            let index = index.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
            match value {
                Value::Slot | Value::Balance => take_integer(&mut change, 32)?,
                Value::Nonce => take_integer(&mut change, 8)?,
                Value::Code => take_string(&mut change)?,
            };
            if !change.is_empty() {
                return Err(alloy_rlp::Error::UnexpectedLength);
            }
            self.demand(before.is_none_or(|before| before < index), AccessListRule::Indices);
            before = Some(index);
            self.index_max = self.index_max.max(index);
        }
        Ok(())
    }
}

/// Kind of a value that changes.
#[derive(Clone, Copy)]
enum Value {
    Slot,
    Balance,
    Nonce,
    Code,
}

fn compare(a: Integer<'_>, b: Integer<'_>) -> Ordering {
    (a.len(), a).cmp(&(b.len(), b))
}

fn take_list<'a>(rlp: &mut &'a [u8]) -> alloy_rlp::Result<&'a [u8]> {
    match take_item(rlp)? {
        (header, payload) if header.list => Ok(payload),
        _ => Err(alloy_rlp::Error::UnexpectedString),
    }
}

fn take_string<'a>(rlp: &mut &'a [u8]) -> alloy_rlp::Result<&'a [u8]> {
    match take_item(rlp)? {
        (header, payload) if !header.list => Ok(payload),
        _ => Err(alloy_rlp::Error::UnexpectedList),
    }
}

fn take_integer<'a>(rlp: &mut &'a [u8], bytes_max: usize) -> alloy_rlp::Result<Integer<'a>> {
    let digits = take_string(rlp)?;
    if digits.first() == Some(&0) {
        return Err(alloy_rlp::Error::LeadingZero);
    }
    if digits.len() > bytes_max {
        return Err(alloy_rlp::Error::Overflow);
    }
    Ok(digits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_eips::eip7928::{
        AccountChanges, BalanceChange, BlockAccessIndex, CodeChange, NonceChange, SlotChanges,
        StorageChange, compute_block_access_list_hash, total_bal_items,
    };
    use alloy_primitives::U256;

    fn index(index: u64) -> BlockAccessIndex {
        BlockAccessIndex::new(index)
    }

    fn slot(key: u64, indices: &[u64]) -> SlotChanges {
        let change = |at: &u64| StorageChange::new(index(*at), U256::from(*at));
        SlotChanges::new(U256::from(key), indices.iter().map(change).collect())
    }

    /// Returns an account with every kind of change.
    fn account(address: u8) -> AccountChanges {
        AccountChanges {
            address: Address::repeat_byte(address),
            storage_changes: vec![slot(2, &[0, 3]), slot(256, &[1])],
            storage_reads: vec![U256::from(1), U256::from(3), U256::MAX],
            balance_changes: vec![
                BalanceChange::new(index(1), U256::ZERO),
                BalanceChange::new(index(2), U256::MAX),
            ],
            nonce_changes: vec![NonceChange::new(index(1), u64::MAX)],
            code_changes: vec![CodeChange::new(index(1), vec![0, 1].into())],
        }
    }

    fn encode(list: &[AccountChanges]) -> Bytes {
        let mut rlp = Vec::new();
        alloy_rlp::encode_list::<_, AccountChanges>(list, &mut rlp);
        rlp.into()
    }

    fn check(list: &[AccountChanges], transactions: usize, gas: u64) -> Result<(), BlockError> {
        AccessList::decode(encode(list))?.check(transactions, gas)
    }

    fn flaw(list: &[AccountChanges]) -> Option<AccessListRule> {
        match check(list, 100, 1_000_000) {
            Ok(()) => None,
            Err(BlockError::AccessListForm { flaw }) => Some(flaw.rule),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn a_canonical_list_is_measured() {
        let list = [account(1), account(2)];
        let decoded = AccessList::decode(encode(&list)).unwrap();
        assert_eq!(decoded.items(), total_bal_items(&list));
        assert_eq!((decoded.items(), decoded.changed()), (12, 6));
        let read = AccountChanges { storage_reads: vec![U256::ZERO], ..AccountChanges::default() };
        assert_eq!(AccessList::decode(encode(&[read])).unwrap().changed(), 0);
        assert_eq!(decoded.hash(), compute_block_access_list_hash(&list));
        assert_eq!(decoded.check(2, 24_000), Ok(()));
        let long = BlockError::AccessListTooLong { got: 12, limit: 11 };
        assert_eq!(decoded.check(2, 23_999), Err(long));
        let index = BlockError::AccessListIndex { got: 3, limit: 2 };
        assert_eq!(decoded.check(1, 24_000), Err(index));
        let empty = AccessList::decode(encode(&[])).unwrap();
        assert_eq!((empty.items(), empty.check(0, 0)), (0, Ok(())));
        assert_eq!(keccak256(empty.rlp()), EMPTY_ACCESS_LIST_HASH);
    }

    #[test]
    fn accounts_slots_and_indices_ascend() {
        use AccessListRule::{Accounts, Indices, NoChange, SlotTwice, Slots};
        assert_eq!(flaw(&[account(1), account(2)]), None);
        assert_eq!(flaw(&[account(2), account(1)]), Some(Accounts));
        assert_eq!(flaw(&[account(1), account(1)]), Some(Accounts));
        let changed = |change: fn(&mut AccountChanges)| {
            let mut account = account(1);
            change(&mut account);
            flaw(&[account])
        };
        assert_eq!(changed(|a| a.storage_changes.reverse()), Some(Slots));
        assert_eq!(changed(|a| a.storage_changes[1].slot = U256::from(2)), Some(Slots));
        assert_eq!(changed(|a| a.storage_reads.reverse()), Some(Slots));
        assert_eq!(changed(|a| a.storage_reads[0] = U256::from(3)), Some(Slots));
        assert_eq!(changed(|a| a.storage_reads[1] = U256::from(2)), Some(SlotTwice));
        assert_eq!(changed(|a| a.storage_reads[2] = U256::from(256)), Some(SlotTwice));
        assert_eq!(changed(|a| a.storage_changes[1].changes.clear()), Some(NoChange));
        assert_eq!(changed(|a| a.storage_changes[0].changes.reverse()), Some(Indices));
        assert_eq!(changed(|a| a.balance_changes.reverse()), Some(Indices));
        let again = changed(|a| a.nonce_changes.push(NonceChange::new(index(1), 0)));
        assert_eq!(again, Some(Indices));
        let again = changed(|a| a.code_changes.push(CodeChange::new(index(0), Bytes::new())));
        assert_eq!(again, Some(Indices));
    }

    #[test]
    fn bytes_of_another_form_do_not_decode() {
        let good = encode(&[account(1)]);
        for length in 0..good.len() {
            assert!(AccessList::decode(good.slice(..length)).is_err(), "{length} bytes");
        }
        let mut longer = good.to_vec();
        longer.push(0xc0);
        assert!(AccessList::decode(longer.into()).is_err());
        let of = |entry: &[u8]| {
            let mut rlp = vec![0xc0 + entry.len() as u8];
            rlp.extend_from_slice(entry);
            AccessList::decode(rlp.into())
        };
        let entry = |fields: &[u8]| {
            let mut entry = vec![0xc0 + 21 + fields.len() as u8, 0x94];
            entry.extend_from_slice(&[7; 20]);
            entry.extend_from_slice(fields);
            of(&entry)
        };
        assert!(entry(&[0xc0; 5]).is_ok());
        for fields in [
            &[0xc0; 4][..],
            &[0xc0; 6],
            &[0x80, 0xc0, 0xc0, 0xc0, 0xc0],
            // A slot as a list, with a leading zero, and of 33 bytes.
            &[0xc0, 0xc1, 0xc0, 0xc0, 0xc0, 0xc0],
            &[0xc0, 0xc1, 0x00, 0xc0, 0xc0, 0xc0],
            // A change of a balance without a value, and with two.
            &[0xc0, 0xc0, 0xc2, 0xc1, 0x01, 0xc0, 0xc0],
            &[0xc0, 0xc0, 0xc4, 0xc3, 0x01, 0x01, 0x01, 0xc0, 0xc0],
            // An index of five bytes.
            &[0xc0, 0xc0, 0xc8, 0xc7, 0x85, 1, 1, 1, 1, 1, 0x01, 0xc0, 0xc0],
        ] {
            assert!(entry(fields).is_err(), "{fields:x?}");
        }
        assert!(of(&[0x80]).is_err());
        assert!(AccessList::decode(Bytes::new()).is_err());
    }
}
