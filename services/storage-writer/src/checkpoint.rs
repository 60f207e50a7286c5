//! Checkpoints: a second folder with the files of the database, at one moment, for snapshots.
//!
//! Files that never change are shared by hard links, so a checkpoint takes a moment and little room. It keeps
//! the files that the database replaces later, so it should be removed soon. There is one at a time in a data
//! directory, in the folder [`CHECKPOINT_FOLDER`].

use crate::{
    Error, StorageWriter,
    acknowledged::Acknowledged,
    body,
    config::{database_path, refuse_half_restored},
    init::{chain_spec, io_error},
    meta,
    service::store_error,
};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::Ordering::{Acquire, Release},
    time::Instant,
};
use tandem_primitives::{B256, BlockId};
use tandem_proto::storage::{self, DatabaseCheckpoints, Result};
use tandem_store::{Options, SCHEMA_VERSION, Store};
use tracing::info;

/// Folder of the checkpoint in a data directory. It is like a data directory with the database in it.
pub const CHECKPOINT_FOLDER: &str = "checkpoint";

/// Returns the folder of the checkpoint in a data directory.
#[must_use]
pub fn checkpoint_path(datadir: &Path) -> PathBuf {
    datadir.join(CHECKPOINT_FOLDER)
}

/// Block with its state root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StateBlock {
    /// The block.
    pub id: BlockId,
    /// State root in its header.
    pub state_root: B256,
}

/// Contents of a database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DatabaseSubject {
    /// Version of the tables and records.
    pub schema_version: u32,
    /// Chain id (EIP-155).
    pub chain_id: u64,
    /// Genesis block.
    pub genesis: BlockId,
    /// Head of the last forkchoice.
    pub head: StateBlock,
    /// Block whose state the base holds.
    pub base: StateBlock,
}

/// Makes the checkpoint of a data directory, which no process may have open.
///
/// # Errors
/// When the database cannot be opened, or there is a checkpoint already.
pub fn make_checkpoint(datadir: &Path) -> Result<(), Error> {
    refuse_half_restored(datadir)?;
    write_checkpoint(&open(&database_path(datadir))?, datadir)
}

/// Removes the checkpoint of a data directory, if there is one.
///
/// # Errors
/// [`Error::Io`].
pub fn remove_checkpoint(datadir: &Path) -> Result<(), Error> {
    let path = checkpoint_path(datadir);
    match fs::remove_dir_all(&path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(io_error("remove", &path, source))
        }
        _ => Ok(()),
    }
}

/// Completes the checkpoint of a data directory: its log comes into files, and a record of acknowledged
/// writes is made for it. Returns the folder with its files, which do not change any more, and its contents.
///
/// # Errors
/// When there is no checkpoint, or it cannot be read; [`Error::Damaged`] while a state is being downloaded.
pub fn seal_checkpoint(datadir: &Path) -> Result<(PathBuf, DatabaseSubject), Error> {
    let path = database_path(&checkpoint_path(datadir));
    let store = open(&path)?;
    let subject = subject(&store)?;
    store.flush()?;
    Acknowledged::begin(&store, subject.head.id, subject.base.id)?;
    Ok((path, subject))
}

/// Returns the contents of a data directory, which no process may have open.
///
/// # Errors
/// When the database cannot be opened or read.
pub fn database_subject(datadir: &Path) -> Result<DatabaseSubject, Error> {
    subject(&open(&database_path(datadir))?)
}

fn open(path: &Path) -> Result<Store, Error> {
    // Compactions would replace files that other snapshots have.
    Ok(Store::open(path, &Options { auto_compaction: false, ..Options::default() })?)
}

fn subject(store: &Store) -> Result<DatabaseSubject, Error> {
    let view = store.view();
    if meta::download(&view)?.is_some() {
        return Err(Error::Damaged("its state is still being downloaded".to_owned()));
    }
    let genesis = meta::genesis(&view)?;
    let block = |id: BlockId| -> Result<StateBlock, Error> {
        Ok(StateBlock { id, state_root: body::header(&view, id.hash)?.state_root })
    };
    Ok(DatabaseSubject {
        schema_version: SCHEMA_VERSION,
        chain_id: chain_spec(&genesis.json)?.chain_id(),
        genesis: genesis.id,
        head: block(meta::forkchoice(&view)?.head)?,
        base: block(meta::base(&view)?)?,
    })
}

fn write_checkpoint(store: &Store, datadir: &Path) -> Result<(), Error> {
    let folder = checkpoint_path(datadir);
    if folder.exists() {
        return Err(io_error("create", &folder, std::io::ErrorKind::AlreadyExists.into()));
    }
    fs::create_dir_all(&folder).map_err(|source| io_error("create", &folder, source))?;
    store.copy_to(&database_path(&folder)).map_err(|error| {
        // The error at hand says more than one about a failed removal.
        let _ = remove_checkpoint(datadir);
        error.into()
    })
}

impl DatabaseCheckpoints for StorageWriter {
    fn checkpoint_database(&self) -> Result<BlockId> {
        self.shared.needs_state()?;
        let Some(path) = self.shared.store.path() else {
            return Err(storage::Error::Refused("the database is in memory".to_owned()));
        };
        if self.makes_checkpoint.swap(true, Acquire) {
            return Err(storage::Error::Refused("a checkpoint is being made".to_owned()));
        }
        let started = Instant::now();
        let written = write_checkpoint(&self.shared.store, &self.shared.config.datadir);
        self.makes_checkpoint.store(false, Release);
        written.map_err(|error| match error {
            Error::Store(error) => store_error(error),
            other => storage::Error::Refused(other.to_string()),
        })?;
        let head = self.shared.state.lock().chain.forkchoice().head;
        let milliseconds = started.elapsed().as_millis();
        info!(%head, database = %path.display(), milliseconds, "checkpoint made");
        Ok(head)
    }
}
