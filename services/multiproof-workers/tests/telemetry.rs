//! Traces and metrics of a block. The recorders belong to the whole process, so this is one test.
#![allow(dead_code, clippy::unwrap_used)]

#[path = "support/fake.rs"]
mod fake;
#[path = "support/token.rs"]
mod token;

use fake::Fake;
use std::sync::Arc;
use tandem_multiproof_workers::MultiproofWorkers;
use tandem_policy::LivePolicies;
use tandem_primitives::BlockId;
use tandem_proto::multiproof::{Begin, ProofApi, StateUpdate};
use tandem_telemetry::{Config, SpanRecord, Telemetry, Value, init};
use token::{id, policies, small, start, token, token_state, write};
use tracing::info_span;

/// Proves a block and returns its spans.
fn prove(
    workers: &MultiproofWorkers,
    telemetry: &Telemetry,
    block: BlockId,
    parent: BlockId,
    updates: Vec<Arc<StateUpdate>>,
) -> Vec<Arc<SpanRecord>> {
    {
        let _root = info_span!(target: "tandem_executor", "on_new_payload").entered();
        let mut session = workers.begin(Begin::new(block, parent.hash)).unwrap();
        updates.into_iter().for_each(|update| session.update(update));
        session.roots().unwrap();
    }
    telemetry.ring().traces(1).into_iter().flatten().collect()
}

fn named<'a>(spans: &'a [Arc<SpanRecord>], name: &str) -> Vec<&'a SpanRecord> {
    spans.iter().filter(|span| span.name == name).map(|span| &**span).collect()
}

/// Returns the spans of the lane in order of time. They do not overlap, and no two of a kind are
/// nearer than the gap that is closed.
fn lane(spans: &[Arc<SpanRecord>]) -> Vec<&SpanRecord> {
    let names = ["state root, while executing", "state root, after execution"];
    let mut lane: Vec<_> = names.iter().flat_map(|name| named(spans, name)).collect();
    lane.sort_by_key(|span| span.start_ns);
    assert!(!lane.is_empty());
    for pair in lane.windows(2) {
        let gap = if pair[0].name == pair[1].name { 200_000 } else { 2_000 };
        assert!(pair[1].start_ns - pair[0].end_ns >= gap, "{pair:#?}");
    }
    assert!(lane.iter().all(|span| !span.busy.is_empty() && span.service == "multiproof-workers"));
    assert_eq!(lane.last().unwrap().name, names[1], "the tries are hashed after execution");
    lane
}

fn number(span: &SpanRecord, attribute: &str) -> Option<i64> {
    span.attributes.iter().find_map(|(name, value)| match value {
        Value::Int(number) if *name == attribute => Some(*number),
        _ => None,
    })
}

/// Returns the value of a metric, by its name with exactly these labels.
fn metric(text: &str, name: &str) -> Option<f64> {
    let name = format!("tandem_multiproof_workers_{name} ");
    text.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok())
}

#[test]
fn a_cold_block_shows_its_proofs_and_a_warm_one_has_none() {
    let telemetry = init(&Config::default()).unwrap();
    let fake = Fake::new(id(0, 0), &token_state(40));
    let live = LivePolicies::new(policies("window{1000000}", "always", 5));
    let workers = start(&fake, &small(2), &live);
    let whole = Arc::new(StateUpdate { accounts: vec![token(40)] });

    let cold = prove(&workers, &telemetry, id(1, 1), id(0, 0), vec![whole.clone(), whole]);
    let lane = lane(&cold);
    // 41 keys in 7 jobs, and the tops of the 15 untouched shards in 3.
    assert_eq!((number(lane[0], "targets"), number(lane[0], "jobs")), (Some(56), Some(10)));
    assert_eq!(number(lane[0], "batches"), Some(1), "one window");
    let threads = number(lane[0], "threads").unwrap();
    assert!((2..=3).contains(&threads), "an owner and its readers: {threads}");
    assert!(number(lane[0], "proof.gap_max_us").is_some());
    for workers in ["storage worker", "account worker", "proof worker"] {
        assert!(named(&cold, workers).is_empty(), "{workers} is of a level that is off");
    }

    let warm = prove(&workers, &telemetry, id(2, 1), id(1, 1), vec![write(3, 9)]);
    let lane = self::lane(&warm);
    assert_eq!((number(lane[0], "targets"), number(lane[0], "jobs")), (Some(0), Some(0)));
    assert_eq!(number(lane[0], "threads"), Some(1), "no proof thread read anything");

    workers.stop();
    let text = telemetry.render_metrics();
    for (name, want) in [
        ("batch_updates_count", 2.0),
        ("batch_updates_sum", 3.0),
        ("batch_updates_bucket{le=\"1\"}", 1.0),
        ("dispatch_chunks_bucket{le=\"8\"}", 2.0),
        ("dispatch_targets_sum", 56.0),
        ("idle_workers_count", 2.0),
        ("active_storage_workers_count", 2.0),
        ("active_account_workers_count", 2.0),
        ("block_targets_count", 2.0),
        ("block_targets_sum", 56.0),
        ("proof_seconds_count", 10.0),
        ("proof_gap_seconds_count", 10.0),
        ("targets_total", 56.0),
        // The second of the two equal updates needed all of the first one's keys.
        ("duplicate_targets_total", 41.0),
        ("chunking_skipped_total", 0.0),
    ] {
        assert_eq!(metric(&text, name), Some(want), "{name}\n{text}");
    }
    // The time at which a node is hashed depends on the threads, but not whether it is hashed. All
    // changed nodes have a hash here, and none went away.
    let value = |name: &str| metric(&text, name).unwrap();
    let hashed = ["{when=\"ahead\"}", "{when=\"end\"}"]
        .map(|when| value(&format!("nodes_hashed_total{when}")))
        .iter()
        .sum::<f64>();
    let changed = value("nodes_changed_total");
    assert_eq!(hashed - value("nodes_hashed_again_total"), changed, "{text}");
    assert!(changed > 0.0, "{text}");
}
