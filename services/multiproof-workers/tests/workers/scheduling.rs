//! Ten thousand blocks under a random schedule. Storage is slow or fails, updates pause, and advice
//! comes from another thread. Blocks are given up or refused, the chain forks, workers restart, and
//! policies change from block to block. Each root equals the root that alloy-trie computes from the
//! whole state.

use crate::support::{Chain, Made, Random, state_root};
use std::{
    num::NonZeroU32,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};
use tandem_multiproof_workers::MultiproofWorkers;
use tandem_policy::{LivePolicies, Policies};
use tandem_primitives::{B256, BlockId, ShardSet, TrieDiff, WalkTarget};
use tandem_proto::{
    multiproof::{Error, Foresight, Prefetch, ProofApi, ShardRoots},
    storage::{
        self, BaseReads, Checkpoint, PendingBlock, ReadState, StateValues, TrieNodes, TrieStorage,
    },
};

const BLOCKS: u64 = 10_000;

/// Storage-writer that answers after random times, and sometimes fails.
struct Moody {
    inner: Arc<dyn TrieStorage>,
    random: Mutex<Random>,
    failures: AtomicU64,
}

impl Moody {
    fn new(inner: Arc<dyn TrieStorage>, seed: u64) -> Self {
        Self { inner, random: Mutex::new(Random(seed)), failures: AtomicU64::new(0) }
    }

    fn pause(&self) {
        let (kind, length) = {
            let mut random = self.random.lock().unwrap();
            (random.below(8), random.below(60))
        };
        pause(kind, length);
    }
}

/// Mostly does nothing, at times yields, at times sleeps for `length` microseconds.
fn pause(kind: u64, length: u64) {
    match kind {
        0 => thread::sleep(Duration::from_micros(length)),
        1 | 2 => thread::yield_now(),
        _ => {}
    }
}

impl BaseReads for Moody {
    fn checkpoint(&self) -> storage::Result<Checkpoint> {
        self.pause();
        self.inner.checkpoint()
    }

    fn read_state(&self, request: &ReadState) -> storage::Result<StateValues> {
        self.inner.read_state(request)
    }

    fn walk_trie(&self, targets: &[WalkTarget]) -> storage::Result<TrieNodes> {
        self.pause();
        if self.random.lock().unwrap().one_in(300) {
            self.failures.fetch_add(1, Relaxed);
            return Err(storage::Error::Unavailable("moody".to_owned()));
        }
        let answer = self.inner.walk_trie(targets);
        self.pause();
        answer
    }
}

impl TrieStorage for Moody {
    fn pending(&self) -> storage::Result<Vec<PendingBlock>> {
        self.pause();
        self.inner.pending()
    }

    fn trie_diff(&self, block: B256) -> storage::Result<Option<Arc<TrieDiff>>> {
        self.pause();
        self.inner.trie_diff(block)
    }

    fn put_trie_diff(
        &self,
        block: B256,
        shards: ShardSet,
        diff: Arc<TrieDiff>,
    ) -> storage::Result<()> {
        self.pause();
        self.inner.put_trie_diff(block, shards, diff)
    }
}

/// Advice for a block, given by a thread of its own.
type Advice = (Arc<MultiproofWorkers>, B256, Arc<Prefetch>, Arc<Foresight>);

fn advisor(seed: u64) -> (mpsc::SyncSender<Advice>, thread::JoinHandle<()>) {
    let (sender, receiver) = mpsc::sync_channel::<Advice>(16);
    let thread = thread::spawn(move || {
        let mut random = Random(seed);
        for (workers, block, keys, foresight) in receiver {
            pause(random.below(4), random.below(200));
            match random.one_in(2) {
                true => workers.prefetch(block, keys),
                false => workers.foresee(block, foresight),
            }
        }
    });
    (sender, thread)
}

/// Returns some of the keys that the block touches, and some that it does not touch.
fn advice(made: &Made, random: &mut Random) -> Arc<Prefetch> {
    let mut accounts = Vec::new();
    for account in &made.block.diff.accounts {
        if random.one_in(3) {
            continue;
        }
        let slots = account.slots.iter().filter(|slot| slot.key[31] & 3 != 0);
        accounts.push((account.address_hash, slots.map(|slot| slot.key).collect()));
    }
    accounts.push((B256::from_slice(&[random.next().to_be_bytes(); 4].concat()), vec![B256::ZERO]));
    Arc::new(Prefetch { accounts })
}

struct Run {
    chain: Chain,
    policies: LivePolicies,
    storage: Arc<Moody>,
    workers: Arc<MultiproofWorkers>,
    advisor: mpsc::SyncSender<Advice>,
    random: Random,
    /// Chain on which blocks are built, from genesis.
    path: Vec<BlockId>,
    /// Height below which no block is built.
    floor: u64,
    counts: Counts,
}

#[derive(Default, Debug)]
struct Counts {
    forks: u64,
    given_up: u64,
    refused: u64,
    failed: u64,
    restarts: u64,
}

impl Run {
    fn new(seed: u64, advisor: mpsc::SyncSender<Advice>) -> Self {
        let chain = Chain::new();
        let storage = Arc::new(Moody::new(chain.storage.clone(), seed));
        let policies = LivePolicies::default();
        let workers = chain.workers_with(3, storage.clone(), policies.clone());
        let (path, random) = (vec![chain.genesis], Random(seed));
        let (floor, counts) = (0, Counts::default());
        Self { chain, policies, storage, workers, advisor, random, path, floor, counts }
    }

    fn restart(&mut self) {
        self.workers.stop();
        let threads = 1 + self.random.below(5) as usize;
        let storage = self.storage.clone();
        self.workers = self.chain.workers_with(threads, storage, self.policies.clone());
        self.counts.restarts += 1;
    }

    /// Feeds the first `count` updates of a block. With all of them, asks for the roots.
    fn feed(&mut self, made: &Made, count: usize) -> Option<Result<ShardRoots, Error>> {
        let mut session = self.workers.begin(made.begin()).unwrap();
        for update in &made.updates[..count] {
            if self.random.one_in(4) {
                let keys = advice(made, &mut self.random);
                let foresight = self.chain.foresight(made, &mut self.random);
                let (workers, block) = (self.workers.clone(), made.block.id.hash);
                let _ = self.advisor.try_send((workers, block, keys, foresight));
            }
            pause(self.random.below(6), self.random.below(60));
            session.update(update.clone());
        }
        if count < made.updates.len() {
            return None;
        }
        session.finish();
        pause(self.random.below(6), self.random.below(60));
        Some(session.roots())
    }

    /// Computes the roots of a block, however often storage fails meanwhile.
    fn prove(&mut self, made: &Made) {
        loop {
            match self.feed(made, made.updates.len()).unwrap() {
                Ok(answer) => {
                    assert_eq!(state_root(&answer), made.root, "block {}", made.block.id);
                    return;
                }
                Err(Error::Storage(storage::Error::Unavailable(_))) => self.counts.failed += 1,
                Err(error) => panic!("block {}: {error}", made.block.id),
            }
        }
    }

    fn parent(&mut self) -> BlockId {
        let depth = if self.random.one_in(8) { 1 + self.random.below(2) } else { 0 };
        let tip = self.path.len() as u64 - 1;
        let number = tip.saturating_sub(depth).max(self.floor);
        self.counts.forks += u64::from(number < tip);
        self.path[number as usize]
    }

    fn step(&mut self) {
        if self.random.one_in(3) {
            self.policies.store(random_policies(&mut self.random));
        }
        let parent = self.parent();
        let transactions = 1 + self.random.below(6) as usize;
        if self.random.one_in(6) {
            // Another block on the same parent first: given up, or refused.
            let other = self.chain.make(parent, transactions, &mut self.random);
            if self.random.one_in(2) {
                self.feed(&other, other.updates.len() - 1);
                self.counts.given_up += 1;
            } else {
                self.prove(&other);
                self.workers.discard(other.block.id.hash);
                self.counts.refused += 1;
            }
        }
        let made = self.chain.make(parent, transactions, &mut self.random);
        self.prove(&made);
        self.chain.commit(&made);
        for off in self.path.drain(parent.number as usize + 1..) {
            self.chain.forget(&off.hash);
        }
        self.path.push(made.block.id);
        if self.random.one_in(2) {
            self.chain.make_head(made.block.id);
            // The base follows three blocks behind.
            self.floor = self.floor.max(made.block.id.number.saturating_sub(3));
        }
        if self.random.one_in(400) {
            self.restart();
        }
    }
}

fn random_policies(random: &mut Random) -> Policies {
    let batching = ["none", "fixed{2,5}", "fixed{16,500}", "pressure{2,3}", "window{50}", "drain"];
    let chunking = ["always", "while-idle", "never"];
    Policies {
        batching: random.pick(&batching).parse().unwrap(),
        chunking: random.pick(&chunking).parse().unwrap(),
        chunk_targets: NonZeroU32::MIN.saturating_add(random.below(9) as u32),
        dispatch: random.pick(&["streaming", "blocking"]).parse().unwrap(),
        ..Policies::default()
    }
}

#[test]
fn every_root_is_right_under_a_random_schedule() {
    let started = Instant::now();
    let seed = 0x5eed_0001;
    let (sender, advisor) = advisor(seed);
    let mut run = Run::new(seed, sender);
    for _ in 0..BLOCKS {
        run.step();
        // A block on which no further block is built is forgotten.
        if let Some(old) = run.path.len().checked_sub(40) {
            let hash = run.path[old].hash;
            run.chain.forget(&hash);
        }
    }
    let Run { workers, storage, counts, path, advisor: sender, .. } = run;
    drop(sender);
    advisor.join().unwrap();
    workers.stop();
    let failures = storage.failures.load(Relaxed);
    println!(
        "{BLOCKS} blocks, height {}, {failures} storage failures, {counts:?}, {:.0?}",
        path.len() - 1,
        started.elapsed(),
    );
    let Counts { forks, given_up, refused, failed, restarts } = counts;
    assert!([forks, given_up, refused, failed, restarts].iter().all(|&count| count > 10));
}
