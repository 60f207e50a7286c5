//! Memory over twenty thousand blocks: a node on disk receives newPayload and forkchoiceUpdated of
//! a chain whose state grows to a bound. The blocks have transfers, writes and clears over 8,000
//! slots, and contracts that come and go. Memory must not grow once the bound is reached.
//!
//! Caches are small, so that they are full by the end of the first quarter. Two measures, each the
//! median of a quarter's samples, must not grow from the second quarter to the last. The first is
//! bytes that are live on the heap, which are all the project's own and so known to the byte
//! ([`LIVE`]). The second is resident memory, which includes RocksDB's memtables and block cache
//! and what the allocator keeps, so that it varies ([`RESIDENT`]).
//!
//! `TANDEM_SOAK_BLOCKS` sets another length. `TANDEM_SOAK_MEMORY=1` uses a database in memory,
//! which holds every block and so grows by design: the growth per block is printed instead.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{Engine, is_bench, quantile, say};
use std::{fs, process::ExitCode, time::Instant};
use tandem_cluster::{Cluster, Config};
use tandem_cluster_tests::Endless;
use tandem_heap::{Counting, process};
use tempfile::TempDir;
use tikv_jemallocator::Jemalloc;
use tokio::runtime::Runtime;

#[global_allocator]
static ALLOCATOR: Counting<Jemalloc> = Counting(Jemalloc);

const BLOCKS: u64 = 20_000;
const TRANSACTIONS: usize = 8;
/// Samples over the run, whatever its length.
const SAMPLES: u64 = 40;
/// Allowed growth of a measure until the end: this many bytes plus this share of the earlier value.
struct Margin {
    bytes: u64,
    share: f64,
}

const LIVE: Margin = Margin { bytes: 512 << 10, share: 0.02 };
const RESIDENT: Margin = Margin { bytes: 8 << 20, share: 0.05 };

fn main() -> ExitCode {
    if !is_bench() {
        return ExitCode::SUCCESS;
    }
    let blocks = number("TANDEM_SOAK_BLOCKS").unwrap_or(BLOCKS).max(SAMPLES);
    let in_memory = number("TANDEM_SOAK_MEMORY") == Some(1);
    // Traces and metrics are kept as in a node.
    let telemetry = tandem_telemetry::Config { log_filter: "warn".into(), ..Default::default() };
    let _telemetry = tandem_telemetry::init(&telemetry).unwrap();
    let runtime = Runtime::new().unwrap();
    let folder = TempDir::new().unwrap();
    let mut chain = Endless::new(1);
    let cluster = start(&folder, &chain, in_memory);
    let engine = Engine::new(&runtime, &cluster.handle());
    let started = Instant::now();
    let (mut live, mut resident) = (Vec::new(), Vec::new());
    say("    block  live MiB  resident MiB  accounts   slots  seconds");
    for _ in 0..blocks {
        let block = chain.next_block(TRANSACTIONS);
        engine.new_payload(block.method, &block.params, block.hash);
        engine.set_head(block.hash);
        if block.number.is_multiple_of(blocks / SAMPLES) {
            live.push(process::live() as u64);
            resident.push(resident_bytes());
            let (accounts, slots) = chain.size();
            say(&format!(
                "{:9} {:9.2} {:13.1} {accounts:9} {slots:7} {:8.0}",
                block.number,
                mib(live[live.len() - 1]),
                mib(resident[resident.len() - 1]),
                started.elapsed().as_secs_f64(),
            ));
        }
    }
    runtime.block_on(cluster.stop());
    let live = judge("live", &live, blocks, &LIVE);
    let resident = judge("resident", &resident, blocks, &RESIDENT);
    if in_memory || live && resident { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn start(folder: &TempDir, chain: &Endless, in_memory: bool) -> Cluster {
    let config = Config::small();
    if in_memory {
        return Cluster::start_in_memory(config, chain.genesis_json().as_bytes()).unwrap();
    }
    let (genesis, datadir) = (folder.path().join("genesis.json"), folder.path().join("data"));
    fs::write(&genesis, chain.genesis_json()).unwrap();
    tandem_storage_writer::init(&genesis, &datadir, |_| {}).unwrap();
    Cluster::start(config.at(&datadir)).unwrap()
}

/// Returns whether a measure stayed flat.
fn judge(name: &str, samples: &[u64], blocks: u64, margin: &Margin) -> bool {
    let quarter = samples.len() / 4;
    let median = |samples: &[u64]| {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable();
        quantile(&sorted, 0.5)
    };
    let second = median(&samples[quarter..2 * quarter]);
    let last = median(&samples[samples.len() - quarter..]);
    let growth = last as f64 - second as f64;
    let allowed = margin.bytes as f64 + second as f64 * margin.share;
    let flat = growth <= allowed;
    say(&format!(
        "{name}: second quarter {:.2} MiB, last quarter {:.2} MiB: {:+.2} MiB, {:+.0} bytes a \
         block: {} ({:+.2} MiB allowed)",
        mib(second),
        mib(last),
        growth / f64::from(1 << 20),
        growth / (blocks as f64 / 2.0),
        if flat { "flat" } else { "GROWING" },
        allowed / f64::from(1 << 20),
    ));
    flat
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn number(name: &str) -> Option<u64> {
    let value = std::env::var_os(name)?;
    let number = value.to_str().and_then(|text| text.parse().ok());
    Some(number.unwrap_or_else(|| panic!("{name} is not a number: {value:?}")))
}

/// Returns the resident memory from Linux' `/proc`.
fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}
