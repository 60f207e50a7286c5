//! blob-validator over gRPC on loopback, in the same process and on the same cores as its callers.
//!
//! * **Throughput:** fresh sidecars of six blobs, 24 at a time, as a share of the library's
//!   throughput on all cores, alternating, in both forms.
//! * **Repeated:** cost of a blob whose verdict is known.
//! * **Legacy:** CPU time of `verification = "legacy"` and of the default for one stream of blob
//!   transactions in which every second one is a duplicate, alternating.
//! * **Load:** delays while the pool is full: of a timer of the server's reactor, of the next turn
//!   of a yielding task on it, and of a health call. The task's delay counts the reactor's own work
//!   only, not the time that others use the CPU.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{
    TIMEOUT, connect, cpu_time, empty, is_bench, micros, push_constant, say, serve, sidecars,
    start, thread_ready_time, timed,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};
use tandem_blob_validator::{BlobValidator, Config, Verification};
use tandem_kzg::{Item, Setup, Verifier};
use tandem_proto::blob_validator::{BlobApi, Bundle, Error, Form, Status, Verdict};
use tandem_rpc::EVENT_INTERVAL;
use tokio::{
    runtime::{Builder, Runtime},
    sync::Semaphore,
    task::JoinSet,
    time::sleep,
};
use tonic::transport::Endpoint;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const ROUNDS: u64 = 5;
/// Number of sidecars of six blobs that the queue has room for.
const UNDER_WAY: usize = 24;
const LOAD: Duration = Duration::from_secs(10);

fn main() {
    if !is_bench() {
        return;
    }
    let runtime = Runtime::new().unwrap();
    for (form, name, count) in [(Form::BlobProofs, "blob", 512), (Form::CellProofs, "cell", 64)] {
        throughput(&runtime, form, name, count);
    }
    repeated(&runtime);
    for (form, name, count) in [(Form::BlobProofs, "blob", 128), (Form::CellProofs, "cell", 32)] {
        for under_way in [8, 32] {
            legacy(&runtime, form, name, count, under_way);
        }
    }
    load(&runtime);
}

/// Sends all sidecars, as many at a time as the queue has room for. Returns the time until the last
/// one is answered.
fn flood(runtime: &Runtime, api: &dyn BlobApi, sidecars: &[Arc<Bundle>]) -> Duration {
    let flood = async {
        let (mut calls, mut sidecars) = (JoinSet::new(), sidecars.iter());
        loop {
            while calls.len() < UNDER_WAY
                && let Some(sidecar) = sidecars.next()
            {
                calls.spawn(api.validate(sidecar.clone(), TIMEOUT));
            }
            let Some(answer) = calls.join_next().await else { break };
            assert_eq!(answer.unwrap(), Ok(Verdict::Valid));
        }
    };
    timed(|| runtime.block_on(flood)).0
}

/// Verifies with the library on as many threads as the service has, in batches as large as the
/// service's.
fn library(setup: Setup, config: &Config, sidecars: &[Arc<Bundle>]) -> Duration {
    let items: Vec<_> = sidecars.iter().flat_map(|bundle| items(bundle)).collect();
    let share = items.len().div_ceil(config.threads);
    let run = || {
        thread::scope(|scope| {
            for share in items.chunks(share) {
                scope.spawn(move || {
                    let mut verifier = Verifier::new(setup);
                    for batch in share.chunks(config.batch_blobs_max) {
                        assert!(verifier.verify(batch).results.iter().all(Result::is_ok));
                    }
                });
            }
        });
    };
    timed(run).0
}

fn items(bundle: &Bundle) -> Vec<Item<'_>> {
    let proofs = bundle.proofs.chunks(bundle.form.proofs_per_blob());
    let parts = bundle.blobs.iter().zip(&bundle.commitments).zip(proofs);
    parts.map(|((blob, commitment), proofs)| Item::new(blob, commitment, proofs).unwrap()).collect()
}

fn throughput(runtime: &Runtime, form: Form, name: &str, count: u64) {
    // The store is full, like that of a node that has run for hours. Only in its first minutes does
    // a service take new memory from the kernel for each blob.
    let mut config = Config { store_bytes_max: 64 << 20, ..Config::default() };
    // They are made once, which takes longest: the service has forgotten all of them when they come
    // again.
    let fresh = sidecars(form, 1, count);
    config.verdicts_max = fresh.len();
    let (setup, service) = (Setup::load(), start(config.clone()));
    let address = serve(runtime, service.clone());
    let blobs = count as usize * 6;
    let (mut ratios, mut costs) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        // The client is new, so it has forgotten them too.
        let client = connect(runtime, address);
        let before = status(runtime, &service);
        let library = library(setup, &config, &fresh);
        let grpc = flood(runtime, &*client, &fresh);
        let after = status(runtime, &service);
        assert_eq!(after.verified - before.verified, blobs as u64);
        // The first round warms up.
        if round > 0 {
            ratios.push(library.as_secs_f64() / grpc.as_secs_f64());
            costs.push((
                micros(library, blobs),
                micros(grpc, blobs),
                after.batches - before.batches,
            ));
        }
    }
    service.stop();
    ratios.sort_by(f64::total_cmp);
    let (library, grpc, batches) = costs[costs.len() / 2];
    say(&format!(
        "throughput, {name} proofs: {:.2} of the library (median of {ROUNDS} rounds, {:.2} to {:.2}); \
         one round: library {library:.0}, gRPC {grpc:.0} µs a blob of {blobs}, {batches} batches",
        ratios[ratios.len() / 2],
        ratios[0],
        ratios[ratios.len() - 1],
    ));
}

fn status(runtime: &Runtime, service: &BlobValidator) -> Status {
    runtime.block_on(service.status()).unwrap()
}

fn repeated(runtime: &Runtime) {
    let service = start(Config::default());
    let client = connect(runtime, serve(runtime, service.clone()));
    for form in [Form::BlobProofs, Form::CellProofs] {
        let sidecar = sidecars(form, 500_000, 2).remove(0);
        for (name, api) in [("in process", &*service as &dyn BlobApi), ("over gRPC", &*client)] {
            let again = || runtime.block_on(api.validate(sidecar.clone(), TIMEOUT)).unwrap();
            assert_eq!(again(), Verdict::Valid);
            let before = cpu_time();
            let (took, ()) = timed(|| (0..300).for_each(|_| assert_eq!(again(), Verdict::Valid)));
            let cpu = cpu_time().saturating_sub(before);
            say(&format!(
                "repeated sidecar of six, {form:?}, {name}: {:.0} µs a blob, {:.0} µs of CPU",
                micros(took, 1800),
                micros(cpu, 1800),
            ));
        }
    }
    service.stop();
}

/// Sends a stream of blob transactions, `under_way` at a time. Each is delivered twice: the second
/// time after some others, as if from another peer.
fn stream(
    runtime: &Runtime,
    service: &Arc<BlobValidator>,
    fresh: &[Arc<Bundle>],
    under_way: usize,
) -> Duration {
    let mut deliveries = Vec::new();
    for group in fresh.chunks(4) {
        deliveries.extend(group.iter().cloned());
        // Each copy has bytes of its own.
        deliveries.extend(group.iter().map(|sidecar| Arc::new(Bundle::clone(sidecar))));
    }
    let room = Arc::new(Semaphore::new(under_way));
    let before = cpu_time();
    runtime.block_on(async {
        let mut calls = JoinSet::new();
        for sidecar in deliveries {
            let permit = room.clone().acquire_owned().await.unwrap();
            let answer = service.validate(sidecar, TIMEOUT);
            calls.spawn(async move {
                let answer = answer.await;
                drop(permit);
                answer
            });
        }
        let answers = calls.join_all().await;
        assert!(answers.iter().all(|answer| *answer == Ok(Verdict::Valid)));
    });
    cpu_time().saturating_sub(before)
}

fn legacy(runtime: &Runtime, form: Form, name: &str, count: u64, under_way: usize) {
    let (mut ratios, mut line) = (Vec::new(), String::new());
    for round in 0..3 {
        let fresh = sidecars(form, 1_000_000 + round * 10_000, count);
        let measured = [Verification::Legacy, Verification::Once].map(|verification| {
            let service = start(Config { verification, ..Config::default() });
            let cpu = stream(runtime, &service, &fresh, under_way);
            let verified = status(runtime, &service).verified;
            service.stop();
            (cpu.as_secs_f64(), verified)
        });
        let [(legacy, twice), (once, verified)] = measured;
        ratios.push(legacy / once);
        line = format!("legacy {legacy:.2} s, {twice} verifications; once {once:.2} s, {verified}");
    }
    ratios.sort_by(f64::total_cmp);
    say(&format!(
        "CPU of {} deliveries, half of them duplicates, {under_way} under way, {name} proofs: {:.2} \
         times less (median of 3, {:.2} to {:.2}); {line}",
        2 * count,
        ratios[1],
        ratios[0],
        ratios[2],
    ));
}

/// Measures delays of the server's reactor while a client with its own reactor floods it.
fn load(clients: &Runtime) {
    let mut builder = Builder::new_multi_thread();
    let builder = builder.worker_threads(1).event_interval(EVENT_INTERVAL);
    let reactor = builder.enable_all().build().unwrap();
    let service = start(Config::default());
    let address = serve(&reactor, service.clone());
    let client = connect(clients, address);
    let done = Arc::new(AtomicBool::new(false));
    let stop = done.clone();
    let beats = reactor.spawn(async move {
        let (mut late, mut blocked) = (Vec::new(), Vec::new());
        while !stop.load(Relaxed) {
            let due = tokio::time::Instant::now() + Duration::from_millis(1);
            tokio::time::sleep_until(due).await;
            late.push(due.elapsed());
            let (ready, started) = (thread_ready_time(), Instant::now());
            tokio::task::yield_now().await;
            let (took, ready) = (started.elapsed(), thread_ready_time() - ready);
            blocked.push(took.saturating_sub(ready));
        }
        (late, blocked)
    });
    let stop = done.clone();
    let health = clients.spawn(async move {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        let mut health = HealthClient::new(endpoint.connect().await.unwrap());
        let mut times = Vec::new();
        while !stop.load(Relaxed) {
            let service = "tandem.blob_validator.v1.BlobValidator".to_owned();
            let started = Instant::now();
            health.check(HealthCheckRequest { service }).await.unwrap();
            times.push(started.elapsed());
            sleep(Duration::from_millis(2)).await;
        }
        times
    });
    let (mut answered, mut refused) = (0u64, 0u64);
    clients.block_on(async {
        let (end, mut calls, mut next) = (Instant::now() + LOAD, JoinSet::new(), 1);
        while Instant::now() < end || !calls.is_empty() {
            while calls.len() < 128 && Instant::now() < end {
                let mut sidecar = empty(Form::BlobProofs);
                (0..6).for_each(|blob| push_constant(&mut sidecar, next * 6 + blob));
                next += 1;
                calls.spawn(client.validate(Arc::new(sidecar), TIMEOUT));
            }
            match calls.join_next().await.unwrap().unwrap() {
                Ok(_) => answered += 1,
                Err(Error::Overloaded { .. }) => refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
    });
    done.store(true, Relaxed);
    let (mut late, mut blocked) = clients.block_on(beats).unwrap();
    let mut health = clients.block_on(health).unwrap();
    say(&format!("load for {} s: {answered} sidecars answered, {refused} refused", LOAD.as_secs()));
    for (name, times) in [
        ("timer late", &mut late),
        ("reactor busy between two turns of a task", &mut blocked),
        ("health call", &mut health),
    ] {
        times.sort_unstable();
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        let [p50, p99, p999, max] = [0.5, 0.99, 0.999, 1.0].map(|share| micros(at(share), 1));
        say(&format!(
            "  {name}: p50 {p50:.0}, p99 {p99:.0}, p99.9 {p999:.0}, most {max:.0} µs ({})",
            times.len()
        ));
    }
    service.stop();
    reactor.shutdown_background();
}
