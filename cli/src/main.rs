//! `tandem`: the client and its tools.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bloat;
mod blob_validator;
mod certificates;
mod child_process;
mod cluster;
mod conformance;
mod db;
mod demo;
mod devnet;
mod discover;
mod discovery;
mod download;
mod enr;
mod environment;
mod execute_witness;
mod executor;
mod export_era;
mod follower;
mod hashed;
mod health;
mod http_client;
mod import;
mod init;
mod lab;
mod multiproof_worker;
mod node;
mod operations;
mod output;
mod overlap;
mod peer_sessions;
mod peer_table;
mod profile;
mod progress;
mod promote;
mod replay;
mod rpc;
mod scrape;
mod secrets;
mod serve;
mod service;
mod sessions;
mod snapshot;
mod spam;
mod storage_writer;
mod target;
mod telemetry;
mod top;
mod tx_executor;
mod tx_pool;
mod verify;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use rustix::fs::Mode;
use std::process::ExitCode;

/// RocksDB and Rust share one allocator. The system's allocator fragments under the load of the
/// tries.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (",
    env!("TANDEM_COMMIT"),
    ", ",
    env!("TANDEM_PROFILE"),
    ")"
);

/// An Ethereum execution client of eight services that shows whether execution and state-root work
/// overlap.
///
/// Exit codes: 0, 1 when the answer is no (a payload is not VALID, a difference was found, an
/// overlap is under its limit) or something failed, 2 for wrong usage.
#[derive(Parser)]
#[command(name = "tandem", version = VERSION, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write a genesis into an empty data directory
    Init(init::Args),
    /// Import blocks from files that geth's export wrote, or from history files (era1, ere)
    #[command(visible_alias = "import-era")]
    Import(import::Args),
    /// Write the chain into history files (era1, ere)
    ExportEra(export_era::Args),
    /// Run all eight services in this process
    Node(node::Args),
    /// Run the eight services as processes on this machine, with a NATS server where there is one
    Cluster(cluster::Args),
    /// Run the database in a process of its own
    StorageWriter(storage_writer::Args),
    /// Run the tries that compute state roots in a process of their own
    MultiproofWorker(multiproof_worker::Args),
    /// Run the verification of blobs in a process of its own
    BlobValidator(blob_validator::Args),
    /// Run the table of peers in a process of its own
    PeerTable(peer_table::Args),
    /// Hold the sessions with peers in a process of their own
    PeerSessions(peer_sessions::Args),
    /// Hold the transactions that are in no block yet in a process of their own
    TxPool(tx_pool::Args),
    /// Run discovery in a process of its own, with the table of peers or over one elsewhere
    Discovery(discovery::Args),
    /// Run the Engine API and the EVM in a process of their own, or stand by for another one
    Executor(executor::Args),
    /// Execute transactions of blocks for an executor on another machine
    TxExecutor(tx_executor::Args),
    /// Keep a verified copy of a leader's chain without executing it, and serve JSON-RPC from it
    Follower(follower::Args),
    /// Make a follower the leading storage-writer
    Promote(promote::Args),
    /// Ask a service on this machine whether it is ready
    Health(health::Args),
    /// Make the missing secrets that the services of a deployment need
    Secrets(secrets::Args),
    /// Make the certificates by which the services of a cluster know each other
    Certificates(certificates::Args),
    /// Crawl a network: find its nodes, and count them by fork and client
    Discover(discover::Args),
    /// Decode and encode node records (EIP-778)
    Enr(enr::Args),
    /// Send a corpus of payloads to an Engine API and measure the answers
    Replay(replay::ReplayArgs),
    /// Tell from traces whether execution and state-root work overlapped
    Overlap(overlap::Args),
    /// Watch a node or a cluster: payloads, overlap, workers, caches, processors
    Top(top::Args),
    /// Tell what the processors are busy with, by subsystem and function
    Profile(profile::Args),
    /// Compare configurations on the same payloads, interleaved block by block
    Lab(lab::Args),
    /// Recompute the state root and every trie node from the flat state
    Verify(verify::Args),
    /// Make a state of any size from a seed, and payloads on it, for measurements
    Bloat(bloat::Args),
    /// Look at the files of a stopped node's database, compact or copy them
    Db(db::Args),
    /// Make, restore and list snapshots of a database, in a directory or a bucket
    Snapshot(snapshot::Args),
    /// Run a test network of Tandem and geth that propose in turn, driven as by a consensus client
    Devnet(devnet::Args),
    /// Send transactions of many kinds at a rate, to put a network under load
    Spam(spam::Args),
    /// Run the test vectors that Ethereum clients share
    Conformance(conformance::Args),
    /// Execute blocks on witnesses of their state, without a database
    ExecuteWitness(execute_witness::Args),
    /// Run a node on a corpus and show latencies, overlap and a timeline
    Demo(demo::Args),
}

impl Command {
    /// Returns whether the files that this command makes are for their owner alone. Databases, keys
    /// and logs are, reports are not.
    fn keeps_secrets(&self) -> bool {
        match self {
            Self::Init(_)
            | Self::Import(_)
            | Self::ExportEra(_)
            | Self::Node(_)
            | Self::Cluster(_)
            | Self::StorageWriter(_)
            | Self::MultiproofWorker(_)
            | Self::BlobValidator(_)
            | Self::PeerTable(_)
            | Self::PeerSessions(_)
            | Self::TxPool(_)
            | Self::Discovery(_)
            | Self::Executor(_)
            | Self::TxExecutor(_)
            | Self::Follower(_)
            | Self::Secrets(_)
            | Self::Certificates(_)
            | Self::Verify(_)
            | Self::Db(_)
            | Self::Snapshot(_)
            | Self::Bloat(_) => true,
            Self::Health(_)
            | Self::Promote(_)
            | Self::Discover(_)
            | Self::Enr(_)
            | Self::Replay(_)
            | Self::Overlap(_)
            | Self::Top(_)
            | Self::Profile(_)
            | Self::Lab(_)
            | Self::Devnet(_)
            | Self::Spam(_)
            | Self::Conformance(_)
            | Self::ExecuteWitness(_)
            | Self::Demo(_) => false,
        }
    }
}

fn main() -> ExitCode {
    // Named threads tell traces and profilers their purpose. An error would mean that the pool
    // exists already.
    let _ = rayon::ThreadPoolBuilder::new().thread_name(|n| format!("rayon-{n}")).build_global();
    let program = environment::with_variables(Cli::command());
    let matches = program.clone().get_matches();
    let command = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()).command;
    if command.keeps_secrets() {
        rustix::process::umask(Mode::RWXG | Mode::RWXO);
    }
    let result = match command {
        Command::Init(args) => init::run(&args),
        Command::Import(args) => import::run(&args),
        Command::ExportEra(args) => export_era::run(&args),
        Command::Node(args) => node::run(args),
        Command::Cluster(args) => {
            // Matches of the command itself: the flags that were given, and their sources.
            let given = matches.subcommand().map_or(&matches, |(_, given)| given);
            cluster::run(&args, &program, given)
        }
        Command::StorageWriter(args) => storage_writer::run(args),
        Command::MultiproofWorker(args) => multiproof_worker::run(args),
        Command::BlobValidator(args) => blob_validator::run(args),
        Command::PeerTable(args) => peer_table::run(args),
        Command::PeerSessions(args) => peer_sessions::run(args),
        Command::TxPool(args) => tx_pool::run(args),
        Command::Discovery(args) => discovery::run(args),
        Command::Executor(args) => executor::run(args),
        Command::TxExecutor(args) => tx_executor::run(args),
        Command::Follower(args) => follower::run(args),
        Command::Promote(args) => promote::run(&args),
        Command::Health(args) => health::run(args),
        Command::Secrets(args) => secrets::run(&args),
        Command::Certificates(args) => certificates::run(&args),
        Command::Discover(args) => discover::run(args),
        Command::Enr(args) => enr::run(&args),
        Command::Replay(args) => replay::main(args),
        Command::Overlap(args) => overlap::main(args),
        Command::Top(args) => top::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::Lab(args) => lab::main(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Bloat(args) => bloat::run(args),
        Command::Db(args) => db::run(args),
        Command::Snapshot(args) => snapshot::run(args),
        Command::Devnet(args) => devnet::run(args),
        Command::Spam(args) => spam::run(args),
        Command::Conformance(args) => conformance::run(args),
        Command::ExecuteWitness(args) => execute_witness::run(&args),
        Command::Demo(args) => demo::run(args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("tandem: {}", explain(&error));
        ExitCode::FAILURE
    })
}

/// Returns an error with its causes. A cause that the text already ends with is not repeated.
fn explain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[derive(Debug)]
    struct Named(io::Error);

    impl std::fmt::Display for Named {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "open database: {}", self.0)
        }
    }

    impl std::error::Error for Named {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn a_cause_is_named_once() {
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        let error = anyhow::Error::new(Named(denied())).context("init /data");
        assert_eq!(explain(&error), "init /data: open database: permission denied");
        let error = anyhow::Error::new(denied()).context("read /data/jwt.hex");
        assert_eq!(explain(&error), "read /data/jwt.hex: permission denied");
    }

    /// Arguments with the same id would share their values. They come from several groups.
    #[test]
    fn no_two_arguments_of_a_command_are_the_same() {
        fn check(command: &clap::Command) {
            let mut ids = std::collections::BTreeSet::new();
            for argument in command.get_arguments() {
                let id = argument.get_id();
                assert!(ids.insert(id.clone()), "{}: {id}", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }
}
