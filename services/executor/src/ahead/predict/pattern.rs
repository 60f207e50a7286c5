//! Rules by which the keys that a function reads follow from a call.

use super::{Call, Keys, search};
use alloy_primitives::map::HashSet;
use tandem_primitives::{Address, U256, keccak256};

/// Maximum number of rules kept for one function.
const RULES_MAX: usize = 64;
/// Number of first calls of a function that are all examined. Later calls are examined
/// occasionally.
const FIRST: u32 = 4;
const LATER_EVERY: u32 = 32;
/// Maximum number of calls of one function whose keys are searched for a rule, the expensive part.
const SEARCHES_MAX: u32 = 16;
/// Maximum number of remembered keys without a rule, to recognize them later.
const STRANGERS_MAX: usize = 32;

/// Part of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    Sender,
    Callee,
    /// Word at this position of the arguments.
    Word(usize),
    /// Each word from this position on that may be an address.
    EachFrom(usize),
    /// Each word in the arguments of a call within the arguments that may be an address.
    EachInner,
    /// Account that every call of this function reads.
    Fixed(Address),
}

/// Hash order of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Key first, then the mapping's own slot: Solidity.
    KeyFirst,
    /// The mapping's own slot first, then the key: Vyper.
    SlotFirst,
}

/// Place in an account's storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// This slot.
    Slot(U256),
    /// The value of a key in the mapping at `slot`, plus `offset` slots.
    Mapping { slot: u64, order: Order, key: Part, offset: u64 },
    /// The value of two keys in a mapping of mappings, plus `offset` slots.
    Nested { slot: u64, order: Order, keys: [Part; 2], offset: u64 },
}

/// Key that a function reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    Account(Part),
    Slot(Part, Place),
}

/// Knowledge about one function.
#[derive(Default)]
pub struct Pattern {
    rules: Vec<Rule>,
    calls: u32,
    searches: u32,
    /// Slots of one call without a rule. If such a slot occurs in another call, every call is
    /// assumed to read it.
    strangers: Vec<(Address, U256)>,
}

impl Pattern {
    /// Adds the keys that the rules predict for a call.
    pub fn predict(&self, call: &Call, keys: &mut Keys) {
        for rule in &self.rules {
            match *rule {
                Rule::Account(part) => {
                    keys.accounts.extend(call.parts(part).map(search::address));
                }
                Rule::Slot(account, place) => {
                    for account in call.parts(account).map(search::address) {
                        let before = keys.slots.len();
                        call.slots(place, |slot| keys.slots.push((account, slot)));
                        if keys.slots.len() > before {
                            keys.accounts.push(account);
                        }
                    }
                }
            }
        }
    }

    /// Returns whether no call with slots was counted.
    pub fn has_no_call(&self) -> bool {
        self.calls == 0
    }

    /// Counts a call with slots, and returns whether to learn from it.
    pub fn is_due(&mut self) -> bool {
        self.calls = self.calls.saturating_add(1);
        self.calls <= FIRST || self.calls.is_multiple_of(LATER_EVERY)
    }

    /// Searches for rules for a call's unpredicted reads, if `may_search`.
    pub fn learn(&mut self, call: &Call, read: &Keys, may_search: impl FnOnce() -> bool) {
        let mut keys = Keys::default();
        self.predict(call, &mut keys);
        let foretold: HashSet<(Address, U256)> = keys.slots.into_iter().collect();
        let mut missed = read.slots.clone();
        missed.retain(|slot| !foretold.contains(slot));
        let named = [call.sender, call.callee];
        let mut accounts = read.accounts.clone();
        accounts.retain(|account| !keys.accounts.contains(account) && !named.contains(account));
        if missed.is_empty() && accounts.is_empty()
            || self.searches >= SEARCHES_MAX
            || !may_search()
        {
            return;
        }
        self.searches += 1;
        let known = |account: &Address| read.slots.iter().any(|(address, _)| address == account);
        for account in accounts.iter().filter(|account| !known(account)) {
            // An account that no argument names may be a different one next time.
            if let Some(part) = search::argument(call, account) {
                self.add(Rule::Account(part));
            }
        }
        let mut strangers = Vec::new();
        for (account, found) in search::places(call, &read.accounts, &missed) {
            let (address, slot) = account;
            let of = search::owner(call, &address);
            match found {
                Some(place) => self.add(Rule::Slot(of, place)),
                None if self.strangers.contains(&account) => {
                    self.add(Rule::Slot(of, Place::Slot(slot)));
                }
                None => strangers.push(account),
            }
        }
        strangers.truncate(STRANGERS_MAX);
        self.strangers = strangers;
    }

    /// Adds a rule. If it differs from another only in the argument word, adds a rule for each
    /// word.
    fn add(&mut self, rule: Rule) {
        if self.rules.contains(&rule) || self.rules.len() >= RULES_MAX {
            return;
        }
        let each = self.rules.iter().find_map(|known| join(known, &rule));
        self.rules.push(rule);
        let Some(each) = each else { return };
        match self.rules.iter_mut().find(|known| join(known, &each).is_some()) {
            Some(known) => *known = each,
            None => self.rules.push(each),
        }
    }
}

fn join(one: &Rule, other: &Rule) -> Option<Rule> {
    let part = |one: Part, other: Part| match (one, other) {
        (Part::Word(a), Part::Word(b)) | (Part::EachFrom(a), Part::EachFrom(b)) => {
            Some(Part::EachFrom(a.min(b)))
        }
        _ => None,
    };
    match (*one, *other) {
        (Rule::Account(a), Rule::Account(b)) => part(a, b).map(Rule::Account),
        (
            Rule::Slot(account, Place::Mapping { slot, order, key, offset }),
            Rule::Slot(other, Place::Mapping { slot: of, order: by, key: with, offset: at }),
        ) if (account, slot, order, offset) == (other, of, by, at) => {
            let key = part(key, with)?;
            Some(Rule::Slot(account, Place::Mapping { slot, order, key, offset }))
        }
        _ => None,
    }
}

impl Call {
    /// Returns the values of a part; none if the call lacks the word.
    fn parts(&self, part: Part) -> impl Iterator<Item = U256> {
        let (words, one) = match part {
            Part::Sender => (&[][..], Some(self.sender.into_word().into())),
            Part::Callee => (&[][..], Some(self.callee.into_word().into())),
            Part::Fixed(account) => (&[][..], Some(account.into_word().into())),
            Part::Word(at) => (&[][..], self.words.get(at).copied()),
            Part::EachFrom(at) => (self.words.get(at..).unwrap_or_default(), None),
            Part::EachInner => (&self.inner[..], None),
        };
        one.into_iter().chain(words.iter().copied().filter(search::may_be_address))
    }

    fn slots(&self, place: Place, mut found: impl FnMut(U256)) {
        match place {
            Place::Slot(slot) => found(slot),
            Place::Mapping { slot, order, key, offset } => {
                for key in self.parts(key) {
                    found(order.hash(U256::from(slot), key).wrapping_add(U256::from(offset)));
                }
            }
            Place::Nested { slot, order, keys: [first, second], offset } => {
                for first in self.parts(first) {
                    let inner = order.hash(U256::from(slot), first);
                    for second in self.parts(second) {
                        found(order.hash(inner, second).wrapping_add(U256::from(offset)));
                    }
                }
            }
        }
    }
}

impl Order {
    /// Returns the slot of a key in the mapping at `slot`.
    pub fn hash(self, slot: U256, key: U256) -> U256 {
        keccak256(self.preimage(slot, key)).into()
    }

    /// Returns what is hashed for [`Self::hash`].
    pub fn preimage(self, slot: U256, key: U256) -> [u8; 64] {
        let (first, second) = match self {
            Self::KeyFirst => (key, slot),
            Self::SlotFirst => (slot, key),
        };
        let mut preimage = [0; 64];
        preimage[..32].copy_from_slice(&first.to_be_bytes::<32>());
        preimage[32..].copy_from_slice(&second.to_be_bytes::<32>());
        preimage
    }
}
