//! State as of one block: its layers, below them the cache of base values, below that
//! storage-writer.

use crate::{
    error::Error,
    state::{
        StateReader,
        cache::{CacheEpoch, Generation},
        code,
        layers::{Branch, Layers},
        parent::{ParentState, StateKey, StateValue},
        recent::Recent,
    },
};
use alloy_primitives::map::{B256Set, HashSet};
use crossbeam_utils::CachePadded;
use revm::state::Bytecode;
use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tandem_primitives::{Account, B256, Bytes, EMPTY_CODE_HASH, U256, WalkTarget};
use tandem_proto::storage::{BaseReads, ReadState, StateValues};
use tandem_telemetry::waiting;

/// Place that answers a read.
#[derive(Clone, Copy, Debug)]
enum Place {
    Layers,
    Cache,
    Storage,
    Alone,
}

/// Number of reads by place, for traces.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ReadCounts {
    /// Keys answered by the layers.
    pub layers: u64,
    /// Keys answered by the cache.
    pub cache: u64,
    /// Calls of storage-writer.
    pub storage: u64,
    /// Calls among them for one key that execution needed at once, as nobody had foreseen it.
    pub alone: u64,
}

/// Counters of one view, with separate sets for up to 8 threads. Threads that share a set would
/// take its cache line from each other with every read.
#[derive(Default)]
struct Counters([CachePadded<[AtomicU64; 4]>; Counters::SETS]);

impl Counters {
    const SETS: usize = 8;

    fn count(&self, place: Place) {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local!(static SET: usize = THREADS.fetch_add(1, Relaxed) % Counters::SETS);
        self.0[SET.with(|set| *set)][place as usize].fetch_add(1, Relaxed);
    }

    fn sum(&self) -> ReadCounts {
        let sum = |place| self.0.iter().map(|set| set[place as usize].load(Relaxed)).sum();
        let (layers, cache) = (sum(Place::Layers), sum(Place::Cache));
        ReadCounts { layers, cache, storage: sum(Place::Storage), alone: sum(Place::Alone) }
    }
}

/// Number of keys read ahead.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ReadAhead {
    /// Accounts requested.
    pub accounts: usize,
    /// Slots requested.
    pub slots: usize,
    /// Codes requested.
    pub codes: usize,
}

/// Answer of layers and cache.
enum Found<T> {
    /// The value.
    Here(T),
    /// The value is unchanged above this base, and may be added to the cache in this epoch.
    Below(B256, CacheEpoch),
}

impl<T> Found<T> {
    fn here(self) -> Option<T> {
        match self {
            Self::Here(value) => Some(value),
            Self::Below(..) => None,
        }
    }
}

/// Keys that have to be read.
struct Missing {
    base: B256,
    epoch: CacheEpoch,
    values: ReadState,
    /// Generations of the slots in `values`.
    generations: Vec<Generation>,
    codes: B256Set,
}

/// State as of one block, for any number of threads.
pub struct StateView {
    branch: Branch,
    recent: Arc<Recent>,
    /// Layers at the creation of the view, and whether the branch reaches their base: see
    /// [`Recent`].
    pinned: Option<(Arc<Layers>, bool)>,
    /// Whether single reads are added to the cache.
    fills_cache: bool,
    /// [`Layers::resets`] at the creation of the branch.
    resets: u64,
    storage: Arc<dyn BaseReads>,
    counters: Counters,
}

impl StateView {
    /// Creates a view for executing a block on top of `block`. It holds the layers, so it must not
    /// outlive the execution. It adds its reads to the cache.
    pub fn pinned(block: B256, recent: Arc<Recent>, storage: Arc<dyn BaseReads>) -> Self {
        let layers = recent.pin();
        let branch = layers.branch(block);
        let reaches = branch.reaches(&layers.base().hash);
        let (resets, pinned) = (layers.resets(), Some((layers, reaches)));
        let (fills_cache, counters) = (true, Counters::default());
        Self { branch, recent, pinned, fills_cache, resets, storage, counters }
    }

    /// Creates a view that may live long. Its reads are not added to the cache, which is reserved
    /// for the needs of blocks.
    pub fn passing(block: B256, recent: Arc<Recent>, storage: Arc<dyn BaseReads>) -> Self {
        let (branch, resets) = recent.read(|layers| (layers.branch(block), layers.resets()));
        let (pinned, fills_cache, counters) = (None, false, Counters::default());
        Self { branch, recent, pinned, fills_cache, resets, storage, counters }
    }

    /// Creates a view for building a block on top of `block`. It does not hold the layers, so the
    /// engine changes them without a copy. It adds its reads to the cache, because the next block
    /// needs most of them.
    pub fn building(block: B256, recent: Arc<Recent>, storage: Arc<dyn BaseReads>) -> Self {
        Self { fills_cache: true, ..Self::passing(block, recent, storage) }
    }

    /// Returns the layers that the view reads through.
    pub fn branch(&self) -> &Branch {
        &self.branch
    }

    /// Returns the number of reads by place so far.
    pub fn counts(&self) -> ReadCounts {
        self.counters.sum()
    }

    /// Returns a value from the layers or the cache. If it is in neither, returns the base and
    /// epoch for reading it elsewhere.
    fn find<T>(
        &self,
        layer: impl FnOnce(&Layers) -> Option<T>,
        cached: impl FnOnce(CacheEpoch) -> Option<T>,
    ) -> Result<Found<T>, Error> {
        let look = |layers: &Layers, reaches: bool| {
            if let Some(value) = layer(layers) {
                self.counters.count(Place::Layers);
                return Ok(Found::Here(value));
            }
            // Cached values belong to the base. They are valid for this view only while its layers
            // reach the base.
            if !reaches {
                let (block, base) = (self.branch.block(), layers.base());
                return Err(Error::BaseMoved { block, base });
            }
            let Some(value) = cached(layers.epoch()) else {
                return Ok(Found::Below(layers.base().hash, layers.epoch()));
            };
            self.counters.count(Place::Cache);
            Ok(Found::Here(value))
        };
        match &self.pinned {
            Some((layers, reaches)) => look(layers, *reaches),
            None => self.recent.read(|layers| {
                if layers.resets() != self.resets {
                    return Err(Error::BaseMoved {
                        block: self.branch.block(),
                        base: layers.base(),
                    });
                }
                look(layers, self.branch.reaches(&layers.base().hash))
            }),
        }
    }

    fn find_account(&self, hash: &B256) -> Result<Found<Option<Account>>, Error> {
        let cache = self.recent.cache();
        self.find(|layers| layers.account(&self.branch, hash), |epoch| cache.account(epoch, hash))
    }

    fn find_slot(&self, hash: &B256, slot: &B256) -> Result<Found<U256>, Error> {
        let cache = self.recent.cache();
        self.find(
            |layers| layers.slot(&self.branch, hash, slot),
            |epoch| cache.slot(epoch, hash, slot),
        )
    }

    fn find_code(&self, hash: &B256) -> Result<Found<Bytecode>, Error> {
        if let Some(code) = self.recent.cache().code(hash) {
            return Ok(Found::Here(code));
        }
        Ok(match self.find(|layers| layers.code(&self.branch, hash), |_| None)? {
            Found::Here(code) => Found::Here(self.keep_code(*hash, code)),
            Found::Below(base, epoch) => Found::Below(base, epoch),
        })
    }

    /// Analyzes code, and adds it to the cache.
    fn keep_code(&self, hash: B256, code: Bytes) -> Bytecode {
        let code = code::analyze(code);
        self.recent.cache().add_code(hash, code.clone());
        code
    }

    /// Returns the base below the layers, and the epoch of values that are read there.
    fn base(&self) -> Result<(B256, CacheEpoch), Error> {
        match self.find::<Infallible>(|_| None, |_| None)? {
            Found::Below(base, epoch) => Ok((base, epoch)),
            Found::Here(never) => match never {},
        }
    }

    /// Reads the keys that are in neither layers nor cache, and adds them to the cache.
    ///
    /// One call reads accounts and slots, another reads the code of the `called` accounts. Nothing
    /// is read if the layers do not reach the base.
    ///
    /// The layers are examined under the read lock and not held. The engine's changes then wait
    /// only briefly and need no copy.
    ///
    /// # Errors
    /// Same as [`StateReader`]. Keys read before the error stay in the cache.
    pub fn read_ahead(
        &self,
        accounts: &B256Set,
        slots: &HashSet<(B256, B256)>,
        called: &B256Set,
    ) -> Result<ReadAhead, Error> {
        let cache = self.recent.cache();
        let missing = self.recent.read(|layers| self.missing(layers, accounts, slots, called));
        let Some(Missing { base, epoch, values, generations, mut codes }) = missing else {
            return Ok(ReadAhead::default());
        };
        if !values.accounts.is_empty() || !values.slots.is_empty() {
            let read = self.read(&base, &values)?;
            for (hash, account) in values.accounts.iter().zip(read.accounts) {
                cache.add_account(epoch, *hash, account);
                if let Some(account) = account.filter(|_| called.contains(hash)) {
                    codes.insert(account.code_hash);
                }
            }
            for ((key, generation), value) in values.slots.iter().zip(generations).zip(read.slots) {
                cache.add_slot(epoch, *key, generation, value);
            }
        }
        codes.retain(|hash| *hash != EMPTY_CODE_HASH && cache.code(hash).is_none());
        let request = ReadState { codes: codes.into_iter().collect(), ..ReadState::default() };
        if !request.codes.is_empty() {
            let read = self.read(&base, &request)?.codes;
            for (hash, code) in request.codes.iter().zip(read) {
                if let Some(code) = code {
                    self.keep_code(*hash, code);
                }
            }
        }
        let (accounts, slots) = (values.accounts.len(), values.slots.len());
        Ok(ReadAhead { accounts, slots, codes: request.codes.len() })
    }

    /// Returns the keys that are in neither layers nor cache, or `None` if the layers do not reach
    /// the base.
    fn missing(
        &self,
        layers: &Layers,
        accounts: &B256Set,
        slots: &HashSet<(B256, B256)>,
        called: &B256Set,
    ) -> Option<Missing> {
        let (cache, branch, epoch) = (self.recent.cache(), &self.branch, layers.epoch());
        let base = layers.base().hash;
        if layers.resets() != self.resets || !branch.reaches(&base) {
            return None;
        }
        let mut values = ReadState::default();
        let mut codes = B256Set::default();
        for hash in accounts {
            let known = layers.account(branch, hash);
            match known.or_else(|| cache.account(epoch, hash)) {
                None => values.accounts.push(*hash),
                Some(Some(account)) if called.contains(hash) => {
                    codes.insert(account.code_hash);
                }
                Some(_) => {}
            }
        }
        let mut generations = Vec::new();
        for (hash, slot) in slots {
            let known = layers.slot(branch, hash, slot);
            if known.or_else(|| cache.slot(epoch, hash, slot)).is_none() {
                generations.push(cache.generation(hash));
                values.slots.push((*hash, *slot));
            }
        }
        codes.retain(|hash| cache.code(hash).is_none() && layers.code(branch, hash).is_none());
        Some(Missing { base, epoch, values, generations, codes })
    }

    /// Returns accounts, in the same order. Those that are not in memory are read in one call, and do
    /// not go into the cache.
    ///
    /// # Errors
    /// Same as [`StateReader`].
    pub fn accounts(&self, hashes: &[B256]) -> Result<Vec<Option<Account>>, Error> {
        let mut found = Vec::with_capacity(hashes.len());
        let (mut request, mut places) = (ReadState::default(), Vec::new());
        for (place, hash) in hashes.iter().enumerate() {
            match self.find_account(hash)? {
                Found::Here(account) => found.push(account),
                Found::Below(..) => {
                    request.accounts.push(*hash);
                    places.push(place);
                    found.push(None);
                }
            }
        }
        if !places.is_empty() {
            // All of them are read at the same base.
            let read = self.read(&self.base()?.0, &request)?.accounts;
            for (place, account) in places.into_iter().zip(read) {
                found[place] = account;
            }
        }
        Ok(found)
    }

    /// Reads a key that nobody foresaw, for a thread that waits for it.
    fn read_alone(&self, from: &B256, request: &ReadState) -> Result<StateValues, Error> {
        self.counters.count(Place::Alone);
        if !self.recent.read_times().are_long() {
            return self.read(from, request);
        }
        waiting("wait.state_ns", || self.read(from, request))
    }

    /// Reads keys from storage-writer that the layers above the base `from` lack.
    fn read(&self, from: &B256, request: &ReadState) -> Result<StateValues, Error> {
        self.counters.count(Place::Storage);
        let started = Instant::now();
        let values = self.storage.read_state(request)?;
        let keys = request.accounts.len() + request.slots.len() + request.codes.len();
        self.recent.read_times().note(keys, started.elapsed());
        if !self.branch.reaches_from(from, &values.base.hash) {
            return Err(Error::BaseMoved { block: self.branch.block(), base: values.base });
        }
        Ok(values)
    }
}

/// Errors: [`Error::BaseMoved`] if the base cannot answer for this block, [`Error::Storage`],
/// [`Error::MissingCode`] if an account's code is missing.
impl StateReader for StateView {
    fn account(&self, address_hash: &B256) -> Result<Option<Account>, Error> {
        let cache = self.recent.cache();
        let (base, epoch) = match self.find_account(address_hash)? {
            Found::Here(account) => return Ok(account),
            Found::Below(base, epoch) => (base, epoch),
        };
        let request = ReadState { accounts: vec![*address_hash], ..ReadState::default() };
        let account = self.read_alone(&base, &request)?.accounts.first().copied().flatten();
        if self.fills_cache {
            cache.add_account(epoch, *address_hash, account);
        }
        Ok(account)
    }

    fn slot(&self, address_hash: &B256, slot: &B256) -> Result<U256, Error> {
        let cache = self.recent.cache();
        let (base, epoch) = match self.find_slot(address_hash, slot)? {
            Found::Here(value) => return Ok(value),
            Found::Below(base, epoch) => (base, epoch),
        };
        let (key, generation) = ((*address_hash, *slot), cache.generation(address_hash));
        let request = ReadState { slots: vec![key], ..ReadState::default() };
        let value = self.read_alone(&base, &request)?.slots.first().copied().unwrap_or_default();
        if self.fills_cache {
            cache.add_slot(epoch, key, generation, value);
        }
        Ok(value)
    }

    /// Layers matter only if they wipe. Since EIP-161 an account with slots has a nonce, and before
    /// that no address was created twice. The result is not cached, because only creations at
    /// existing accounts need it.
    fn has_storage(&self, address_hash: &B256) -> Result<bool, Error> {
        let wiped = |layers: &Layers| layers.is_wiped(&self.branch, address_hash).then_some(false);
        let base = match self.find(wiped, |_| None)? {
            Found::Here(has_storage) => return Ok(has_storage),
            Found::Below(base, _) => base,
        };
        self.counters.count(Place::Storage);
        // A trie without any node is empty.
        let root = WalkTarget { owner: Some(*address_hash), key: B256::ZERO, from_depth: 0 };
        let found = self.storage.walk_trie(&[root])?;
        if !self.branch.reaches_from(&base, &found.base.hash) {
            return Err(Error::BaseMoved { block: self.branch.block(), base: found.base });
        }
        Ok(!found.nodes.is_empty())
    }

    fn code(&self, code_hash: &B256) -> Result<Bytecode, Error> {
        let base = match self.find_code(code_hash)? {
            Found::Here(code) => return Ok(code),
            Found::Below(base, _) => base,
        };
        let request = ReadState { codes: vec![*code_hash], ..ReadState::default() };
        let code = self.read_alone(&base, &request)?.codes.into_iter().next().flatten();
        Ok(self.keep_code(*code_hash, code.ok_or(Error::MissingCode(*code_hash))?))
    }
}

impl ParentState for StateView {
    fn in_memory(&self, key: &StateKey) -> Result<Option<StateValue>, Error> {
        Ok(match key {
            StateKey::Account(hash) => self.find_account(hash)?.here().map(StateValue::Account),
            StateKey::Slot(hash, slot) => self.find_slot(hash, slot)?.here().map(StateValue::Slot),
            StateKey::Code(hash) => self.find_code(hash)?.here().map(StateValue::Code),
        })
    }

    fn read_together(&self, keys: &[StateKey]) -> Result<Vec<Option<StateValue>>, Error> {
        let cache = self.recent.cache();
        let mut request = ReadState::default();
        let mut generations = Vec::new();
        for key in keys {
            match *key {
                StateKey::Account(hash) => request.accounts.push(hash),
                StateKey::Slot(hash, slot) => {
                    generations.push(cache.generation(&hash));
                    request.slots.push((hash, slot));
                }
                StateKey::Code(hash) => request.codes.push(hash),
            }
        }
        // None of the keys is in memory, so all of them are read at the same base.
        let (base, epoch) = self.base()?;
        let StateValues { accounts, slots, codes, .. } = self.read(&base, &request)?;
        let mut accounts = accounts.into_iter();
        let mut slots = slots.into_iter().zip(generations);
        let mut codes = codes.into_iter();
        let values = keys.iter().map(|key| match *key {
            StateKey::Account(hash) => {
                let account = accounts.next().flatten();
                cache.add_account(epoch, hash, account);
                Some(StateValue::Account(account))
            }
            StateKey::Slot(hash, slot) => {
                let (value, generation) = slots.next()?;
                cache.add_slot(epoch, (hash, slot), generation, value);
                Some(StateValue::Slot(value))
            }
            StateKey::Code(hash) => {
                let code = codes.next().flatten()?;
                Some(StateValue::Code(self.keep_code(hash, code)))
            }
        });
        Ok(values.collect())
    }

    fn calls(&self) -> u64 {
        self.counters.sum().storage
    }

    fn call_time(&self) -> Duration {
        self.recent.read_times().average()
    }

    fn is_far(&self) -> bool {
        self.recent.read_times().are_long()
    }
}
