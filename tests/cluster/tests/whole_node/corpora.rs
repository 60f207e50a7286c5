//! Recorded chains, built by geth: every payload is VALID, the head and its state root are geth's,
//! and the database is clean.

use serde_json::json;
use std::io::Write;
use tandem_cluster_tests::{Corpus, Node, Recorded, decode_status, is_full_run, repository};

/// Payloads replayed of a large corpus; a full run replays all.
const PAYLOADS_MAX: usize = 40;

async fn replay(corpus: &Corpus, payloads_max: usize) {
    let mut node = Node::start_from(&corpus.genesis()).await;
    let genesis = node.http.call("eth_getBlockByNumber", json!(["earliest", false])).await.unwrap();
    assert_eq!(genesis["hash"], json!(corpus.genesis_hash));
    let mut head = corpus.genesis_hash;
    for (index, Recorded { method, params, hash }) in
        corpus.payloads().take(payloads_max).enumerate()
    {
        let status = decode_status(node.engine.call(&method, params).await.unwrap());
        assert_eq!(status.verdict(), ("VALID", Some(hash)), "payload {}: {status:?}", index + 1);
        node.set_head(hash).await;
        head = hash;
    }
    let latest = node.http.call("eth_getBlockByNumber", json!(["latest", false])).await.unwrap();
    assert_eq!(latest["hash"], json!(head));
    if payloads_max >= corpus.blocks {
        assert_eq!(head, corpus.head_hash);
        assert_eq!(latest["stateRoot"], json!(corpus.head_state_root));
    }
    node.stop_and_verify().await;
}

/// Replays a corpus that is too large for the repository; on some machines it lies beside it.
async fn replay_shared(name: &str) {
    let folder = repository().join("../shared/corpora").join(name);
    let Some(corpus) = Corpus::open(folder.clone()) else {
        // Not by a macro: its output is captured in tests that pass.
        let line = format!("SKIPPED: no corpus at {}\n", folder.display());
        std::io::stderr().write_all(line.as_bytes()).unwrap();
        return;
    };
    replay(&corpus, if is_full_run() { usize::MAX } else { PAYLOADS_MAX }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_demo_corpus_is_valid() {
    replay(&Corpus::demo(), usize::MAX).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_amsterdam_corpus_is_valid() {
    replay(&Corpus::amsterdam(), usize::MAX).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_mixed_corpus_is_valid() {
    replay_shared("mixed-30m").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_token_corpus_is_valid() {
    replay_shared("erc20-30m").await;
}
