//! A disk that can fill up, for tests: a tmpfs.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::{
    fs::{self, File},
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
    process::Command,
};

/// Size of the disk in bytes: RocksDB resumes only once a memtable of the largest size (96 MiB) has
/// room.
const DISK: u64 = 256 << 20;
/// Bytes taken from the beginning, so that RocksDB cannot preallocate the space for its log. It
/// would still have that space when the disk is full.
const BALLAST: u64 = 192 << 20;

/// A disk in memory, small enough for a test to fill it.
#[derive(Debug)]
pub struct SmallDisk {
    at: PathBuf,
}

impl SmallDisk {
    /// Mounts a disk at a folder, which is created. Returns `None`, and prints a line that says so,
    /// without the right to mount.
    ///
    /// # Panics
    /// If the folder cannot be created or the disk cannot be written to.
    pub fn mount(at: &Path) -> Option<Self> {
        fs::create_dir_all(at).unwrap();
        let size = format!("size={DISK}");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(at)
            .output()
            .is_ok_and(|output| output.status.success());
        if !mounted {
            // Not by a macro: the test harness would capture its output.
            let line = b"skipped: a full disk, which takes the right to mount one\n";
            let _ = std::io::stderr().write_all(line);
            return None;
        }
        let disk = Self { at: at.to_owned() };
        assert!(write(&disk.at.join("ballast"), BALLAST), "the disk has room for that");
        Some(disk)
    }

    /// Fills the disk: no further byte fits.
    ///
    /// # Panics
    /// If there is still room.
    pub fn fill(&self) {
        assert!(!write(&self.at.join("rest"), DISK), "the disk is full before");
    }

    /// Makes room again.
    ///
    /// # Panics
    /// If the disk was not filled.
    pub fn free(&self) {
        for file in ["ballast", "rest"] {
            fs::remove_file(self.at.join(file)).unwrap();
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A process that still has a file open there keeps it.
        let _ = Command::new("umount").arg("--lazy").arg(&self.at).status();
    }
}

/// Writes `bytes` bytes, or as many as fit. Returns whether all of them fit.
fn write(path: &Path, bytes: u64) -> bool {
    let mut file = File::create(path).unwrap();
    // Smaller pieces at the end, to fill the last page too.
    for piece in [1 << 20, 1 << 12, 1] {
        let zeros = vec![0; piece];
        while file.metadata().unwrap().len() < bytes {
            match file.write_all(&zeros) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => break,
                Err(error) => panic!("{}: {error}", path.display()),
            }
        }
    }
    file.metadata().unwrap().len() >= bytes
}
