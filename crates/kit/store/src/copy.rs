//! Copies of an open database that has files in several directories, which RocksDB's checkpoints do not handle.
//!
//! A copy is what a crash would leave: RocksDB's manifest first, then all files that it may name, then the
//! logs in their order. No file is removed meanwhile. Opening the copy drops what the manifest does not
//! name, and replays the logs.

use crate::{Error, Result, layout::is_table_file, rocks::Rocks};
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, ErrorKind::CrossesDevices, Read},
    path::{Path, PathBuf},
};

/// Copies a database into a directory that does not exist. What is written meanwhile may be in the copy or not, each
/// batch as a whole.
///
/// # Errors
/// [`Error::Io`] or [`Error::Database`].
pub(crate) fn copy(rocks: &Rocks, target: &Path) -> Result<()> {
    // A directory that is there already belongs to someone else, and stays.
    try_io("create", target, |path| fs::create_dir(path))?;
    let copied = rocks.db.disable_file_deletions().map_err(Error::from).and_then(|()| {
        let copied = copy_files(rocks, target);
        rocks.db.enable_file_deletions()?;
        copied
    });
    if copied.is_err() {
        // The error at hand says more than one about a failed removal.
        let _ = fs::remove_dir_all(target);
    }
    copied
}

fn copy_files(rocks: &Rocks, target: &Path) -> Result<()> {
    let source = &*rocks.path;
    let current = source.join("CURRENT");
    let manifest = try_io("read", &current, |path| fs::read_to_string(path))?;
    let manifest = manifest.trim_end();
    copy_file(&source.join(manifest), target)?;
    for directory in rocks.layout.directories().chain([source]) {
        for path in files(directory, is_table_file)? {
            link(&path, target)?;
        }
    }
    for path in files(source, |path| path.extension().is_some_and(|it| it == "log"))? {
        copy_file(&path, target)?;
    }
    let current = target.join("CURRENT");
    try_io("write", &current, |path| fs::write(path, format!("{manifest}\n")))?;
    try_io("sync", &current, |path| File::open(path)?.sync_all())?;
    try_io("sync", target, |path| File::open(path)?.sync_all())
}

/// Returns the files of a directory that are wanted, in the order of their numbers.
fn files(directory: &Path, is_wanted: fn(&Path) -> bool) -> Result<BTreeSet<PathBuf>> {
    try_io("list", directory, |directory| {
        let paths = fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.path()));
        let paths = paths.filter(|path| path.as_ref().map_or(true, |path| is_wanted(path)));
        paths.collect()
    })
}

/// Gives a file that never changes a second name, or copies it from another volume.
fn link(path: &Path, target: &Path) -> Result<()> {
    let Some(name) = path.file_name() else { return Ok(()) };
    match fs::hard_link(path, target.join(name)) {
        Err(error) if error.kind() == CrossesDevices => copy_file(path, target),
        linked => {
            linked.map_err(|source| Error::Io { context: "link", path: path.to_owned(), source })
        }
    }
}

/// Copies a file, as long as it is now: its end may be growing.
fn copy_file(path: &Path, target: &Path) -> Result<()> {
    let Some(name) = path.file_name() else { return Ok(()) };
    try_io("copy", path, |path| {
        let from = File::open(path)?;
        let bytes = from.metadata()?.len();
        let mut to = File::create_new(target.join(name))?;
        io::copy(&mut from.take(bytes), &mut to)?;
        to.sync_all()
    })
}

fn try_io<T>(
    context: &'static str,
    path: &Path,
    act: impl FnOnce(&Path) -> io::Result<T>,
) -> Result<T> {
    act(path).map_err(|source| Error::Io { context, path: path.to_owned(), source })
}
