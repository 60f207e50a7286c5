//! Limits of a process by a control group of version 2 or 1: memory with the page cache, or reads of disks.

use anyhow::Context as _;
use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::{Command, id},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

/// Mount points of the two versions, and their files for the limit and for the most that was used.
const VERSIONS: [(&str, &str, &str, &str); 2] = [
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes", "cgroup v1"),
    ("/sys/fs/cgroup", "memory.max", "memory.peak", "cgroup v2"),
];

/// Groups that this process has made.
static GROUPS: AtomicU32 = AtomicU32::new(0);

/// Control groups of one node with its limits, which are gone with this value. Version 1 has one for each kind of
/// limit.
pub struct Group {
    folders: Vec<PathBuf>,
    /// File with the most memory that was used, if memory is limited.
    peak: Option<PathBuf>,
}

impl Group {
    /// Makes a group with a limit in bytes. Pages of files that its processes read count too.
    ///
    /// # Errors
    /// If this machine does not let us: it takes root, and the memory controller.
    pub fn with_memory(bytes: u64) -> anyhow::Result<Self> {
        let (root, limit, peak, _) = Self::version().context("no memory controller of cgroups")?;
        let folder = make(root)?;
        fs::write(folder.join(limit), bytes.to_string()).context("set the memory limit")?;
        let peak = Some(folder.join(peak));
        Ok(Self { folders: vec![folder], peak })
    }

    /// Makes a group whose processes read each of these devices, such as `7:0`, so many times a second.
    ///
    /// # Errors
    /// As for [`Self::with_memory`], with the controller of block devices.
    pub fn with_reads(devices: &[String], reads: u64) -> anyhow::Result<Self> {
        Self { folders: Vec::new(), peak: None }.and_reads(devices, reads)
    }

    /// Adds a limit of reads, as for [`Self::with_reads`].
    ///
    /// # Errors
    /// As for [`Self::with_reads`].
    pub fn and_reads(mut self, devices: &[String], reads: u64) -> anyhow::Result<Self> {
        let first = Path::new("/sys/fs/cgroup/blkio");
        let is_first = first.join("blkio.throttle.read_iops_device").is_file();
        if is_first {
            self.folders.push(make(first)?);
        } else if self.folders.is_empty() {
            self.folders.push(make("/sys/fs/cgroup")?);
        }
        let folder = self.folders.last().context("no group")?;
        for device in devices {
            let (file, line) = match is_first {
                true => ("blkio.throttle.read_iops_device", format!("{device} {reads}")),
                false => ("io.max", format!("{device} riops={reads}")),
            };
            fs::write(folder.join(file), line).context("set the limit of reads")?;
        }
        Ok(self)
    }

    fn version() -> Option<(&'static str, &'static str, &'static str, &'static str)> {
        let has_memory = |root: &str, limit: &str| {
            let controllers = fs::read_to_string(Path::new(root).join("cgroup.subtree_control"));
            let is_v2 = controllers.is_ok_and(|list| list.contains("memory"));
            is_v2 || Path::new(root).join(limit).is_file()
        };
        VERSIONS.into_iter().find(|(root, limit, ..)| has_memory(root, limit))
    }

    /// Returns how a memory limit is set on this machine.
    pub fn kind() -> &'static str {
        Self::version().map_or("no control group", |(.., name)| name)
    }

    /// Returns a command that starts a program in the group.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        let script = "while [ -d \"$1\" ]; do echo $$ > \"$1/cgroup.procs\" || exit 1; shift; done; \
                      exec \"$@\"";
        command.args(["-c", script, "sh"]).args(&self.folders).arg(program);
        command
    }

    /// Returns the most memory that was used, in bytes.
    ///
    /// # Errors
    /// If the group does not say.
    pub fn peak_bytes(&self) -> anyhow::Result<u64> {
        let peak = self.peak.as_ref().context("the group does not limit memory")?;
        let text = fs::read_to_string(peak).with_context(|| peak.display().to_string())?;
        Ok(text.trim().parse()?)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for folder in &self.folders {
            // It fails only while a process of the group is left.
            let _ = fs::remove_dir(folder);
        }
    }
}

fn make(root: impl AsRef<Path>) -> anyhow::Result<PathBuf> {
    let number = GROUPS.fetch_add(1, Relaxed);
    let folder = root.as_ref().join(format!("tandem-figures-{}-{number}", id()));
    fs::create_dir(&folder).with_context(|| format!("make {}", folder.display()))?;
    Ok(folder)
}

/// Returns the numbers of the disk that a folder lies on, as control groups name it.
///
/// # Errors
/// If it lies on none.
pub fn disk_of(folder: &Path) -> anyhow::Result<String> {
    let device = numbers(fs::metadata(folder)?.dev());
    let known = Path::new("/sys/dev/block").join(&device);
    // Limits are those of whole disks.
    let disk =
        if known.join("partition").is_file() { known.join("../dev") } else { known.join("dev") };
    let disk = fs::read_to_string(disk).with_context(|| format!("no disk has {device}"))?;
    Ok(disk.trim().to_owned())
}

/// Returns the numbers of a device, such as `7:0`. In makedev(3), the low bits of the minor number stand below those of
/// the major number.
pub fn numbers(device: u64) -> String {
    format!("{}:{}", device >> 8 & 0xfff, device & 0xff | device >> 12 & 0xfff00)
}
