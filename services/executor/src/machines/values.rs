//! Values of the parent's state that the list names, in the parts in which they travel.

use crate::{
    error::Error,
    state::{listed::ListedState, parent::ParentState},
};
use alloy_primitives::map::B256Set;
use tandem_primitives::{Account, B256, Bytes, EMPTY_CODE_HASH, U256};
use tandem_proto::{
    limits::{READ_ACCOUNTS_MAX, TX_PART_BYTES},
    tx_executor::ParentValues,
};

/// Number of accounts, or of slots, of one part: at most 53 bytes each.
const VALUES_MAX: usize = TX_PART_BYTES / 64;
const _: () = assert!(VALUES_MAX <= READ_ACCOUNTS_MAX);

/// All values of a block.
pub struct Values {
    accounts: Vec<Option<Account>>,
    slots: Vec<U256>,
    /// Codes of the accounts, by their hashes.
    codes: Vec<(B256, Bytes)>,
}

impl Values {
    /// Reads what the list names.
    ///
    /// # Errors
    /// [`Error`] if a value cannot be read.
    pub fn read(listed: &ListedState, parent: &dyn ParentState) -> Result<Self, Error> {
        let (mut accounts, mut slots, mut codes) = (Vec::new(), Vec::new(), Vec::new());
        let mut known = B256Set::default();
        for at in listed.in_order() {
            let account = parent.account(&at.hash)?;
            accounts.push(account);
            for slot in at.slot_hashes() {
                let is_there = account.is_some();
                slots.push(if is_there { parent.slot(&at.hash, &slot)? } else { U256::ZERO });
            }
            let code_hash = account.map_or(EMPTY_CODE_HASH, |account| account.code_hash);
            if code_hash != EMPTY_CODE_HASH && known.insert(code_hash) {
                codes.push((code_hash, parent.code(&code_hash)?.original_bytes()));
            }
        }
        Ok(Self { accounts, slots, codes })
    }

    /// Returns the hashes of the codes.
    pub fn code_hashes(&self) -> impl Iterator<Item = &B256> {
        self.codes.iter().map(|(hash, _)| hash)
    }

    /// Returns the values in parts, with the codes that the receiver lacks.
    pub fn parts(&self, lacks: impl Fn(&B256) -> bool) -> Vec<ParentValues> {
        let accounts = self.accounts.chunks(VALUES_MAX);
        let accounts = accounts
            .map(|part| ParentValues { accounts: part.to_vec(), ..ParentValues::default() });
        let slots = self.slots.chunks(VALUES_MAX);
        let slots =
            slots.map(|part| ParentValues { slots: part.to_vec(), ..ParentValues::default() });
        let mut parts: Vec<_> = accounts.chain(slots).collect();
        let mut codes = ParentValues::default();
        let mut bytes = 0;
        for (_, code) in self.codes.iter().filter(|(hash, _)| lacks(hash)) {
            if bytes + code.len() > TX_PART_BYTES && bytes > 0 {
                parts.push(std::mem::take(&mut codes));
                bytes = 0;
            }
            bytes += code.len();
            codes.codes.push(code.clone());
        }
        codes.last = true;
        parts.push(codes);
        parts
    }
}

/// Returns the size of a part in bytes, about.
pub fn bytes_of(part: &ParentValues) -> usize {
    let codes: usize = part.codes.iter().map(|code| code.len()).sum();
    part.accounts.len() * 45 + part.slots.len() * 17 + codes
}
