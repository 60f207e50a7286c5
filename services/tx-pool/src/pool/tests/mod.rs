mod best;
mod model;

use super::*;
use model::Model;
use proptest::{collection::vec, prelude::*};
use std::collections::BTreeSet;
use tandem_admission::Fees;
use tandem_chain::Wrapper;
use tandem_primitives::{Bytes, U256};

const GAS_LIMIT: u64 = 1_000;

fn limits() -> Limits {
    let plain = ShelfLimits {
        units_max: 12,
        queued_max: 4,
        sender_queued_max: 3,
        sender_guaranteed: 3,
        bump: 10,
    };
    let blobs = ShelfLimits {
        units_max: 5_000,
        queued_max: 3,
        sender_queued_max: 4,
        sender_guaranteed: usize::MAX,
        bump: 100,
    };
    Limits {
        plain,
        blobs,
        blob_nonces_max: 4,
        queued_for_max: Duration::from_secs(10),
        blobs_for_max: Duration::from_secs(20),
    }
}

fn sender(index: u8) -> Address {
    Address::repeat_byte(index)
}

/// Transaction of a test, by what the pool looks at.
#[derive(Clone, Copy, Debug)]
struct Draft {
    sender: u8,
    nonce: u64,
    fee: u128,
    cost: u64,
    slots: usize,
    blobs: bool,
    gas: u64,
    authority: Option<u8>,
}

impl Draft {
    fn plain(sender: u8, nonce: u64, fee: u128) -> Self {
        Self { sender, nonce, fee, cost: 1, slots: 1, blobs: false, gas: 1, authority: None }
    }

    fn tx(&self) -> Arc<Pooled> {
        let mut hash = B256::ZERO;
        hash[..8].copy_from_slice(&self.nonce.to_be_bytes());
        hash[8..24].copy_from_slice(&self.fee.to_be_bytes());
        (hash[24], hash[25], hash[26]) = (self.sender, self.cost as u8, self.blobs as u8);
        (hash[27], hash[28]) = (self.slots as u8, self.authority.map_or(0, |it| it + 1));
        hash[29] = (self.gas / 8) as u8;
        let sidecar = SidecarRef {
            wrapper: Wrapper::CellProofs,
            versioned_hashes: vec![hash],
            bytes: 500 * self.slots,
        };
        Arc::new(Pooled {
            hash,
            sender: sender(self.sender),
            nonce: self.nonce,
            kind: 2,
            gas: self.gas,
            fees: Fees { tip: self.fee, cap: self.fee, blob_cap: self.blobs.then_some(self.fee) },
            cost: U256::from(self.cost),
            raw: Bytes::from(vec![0; (self.slots - 1) * (32 << 10) + 1]),
            network_bytes: 1,
            sidecar: self.blobs.then_some(sidecar),
            authorities: self.authority.map(sender).into_iter().collect(),
        })
    }
}

fn rich(nonce: u64) -> SenderAccount {
    SenderAccount { nonce, balance: U256::from(1_000), code: Code::None }
}

fn add(pool: &mut Pool, draft: Draft) -> Result<Added, &'static str> {
    pool.add(Duration::ZERO, draft.tx(), rich(0)).map_err(|error| error.kind())
}

/// Returns the nonces of a sender's pending and queued transactions.
fn nonces(pool: &Pool, index: u8) -> (Vec<u64>, Vec<u64>) {
    let of = |want| {
        let all = pool.of(&sender(index));
        all.filter(|(pending, _)| *pending == want).map(|(_, tx)| tx.nonce).collect()
    };
    (of(true), of(false))
}

#[test]
fn a_gap_is_filled_and_what_waited_is_promoted() {
    let mut pool = Pool::new(limits());
    assert!(add(&mut pool, Draft::plain(1, 2, 5)).unwrap().promoted.is_empty());
    add(&mut pool, Draft::plain(1, 0, 5)).unwrap();
    assert_eq!(nonces(&pool, 1), (vec![0], vec![2]));
    let added = add(&mut pool, Draft::plain(1, 1, 5)).unwrap();
    let promoted: Vec<_> = added.promoted.iter().map(|tx| tx.nonce).collect();
    assert_eq!(promoted, [1, 2]);
    assert_eq!(pool.next_nonce(&sender(1)), Some(3));
}

#[test]
fn a_replacement_pays_a_tenth_more_or_twice_as_much_with_blobs() {
    let mut pool = Pool::new(limits());
    add(&mut pool, Draft::plain(1, 0, 100)).unwrap();
    add(&mut pool, Draft::plain(1, 1, 100)).unwrap();
    let refused = add(&mut pool, Draft::plain(1, 0, 109)).unwrap_err();
    assert_eq!(refused, "replacement_underpriced");
    let added = add(&mut pool, Draft::plain(1, 0, 110)).unwrap();
    assert_eq!(added.replaced.unwrap().fees.tip, 100);
    assert_eq!(added.promoted.len(), 1, "the one behind it was pending before");
    assert_eq!(add(&mut pool, Draft::plain(1, 0, 110)).unwrap_err(), "already_known");
    let blobs = |fee| Draft { blobs: true, ..Draft::plain(2, 0, fee) };
    add(&mut pool, blobs(10)).unwrap();
    assert_eq!(add(&mut pool, blobs(19)).unwrap_err(), "replacement_underpriced");
    add(&mut pool, blobs(20)).unwrap();
    let plain = add(&mut pool, Draft::plain(2, 1, 100)).unwrap_err();
    assert_eq!(plain, "address_reserved", "one kind at a time");
}

#[test]
fn blobs_are_bounded_apart_by_bytes_and_by_nonces() {
    let mut pool = Pool::new(limits());
    let blobs = |sender, nonce, fee| Draft { blobs: true, ..Draft::plain(sender, nonce, fee) };
    for nonce in 0..4 {
        add(&mut pool, blobs(1, nonce, 10)).unwrap();
    }
    assert_eq!(add(&mut pool, blobs(1, 4, 10)).unwrap_err(), "nonce_too_high");
    let huge = Draft { slots: 11, ..blobs(2, 0, 10) };
    assert_eq!(add(&mut pool, huge).unwrap_err(), "oversized");
    assert_eq!(add(&mut pool, blobs(2, 0, 10)).unwrap_err(), "underpriced", "no better");
    let added = add(&mut pool, blobs(2, 0, 11)).unwrap();
    assert_eq!(added.evicted.iter().map(|tx| tx.nonce).collect::<Vec<_>>(), [3]);
    for nonce in 0..9 {
        add(&mut pool, Draft::plain(3 + nonce as u8, 0, 1)).unwrap();
    }
    assert!(pool.sizes().blob_bytes <= 5_000);
}

#[test]
fn the_worst_is_evicted_but_a_newcomer_that_is_worse_is_refused() {
    let mut pool = Pool::new(limits());
    // Sender 1 pays most, but has more than is guaranteed.
    for nonce in 0..6 {
        add(&mut pool, Draft::plain(1, nonce, 90)).unwrap();
    }
    for index in 2..8 {
        add(&mut pool, Draft::plain(index, 0, 10 + u128::from(index))).unwrap();
    }
    assert_eq!(add(&mut pool, Draft::plain(9, 1, 99)).unwrap_err(), "underpriced", "it is queued");
    for (evicted, newcomer) in [5, 4, 3].into_iter().zip(9..) {
        let added = add(&mut pool, Draft::plain(newcomer, 0, 5)).unwrap();
        assert_eq!(added.evicted[0].nonce, evicted, "cheap, but among the guaranteed");
    }
    assert_eq!(add(&mut pool, Draft::plain(20, 0, 5)).unwrap_err(), "underpriced");
    let added = add(&mut pool, Draft::plain(20, 0, 6)).unwrap();
    assert_eq!(added.evicted[0].sender, sender(11), "among equals, the last to come");
    assert_eq!(nonces(&pool, 1).0, [0, 1, 2]);
    assert_eq!(pool.sizes().slots, 12);
}

#[test]
fn a_delegated_sender_has_one_transaction_in_flight() {
    let mut pool = Pool::new(limits());
    let delegated = SenderAccount { code: Code::Delegated, ..rich(3) };
    let mut add_as = |draft: Draft, account| {
        pool.add(Duration::ZERO, draft.tx(), account).map(drop).map_err(|error| error.kind())
    };
    assert_eq!(add_as(Draft::plain(1, 4, 10), delegated), Err("delegated_gap"));
    assert_eq!(add_as(Draft::plain(1, 3, 10), delegated), Ok(()));
    assert_eq!(add_as(Draft::plain(1, 4, 10), delegated), Err("delegated_limit"));
    assert_eq!(add_as(Draft::plain(1, 3, 20), delegated), Ok(()), "a replacement");
    // So has one whose delegation is pending.
    let sets = |authority| Draft { authority: Some(authority), ..Draft::plain(2, 0, 10) };
    assert_eq!(add_as(sets(3), rich(0)), Ok(()));
    assert_eq!(add_as(Draft::plain(3, 0, 10), rich(0)), Ok(()));
    assert_eq!(add_as(Draft::plain(3, 1, 10), rich(0)), Err("delegated_limit"));
    // And no delegation is accepted for an account with more.
    assert_eq!(add_as(Draft::plain(4, 0, 10), rich(0)), Ok(()));
    assert_eq!(add_as(Draft::plain(4, 1, 10), rich(0)), Ok(()));
    let other = Draft { nonce: 1, ..sets(4) };
    assert_eq!(add_as(other, rich(0)), Err("authority_reserved"));
}

#[test]
fn a_head_uses_nonces_and_drops_what_cannot_be_paid() {
    let mut pool = Pool::new(limits());
    for nonce in [0, 1, 2, 4] {
        add(&mut pool, Draft { cost: 100, ..Draft::plain(1, nonce, 5) }).unwrap();
    }
    add(&mut pool, Draft { gas: 900, ..Draft::plain(2, 0, 5) }).unwrap();
    let poor = SenderAccount { nonce: 1, balance: U256::from(150), code: Code::None };
    let accounts = HashMap::from([(sender(1), poor), (sender(2), rich(0))]);
    let reset = pool.reset(Market::default(), 800, &accounts);
    let dropped: BTreeSet<_> = reset.dropped.iter().map(|tx| (tx.sender, tx.nonce)).collect();
    assert_eq!(dropped, BTreeSet::from([(sender(1), 0), (sender(2), 0)]));
    assert_eq!(nonces(&pool, 1), (vec![1], vec![2, 4]), "the balance pays for one");
    let reset = pool.reset(Market::default(), 800, &HashMap::from([(sender(1), rich(1))]));
    assert_eq!(reset.promoted.iter().map(|tx| tx.nonce).collect::<Vec<_>>(), [2]);
    let gone = pool.expire(Duration::from_secs(11));
    assert_eq!(gone.iter().map(|tx| tx.nonce).collect::<Vec<_>>(), [4], "only what waits");
}

#[test]
fn accounts_whose_code_is_set_take_room() {
    let with = |count: usize| {
        let authorities = (0..count).map(|index| sender(index as u8)).collect();
        Pooled { authorities, ..Pooled::clone(&Draft::plain(1, 0, 5).tx()) }.units()
    };
    // The transaction itself is one byte.
    assert_eq!([0, 1, 341, 342, 1_424].map(with), [1, 1, 1, 2, 5]);
}

#[derive(Clone, Debug)]
enum Operation {
    Add(Draft),
    Reset { base_fee: u128, gas_limit: u64, accounts: Vec<(u8, u64, u64, bool)> },
    Remove(u8, u64),
    Expire,
    Wait(u64),
}

const SENDERS: u8 = 5;

fn draft() -> impl Strategy<Value = Draft> {
    let fee = prop_oneof![1_u128..40, Just(u128::MAX)];
    let authority = prop_oneof![9 => Just(None), 1 => (0..SENDERS).prop_map(Some)];
    (0..SENDERS, 0_u64..9, fee, 0_u64..30, 1_usize..4, any::<bool>(), 0..GAS_LIMIT, authority)
        .prop_map(|(sender, nonce, fee, cost, slots, blobs, gas, authority)| Draft {
            sender,
            nonce,
            fee,
            cost,
            slots,
            // Most senders have one kind.
            blobs: if sender < 4 { sender % 2 == 1 } else { blobs },
            gas,
            authority,
        })
}

fn operation() -> impl Strategy<Value = Operation> {
    let account = (0..SENDERS, 0_u64..6, 0_u64..120, any::<bool>());
    prop_oneof![
        12 => draft().prop_map(Operation::Add),
        2 => (0_u128..40, GAS_LIMIT / 2..GAS_LIMIT, vec(account, 0..5)).prop_map(
            |(base_fee, gas_limit, accounts)| Operation::Reset { base_fee, gas_limit, accounts }
        ),
        1 => (0..SENDERS, 0_u64..9).prop_map(|(sender, nonce)| Operation::Remove(sender, nonce)),
        1 => Just(Operation::Expire),
        1 => (0_u64..8).prop_map(Operation::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// The pool does the same as a list that is searched for everything.
    #[test]
    fn random_operations_do_what_the_model_does(operations in vec(operation(), 1..120)) {
        let (mut pool, mut model) = (Pool::new(limits()), Model::new(limits()));
        let mut accounts: HashMap<Address, SenderAccount> = HashMap::new();
        let mut now = Duration::ZERO;
        for operation in operations {
            match operation {
                Operation::Add(draft) => {
                    let tx = draft.tx();
                    let account = accounts.get(&tx.sender).copied().unwrap_or(rich(0));
                    if tx.nonce < account.nonce || tx.cost > account.balance {
                        continue;
                    }
                    let expected = model.add(now, tx.clone(), account);
                    let got = pool.add(now, tx, account).map(|added| {
                        let gone = added.replaced.iter().chain(&added.evicted);
                        gone.map(|tx| tx.hash).collect::<BTreeSet<_>>()
                    });
                    prop_assert_eq!(got.map_err(|error| error.kind()), expected);
                }
                Operation::Reset { base_fee, gas_limit, accounts: changed } => {
                    for (index, nonce, balance, delegated) in changed {
                        let code = if delegated { Code::Delegated } else { Code::None };
                        let balance = U256::from(balance);
                        accounts.insert(sender(index), SenderAccount { nonce, balance, code });
                    }
                    let market = Market { base_fee, blob_fee: 1 };
                    let reset = pool.reset(market, gas_limit, &accounts);
                    let dropped: BTreeSet<_> = reset.dropped.iter().map(|tx| tx.hash).collect();
                    prop_assert_eq!(dropped, model.reset(market, gas_limit, &accounts));
                    prop_assert!(reset.promoted.iter().all(|tx| pool.get(&tx.hash).is_some()));
                }
                Operation::Remove(index, nonce) => {
                    if let Some(tx) = pool.at(&sender(index), nonce).cloned() {
                        let gone = pool.remove(&tx.hash).iter().map(|tx| tx.hash).collect();
                        prop_assert_eq!(model.take(&tx.hash), gone);
                    }
                }
                Operation::Expire => {
                    let gone: BTreeSet<_> = pool.expire(now).iter().map(|tx| tx.hash).collect();
                    prop_assert_eq!(gone, model.expire(now));
                }
                Operation::Wait(seconds) => now += Duration::from_secs(seconds),
            }
            let all: BTreeSet<_> = pool.all().map(|(pending, tx)| (tx.hash, pending)).collect();
            prop_assert_eq!(&all, &model.all());
            prop_assert_eq!(all.len(), pool.by_hash.len());
            let sizes = pool.sizes();
            prop_assert!(sizes.slots <= 12 && sizes.blob_bytes <= 5_000);
            prop_assert!(sizes.plain.1 <= 4 && sizes.blobs.1 <= 3);
            prop_assert_eq!(sizes.plain.0 + sizes.plain.1 + sizes.blobs.0 + sizes.blobs.1, all.len());
            let named: usize = pool.by_hash.values().map(|tx| tx.authorities.len()).sum();
            prop_assert_eq!(pool.authorities.values().sum::<usize>(), named);
            for index in 0..SENDERS {
                let next = pool.next_nonce(&sender(index));
                prop_assert_eq!(next, model.next_nonce(&sender(index)));
            }
        }
    }
}
