//! Memory over a million distinct requests over gRPC: it must not grow, and must stay within the
//! configured bytes.
//!
//! Every request is a new sidecar of one blob. One in [`VALID_EVERY`] is valid: a constant
//! polynomial, whose proof is infinity, verified like any other. So verdicts and store fill, and
//! are evicted many times over. The others hold a field element that is not canonical. They too are
//! hashed, queued, taken by a verifier and remembered, but cost no pairing: a million pairings
//! would take a quarter of an hour.
//!
//! Samples are taken when no request is pending: bytes live on the heap (which holds all of the
//! project's own memory) and resident memory. The bench fails if the maximum of the last quarter
//! exceeds that of the second by more than a margin. It also fails if the live bytes exceed what
//! the configuration allows. `TANDEM_SOAK_REQUESTS` sets another length.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{TIMEOUT, connect, empty, is_bench, number, push_constant, say, serve, start};
use std::{process::ExitCode, sync::Arc, time::Instant};
use tandem_blob_validator::Config;
use tandem_heap::{Counting, process};
use tandem_primitives::U256;
use tandem_proto::blob_validator::{BLOB_BYTES, BlobApi, Bundle, Form, Reason, Refusal, Verdict};
use tikv_jemallocator::Jemalloc;
use tokio::{runtime::Runtime, task::JoinSet};

#[global_allocator]
static ALLOCATOR: Counting<Jemalloc> = Counting(Jemalloc);

const REQUESTS: u64 = 1_000_000;
const VALID_EVERY: u64 = 8;
const SAMPLES: u64 = 40;
/// Number of pending requests.
const WINDOW: usize = 64;
/// Bytes that may be live beyond the configured ones: connections, buffers, growing tables.
const OTHER_BYTES: usize = 16 << 20;
/// Bytes by which a quarter may exceed another: the young verdicts come and go.
const LIVE_MARGIN: u64 = 2 << 20;
const RESIDENT_MARGIN: u64 = 16 << 20;

fn config() -> Config {
    Config {
        verdict_bytes_max: 4 << 20,
        refusals_max: 10_000,
        // Requests come faster than refusals expire.
        refusal_seconds: 3600,
        store_bytes_max: 32 << 20,
        ..Config::default()
    }
}

/// Largest number of bytes of a refusal, with its place in the order of age.
const REFUSAL_BYTES: usize = 400;

fn request(index: u64) -> (Arc<Bundle>, Verdict) {
    let mut bundle = empty(Form::BlobProofs);
    if index.is_multiple_of(VALID_EVERY) {
        push_constant(&mut bundle, index + 1);
        return (Arc::new(bundle), Verdict::Valid);
    }
    push_constant(&mut bundle, 1);
    let mut blob = vec![0xff; BLOB_BYTES];
    blob[..32].copy_from_slice(&U256::from(index).to_be_bytes::<32>());
    bundle.blobs[0] = blob.into();
    let reason = Reason::NotCanonical { element: 1 };
    (Arc::new(bundle), Verdict::Invalid(Refusal { blob: Some(0), reason }))
}

fn main() -> ExitCode {
    if !is_bench() {
        return ExitCode::SUCCESS;
    }
    let requests = number("TANDEM_SOAK_REQUESTS").unwrap_or(REQUESTS).max(SAMPLES);
    let runtime = Runtime::new().unwrap();
    let service = start(config());
    let client = connect(&runtime, serve(&runtime, service.clone()));
    let before = process::live();
    let (started, mut samples) = (Instant::now(), Vec::new());
    say("   requests  live MiB  resident MiB  verdicts  stored  seconds");
    for part in 0..SAMPLES {
        let part = part * requests / SAMPLES..(part + 1) * requests / SAMPLES;
        runtime.block_on(async {
            let mut calls = JoinSet::new();
            for index in part.clone() {
                if calls.len() >= WINDOW {
                    calls.join_next().await.unwrap().unwrap();
                }
                let (bundle, expected) = request(index);
                let answer = client.validate(bundle, TIMEOUT);
                calls.spawn(async move { assert_eq!(answer.await, Ok(expected)) });
            }
            calls.join_all().await;
        });
        let status = runtime.block_on(service.status()).unwrap();
        let (live, resident) = (process::live() - before.min(process::live()), resident_bytes());
        say(&format!(
            "{:11} {:9.1} {:13.1} {:9} {:7} {:8.0}",
            part.end,
            mib(live as u64),
            mib(resident),
            status.verdicts,
            status.stored_blobs,
            started.elapsed().as_secs_f64(),
        ));
        samples.push((live as u64, resident));
    }
    let status = runtime.block_on(service.status()).unwrap();
    assert_eq!(status.verified, requests, "every one was new");
    service.stop();
    judge(&samples)
}

fn judge(samples: &[(u64, u64)]) -> ExitCode {
    let config = config();
    let allowed = config.verdict_bytes_max
        + config.refusals_max * REFUSAL_BYTES
        + config.store_bytes_max
        + OTHER_BYTES;
    let quarter = samples.len() / 4;
    let most = |samples: &[(u64, u64)]| {
        let live = samples.iter().map(|sample| sample.0).max().unwrap();
        (live, samples.iter().map(|sample| sample.1).max().unwrap())
    };
    let (second, last) = (most(&samples[quarter..2 * quarter]), most(&samples[3 * quarter..]));
    let flat = last.0 <= second.0 + LIVE_MARGIN && last.1 <= second.1 + RESIDENT_MARGIN;
    let within = most(samples).0 <= allowed as u64;
    say(&format!(
        "most live {:.1} MiB in the second quarter, {:.1} in the last, {:.1} allowed; resident {:.1}, \
         {:.1}: {}",
        mib(second.0),
        mib(last.0),
        mib(allowed as u64),
        mib(second.1),
        mib(last.1),
        if flat && within { "flat, within the configured bytes" } else { "TOO MUCH" },
    ));
    if flat && within { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Returns the resident memory as Linux reports it in `/proc`.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}
