//! Values of the parent's state that the list names, in the parts in which they travel.

use crate::state::listed::{ParentAccounts, ParentSlots};
use tandem_primitives::B256;
use tandem_proto::{
    limits::{READ_ACCOUNTS_MAX, TX_PART_BYTES},
    tx_executor::ParentValues,
};

/// Number of accounts, or of slots, of one part: at most 53 bytes each.
const VALUES_MAX: usize = TX_PART_BYTES / 64;
const _: () = assert!(VALUES_MAX <= READ_ACCOUNTS_MAX);

/// Returns the accounts in parts, with the codes that the receiver lacks.
pub fn account_parts(parent: &ParentAccounts, lacks: impl Fn(&B256) -> bool) -> Vec<ParentValues> {
    let accounts = parent.accounts.chunks(VALUES_MAX);
    let accounts =
        accounts.map(|part| ParentValues { accounts: part.to_vec(), ..ParentValues::default() });
    let mut parts: Vec<_> = accounts.collect();
    let mut last = ParentValues::default();
    let mut bytes = 0;
    for (_, code) in parent.codes.iter().filter(|(hash, _)| lacks(hash)) {
        if bytes + code.len() > TX_PART_BYTES && bytes > 0 {
            parts.push(std::mem::take(&mut last));
            bytes = 0;
        }
        bytes += code.len();
        last.codes.push(code.clone());
    }
    last.slots_follow = true;
    parts.push(last);
    parts
}

/// Returns the slots in parts.
pub fn slot_parts(parent: &ParentSlots) -> Vec<ParentValues> {
    let slots = parent.slots.chunks(VALUES_MAX);
    let slots = slots.map(|part| ParentValues { slots: part.to_vec(), ..ParentValues::default() });
    let mut parts: Vec<_> = slots.collect();
    match parts.last_mut() {
        Some(part) => part.last = true,
        None => parts.push(ParentValues { last: true, ..ParentValues::default() }),
    }
    parts
}

/// Returns the size of a part in bytes, about.
pub fn bytes_of(part: &ParentValues) -> usize {
    let codes: usize = part.codes.iter().map(|code| code.len()).sum();
    part.accounts.len() * 45 + part.slots.len() * 17 + codes
}
