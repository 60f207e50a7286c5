//! The state as of one block: its layers, under them the cache of base values, under that
//! storage-writer.

use crate::{
    code,
    error::Error,
    layers::{Branch, Layers},
    state::StateReader,
};
use parking_lot::RwLock;
use quick_cache::sync::Cache;
use revm::state::Bytecode;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};
use tandem_primitives::{Account, B256, BlockId, StateDiff, U256};
use tandem_proto::storage::{ReadState, StorageApi};

/// Base values read before, and all code. What it holds is the base at the block the executor
/// knows as persisted: only the engine's own thread adds to it, and when the base moves on, the
/// values of the blocks it took in are written here under the same lock under which their layers
/// go.
pub struct BaseCache {
    accounts: Cache<B256, Option<Account>>,
    slots: Cache<(B256, B256), U256>,
    codes: Cache<B256, Bytecode>,
}

impl BaseCache {
    /// A cache of so many accounts, slots and codes.
    pub fn new(accounts: usize, slots: usize, codes: usize) -> Self {
        Self { accounts: Cache::new(accounts), slots: Cache::new(slots), codes: Cache::new(codes) }
    }

    /// The base has taken in a block.
    pub fn advance(&self, diff: &StateDiff) {
        if diff.accounts.iter().any(|update| update.wiped) {
            // Which cached slots belong to a wiped account is not indexed: wipes are rare.
            self.slots.clear();
        }
        for update in &diff.accounts {
            self.accounts.insert(update.address_hash, update.account);
            for slot in &update.slots {
                self.slots.insert((update.address_hash, slot.key), slot.value);
            }
        }
    }

    /// The base has stepped back. Code is addressed by its hash and stays.
    pub fn clear(&self) {
        self.accounts.clear();
        self.slots.clear();
    }
}

/// What reads found where, for traces.
#[derive(Debug, Default)]
pub struct ReadCounts {
    /// Answered by the layers.
    pub layers: AtomicU64,
    /// Answered by the cache.
    pub cache: AtomicU64,
    /// Asked of storage-writer.
    pub storage: AtomicU64,
}

/// The state as of one block.
pub struct StateView {
    branch: Branch,
    /// The base that the branch is known to reach.
    checked: Option<BlockId>,
    layers: Arc<RwLock<Layers>>,
    cache: Arc<BaseCache>,
    storage: Arc<dyn StorageApi>,
    /// Whether what is read may stay in the cache; see [`BaseCache`].
    fills_cache: bool,
    /// Where the reads were answered.
    pub counts: ReadCounts,
}

impl StateView {
    /// A view of the state after `block`.
    pub fn new(
        block: B256,
        layers: Arc<RwLock<Layers>>,
        cache: Arc<BaseCache>,
        storage: Arc<dyn StorageApi>,
        fills_cache: bool,
    ) -> Self {
        let (branch, base) = {
            let layers = layers.read();
            (layers.branch(block), layers.base())
        };
        let checked = branch.reaches(&base.hash).then_some(base);
        let counts = ReadCounts::default();
        Self { branch, checked, layers, cache, storage, fills_cache, counts }
    }

    /// The layers that the view reads through.
    pub fn branch(&self) -> &Branch {
        &self.branch
    }

    /// Cached values are those of the base: they serve this view only while its layers reach it.
    fn check_base(&self, base: BlockId) -> Result<(), Error> {
        if self.checked == Some(base) || self.branch.reaches(&base.hash) {
            return Ok(());
        }
        Err(Error::BaseMoved { block: self.branch.block(), base })
    }

    fn read(&self, request: &ReadState) -> Result<tandem_proto::storage::StateValues, Error> {
        self.counts.storage.fetch_add(1, Relaxed);
        let values = self.storage.read_state(request)?;
        if !self.branch.reaches(&values.base.hash) {
            return Err(Error::BaseMoved { block: self.branch.block(), base: values.base });
        }
        Ok(values)
    }
}

/// Errors: [`Error::BaseMoved`] when the base cannot answer for this block, [`Error::Storage`],
/// [`Error::MissingCode`] when an account names code that nobody has.
impl StateReader for StateView {
    fn account(&self, address_hash: &B256) -> Result<Option<Account>, Error> {
        let layers = self.layers.read();
        if let Some(account) = layers.account(&self.branch, address_hash) {
            self.counts.layers.fetch_add(1, Relaxed);
            return Ok(account);
        }
        self.check_base(layers.base())?;
        if let Some(account) = self.cache.accounts.get(address_hash) {
            self.counts.cache.fetch_add(1, Relaxed);
            return Ok(account);
        }
        drop(layers);
        let request = ReadState { accounts: vec![*address_hash], ..ReadState::default() };
        let account = self.read(&request)?.accounts.first().copied().flatten();
        if self.fills_cache {
            self.cache.accounts.insert(*address_hash, account);
        }
        Ok(account)
    }

    fn slot(&self, address_hash: &B256, slot: &B256) -> Result<U256, Error> {
        let layers = self.layers.read();
        if let Some(value) = layers.slot(&self.branch, address_hash, slot) {
            self.counts.layers.fetch_add(1, Relaxed);
            return Ok(value);
        }
        self.check_base(layers.base())?;
        let key = (*address_hash, *slot);
        if let Some(value) = self.cache.slots.get(&key) {
            self.counts.cache.fetch_add(1, Relaxed);
            return Ok(value);
        }
        drop(layers);
        let request = ReadState { slots: vec![key], ..ReadState::default() };
        let value = self.read(&request)?.slots.first().copied().unwrap_or_default();
        if self.fills_cache {
            self.cache.slots.insert(key, value);
        }
        Ok(value)
    }

    fn code(&self, code_hash: &B256) -> Result<Bytecode, Error> {
        if let Some(code) = self.cache.codes.get(code_hash) {
            return Ok(code);
        }
        let deployed = self.layers.read().code(&self.branch, code_hash);
        let code = match deployed {
            Some(code) => code,
            None => {
                let request = ReadState { codes: vec![*code_hash], ..ReadState::default() };
                let found = self.read(&request)?.codes.into_iter().next().flatten();
                found.ok_or(Error::MissingCode(*code_hash))?
            }
        };
        let code = code::analyze(code);
        self.cache.codes.insert(*code_hash, code.clone());
        Ok(code)
    }
}
