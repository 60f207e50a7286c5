//! `tandem init`: creation of a database from geth's genesis file.
//!
//! The flat state is written as it is read, in the order of the file; the database sorts it. The
//! tries are then built from it in key order. All of this happens in a directory with another name,
//! which gets its real name at the very end. So a database that can be opened is complete.

use crate::{
    Config, Deps, Error, StorageWriter,
    acknowledged::Acknowledged,
    body,
    config::{database_path, refuse_half_restored},
    genesis::{self, Entry, GenesisFile},
    meta,
    node_runs::NodeRuns,
    rebuild::{Built, Sink, rebuild_all},
};
use alloy_consensus::Header;
use flate2::bufread::MultiGzDecoder;
use parking_lot::Mutex;
use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Read},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tandem_chain::{Block, ChainSpec, Fork, Template, is_merged};
use tandem_primitives::{Account, Address, B256, BlockId, Bytes, EMPTY_TRIE_ROOT, keccak256};
use tandem_proto::storage::{BlockRecord, Forkchoice};
use tandem_store::{
    Batch, Durability, Options, Store,
    tables::{AccountTrie, Accounts, Bodies, Canonical, Code, Headers, Receipts, Slots},
};

/// Size in bytes at which a batch of the bulk load is written.
const BATCH_BYTES: usize = 1 << 20;

/// Seconds from a genesis block to block 1.
const SLOT_SECONDS: u64 = 12;

/// Accounts between two progress reports.
const REPORT_EVERY: u64 = 4096;

/// Progress of [`init`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Reading the file.
    Reading {
        /// Bytes of the file read.
        bytes: u64,
        /// Size of the file in bytes.
        total: u64,
    },
    /// Building the tries.
    Building {
        /// Accounts done.
        accounts: u64,
        /// Accounts in total.
        total: u64,
    },
    /// Writing everything to disk.
    Flushing,
}

/// Outcome of [`init`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Initialized {
    /// The genesis block.
    pub genesis: BlockId,
    /// The block whose state was made, which is the head.
    pub head: BlockId,
    /// Whether the database existed already, made from the same genesis. Nothing was done then.
    pub already: bool,
    /// Accounts in the genesis state.
    pub accounts: u64,
    /// Slots in the genesis state.
    pub slots: u64,
}

/// Block whose state a new database has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StateAt {
    /// The genesis block.
    #[default]
    Genesis,
    /// Block 1, without transactions, on a genesis block without accounts. No client could execute it. One
    /// that downloads the state of a later block executes only what is above.
    Block1,
}

/// Returns whether a data directory holds a database. An existing database is complete, because
/// [`init`] gives it its name at the very end. Opens nothing.
#[must_use]
pub fn has_database(datadir: &Path) -> bool {
    // The file by which RocksDB finds everything else.
    database_path(datadir).join("CURRENT").is_file()
}

/// Creates the database of a data directory from geth's genesis file (JSON, or JSON in gzip). The
/// memory that this takes does not grow with the file. A second call with the same genesis, however
/// it is spelled, does nothing.
///
/// # Errors
/// [`Error::Genesis`]; [`Error::OtherGenesis`] when there is a database from another genesis;
/// [`Error::IsCopy`] when a follower made it; the errors of the store and the file system.
pub fn init(
    genesis_path: &Path,
    datadir: &Path,
    mut progress: impl FnMut(Progress) + Send,
) -> Result<Initialized, Error> {
    refuse_half_restored(datadir)?;
    let path = database_path(datadir);
    let options = Options::default();
    match Store::open(&path, &options) {
        Ok(store) => return compare(&store, genesis_path, datadir, &mut progress),
        Err(tandem_store::Error::Missing(_)) => {}
        Err(error) => return Err(error.into()),
    }
    create(datadir, |store| {
        let read =
            |progress: &mut _, sink: &mut EntrySink<'_>| read_file(genesis_path, progress, sink);
        build(store, read, &mut progress)
    })
}

/// Creates a database with what `fill` writes. It gets its name at the very end.
fn create(
    datadir: &Path,
    fill: impl FnOnce(&Store) -> Result<Initialized, Error>,
) -> Result<Initialized, Error> {
    refuse_half_restored(datadir)?;
    fs::create_dir_all(datadir).map_err(|source| io_error("create", datadir, source))?;
    let unfinished = datadir.join("db.unfinished");
    Store::destroy(&unfinished)?;
    let store = Store::create(&unfinished, &Options::default())?;
    let built = fill(&store);
    let sealed = match built {
        Ok(initialized) => {
            seal(store, datadir, &unfinished, initialized.head).map(|()| initialized)
        }
        Err(error) => {
            drop(store);
            Err(error)
        }
    };
    if sealed.is_err() {
        // The error at hand says more than one about a failed removal.
        let _ = Store::destroy(&unfinished);
    }
    sealed
}

/// Writes everything of a new database to disk, closes it, and gives it its name.
pub fn seal(store: Store, datadir: &Path, unfinished: &Path, head: BlockId) -> Result<(), Error> {
    store.flush()?;
    Acknowledged::begin(&store, head, head)?;
    drop(store);
    let path = database_path(datadir);
    if path.exists() {
        fs::remove_dir(&path).map_err(|source| io_error("remove", &path, source))?;
    }
    fs::rename(unfinished, &path).map_err(|source| io_error("rename", unfinished, source))?;
    let directory = File::open(datadir).and_then(|directory| directory.sync_all());
    directory.map_err(|source| io_error("sync", datadir, source))
}

/// Creates the database of a data directory with the genesis block of another database, as a copy of
/// that is going to have. The state is not there: the database waits for the download of one.
///
/// # Errors
/// [`Error::Genesis`] when the block does not fit the configuration; [`Error::Io`] and the errors of
/// the store, also when there is a database.
pub fn init_copy(datadir: &Path, genesis_json: &str, genesis: &BlockRecord) -> Result<(), Error> {
    let spec = chain_spec(genesis_json)?;
    let header = body::decode_header(&genesis.header)?;
    let expected = keccak256(alloy_rlp::encode(spec.genesis_header(header.state_root)));
    if keccak256(&genesis.header) != expected || genesis.id != BlockId::new(header.number, expected)
    {
        return Err(Error::Genesis(format!(
            "block {} is not that of its configuration",
            genesis.id
        )));
    }
    create(datadir, |store| {
        let id = genesis.id;
        let mut batch = store.batch();
        put_head(&mut batch, id, &genesis.header, &genesis.body);
        let json = genesis_json.to_owned();
        meta::put_genesis(&mut batch, &meta::Genesis { id, json, alloc_digest: meta::NO_ALLOC });
        meta::put_download(&mut batch, &[]);
        store.write(batch, Durability::Disk)?;
        Ok(Initialized { genesis: id, head: id, already: false, accounts: 0, slots: 0 })
    })?;
    Ok(())
}

/// Notes that the database of a data directory, which no process may have open, is a copy of another one:
/// all of it can be had again.
///
/// # Errors
/// The errors of the store.
pub fn mark_as_copy(datadir: &Path) -> Result<(), Error> {
    let store = Store::open(&database_path(datadir), &Options::default())?;
    let genesis = meta::genesis(&store.view())?;
    let mut batch = store.batch();
    meta::put_genesis(&mut batch, &meta::Genesis { alloc_digest: meta::NO_ALLOC, ..genesis });
    Ok(store.write(batch, Durability::Disk)?)
}

/// Removes the database of a data directory, if there is one. It must not be open.
///
/// # Errors
/// The errors of the store.
pub fn remove_database(datadir: &Path) -> Result<(), Error> {
    Ok(Store::destroy(&database_path(datadir))?)
}

/// Writes a block without transactions, which is base and head.
fn put_head(batch: &mut Batch<'_>, id: BlockId, header: &[u8], body: &[u8]) {
    batch.put::<Headers>(id.hash, (id.number, header));
    batch.put::<Bodies>(id.hash, body);
    batch.put::<Receipts>(id.hash, &tandem_chain::encode_receipts(&[]));
    batch.put::<Canonical>(id.number, id.hash);
    meta::put_base(batch, &id);
    meta::put_forkchoice(batch, &Forkchoice { head: id, safe: None, finalized: None });
}

impl StorageWriter {
    /// Creates a storage-writer over a new database in memory, from geth's genesis file (JSON, or
    /// JSON in gzip) as [`init`] does. The database is gone after the last handle is dropped.
    /// [`Config::datadir`] and [`Config::store`] are ignored.
    ///
    /// # Errors
    /// [`Error::Genesis`], also when the reader fails.
    pub fn create_in_memory(
        genesis: impl Read,
        config: Config,
        deps: Deps,
    ) -> Result<Arc<Self>, Error> {
        let store = Store::in_memory();
        let genesis = BufReader::new(genesis);
        let read = |_: &mut _, sink: &mut EntrySink<'_>| read_json(genesis, sink);
        build(&store, read, &mut |_| {})?;
        Self::start_over(store, config, deps)
    }
}

pub fn io_error(context: &'static str, path: &Path, source: io::Error) -> Error {
    Error::Io { context, path: path.to_owned(), source }
}

/// Compares a genesis file with an existing database.
fn compare(
    store: &Store,
    genesis_path: &Path,
    datadir: &Path,
    progress: &mut (impl FnMut(Progress) + Send),
) -> Result<Initialized, Error> {
    let have = meta::genesis(&store.view())?;
    if have.is_copy() {
        return Err(Error::IsCopy { datadir: datadir.to_owned(), have: have.id.hash });
    }
    let file = read_file(genesis_path, progress, &mut |_| Ok(()))?;
    let other =
        |reason| Error::OtherGenesis { datadir: datadir.to_owned(), have: have.id.hash, reason };
    let as_value = |json: &str| serde_json::from_str::<serde_json::Value>(json).ok();
    if file.alloc_digest != have.alloc_digest {
        return Err(other("its accounts differ"));
    }
    if as_value(&file.json) != as_value(&have.json) {
        return Err(other("its configuration or header fields differ"));
    }
    let GenesisFile { accounts, slots, .. } = file;
    Ok(Initialized { genesis: have.id, head: have.id, already: true, accounts, slots })
}

/// Sink for the entries of `alloc` as they are read.
type EntrySink<'a> = dyn FnMut(Entry) -> Result<(), Error> + 'a;

/// Fills an empty database with the genesis that `read` reads.
fn build<P: FnMut(Progress) + Send>(
    store: &Store,
    read: impl FnOnce(&mut P, &mut EntrySink<'_>) -> Result<GenesisFile, Error>,
    progress: &mut P,
) -> Result<Initialized, Error> {
    let mut batch = store.batch();
    let file = read(progress, &mut |entry| {
        match entry {
            Entry::Account { address_hash, account, code } => {
                batch.put::<Accounts>(address_hash, &account);
                if !code.is_empty() {
                    batch.put::<Code>(account.code_hash, &code);
                }
            }
            Entry::Slot { key, value } => batch.put::<Slots>(key, value),
        }
        write_when_full(store, &mut batch)
    })?;
    store.write(batch, Durability::Memory)?;
    // A faulty configuration is found before the tries are built.
    chain_spec(&file.json)?;
    let built = build_tries(store, &file, progress)?;
    if built.accounts != file.accounts || built.slots != file.slots {
        return Err(Error::Genesis("alloc names an account or a slot twice".to_owned()));
    }
    progress(Progress::Flushing);
    store.flush()?;
    put_genesis(store, file.json, file.alloc_digest, &built, StateAt::Genesis)
}

/// Writes the genesis block over a state whose tries are there except for the root node. With
/// [`StateAt::Block1`], the state is that of its child.
pub fn put_genesis(
    store: &Store,
    json: String,
    alloc_digest: B256,
    built: &Built,
    at: StateAt,
) -> Result<Initialized, Error> {
    let spec = chain_spec(&json)?;
    let header = spec.genesis_header(match at {
        StateAt::Genesis => built.root,
        StateAt::Block1 => EMPTY_TRIE_ROOT,
    });
    let header_rlp = alloy_rlp::encode(&header);
    let id = BlockId::new(header.number, keccak256(&header_rlp));
    // The body has no transactions, no ommers, and from Shanghai on no withdrawals.
    let body: &[u8] = match header.withdrawals_root {
        Some(_) => &[0xc3, 0xc0, 0xc0, 0xc0],
        None => &[0xc2, 0xc0, 0xc0],
    };
    let mut batch = store.batch();
    if let Some(rlp) = &built.node {
        batch.put::<AccountTrie>(&[], rlp);
    }
    put_head(&mut batch, id, &header_rlp, body);
    let mut head = id;
    if at == StateAt::Block1 {
        let block = block_1(&spec, &header, built.root)?;
        put_head(&mut batch, block.id, &block.header_rlp, &block.body_rlp);
        head = block.id;
    }
    meta::put_genesis(&mut batch, &meta::Genesis { id, json, alloc_digest });
    store.write(batch, Durability::Disk)?;
    let Built { accounts, slots, .. } = *built;
    Ok(Initialized { genesis: id, head, already: false, accounts, slots })
}

/// Returns the first block on a genesis block, without transactions, with this state root.
fn block_1(spec: &ChainSpec, genesis: &Header, root: B256) -> Result<Block, Error> {
    if !is_merged(genesis) {
        return Err(Error::Genesis(
            "a state in block 1 needs proof of stake from genesis on".into(),
        ));
    }
    let timestamp = genesis.timestamp + SLOT_SECONDS;
    let fork = spec.fork_at(timestamp);
    let template = Template {
        timestamp,
        prev_randao: B256::ZERO,
        fee_recipient: Address::ZERO,
        withdrawals: (fork >= Fork::Shanghai).then(Vec::new),
        parent_beacon_block_root: (fork >= Fork::Cancun).then_some(B256::ZERO),
        slot_number: (fork >= Fork::Amsterdam).then(|| genesis.slot_number.unwrap_or(0) + 1),
        gas_limit_target: genesis.gas_limit,
        extra_data: Bytes::new(),
    };
    let header = Header { state_root: root, ..template.header(spec, genesis) };
    let sealed = Block::seal(header, &[], template.withdrawals.as_deref());
    sealed.map_err(|error| Error::Genesis(error.to_string()))
}

pub fn chain_spec(json: &str) -> Result<ChainSpec, Error> {
    ChainSpec::from_genesis_json(json).map_err(|error| Error::Genesis(error.to_string()))
}

fn write_when_full<'s>(store: &'s Store, batch: &mut Batch<'s>) -> Result<(), Error> {
    if batch.byte_len() < BATCH_BYTES {
        return Ok(());
    }
    let full = std::mem::replace(batch, store.batch());
    Ok(store.write(full, Durability::Memory)?)
}

/// Builds all tries from the flat state.
fn build_tries(
    store: &Store,
    file: &GenesisFile,
    progress: &mut (impl FnMut(Progress) + Send),
) -> Result<Built, Error> {
    let done = AtomicU64::new(0);
    let progress = Mutex::new(progress);
    let report = |accounts| {
        (*progress.lock())(Progress::Building { accounts, total: file.accounts });
    };
    let built = rebuild_all(
        &store.view(),
        || Writer { nodes: NodeRuns::new(store), done: &done, report: &report },
        |writer| writer.nodes.finish(),
    )?;
    report(built.accounts);
    Ok(built)
}

/// Writer of the nodes of one shard.
struct Writer<'s, R: Fn(u64)> {
    nodes: NodeRuns<'s>,
    done: &'s AtomicU64,
    report: &'s R,
}

impl<R: Fn(u64)> Sink for Writer<'_, R> {
    fn node(&mut self, owner: Option<B256>, path: &[u8], rlp: &[u8]) -> Result<(), Error> {
        self.nodes.node(owner, path, rlp)
    }

    fn account(&mut self, _: B256, _: &Account) -> Result<(), Error> {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        if done.is_multiple_of(REPORT_EVERY) {
            (self.report)(done);
        }
        Ok(())
    }

    fn storage_done(&mut self, owner: B256) -> Result<(), Error> {
        self.nodes.storage_done(owner)
    }

    fn orphan(&mut self, owner: B256, slot: B256) -> Result<(), Error> {
        Err(Error::Damaged(format!("slot {slot} of {owner} belongs to no account")))
    }
}

/// Reads a genesis, and unpacks it when it starts like gzip.
fn read_json(
    mut reader: BufReader<impl Read>,
    sink: &mut EntrySink<'_>,
) -> Result<GenesisFile, Error> {
    let start = reader.fill_buf().map_err(|error| Error::Genesis(error.to_string()))?;
    if start.starts_with(&[0x1f, 0x8b]) {
        genesis::read(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(reader)), sink)
    } else {
        genesis::read(reader, sink)
    }
}

/// Reads a genesis file.
fn read_file(
    path: &Path,
    progress: &mut impl FnMut(Progress),
    sink: &mut EntrySink<'_>,
) -> Result<GenesisFile, Error> {
    let file = File::open(path).map_err(|source| io_error("open", path, source))?;
    let total = file.metadata().map_err(|source| io_error("read", path, source))?.len();
    let bytes = Arc::new(AtomicU64::new(0));
    let counted = Counted { file, bytes: bytes.clone() };
    let mut reader = BufReader::with_capacity(1 << 16, counted);
    reader.fill_buf().map_err(|source| io_error("read", path, source))?;
    let mut entries = 0u64;
    let mut sink = |entry| {
        entries += 1;
        if entries.is_multiple_of(REPORT_EVERY) {
            progress(Progress::Reading { bytes: bytes.load(Ordering::Relaxed), total });
        }
        sink(entry)
    };
    let read = read_json(reader, &mut sink);
    progress(Progress::Reading { bytes: bytes.load(Ordering::Relaxed), total });
    read.map_err(|error| match error {
        Error::Genesis(reason) => Error::Genesis(format!("{}: {reason}", path.display())),
        other => other,
    })
}

/// Reader that counts the bytes read from a file.
struct Counted {
    file: File,
    bytes: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.file.read(buffer)?;
        self.bytes.fetch_add(len as u64, Ordering::Relaxed);
        Ok(len)
    }
}
