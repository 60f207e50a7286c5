//! A bounded number of random blocks of Amsterdam, through geth and Tandem, where geth's `evm` is
//! installed. `TANDEM_DIFFERENTIAL_SEED` chooses other blocks, `./dev differential N` runs more.

#![allow(clippy::unwrap_used)]

use alloy_primitives::B256;
use serde_json::Value;
use std::{env, path::PathBuf, thread};
use tandem_differential::{Case, Evm, Options, Oracle, find_program, geth_input, run};

/// Cases that continuous integration runs.
const CASES: u64 = 200;

fn find(program: &str) -> Option<PathBuf> {
    find_program(program, env::var_os("PATH").as_deref(), env::var_os("HOME").as_deref())
}

#[test]
fn random_blocks_have_the_results_that_geth_computes() {
    let Some(evm) = find("evm") else {
        eprintln!("SKIPPED: evm is not installed, Tandem is not compared with geth");
        return;
    };
    let seed = env::var("TANDEM_DIFFERENTIAL_SEED").map_or(0, |seed| seed.parse().unwrap());
    let threads = thread::available_parallelism().map_or(2, usize::from);
    let options = Options { evm: Evm::Process(evm), seed, cases: CASES, threads, keep: None };
    let summary = run(&options, |_| {}).unwrap();
    assert!(summary.disagreements.is_empty(), "{:#?}", summary.disagreements);
    assert_eq!(summary.cases, CASES);
    // The blocks have in them what the comparison is for.
    assert!(summary.included > 2 * CASES, "{summary:?}");
    assert!(summary.succeeded > CASES && summary.succeeded < summary.included, "{summary:?}");
    assert_eq!(
        summary.requests.keys().copied().collect::<Vec<_>>(),
        [0, 1, 2, 3, 4],
        "{summary:?}"
    );
    assert!(summary.rejected.len() > 5, "{summary:?}");
}

/// Cases that both ways to geth execute.
const BOTH: u64 = 60;

#[test]
fn the_server_answers_as_a_process_of_evm_does() {
    let (Some(evm), Some(server)) = (find("evm"), find("t8n-server")) else {
        eprintln!("SKIPPED: evm or t8n-server is not installed (./dev differential makes both)");
        return;
    };
    let mut process = Oracle::start(&Evm::Process(evm)).unwrap();
    let mut server = Oracle::start(&Evm::Server(server)).unwrap();
    let input = |number| geth_input(&Case::new(number), B256::repeat_byte(7));
    for number in 0..BOTH {
        let [one, other] = [&mut process, &mut server].map(|oracle| {
            let answer = oracle.transition(&input(number)).unwrap();
            format!("{answer:?}")
        });
        assert_eq!(one, other, "case {number}");
    }
    // A block that cannot be executed is an error of both. It does not end the server.
    let mut broken = input(0);
    broken["env"]["withdrawals"] = Value::Null;
    for oracle in [&mut process, &mut server] {
        let error = oracle.transition(&broken).unwrap_err().to_string();
        assert!(error.contains("missing 'withdrawals'"), "{error}");
        oracle.transition(&input(0)).unwrap();
    }
}
