//! Cost of a large input that repeats one small piece: heap within the target's bound, and time
//! proportional to length. Arguments that are not flags choose targets by name.

#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, reason = "a program of its own")]

use std::{
    fs::{self, DirEntry},
    io,
    process::ExitCode,
    sync::LazyLock,
    time::{Duration, Instant},
};
use tandem_fuzz::{Target, patterns, run, targets};

/// Bytes of the longer input; the shorter one has an eighth.
const LEN: usize = 1 << 20;

/// Largest factor of the time for eight times the length. A factor of 64 would be quadratic, and
/// the difference allows for busy machines.
const TIMES_MAX: u32 = 32;

/// Shortest time that counts: machines are busy.
const TIME_MIN: Duration = Duration::from_millis(200);

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        println!("growth: test");
        return ExitCode::SUCCESS;
    }
    run::report_panics();
    let names: Vec<_> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let mut good = true;
    for pattern in patterns::all() {
        if !names.is_empty() && !names.iter().any(|name| pattern.target.contains(name.as_str())) {
            continue;
        }
        let target = targets::by_name(pattern.target).unwrap();
        good &= check(&target, &pattern);
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn check(target: &Target, pattern: &patterns::Pattern) -> bool {
    let (short, long) = (pattern.input(LEN / 8), pattern.input(LEN));
    let (_, short_heap) = cost(target, &short);
    let (outcome, long_heap) = cost(target, &long);
    // The cost of the target's own checks counts too: it must not be quadratic either.
    let (short_time, long_time) = (usual(target, &short), usual(target, &long));
    let mut faults = Vec::from_iter(outcome);
    if long_time > TIME_MIN && long_time > short_time * TIMES_MAX {
        faults.push("time grows faster than the input".to_owned());
    }
    println!(
        "{:<14} {:<32} heap {:>6.2} per byte, {:>8.2} ms for {} KiB  {}",
        target.name,
        pattern.name,
        (long_heap as f64 - short_heap as f64) / (long.len() - short.len()).max(1) as f64,
        long_time.as_secs_f64() * 1e3,
        long.len() >> 10,
        if faults.is_empty() { "ok".to_owned() } else { faults.join("; ") },
    );
    faults.is_empty()
}

/// Returns the fault, if any, and the peak of the heap in bytes.
fn cost(target: &Target, input: &[u8]) -> (Option<String>, usize) {
    let outcome = run::run(target, input).err();
    (outcome, tandem_fuzz::heap::largest())
}

fn usual(target: &Target, input: &[u8]) -> Duration {
    let time = || {
        let before = processor_time();
        let _ = run::run(target, input);
        processor_time().saturating_sub(before)
    };
    // The median: a thread that ends takes its time out of the sum, so one value may be too small.
    let mut times = [time(), time(), time()];
    times.sort_unstable();
    times[1]
}

/// Returns the processor time of all threads of this process, or the clock's time if the kernel
/// does not report it.
fn processor_time() -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let of_task = |task: io::Result<DirEntry>| {
        let text = fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    };
    match fs::read_dir("/proc/self/task") {
        Ok(tasks) => Duration::from_nanos(tasks.filter_map(of_task).sum()),
        Err(_) => START.elapsed(),
    }
}
