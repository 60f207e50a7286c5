//! `tandem`: the client, and the tools around it.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod blob_validator;
mod certificates;
mod cluster;
mod conformance;
mod demo;
mod discover;
mod discovery;
mod download;
mod enr;
mod environment;
mod execute_witness;
mod executor;
mod health;
mod http_client;
mod import;
mod init;
mod lab;
mod multiproof_worker;
mod node;
mod operations;
mod overlap;
mod peer_table;
mod replay;
mod scrape;
mod secrets;
mod service;
mod storage_writer;
mod telemetry;
mod top;
mod verify;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::process::ExitCode;

/// RocksDB and Rust share one allocator; the system's fragments under the tries' load.
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

/// An Ethereum execution client of six services that shows whether execution and state-root work
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
    /// Take in blocks from files that geth's export wrote, those from before the merge too
    Import(import::Args),
    /// Run all six services in this process
    Node(node::Args),
    /// Run the six services as processes on this machine, with a NATS server where there is one
    Cluster(cluster::Args),
    /// Run the database in a process of its own
    StorageWriter(storage_writer::Args),
    /// Run the tries that give state roots in a process of their own
    MultiproofWorker(multiproof_worker::Args),
    /// Run the verification of blobs in a process of its own
    BlobValidator(blob_validator::Args),
    /// Run the table of peers in a process of its own
    PeerTable(peer_table::Args),
    /// Run discovery in a process of its own, with the table of peers or over one elsewhere
    Discovery(discovery::Args),
    /// Run the Engine API and the EVM in a process of their own, or stand by for another one
    Executor(executor::Args),
    /// Ask a service on this machine whether it is ready
    Health(health::Args),
    /// Make the secrets that the services of a deployment need, where they are missing
    Secrets(secrets::Args),
    /// Make the certificates by which the services of a cluster know each other
    Certificates(certificates::Args),
    /// Crawl a network: find its nodes, and count them by fork and client
    Discover(discover::Args),
    /// Decode and encode node records (EIP-778)
    Enr(enr::Args),
    /// Send a corpus of payloads to an Engine API and measure the answers
    Replay(replay::ReplayArgs),
    /// Say from traces whether execution and state-root work overlapped
    Overlap(overlap::Args),
    /// Watch a node or a cluster: payloads, overlap, workers, caches, processors
    Top(top::Args),
    /// Compare configurations on the same payloads, interleaved block by block
    Lab(lab::Args),
    /// Recompute the state root and every trie node from the flat state
    Verify(verify::Args),
    /// Run the test vectors that Ethereum clients share
    Conformance(conformance::Args),
    /// Execute blocks on witnesses of their state, without a database
    ExecuteWitness(execute_witness::Args),
    /// Run a node on a corpus and show latencies, overlap and a timeline
    Demo(demo::Args),
}

fn main() -> ExitCode {
    // Named, so that traces and profilers show what they do. An error would mean that the pool is
    // there already.
    let _ = rayon::ThreadPoolBuilder::new().thread_name(|n| format!("rayon-{n}")).build_global();
    let program = environment::with_variables(Cli::command());
    let matches = program.clone().get_matches();
    let command = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()).command;
    let result = match command {
        Command::Init(args) => init::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Node(args) => node::run(args),
        Command::Cluster(args) => {
            // Those of the command itself: the flags that were given, and from where.
            let given = matches.subcommand().map_or(&matches, |(_, given)| given);
            cluster::run(&args, &program, given)
        }
        Command::StorageWriter(args) => storage_writer::run(args),
        Command::MultiproofWorker(args) => multiproof_worker::run(args),
        Command::BlobValidator(args) => blob_validator::run(args),
        Command::PeerTable(args) => peer_table::run(args),
        Command::Discovery(args) => discovery::run(args),
        Command::Executor(args) => executor::run(args),
        Command::Health(args) => health::run(args),
        Command::Secrets(args) => secrets::run(&args),
        Command::Certificates(args) => certificates::run(&args),
        Command::Discover(args) => discover::run(args),
        Command::Enr(args) => enr::run(&args),
        Command::Replay(args) => replay::main(args),
        Command::Overlap(args) => overlap::main(args),
        Command::Top(args) => top::run(&args),
        Command::Lab(args) => lab::main(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Conformance(args) => conformance::run(args),
        Command::ExecuteWitness(args) => execute_witness::run(&args),
        Command::Demo(args) => demo::run(args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("tandem: {error:#}");
        ExitCode::FAILURE
    })
}
