//! The bounded run: every seed and every committed input, then a fixed number of mutations of them
//! from a fixed seed, target after target. Arguments that are not flags choose targets by name.

#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, reason = "a program of its own")]

use std::{process::ExitCode, time::Instant};
use tandem_fuzz::{
    Target, corpus,
    mutate::{Random, mutate},
    run, targets,
};

/// Seed of every run, so that all runs have the same inputs.
const SEED: u64 = 20_261_120;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        targets::ALL.iter().for_each(|target| println!("{}: test", target.name));
        return ExitCode::SUCCESS;
    }
    run::report_panics();
    let chosen = |target: &&Target| {
        let mut names = arguments.iter().filter(|argument| !argument.starts_with('-')).peekable();
        names.peek().is_none() || names.any(|name| target.name.contains(name.as_str()))
    };
    let mut failed = 0;
    for target in targets::ALL.iter().filter(chosen) {
        failed += usize::from(!check(target));
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs one target and prints the result.
fn check(target: &Target) -> bool {
    let started = Instant::now();
    let mut inputs = (target.seeds)();
    assert!(!inputs.is_empty(), "{}: mutations start from something", target.name);
    let seeds = inputs.len();
    inputs.extend(corpus::load(target).unwrap().into_iter().map(|(_, input)| input));
    inputs.push(Vec::new());
    // One-time initialisation (threads, tables) happens now.
    (target.run)(&inputs[0]);
    let mut random = Random::new(SEED);
    let (mut good, mut heap, mut runs) = (true, 0, 0_u32);
    let mut run_one = |input: &[u8]| match run::run(target, input) {
        Ok(ran) => heap = heap.max(ran.constant),
        Err(reason) => {
            if good {
                println!("{}: {reason}", target.name);
                run::keep(target.name, input);
            }
            good = false;
        }
    };
    for input in &inputs {
        run_one(input);
        runs += 1;
    }
    let mutations = mutations(target);
    for _ in 0..mutations {
        run_one(&mutate(target, &inputs, &mut random));
        runs += 1;
    }
    println!(
        "{:<14} {} {seeds:>3} seeds {:>4} corpus {runs:>7} runs {:>6.2} s, heap {}×input + {heap}",
        target.name,
        if good { "ok    " } else { "FAILED" },
        inputs.len() - seeds - 1,
        started.elapsed().as_secs_f64(),
        target.bytes_per_byte,
    );
    good
}

/// Returns the number of mutations; `TANDEM_FULL=1` multiplies it by a hundred.
fn mutations(target: &Target) -> u32 {
    let full = std::env::var("TANDEM_FULL").is_ok_and(|value| value == "1");
    if full { target.mutations.saturating_mul(100) } else { target.mutations }
}
