//! newPayload from end to end: recorded payloads through the Engine API's handlers of a node on
//! disk.
//!
//! A payload can be executed only once, so this is not a criterion bench. For each corpus, it
//! prints the distribution over its blocks. It always runs `corpora/demo`; `TANDEM_CORPORA` adds
//! folders, separated as in `PATH`. The first ten blocks warm up.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{Engine, is_bench, ms, quantile, say};
use std::time::{Duration, Instant};
use tandem_cluster::{Cluster, Config};
use tandem_cluster_tests::{Corpus, Recorded};
use tempfile::TempDir;
use tokio::runtime::Runtime;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const WARMUP: usize = 10;
/// Longest time for one corpus.
const TIME_MAX: Duration = Duration::from_secs(20);

fn main() {
    if !is_bench() {
        return;
    }
    let runtime = Runtime::new().unwrap();
    say("newPayload, ms       blocks    p50    p95   mean  forkchoice p50  Mgas/s");
    run(&runtime, "demo", &Corpus::demo());
    let more = std::env::var_os("TANDEM_CORPORA").unwrap_or_default();
    for folder in std::env::split_paths(&more).filter(|folder| !folder.as_os_str().is_empty()) {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let corpus = Corpus::open(folder.clone());
        run(&runtime, &name, &corpus.unwrap_or_else(|| panic!("no corpus at {folder:?}")));
    }
}

fn run(runtime: &Runtime, name: &str, corpus: &Corpus) {
    let folder = TempDir::new().unwrap();
    let datadir = folder.path().join("data");
    tandem_storage_writer::init(&corpus.genesis(), &datadir, |_| {}).unwrap();
    let cluster = Cluster::start(Config::default().at(&datadir)).unwrap();
    let engine = Engine::new(runtime, &cluster.handle());
    let (mut times, mut heads, mut gas) = (Vec::new(), Vec::new(), 0);
    let started = Instant::now();
    for (index, Recorded { method, params, hash }) in corpus.payloads().enumerate() {
        let took = engine.new_payload(&method, &params, hash);
        let head = engine.set_head(hash);
        if index >= WARMUP {
            times.push(took);
            heads.push(head);
            let used = params[0]["gasUsed"].as_str().unwrap();
            gas += u64::from_str_radix(used.trim_start_matches("0x"), 16).unwrap();
        }
        if started.elapsed() > TIME_MAX {
            break;
        }
    }
    runtime.block_on(cluster.stop());
    let total: Duration = times.iter().sum();
    times.sort_unstable();
    heads.sort_unstable();
    say(&format!(
        "{name:20} {:>6} {:6.1} {:6.1} {:6.1} {:15.1} {:7.0}",
        times.len(),
        ms(quantile(&times, 0.5)),
        ms(quantile(&times, 0.95)),
        ms(total) / times.len() as f64,
        ms(quantile(&heads, 0.5)),
        gas as f64 / 1e6 / total.as_secs_f64(),
    ));
}
