use super::*;
use crate::state::reads::{AccountRead, SlotRead, Source};
use alloy_consensus::{SignableTransaction as _, TxEip1559};
use alloy_eips::eip2718::Encodable2718 as _;
use alloy_primitives::{Signature, map::HashSet};
use pattern::Order;
use proptest::prelude::*;
use tandem_chain::{Block, Header};

fn account(n: u64) -> Address {
    Address::from_word(tandem_primitives::keccak256(n.to_be_bytes()))
}

fn word(address: Address) -> U256 {
    address.into_word().into()
}

fn transaction(to: Address, words: &[U256]) -> Transaction {
    let arguments = words.iter().flat_map(U256::to_be_bytes::<32>);
    let input: Vec<u8> = [0xa9, 0x05, 0x9c, 0xbb].into_iter().chain(arguments).collect();
    let plain = TxEip1559 { to: to.into(), input: input.into(), ..TxEip1559::default() };
    let signature = Signature::new(U256::from(1), U256::from(1), false);
    let raw = Transaction::from(plain.into_signed(signature)).encoded_2718();
    Block::seal(Header::default(), &[raw.into()], None).unwrap().transactions.remove(0)
}

/// Returns reads as the EVM reports them: each account before its slots.
fn reads(slots: &[(Address, U256)]) -> Reads {
    let mut reads = Reads::default();
    for &(address, key) in slots {
        if reads.accounts.iter().all(|read| read.address != address) {
            reads.accounts.push(AccountRead { address, account: None, source: Source::Block });
        }
        reads.slots.push(SlotRead { address, key, value: U256::ZERO, source: Source::Block });
    }
    reads
}

fn learn(predictor: &Predictor, call: &Transaction, sender: Address, reads: &Reads) {
    if let Some(lesson) = predictor.note(call, sender, reads) {
        predictor.learn(lesson);
    }
}

/// Returns what is predicted, nothing for an unknown function.
fn predict(predictor: &Predictor, call: &Transaction, sender: Address) -> Keys {
    predictor.predict(call, sender).unwrap_or_default()
}

fn slots(keys: Keys) -> HashSet<(Address, U256)> {
    keys.slots.into_iter().collect()
}

fn mapping(order: Order, slot: u64, key: Address) -> U256 {
    order.hash(U256::from(slot), word(key))
}

const TOKEN: u64 = 1;

/// Returns the slots that a transfer between two accounts reads: the pause flag and two balances.
fn transfer(order: Order, from: Address, to: Address) -> Vec<(Address, U256)> {
    let token = account(TOKEN);
    let slots = [U256::from(5), mapping(order, 3, from), mapping(order, 3, to)];
    slots.map(|slot| (token, slot)).to_vec()
}

#[test]
fn a_transfer_is_foretold_from_one_before_it() {
    for order in [Order::KeyFirst, Order::SlotFirst] {
        let predictor = Predictor::default();
        let call = |to: u64| transaction(account(TOKEN), &[word(account(to)), U256::from(70)]);
        assert_eq!(predict(&predictor, &call(11), account(10)), Keys::default());
        learn(
            &predictor,
            &call(11),
            account(10),
            &reads(&transfer(order, account(10), account(11))),
        );
        let keys = predict(&predictor, &call(21), account(20));
        assert!(keys.accounts.contains(&account(TOKEN)));
        let wanted = transfer(order, account(20), account(21));
        assert_eq!(slots(keys), wanted.into_iter().collect(), "{order:?}");
    }
}

#[test]
fn a_function_is_foretold_by_its_own_calls_first() {
    let predictor = Predictor::default();
    let call = transaction(account(TOKEN), &[word(account(11))]);
    learn(&predictor, &call, account(10), &reads(&[(account(TOKEN), U256::from(5))]));
    assert_eq!(predict(&predictor, &call, account(10)).slots.len(), 1);
    let elsewhere = transaction(account(2), &[word(account(11))]);
    assert_eq!(predict(&predictor, &elsewhere, account(10)).slots.len(), 1, "by its name alone");
    learn(&predictor, &elsewhere, account(10), &reads(&[(account(2), U256::from(6))]));
    let foretold = slots(predict(&predictor, &elsewhere, account(10)));
    assert_eq!(foretold, HashSet::from_iter([(account(2), U256::from(6))]));
    let bare = transaction(account(TOKEN), &[]);
    let short = Predictor::default();
    learn(&short, &bare, account(10), &reads(&[(account(TOKEN), U256::from(5))]));
    assert_eq!(predict(&short, &call, account(10)).slots.len(), 1, "the selector is the same");
}

#[test]
fn a_function_that_reads_no_slot_is_known_as_such() {
    let predictor = Predictor::default();
    let call = transaction(account(TOKEN), &[U256::from(70)]);
    assert_eq!(predictor.predict(&call, account(10)), None);
    learn(&predictor, &call, account(10), &reads(&[]));
    assert_eq!(predictor.predict(&call, account(10)), Some(Keys::default()));
    // A call that reads one after all teaches it to others of that name, too.
    let slot = (account(TOKEN), U256::from(5));
    learn(&predictor, &call, account(10), &reads(&[slot]));
    assert_eq!(slots(predict(&predictor, &call, account(10))), HashSet::from_iter([slot]));
    let elsewhere = transaction(account(2), &[U256::from(70)]);
    learn(&predictor, &elsewhere, account(10), &reads(&[]));
    assert_eq!(predict(&predictor, &elsewhere, account(10)).slots.len(), 1, "by its name");
}

#[test]
fn a_wallet_at_an_address_of_its_own_is_foretold_from_another_of_its_make() {
    let predictor = Predictor::default();
    // A call within the arguments: `execute(token, transfer(to, 70))`.
    let wallet = |n: u64, to: u64| {
        let head = [word(account(TOKEN)), U256::from(64), U256::from(68)];
        let mut arguments: Vec<u8> = head.iter().flat_map(U256::to_be_bytes::<32>).collect();
        arguments.extend([0xa9, 0x05, 0x9c, 0xbb]);
        arguments.extend(account(to).into_word());
        arguments.extend(U256::from(70).to_be_bytes::<32>());
        arguments.resize(arguments.len().next_multiple_of(32), 0);
        let words = arguments.as_chunks::<32>().0.iter().map(|word| U256::from_be_bytes(*word));
        let read = [
            (account(n), U256::ZERO),
            (account(TOKEN), mapping(Order::KeyFirst, 3, account(n))),
            (account(TOKEN), mapping(Order::KeyFirst, 3, account(to))),
        ];
        (transaction(account(n), &words.collect::<Vec<_>>()), read)
    };
    let (call, read) = wallet(30, 11);
    learn(&predictor, &call, account(10), &reads(&read));
    let (call, read) = wallet(40, 21);
    let foretold = slots(predict(&predictor, &call, account(20)));
    assert!(read.iter().all(|slot| foretold.contains(slot)), "{foretold:?}");
}

#[test]
fn mappings_in_mappings_and_contracts_behind_the_callee_are_foretold() {
    let predictor = Predictor::default();
    // A pool that takes a token from its caller, and therefore checks its allowance.
    let [pool, token] = [account(1), account(2)];
    let take = |order: Order, from: Address| {
        let owned = order.hash(U256::from(4), word(from));
        vec![
            (pool, U256::from(1)),
            (token, order.hash(owned, word(pool))),
            (token, mapping(order, 3, from)),
            (token, mapping(order, 3, pool)),
        ]
    };
    let call = transaction(pool, &[U256::from(1_000)]);
    learn(&predictor, &call, account(10), &reads(&take(Order::KeyFirst, account(10))));
    let keys = predict(&predictor, &call, account(20));
    assert!(keys.accounts.contains(&token));
    assert_eq!(slots(keys), take(Order::KeyFirst, account(20)).into_iter().collect());
}

#[test]
fn each_word_of_a_list_is_a_key_once_two_were() {
    let predictor = Predictor::default();
    let call = |receivers: &[u64]| {
        let list = receivers.iter().map(|n| word(account(*n)));
        let words: Vec<U256> = [U256::from(32), U256::from(receivers.len())].into();
        transaction(account(TOKEN), &words.into_iter().chain(list).collect::<Vec<_>>())
    };
    let balances = |receivers: &[u64]| -> Vec<(Address, U256)> {
        let balance = |n: &u64| (account(TOKEN), mapping(Order::SlotFirst, 0, account(*n)));
        receivers.iter().map(balance).collect()
    };
    learn(&predictor, &call(&[11, 12, 13]), account(10), &reads(&balances(&[11, 12, 13])));
    let many: Vec<u64> = (20..60).collect();
    let keys = predict(&predictor, &call(&many), account(10));
    assert_eq!(slots(keys), balances(&many).into_iter().collect());
}

#[test]
fn a_slot_that_nothing_explains_is_foretold_when_two_calls_read_it() {
    let predictor = Predictor::default();
    let call = transaction(account(TOKEN), &[U256::from(1)]);
    let odd = |n: u64| (account(TOKEN), word(account(n)) << 90);
    learn(&predictor, &call, account(10), &reads(&[odd(1), odd(2)]));
    assert_eq!(predictor.predict(&call, account(10)), None, "it does read slots");
    learn(&predictor, &call, account(10), &reads(&[odd(1), odd(3)]));
    assert_eq!(slots(predict(&predictor, &call, account(10))), HashSet::from_iter([odd(1)]));
}

#[test]
fn no_more_is_searched_in_one_block_than_a_few_functions() {
    let predictor = Predictor::default();
    let learnt = |n: u64| {
        let (call, slot) = (transaction(account(n), &[U256::from(1)]), (account(n), U256::from(n)));
        learn(&predictor, &call, account(0), &reads(&[slot]));
        slots(predict(&predictor, &call, account(0))).contains(&slot)
    };
    let count = (1..=20).filter(|n| learnt(*n)).count();
    // One search for the contract's function, one for the function by selector.
    assert_eq!(count, SEARCHES_MAX as usize / 2);
    predictor.begin_block();
    assert!(learnt(21));
}

/// Read of a generated function. It reads a mapping's value for its sender, its callee or an
/// argument, in its own storage or in another's.
#[derive(Clone, Debug)]
struct Made {
    elsewhere: bool,
    order: bool,
    slot: u64,
    key: usize,
    second: Option<usize>,
    offset: u64,
}

fn made() -> impl Strategy<Value = Made> {
    let keys = (0..5_usize, prop::option::weighted(0.3, 0..5_usize));
    (any::<bool>(), any::<bool>(), 0..24_u64, keys, 0..4_u64).prop_map(
        |(elsewhere, order, slot, (key, second), offset)| Made {
            elsewhere,
            order,
            slot,
            key,
            second,
            offset,
        },
    )
}

impl Made {
    fn slot(&self, callee: Address, sender: Address, words: &[U256]) -> (Address, U256) {
        let order = if self.order { Order::KeyFirst } else { Order::SlotFirst };
        let part = |at: usize| match at {
            0 => word(sender),
            1 => word(callee),
            _ => words[at - 2],
        };
        let mut hash = order.hash(U256::from(self.slot), part(self.key));
        if let Some(second) = self.second {
            hash = order.hash(hash, part(second));
        }
        let owner = if self.elsewhere { account(99) } else { callee };
        (owner, hash.wrapping_add(U256::from(self.offset)))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    /// One call of a function with these rules is enough to predict other calls.
    #[test]
    fn all_that_follows_from_a_call_is_foretold(function in prop::collection::vec(made(), 1..4)) {
        let (predictor, callee) = (Predictor::default(), account(TOKEN));
        let call = |n: u64| {
            let words = [word(account(n)), U256::from(n), word(account(n + 1))];
            let slots: Vec<_> =
                function.iter().map(|made| made.slot(callee, account(n + 2), &words)).collect();
            (transaction(callee, &words), account(n + 2), slots)
        };
        let (first, sender, read) = call(1_000);
        learn(&predictor, &first, sender, &reads(&read));
        let (next, sender, read) = call(2_000);
        let foretold = slots(predict(&predictor, &next, sender));
        for slot in read {
            prop_assert!(foretold.contains(&slot), "{:?}", function);
        }
    }

    /// No input causes a panic or unbounded reads.
    #[test]
    fn any_input_is_taken(
        input in prop::collection::vec(any::<u8>(), 0..20_000),
        keys in prop::collection::vec(any::<[u8; 32]>(), 0..40),
    ) {
        let predictor = Predictor::default();
        let plain = TxEip1559 {
            to: account(TOKEN).into(), input: input.into(), ..TxEip1559::default()
        };
        let signature = Signature::new(U256::from(1), U256::from(1), false);
        let transaction = Transaction::from(plain.into_signed(signature));
        let slots: Vec<_> =
            keys.iter().map(|key| (account(TOKEN), U256::from_be_bytes(*key))).collect();
        for _ in 0..3 {
            learn(&predictor, &transaction, account(1), &reads(&slots));
        }
        prop_assert!(predict(&predictor, &transaction, account(1)).slots.len() <= 64 * WORDS_MAX);
    }
}

#[test]
fn without_a_setting_reads_are_predicted_while_they_take_long() {
    for (wanted, near, far) in
        [(None, false, true), (Some(true), true, true), (Some(false), false, false)]
    {
        let prediction = Prediction::new(wanted);
        assert_eq!([false, true].map(|far| prediction.of(far).is_some()), [near, far]);
    }
}
