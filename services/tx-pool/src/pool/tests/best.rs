//! Order of the transactions for a block, against a model that searches the best next one each time.

use super::*;
use tandem_proto::{limits::POOL_PAGE_BYTES, tx_pool::BestQuery};

const ALL: BestQuery = BestQuery {
    base_fee: 0,
    blob_fee: Some(0),
    blob_transactions_max: usize::MAX,
    skip: 0,
    transactions_max: usize::MAX,
    unless: None,
};

/// Pool with room for everything.
fn wide() -> Pool {
    let shelf = ShelfLimits {
        units_max: usize::MAX,
        queued_max: usize::MAX,
        sender_queued_max: usize::MAX,
        sender_guaranteed: usize::MAX,
        bump: 10,
    };
    Pool::new(Limits { plain: shelf, blobs: shelf, ..limits() })
}

/// Transaction with any tip and cap; `cap` is that of blob gas too, if it has blobs.
fn put(pool: &mut Pool, draft: Draft, tip: u128, cap: u128) {
    let mut tx = Pooled::clone(&draft.tx());
    tx.fees = Fees { tip, cap, blob_cap: draft.blobs.then_some(cap) };
    pool.add(Duration::ZERO, Arc::new(tx), rich(0)).unwrap();
}

fn taken(pool: &Pool, query: &BestQuery) -> Vec<(Address, u64)> {
    pool.best(query).0.iter().map(|tx| (tx.sender, tx.nonce)).collect()
}

#[test]
fn the_best_next_transaction_of_all_senders_comes_first() {
    let mut pool = wide();
    put(&mut pool, Draft::plain(1, 0, 0), 1, 100);
    put(&mut pool, Draft::plain(1, 1, 0), 9, 100);
    put(&mut pool, Draft::plain(2, 0, 0), 5, 100);
    put(&mut pool, Draft::plain(3, 0, 0), 5, 100);
    put(&mut pool, Draft::plain(4, 1, 0), 99, 100);
    let want = [(2, 0), (3, 0), (1, 0), (1, 1)].map(|(index, nonce)| (sender(index), nonce));
    assert_eq!(taken(&pool, &ALL), want, "a gap, equal tips, a good one behind a bad one");
    // The rest of the cap counts, and a transaction that does not pay the base fee ends its sender.
    put(&mut pool, Draft::plain(5, 0, 0), 50, 92);
    put(&mut pool, Draft::plain(6, 0, 0), 50, 89);
    put(&mut pool, Draft::plain(6, 1, 0), 50, 100);
    let query = BestQuery { base_fee: 90, ..ALL };
    let want =
        [(2, 0), (3, 0), (5, 0), (1, 0), (1, 1)].map(|(index, nonce)| (sender(index), nonce));
    assert_eq!(taken(&pool, &query), want);
    let pages: Vec<_> = (0..4)
        .flat_map(|page| taken(&pool, &BestQuery { skip: 2 * page, transactions_max: 2, ..query }))
        .collect();
    assert_eq!(pages, want);
    let is_last =
        |skip, transactions_max| pool.best(&BestQuery { skip, transactions_max, ..query }).1;
    assert_eq!(
        [is_last(0, 2), is_last(2, 2), is_last(4, 2), is_last(0, 5)],
        [false, false, true, true]
    );
}

#[test]
fn a_page_ends_by_its_bytes_and_the_next_one_goes_on() {
    let mut pool = wide();
    for index in 0..100 {
        let mut tx = Pooled::clone(&Draft::plain(index, 0, 0).tx());
        tx.fees = Fees { tip: 1, cap: 100, blob_cap: None };
        tx.raw = vec![2; 100 << 10].into();
        pool.add(Duration::ZERO, Arc::new(tx), rich(0)).unwrap();
    }
    let query = |skip| BestQuery { skip, ..ALL };
    let (first, is_last) = pool.best(&query(0));
    assert_eq!((first.len(), is_last), ((POOL_PAGE_BYTES >> 10).div_ceil(100), false));
    let (second, _) = pool.best(&query(first.len()));
    let (third, is_last) = pool.best(&query(first.len() + second.len()));
    let sizes = first.len() + second.len() + third.len();
    assert_eq!((sizes, is_last), (100, true));
}

#[test]
fn transactions_with_blobs_are_limited_and_left_out() {
    let mut pool = wide();
    for index in 1..4 {
        let tip = 10 - u128::from(index);
        put(&mut pool, Draft { blobs: true, ..Draft::plain(index, 0, 0) }, tip, 100);
    }
    put(&mut pool, Draft::plain(9, 0, 0), 1, 100);
    let of = |query| taken(&pool, &query).iter().map(|(sender, _)| sender[0]).collect::<Vec<_>>();
    assert_eq!(of(ALL), [1, 2, 3, 9]);
    assert_eq!(of(BestQuery { blob_transactions_max: 2, ..ALL }), [1, 2, 9]);
    assert_eq!(of(BestQuery { blob_transactions_max: 2, skip: 1, ..ALL }), [2, 9]);
    assert_eq!(of(BestQuery { blob_fee: Some(101), ..ALL }), [9]);
    assert_eq!(of(BestQuery { blob_fee: None, ..ALL }), [9]);
}

#[test]
fn every_change_has_another_version() {
    let mut pool = wide();
    let mut seen = BTreeSet::from([pool.version()]);
    put(&mut pool, Draft::plain(1, 0, 0), 1, 100);
    assert!(seen.insert(pool.version()));
    put(&mut pool, Draft::plain(1, 0, 7), 2, 200);
    assert!(seen.insert(pool.version()));
    pool.reset(Market::default(), GAS_LIMIT, &HashMap::new());
    assert!(seen.insert(pool.version()));
    let hash = pool.all().next().unwrap().1.hash;
    pool.remove(&hash);
    assert!(seen.insert(pool.version()));
    assert!(taken(&pool, &ALL).is_empty());
}

/// Transaction of the model: sender, nonce, tip, cap, whether it has blobs, order of arrival.
type Known = (u8, u64, u128, u128, bool, usize);

/// Repeats: of all next transactions that a block can take, take the best.
fn model(mut known: Vec<Known>, query: &BestQuery) -> Vec<(Address, u64)> {
    let mut order = Vec::new();
    let mut nonces = [0_u64; 256];
    let mut with_blobs = 0;
    loop {
        let tip = |it: &Known| it.2.min(it.3 - query.base_fee);
        let can_be_next = |it: &&Known| {
            let pays = it.3 >= query.base_fee;
            let blobs_fit = !it.4
                || (query.blob_fee.is_some_and(|price| it.3 >= price)
                    && with_blobs < query.blob_transactions_max);
            it.1 == nonces[usize::from(it.0)] && pays && blobs_fit
        };
        let best = known.iter().filter(can_be_next).copied();
        let Some(best) = best.max_by_key(|it| (tip(it), std::cmp::Reverse(it.5))) else { break };
        known.retain(|it| *it != best);
        nonces[usize::from(best.0)] += 1;
        with_blobs += usize::from(best.4);
        order.push((sender(best.0), best.1));
    }
    order.into_iter().skip(query.skip).take(query.transactions_max).collect()
}

proptest! {
    #[test]
    fn the_order_is_that_of_the_model(
        drafts in vec((0..6_u8, 0..4_u64, 0..6_u128, 0..12_u128), 0..40),
        base_fee in 0..8_u128,
        blob_fee in proptest::option::of(0..8_u128),
        blob_transactions_max in 0..4_usize,
        (skip, transactions_max) in (0..5_usize, 0..20_usize),
    ) {
        let mut pool = wide();
        let mut known: Vec<Known> = Vec::new();
        for (index, nonce, tip, cap) in drafts {
            let has_blobs = index >= 4;
            if known.iter().any(|it| (it.0, it.1) == (index, nonce)) {
                continue;
            }
            let draft = Draft { blobs: has_blobs, ..Draft::plain(index, nonce, 0) };
            let cap = cap.max(tip);
            put(&mut pool, draft, tip, cap);
            known.push((index, nonce, tip, cap, has_blobs, known.len()));
        }
        let query = BestQuery {
            base_fee, blob_fee, blob_transactions_max, skip, transactions_max, unless: None,
        };
        prop_assert_eq!(taken(&pool, &query), model(known, &query));
    }
}
