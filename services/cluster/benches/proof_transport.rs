//! The proof stream in one process and over gRPC on loopback, on the updates that executing
//! `corpora/demo` sent to the workers.
//!
//! Both sides have their own workers over the same storage. The first part is a table, with the two
//! sides alternating block by block. `burst` sends a block's updates one after the other. `paced`
//! leaves the time between them that an EVM takes, so the rest is what the transport adds after the
//! last update. The second part is criterion on bursts.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "common/capture.rs"]
mod capture;
mod common;

use capture::{Seen, capture, workers};
use common::{is_bench, quantile, say};
use criterion::Criterion;
use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};
use tandem_multiproof_workers::grpc::Server;
use tandem_multiproof_workers_client::{Client, ClientConfig};
use tandem_proto::multiproof::ProofApi;
use tokio::{net::TcpListener, runtime::Runtime};
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Time between two updates of a paced block.
const PACE: Duration = Duration::from_micros(100);
const ROUNDS: usize = 3;

/// Times of one block.
#[derive(Clone, Copy)]
struct Times {
    /// Time from begin to roots.
    block: Duration,
    /// Time in the calls of `update`.
    updates: Duration,
    /// Time from the end of the updates to the roots.
    tail: Duration,
}

fn run(api: &dyn ProofApi, block: &Seen, pace: Duration) -> Times {
    let started = Instant::now();
    let mut session = api.begin(block.begin).unwrap();
    let mut updates = Duration::ZERO;
    for update in &block.updates {
        let sent = Instant::now();
        session.update(update.clone());
        updates += sent.elapsed();
        while sent.elapsed() < pace {
            std::hint::spin_loop();
        }
    }
    let last = Instant::now();
    session.finish();
    session.roots().unwrap();
    Times { block: started.elapsed(), updates, tail: last.elapsed() }
}

fn micros(times: &[Times], of: fn(&Times) -> Duration, share: f64) -> f64 {
    let mut sorted: Vec<Duration> = times.iter().map(of).collect();
    sorted.sort_unstable();
    quantile(&sorted, share).as_secs_f64() * 1e6
}

/// Compares the two sides block by block, each first in turn.
fn compare(sides: [(&str, &dyn ProofApi); 2], blocks: &[Seen], name: &str, pace: Duration) {
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..=ROUNDS {
        for (index, block) in blocks.iter().enumerate() {
            for place in [(index + round) % 2, (index + round + 1) % 2] {
                let took = run(sides[place].1, block, pace);
                // The first round warms up, and the first block of each round begins with empty
                // tries.
                if round > 0 && index > 0 {
                    times[place].push(took);
                }
            }
        }
    }
    let updates: usize = blocks[1..].iter().map(|block| block.updates.len()).sum();
    for (place, (side, _)) in sides.iter().enumerate() {
        let times = &times[place];
        let sending: Duration = times.iter().map(|times| times.updates).sum();
        say(&format!(
            "{name:6} {side:12} {:9.0} {:9.0} {:9.0} {:9.0} {:14.0}",
            micros(times, |times| times.block, 0.5),
            micros(times, |times| times.block, 0.95),
            micros(times, |times| times.tail, 0.5),
            micros(times, |times| times.tail, 0.95),
            sending.as_secs_f64() * 1e9 / (updates * ROUNDS) as f64,
        ));
    }
}

fn main() {
    if !is_bench() {
        return;
    }
    let runtime = Runtime::new().unwrap();
    let (storage, blocks) = capture(&runtime);
    let (local, behind) = (workers(&storage), workers(&storage));
    let stop = CancellationToken::new();
    let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let server = Server::start(behind.clone(), CancellationToken::new()).unwrap();
    let serving = runtime.spawn(server.serve(listener, stop.clone()));
    let client = Client::connect(&endpoint, ClientConfig::default(), runtime.handle()).unwrap();
    let updates: usize = blocks.iter().map(|block| block.updates.len()).sum();
    say(&format!("{} blocks of {} updates", blocks.len(), updates / blocks.len()));
    say("µs                  block p50       p95  tail p50       p95  ns per update");
    let sides: [(&str, &dyn ProofApi); 2] = [("in process", &*local), ("gRPC", &*client)];
    compare(sides, &blocks, "burst", Duration::ZERO);
    compare(sides, &blocks, "paced", PACE);

    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("proof_transport");
    group.sample_size(10).measurement_time(Duration::from_secs(4));
    for (name, api) in sides {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|count| {
                let blocks = blocks.iter().cycle().take(count as usize);
                blocks.map(|block| run(api, block, Duration::ZERO).block).sum()
            });
        });
    }
    group.finish();
    drop(client);
    stop.cancel();
    runtime.block_on(serving).unwrap().unwrap();
    local.stop();
    behind.stop();
}
