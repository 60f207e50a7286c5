//! Limits of a process by a control group of version 2 or 1: memory with the page cache, or reads of disks.

use anyhow::Context as _;
use std::{
    fs,
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

/// A control group with a limit, which is gone with this value.
pub struct Group {
    folder: PathBuf,
    /// File with the most memory that was used, if memory is limited.
    peak: Option<&'static str>,
}

impl Group {
    /// Makes a group with a limit in bytes. Pages of files that its processes read count too.
    ///
    /// # Errors
    /// If this machine does not let us: it takes root, and the memory controller.
    pub fn with_memory(bytes: u64) -> anyhow::Result<Self> {
        let (root, limit, peak, _) = Self::version().context("no memory controller of cgroups")?;
        let group = Self::make(root, Some(peak))?;
        fs::write(group.folder.join(limit), bytes.to_string()).context("set the memory limit")?;
        Ok(group)
    }

    /// Makes a group whose processes read each of these devices, such as `7:0`, so many times a second.
    ///
    /// # Errors
    /// As for [`Self::with_memory`], with the controller of block devices.
    pub fn with_reads(devices: &[String], reads: u64) -> anyhow::Result<Self> {
        let first = Path::new("/sys/fs/cgroup/blkio");
        let is_first = first.join("blkio.throttle.read_iops_device").is_file();
        let root = if is_first { first } else { Path::new("/sys/fs/cgroup") };
        let group = Self::make(root, None)?;
        for device in devices {
            let (file, line) = match is_first {
                true => ("blkio.throttle.read_iops_device", format!("{device} {reads}")),
                false => ("io.max", format!("{device} riops={reads}")),
            };
            fs::write(group.folder.join(file), line).context("set the limit of reads")?;
        }
        Ok(group)
    }

    fn make(root: impl AsRef<Path>, peak: Option<&'static str>) -> anyhow::Result<Self> {
        let number = GROUPS.fetch_add(1, Relaxed);
        let folder = root.as_ref().join(format!("tandem-figures-{}-{number}", id()));
        fs::create_dir(&folder).with_context(|| format!("make {}", folder.display()))?;
        Ok(Self { folder, peak })
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
        command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]);
        command.arg(self.folder.join("cgroup.procs")).arg(program);
        command
    }

    /// Returns the most memory that was used, in bytes.
    ///
    /// # Errors
    /// If the group does not say.
    pub fn peak_bytes(&self) -> anyhow::Result<u64> {
        let peak = self.peak.context("the group does not limit memory")?;
        let text = fs::read_to_string(self.folder.join(peak)).context(peak)?;
        Ok(text.trim().parse()?)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // It fails only while a process of the group is left.
        let _ = fs::remove_dir(&self.folder);
    }
}
