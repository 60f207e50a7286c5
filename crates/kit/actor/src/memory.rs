//! Memory that this process may use, by which defaults of caches are chosen.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
};

/// Folders of the memory controller's groups in version 2 and 1, and their files with the limit.
const LIMITS: [(&str, &str); 2] =
    [("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")];

static LIMIT: LazyLock<u64> = LazyLock::new(|| {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let limits = LIMITS.iter().flat_map(|(root, file)| {
        folders(root.as_ref(), &groups).into_iter().map(move |folder| folder.join(file))
    });
    let limits = limits.filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok());
    limits.chain(total(&memory)).min().unwrap_or(u64::MAX)
});

/// Returns a default in bytes, or a part of the memory that this process may use if that is less: of the machine's, or of
/// the limit of its control groups (cgroups(7)).
pub fn at_most_of_memory(bytes: u64, part: u64) -> u64 {
    bytes.min(*LIMIT / part)
}

/// Returns the folders of the groups of a process, from its own to the outermost. `groups` is its `/proc/self/cgroup`. In a
/// container, the paths there may be those outside, so only the outermost exists.
fn folders(root: &Path, groups: &str) -> Vec<PathBuf> {
    let is_first = root.ends_with("memory");
    let path = groups.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let is_meant = match is_first {
            true => controllers.split(',').any(|name| name == "memory"),
            false => controllers.is_empty(),
        };
        is_meant.then_some(path)
    });
    let path = Path::new(path.unwrap_or("/"));
    path.ancestors().map(|above| root.join(above.strip_prefix("/").unwrap_or(above))).collect()
}

/// Returns the machine's memory in bytes, by its `/proc/meminfo`.
fn total(memory: &str) -> Option<u64> {
    let line = memory.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_looked_up_from_the_own_one_to_the_outermost() {
        let second = folders("/sys/fs/cgroup".as_ref(), "1:name=systemd:/x\n0::/a/b\n");
        assert_eq!(
            second,
            ["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup/"].map(PathBuf::from)
        );
        let groups = "5:cpu,memory:/pod\n0::/\n";
        let first = folders("/sys/fs/cgroup/memory".as_ref(), groups);
        assert_eq!(
            first,
            ["/sys/fs/cgroup/memory/pod", "/sys/fs/cgroup/memory/"].map(PathBuf::from)
        );
        assert_eq!(folders("/sys/fs/cgroup/memory".as_ref(), "0::/a\n").len(), 1);
    }

    #[test]
    fn the_machines_memory_is_the_most() {
        assert_eq!(total("MemFree: 1 kB\nMemTotal:       24689196 kB\n"), Some(24_689_196 << 10));
        assert_eq!((total(""), total("MemTotal: many kB")), (None, None));
        assert_eq!(at_most_of_memory(1, 8), 1);
        assert!(at_most_of_memory(u64::MAX, 8) < u64::MAX / 8 || cfg!(not(target_os = "linux")));
    }
}
