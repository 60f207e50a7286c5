//! Column families of a database, and the directories of their files.
//!
//! A table is one column family, whose files are in the folder of the database. A database that was spread
//! ([`Store::spread`](crate::Store::spread)) has several column families for each table of the state: one for
//! each range of shards, with files in a directory of its own. All of them share one log, so a batch is atomic
//! over all directories, and the log repairs every directory after a crash.
//!
//! The names of column families tell the ranges: `slots.0-7`. A file in the folder of the database
//! ([`DIRECTORIES_FILE`]) tells the directories, and a file in each directory ([`OWNER_FILE`]) tells the database,
//! so that a disk that is not mounted, or another one, is not taken for it. A copy of the database has all files in
//! its own folder, and no such file.

use crate::{
    Error, Result, Table,
    options::{SHARDS, Shard},
    store::holds_anything,
    tables::{Accounts, Entry},
};
use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

/// Name of the file in the folder of a database that has a line for each range of shards, such as `0-7 DIRECTORY`.
/// While the layout is being changed, the change stands before them.
pub(crate) const DIRECTORIES_FILE: &str = "DIRECTORIES";

/// Name of the file in a directory that has the identity of its database.
pub(crate) const OWNER_FILE: &str = "DATABASE";

/// Name of RocksDB's file with the identity of the database.
const IDENTITY_FILE: &str = "IDENTITY";

/// Name of a column family, and the directory of its files if that is not the folder of the database.
pub(crate) type FamilyFiles = (String, Option<PathBuf>);

/// Range of shards that have column families of their own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    first: u8,
    last: u8,
    /// `None` for the folder of the database.
    directory: Option<PathBuf>,
}

impl Part {
    /// Returns the range as names have it, such as `0-7`.
    pub fn range(&self) -> String {
        format!("{:x}-{:x}", self.first, self.last)
    }
}

/// Division of the state's tables into column families.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Layout {
    /// Ranges in their order. None for tables of one column family.
    parts: Vec<Part>,
}

impl Layout {
    /// Divides the shards evenly among these directories.
    pub fn over(directories: &[PathBuf]) -> Self {
        let count = directories.len();
        let first = |index: usize| (index * SHARDS / count) as u8;
        let part = |(index, directory): (usize, &PathBuf)| Part {
            first: first(index),
            last: first(index + 1) - 1,
            directory: Some(directory.clone()),
        };
        Self { parts: directories.iter().enumerate().map(part).collect() }
    }

    /// Returns the layout of a database, by its record of directories, or by the names of its column families.
    ///
    /// # Errors
    /// [`Error::HalfSpread`] if a change of the layout did not end; [`Error::Foreign`] if record and names differ.
    pub fn find(path: &Path, families: &[String]) -> Result<Self> {
        let record = Record::read(path)?;
        if record.as_ref().is_some_and(|record| record.change.is_some()) {
            return Err(Error::HalfSpread(path.to_owned()));
        }
        let named = Self::named(path, families)?;
        let Some(Record { layout, .. }) = record else { return Ok(named) };
        let ranges = |layout: &Self| layout.parts.iter().map(Part::range).collect::<Vec<_>>();
        if ranges(&layout) != ranges(&named) {
            let reason = format!(
                "{DIRECTORIES_FILE} has the shards {}, but the tables have {}",
                ranges(&layout).join(", "),
                ranges(&named).join(", ")
            );
            return Err(Error::Foreign { path: path.to_owned(), reason });
        }
        Ok(layout)
    }

    /// Returns the layout that the names of column families tell, with all files in the folder of the database.
    fn named(path: &Path, families: &[String]) -> Result<Self> {
        let of_accounts = |name: &String| {
            let (table, range) = name.split_once('.')?;
            (table == Accounts::NAME).then(|| range.to_owned())
        };
        let mut ranges: Vec<_> = families.iter().filter_map(of_accounts).collect();
        ranges.sort_unstable();
        Self::parse(path, ranges.iter().map(|range| (&**range, None)))
    }

    fn parse<'t>(
        path: &Path,
        ranges: impl Iterator<Item = (&'t str, Option<PathBuf>)>,
    ) -> Result<Self> {
        let mut parts: Vec<Part> = Vec::new();
        let shard =
            |text: &str| u8::from_str_radix(text, 16).ok().filter(|n| usize::from(*n) < SHARDS);
        for (range, directory) in ranges {
            let bounds =
                range.split_once('-').and_then(|(one, other)| shard(one).zip(shard(other)));
            let expected = parts.last().map_or(0, |part| part.last + 1);
            match bounds {
                Some((first, last)) if first == expected && first <= last => {
                    parts.push(Part { first, last, directory });
                }
                _ => {
                    let reason = format!("`{range}` is not the next range of shards");
                    return Err(Error::Foreign { path: path.to_owned(), reason });
                }
            }
        }
        if parts.last().is_some_and(|part| usize::from(part.last) + 1 != SHARDS) {
            let reason = "not all shards are in the ranges of its tables".to_owned();
            return Err(Error::Foreign { path: path.to_owned(), reason });
        }
        Ok(Self { parts })
    }

    /// Writes the owner's name into each directory.
    pub fn own(&self, path: &Path) -> Result<()> {
        let owner = owner(path)?;
        for directory in self.directories() {
            write_synced(&directory.join(OWNER_FILE), owner.as_bytes())?;
        }
        Ok(())
    }

    /// Removes what a database left in its directories, and those that are empty then. What other programs put
    /// there stays. So does what cannot be removed.
    pub fn clear(&self) {
        for directory in self.directories() {
            let Ok(entries) = fs::read_dir(directory) else { continue };
            for entry in entries.flatten() {
                let (path, name) = (entry.path(), entry.file_name());
                // The tables of the state have no blob files, so such a file is not the database's.
                let is_table = path.extension().is_some_and(|extension| extension == "sst");
                if is_table || name == OWNER_FILE {
                    let _ = fs::remove_file(path);
                }
            }
            let _ = fs::remove_dir(directory);
        }
    }

    /// Checks that each directory is there and belongs to the database.
    ///
    /// # Errors
    /// [`Error::Directory`].
    pub fn check(&self, path: &Path) -> Result<()> {
        if self.directories().next().is_none() {
            return Ok(());
        }
        let owner = owner(path)?;
        for directory in self.directories() {
            let refused = |reason: String| Error::Directory {
                path: path.to_owned(),
                directory: directory.to_owned(),
                reason,
            };
            match fs::read_to_string(directory.join(OWNER_FILE)) {
                Ok(found) if found == owner => {}
                Ok(found) => {
                    let other = found.lines().nth(1).unwrap_or_default();
                    return Err(refused(format!(
                        "its file {OWNER_FILE} names the one in {other}; if that was moved, correct the path"
                    )));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let text = format!("it has no file {OWNER_FILE}; is its disk mounted?");
                    return Err(refused(text));
                }
                Err(error) => return Err(refused(error.to_string())),
            }
        }
        Ok(())
    }

    /// Returns the directories besides the folder of the database.
    pub fn directories(&self) -> impl Iterator<Item = &Path> {
        self.parts.iter().filter_map(|part| part.directory.as_deref())
    }

    /// Returns the ranges of shards; none if tables are not divided.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Returns the names of a table's column families and their directories, in the order of their keys.
    pub fn families(&self, (name, tuning): &Entry) -> Vec<FamilyFiles> {
        match tuning.is_sharded() && !self.parts.is_empty() {
            true => {
                let family =
                    |part: &Part| (format!("{name}.{}", part.range()), part.directory.clone());
                self.parts.iter().map(family).collect()
            }
            false => vec![((*name).to_owned(), None)],
        }
    }

    /// Returns the directory of a column family, by its name.
    pub fn directory_of(&self, family: &str) -> Option<&Path> {
        let (_, range) = family.split_once('.')?;
        let part = self.parts.iter().find(|part| part.range() == range)?;
        part.directory.as_deref()
    }

    /// Returns the position of each shard's part.
    pub fn positions(&self) -> [u8; SHARDS] {
        let mut positions = [0; SHARDS];
        for (position, part) in self.parts.iter().enumerate() {
            let shards = usize::from(part.first)..=usize::from(part.last);
            positions[shards].fill(position as u8);
        }
        positions
    }
}

impl std::fmt::Display for Layout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, part) in self.parts.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            let directory =
                part.directory.as_deref().map_or("its folder".into(), Path::to_string_lossy);
            write!(f, "{separator}{directory} (shards {})", part.range())?;
        }
        Ok(())
    }
}

/// Record of a database's directories.
pub(crate) struct Record {
    /// Change of the layout that has not ended.
    pub change: Option<Change>,
    /// Layout before the change if the state is gathered, otherwise the layout afterwards.
    pub layout: Layout,
}

/// Change of a database's layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// From one column family for each table to several.
    Spreading,
    /// Back to one.
    Gathering,
}

impl Change {
    /// Returns the change that leads to these directories.
    pub const fn to(directories: &[PathBuf]) -> Self {
        match directories.is_empty() {
            true => Self::Gathering,
            false => Self::Spreading,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Spreading => "spreading",
            Self::Gathering => "gathering",
        }
    }
}

impl Record {
    /// Reads the record of the database in a folder; `None` if there is none.
    pub fn read(path: &Path) -> Result<Option<Self>> {
        let file = path.join(DIRECTORIES_FILE);
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Error::Io { context: "read", path: file, source }),
        };
        let mut lines = text.lines().peekable();
        let change = [Change::Spreading, Change::Gathering];
        let change = change.into_iter().find(|change| lines.peek() == Some(&change.name()));
        if change.is_some() {
            lines.next();
        }
        let lines = lines.map(|line| match line.split_once(' ') {
            Some((range, directory)) => (range, Some(PathBuf::from(directory))),
            None => (line, None),
        });
        Ok(Some(Self { change, layout: Layout::parse(path, lines)? }))
    }

    /// Writes the record.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut text =
            self.change.map_or_else(String::new, |change| format!("{}\n", change.name()));
        for part in &self.layout.parts {
            text += &part.range();
            if let Some(directory) = &part.directory {
                text += &format!(" {}", directory.display());
            }
            text += "\n";
        }
        let (file, unfinished) = (path.join(DIRECTORIES_FILE), path.join("DIRECTORIES.unfinished"));
        write_synced(&unfinished, text.as_bytes())?;
        let renamed = fs::rename(&unfinished, &file).and_then(|()| File::open(path)?.sync_all());
        renamed.map_err(|source| Error::Io { context: "write", path: file, source })
    }

    /// Removes the record of the database in a folder.
    pub fn remove(path: &Path) -> Result<()> {
        let file = path.join(DIRECTORIES_FILE);
        let removed = fs::remove_file(&file).and_then(|()| File::open(path)?.sync_all());
        removed.map_err(|source| Error::Io { context: "remove", path: file, source })
    }
}

/// Returns whether a file is one of RocksDB's that have records and never change.
pub(crate) fn is_table_file(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "sst" || extension == "blob")
}

/// Returns the shard of a key.
pub(crate) fn shard_of(shard: Shard, key: &[u8]) -> usize {
    let first = usize::from(key.first().copied().unwrap_or(0));
    match shard {
        Shard::None => 0,
        Shard::HighNibble => first >> 4,
        Shard::Byte => first.min(SHARDS - 1),
    }
}

/// Returns the content of [`OWNER_FILE`]: the identity of the database, and its folder, as a copy of the folder
/// has the same identity.
fn owner(path: &Path) -> Result<String> {
    let file = path.join(IDENTITY_FILE);
    let read = || Ok((fs::read_to_string(&file)?, fs::canonicalize(path)?));
    let (identity, path) =
        read().map_err(|source| Error::Io { context: "read", path: file.clone(), source })?;
    Ok(format!("{}\n{}\n", identity.trim_end(), path.display()))
}

/// Returns whether a directory holds nothing but what [`Layout::own`] of the database in a folder may have left
/// when it was interrupted.
pub(crate) fn is_free(directory: &Path, path: &Path) -> Result<bool> {
    if !holds_anything(directory)? {
        return Ok(true);
    }
    let owner = owner(path)?;
    let is_owner_file =
        |entry: io::Result<fs::DirEntry>| entry.is_ok_and(|entry| entry.file_name() == OWNER_FILE);
    let is_alone = fs::read_dir(directory).is_ok_and(|mut entries| entries.all(is_owner_file));
    let found = fs::read_to_string(directory.join(OWNER_FILE));
    Ok(is_alone && found.is_ok_and(|found| owner.starts_with(&found)))
}

fn write_synced(path: &Path, bytes: &[u8]) -> Result<()> {
    let written = File::create(path).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written.map_err(|source| Error::Io { context: "write", path: path.to_owned(), source })
}
