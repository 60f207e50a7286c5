//! Injects faults into a cluster while payloads flow: processes are killed and paused, connections
//! are reset, a worker lies, the disk is full, a node dies while it syncs. The chain goes on by
//! itself, no block that was answered VALID is lost, and no verdict is wrong.
//!
//! The long form, for the table in docs/cluster.md:
//!
//! ```text
//! cargo test --release --locked --workspace --test faults -- --ignored --nocapture
//! ```
//!
//! `TANDEM_ROUNDS` sets the number of rounds (20), `TANDEM_SEED` the moments.

#![allow(clippy::unwrap_used)]

mod liar;
mod replay;
mod table;
mod through_six;
mod through_snap;
mod through_sync;
mod through_wires;

use std::{path::Path, time::Duration};
use table::Table;
use tandem_bus_tests::NatsServer;
use tandem_chain::Fork;
use tandem_testkit::geth::is_installed;
use through_six::{Fault, Nats};
use tokio::sync::{Mutex, MutexGuard};

const SERVICES: [&str; 6] = [
    "storage-writer",
    "blob-validator",
    "peer-table",
    "multiproof-worker",
    "executor",
    "discovery",
];

/// Duration of a paused process, of an absent NATS and of a full disk, in the long form.
const PAUSE: Duration = Duration::from_secs(3);
/// Duration of these faults in the short form.
const SHORT_PAUSE: Duration = Duration::from_secs(1);

fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_tandem"))
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn seed() -> u64 {
    number("TANDEM_SEED", 30_007)
}

/// Ensures one cluster at a time: another one beside it would be a fault of its own.
async fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::const_new(());
    ALONE.lock().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_lives_through_the_death_and_the_pause_of_each_service() {
    let _alone = alone().await;
    let mut faults: Vec<_> = SERVICES.into_iter().map(Fault::Kill).collect();
    faults.extend(["storage-writer", "multiproof-worker", "executor"].map(Fault::Pause));
    faults.push(Fault::KillNats);
    let mut table = Table::default();
    let nats = NatsServer::start().map_or(Nats::None, Nats::Runs);
    through_six::run(seed(), nats, &faults, SHORT_PAUSE, &mut table).await;
    eprintln!("{table}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_whose_nats_never_comes_lives_through_the_death_of_those_on_the_way() {
    let _alone = alone().await;
    let Some(nats) = NatsServer::stopped() else { return };
    let mut table = Table::default();
    let faults = ["storage-writer", "multiproof-worker", "executor"].map(Fault::Kill);
    through_six::run(seed(), Nats::NeverComes(nats), &faults, SHORT_PAUSE, &mut table).await;
    eprintln!("{table}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_executor_lives_through_resets_of_its_connections_and_a_full_disk() {
    let _alone = alone().await;
    let mut table = Table::default();
    through_wires::run(seed(), SHORT_PAUSE, &mut table).await;
    eprintln!("{table}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_syncs_lives_through_its_own_death_and_that_of_peers() {
    if !is_installed() {
        return;
    }
    let _alone = alone().await;
    let mut table = Table::default();
    through_sync::run(seed(), 2, &mut table).await;
    eprintln!("{table}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_downloads_a_state_lives_through_its_own_death_and_that_of_peers() {
    if !is_installed() {
        return;
    }
    let _alone = alone().await;
    let mut table = Table::default();
    let moves = through_snap::run(seed(), Fork::Amsterdam, &mut table).await;
    eprintln!("{moves} pivots were left\n{table}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_lies_makes_no_block_invalid() {
    let _alone = alone().await;
    let mut table = Table::default();
    assert_eq!(liar::run(seed(), 2, &mut table).await, 2);
    eprintln!("{table}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_built_beside_a_worker_that_lies_is_valid() {
    let _alone = alone().await;
    liar::build(seed()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes"]
async fn all_faults_of_sync_at_least_twenty_times() {
    if !is_installed() {
        return;
    }
    let _alone = alone().await;
    let mut table = Table::default();
    let rounds = number("TANDEM_ROUNDS", 20);
    through_sync::run(seed(), rounds.try_into().unwrap(), &mut table).await;
    eprintln!("{table}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes"]
async fn all_faults_of_the_download_of_a_state_at_least_twenty_times() {
    if !is_installed() {
        return;
    }
    let _alone = alone().await;
    for fork in [Fork::Osaka, Fork::Amsterdam] {
        let (mut table, mut moves) = (Table::default(), 0);
        for round in 0..number("TANDEM_ROUNDS", 20) {
            moves += through_snap::run(seed() + round, fork, &mut table).await;
        }
        assert!(moves > 0, "no pivot was left for a newer one");
        eprintln!("{fork:?}: {moves} pivots were left\n{table}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes the better part of an hour"]
async fn all_faults_at_least_twenty_times() {
    let _alone = alone().await;
    let (seed, rounds) = (seed(), number("TANDEM_ROUNDS", 20));
    let mut faults: Vec<_> = SERVICES.into_iter().map(Fault::Kill).collect();
    faults.extend(SERVICES.map(Fault::Pause));
    faults.push(Fault::KillNats);
    let deaths = SERVICES.map(Fault::Kill);
    let (mut table, mut lies) = (Table::default(), 0);
    for round in 0..rounds {
        let seed = seed + round;
        let nats = NatsServer::start().map_or(Nats::None, Nats::Runs);
        through_six::run(seed, nats, &faults, PAUSE, &mut table).await;
        if let Some(nats) = NatsServer::stopped() {
            through_six::run(seed, Nats::NeverComes(nats), &deaths, PAUSE, &mut table).await;
        }
        through_wires::run(seed, PAUSE, &mut table).await;
        if lies < rounds {
            lies += liar::run(seed, rounds - lies, &mut table).await;
        }
        // Printed after each round, so that an interrupted run has a result too.
        eprintln!("after {} rounds from seed {}\n{table}", round + 1, seed - round);
    }
}
