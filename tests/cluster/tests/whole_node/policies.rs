//! Policies change how a block is processed, never its result.

use alloy_primitives::B256;
use serde_json::{Value, json};
use std::{io::Write, time::Instant};
use tandem_chain::{Fork, Payload};
use tandem_cluster_tests::{
    Builder, Built, Contents, Corpus, Forks, Node, decode_status, new_payload, reseal,
};

/// Each value of each policy at least once.
const POLICIES: [&str; 8] = [
    r#"{"transition_flush": "fixed{3}", "receipts_root": "incremental", "reads": "one-by-one"}"#,
    r#"{"transition_flush": "adaptive{100000,6,2}", "receipts_root": "background", "reads": "foretold"}"#,
    r#"{"transition_flush": "every-tx", "receipts_root": "at-end", "reads": "rounds", "batching": "fixed{16,500}", "chunking": "while-idle"}"#,
    r#"{"batching": "pressure{4,10}", "chunking": "never", "receipts_root": "background", "dispatch": "blocking"}"#,
    r#"{"batching": "window{100}", "chunking": "always", "chunk_targets": 1, "access_lists": "checked", "transition_flush": "while-empty{2}"}"#,
    r#"{"batching": "drain", "chunking": "while-idle", "force_chunk_targets": 2, "dispatch": "streaming"}"#,
    r#"{"transition_flush": "fixed{100000}", "receipts_root": "incremental"}"#,
    r#"{"batching": "none", "chunk_targets": 5, "access_lists": "followed"}"#,
];

/// A false claim in a payload, and the error that starts the answer, with the correct value.
type Lie = (fn(&mut Payload), fn(&Built) -> String);

const LIES: [Lie; 4] = [
    (
        |payload| payload.receipts_root.0[31] ^= 1,
        |valid| format!("receipts root is {}, not 0x", valid.header.receipts_root),
    ),
    (
        |payload| payload.logs_bloom.0[200] ^= 1,
        |_| "logs bloom differs from that of the receipts".into(),
    ),
    (
        |payload| payload.gas_used += 1,
        |valid| format!("gas used is {}, not ", valid.header.gas_used),
    ),
    (
        |payload| payload.state_root.0[0] ^= 1,
        |valid| format!("state root after execution is {}, the", valid.header.state_root),
    ),
];

async fn refuse_lies(node: &mut Node, valid: &Built, label: &str) {
    for (lie, reason) in LIES {
        let (mut payload, sidecar) = (valid.payload.clone(), valid.sidecar.clone());
        lie(&mut payload);
        reseal(&mut payload, &sidecar);
        let (method, params) = new_payload(valid.fork, &payload, &sidecar);
        let status = decode_status(node.engine.call(method, params).await.unwrap());
        let parent = Some(valid.header.parent_hash);
        assert_eq!(status.verdict(), ("INVALID", parent), "{label}: {status:?}");
        let error = status.validation_error.unwrap();
        let reason = reason(valid);
        assert!(error.contains(&reason), "{label}: {error:?} does not say {reason:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_every_policy_the_same_blocks_are_valid_and_the_same_lies_are_named() {
    for fork in [Fork::Paris, Fork::Osaka] {
        let mut builder = Builder::new(Forks::at_genesis(fork));
        let mut node = Node::start(builder.genesis_json()).await;
        let mut parent: B256 = builder.genesis();
        for (index, policies) in POLICIES.into_iter().cycle().take(2 * POLICIES.len()).enumerate() {
            let wanted: Value = serde_json::from_str(policies).unwrap();
            let all = node.engine.call("tandem_setPolicies", json!([wanted])).await.unwrap();
            for (key, value) in wanted.as_object().unwrap() {
                assert_eq!(&all[key], value);
            }
            // First every action of a fork, then blocks of various length.
            let contents = match index.checked_sub(POLICIES.len()) {
                None => Contents::Everything,
                Some(more) => Contents::Random(7 * more),
            };
            let valid = builder.build(parent, 100 + index as u64, contents);
            refuse_lies(&mut node, &valid, &format!("{fork}, {policies}")).await;
            node.extend(&valid).await;
            parent = valid.hash;
            if index % 5 == 4 {
                node.assert_head(&valid).await;
            }
        }
        node.stop_and_verify().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_are_for_those_with_a_token() {
    let builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let mut node = Node::start(builder.genesis_json()).await;
    let all = node.engine.call("tandem_policies", json!([])).await.unwrap();
    assert_eq!(all.as_object().unwrap().len(), 9);
    let error =
        node.engine.call("tandem_setPolicies", json!([{"speed": "high"}])).await.unwrap_err();
    assert_eq!(error.code, -32602);
    assert!(error.message.starts_with("unknown policy `speed`"), "{}", error.message);
    for method in ["tandem_policies", "tandem_setPolicies"] {
        let error = node.http.call(method, json!([{}])).await.unwrap_err();
        assert_eq!(error.code, -32601, "{method}");
    }
    node.stop_and_verify().await;
}

/// Policies compared with the defaults, which come first. The second line repeats the defaults, to
/// measure the noise.
const COMPARED: [&str; 8] = [
    "{}",
    "{}",
    r#"{"receipts_root": "at-end"}"#,
    r#"{"receipts_root": "incremental"}"#,
    r#"{"receipts_root": "background"}"#,
    r#"{"transition_flush": "every-tx"}"#,
    r#"{"transition_flush": "fixed{8}"}"#,
    r#"{"transition_flush": "adaptive{500000,5,2}"}"#,
];

fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Runs a node for each line of [`COMPARED`]. Each payload goes to all of them, beginning with a
/// different node each time. The result is the ratio to the first node's time for the same payload.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures: TANDEM_CORPUS=DIR cargo test --release --test policies -- --ignored --nocapture"]
async fn policies_side_by_side() {
    let folder = std::env::var("TANDEM_CORPUS");
    let corpus = folder.map_or_else(|_| Some(Corpus::demo()), |folder| Corpus::open(folder.into()));
    let corpus = corpus.expect("a corpus");
    let mut nodes = Vec::new();
    for policies in COMPARED {
        let mut node = Node::start_from(&corpus.genesis()).await;
        let wanted: Value = serde_json::from_str(policies).unwrap();
        node.engine.call("tandem_setPolicies", json!([wanted])).await.unwrap();
        nodes.push((node, Vec::new()));
    }
    let count = nodes.len();
    for (index, payload) in corpus.payloads().enumerate() {
        for turn in 0..count {
            let (node, times) = &mut nodes[(index + turn) % count];
            let started = Instant::now();
            let answer = node.engine.call(&payload.method, payload.params.clone()).await.unwrap();
            times.push(started.elapsed().as_secs_f64() * 1e3);
            assert_eq!(decode_status(answer).verdict(), ("VALID", Some(payload.hash)));
            node.set_head(payload.hash).await;
        }
    }
    let first = nodes[0].1.clone();
    let mut table =
        format!("{:>8} {:>8}  policies ({} payloads)\n", "p50 ms", "ratio", first.len());
    for (policies, (node, mut times)) in COMPARED.into_iter().zip(nodes) {
        let mut ratios: Vec<_> =
            times.iter().zip(&first).map(|(time, first)| time / first).collect();
        let (ratio, time) = (median(&mut ratios), median(&mut times));
        table += &format!("{time:8.3} {ratio:8.4}  {policies}\n");
        node.stop_and_verify().await;
    }
    std::io::stdout().write_all(table.as_bytes()).unwrap();
}
