//! `tandem db`: looks at the files of a stopped database, compacts or copies them, and spreads them over
//! directories.

use crate::{
    Error,
    config::{database_path, refuse_half_restored},
    init::io_error,
};
use std::{
    fs,
    path::{Path, PathBuf},
};
use tandem_store::{Compaction, Error as StoreError, MARK_FILE, Options, Store, TableShape};

/// Returns the names of the tables of a database.
pub fn table_names() -> impl Iterator<Item = &'static str> {
    Store::table_names()
}

/// Files of a database.
#[derive(Clone, PartialEq, Debug)]
pub struct DatabaseFiles {
    /// Shape of every table.
    pub tables: Vec<TableShape>,
    /// Ranges of shards, such as `0-7`, and the directories that have their files; nothing if all files are in
    /// the data directory.
    pub directories: Vec<(String, PathBuf)>,
}

/// Returns what files the database of a data directory has, which no process may have open. What is
/// still in the log comes into files first; nothing else changes.
///
/// # Errors
/// When the database cannot be opened or read.
pub fn database_files(datadir: &Path) -> Result<DatabaseFiles, Error> {
    let options = Options { auto_compaction: false, ..Options::default() };
    let store = Store::open(&database_path(datadir), &options)?;
    Ok(DatabaseFiles { tables: store.shapes()?, directories: store.directories() })
}

/// Divides the state of a data directory, which no process may have open, among these directories, or gathers
/// it again if there are none. A call that was interrupted is repeated with the same directories. `progress` gets
/// the name of a table and the bytes copied so far, 0 at its end.
///
/// # Errors
/// When the database cannot be opened, a directory is not empty, or the state is spread over others.
pub fn spread_state(
    datadir: &Path,
    directories: &[PathBuf],
    mut progress: impl FnMut(&str, u64),
) -> Result<(), Error> {
    refuse_half_restored(datadir)?;
    let mut report = |table: &'static str, bytes| {
        progress(table, bytes);
        true
    };
    Ok(Store::spread(&database_path(datadir), directories, &mut report)?)
}

/// Compacts tables of a data directory, which no process may have open, one after the other.
/// `progress` gets the name of each table and the bytes written for it so far, and `done` the result.
///
/// # Errors
/// When there is no such table, the database cannot be opened, or a compaction fails.
pub fn compact_tables(
    datadir: &Path,
    tables: &[String],
    mut progress: impl FnMut(&str, u64),
    mut done: impl FnMut(&str, Compaction),
) -> Result<(), Error> {
    let unknown = |table: &&String| !table_names().any(|name| name == table.as_str());
    if let Some(table) = tables.iter().find(unknown) {
        return Err(StoreError::UnknownTable(table.clone()).into());
    }
    let store = Store::open(&database_path(datadir), &Options::default())?;
    for table in tables {
        progress(table, 0);
        let compaction = store.compact(table, &mut |written| progress(table, written))?;
        done(table, compaction);
    }
    Ok(())
}

/// Copies the database of a data directory, which no process may have open, into another data
/// directory. Files that never change are shared by hard links, so both must be on one volume for the
/// copy to be quick and small.
///
/// # Errors
/// When the database cannot be opened, or the other directory has one already or cannot be written.
pub fn copy_database(from: &Path, to: &Path) -> Result<(), Error> {
    let (source, target) = (database_path(from), database_path(to));
    let options = Options { auto_compaction: false, ..Options::default() };
    refuse_half_restored(from)?;
    refuse_half_restored(to)?;
    let store = Store::open(&source, &options)?;
    if target.exists() {
        let source = std::io::ErrorKind::AlreadyExists.into();
        return Err(io_error("create", &target, source));
    }
    fs::create_dir_all(to).map_err(|source| io_error("create", to, source))?;
    let unfinished = to.join("db.unfinished");
    Store::destroy(&unfinished)?;
    store.copy_to(&unfinished)?;
    let mark = source.join(MARK_FILE);
    if mark.exists() {
        let copied = fs::copy(&mark, unfinished.join(MARK_FILE));
        copied.map_err(|source| io_error("copy", &mark, source))?;
    }
    fs::rename(&unfinished, &target).map_err(|source| io_error("rename", &unfinished, source))
}
