//! A disk that can be full, for tests: a tmpfs.
#![allow(clippy::unwrap_used)]

use std::{
    fs::{self, File},
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
    process::Command,
};

/// Bytes of the disk: RocksDB goes on only once a memtable of the largest kind (96 MiB) has room.
const DISK: u64 = 256 << 20;
/// Bytes that are taken from the beginning, so that RocksDB cannot set the room for its log aside: it
/// would have it still when the disk is full.
const BALLAST: u64 = 192 << 20;

/// A disk in memory, so small that a test can fill it.
#[derive(Debug)]
pub struct SmallDisk {
    at: PathBuf,
}

impl SmallDisk {
    /// Mounts one at a folder that is made. `None`, and a line that says so, where one may not.
    ///
    /// # Panics
    /// When the folder cannot be made or the disk not be written to.
    pub fn mount(at: &Path) -> Option<Self> {
        fs::create_dir_all(at).unwrap();
        let size = format!("size={DISK}");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(at)
            .output()
            .is_ok_and(|output| output.status.success());
        if !mounted {
            // Not by a macro, whose output the test harness would keep to itself.
            let line = b"skipped: a full disk, which takes the right to mount one\n";
            let _ = std::io::stderr().write_all(line);
            return None;
        }
        let disk = Self { at: at.to_owned() };
        assert!(write(&disk.at.join("ballast"), BALLAST), "the disk has room for that");
        Some(disk)
    }

    /// From now on nothing more fits.
    ///
    /// # Panics
    /// When there is room all the same.
    pub fn fill(&self) {
        assert!(!write(&self.at.join("rest"), DISK), "the disk is full before");
    }

    /// There is room again.
    ///
    /// # Panics
    /// When the disk was not filled.
    pub fn free(&self) {
        for file in ["ballast", "rest"] {
            fs::remove_file(self.at.join(file)).unwrap();
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Whoever still has a file open there keeps it.
        let _ = Command::new("umount").arg("--lazy").arg(&self.at).status();
    }
}

/// Writes so many bytes, or as many as fit; whether all did.
fn write(path: &Path, bytes: u64) -> bool {
    let mut file = File::create(path).unwrap();
    // Smaller pieces at the end: the last page is to be taken too.
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
