//! Load of a whole state in the order of its hashed keys, shard by shard, into a database of its own.
//!
//! Flat state and trie nodes become sorted files, past log and memtables. A record in the database says
//! which shards are loaded, so a load that ended early goes on with the others. The memory that this
//! takes does not grow with the state. As in [`crate::init`], the database gets its name at the very
//! end.

use crate::{
    Error, Initialized,
    config::{database_path, refuse_half_restored},
    init::{StateAt, has_database, put_genesis, seal},
    meta,
    node_runs::NodeRuns,
    rebuild::{Built, Rebuilt, Sink, rebuild, shard_range},
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::{
    fs,
    path::{Path, PathBuf},
};
use tandem_primitives::{Account, B256, Bytes, Shard, U256};
use tandem_store::{
    Durability, Options, SortedRun, Sorter, Store,
    tables::{AccountTrie, Accounts, Code, Slots, StorageTrie},
};
use tandem_trie::combine;

/// Folder of the database in the data directory until it is complete.
const UNFINISHED: &str = "db.loading";

/// Bytes of the block cache and of the memtables. A load reads everything once, in order.
const CACHE_BYTES: usize = 32 << 20;

/// Load of a state into the database of a data directory.
pub struct StateLoad {
    datadir: PathBuf,
    store: Store,
    record: Mutex<Record>,
}

/// Progress of a load, as the database has it.
#[derive(Serialize, Deserialize)]
struct Record {
    /// Description of the state.
    plan: String,
    /// Shards that are loaded.
    shards: [Option<Loaded>; Shard::COUNT],
}

/// A shard that is loaded.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    top: Option<Bytes>,
    accounts: u64,
    slots: u64,
}

impl StateLoad {
    /// Begins a load into a data directory without a database, or continues the one that ended there
    /// early. `plan` describes the state: equal plans must lead to equal states.
    ///
    /// # Errors
    /// [`Error::Io`] if there is a database; [`Error::OtherLoad`] if a load with another plan ended
    /// there early; the errors of the store.
    pub fn open(datadir: &Path, plan: &str) -> Result<Self, Error> {
        refuse_half_restored(datadir)?;
        if has_database(datadir) {
            let source = std::io::ErrorKind::AlreadyExists.into();
            return Err(Error::Io { context: "create", path: database_path(datadir), source });
        }
        let failed = |source| Error::Io { context: "create", path: datadir.to_owned(), source };
        fs::create_dir_all(datadir).map_err(failed)?;
        let path = datadir.join(UNFINISHED);
        let options = Options {
            cache_bytes_max: CACHE_BYTES,
            memtable_bytes_max: CACHE_BYTES,
            auto_compaction: false,
            ..Options::default()
        };
        let store = match Store::open(&path, &options) {
            Err(tandem_store::Error::Missing(_)) => Store::create(&path, &options),
            Err(tandem_store::Error::Foreign { .. }) => {
                // An earlier process died while it created the database, before anything was loaded.
                Store::destroy(&path)?;
                Store::create(&path, &options)
            }
            opened => opened,
        }?;
        let record = match meta::state_load(&store.view())? {
            None => Record { plan: plan.to_owned(), shards: Default::default() },
            Some(bytes) => serde_json::from_slice::<Record>(&bytes)
                .map_err(|error| Error::Damaged(format!("record of the load: {error}")))?,
        };
        if record.plan != plan {
            return Err(Error::OtherLoad { path, have: record.plan });
        }
        let load = Self { datadir: datadir.to_owned(), store, record: Mutex::new(record) };
        load.write_record(&load.record.lock())?;
        Ok(load)
    }

    fn write_record(&self, record: &Record) -> Result<(), Error> {
        let bytes = serde_json::to_vec(record)
            .map_err(|error| Error::Damaged(format!("record of the load: {error}")))?;
        let mut batch = self.store.batch();
        meta::put_state_load(&mut batch, &bytes);
        Ok(self.store.write(batch, Durability::Disk)?)
    }

    /// Creates a sorter that holds about `bytes_max` bytes, and writes what is beyond to the volume of
    /// the database.
    pub fn sorter(&self, bytes_max: usize) -> Sorter {
        self.store.sorter(bytes_max)
    }

    /// Returns the number of accounts and slots of a shard that is loaded.
    pub fn loaded(&self, shard: Shard) -> Option<(u64, u64)> {
        let record = self.record.lock();
        record.shards[shard.index()].as_ref().map(|loaded| (loaded.accounts, loaded.slots))
    }

    /// Begins to load a shard. What an earlier attempt left of it is removed.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn shard(&self, shard: Shard) -> Result<ShardLoad<'_>, Error> {
        let (first, _) = shard_range(shard);
        let last = [first[0] | 0x0f];
        self.store.clear::<Accounts>(&first, &last)?;
        self.store.clear::<Slots>(&first, &last)?;
        self.store.clear::<StorageTrie>(&first, &last)?;
        let nibble = [shard.nibble()];
        self.store.clear::<AccountTrie>(&nibble, &nibble)?;
        Ok(ShardLoad {
            load: self,
            shard,
            accounts: self.store.sorted_run(),
            slots: self.store.sorted_run(),
            account_count: 0,
        })
    }

    /// Writes codes, by their hashes.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn put_codes(&self, codes: &[(B256, Bytes)]) -> Result<(), Error> {
        let mut batch = self.store.batch();
        for (hash, code) in codes {
            batch.put::<Code>(*hash, code);
        }
        Ok(self.store.write(batch, Durability::Process)?)
    }

    /// Writes the block whose state it is over the state, whose shards must all be loaded: the genesis
    /// block, or block 1 with an empty one below it. Gives the database its name. `genesis_json` is geth's
    /// genesis file without `alloc`. The database does not know a digest of `alloc`, so `tandem init` takes
    /// every genesis file for another one.
    ///
    /// # Errors
    /// [`Error::Genesis`]; [`Error::Absent`] if a shard is not loaded; the errors of the store.
    pub fn finish(self, genesis_json: &str, at: StateAt) -> Result<Initialized, Error> {
        let Self { datadir, store, record } = self;
        let record = record.into_inner();
        let (mut accounts, mut slots) = (0, 0);
        let mut tops: [Option<Bytes>; Shard::COUNT] = Default::default();
        for (shard, (loaded, top)) in record.shards.into_iter().zip(&mut tops).enumerate() {
            let loaded = loaded.ok_or_else(|| Error::absent(format!("shard {shard:x}")))?;
            accounts += loaded.accounts;
            slots += loaded.slots;
            *top = loaded.top;
        }
        let (root, node) = combine(&tops)?;
        let built = Built { root, node, accounts, slots };
        let initialized = put_genesis(&store, genesis_json.to_owned(), B256::ZERO, &built, at)?;
        seal(store, &datadir, &datadir.join(UNFINISHED), initialized.head)?;
        Ok(initialized)
    }
}

/// Load of one shard.
pub struct ShardLoad<'l> {
    load: &'l StateLoad,
    shard: Shard,
    accounts: SortedRun<'l, Accounts>,
    slots: SortedRun<'l, Slots>,
    account_count: u64,
}

impl ShardLoad<'_> {
    /// Adds an account. Hashed addresses ascend.
    ///
    /// # Errors
    /// [`Error::Store`], also if they do not.
    pub fn account(&mut self, address_hash: B256, account: &Account) -> Result<(), Error> {
        self.account_count += 1;
        Ok(self.accounts.put(address_hash, account)?)
    }

    /// Returns the number of accounts that were added.
    pub fn accounts(&self) -> u64 {
        self.account_count
    }

    /// Adds a slot, which must not be zero. Hashed addresses ascend, and hashed slots for each.
    ///
    /// # Errors
    /// [`Error::Store`], also if they do not.
    pub fn slot(&mut self, address_hash: B256, slot: B256, value: U256) -> Result<(), Error> {
        Ok(self.slots.put((address_hash, slot), value)?)
    }

    /// Builds the tries of the shard and notes that it is loaded. `progress` gets the number of accounts
    /// whose tries are built so far.
    ///
    /// # Errors
    /// [`Error::Damaged`] if a slot belongs to no account; [`Error::Store`].
    pub fn finish(self, progress: impl FnMut(u64)) -> Result<(), Error> {
        let Self { load, shard, accounts, slots, .. } = self;
        accounts.finish()?;
        slots.finish()?;
        let mut tries = Tries { nodes: NodeRuns::new(&load.store), accounts: 0, progress };
        let Rebuilt { top, accounts, slots } = rebuild(&load.store.view(), shard, &mut tries)?;
        tries.nodes.finish()?;
        let mut record = load.record.lock();
        record.shards[shard.index()] = Some(Loaded { top, accounts, slots });
        load.write_record(&record)
    }
}

/// Receiver of the tries of a shard.
struct Tries<'l, P: FnMut(u64)> {
    nodes: NodeRuns<'l>,
    accounts: u64,
    progress: P,
}

impl<P: FnMut(u64)> Sink for Tries<'_, P> {
    fn node(&mut self, owner: Option<B256>, path: &[u8], rlp: &[u8]) -> Result<(), Error> {
        self.nodes.node(owner, path, rlp)
    }

    fn account(&mut self, _: B256, _: &Account) -> Result<(), Error> {
        self.accounts += 1;
        (self.progress)(self.accounts);
        Ok(())
    }

    fn storage_done(&mut self, owner: B256) -> Result<(), Error> {
        self.nodes.storage_done(owner)
    }

    fn orphan(&mut self, owner: B256, slot: B256) -> Result<(), Error> {
        Err(Error::Damaged(format!("slot {slot} of {owner} belongs to no account")))
    }
}

/// Returns the plan of the load that made the database of a data directory, which no process may have
/// open; `None` if it was made otherwise.
///
/// # Errors
/// When the database cannot be opened or read.
pub fn load_plan(datadir: &Path) -> Result<Option<String>, Error> {
    let options = Options { auto_compaction: false, ..Options::default() };
    let store = Store::open(&database_path(datadir), &options)?;
    let Some(bytes) = meta::state_load(&store.view())? else { return Ok(None) };
    let record: Record = serde_json::from_slice(&bytes)
        .map_err(|error| Error::Damaged(format!("record of the load: {error}")))?;
    Ok(Some(record.plan))
}
