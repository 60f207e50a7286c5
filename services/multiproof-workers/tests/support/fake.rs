//! A storage-writer in memory that is slow, stops or fails when a test tells it to, and a chain
//! over it.

use parking_lot::{Condvar, Mutex};
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};
use tandem_bus::Bus;
use tandem_primitives::{B256, BlockId, Bytes, ShardSet, TrieDiff, WalkTarget};
use tandem_proto::{
    event::{CHAIN_PERSISTED, ChainEvent},
    storage::{
        BaseReads, Checkpoint, Error, Forkchoice, PendingBlock, ReadState, Result, StateValues,
        TrieNode, TrieNodes, TrieStorage,
    },
};
use tandem_testkit::trie::{State, Store};

/// Longest wait of a test; after it the test fails.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// storage-writer as far as the workers see it.
#[derive(Default)]
pub struct Fake {
    inner: Mutex<Inner>,
    changed: Condvar,
    /// Longest time of a walk, in microseconds.
    pub delay_us: AtomicU32,
    /// Whether walks fail.
    pub failing: AtomicBool,
    /// Whether walks wait.
    pub gate: Mutex<bool>,
    pub gate_changed: Condvar,
    /// Number of walks under way now. The next field has the maximum.
    pub active: AtomicUsize,
    pub active_max: AtomicUsize,
    /// Keys of each walk so far.
    pub walks: Mutex<Vec<usize>>,
    pub bus: Bus,
}

#[derive(Default)]
struct Inner {
    base: BlockId,
    store: Store,
    /// Trie diffs that arrived for a block, and their shards.
    diffs: HashMap<B256, (ShardSet, Vec<Arc<TrieDiff>>)>,
}

impl Fake {
    pub fn new(genesis: BlockId, state: &State) -> Arc<Self> {
        let inner = Inner { base: genesis, store: state.store(), diffs: HashMap::new() };
        Arc::new(Self { inner: Mutex::new(inner), ..Self::default() })
    }

    /// Waits until the diffs of all shards of this block are here.
    pub fn await_diffs(&self, block: B256) {
        let mut inner = self.inner.lock();
        let missing = |inner: &mut Inner| {
            inner.diffs.get(&block).is_none_or(|diffs| diffs.0 != ShardSet::ALL)
        };
        let wait = self.changed.wait_while_for(&mut inner, missing, WAIT_MAX);
        assert!(!wait.timed_out(), "the trie diffs of {block} did not come");
    }

    /// Moves the base up to a child of its block, and announces it.
    pub fn persist(&self, block: BlockId) {
        self.await_diffs(block.hash);
        {
            let mut inner = self.inner.lock();
            let (_, diffs) = inner.diffs.remove(&block.hash).unwrap();
            diffs.iter().for_each(|diff| inner.store.apply(diff));
            inner.base = block;
        }
        self.bus.publish(CHAIN_PERSISTED, ChainEvent { block }.encode());
    }

    pub fn base(&self) -> BlockId {
        self.inner.lock().base
    }

    pub fn close_gate(&self) {
        *self.gate.lock() = true;
    }

    pub fn open_gate(&self) {
        *self.gate.lock() = false;
        self.gate_changed.notify_all();
    }

    /// Waits until `count` walks wait at the gate.
    pub fn await_walks(&self, count: usize) {
        for _ in 0..WAIT_MAX.as_millis() {
            if self.active.load(SeqCst) >= count {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
        panic!("only {} walks of {count} came", self.active.load(SeqCst));
    }

    fn pause(&self) {
        let mut gate = self.gate.lock();
        let wait = self.gate_changed.wait_while_for(&mut gate, |closed| *closed, WAIT_MAX);
        assert!(!wait.timed_out(), "the gate stayed closed");
        drop(gate);
        let delay = self.delay_us.load(SeqCst);
        if delay > 0 {
            thread::sleep(Duration::from_micros(rand::random_range(0..delay).into()));
        }
    }
}

fn unused<T>() -> Result<T> {
    Err(Error::Unavailable("not in this test".into()))
}

impl BaseReads for Fake {
    fn checkpoint(&self) -> Result<Checkpoint> {
        let (genesis, base) = (BlockId::default(), self.base());
        let forkchoice = Forkchoice::default();
        Ok(Checkpoint {
            genesis,
            genesis_json: "{}".into(),
            base,
            forkchoice,
            writes_fail: false,
            oldest_block: 0,
        })
    }

    fn read_state(&self, _: &ReadState) -> Result<StateValues> {
        unused()
    }

    fn walk_trie(&self, targets: &[WalkTarget]) -> Result<TrieNodes> {
        let active = self.active.fetch_add(1, SeqCst) + 1;
        self.active_max.fetch_max(active, SeqCst);
        self.walks.lock().push(targets.len());
        self.pause();
        self.active.fetch_sub(1, SeqCst);
        if self.failing.load(SeqCst) {
            return Err(Error::Store("the disk is gone".into()));
        }
        let inner = self.inner.lock();
        let mut nodes: Vec<TrieNode> = Vec::new();
        for target in targets {
            inner.store.walk_one(target, &mut |owner, path, rlp| {
                let known = |node: &TrieNode| node.owner == owner && node.path[..] == *path;
                if !nodes.iter().any(known) {
                    let path = Bytes::copy_from_slice(path);
                    nodes.push(TrieNode { owner, path, rlp: Bytes::copy_from_slice(rlp) });
                }
            });
        }
        Ok(TrieNodes { base: inner.base, nodes })
    }
}

impl TrieStorage for Fake {
    fn pending(&self) -> Result<Vec<PendingBlock>> {
        Ok(Vec::new())
    }

    fn trie_diff(&self, _: B256) -> Result<Option<Arc<TrieDiff>>> {
        unused()
    }

    fn put_trie_diff(&self, block: B256, shards: ShardSet, diff: Arc<TrieDiff>) -> Result<()> {
        let mut inner = self.inner.lock();
        let entry = inner.diffs.entry(block).or_default();
        entry.0 = entry.0.union(shards);
        entry.1.push(diff);
        self.changed.notify_all();
        Ok(())
    }
}
