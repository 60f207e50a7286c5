//! Reads the cost of processes from `/proc`. Systems other than Linux have nothing to read.

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

/// Returns the peak resident memory of a process, in bytes.
pub fn process_memory_peak_bytes(pid: u32) -> Option<u64> {
    parse_peak(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
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
        let process = "42 (a) b) S 1 42 42 0 -1 4194560 9 0 0 0 150 50 0 0 20 0 3 0 100 0 0";
        assert_eq!(parse_process(process), Some(2.0));
        assert_eq!(parse_process("42 (a) S 1"), None);
        assert_eq!(parse_peak("VmPeak:\t 9 kB\nVmHWM:\t    12 kB\n"), Some(12_288));
        assert_eq!(parse_peak("VmPeak:\t 9 kB\n"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_and_this_machine_have_used_something() {
        let own = std::process::id();
        assert!(process_memory_peak_bytes(own).is_some_and(|bytes| bytes > 100_000));
        let (machine, process) = (machine_cpu_seconds(), process_cpu_seconds(own));
        assert!(machine.zip(process).is_some_and(|(machine, process)| machine > process));
        assert_eq!(process_cpu_seconds(u32::MAX), None);
    }
}
