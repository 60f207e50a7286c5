use super::*;
use proptest::prelude::*;

const SIDECAR: usize = 100_000;

fn blob(byte: u8) -> B256 {
    B256::repeat_byte(byte)
}

/// Returns a transaction of sender `sender` that costs 10 and whose fees are all `fee`.
fn entry(hash: u8, sender: u8, nonce: u64, fee: u128, blobs: &[u8]) -> Entry {
    Entry {
        hash: B256::repeat_byte(hash),
        sender: Address::repeat_byte(sender),
        nonce,
        fees: [fee; 3],
        cost: U256::from(10),
        wrapper: Wrapper::CellProofs,
        versioned_hashes: blobs.iter().copied().map(blob).collect(),
        sidecar_bytes: SIDECAR,
    }
}

fn account(nonce: u64, balance: u64) -> Account {
    Account { nonce, balance: U256::from(balance), ..Account::default() }
}

/// Prices that all transactions here pay.
const MARKET: Market = Market { base_fee: 0, blob_fee: 0 };

fn pool() -> Pool {
    Pool::new(10 * SIDECAR, Duration::from_secs(60))
}

fn insert(pool: &mut Pool, entry: Entry) -> Vec<B256> {
    pool.insert(Instant::now(), entry, &account(0, 1_000), MARKET).unwrap()
}

#[test]
fn a_nonce_is_neither_used_nor_far_away() {
    let pool = pool();
    let check = |nonce| pool.check(&entry(1, 1, nonce, 1, &[1]), &account(5, 1_000), MARKET);
    assert_eq!(check(4), Err(PoolError::NonceTooLow { next: 5, nonce: 4 }));
    assert_eq!(check(0).unwrap_err().kind(), "nonce_too_low");
    assert!(check(5).is_ok() && check(20).is_ok());
    assert_eq!(check(21), Err(PoolError::NonceTooHigh { next: 5, nonce: 21 }));
    assert_eq!(check(u64::MAX).unwrap_err().kind(), "nonce_too_high");
}

#[test]
fn all_transactions_of_a_sender_can_be_paid() {
    let mut pool = pool();
    insert(&mut pool, entry(1, 1, 0, 1, &[1]));
    insert(&mut pool, entry(2, 1, 1, 1, &[2]));
    insert(&mut pool, entry(3, 2, 0, 1, &[3]));
    let third = entry(4, 1, 2, 1, &[4]);
    let (balance, queued) = (U256::from(29), U256::from(30));
    let short = Err(PoolError::InsufficientFunds { balance, queued });
    assert_eq!(pool.check(&third, &account(0, 29), MARKET), short);
    assert_eq!(pool.check(&third, &account(0, 30), MARKET), Ok(()));
    // Transactions in a block are already paid.
    assert_eq!(pool.check(&third, &account(1, 20), MARKET), Ok(()));
    // Replaces a transaction, so only the new cost counts.
    assert_eq!(pool.check(&entry(5, 1, 1, 2, &[5]), &account(0, 20), MARKET), Ok(()));
    let dear = Entry { cost: U256::MAX, ..third };
    assert_eq!(
        pool.check(&dear, &account(0, 30), MARKET).unwrap_err().kind(),
        "insufficient_funds"
    );
}

#[test]
fn another_transaction_takes_the_place_only_for_twice_all_fees() {
    let mut pool = pool();
    insert(&mut pool, entry(1, 1, 0, 5, &[1, 2]));
    let known = B256::repeat_byte(1);
    for fees in [[9, 10, 10], [10, 9, 10], [10, 10, 9], [0; 3]] {
        let other = Entry { fees, ..entry(2, 1, 0, 0, &[3]) };
        assert_eq!(
            pool.check(&other, &account(0, 100), MARKET),
            Err(PoolError::Underpriced { known })
        );
    }
    // The blob named by both transactions stays.
    assert_eq!(insert(&mut pool, entry(2, 1, 0, 10, &[2, 3])), [blob(1)]);
    assert!(!pool.has(&known, Wrapper::CellProofs) && pool.len() == 1);
    let top = Entry { fees: [u128::MAX; 3], ..entry(3, 1, 0, 0, &[4]) };
    assert_eq!(insert(&mut pool, top.clone()).len(), 2);
    let same = Entry { hash: B256::repeat_byte(9), ..top };
    assert_eq!(
        pool.check(&same, &account(0, 100), MARKET).unwrap_err().kind(),
        "replacement_underpriced"
    );
}

#[test]
fn a_transaction_may_come_again_in_the_other_form() {
    let mut pool = pool();
    let old = Entry { wrapper: Wrapper::BlobProofs, ..entry(1, 1, 0, 5, &[1]) };
    insert(&mut pool, old);
    let hash = B256::repeat_byte(1);
    assert!(pool.has(&hash, Wrapper::BlobProofs) && !pool.has(&hash, Wrapper::CellProofs));
    assert!(insert(&mut pool, entry(1, 1, 0, 5, &[1])).is_empty(), "its blob is still named");
    assert!(pool.has(&hash, Wrapper::CellProofs) && pool.len() == 1);
}

#[test]
fn a_transaction_leaves_when_its_time_is_over() {
    let mut pool = pool();
    let start = Instant::now();
    let rich = account(0, 1_000);
    let mut at = |seconds, entry| {
        pool.insert(start + Duration::from_secs(seconds), entry, &rich, MARKET).unwrap()
    };
    assert!(at(0, entry(1, 1, 0, 1, &[1])).is_empty());
    assert!(at(1, entry(2, 2, 0, 1, &[2])).is_empty());
    assert!(pool.expire(start + Duration::from_secs(59)).is_empty());
    assert_eq!(pool.expire(start + Duration::from_secs(60)), [blob(1)]);
    assert_eq!(pool.expire(start + Duration::from_secs(61)), [blob(2)]);
    assert_eq!((pool.len(), pool.bytes()), (0, 0));
    let large = Entry { sidecar_bytes: 11 * SIDECAR, ..entry(4, 4, 0, 1, &[4]) };
    assert_eq!(pool.check(&large, &rich, MARKET).unwrap_err().kind(), "oversized");
}

/// Returns a pool with room for this many transactions.
fn pool_of(transactions: usize) -> Pool {
    Pool::new(transactions * (SIDECAR + 1000), Duration::from_secs(60))
}

#[test]
fn what_pays_least_leaves_for_what_pays_more() {
    let mut pool = pool_of(3);
    insert(&mut pool, entry(1, 1, 0, 5, &[1]));
    insert(&mut pool, entry(2, 2, 0, 3, &[2]));
    insert(&mut pool, entry(3, 3, 0, 4, &[3]));
    let same = entry(4, 4, 0, 3, &[4]);
    let refused = pool.check(&same, &account(0, 100), MARKET);
    assert_eq!(refused, Err(PoolError::TooCheap { tip: 3 }));
    assert_eq!(refused.unwrap_err().kind(), "underpriced");
    assert_eq!(insert(&mut pool, entry(5, 5, 0, 4, &[5])), [blob(2)]);
    // Evicts two of them for a larger one.
    let large = Entry { sidecar_bytes: 2 * SIDECAR, ..entry(6, 6, 0, 9, &[6]) };
    let mut left = insert(&mut pool, large);
    left.sort_unstable();
    assert_eq!(left, [blob(3), blob(5)]);
    assert_eq!(pool.len(), 2);
}

#[test]
fn a_flood_that_pays_one_wei_drives_nothing_out() {
    let market = Market { base_fee: 1_000, blob_fee: 10 };
    let fees = [100, 2_000, 20];
    let mut pool = pool_of(10);
    for payer in 0..10 {
        let paying = Entry { fees, ..entry(payer, payer, 0, 0, &[payer]) };
        pool.insert(Instant::now(), paying, &account(0, 1_000), market).unwrap();
    }
    for flood in 10..=255 {
        for fees in [[1; 3], [1, 3_000, 1_000], [100, 2_000, 9], [3_000, 999, 1_000]] {
            let cheap = Entry { fees, ..entry(flood, flood, 0, 0, &[flood]) };
            let refused = pool.insert(Instant::now(), cheap, &account(0, 1_000), market);
            assert_eq!(refused.unwrap_err().kind(), "underpriced", "{fees:?}");
        }
    }
    assert!((0..10).all(|payer| pool.has(&B256::repeat_byte(payer), Wrapper::CellProofs)));
    // A pool flooded while empty has room for paying transactions.
    let mut pool = pool_of(10);
    for flood in 0..100 {
        let cheap = entry(flood, flood, 0, 1, &[flood]);
        let _ = pool.insert(Instant::now(), cheap, &account(0, 1_000), market);
    }
    assert_eq!(pool.len(), 10);
    let paying = Entry { fees, ..entry(200, 200, 0, 0, &[200]) };
    pool.insert(Instant::now(), paying, &account(0, 1_000), market).unwrap();
}

#[test]
fn a_transaction_pays_no_more_than_those_before_it() {
    let mut pool = pool_of(2);
    insert(&mut pool, entry(1, 1, 0, 1, &[1]));
    insert(&mut pool, entry(2, 2, 0, 5, &[2]));
    // Behind a transaction that pays 1, its own 9 count for nothing.
    let behind = entry(3, 1, 1, 9, &[3]);
    assert_eq!(pool.check(&behind, &account(0, 100), MARKET), Err(PoolError::TooCheap { tip: 1 }));
    let mut pool = pool_of(2);
    insert(&mut pool, entry(1, 1, 0, 1, &[1]));
    insert(&mut pool, behind);
    // The later one is evicted first: it could not get into a block without the other.
    assert_eq!(insert(&mut pool, entry(4, 4, 0, 5, &[4])), [blob(3)]);
    // A replacement needs no other room.
    assert_eq!(insert(&mut pool, entry(5, 1, 0, 2, &[5])), [blob(1)]);
}

#[test]
fn what_is_in_a_block_for_good_leaves_with_its_blobs() {
    let mut pool = pool();
    insert(&mut pool, entry(1, 1, 0, 1, &[1, 2]));
    insert(&mut pool, entry(2, 2, 0, 1, &[2, 3]));
    let hashes = [B256::repeat_byte(1), B256::repeat_byte(8)];
    // Blob 2 is still named; blob 9 belongs to a transaction that was never here.
    let left = pool.settle(&hashes, &[blob(1), blob(2), blob(9)]);
    assert_eq!(left, [blob(1), blob(9)]);
    assert_eq!(pool.len(), 1);
    assert!(pool.settle(&hashes, &[]).is_empty());
}

proptest! {
    /// Compares with a plain recount of everything.
    #[test]
    fn counts_stay_right(
        steps in prop::collection::vec((0..48_u8, 0..5_u8), 1..80)
    ) {
        let mut pool = Pool::new(6 * SIDECAR, Duration::from_secs(20));
        let start = Instant::now();
        for (second, (hash, kind)) in (0..).zip(steps) {
            let now = start + Duration::from_secs(second);
            let before: Vec<_> = pool.named.keys().copied().collect();
            // A hash identifies one transaction.
            let (sender, nonce, fee) = (hash % 3, u64::from(hash / 3 % 2), 1 << (hash / 6 % 4));
            let entry = entry(hash, sender, nonce, fee, &[hash % 7, hash % 5 + 3]);
            let mut brought = Vec::new();
            let left = match kind {
                0 => pool.settle(&[entry.hash], &[]),
                1 => pool.expire(now),
                _ => {
                    brought.clone_from(&entry.versioned_hashes);
                    pool.insert(now, entry, &account(0, 10_000), MARKET).unwrap_or_default()
                }
            };
            let held: Vec<_> = pool.entries.values().map(|held| &held.entry).collect();
            prop_assert_eq!(pool.bytes, held.iter().map(|entry| entry.bytes()).sum::<usize>());
            prop_assert!(pool.bytes <= pool.bytes_max);
            prop_assert_eq!(pool.order.len(), held.len());
            let places: usize = pool.by_sender.values().map(BTreeMap::len).sum();
            prop_assert_eq!(places, held.len());
            let mut named = HashMap::<B256, usize>::new();
            for blob in held.iter().flat_map(|entry| &entry.versioned_hashes) {
                *named.entry(*blob).or_default() += 1;
            }
            prop_assert_eq!(&named, &pool.named);
            // All blobs that are no longer named are returned, and only those.
            prop_assert!(left.iter().all(|blob| !named.contains_key(blob)));
            prop_assert!(before.iter().all(|blob| named.contains_key(blob) || left.contains(blob)));
            prop_assert!(left.iter().all(|blob| before.contains(blob) || brought.contains(blob)));
        }
    }
}
