//! Reads the cost of processes from `/proc`. Systems other than Linux have nothing to read.

use serde::{Deserialize, Serialize};
use std::fs;

/// Clock ticks per second in `/proc`: the kernel's interface has long had 100 on every machine.
const TICKS_PER_SECOND: f64 = 100.0;

/// Returns the CPU seconds that the machine has spent since it started, over all cores. Time that a
/// hypervisor took away counts too, because it was not ours.
pub fn machine_cpu_seconds() -> Option<f64> {
    parse_machine(&fs::read_to_string("/proc/stat").ok()?)
}

fn parse_machine(text: &str) -> Option<f64> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<f64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal; user includes guests.
    let busy = [0, 1, 2, 5, 6, 7].iter().filter_map(|field| ticks.get(*field));
    (ticks.len() >= 4).then(|| busy.sum::<f64>() / TICKS_PER_SECOND)
}

/// Returns the CPU seconds of a process, over all its threads, including ended ones.
pub fn process_cpu_seconds(pid: u32) -> Option<f64> {
    parse_process(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse_process(text: &str) -> Option<f64> {
    // The name in parentheses may itself hold spaces and parentheses.
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some((user + system) / TICKS_PER_SECOND)
}

/// Resources that a process has used since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU seconds of all threads, including ended ones.
    pub cpu_seconds: f64,
    /// Switches of the threads that run now: a thread waited, or had to give way.
    pub context_switches: u64,
    /// Page faults without reading, of all threads.
    pub minor_faults: u64,
    /// Page faults that read from a disk, of all threads.
    pub major_faults: u64,
    /// Peak resident memory, in bytes.
    pub memory_peak_bytes: u64,
}

impl Usage {
    /// Returns the usage since an earlier time, and the peak until now.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            cpu_seconds: self.cpu_seconds - earlier.cpu_seconds,
            context_switches: self.context_switches.saturating_sub(earlier.context_switches),
            minor_faults: self.minor_faults.saturating_sub(earlier.minor_faults),
            major_faults: self.major_faults.saturating_sub(earlier.major_faults),
            memory_peak_bytes: self.memory_peak_bytes,
        }
    }

    /// Adds the usage of another round.
    pub fn add(self, other: Self) -> Self {
        Self {
            cpu_seconds: self.cpu_seconds + other.cpu_seconds,
            context_switches: self.context_switches + other.context_switches,
            minor_faults: self.minor_faults + other.minor_faults,
            major_faults: self.major_faults + other.major_faults,
            memory_peak_bytes: self.memory_peak_bytes.max(other.memory_peak_bytes),
        }
    }
}

/// Returns what a process has used.
pub fn process_usage(pid: u32) -> Option<Usage> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (minor_faults, major_faults) = parse_faults(&stat)?;
    let mut context_switches = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        // A thread may end meanwhile.
        let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        context_switches += parse_switches(&status);
    }
    Some(Usage {
        cpu_seconds: parse_process(&stat)?,
        context_switches,
        minor_faults,
        major_faults,
        memory_peak_bytes: parse_peak(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)?,
    })
}

fn parse_faults(text: &str) -> Option<(u64, u64)> {
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(7);
    let minor = fields.next()?.parse().ok()?;
    Some((minor, fields.nth(1)?.parse().ok()?))
}

fn parse_switches(text: &str) -> u64 {
    let counts = text.lines().filter_map(|line| line.split_once("ctxt_switches:"));
    counts.filter_map(|(_, count)| count.trim().parse::<u64>().ok()).sum()
}

fn parse_peak(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lines_are_understood() {
        let stat = "cpu  100 20 30 4000 500 6 7 8 90 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(parse_machine(stat), Some(1.71));
        assert_eq!(parse_machine("cpu  100 20"), None);
        let process = "42 (a) b) S 1 42 42 0 -1 4194560 9 0 3 0 150 50 0 0 20 0 3 0 100 0 0";
        assert_eq!(parse_process(process), Some(2.0));
        assert_eq!(parse_process("42 (a) S 1"), None);
        assert_eq!(parse_faults(process), Some((9, 3)));
        assert_eq!(parse_faults("42 (a) S 1"), None);
        let status = "voluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t5\n";
        assert_eq!((parse_switches(status), parse_switches("")), (12, 0));
        assert_eq!(parse_peak("VmPeak:\t 9 kB\nVmHWM:\t    12 kB\n"), Some(12_288));
        assert_eq!(parse_peak("VmPeak:\t 9 kB\n"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_and_this_machine_have_used_something() {
        let own = std::process::id();
        let usage = process_usage(own).unwrap();
        assert!(usage.memory_peak_bytes > 100_000 && usage.minor_faults > 0, "{usage:?}");
        assert_eq!(usage.since(usage).cpu_seconds, 0.0);
        assert_eq!(usage.add(usage).minor_faults, 2 * usage.minor_faults);
        assert_eq!(process_usage(u32::MAX), None);
        let (machine, process) = (machine_cpu_seconds(), process_cpu_seconds(own));
        assert!(machine.zip(process).is_some_and(|(machine, process)| machine > process));
        assert_eq!(process_cpu_seconds(u32::MAX), None);
    }
}
