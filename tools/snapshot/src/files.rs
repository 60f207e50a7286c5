//! Names of a database's files, and the lock of a data directory.

use anyhow::{Context, bail};
use std::{
    fs::{File, TryLockError},
    path::Path,
};
use tandem_storage_writer::MARK_FILE;

/// Locks a data directory until the file is dropped, so that one process at a time makes or restores a
/// snapshot there. A node takes no notice.
///
/// # Errors
/// When the directory is missing, or another process has the lock.
pub fn lock_directory(datadir: &Path) -> anyhow::Result<File> {
    let context = || format!("lock {}", datadir.display());
    let lock = File::open(datadir).with_context(context)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => {
            bail!("another process makes or restores a snapshot in {}", datadir.display())
        }
        Err(TryLockError::Error(error)) => Err(error).with_context(context),
    }
}

/// Returns whether a name is one that a file of a database has: `CURRENT`, `MANIFEST-N`, `OPTIONS-N`,
/// `N.sst`, `N.blob`, `N.log`, or the record of the acknowledged writes. No such name leads out of its
/// folder.
#[must_use]
pub fn is_database_file(name: &str) -> bool {
    let is_number = |text: &str| {
        (1..=20).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    if name == "CURRENT" || name == MARK_FILE {
        return true;
    }
    if let Some(number) = ["MANIFEST-", "OPTIONS-"].iter().find_map(|it| name.strip_prefix(it)) {
        return is_number(number);
    }
    let stem = [".sst", ".blob", ".log"].iter().find_map(|it| name.strip_suffix(it));
    stem.is_some_and(is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_a_database_are_taken() {
        let good =
            ["CURRENT", "MANIFEST-000012", "OPTIONS-000007", "000123.sst", "1.blob", "9.log"];
        assert!(good.into_iter().chain([MARK_FILE]).all(is_database_file));
        let long = format!("{}.sst", "1".repeat(21));
        let bad = [
            "",
            ".",
            "..",
            "../CURRENT",
            "/etc/passwd",
            "a/000001.sst",
            "000001.sst/..",
            ".sst",
            "0x1.sst",
            "1.SST",
            "MANIFEST-",
            "MANIFEST-1/../../x",
            "LOCK",
            "LOG",
            "IDENTITY",
            "current",
            "1.sst\0",
            "１.sst",
            &long,
        ];
        assert_eq!(bad.into_iter().find(|name| is_database_file(name)), None);
    }
}
