//! A bounded number of random blocks of Amsterdam, through geth and Tandem, where geth's `evm` is
//! installed. `TANDEM_DIFFERENTIAL_SEED` chooses other blocks, `./dev differential N` runs more.

#![allow(clippy::unwrap_used)]

use std::{env, thread};
use tandem_differential::{Options, find_evm, run};

/// Cases that continuous integration runs.
const CASES: u64 = 500;

#[test]
fn random_blocks_have_the_results_that_geth_computes() {
    let Some(evm) = find_evm(env::var_os("PATH").as_deref(), env::var_os("HOME").as_deref()) else {
        eprintln!("SKIPPED: evm is not installed, Tandem is not compared with geth");
        return;
    };
    let seed = env::var("TANDEM_DIFFERENTIAL_SEED").map_or(0, |seed| seed.parse().unwrap());
    let threads = thread::available_parallelism().map_or(2, usize::from);
    let options = Options { evm, seed, cases: CASES, threads, keep: None };
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
