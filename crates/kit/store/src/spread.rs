//! Spreading the state of a database over directories, and gathering it again.
//!
//! Each table of the state is copied into new column families, and the old ones are removed then, one table after
//! the other. A process that dies leaves a database that nothing else opens; the next call goes on with
//! the table at which it died.

use crate::{
    Error, Options, Result, Store, Table,
    layout::{Change, FamilyFiles, Layout, Part, Record, is_free},
    options::SHARDS,
    rocks::{Db, Rocks, handle},
    runs::Files,
    store::Backend,
    tables::{AccountTrie, Accounts, Slots, StorageTrie},
};
use rocksdb::ReadOptions;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Bytes that a cursor reads ahead.
const READAHEAD_BYTES: usize = 2 << 20;

/// Records between two reports.
const REPORT_EVERY: u64 = 1 << 16;

/// Takes the name of a table and the bytes copied of it so far, or 0 when it is done. Returns whether to go on.
type Report<'r> = &'r mut dyn FnMut(&'static str, u64) -> bool;

impl Store {
    /// Divides the state of a database among directories, 16 shards evenly: tables with hashed keys by the
    /// first four bits of their keys. Each directory is missing or empty, and should be a disk of its own. Without
    /// directories, all files come back into the folder of the database. No process may have the database
    /// open. A call that was interrupted is ended by the same call, or undone by the opposite one. `report` gets
    /// the name of a table and the bytes copied so far, 0 at its end, and returns whether to go on.
    ///
    /// The disks need room for the largest table twice.
    ///
    /// # Errors
    /// [`Error::Spread`] if a directory is not empty, or the state is spread over others; the errors of
    /// [`Store::open`]; [`Error::HalfSpread`] if `report` said no.
    pub fn spread(
        path: &Path,
        directories: &[PathBuf],
        report: &mut dyn FnMut(&'static str, u64) -> bool,
    ) -> Result<()> {
        let settings = Options { auto_compaction: false, ..Options::default() };
        let Some(mut plan) = Plan::make(path, directories, &settings)? else { return Ok(()) };
        if plan.change != Change::to(directories) {
            plan = plan.reverse(path, &settings)?;
        }
        plan.carry_out(path, &settings, report)?;
        plan.end(path)
    }

    /// Returns the ranges of shards and the directories that have their files; nothing for a database that
    /// is not spread.
    pub fn directories(&self) -> Vec<(String, PathBuf)> {
        let Backend::Rocks(rocks) = &self.backend else { return Vec::new() };
        let parts = rocks.layout.parts().iter().map(Part::range);
        parts.zip(rocks.layout.directories().map(Path::to_owned)).collect()
    }
}

/// Functions for a table of the state.
struct Sharded {
    families: fn(&Layout) -> Vec<FamilyFiles>,
    convert: fn(&mut Rocks, &Layout, &[FamilyFiles], Report<'_>) -> Result<()>,
    settle: fn(&mut Rocks, &Layout, &[FamilyFiles]) -> Result<()>,
}

impl Sharded {
    const fn of<T: Table>() -> Self {
        Self { families: families::<T>, convert: convert::<T>, settle: settle::<T> }
    }
}

/// Tables that are divided.
const SHARDED: [Sharded; 4] = [
    Sharded::of::<Accounts>(),
    Sharded::of::<Slots>(),
    Sharded::of::<AccountTrie>(),
    Sharded::of::<StorageTrie>(),
];

/// Change of the layout that is to be made, or to be ended.
struct Plan {
    change: Change,
    source: Layout,
    target: Layout,
}

impl Plan {
    /// Makes a plan and records it; `None` if there is nothing to do.
    fn make(path: &Path, directories: &[PathBuf], settings: &Options) -> Result<Option<Self>> {
        let plan = match Store::open(path, settings) {
            Ok(store) => Self::begin(path, &store, directories)?,
            Err(Error::HalfSpread(_)) => Some(Self::resume(path, directories)?),
            Err(error) => return Err(error),
        };
        if let Some(plan) = &plan {
            plan.source.check(path)?;
            plan.target.check(path)?;
        }
        Ok(plan)
    }

    fn begin(path: &Path, store: &Store, directories: &[PathBuf]) -> Result<Option<Self>> {
        let Backend::Rocks(rocks) = &store.backend else { return Ok(None) };
        let source = rocks.layout.clone();
        let is_divided = !source.parts().is_empty();
        if directories.is_empty() {
            if !is_divided {
                return Ok(None);
            }
            let change = Change::Gathering;
            Record { change: Some(change), layout: source.clone() }.write(path)?;
            return Ok(Some(Self { change, source, target: Layout::default() }));
        }
        let target = Layout::over(&made(path, directories)?);
        if source == target {
            return Ok(None);
        }
        if is_divided {
            let reason = format!(
                "it lies in {source}; gather it first (`tandem db spread` without directories)"
            );
            return Err(Error::Spread { path: path.to_owned(), reason });
        }
        for directory in target.directories() {
            if !is_free(directory, path)? {
                let reason = format!("{} is not empty", directory.display());
                return Err(Error::Spread { path: path.to_owned(), reason });
            }
        }
        target.own(path)?;
        let change = Change::Spreading;
        Record { change: Some(change), layout: target.clone() }.write(path)?;
        Ok(Some(Self { change, source, target }))
    }

    fn resume(path: &Path, directories: &[PathBuf]) -> Result<Self> {
        let record = Record::read(path)?;
        let Some(Record { change: Some(change), layout }) = record else {
            return Err(Error::HalfSpread(path.to_owned()));
        };
        if !directories.is_empty() && layout != Layout::over(&made(path, directories)?) {
            return Err(Error::HalfSpread(path.to_owned()));
        }
        let whole = Layout::default();
        Ok(match change {
            Change::Spreading => Self { change, source: whole, target: layout },
            Change::Gathering => Self { change, source: layout, target: whole },
        })
    }

    /// Opens the database with the new column families, which may be empty, and with the old ones that are left.
    fn open(&self, path: &Path, settings: &Options) -> Result<(Rocks, Vec<FamilyFiles>)> {
        let mut database = settings.database();
        let found = Db::list_cf(&database, path)?;
        database.create_missing_column_families(true);
        let is_there = |(name, _): &FamilyFiles| found.iter().any(|have| have == name);
        let old = SHARDED.iter().flat_map(|table| (table.families)(&self.source)).filter(is_there);
        let old: Vec<_> = old.collect();
        Ok((Rocks::open(path, settings, database, self.target.clone(), &old)?, old))
    }

    /// Converts the tables that are left.
    fn carry_out(&self, path: &Path, settings: &Options, report: Report<'_>) -> Result<()> {
        let (mut rocks, old) = self.open(path, settings)?;
        for table in &SHARDED {
            (table.convert)(&mut rocks, &self.source, &old, report)?;
        }
        Ok(())
    }

    /// Leaves each table in one of both layouts, and turns the change around.
    fn reverse(self, path: &Path, settings: &Options) -> Result<Self> {
        let (mut rocks, old) = self.open(path, settings)?;
        for table in &SHARDED {
            (table.settle)(&mut rocks, &self.source, &old)?;
        }
        drop(rocks);
        let (change, layout) = match self.change {
            Change::Spreading => (Change::Gathering, &self.target),
            Change::Gathering => (Change::Spreading, &self.source),
        };
        Record { change: Some(change), layout: layout.clone() }.write(path)?;
        Ok(Self { change, source: self.target, target: self.source })
    }

    /// Notes that the change has been made.
    fn end(self, path: &Path) -> Result<()> {
        match self.change {
            Change::Spreading => Record { change: None, layout: self.target }.write(path),
            Change::Gathering => {
                Record::remove(path)?;
                self.source.clear();
                Ok(())
            }
        }
    }
}

/// Makes directories that are missing, for the database in a folder. Returns their absolute paths.
fn made(path: &Path, directories: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let refused = |reason| Err(Error::Spread { path: path.to_owned(), reason });
    if directories.len() > SHARDS {
        return refused(format!("there are {} directories for 16 shards", directories.len()));
    }
    let mut made: Vec<PathBuf> = Vec::with_capacity(directories.len());
    for directory in directories {
        let absolute = fs::create_dir_all(directory).and_then(|()| fs::canonicalize(directory));
        let absolute = absolute.map_err(|source| Error::Io {
            context: "create",
            path: directory.clone(),
            source,
        })?;
        if made.contains(&absolute) {
            return refused(format!("{} is given twice", absolute.display()));
        }
        if absolute.to_str().is_none_or(|text| text.contains('\n')) {
            return refused(format!("{} is not a line of text", absolute.display()));
        }
        made.push(absolute);
    }
    Ok(made)
}

fn families<T: Table>(layout: &Layout) -> Vec<FamilyFiles> {
    layout.families(&(T::NAME, T::TUNING))
}

/// Copies a table into its new column families, and removes the old ones.
fn convert<T: Table>(
    rocks: &mut Rocks,
    source: &Layout,
    old: &[FamilyFiles],
    report: Report<'_>,
) -> Result<()> {
    let sources = families::<T>(source);
    if is_left(&sources, old) {
        rocks.remove::<T>()?;
        rocks.create::<T>()?;
        let bytes = copy::<T>(rocks, &sources, report)?;
        go_on::<T>(rocks, bytes, report)?;
    }
    for family in sources.iter().filter(|family| old.contains(family)) {
        rocks.db.drop_cf(&family.0)?;
        go_on::<T>(rocks, 0, report)?;
    }
    Ok(())
}

/// Removes the column families of a table that have only a part of it.
fn settle<T: Table>(rocks: &mut Rocks, source: &Layout, old: &[FamilyFiles]) -> Result<()> {
    let sources = families::<T>(source);
    if is_left(&sources, old) {
        return rocks.remove::<T>();
    }
    for family in sources.iter().filter(|family| old.contains(family)) {
        rocks.db.drop_cf(&family.0)?;
    }
    Ok(())
}

/// Returns whether the table is still in all its old column families. The first of them is removed only after
/// all of them were copied.
fn is_left(sources: &[FamilyFiles], old: &[FamilyFiles]) -> bool {
    sources.iter().all(|family| old.contains(family))
}

/// Reports the bytes copied so far.
fn go_on<T: Table>(rocks: &Rocks, bytes: u64, report: Report<'_>) -> Result<()> {
    match report(T::NAME, bytes) {
        true => Ok(()),
        false => Err(Error::HalfSpread(rocks.path.clone())),
    }
}

/// Copies a table. Returns the bytes of its records.
fn copy<T: Table>(rocks: &Rocks, sources: &[FamilyFiles], report: Report<'_>) -> Result<u64> {
    let mut files = Files::<T>::new(rocks);
    let (mut records, mut bytes) = (0, 0);
    for (name, _) in sources {
        let mut options = ReadOptions::default();
        options.set_verify_checksums(true);
        options.fill_cache(false);
        options.set_readahead_size(READAHEAD_BYTES);
        let mut cursor = rocks.db.raw_iterator_cf_opt(handle(&rocks.db, name), options);
        cursor.seek_to_first();
        while let Some((key, value)) = cursor.item() {
            files.put(key, value)?;
            records += 1;
            bytes += (key.len() + value.len()) as u64;
            if records % REPORT_EVERY == 0 {
                go_on::<T>(rocks, bytes, report)?;
            }
            cursor.next();
        }
        cursor.status()?;
    }
    files.finish()?;
    // A small table is only in the log, and the old column families go for good.
    rocks.db.flush_wal(true)?;
    Ok(bytes)
}
