//! newPayload beside callers of the public port.

use crate::{
    Setting,
    corpus::{Corpus, ratio},
    figure::{Figure, Limit, Report},
    node::Node,
};
use serde_json::{Value, json};
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Longest wait of a public caller.
const CALL_TIME_MAX: Duration = Duration::from_secs(30);
/// Pause of a caller after a refusal, as a client would make.
const RETRY: Duration = Duration::from_millis(20);
/// Concurrent loops of `eth_call`.
const CALLERS: usize = 200;
/// Concurrent loops of `eth_getProof`.
const PROVERS: usize = 8;

/// Initcode that hashes 64 KiB until its gas is used up.
const HASH_LOOP: &str = "0x5b61ffff5f20505f56";
/// Gas of a call, the maximum allowed.
const GAS: &str = "0x2faf080";

/// Returns the parameters of an `eth_call` that uses all its gas.
pub fn long_call() -> Value {
    json!([{"data": HASH_LOOP, "gas": GAS}, "latest"])
}

/// Measures both figures.
pub fn measure(setting: &Setting, report: &mut Report) {
    report.measure("calls: newPayload beside 200 eth_call loops", || {
        let name = "calls: newPayload beside 200 eth_call loops, ratio";
        figures(setting, name, 1.5, CALLERS, "eth_call", &|_| long_call())
    });
    report.measure("proofs: newPayload beside 8 eth_getProof loops", || {
        let name = "proofs: newPayload beside 8 eth_getProof loops, ratio";
        figures(setting, name, 1.2, PROVERS, "eth_getProof", &|n| {
            let keys: Vec<String> = (0..64).map(|key| format!("{:#x}", n * 64 + key)).collect();
            json!([format!("{:#042x}", n + 1), keys, "latest"])
        })
    });
}

/// Replays the demo corpus alternately without and with callers, each time on a new node.
fn figures(
    setting: &Setting,
    name: &str,
    limit: f64,
    callers: usize,
    method: &str,
    params: &(dyn Fn(u64) -> Value + Sync),
) -> anyhow::Result<Vec<Figure>> {
    let blocks = if setting.quick { 24 } else { 64 };
    let corpus = Corpus::load(&setting.demo, blocks)?;
    let (mut without, mut with) = (Vec::new(), Vec::new());
    let (mut answered, mut refused) = (0, 0);
    for _ in 0..if setting.quick { 1 } else { 3 } {
        let node = Node::start(&setting.tandem, &corpus.genesis, "")?;
        without.push(corpus.replay(&node, Duration::ZERO)?);
        let node = Node::start(&setting.tandem, &corpus.genesis, "")?;
        let calls = Calls::default();
        let times = std::thread::scope(|scope| {
            for caller in 0..callers {
                let (node, calls) = (&node, &calls);
                scope.spawn(move || calls.repeat(node, method, params, caller as u64));
            }
            std::thread::sleep(Duration::from_millis(500));
            let times = corpus.replay(&node, Duration::ZERO);
            calls.stop.store(true, Relaxed);
            times
        });
        with.push(times?);
        answered += calls.answered.into_inner();
        refused += calls.refused.into_inner();
    }
    let estimate = ratio(&with, &without, setting.seed)?;
    let note = format!("{answered} calls answered, {refused} refused");
    Ok(vec![Figure::estimate(name, estimate, Limit::AtMost(limit)).note(note)])
}

#[derive(Default)]
struct Calls {
    stop: AtomicBool,
    answered: AtomicU64,
    refused: AtomicU64,
}

impl Calls {
    /// Calls until told to stop. An error object is an answer: long calls end with one.
    fn repeat(
        &self,
        node: &Node,
        method: &str,
        params: &(dyn Fn(u64) -> Value + Sync),
        caller: u64,
    ) {
        let mut client = node.public(CALL_TIME_MAX);
        let body = crate::client::request(method, &params(caller));
        while !self.stop.load(Relaxed) {
            let is_refused = match client.post(&body) {
                Ok(answer) => answer.value["error"]["code"] == -32005,
                Err(_) => true,
            };
            if is_refused {
                self.refused.fetch_add(1, Relaxed);
                std::thread::sleep(RETRY);
            } else {
                self.answered.fetch_add(1, Relaxed);
            }
        }
    }
}
