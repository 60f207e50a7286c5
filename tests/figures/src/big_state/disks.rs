//! Disks with few reads a second, which are files on this machine's own disk (loop(4)).

use super::limit::numbers;
use anyhow::{Context as _, ensure};
use std::{
    ffi::OsStr,
    fs::{self, File},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::Command,
};

/// A block device with a file system of its own. It is gone with this value.
pub struct Disk {
    device: PathBuf,
    mount: PathBuf,
}

impl Disk {
    /// Makes a disk of so many bytes, whose file lies in a folder.
    ///
    /// # Errors
    /// If this machine does not let us: it takes root, `losetup` and `mkfs.ext4`.
    pub fn new(folder: &Path, number: usize, bytes: u64) -> anyhow::Result<Self> {
        let (file, mount) =
            (folder.join(format!("disk-{number}.img")), folder.join(format!("disk-{number}")));
        File::create(&file)?.set_len(bytes)?;
        fs::create_dir(&mount)?;
        run("mkfs.ext4", [OsStr::new("-q"), file.as_ref()])?;
        let device = run("losetup", [OsStr::new("--find"), OsStr::new("--show"), file.as_ref()])?;
        let disk = Self { device: PathBuf::from(device.trim()), mount };
        run("mount", [disk.device.as_os_str(), disk.mount.as_os_str()])?;
        Ok(disk)
    }

    /// Returns a folder on the disk for the files of a database, without those of the one before.
    ///
    /// # Errors
    /// If they cannot be removed.
    pub fn empty_folder(&self) -> anyhow::Result<PathBuf> {
        let folder = self.mount.join("state");
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        Ok(folder)
    }

    /// Returns the numbers of the device as control groups name it, such as `7:0`.
    ///
    /// # Errors
    /// If the device is gone.
    pub fn numbers(&self) -> anyhow::Result<String> {
        Ok(numbers(fs::metadata(&self.device)?.rdev()))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // The operator, who is root, can undo what this cannot.
        let _ = run("umount", [self.mount.as_os_str()]);
        let _ = run("losetup", [OsStr::new("--detach"), self.device.as_os_str()]);
    }
}

fn run<'a>(
    program: &str,
    arguments: impl IntoIterator<Item = &'a OsStr>,
) -> anyhow::Result<String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.with_context(|| format!("start {program}"))?;
    ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
