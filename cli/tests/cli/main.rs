//! Tests of the `tandem` binary, a module for each subject: `cargo test --test cli standby::` runs
//! one. They share one test binary, because every binary links all services. `faults` and `scaling`
//! need the machine for themselves, so they have their own.

#![allow(clippy::unwrap_used, missing_docs)]

mod before_start;
mod bloat;
mod crash;
mod deploy;
mod devnet;
mod discovery;
mod failover;
mod follower;
mod full_disk;
mod geth_suites;
mod history;
mod hostile;
mod lab;
mod lease;
mod neighbour;
mod peers;
mod pool_kills;
mod profile;
mod promote;
mod sessions;
mod six_processes;
mod snapshot;
mod split_brain;
mod standby;
mod stop;
mod storage_writers;
mod top;
mod traces;
mod tx_executors;
mod tx_pool;

use std::path::Path;

fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_tandem"))
}
