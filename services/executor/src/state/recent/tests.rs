//! Threads read while blocks arrive and the base moves forward and back. Every read must equal a
//! replay of the reader's branch, or report that the base has moved.

use super::*;
use crate::{
    error::Error,
    state::{
        StateReader,
        view::{ReadAhead, ReadCounts, StateView},
    },
};
use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
};
use tandem_primitives::{Account, AccountUpdate, SlotUpdate, U256, WalkTarget, keccak256};
use tandem_proto::storage::{self, *};

const ACCOUNTS: u64 = 6;
const SLOTS: u64 = 4;

fn key(n: u64) -> B256 {
    keccak256(n.to_be_bytes())
}

/// State after one block. Nonces are block numbers.
#[derive(Clone, Default)]
struct Model {
    accounts: BTreeMap<u64, u64>,
    slots: BTreeMap<(u64, u64), u64>,
}

struct Node {
    id: BlockId,
    /// Position of the parent.
    parent: usize,
    diff: Arc<StateDiff>,
    state: Model,
}

/// Tree of blocks; its first node is genesis.
struct Chain(Vec<Node>);

impl Chain {
    fn new() -> Self {
        let (id, diff) = (BlockId::new(0, key(1_000)), Arc::default());
        Self(vec![Node { id, parent: 0, diff, state: Model::default() }])
    }

    /// Adds a block with random changes.
    fn grow(&mut self, parent: usize, random: &mut StdRng) -> usize {
        let block = self.0.len();
        let mut state = self.0[parent].state.clone();
        let mut accounts = Vec::new();
        for account in 0..ACCOUNTS {
            if random.random_bool(0.6) {
                continue;
            }
            let (gone, wiped) = (random.random_bool(0.1), random.random_bool(0.2));
            let wiped = wiped || gone;
            if wiped {
                state.slots.retain(|(of, _), _| *of != account);
            }
            state.accounts.remove(&account);
            let mut slots = Vec::new();
            if !gone {
                state.accounts.insert(account, block as u64);
                for slot in 0..SLOTS {
                    if random.random_bool(0.3) {
                        let value = random.random_range(0..3) * block as u64;
                        state.slots.insert((account, slot), value);
                        slots.push(SlotUpdate { key: key(slot), value: U256::from(value) });
                    }
                }
            }
            let nonce = block as u64;
            let after = (!gone).then(|| Account { nonce, ..Account::default() });
            let address_hash = key(account);
            accounts.push(AccountUpdate { address_hash, account: after, wiped, slots });
        }
        let id = BlockId::new(self.0[parent].id.number + 1, key(1_000 + block as u64));
        let diff = Arc::new(StateDiff { accounts, codes: Vec::new() });
        self.0.push(Node { id, parent, diff, state });
        block
    }

    /// Returns the ancestor of a block at a height.
    fn ancestor(&self, mut block: usize, number: u64) -> usize {
        while self.0[block].id.number > number {
            block = self.0[block].parent;
        }
        block
    }
}

/// Database that holds the state of one block of the chain.
struct Database {
    chain: Arc<Mutex<Chain>>,
    base: Mutex<usize>,
    /// Block to which the base steps back before the next read.
    steps_back: Mutex<Option<usize>>,
}

impl Database {
    fn id(&self) -> BlockId {
        let base = *self.base.lock();
        self.chain.lock().0[base].id
    }
}

fn unavailable<T>() -> storage::Result<T> {
    Err(storage::Error::Unavailable("not in this test".into()))
}

impl BaseReads for Database {
    fn checkpoint(&self) -> storage::Result<Checkpoint> {
        unavailable()
    }

    fn read_state(&self, request: &ReadState) -> storage::Result<StateValues> {
        // Lets other threads run between the request and the answer.
        thread::yield_now();
        let values = {
            let mut base = self.base.lock();
            *base = self.steps_back.lock().take().unwrap_or(*base);
            let chain = self.chain.lock();
            let Node { id, state, .. } = &chain.0[*base];
            let number = |hash: &B256| (0..10).find(|n| key(*n) == *hash).unwrap();
            let account = |hash: &B256| {
                let nonce = *state.accounts.get(&number(hash))?;
                Some(Account { nonce, ..Account::default() })
            };
            let slot = |(account, slot): &(B256, B256)| {
                let value = state.slots.get(&(number(account), number(slot)));
                U256::from(value.copied().unwrap_or(0))
            };
            StateValues {
                base: *id,
                accounts: request.accounts.iter().map(account).collect(),
                slots: request.slots.iter().map(slot).collect(),
                codes: Vec::new(),
            }
        };
        thread::yield_now();
        Ok(values)
    }

    fn walk_trie(&self, _: &[WalkTarget]) -> storage::Result<TrieNodes> {
        unavailable()
    }
}

struct World {
    chain: Arc<Mutex<Chain>>,
    database: Arc<Database>,
    recent: Arc<Recent>,
}

impl World {
    fn new() -> Self {
        let chain = Arc::new(Mutex::new(Chain::new()));
        let (base, steps_back) = (Mutex::new(0), Mutex::new(None));
        let database = Database { chain: chain.clone(), base, steps_back };
        // Small, so that values are evicted too.
        let recent = Arc::new(Recent::new(BaseCache::new(4, 16, 4)));
        recent.rebase(database.id());
        Self { chain, database: Arc::new(database), recent }
    }

    fn view(&self, block: usize, pinned: bool) -> StateView {
        let hash = self.chain.lock().0[block].id.hash;
        let (recent, storage) = (self.recent.clone(), self.database.clone());
        if pinned {
            StateView::pinned(hash, recent, storage)
        } else {
            StateView::passing(hash, recent, storage)
        }
    }

    /// Reads some keys through a view of a block and compares them. Returns the number of answers.
    fn check(&self, block: usize, pinned: bool, reads: u32, random: &mut StdRng) -> u64 {
        if random.random_bool(0.2) {
            let accounts = (0..ACCOUNTS).map(key).collect();
            let slots = (0..ACCOUNTS * SLOTS).map(|n| (key(n / SLOTS), key(n % SLOTS))).collect();
            let read = self.view(block, pinned).read_ahead(&accounts, &slots, &accounts);
            assert!(matches!(read, Ok(_) | Err(Error::BaseMoved { .. })), "{read:?}");
        }
        let view = self.view(block, pinned);
        let state = self.chain.lock().0[block].state.clone();
        let mut answered = 0;
        for _ in 0..reads {
            let (account, slot) = (random.random_range(0..ACCOUNTS), random.random_range(0..SLOTS));
            let got = view.account(&key(account)).map(|got| got.map(|account| account.nonce));
            match got {
                Ok(got) => assert_eq!(got, state.accounts.get(&account).copied(), "block {block}"),
                Err(Error::BaseMoved { .. }) => continue,
                Err(error) => panic!("{error}"),
            }
            let want = state.slots.get(&(account, slot)).copied().unwrap_or(0);
            match view.slot(&key(account), &key(slot)) {
                Ok(got) => assert_eq!(got, U256::from(want), "block {block}"),
                Err(Error::BaseMoved { .. }) => continue,
                Err(error) => panic!("{error}"),
            }
            answered += 1;
        }
        answered
    }

    /// Lets the database step back to a block. All blocks above it become pending.
    fn rewind(&self, to: usize) {
        *self.database.base.lock() = to;
        let chain = self.chain.lock();
        let base = chain.0[to].id;
        self.recent.rebase(base);
        for node in chain.0.iter().filter(|node| node.id.number > base.number) {
            self.recent.insert(node.id, chain.0[node.parent].id.hash, node.diff.clone());
        }
    }

    /// Takes a random step of the engine's thread.
    fn step(&self, head: &mut usize, heard: &mut usize, random: &mut StdRng) {
        match random.random_range(0..10) {
            // A block on the head, or a fork slightly below it.
            0..=4 => {
                let mut chain = self.chain.lock();
                let number = chain.0[*head].id.number;
                let (back, base) = (random.random_range(0..4), chain.0[*heard].id.number);
                let back = if random.random_bool(0.7) { 0 } else { back };
                let parent = chain.ancestor(*head, number.saturating_sub(back).max(base));
                let block = chain.grow(parent, random);
                let (id, diff) = (chain.0[block].id, chain.0[block].diff.clone());
                let parent = chain.0[parent].id.hash;
                drop(chain);
                self.recent.insert(id, parent, diff.clone());
                // Its root seems wrong at first.
                if random.random_bool(0.2) {
                    self.recent.remove(&id.hash);
                    self.recent.insert(id, parent, diff);
                }
                *head = block;
            }
            // The base follows the head; the engine hears of it now or later.
            5..=6 => {
                let mut base = self.database.base.lock();
                let chain = self.chain.lock();
                let (from, to) = (chain.0[*base].id.number, chain.0[*head].id.number);
                let goal = chain.ancestor(*head, random.random_range(from..=to.max(from)));
                if chain.ancestor(goal, from) == *base {
                    *base = goal;
                }
            }
            7..=8 => {
                *heard = *self.database.base.lock();
                self.recent.advance(self.database.id());
            }
            // The base steps back, and the head is any block above it.
            _ => {
                let from = *self.database.base.lock();
                let chain = self.chain.lock();
                let number = chain.0[from].id.number.saturating_sub(random.random_range(0..3));
                let to = chain.ancestor(from, number);
                let above: Vec<usize> = (0..chain.0.len())
                    .filter(|&block| chain.0[block].id.number >= number)
                    .filter(|&block| chain.ancestor(block, number) == to)
                    .collect();
                drop(chain);
                self.rewind(to);
                (*heard, *head) = (to, above[random.random_range(0..above.len())]);
            }
        }
    }
}

#[test]
fn no_reader_sees_another_blocks_state_however_the_base_moves() {
    let answered = AtomicU64::new(0);
    for seed in 0..4 {
        let (world, done) = (World::new(), AtomicBool::new(false));
        thread::scope(|scope| {
            for reader in 0..3 {
                let (world, done, answered) = (&world, &done, &answered);
                scope.spawn(move || {
                    let mut random = StdRng::seed_from_u64(seed * 100 + reader);
                    while !done.load(Relaxed) {
                        let blocks = world.chain.lock().0.len();
                        let block = blocks - 1 - random.random_range(0..blocks.min(12));
                        let (pinned, reads) = (random.random_bool(0.7), random.random_range(1..30));
                        let count = world.check(block, pinned, reads, &mut random);
                        answered.fetch_add(count, Relaxed);
                    }
                });
            }
            let mut random = StdRng::seed_from_u64(seed);
            let (mut head, mut heard) = (0, 0);
            for step in 0..1_000 {
                world.step(&mut head, &mut heard, &mut random);
                if step % 5 == 0 {
                    world.check(head, true, 4, &mut random);
                }
            }
            done.store(true, Relaxed);
        });
    }
    assert!(answered.into_inner() > 1_000);
}

#[test]
fn a_base_that_steps_back_before_it_answers_is_not_below_layers_that_are_gone() {
    let world = World::new();
    let mut random = StdRng::seed_from_u64(2);
    for parent in 0..3 {
        let mut chain = world.chain.lock();
        let block = chain.grow(parent, &mut random);
        let (id, parent) = (chain.0[block].id, chain.0[parent].id.hash);
        world.recent.insert(id, parent, chain.0[block].diff.clone());
    }
    let view = world.view(3, false);
    *world.database.base.lock() = 3;
    assert!(world.recent.advance(world.database.id()));
    world.recent.cache().clear();
    assert!(view.account(&key(0)).is_ok());
    *world.database.steps_back.lock() = Some(1);
    let answer = view.account(&key(0));
    assert!(matches!(answer, Err(Error::BaseMoved { .. })), "{answer:?}");
}

#[test]
fn what_was_read_ahead_is_not_read_again() {
    let world = World::new();
    let accounts = [0, 1].map(key).into_iter().collect();
    let slots = [(key(0), key(1)), (key(1), key(2))].into_iter().collect();
    let read = || world.view(0, false).read_ahead(&accounts, &slots, &accounts).unwrap();
    assert_eq!(read(), ReadAhead { accounts: 2, slots: 2, codes: 0 });
    assert_eq!(read(), ReadAhead::default());
    let view = world.view(0, true);
    view.account(&key(1)).unwrap();
    view.slot(&key(1), &key(2)).unwrap();
    assert_eq!(view.counts(), ReadCounts { layers: 0, cache: 2, storage: 0, alone: 0 });
}

#[test]
fn layers_that_a_reader_holds_stay_as_they_are() {
    let world = World::new();
    let mut random = StdRng::seed_from_u64(1);
    let mut chain = world.chain.lock();
    let blocks: Vec<usize> = (0..3).map(|n| chain.grow(n, &mut random)).collect();
    for &block in &blocks {
        let Node { id, parent, diff, .. } = &chain.0[block];
        world.recent.insert(*id, chain.0[*parent].id.hash, diff.clone());
    }
    drop(chain);
    let view = world.view(blocks[0], true);
    let before: Vec<_> = (0..ACCOUNTS).map(|n| view.account(&key(n)).unwrap()).collect();
    *world.database.base.lock() = blocks[2];
    assert!(world.recent.advance(world.database.id()));
    for (n, before) in (0..ACCOUNTS).zip(before) {
        match view.account(&key(n)) {
            Ok(after) => assert_eq!(after, before),
            Err(error) => assert!(matches!(error, Error::BaseMoved { .. }), "{error}"),
        }
    }
    assert_eq!(world.recent.read(Layers::len), 0);
}
