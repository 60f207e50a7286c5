//! Faults of tx-executors and of the network to them while payloads flow, and payloads with another
//! access list.

use super::{
    GAP, SHARE,
    outside::{Fault, Outside},
};
use crate::{
    Setting,
    client::{Client, sum_of},
    corpus::Corpus,
    figure::{Figure, Limit},
    quota::Quota,
    sides::WARMUP,
};
use anyhow::{Context as _, ensure};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};
use std::{thread, time::Duration};
use tandem_chain::{AccessList, Payload, PayloadSidecar};
use tandem_cluster_tests::reseal;
use tandem_overlap::stats::quantile;

/// Number of faults of a full run, and of a quick one.
const FAULTS: [usize; 2] = [200, 24];
/// Number of tx-executors.
const MEMBERS: usize = 2;
/// Longest time from the beginning of a payload to the fault.
const FAULT_AFTER_MAX: Duration = Duration::from_millis(150);
/// Longest wait of the executor for what a tx-executor does not answer, in ms.
const BOUND_MS: f64 = 100.0;

/// Replays a corpus until there were enough faults, one in each second payload.
pub fn measure(setting: &Setting, name: &str, corpus: &Corpus) -> anyhow::Result<Vec<Figure>> {
    let count = FAULTS[usize::from(setting.quick)];
    let mut rng = StdRng::seed_from_u64(setting.seed);
    let (mut calm, mut hit) = (Vec::new(), Vec::new());
    let (mut accepted, mut lists, mut failures) = (0, 0, 0.0);
    ensure!(corpus.len() > 2 * WARMUP, "the corpus has {} blocks", corpus.len());
    while hit.len() < count {
        let mut outside = Outside::start(&setting.tandem, MEMBERS)?;
        let node = outside.start_cluster(&corpus.genesis)?;
        let processes: Vec<_> = node.processes()?.into_iter().map(|(_, pid)| pid).collect();
        let quota = Quota::of_each(&processes, SHARE).context("limit the processes")?;
        outside.limit()?;
        let mut index = 0;
        let send = |engine: &mut Client, body: &str| {
            index += 1;
            if index <= WARMUP {
                return engine.post(body);
            }
            if index % 8 == 1 {
                lists += 1;
                let answer = engine.post(&with_another_list(body, &mut rng)?)?.value;
                accepted += usize::from(answer["result"]["status"] != "INVALID");
            }
            if index % 2 == 0 {
                let answer = engine.post(body)?;
                calm.push(answer.elapsed.as_secs_f64() * 1e3);
                return Ok(answer);
            }
            let fault = *Fault::ALL.choose(&mut rng).context("no faults")?;
            let member = rng.random_range(0..MEMBERS);
            let after = rng.random_range(Duration::ZERO..FAULT_AFTER_MAX);
            let answer = thread::scope(|scope| {
                let disturbing = scope.spawn(|| {
                    thread::sleep(after);
                    outside.disturb(member, fault)
                });
                let answer = engine.post(body);
                disturbing.join().ok().context("a fault panicked")??;
                answer
            })?;
            hit.push(answer.elapsed.as_secs_f64() * 1e3);
            Ok(answer)
        };
        corpus.replay_by(&node, GAP, send, |_| Ok(()))?;
        let failed = "tandem_executor_tx_executor_failures_total";
        failures += sum_of(&node.metrics()?, failed).unwrap_or_default();
        drop(node);
        drop(quota);
    }
    calm.sort_by(f64::total_cmp);
    hit.sort_by(f64::total_cmp);
    let p50 = quantile(&calm, 0.5).context("no payload without a fault")?;
    let p99 = quantile(&hit, 0.99).context("no payload with a fault")?;
    let over = p99 / (1.5 * p50 + BOUND_MS);
    let name = |what: &str| format!("{name}: {what}");
    let seen = format!("{} faults, the executor noticed {failures}", hit.len());
    let times = format!("p50 without {p50:.0} ms, p99 with {p99:.0} ms");
    Ok(vec![
        // A block that is not VALID ends the replay with an error.
        Figure::new(name("valid blocks that are not VALID"), 0.0, Limit::Exactly(0.0)).note(seen),
        Figure::new(name("wrong lists that are not INVALID"), accepted as f64, Limit::Exactly(0.0))
            .note(format!("{lists} blocks")),
        Figure::new(name("p99 with a fault / (1.5 p50 + 100 ms)"), over, Limit::AtMost(1.0))
            .note(times),
    ])
}

/// Returns a payload whose access list has another byte somewhere and still decodes, with the hash that
/// belongs to it.
fn with_another_list(body: &str, rng: &mut StdRng) -> anyhow::Result<String> {
    let mut body: Value = serde_json::from_str(body)?;
    let params = &mut body["params"];
    let mut payload: Payload = serde_json::from_value(params[0].clone())?;
    let sidecar = PayloadSidecar {
        versioned_hashes: serde_json::from_value(params[1].clone())?,
        parent_beacon_block_root: serde_json::from_value(params[2].clone())?,
        execution_requests: serde_json::from_value(params[3].clone())?,
    };
    let right = payload.block_access_list.take().context("the payload has no access list")?;
    let mut list = right.to_vec();
    loop {
        let at = rng.random_range(0..list.len());
        let before = list[at];
        list[at] = rng.random();
        if list[at] != before && AccessList::decode(list.clone().into()).is_ok() {
            break;
        }
        list[at] = before;
    }
    payload.block_access_list = Some(list.into());
    reseal(&mut payload, &sidecar);
    params[0] = json!(payload);
    Ok(body.to_string())
}
