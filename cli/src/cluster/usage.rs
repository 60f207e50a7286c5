//! Measures what the processes use, as the kernel counts it: processor time for each block, and
//! peak memory. Systems other than Linux have nothing to read.

use super::child::Child;
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

/// Length of a tick of the times in `stat`: the kernel's interface has a hundred a second
/// everywhere.
const TICK_MILLISECONDS: f64 = 10.0;

/// Ticks that processes had used at some moment, by process id.
#[derive(Default)]
pub struct Usage(BTreeMap<u32, u64>);

/// Usage of a process, from its files in `/proc`.
struct Taken {
    ticks: u64,
    /// Largest resident memory.
    peak_bytes: u64,
}

impl Usage {
    /// Reads what the processes have used up to now.
    pub fn of(children: &[Child]) -> Self {
        let used = children.iter().filter_map(|child| {
            let pid = child.pid();
            Some((pid, taken(&folder(pid))?.ticks))
        });
        Self(used.collect())
    }

    /// Returns a table of the usage since then, divided by this many blocks; empty if there were
    /// none. For a restarted process, only the usage of its last run counts.
    pub fn table(&self, children: &[Child], blocks: f64) -> String {
        let rows = children.iter().filter_map(|child| {
            let pid = child.pid();
            Some((child.role.name.as_str(), pid, taken(&folder(pid))?))
        });
        self.text(rows, blocks)
    }

    fn text<'a>(&self, rows: impl Iterator<Item = (&'a str, u32, Taken)>, blocks: f64) -> String {
        if blocks == 0.0 {
            return String::new();
        }
        let mut text = format!("{:<20} {:>14} {:>14}\n", "process", "CPU ms a block", "most MiB");
        for (name, pid, Taken { ticks, peak_bytes }) in rows {
            let before = self.0.get(&pid).copied().unwrap_or(0);
            let milliseconds = ticks.saturating_sub(before) as f64 * TICK_MILLISECONDS;
            let mebibytes = peak_bytes as f64 / f64::from(1 << 20);
            let _ = writeln!(text, "{name:<20} {:>14.1} {mebibytes:>14.0}", milliseconds / blocks);
        }
        let _ = writeln!(text, "since all were ready, rests between blocks included");
        text
    }
}

fn folder(pid: u32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}

/// Reads the usage from a folder of `/proc`; `None` if there is no such process.
fn taken(folder: &Path) -> Option<Taken> {
    let stat = fs::read_to_string(folder.join("stat")).ok()?;
    // The name is in parentheses and may hold any character. Fields 14 and 15 are the times of user
    // and system.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut times = fields.split(' ').skip(11).map(str::parse::<u64>);
    let ticks = times.next()?.ok()? + times.next()?.ok()?;
    let status = fs::read_to_string(folder.join("status")).ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = peak.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Taken { ticks, peak_bytes: kibibytes * 1024 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_since_is_shared_out_over_the_blocks() {
        let before = Usage([(7, 100)].into());
        let rows = || {
            let taken = |ticks, peak_bytes| Taken { ticks, peak_bytes };
            // The second process was restarted: its id was not there before.
            [("executor", 7, taken(340, 300 << 20)), ("peer-table", 9, taken(6, 1 << 20))]
                .into_iter()
        };
        let text = before.text(rows(), 20.0);
        let lines: Vec<Vec<_>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["executor", "120.0", "300"]);
        assert_eq!(lines[2], ["peer-table", "3.0", "1"]);
        assert_eq!(before.text(rows(), 0.0), "", "without blocks there is nothing to share out");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_process_that_runs_has_memory_and_one_that_does_not_has_nothing() {
        let own = taken(&folder(std::process::id())).expect("this process");
        assert!(own.peak_bytes > 1 << 20, "{} bytes", own.peak_bytes);
        // The id of a process is 0 while it is restarted.
        assert!(taken(&folder(0)).is_none());
    }

    #[test]
    fn a_name_with_spaces_and_parentheses_shifts_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let stat = "7 (a) S (b c) S 1 7 7 0 -1 4194560 100 0 0 0 31 11 0 0 20 0 9\n";
        fs::write(folder.path().join("stat"), stat).unwrap();
        fs::write(folder.path().join("status"), "Name:\ta\nVmHWM:\t    2048 kB\n").unwrap();
        let taken = taken(folder.path()).unwrap();
        assert_eq!((taken.ticks, taken.peak_bytes), (42, 2 << 20));
    }
}
