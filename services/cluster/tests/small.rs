//! Many small clusters in one process: the cost of one, and that none leaves anything behind.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::{
    fs,
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};
use tandem_cluster::{Cluster, Config};
use tandem_kzg::Setup;
use tokio::runtime::Runtime;

const GENESIS: &str = r#"{
    "config": {"chainId": 7, "homesteadBlock": 0, "londonBlock": 0, "terminalTotalDifficulty": 0,
        "shanghaiTime": 0},
    "difficulty": "0x0", "gasLimit": "0x1c9c380",
    "alloc": {
        "0x0000000000000000000000000000000000000001": {"balance": "0x10", "code": "0x6001"},
        "0x0000000000000000000000000000000000000002": {"balance": "0x1", "storage": {"0x0": "0x1"}}
    }
}"#;

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| Runtime::new().unwrap())
}

fn start() -> Cluster {
    Cluster::start_in_memory(Config::small(), GENESIS.as_bytes()).unwrap()
}

/// Current usage of the process.
#[derive(Clone, Copy, Debug)]
struct Usage {
    threads: u64,
    resident_bytes: u64,
    cpu: Duration,
}

/// Reads the usage from Linux' `/proc`; `None` on other systems.
fn usage() -> Option<Usage> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let field = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // After the command in parentheses: user and system time are fields 14 and 15, in ticks of 10
    // ms.
    let mut times = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let ticks = times.next()?.parse::<u64>().ok()? + times.next()?.parse::<u64>().ok()?;
    Some(Usage {
        threads: field("Threads:")?,
        resident_bytes: field("VmRSS:")? << 10,
        cpu: Duration::from_millis(ticks * 10),
    })
}

/// Waits until the process has at most this many threads. A joined thread may be visible for a
/// moment longer.
fn wait_for_threads(max: u64) {
    let started = Instant::now();
    while usage().is_some_and(|usage| usage.threads > max) {
        assert!(started.elapsed() < Duration::from_secs(20), "threads are left: {:?}", usage());
        thread::sleep(Duration::from_millis(5));
    }
}

/// Starts and stops clusters, several at once. Returns the CPU time of one cluster, and the bytes
/// of memory that all of them left behind.
fn start_and_stop(clusters: usize, at_once: usize) -> Option<(Duration, u64)> {
    let before = usage()?;
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                for _ in 0..clusters / at_once {
                    let cluster = start();
                    assert_eq!(cluster.handle().chain().head().number, 0);
                    runtime().block_on(cluster.stop());
                }
            });
        }
    });
    let after = usage()?;
    let left = after.resident_bytes.saturating_sub(before.resident_bytes);
    Some(((after.cpu - before.cpu) / clusters as u32, left))
}

fn leaves_nothing(clusters: usize, at_once: usize) {
    // One-time costs of the process (the KZG setup, the reactor, rayon's threads, the allocator's
    // arenas) are not costs of one cluster. A cluster that stops does not wait for the setup.
    Setup::load();
    start_and_stop(8 * at_once, at_once);
    let threads = usage().map_or(0, |usage| usage.threads);
    let Some((cpu, left)) = start_and_stop(clusters, at_once) else { return };
    println!("{clusters} clusters, {at_once} at once: {cpu:?} CPU each, {left} bytes left of all");
    wait_for_threads(threads);
    assert!(left < 16 << 20, "{left} bytes are left");
}

// A single test, because several would count each other's threads.
#[test]
fn clusters_started_and_stopped_leave_neither_threads_nor_memory() {
    leaves_nothing(100, 1);
    leaves_nothing(120, 4);
    let threads = usage().map_or(0, |usage| usage.threads);
    // Dropped instead of stopped, as by a test that panics: the threads end by themselves.
    for _ in 0..10 {
        drop(start());
    }
    wait_for_threads(threads);
}

/// Runs at the size of a whole conformance run: `cargo test --release --workspace --test small --
/// --ignored --nocapture`.
#[test]
#[ignore = "takes a minute"]
fn ten_thousand_clusters_leave_neither_threads_nor_memory() {
    leaves_nothing(10_000, 2);
}

#[test]
fn a_small_cluster_answers_from_its_genesis_and_verifies() {
    let cluster = start();
    let report = cluster.verify().unwrap();
    assert!(report.is_clean(), "{:?}", report.first_difference);
    assert_eq!((report.accounts, report.slots), (2, 1));
    assert_eq!(report.base, cluster.handle().chain().head());
    runtime().block_on(cluster.stop());
    let refused = Cluster::start_in_memory(Config::small(), "{".as_bytes());
    assert!(matches!(refused, Err(tandem_cluster::Error::StorageWriter(_))));
}

/// The record of a node names the fork of its head (EIP-2124), and a preset of another network is
/// refused.
#[test]
fn discovery_announces_the_fork_of_the_chain() {
    let config = |network| {
        let mut config = Config::small();
        let folder = tempfile::tempdir().unwrap();
        config.discovery.datadir = folder.path().to_owned();
        config.discovery.addr = std::net::Ipv4Addr::LOCALHOST.into();
        config.discovery.port = 0;
        config.discovery.network = network;
        config.with_discovery = true;
        (config, folder)
    };
    let (config_alone, _folder) = config(None);
    let cluster = Cluster::start_in_memory(config_alone, GENESIS.as_bytes()).unwrap();
    let chain = cluster.handle().chain().clone();
    let expect = chain.fork_id().unwrap();
    // No fork after genesis: the hash of genesis alone.
    let alone = tandem_discv4::fork_id((chain.genesis().hash, 0), &[], &[], (0, 0));
    assert_eq!(expect, alone);
    let record: tandem_discv4::Enr = cluster.discovery().unwrap().enr.parse().unwrap();
    assert_eq!(record.eth(), Some(expect));
    runtime().block_on(cluster.stop());

    let (mainnet, _folder) = config(Some(tandem_cluster::Network::Mainnet));
    let refused = Cluster::start_in_memory(mainnet, GENESIS.as_bytes()).err().unwrap();
    assert_eq!(refused.to_string(), "the data directory holds another chain than mainnet");
}
