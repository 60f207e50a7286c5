//! What the processes took of the machine, as the kernel counts it: processor time for each block, and
//! the most memory. Elsewhere than on Linux there is nothing to read.

use super::child::Child;
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

/// One tick of the times in `stat`: the kernel's interface has a hundred a second everywhere.
const TICK_MILLISECONDS: f64 = 10.0;

/// Ticks that processes had used at some moment, by process id.
#[derive(Default)]
pub struct Usage(BTreeMap<u32, u64>);

/// A process, as its files in `/proc` say.
struct Taken {
    ticks: u64,
    /// The most that was resident at once.
    peak_bytes: u64,
}

impl Usage {
    /// What they have used up to now.
    pub fn of(children: &[Child]) -> Self {
        let used = children.iter().filter_map(|child| {
            let pid = child.pid();
            Some((pid, taken(&folder(pid))?.ticks))
        });
        Self(used.collect())
    }

    /// What they have used since, shared out over so many blocks; empty where there was none. Of a
    /// process that was started again it is what the last one used.
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

/// `None` where there is no such process.
fn taken(folder: &Path) -> Option<Taken> {
    let stat = fs::read_to_string(folder.join("stat")).ok()?;
    // The name stands in parentheses and may hold any character; times of user and system are the
    // fields 14 and 15.
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
            // The second was started again: its id was not there before.
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
        // While a process is started again its id is 0.
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
