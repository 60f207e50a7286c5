//! Memory limit of a process and its page cache, by a control group of version 2 or 1.

use anyhow::Context as _;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, id},
};

/// Mount points of the two versions, and their files for the limit and for the most that was used.
const VERSIONS: [(&str, &str, &str, &str); 2] = [
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes", "cgroup v1"),
    ("/sys/fs/cgroup", "memory.max", "memory.peak", "cgroup v2"),
];

/// A control group with a memory limit, which is gone with this value.
pub struct MemoryLimit {
    folder: PathBuf,
    peak: &'static str,
}

impl MemoryLimit {
    /// Makes a group with a limit in bytes. Pages of files that its processes read count too.
    ///
    /// # Errors
    /// If this machine does not let us: it takes root, and the memory controller.
    pub fn new(bytes: u64) -> anyhow::Result<Self> {
        let (root, limit, peak, _) = Self::version().context("no memory controller of cgroups")?;
        let folder = Path::new(root).join(format!("tandem-figures-{}", id()));
        fs::create_dir(&folder).with_context(|| format!("make {}", folder.display()))?;
        let group = Self { folder, peak };
        fs::write(group.folder.join(limit), bytes.to_string()).context("set the memory limit")?;
        Ok(group)
    }

    fn version() -> Option<(&'static str, &'static str, &'static str, &'static str)> {
        let has_memory = |root: &str, limit: &str| {
            let controllers = fs::read_to_string(Path::new(root).join("cgroup.subtree_control"));
            let is_v2 = controllers.is_ok_and(|list| list.contains("memory"));
            is_v2 || Path::new(root).join(limit).is_file()
        };
        VERSIONS.into_iter().find(|(root, limit, ..)| has_memory(root, limit))
    }

    /// Returns how a limit is set on this machine.
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
        let text = fs::read_to_string(self.folder.join(self.peak)).context(self.peak)?;
        Ok(text.trim().parse()?)
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        // It fails only while a process of the group is left.
        let _ = fs::remove_dir(&self.folder);
    }
}
