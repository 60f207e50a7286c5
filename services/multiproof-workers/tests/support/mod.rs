//! A chain of random blocks over a storage-writer in memory, with roots by alloy-trie.
#![allow(dead_code, clippy::unwrap_used)]

use alloy_consensus::Header;
use alloy_rlp::Decodable;
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};
use tandem_bus::Bus;
use tandem_multiproof_workers::{Config, Deps, MultiproofWorkers};
use tandem_policy::LivePolicies;
use tandem_primitives::{Account, AccountUpdate, B256, BlockId, SlotUpdate, StateDiff, U256};
use tandem_proto::{
    event::{CHAIN_PERSISTED, ChainEvent},
    multiproof::{Begin, Error, Foresight, ProofApi, ProofSession, ShardRoots, StateUpdate},
    storage::{BaseReads, Block, BlockWrites, Epoch, Forkchoice, TrieStorage, WriteLease},
};
use tandem_storage_writer::StorageWriter;
use tandem_testkit::world;
pub use tandem_testkit::world::{Random, World};
use tokio_util::sync::CancellationToken;

/// Block that was made: its changes, in order, and the state after it.
#[derive(Clone)]
pub struct Made {
    pub block: Block,
    pub updates: Vec<Arc<StateUpdate>>,
    pub after: Arc<World>,
    pub root: B256,
}

impl Made {
    pub fn begin(&self) -> Begin {
        Begin::new(self.block.id, self.block.parent)
    }
}

/// storage-writer and the blocks made so far.
pub struct Chain {
    pub storage: Arc<StorageWriter>,
    pub bus: Bus,
    pub genesis: BlockId,
    pub epoch: Epoch,
    worlds: HashMap<B256, Arc<World>>,
}

impl Chain {
    /// Creates a new chain. The base follows the head three blocks behind.
    pub fn new() -> Self {
        let bus = Bus::default();
        let on_persisted = {
            let bus = bus.clone();
            Box::new(move |block| bus.publish(CHAIN_PERSISTED, ChainEvent { block }.encode()))
        };
        let deps = tandem_storage_writer::Deps { on_persisted, fatal: CancellationToken::new() };
        let (json, world) = world::genesis();
        let config = tandem_storage_writer::Config::with_small_limits("");
        let storage = StorageWriter::create_in_memory(json.as_bytes(), config, deps).unwrap();
        let genesis = storage.checkpoint().unwrap().genesis;
        let epoch = storage.acquire_epoch("test").unwrap();
        let worlds = HashMap::from([(genesis.hash, Arc::new(world))]);
        Self { storage, bus, genesis, epoch, worlds }
    }

    /// Starts workers over this storage, or over a storage in front of it.
    pub fn workers(&self, threads: usize, storage: Arc<dyn TrieStorage>) -> Arc<MultiproofWorkers> {
        self.workers_with(threads, storage, LivePolicies::default())
    }

    /// Starts workers with these policies.
    pub fn workers_with(
        &self,
        threads: usize,
        storage: Arc<dyn TrieStorage>,
        policies: LivePolicies,
    ) -> Arc<MultiproofWorkers> {
        let config = Config { threads, ..Config::default() };
        let (bus, fatal) = (self.bus.clone(), CancellationToken::new());
        MultiproofWorkers::start(config, Deps { storage, bus, policies, fatal }).unwrap()
    }

    /// Returns the state after a block.
    pub fn world(&self, block: &BlockId) -> Arc<World> {
        self.worlds[&block.hash].clone()
    }

    /// Makes a block of `transactions` random transactions, without committing it.
    pub fn make(&self, parent: BlockId, transactions: usize, random: &mut Random) -> Made {
        let mut after = World::clone(&self.worlds[&parent.hash]);
        let mut updates = Vec::new();
        let mut merged = BTreeMap::new();
        for _ in 0..transactions {
            let mut diff = after.random_diff(random);
            vary(&self.worlds[&parent.hash], &mut diff, random);
            // As in the executor: a destroyed account is wiped too.
            diff.accounts.iter_mut().for_each(|update| update.wiped |= update.account.is_none());
            after.apply(&diff);
            merge(&mut merged, &diff);
            updates.push(Arc::new(StateUpdate { accounts: diff.accounts }));
        }
        let diff = StateDiff { accounts: merged.into_values().collect(), codes: Vec::new() };
        let block = world::block(parent, &after, diff, random);
        let root = Header::decode(&mut &block.header[..]).unwrap().state_root;
        Made { block, updates, after: Arc::new(after), root }
    }

    /// Returns some of the block's changes, and some that it does not make.
    pub fn foresight(&self, made: &Made, random: &mut Random) -> Arc<Foresight> {
        let parent = &self.worlds[&made.block.parent];
        let mut foresight = Foresight::default();
        for update in &made.block.diff.accounts {
            let was = parent.0.get(&update.address_hash);
            if random.one_in(3) {
                continue;
            }
            let (mut before, mut after) = (update.clone(), update.clone());
            (before.wiped, after.wiped) = (false, false);
            before.account = was.map(|(account, _)| *account).filter(|_| !random.one_in(4));
            after.slots.retain(|_| !random.one_in(3));
            before.slots.clone_from(&after.slots);
            for (before, after) in before.slots.iter_mut().zip(&mut after.slots) {
                before.value =
                    was.and_then(|was| was.1.get(&before.key)).copied().unwrap_or_default();
                if random.one_in(4) {
                    after.value += U256::from(random.below(3));
                }
            }
            foresight.before.push(before);
            foresight.after.push(after);
        }
        Arc::new(foresight)
    }

    /// Commits a block, so that others may be built on it.
    pub fn commit(&mut self, made: &Made) {
        self.storage.commit(self.epoch, made.block.clone()).unwrap();
        self.worlds.insert(made.block.id.hash, made.after.clone());
    }

    /// Makes a block the head; the base follows in its own time.
    pub fn make_head(&self, head: BlockId) {
        let forkchoice = Forkchoice { head, safe: None, finalized: None };
        self.storage.canonicalize(self.epoch, forkchoice).unwrap();
    }

    /// Forgets the state after a block on which nothing will be built.
    pub fn forget(&mut self, block: &B256) {
        self.worlds.remove(block);
    }
}

/// Adds cases that random diffs lack: accounts that exist with nothing in them, as before EIP-161,
/// and values that the block began with.
fn vary(before: &World, diff: &mut StateDiff, random: &mut Random) {
    for update in &mut diff.accounts {
        let was = before.0.get(&update.address_hash);
        if let Some(account) = &mut update.account
            && random.one_in(6)
        {
            *account = was.filter(|_| random.one_in(2)).map_or(Account::default(), |was| was.0);
        }
        for slot in &mut update.slots {
            if random.one_in(6) {
                let was = was.and_then(|(_, storage)| storage.get(&slot.key));
                slot.value = was.copied().unwrap_or_default();
            }
        }
    }
}

/// Adds the changes of a transaction to the earlier changes of the block.
fn merge(block: &mut BTreeMap<B256, AccountUpdate>, diff: &StateDiff) {
    for update in &diff.accounts {
        let Some(before) = block.get_mut(&update.address_hash) else {
            block.insert(update.address_hash, update.clone());
            continue;
        };
        let mut slots = BTreeMap::new();
        if !update.wiped {
            slots.extend(before.slots.iter().map(|slot| (slot.key, slot.value)));
        }
        slots.extend(update.slots.iter().map(|slot| (slot.key, slot.value)));
        before.wiped |= update.wiped;
        before.account = update.account;
        before.slots = slots.into_iter().map(|(key, value)| SlotUpdate { key, value }).collect();
    }
}

/// Feeds a block and asks for its roots.
pub fn prove(api: &dyn ProofApi, made: &Made) -> Result<ShardRoots, Error> {
    let mut session = api.begin(made.begin())?;
    feed(&mut *session, &made.updates);
    session.finish();
    session.roots()
}

/// Feeds updates.
pub fn feed(session: &mut dyn ProofSession, updates: &[Arc<StateUpdate>]) {
    for update in updates {
        session.update(update.clone());
    }
}

/// Returns the state root of sixteen subtries.
pub fn state_root(answer: &ShardRoots) -> B256 {
    tandem_trie::combine(&answer.roots).unwrap().0
}
