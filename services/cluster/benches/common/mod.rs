//! Code that the benches of the cluster share.
#![allow(dead_code)]

use bytes::Bytes;
use serde_json::{Value, json};
use std::{
    io,
    time::{Duration, Instant},
};
use tandem_cluster_tests::decode_status;
use tandem_executor::{
    Handle,
    rpc::{ClientInfo, engine_methods},
};
use tandem_http::{Methods, Params};
use tandem_primitives::B256;
use tokio::runtime::Runtime;

/// Returns whether `cargo bench` runs this, not `cargo test` over all targets.
pub fn is_bench() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

/// Prints a result to standard output.
pub fn say(line: &str) {
    use io::Write;
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}");
}

/// The Engine API below HTTP: the same handlers, with the same text.
pub struct Engine<'a> {
    runtime: &'a Runtime,
    methods: Methods,
}

impl<'a> Engine<'a> {
    pub fn new(runtime: &'a Runtime, handle: &Handle) -> Self {
        let client = ClientInfo { version: "0.0.0".to_owned(), commit: [0; 4] };
        Self { runtime, methods: engine_methods(handle, client) }
    }

    fn call(&self, method: &str, params: &Value) -> (Value, Duration) {
        let params = Params::new(Bytes::from(params.to_string()));
        let started = Instant::now();
        let answer = self.runtime.block_on(self.methods.call(method, params));
        let took = started.elapsed();
        let answer = answer.unwrap_or_else(|error| panic!("{method}: {error:?}"));
        (serde_json::from_str(answer.get()).unwrap_or_default(), took)
    }

    /// Sends a payload that must be valid. Returns the time it took.
    pub fn new_payload(&self, method: &str, params: &Value, hash: B256) -> Duration {
        let (answer, took) = self.call(method, params);
        let status = decode_status(answer);
        assert_eq!(status.verdict(), ("VALID", Some(hash)), "{status:?}");
        took
    }

    /// Makes a block the head. Returns the time it took.
    pub fn set_head(&self, head: B256) -> Duration {
        let state = json!({
            "headBlockHash": head, "safeBlockHash": B256::ZERO, "finalizedBlockHash": B256::ZERO,
        });
        let (answer, took) = self.call("engine_forkchoiceUpdatedV3", &json!([state, null]));
        let status = decode_status(answer["payloadStatus"].clone());
        assert_eq!(status.verdict(), ("VALID", Some(head)), "{status:?}");
        took
    }
}

/// Returns the value below which this share of the sorted values lies.
pub fn quantile<T: Copy>(sorted: &[T], share: f64) -> T {
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

/// Returns a duration in milliseconds.
pub fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
