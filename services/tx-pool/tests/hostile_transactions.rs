//! Hostile transactions by the million against the pool with its default limits. Its memory must
//! follow from what it holds, stay below what the settings allow, and honest transactions must stay.
//!
//! The transactions are what passed the checks in front of the pool (`intake.rs`), so none has a
//! signature. Nine attacks take the lead in turn, each with the others beside it, and heads come
//! between. After each the pool is emptied. A sample runs by default; `TANDEM_POOL_TRANSACTIONS`
//! sets another number.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    alloc::System,
    collections::{BTreeMap, HashMap},
    env,
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_admission::{Code, Fees, Market, SenderAccount};
use tandem_chain::Wrapper;
use tandem_heap::{Counting, process};
use tandem_primitives::{Address, B256, Bytes, U256};
use tandem_proto::tx_pool::BestQuery;
use tandem_tx_pool::{
    Config,
    pool::{Limits, Pool, PoolError, Pooled, SidecarRef},
};

#[global_allocator]
static ALLOCATOR: Counting<System> = Counting(System);

const SEED: u64 = 20_007;
/// Transactions, unless `TANDEM_POOL_TRANSACTIONS` says otherwise.
const SAMPLE: u64 = 200_000;
/// Transactions for which an attack leads. Then the pool is emptied.
const LEAD: u64 = 20_000;
/// Transactions between two looks at everything that the pool holds.
const CHECK_EVERY: u64 = 2_000;
/// Transactions between two heads.
const HEAD_EVERY: u64 = 2_500;

const GWEI: u128 = 1_000_000_000;
const SLOT: usize = 32 << 10;
const BLOB: usize = 128 << 10;
/// Largest transaction without its blobs.
const RAW_MAX: usize = 128 << 10;
/// Bytes of an authorization in a transaction, at least: its signature may be two small numbers, as
/// these recover to an account too.
const AUTHORIZATION: usize = 27;
/// Bytes of its account in the pool, at most.
const AUTHORITY: usize = 96;
/// Bytes that the pool may need for a transaction besides its content.
const ENTRY: usize = 2 << 10;
/// Bytes that the tables of an empty pool may keep from when it was full.
const EMPTY: usize = 4 << 20;

/// Kinds of senders: the first byte of their addresses.
const NEWCOMER: u8 = 0;
const REGULAR: u8 = 1;
const POOR: u8 = 2;
const DELEGATED: u8 = 3;
const HONEST: u8 = 4;
const HONEST_SENDERS: u64 = 64;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Attack {
    /// One transaction at the least price from each of endless senders.
    Dust,
    /// Nonces far above the account's.
    Gaps,
    /// Long sequences of few senders.
    Chains,
    /// Replacement after replacement, some too cheap.
    Bumps,
    /// The largest transactions.
    Large,
    /// More than the balance pays.
    Poor,
    /// Caps around the base fee.
    Edges,
    /// Blobs, with small and large transactions beside them.
    Blobs,
    /// Codes of as many accounts as fit, and senders with delegations.
    Delegations,
}

const ATTACKS: [Attack; 9] = [
    Attack::Dust,
    Attack::Gaps,
    Attack::Chains,
    Attack::Bumps,
    Attack::Large,
    Attack::Poor,
    Attack::Edges,
    Attack::Blobs,
    Attack::Delegations,
];

/// Transaction by what the pool looks at.
struct Draft {
    sender: Address,
    nonce: u64,
    gas: u64,
    tip: u128,
    cap: u128,
    raw: usize,
    /// Number of blobs, and the payment for blob gas.
    blobs: Option<(usize, u128)>,
    authorities: Vec<Address>,
}

/// Everything seen in a run.
#[derive(Default)]
struct Seen {
    outcomes: BTreeMap<&'static str, u64>,
    slots: usize,
    queued: usize,
    blob_bytes: usize,
    bytes: usize,
    slowest: Duration,
    spent: Duration,
}

struct Storm {
    rng: StdRng,
    limits: Limits,
    pool: Pool,
    market: Market,
    now: Duration,
    /// Nonces of regular senders, and of others that have transactions in the pool; 0 if missing.
    used: HashMap<Address, u64>,
    made: u64,
    honest: Vec<B256>,
    seen: Seen,
}

fn sender(kind: u8, index: u64) -> Address {
    let mut address = Address::ZERO;
    address[0] = kind;
    address[12..].copy_from_slice(&index.to_be_bytes());
    address
}

impl Storm {
    fn new(limits: Limits) -> Self {
        let market = Market { base_fee: 10 * GWEI, blob_fee: GWEI };
        let mut pool = Pool::new(limits);
        pool.reset(market, 60_000_000, &HashMap::new());
        Self {
            rng: StdRng::seed_from_u64(SEED),
            limits,
            pool,
            market,
            now: Duration::from_secs(1),
            // Never grows, so that the pool alone takes memory.
            used: HashMap::with_capacity(1 << 15),
            made: 0,
            honest: Vec::with_capacity(HONEST_SENDERS as usize),
            seen: Seen::default(),
        }
    }

    fn account(&self, sender: Address) -> SenderAccount {
        let ether = U256::from(GWEI * GWEI);
        let (balance, code) = match sender[0] {
            POOR => (ether / U256::from(100), Code::None),
            DELEGATED => (U256::from(100) * ether, Code::Delegated),
            _ => (U256::from(100) * ether, Code::None),
        };
        SenderAccount { nonce: self.used.get(&sender).copied().unwrap_or(0), balance, code }
    }

    fn newcomer(&mut self) -> Address {
        sender(NEWCOMER, self.rng.random_range(0..1 << 48))
    }

    fn regular(&mut self, indices: std::ops::Range<u64>) -> (Address, u64) {
        let sender = sender(REGULAR, self.rng.random_range(indices));
        (sender, self.account(sender).nonce)
    }

    /// Returns a cheap transaction that the next block could hold.
    fn cheap(&mut self) -> Draft {
        let tip = self.rng.random_range(1..3 * GWEI);
        Draft {
            sender: self.newcomer(),
            nonce: 0,
            gas: 21_000,
            tip,
            cap: self.market.base_fee + tip,
            raw: self.rng.random_range(100..200),
            blobs: None,
            authorities: Vec::new(),
        }
    }

    fn draft(&mut self, attack: Attack) -> Draft {
        let mut draft = self.cheap();
        let base_fee = self.market.base_fee;
        match attack {
            Attack::Dust => (draft.tip, draft.cap) = (1, base_fee + 1),
            Attack::Gaps => {
                if self.rng.random() {
                    draft.sender = self.regular(256..260).0;
                }
                draft.nonce = self.account(draft.sender).nonce + self.rng.random_range(1..100);
            }
            Attack::Chains => {
                let (sender, nonce) = self.regular(0..16);
                (draft.sender, draft.nonce) =
                    (sender, self.pool.next_nonce(&sender).unwrap_or(nonce));
            }
            Attack::Bumps => self.bump(&mut draft, 64..128, 110),
            Attack::Large => {
                draft.raw = RAW_MAX - self.rng.random_range(0..100);
                draft.gas = 16_000_000;
                draft.tip += self.rng.random_range(0..20) * GWEI;
                draft.cap = base_fee + draft.tip;
            }
            Attack::Poor => {
                draft.sender = sender(POOR, self.rng.random_range(0..2_000));
                draft.nonce = self.rng.random_range(0..16);
                draft.gas = self.rng.random_range(21_000..500_000);
            }
            Attack::Edges => {
                let nearly = base_fee.saturating_sub(1).max(1);
                let caps = [nearly, base_fee, base_fee + 1, base_fee * 8 / 9, 1];
                draft.cap = caps[self.rng.random_range(0..caps.len())];
                draft.tip = if self.rng.random() { draft.cap } else { 1 };
            }
            Attack::Blobs => {
                if self.rng.random() {
                    self.bump(&mut draft, 100..200, 200);
                }
                let count = self.rng.random_range(1..=6);
                let fee = self.market.blob_fee * self.rng.random_range(5..20) / 10;
                let known =
                    self.pool.at(&draft.sender, draft.nonce).and_then(|it| it.fees.blob_cap);
                draft.blobs =
                    Some((count, known.map_or(fee, |known| known.saturating_mul(2)).max(1)));
                if self.rng.random_ratio(1, 8) {
                    draft.raw = RAW_MAX;
                }
                if self.rng.random_ratio(1, 16) {
                    draft.nonce += 16;
                }
            }
            Attack::Delegations => self.delegations(&mut draft),
        }
        draft
    }

    /// Makes it a replacement of what a regular sender has, or its next transaction.
    fn bump(&mut self, draft: &mut Draft, senders: std::ops::Range<u64>, percent: u128) {
        let (sender, next) = self.regular(senders);
        (draft.sender, draft.nonce) = (sender, next + self.rng.random_range(0..8));
        let Some(known) = self.pool.at(&sender, draft.nonce) else { return };
        let percent = percent - u128::from(self.rng.random_ratio(1, 3));
        // Below what honest senders pay.
        let raised = |fee: u128| (fee * percent).div_ceil(100).min(200 * GWEI);
        (draft.tip, draft.cap) = (raised(known.fees.tip), raised(known.fees.cap));
    }

    fn delegations(&mut self, draft: &mut Draft) {
        if self.rng.random_ratio(1, 4) {
            draft.sender = sender(DELEGATED, self.rng.random_range(0..2_000));
            draft.nonce = self.account(draft.sender).nonce + self.rng.random_range(0..2);
            return;
        }
        // The gas limit of a transaction (EIP-7825) pays 671, that of a block without it some 2,000.
        let counts = if self.rng.random_ratio(1, 10) { [671, 2_000] } else { [1, 2] };
        let count = counts[self.rng.random_range(0..2)];
        draft.authorities = (0..count).map(|_| self.newcomer()).collect();
        if count < 3 {
            let others =
                [sender(HONEST, self.rng.random_range(0..HONEST_SENDERS)), self.regular(0..256).0];
            draft.authorities = others[..count].to_vec();
        }
        draft.raw += count * AUTHORIZATION;
        draft.gas += count as u64 * 25_000;
        draft.tip += self.rng.random_range(0..10) * GWEI;
        draft.cap = self.market.base_fee + draft.tip;
    }

    fn transaction(&mut self, draft: Draft) -> Arc<Pooled> {
        self.made += 1;
        let mut hash = B256::ZERO;
        hash[..8].copy_from_slice(&self.made.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
        hash[24..].copy_from_slice(&self.made.to_be_bytes());
        let Draft { sender, nonce, gas, tip, cap, raw, blobs, authorities } = draft;
        let sidecar = blobs.map(|(count, _)| SidecarRef {
            wrapper: Wrapper::CellProofs,
            // Every second one names the blob of another transaction too.
            versioned_hashes: (0..count)
                .map(|it| if it == 1 { B256::ZERO } else { hash })
                .collect(),
            bytes: count * (BLOB + 129 * 48),
        });
        Arc::new(Pooled {
            hash,
            sender,
            nonce,
            kind: if sidecar.is_some() {
                3
            } else if authorities.is_empty() {
                2
            } else {
                4
            },
            gas,
            fees: Fees { tip, cap, blob_cap: blobs.map(|(_, fee)| fee) },
            cost: U256::from(gas) * U256::from(cap),
            raw: Bytes::from(vec![0; raw]),
            network_bytes: raw,
            sidecar,
            authorities,
        })
    }

    fn send(&mut self, tx: Arc<Pooled>) {
        let (account, before, hash) = (self.account(tx.sender), self.pool.sizes(), tx.hash);
        if tx.nonce < account.nonce || tx.cost > account.balance {
            return self.count("refused before the pool", 1);
        }
        let begin = Instant::now();
        let added = self.pool.add(self.now, tx, account);
        let took = begin.elapsed();
        self.seen.spent += took;
        self.seen.slowest = self.seen.slowest.max(took);
        match added {
            Ok(added) => {
                assert!(self.pool.get(&hash).is_some(), "an accepted transaction is there");
                self.count("accepted", 1);
                self.count("replaced", added.replaced.is_some().into());
                self.count("evicted", added.evicted.len() as u64);
            }
            Err(error) => {
                let is_known = error == PoolError::AlreadyKnown;
                assert_eq!(self.pool.get(&hash).is_some(), is_known, "{error}");
                assert_eq!(self.pool.sizes(), before, "a refusal changes nothing: {error}");
                self.count(error.kind(), 1);
            }
        }
        let sizes = self.pool.sizes();
        let queued = sizes.plain.1 + sizes.blobs.1;
        assert!(sizes.slots <= self.limits.plain.units_max, "{sizes:?}");
        assert!(sizes.blob_bytes <= self.limits.blobs.units_max, "{sizes:?}");
        assert!(sizes.plain.1 <= self.limits.plain.queued_max, "{sizes:?}");
        assert!(sizes.blobs.1 <= self.limits.blobs.queued_max, "{sizes:?}");
        self.seen.slots = self.seen.slots.max(sizes.slots);
        self.seen.queued = self.seen.queued.max(queued);
        self.seen.blob_bytes = self.seen.blob_bytes.max(sizes.blob_bytes);
    }

    fn count(&mut self, outcome: &'static str, by: u64) {
        *self.seen.outcomes.entry(outcome).or_default() += by;
    }

    /// Goes to the next block, which holds the best transactions, and those of no honest sender.
    fn next_head(&mut self) {
        let query = BestQuery {
            base_fee: self.market.base_fee,
            blob_fee: Some(self.market.blob_fee),
            transactions_max: 300,
            blob_transactions_max: 9,
            skip: 0,
            unless: None,
        };
        let (best, _) = self.pool.best(&query);
        for tx in best.iter().filter(|tx| tx.sender[0] != HONEST) {
            self.used.insert(tx.sender, tx.nonce + 1);
        }
        let moved = |rng: &mut StdRng, fee: u128| fee * rng.random_range(7..=9) / 8;
        self.market.base_fee = moved(&mut self.rng, self.market.base_fee).clamp(GWEI, 100 * GWEI);
        self.market.blob_fee = moved(&mut self.rng, self.market.blob_fee).clamp(8, 100 * GWEI);
        let gas_limit = self.rng.random_range(30_000_000..60_000_000);
        let senders = self.pool.senders();
        let accounts = senders.into_iter().map(|it| (it, self.account(it))).collect();
        let dropped = self.pool.reset(self.market, gas_limit, &accounts).dropped.len();
        self.count("dropped by a head", dropped as u64);
        // Some heads are late, so that transactions grow old.
        self.now += Duration::from_secs(self.rng.random_range(12..4_000));
        let expired = self.pool.expire(self.now).len();
        self.count("expired", expired as u64);
        let Self { used, pool, .. } = self;
        used.retain(|it, _| it[0] == REGULAR || pool.next_nonce(it).is_some());
    }

    /// Takes out all transactions but those of honest senders.
    fn empty(&mut self) {
        let hostile = self.pool.all().filter(|(_, tx)| tx.sender[0] != HONEST);
        let hostile: Vec<_> = hostile.map(|(_, tx)| tx.hash).collect();
        for hash in hostile {
            self.pool.remove(&hash);
        }
        assert_eq!(self.pool.all().count(), HONEST_SENDERS as usize);
        self.used.retain(|it, _| it[0] == REGULAR);
    }

    /// Looks at everything that the pool holds, and compares it with its counts, its memory and the
    /// rules. `bytes` is the memory that it takes.
    fn check(&mut self, bytes: usize) {
        let (mut plain, mut blobs) = ((0, 0), (0, 0));
        let (mut slots, mut blob_bytes, mut content) = (0, 0, 0);
        let mut of: BTreeMap<Address, Vec<(bool, &Arc<Pooled>)>> = BTreeMap::new();
        for (is_pending, tx) in self.pool.all() {
            assert!(self.pool.get(&tx.hash).is_some_and(|it| Arc::ptr_eq(it, tx)));
            let mut bytes = tx.raw.len() + tx.authorities.len() * AUTHORITY;
            let (count, units, unit) = match &tx.sidecar {
                Some(sidecar) => {
                    bytes += sidecar.versioned_hashes.len() * 32;
                    (&mut blobs, &mut blob_bytes, 1)
                }
                None => (&mut plain, &mut slots, SLOT),
            };
            assert!(bytes <= tx.units() * unit, "{bytes} bytes count as {}", tx.units());
            content += bytes;
            *(if is_pending { &mut count.0 } else { &mut count.1 }) += 1;
            *units += tx.units();
            of.entry(tx.sender).or_default().push((is_pending, tx));
        }
        let sizes = self.pool.sizes();
        assert_eq!((sizes.plain, sizes.blobs), (plain, blobs));
        assert_eq!((sizes.slots, sizes.blob_bytes), (slots, blob_bytes));
        let count = plain.0 + plain.1 + blobs.0 + blobs.1;
        let explained = content + count * ENTRY + EMPTY;
        assert!(bytes <= explained, "{bytes} bytes for {count} transactions of {content} bytes");
        for (sender, all) in of {
            self.check_sender(sender, &all);
        }
        for hash in &self.honest {
            assert!(self.pool.get(hash).is_some(), "an honest transaction was lost");
        }
        self.seen.bytes = self.seen.bytes.max(bytes);
    }

    fn check_sender(&self, sender: Address, all: &[(bool, &Arc<Pooled>)]) {
        let SenderAccount { nonce: next, balance, code } = self.account(sender);
        let pending = all.iter().take_while(|(is_pending, _)| *is_pending).count();
        assert!(all[pending..].iter().all(|(is_pending, _)| !is_pending), "queued ones are behind");
        assert!(all.is_sorted_by_key(|(_, tx)| tx.nonce));
        assert!(all.iter().all(|(_, tx)| tx.nonce >= next && tx.cost <= balance));
        let unbroken = all[..pending].iter().zip(next..);
        assert!(unbroken.into_iter().all(|((_, tx), nonce)| tx.nonce == nonce));
        assert!(all[..pending].iter().map(|(_, tx)| tx.cost).sum::<U256>() <= balance);
        assert_eq!(self.pool.next_nonce(&sender), Some(next + pending as u64));
        let has_blobs = all[0].1.sidecar.is_some();
        assert!(all.iter().all(|(_, tx)| tx.sidecar.is_some() == has_blobs), "one kind at a time");
        let shelf = if has_blobs { self.limits.blobs } else { self.limits.plain };
        assert!(all.len() - pending <= shelf.sender_queued_max);
        if has_blobs {
            assert!(all.iter().all(|(_, tx)| tx.nonce - next < self.limits.blob_nonces_max));
        }
        assert!(code != Code::Delegated || all.len() == 1, "a delegated account has one");
    }
}

#[test]
fn hostile_transactions_find_memory_and_rules_where_the_settings_put_them() {
    let total = env::var("TANDEM_POOL_TRANSACTIONS").map_or(SAMPLE, |text| text.parse().unwrap());
    let limits = Config::default().limits();
    let before = process::live();
    let mut storm = Storm::new(limits);
    let own = process::live() - before;
    for index in 0..HONEST_SENDERS {
        let tip = 1_000 * GWEI;
        let cheap = storm.cheap();
        let draft = Draft { sender: sender(HONEST, index), tip, cap: 2 * tip, ..cheap };
        let tx = storm.transaction(draft);
        storm.honest.push(tx.hash);
        storm.send(tx);
    }
    let mut last: Option<Arc<Pooled>> = None;
    let begin = Instant::now();
    for sent in 0..total {
        let leader = ATTACKS[(sent / LEAD) as usize % ATTACKS.len()];
        let other = ATTACKS[storm.rng.random_range(0..ATTACKS.len())];
        let attack = if storm.rng.random_ratio(7, 10) { leader } else { other };
        let again = last.take_if(|_| storm.rng.random_ratio(1, 100));
        let tx = again.unwrap_or_else(|| {
            let draft = storm.draft(attack);
            storm.transaction(draft)
        });
        last = Some(tx.clone());
        storm.send(tx);
        if sent % HEAD_EVERY == HEAD_EVERY - 1 {
            storm.next_head();
        }
        if sent % CHECK_EVERY == CHECK_EVERY - 1 {
            storm.check(process::live().saturating_sub(before + own));
        }
        if sent % LEAD == LEAD - 1 {
            last = None;
            storm.empty();
            storm.check(process::live().saturating_sub(before + own));
        }
    }
    let Seen { outcomes, slots, queued, blob_bytes, bytes, slowest, spent } = &storm.seen;
    let transactions_max = limits.plain.units_max + limits.blobs.units_max / BLOB;
    // A transaction with blobs is at most as large as a blob.
    let content_max = limits.plain.units_max * SLOT + limits.blobs.units_max / 2;
    let bytes_max = content_max + transactions_max * ENTRY + EMPTY;
    println!("{total} transactions in {:.1?}: {outcomes:?}", begin.elapsed());
    println!("most: {slots} slots, {queued} queued, {blob_bytes} bytes with blobs");
    println!("memory: {:.1} of {:.1} MiB at most", mib(*bytes), mib(bytes_max));
    println!(
        "time of an insertion: {:.1?} on average, {slowest:.1?} at most",
        *spent / total as u32
    );
    assert!(*bytes <= bytes_max);
    // The attacks have reached what they aim at.
    assert_eq!(*slots, limits.plain.units_max);
    assert!(*queued >= limits.plain.queued_max);
    assert!(*blob_bytes + 8 * BLOB > limits.blobs.units_max);
    for outcome in [
        "accepted",
        "replaced",
        "evicted",
        "dropped by a head",
        "expired",
        "already_known",
        "replacement_underpriced",
        "underpriced",
        "insufficient_funds",
        "account_limit",
        "address_reserved",
        "nonce_too_high",
        "delegated_gap",
        "delegated_limit",
        "authority_reserved",
    ] {
        assert!(
            outcomes.get(outcome).is_some_and(|count| *count > 0),
            "no {outcome}: {outcomes:?}"
        );
    }
}

fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
