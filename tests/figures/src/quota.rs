//! Shares of a processor for processes, by control groups of Linux (version 1 or 2).

use anyhow::{Context as _, bail};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Time in µs within which each process gets its share. Short, so that a payload of some
/// milliseconds is spread evenly.
const PERIOD_US: u64 = 5_000;

/// Control groups with one process each. They are removed at the end, when their processes have
/// ended.
pub struct Quota {
    groups: Vec<PathBuf>,
}

/// Version of the control groups.
enum Hierarchy {
    /// Version 1, the controller `cpu`.
    First,
    /// Version 2.
    Second,
}

impl Quota {
    /// Limits each process to this share of a processor.
    ///
    /// # Errors
    /// If there are no control groups for processors, or they cannot be made here.
    pub fn of_each(processes: &[u32], share: f64) -> anyhow::Result<Self> {
        let quota = (share * PERIOD_US as f64) as u64;
        Self::make(processes.iter().copied(), |group, hierarchy, _| match hierarchy {
            Hierarchy::First => {
                write(group, "cpu.cfs_period_us", PERIOD_US)?;
                write(group, "cpu.cfs_quota_us", quota)
            }
            Hierarchy::Second => write(group, "cpu.max", format!("{quota} {PERIOD_US}")),
        })
    }

    /// Gives each process its weight among those that want a busy processor, as containers have it: 1,024
    /// is that of a container for which nothing is said.
    ///
    /// # Errors
    /// As for [`Quota::of_each`].
    pub fn of_weights(processes: &[(u32, u64)]) -> anyhow::Result<Self> {
        let ids = processes.iter().map(|(process, _)| *process);
        Self::make(ids, |group, hierarchy, index| {
            let (_, weight) = processes[index];
            match hierarchy {
                Hierarchy::First => write(group, "cpu.shares", weight),
                // Version 2 has 100 where version 1 has 1,024.
                Hierarchy::Second => write(group, "cpu.weight", (weight * 100 / 1_024).max(1)),
            }
        })
    }

    /// Makes a group for each process. `set` gets it with the process's place in the list.
    fn make(
        processes: impl Iterator<Item = u32>,
        set: impl Fn(&Path, &Hierarchy, usize) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let (root, hierarchy) = root()?;
        let mut made = Self { groups: Vec::new() };
        for (index, process) in processes.enumerate() {
            let group = root.join(format!("tandem-figures-{process}"));
            fs::create_dir(&group).with_context(|| format!("make {}", group.display()))?;
            made.groups.push(group.clone());
            set(&group, &hierarchy, index)?;
            write(&group, "cgroup.procs", process)?;
        }
        Ok(made)
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        for group in &self.groups {
            // A group whose process has not ended stays.
            let _ = fs::remove_dir(group);
        }
    }
}

fn root() -> anyhow::Result<(PathBuf, Hierarchy)> {
    let (second, first) = (Path::new("/sys/fs/cgroup"), Path::new("/sys/fs/cgroup/cpu"));
    let controllers = fs::read_to_string(second.join("cgroup.controllers")).unwrap_or_default();
    if controllers.split_whitespace().any(|name| name == "cpu") {
        write(second, "cgroup.subtree_control", "+cpu")?;
        return Ok((second.to_owned(), Hierarchy::Second));
    }
    if first.join("cpu.cfs_quota_us").is_file() {
        return Ok((first.to_owned(), Hierarchy::First));
    }
    bail!("no control groups for processors in {}", second.display())
}

fn write(group: &Path, file: &str, value: impl ToString) -> anyhow::Result<()> {
    let path = group.join(file);
    fs::write(&path, value.to_string()).with_context(|| format!("write {}", path.display()))
}
