//! Random histories against a model: commits, forkchoices, reorgs, rewinds, good and bad trie
//! diffs, restarts. The database is in a directory or in memory, in one process or over the wire.
//! Every restart verifies the whole database.

use crate::{
    common::{Random, World, account_key, block, new_chain, new_chain_in_memory, slot_key},
    ranges,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_primitives::{
    AccountUpdate, B256, BlockId, Bytes, NodeChange, ShardSet, StateDiff, TrieDiff, U256,
    WalkTarget,
};
use tandem_proto::storage::{
    BaseReads, Block, BlockRecord, BlockRef, Epoch, Error, Forkchoice, HistoryReads, ReadState,
    StateValues, StorageApi, TransactionPlace,
};
use tandem_storage_writer::{Config, Deps, StorageWriter, verify};

/// Blocks of history under small limits.
const HISTORY: u64 = 16;

/// Route by which calls reach a storage-writer.
pub trait Front {
    /// Returns the API through which calls to this storage-writer are made.
    fn open(&mut self, writer: &Arc<StorageWriter>) -> Arc<dyn StorageApi>;

    /// Lets go of the storage-writer that was opened last.
    fn close(&mut self) {}
}

/// Model of the answers that storage-writer must give.
pub struct Model<F> {
    front: F,
    api: Option<Arc<dyn StorageApi>>,
    random: Random,
    /// `None` when the database is in memory.
    datadir: Option<PathBuf>,
    writer: Option<Arc<StorageWriter>>,
    epoch: Epoch,
    genesis: BlockId,
    /// Every block ever made, with its state.
    blocks: BTreeMap<B256, (Block, World)>,
    genesis_world: World,
    pending: BTreeSet<B256>,
    /// Canonical blocks by height, genesis to head.
    canonical: Vec<BlockId>,
    base: u64,
    /// Height of the oldest reverse diff.
    oldest_reverse: u64,
    /// Height from which on history has states at least.
    history_from: u64,
    /// Height of the finalized block, 0 for none.
    finalized: u64,
    /// State of which a range was asked for first.
    served: Option<World>,
}

impl<F: Front> Model<F> {
    pub fn new(front: F, datadir: PathBuf, seed: u64) -> Self {
        let (genesis, world) = new_chain(&datadir);
        Self::over(front, Some(datadir), None, genesis, world, seed)
    }

    pub fn in_memory(front: F, seed: u64) -> Self {
        let (writer, world) = new_chain_in_memory(Deps::default());
        let genesis = writer.checkpoint().unwrap().genesis;
        Self::over(front, None, Some(writer), genesis, world, seed)
    }

    fn over(
        front: F,
        datadir: Option<PathBuf>,
        writer: Option<Arc<StorageWriter>>,
        genesis: BlockId,
        genesis_world: World,
        seed: u64,
    ) -> Self {
        let mut model = Self {
            front,
            api: None,
            random: Random(seed),
            datadir,
            writer,
            epoch: Epoch::numbered(0),
            genesis,
            blocks: BTreeMap::new(),
            genesis_world,
            pending: BTreeSet::new(),
            canonical: vec![genesis],
            base: 0,
            oldest_reverse: 1,
            history_from: 0,
            finalized: 0,
            served: None,
        };
        model.reopen();
        model
    }

    fn api(&self) -> &dyn StorageApi {
        &**self.api.as_ref().unwrap()
    }

    fn world(&self, block: BlockId) -> &World {
        self.blocks.get(&block.hash).map_or(&self.genesis_world, |(_, world)| world)
    }

    /// Verifies the whole database, and then reopens it if it is in a directory.
    fn reopen(&mut self) {
        self.api = None;
        self.front.close();
        let report = match &self.datadir {
            Some(datadir) => {
                self.writer = None;
                verify(datadir).unwrap()
            }
            None => self.writer.as_ref().unwrap().verify().unwrap(),
        };
        assert_eq!(report.first_difference, None);
        assert_eq!(report.base, self.canonical[self.base as usize]);
        assert_eq!(report.head, *self.canonical.last().unwrap());
        let slots = |world: &World| world.0.values().map(|(_, slots)| slots.len()).sum::<usize>();
        let world = self.world(report.base);
        assert_eq!((report.accounts, report.slots), (world.0.len() as u64, slots(world) as u64));
        if let Some(datadir) = &self.datadir {
            let writer = StorageWriter::start(Config::with_small_limits(datadir), Deps::default());
            self.writer = Some(writer.unwrap());
        }
        self.api = Some(self.front.open(self.writer.as_ref().unwrap()));
        self.served = None;
        let epoch = self.api().acquire_epoch("test").unwrap();
        assert!(epoch.number > self.epoch.number);
        self.epoch = epoch;
    }

    /// Returns the blocks on which a child may be built: pending ones, and the base's last few.
    ///
    /// Excludes blocks whose branch finality excludes, or to which the base cannot step back: such
    /// a block is dropped at some time after its commit.
    fn parents(&self) -> Vec<BlockId> {
        let pending = self.pending.iter().map(|hash| self.blocks[hash].0.id);
        let lowest = self.finalized.max(self.oldest_reverse - 1).max(self.base.saturating_sub(2));
        let recent = (lowest..=self.base).map(|n| self.canonical[n as usize]);
        let pending = pending.filter(|id| id.number >= self.finalized);
        pending.chain(recent).collect()
    }

    fn commit(&mut self) {
        let parent = match self.random.below(4) {
            0 => *self.random.pick(&self.parents()),
            _ => *self.canonical.last().unwrap(),
        };
        let mut parent = parent;
        for _ in 0..=self.random.below(3) {
            let mut world = self.world(parent).clone();
            let diff = world.random_diff(&mut self.random);
            world.apply(&diff);
            let block = block(parent, &world, diff, &mut self.random);
            if self.random.one_in(5) {
                self.put_wrong_trie_diff(block.id.hash);
            }
            self.api().commit(self.epoch, block.clone()).unwrap();
            if self.random.one_in(3) {
                self.api().commit(self.epoch, block.clone()).unwrap();
            }
            let stale = Epoch::numbered(self.epoch.number - 1);
            let fenced = self.api().commit(stale, block.clone());
            assert!(matches!(fenced, Err(Error::Fenced { .. })));
            parent = block.id;
            self.pending.insert(parent.hash);
            self.blocks.insert(parent.hash, (block, world));
        }
    }

    /// Hands over a diff that claims to be whole and is not.
    fn put_wrong_trie_diff(&self, hash: B256) {
        let mut diff = TrieDiff::default();
        diff.push(NodeChange { owner: None, path: &[3], rlp: Some(&[1; 40]) });
        self.api().put_trie_diff(hash, ShardSet::ALL, Arc::new(diff)).unwrap();
    }

    /// Returns the height at which a block's branch meets the canonical chain, and the blocks
    /// above.
    fn branch(&self, head: BlockId) -> Option<(u64, Vec<BlockId>)> {
        let mut at = head;
        let mut branch = Vec::new();
        loop {
            if self.canonical.get(at.number as usize) == Some(&at) {
                branch.reverse();
                return Some((at.number, branch));
            }
            if !self.pending.contains(&at.hash) {
                return None;
            }
            branch.push(at);
            let parent = self.blocks[&at.hash].0.parent;
            at = BlockId::new(at.number - 1, parent);
        }
    }

    fn canonicalize(&mut self) {
        let head = match self.random.below(6) {
            0 => *self.random.pick(&self.canonical),
            1 => *self.random.pick(&self.parents()),
            2 => {
                let any: Vec<BlockId> = self.blocks.values().map(|(block, _)| block.id).collect();
                if any.is_empty() { self.genesis } else { *self.random.pick(&any) }
            }
            _ => {
                let highest = self.pending.iter().map(|hash| self.blocks[hash].0.id);
                highest.max_by_key(|id| id.number).unwrap_or(self.genesis)
            }
        };
        let branch = self.branch(head);
        let finalized = branch.as_ref().map_or(0, |(meets, branch)| {
            // A consensus client never leaves a final block; this one may, and then no block is
            // final.
            let kept = if *meets < self.finalized { 0 } else { self.finalized };
            let raised = if self.random.one_in(4) { self.random.below(head.number + 1) } else { 0 };
            let finalized = kept.max(raised).min(head.number);
            // The storage-writer is told a block of the new chain.
            if finalized > *meets && branch.is_empty() { *meets } else { finalized }
        });
        let finalized_block = branch.as_ref().map(|(meets, branch)| match finalized {
            number if number <= *meets => self.canonical[number as usize],
            number => branch[(number - meets - 1) as usize],
        });
        let finalized_block = finalized_block.filter(|block| block.number > 0);
        let forkchoice = Forkchoice { head, safe: Some(self.genesis), finalized: finalized_block };
        let answer = self.api().canonicalize(self.epoch, forkchoice);
        let Some((meets, branch)) = branch else {
            assert!(matches!(answer, Err(Error::UnknownBlock(_))), "{answer:?}");
            return;
        };
        if meets < self.base && !self.rewound(meets) {
            assert!(matches!(answer, Err(Error::RewindTooDeep { .. })), "{answer:?}");
            return;
        }
        let goal = answer.unwrap();
        let most = head.number.saturating_sub(3);
        let least = most.min(finalized.max(head.number.saturating_sub(8))).max(self.base);
        // Memory may be short, so that the base comes closer.
        assert!((least..=most.max(self.base)).contains(&goal), "{least} {goal} {most}");
        self.finalized = finalized;
        self.canonical.truncate(meets as usize + 1);
        self.canonical.extend(branch);
        assert_eq!(self.api().checkpoint().unwrap().forkchoice, forkchoice);
        while self.base < goal {
            self.base += 1;
            self.pending.remove(&self.canonical[self.base as usize].hash);
            self.oldest_reverse = self.oldest_reverse.max((self.base + 1).saturating_sub(12));
            self.history_from = self.history_from.max(self.base.saturating_sub(HISTORY));
        }
        self.exclude();
        let started = Instant::now();
        while self.api().checkpoint().unwrap().base.number != self.base
            || self.api().pending().unwrap().len() != self.pending.len()
        {
            assert!(started.elapsed() < Duration::from_secs(20), "the base does not follow");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Forgets the branches that cannot become canonical any more, each as a whole.
    fn exclude(&mut self) {
        let mut side: Vec<(BlockId, B256)> = self
            .pending
            .iter()
            .map(|hash| (self.blocks[hash].0.id, self.blocks[hash].0.parent))
            .filter(|(id, _)| self.canonical.get(id.number as usize) != Some(id))
            .collect();
        side.sort_unstable_by_key(|(id, _)| id.number);
        let all = self.pending.clone();
        let mut gone = BTreeSet::new();
        for (id, parent) in side {
            let too_deep = id.number < self.oldest_reverse && !all.contains(&parent);
            if id.number <= self.finalized || too_deep || gone.contains(&parent) {
                self.pending.remove(&id.hash);
                gone.insert(id.hash);
            }
        }
    }

    /// Steps the base back to a height. Returns whether that is possible.
    fn rewound(&mut self, to: u64) -> bool {
        if to + 1 < self.oldest_reverse {
            return false;
        }
        while self.base > to {
            self.pending.insert(self.canonical[self.base as usize].hash);
            self.base -= 1;
        }
        self.history_from = self.history_from.min(self.base);
        true
    }

    fn rewind(&mut self) {
        let to = (self.base + 1).saturating_sub(self.random.below(16));
        let answer = self.api().rewind(self.epoch, to);
        if to >= self.base || self.rewound(to) {
            answer.unwrap();
        } else {
            assert!(matches!(answer, Err(Error::RewindTooDeep { .. })), "{answer:?}");
        }
    }

    fn discard(&mut self) {
        let pending: Vec<B256> = self.pending.iter().copied().collect();
        if pending.is_empty() {
            return;
        }
        let hash = *self.random.pick(&pending);
        let canonical = self.canonical.iter().any(|id| id.hash == hash);
        let is_parent = pending.iter().any(|child| self.blocks[child].0.parent == hash);
        if is_parent {
            return;
        }
        let answer = self.api().discard(self.epoch, hash);
        assert_eq!(answer.is_ok(), !canonical);
        if !canonical {
            self.pending.remove(&hash);
            assert_eq!(self.api().header(BlockRef::Hash(hash)).unwrap(), None);
        }
    }

    fn check(&mut self) {
        let api = self.api.clone().unwrap();
        let base = self.canonical[self.base as usize];
        assert_eq!(api.checkpoint().unwrap().base, base);
        let pending = api.pending().unwrap();
        let hashes: BTreeSet<B256> = pending.iter().map(|block| block.id.hash).collect();
        assert_eq!(hashes, self.pending);
        let asked: Vec<B256> = pending.iter().map(|block| block.id.hash).collect();
        let diffs = api.state_diffs(&asked).unwrap();
        for (whole, some) in diffs.iter().zip(api.account_diffs(&asked).unwrap()) {
            let (whole, some) = (whole.as_ref().unwrap(), some.unwrap());
            assert!(some.accounts.iter().all(|update| update.slots.is_empty()));
            let of = |diff: &StateDiff| {
                let one = |it: &AccountUpdate| (it.address_hash, it.account, it.wiped);
                (diff.accounts.iter().map(one).collect::<Vec<_>>(), diff.codes.clone())
            };
            assert_eq!(of(&some), of(whole));
        }
        for (got, diff) in pending.iter().zip(diffs) {
            let want = &self.blocks[&got.id.hash].0;
            let record = api.block(BlockRef::Hash(got.id.hash)).unwrap().unwrap();
            assert_eq!((&record.body, &got.header), (&want.body, &want.header));
            assert!(!got.kept);
            let list = api.access_list(BlockRef::Hash(got.id.hash)).unwrap();
            assert_eq!(list, want.access_list);
            let parent = self.blocks.get(&got.parent).map_or(&self.genesis_world, |(_, w)| w);
            let mut world = parent.clone();
            world.apply(&diff.unwrap());
            assert_eq!(world, *self.world(got.id), "the diff leads elsewhere");
        }
        self.check_state(&*api, base);
        self.check_history();
        self.check_blocks(&*api);
        if self.random.one_in(6) {
            self.check_ranges(&*api);
        }
    }

    /// Asks for ranges of the state of a recent block, and of one that was asked for before, though
    /// the base may have left it.
    fn check_ranges(&mut self, api: &dyn StorageApi) {
        let recent = &self.canonical[self.base as usize..];
        let block = *self.random.pick(recent);
        let world = self.world(block).clone();
        ranges::check(api, &world, &mut self.random);
        ranges::check_codes(api, &world);
        if let Some(served) = &self.served {
            // Its block may be discarded, and its codes with it.
            ranges::check(api, served, &mut self.random);
        }
        self.served.get_or_insert(world);
        let unknown = World::default();
        let items = ranges::accounts(api, unknown.root(), B256::ZERO, u64::MAX);
        assert!(items.0.is_empty() && items.1.is_empty());
    }

    fn check_state(&mut self, api: &dyn StorageApi, base: BlockId) {
        let accounts: Vec<B256> = (0..40).map(account_key).collect();
        let slots: Vec<(B256, B256)> = (0..80)
            .map(|_| (accounts[self.random.below(40) as usize], self.random.below(60)))
            .map(|(account, slot)| (account, slot_key(slot)))
            .collect();
        let world = self.world(base);
        let codes: Vec<B256> = world.0.values().map(|(account, _)| account.code_hash).collect();
        let request = ReadState { accounts, slots, codes };
        let values = api.read_state(&request).unwrap();
        assert_eq!(values.base, base);
        compare(self.world(base), &request, &values);
        let targets: Vec<WalkTarget> = request
            .slots
            .iter()
            .flat_map(|(owner, slot)| {
                [
                    WalkTarget { owner: None, key: *owner, from_depth: 1 },
                    WalkTarget { owner: Some(*owner), key: *slot, from_depth: 0 },
                ]
            })
            .collect();
        let walked = api.walk_trie(&targets).unwrap();
        assert_eq!(walked.base, base);
        let mut seen = BTreeSet::new();
        for node in &walked.nodes {
            assert!(node.owner.is_some() || !node.path.is_empty(), "the account trie's root");
            assert!(seen.insert((node.owner, node.path.clone())), "a node came twice");
        }
    }

    /// Reads the states after some blocks, whether history has them or not.
    fn check_history(&mut self) {
        let writer = self.writer.clone().unwrap();
        let kept = writer.kept_states().unwrap().unwrap();
        assert_eq!((kept.newest, kept.blocks_max), (self.base, HISTORY));
        assert!(kept.oldest + HISTORY >= self.base && kept.oldest <= self.history_from, "{kept:?}");
        let side: Vec<BlockId> = self.blocks.values().map(|(block, _)| block.id).collect();
        for _ in 0..3 {
            let canonical = *self.random.pick(&self.canonical);
            let any = if side.is_empty() { canonical } else { *self.random.pick(&side) };
            for block in [canonical, any] {
                let accounts: Vec<B256> = (0..40).map(account_key).collect();
                let slots: Vec<(B256, B256)> = (0..80)
                    .map(|_| (accounts[self.random.below(40) as usize], self.random.below(60)))
                    .map(|(account, slot)| (account, slot_key(slot)))
                    .collect();
                let world = self.world(block);
                let codes = world.0.values().map(|(account, _)| account.code_hash).collect();
                let request = ReadState { accounts, slots, codes };
                let values = writer.read_state_after(block, &request).unwrap();
                let is_kept = self.canonical.get(block.number as usize) == Some(&block)
                    && (kept.oldest..=kept.newest).contains(&block.number);
                assert_eq!(values.is_some(), is_kept, "{block}, {kept:?}");
                if let Some(values) = values {
                    assert_eq!(values.base, block);
                    compare(world, &request, &values);
                }
            }
        }
    }

    fn check_blocks(&mut self, api: &dyn StorageApi) {
        for id in &self.canonical {
            let (got, _) = api.header(BlockRef::Number(id.number)).unwrap().unwrap();
            assert_eq!(got, *id);
            let record = api.block(BlockRef::Hash(id.hash)).unwrap().unwrap();
            assert_eq!(record.id, *id);
            let without = api.block_without_receipts(BlockRef::Hash(id.hash)).unwrap();
            assert_eq!(without, Some(BlockRecord { receipts: Bytes::new(), ..record.clone() }));
            let Some((block, _)) = self.blocks.get(&id.hash) else { continue };
            assert_eq!(record.body, block.body);
            for (index, hash) in (0..).zip(block.transaction_hashes.iter()) {
                let place = TransactionPlace { block: *id, index };
                assert_eq!(api.transaction(*hash).unwrap(), Some(place));
            }
        }
        let above = BlockRef::Number(self.canonical.len() as u64);
        assert_eq!(api.header(above).unwrap(), None);
        let pending: Vec<B256> = self.pending.iter().copied().collect();
        if !pending.is_empty() && self.random.one_in(2) {
            let hash = *self.random.pick(&pending);
            let reachable =
                self.branch(self.blocks[&hash].0.id).is_some_and(|(meets, _)| meets >= self.base);
            // When the branch leaves the chain below the base, a diff may still be in memory.
            assert!(api.trie_diff(hash).unwrap().is_some() || !reachable);
        }
    }
}

/// Compares an answer with the state that it has to be from.
fn compare(world: &World, request: &ReadState, values: &StateValues) {
    for (key, got) in request.accounts.iter().zip(&values.accounts) {
        assert_eq!(*got, world.0.get(key).map(|(account, _)| *account));
    }
    for ((account, slot), got) in request.slots.iter().zip(&values.slots) {
        let slots = world.0.get(account).map(|(_, slots)| slots);
        let want = slots.and_then(|slots| slots.get(slot).copied());
        assert_eq!(*got, want.unwrap_or(U256::ZERO));
    }
    for (hash, code) in request.codes.iter().zip(&values.codes) {
        let empty = *hash == tandem_primitives::EMPTY_CODE_HASH;
        assert_eq!(code.is_none(), empty);
    }
}

/// Plays a history of `steps` steps.
pub fn run<F: Front>(mut model: Model<F>, steps: u64) {
    for _ in 0..steps {
        match model.random.below(16) {
            0..=6 => model.commit(),
            7..=11 => model.canonicalize(),
            12 | 13 => model.rewind(),
            14 => model.discard(),
            _ => model.reopen(),
        }
        model.check();
    }
    model.reopen();
    model.api = None;
    model.front.close();
}

pub fn seeds(count: u64) -> impl Iterator<Item = u64> {
    (1..=count).map(|seed| seed * 0x9e37_79b9_7f4a_7c15).inspect(|seed| println!("seed {seed}"))
}
