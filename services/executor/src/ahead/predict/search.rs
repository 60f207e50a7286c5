//! Search for a rule: which hash of a call's parts equals a slot that the call read.

use super::{
    Call,
    pattern::{Order, Part, Place},
};
use alloy_primitives::map::HashMap;
use tandem_primitives::{Address, U256};
use tandem_trie::HashBatch;

/// Number of slots searched for mappings: those of the first variables.
const SLOTS: u64 = 24;
/// Number of words tried as keys.
const WORDS: usize = 8;
/// Number of the call's other accounts tried as keys.
const ACCOUNTS: usize = 6;
/// Maximum slots of a value before the one read, as in a struct.
const OFFSETS: u64 = 4;
/// Bound between slots of variables, below it, and hashes, above it.
const VARIABLES: u64 = 1 << 32;

/// Returns whether a word may be an address. An address is never a small number.
pub fn may_be_address(word: &U256) -> bool {
    (64..=160).contains(&word.bit_len())
}

/// Returns the address in the lower bytes of a word.
pub fn address(word: U256) -> Address {
    Address::from_word(word.into())
}

/// Returns the argument that names this account.
pub fn argument(call: &Call, account: &Address) -> Option<Part> {
    let inner = || call.inner.contains(&account.into_word().into()).then_some(Part::EachInner);
    word(call, account).or_else(inner)
}

fn word(call: &Call, account: &Address) -> Option<Part> {
    let wanted: U256 = account.into_word().into();
    call.words.iter().position(|word| *word == wanted).map(Part::Word)
}

/// Returns the part of a call that is this account.
pub fn owner(call: &Call, account: &Address) -> Part {
    match *account {
        account if account == call.callee => Part::Callee,
        account if account == call.sender => Part::Sender,
        account => word(call, &account).unwrap_or(Part::Fixed(account)),
    }
}

/// Returns for each slot that was read the place that explains it, if any.
pub fn places(
    call: &Call,
    accounts: &[Address],
    slots: &[(Address, U256)],
) -> Vec<((Address, U256), Option<Place>)> {
    let variable = |slot: &U256| *slot < U256::from(VARIABLES);
    let mut found: Vec<_> = slots
        .iter()
        .map(|&(account, slot)| ((account, slot), variable(&slot).then_some(Place::Slot(slot))))
        .collect();
    let is_missing = |found: &[(_, Option<Place>)]| found.iter().any(|(_, place)| place.is_none());
    if is_missing(&found) {
        let parts = parts(call, accounts);
        let mappings = mappings(&parts);
        explain(&mut found, &mappings);
        // The expensive part: a hash for each pair of keys.
        if is_missing(&found) {
            explain(&mut found, &nested(&parts, &mappings));
        }
    }
    found
}

/// Returns the possible keys, most significant first: the first matching rule of a slot wins.
fn parts(call: &Call, accounts: &[Address]) -> Vec<(Part, U256)> {
    let mut parts: Vec<(Part, U256)> = Vec::new();
    let mut add = |part, value| {
        if parts.iter().all(|(_, known)| *known != value) {
            parts.push((part, value));
        }
    };
    add(Part::Sender, call.sender.into_word().into());
    for (at, word) in call.words.iter().enumerate().take(WORDS) {
        add(Part::Word(at), *word);
    }
    add(Part::Callee, call.callee.into_word().into());
    for word in call.inner.iter().filter(|word| may_be_address(word)).take(WORDS) {
        add(Part::EachInner, *word);
    }
    for account in accounts.iter().take(ACCOUNTS) {
        add(owner(call, account), account.into_word().into());
    }
    parts
}

/// Inputs of a hash.
#[derive(Clone, Copy)]
struct Hashed {
    slot: u64,
    order: Order,
    key: Part,
    second: Option<Part>,
}

impl Hashed {
    fn place(self, offset: u64) -> Place {
        let Self { slot, order, key, second } = self;
        match second {
            None => Place::Mapping { slot, order, key, offset },
            Some(second) => Place::Nested { slot, order, keys: [key, second], offset },
        }
    }
}

/// Hashes that are computed together, which takes a fraction of the time.
#[derive(Default)]
struct Hashes {
    preimages: HashBatch,
    inputs: Vec<Hashed>,
}

impl Hashes {
    /// Adds the hash of a key in the mapping at `slot`.
    fn add(&mut self, slot: U256, key: U256, input: Hashed) {
        self.preimages.push(&input.order.preimage(slot, key));
        self.inputs.push(input);
    }

    /// Returns the inputs by their hash.
    fn compute(mut self) -> HashMap<U256, Hashed> {
        let mut found = HashMap::default();
        for (hash, input) in self.preimages.hash().iter().zip(self.inputs) {
            found.entry((*hash).into()).or_insert(input);
        }
        found
    }
}

/// Returns the hashes of each part in a mapping at each slot.
fn mappings(parts: &[(Part, U256)]) -> HashMap<U256, Hashed> {
    let mut hashes = Hashes::default();
    for &(key, value) in parts {
        for slot in 0..SLOTS {
            for order in [Order::KeyFirst, Order::SlotFirst] {
                hashes.add(U256::from(slot), value, Hashed { slot, order, key, second: None });
            }
        }
    }
    hashes.compute()
}

/// Returns the hashes of each part in a mapping within one of those mappings.
fn nested(parts: &[(Part, U256)], mappings: &HashMap<U256, Hashed>) -> HashMap<U256, Hashed> {
    // Two lists as keys would yield as many slots as their product.
    let list = |part| part == Part::EachInner;
    let mut hashes = Hashes::default();
    for (inner, hashed) in mappings.iter().filter(|(_, hashed)| !list(hashed.key)) {
        for &(second, value) in parts.iter().filter(|(part, _)| !list(*part)) {
            hashes.add(*inner, value, Hashed { second: Some(second), ..*hashed });
        }
    }
    hashes.compute()
}

/// Assigns a place to each unexplained slot that equals one of the hashes.
fn explain(found: &mut [((Address, U256), Option<Place>)], hashes: &HashMap<U256, Hashed>) {
    for ((_, slot), place) in found.iter_mut().filter(|(_, place)| place.is_none()) {
        *place = (0..OFFSETS).find_map(|offset| {
            let begin = slot.checked_sub(U256::from(offset))?;
            hashes.get(&begin).map(|found| found.place(offset))
        });
    }
}
