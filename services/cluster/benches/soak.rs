//! Memory over twenty thousand blocks: a node on disk takes newPayload and forkchoiceUpdated of a
//! chain whose state grows to a bound (transfers, writes and clears over 8,000 slots, contracts that
//! come and go), and its memory must not grow after that.
//!
//! Caches are small, so that they are full by the end of the first quarter. Fails when the median of
//! the last quarter exceeds that of the second by more than [`MARGIN_BYTES`] and [`MARGIN_SHARE`].
//! `TANDEM_SOAK_BLOCKS` sets another length; `TANDEM_SOAK_MEMORY=1` takes a database in memory, which
//! holds every block and so grows by design: there, the growth for each block is printed instead.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{Engine, is_bench, quantile, say};
use std::{fs, process::ExitCode, time::Instant};
use tandem_cluster::{Cluster, Config};
use tandem_cluster_tests::Endless;
use tempfile::TempDir;
use tokio::runtime::Runtime;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const BLOCKS: u64 = 20_000;
const TRANSACTIONS: usize = 8;
/// Samples over the run, whatever its length.
const SAMPLES: u64 = 40;
/// What allocator and database may keep more or less from one moment to the next.
const MARGIN_BYTES: u64 = 8 << 20;
/// The same as a share of what there is.
const MARGIN_SHARE: f64 = 0.05;

fn main() -> ExitCode {
    if !is_bench() {
        return ExitCode::SUCCESS;
    }
    let blocks = number("TANDEM_SOAK_BLOCKS").unwrap_or(BLOCKS).max(SAMPLES);
    let in_memory = number("TANDEM_SOAK_MEMORY") == Some(1);
    let runtime = Runtime::new().unwrap();
    let folder = TempDir::new().unwrap();
    let mut chain = Endless::new(1);
    let cluster = start(&folder, &chain, in_memory);
    let engine = Engine::new(&runtime, &cluster.handle());
    let started = Instant::now();
    let mut samples = Vec::new();
    say("    block  resident MiB  accounts   slots  seconds");
    for _ in 0..blocks {
        let block = chain.next_block(TRANSACTIONS);
        engine.new_payload(block.method, &block.params, block.hash);
        engine.set_head(block.hash);
        if block.number.is_multiple_of(blocks / SAMPLES) {
            let bytes = resident_bytes();
            let (accounts, slots) = chain.size();
            say(&format!(
                "{:9} {:13.1} {accounts:9} {slots:7} {:8.0}",
                block.number,
                mib(bytes),
                started.elapsed().as_secs_f64(),
            ));
            samples.push(bytes);
        }
    }
    runtime.block_on(cluster.stop());
    judge(&samples, blocks, in_memory)
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

fn judge(samples: &[u64], blocks: u64, in_memory: bool) -> ExitCode {
    let quarter = samples.len() / 4;
    let median = |samples: &[u64]| {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable();
        quantile(&sorted, 0.5)
    };
    let second = median(&samples[quarter..2 * quarter]);
    let last = median(&samples[samples.len() - quarter..]);
    let growth = last as f64 - second as f64;
    let allowed = MARGIN_BYTES as f64 + second as f64 * MARGIN_SHARE;
    say(&format!(
        "second quarter {:.1} MiB, last quarter {:.1} MiB: {:+.1} MiB, {:+.0} bytes a block",
        mib(second),
        mib(last),
        growth / f64::from(1 << 20),
        growth / (blocks as f64 / 2.0),
    ));
    if in_memory {
        return ExitCode::SUCCESS;
    }
    let flat = growth <= allowed;
    let verdict = if flat { "flat" } else { "GROWING" };
    say(&format!("{verdict}: at most {:+.1} MiB allowed", allowed / f64::from(1 << 20)));
    if flat { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn number(name: &str) -> Option<u64> {
    let value = std::env::var_os(name)?;
    let number = value.to_str().and_then(|text| text.parse().ok());
    Some(number.unwrap_or_else(|| panic!("{name} is no number: {value:?}")))
}

/// As Linux has it in `/proc`.
fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}
