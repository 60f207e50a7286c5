//! Tests tx-executors as processes of a cluster, on blocks with access lists.

use crate::binary;
use serde_json::{Value, json};
use tandem_bus_tests::eventually;
use tandem_cluster_tests::{Corpus, Process, Six, send_head, send_payload};
use tempfile::TempDir;

const LEASED: &str = "tandem_executor_leased_transactions_total";

/// Returns the sum of a counter over the lines that begin so.
fn counter(metrics: &str, name: &str) -> f64 {
    let values = metrics.lines().filter(|line| line.starts_with(name));
    values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// Waits until the executor has connections to so many tx-executors.
fn await_connections(six: &Six, count: f64) {
    eventually("connections to the tx-executors", || {
        let metrics = six.metrics("executor");
        (counter(&metrics, "tandem_tx_executor_client_connections_total") >= count).then_some(())
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_are_valid_whatever_becomes_of_a_tx_executor() {
    let corpus = Corpus::amsterdam();
    let folder = TempDir::new().unwrap();
    let more = ["--nats", "none", "--tx-executors", "2"];
    let mut six = Six::start(binary(), folder.path(), &corpus.genesis(), &more);
    await_connections(&six, 2.0);
    let mut engine = six.endpoints.engine();
    let blocks: Vec<_> = corpus.payloads().collect();
    let third = blocks.len() / 3;
    for (index, block) in blocks.iter().enumerate() {
        if index == third {
            // A newcomer is compared before it is used.
            let metrics = six.metrics("executor");
            let compared = counter(&metrics, &format!("{LEASED}{{outcome=\"compared\"}}"));
            assert!(compared > 0.0, "{}", six.log());
            let executed = ["tx-executor-1", "tx-executor-2"]
                .map(|name| counter(&six.metrics(name), "tandem_tx_executor_transactions_total"));
            assert!(executed.iter().all(|count| *count > 0.0), "{executed:?}");
            six.kill("tx-executor");
        }
        if index == 2 * third {
            // The cluster has started the killed one again.
            await_connections(&six, 3.0);
        }
        // A payload with another list is invalid, before and after the right one.
        if index % 7 == 3 {
            let mut wrong = block.params.clone();
            wrong[0]["blockAccessList"] = json!("0xc0");
            let status = engine.call(&block.method, wrong).await.unwrap();
            assert_eq!(status["status"], "INVALID", "block {index}: {status}");
        }
        let sent = send_payload(&mut engine, block).await;
        sent.unwrap_or_else(|error| panic!("payload {index}: {error}\n{}", six.log()));
        send_head(&mut engine, block.hash).await.unwrap();
    }
    let mut http = six.endpoints.http();
    let head: Value = http.call("eth_getBlockByNumber", json!(["latest", false])).await.unwrap();
    assert_eq!(head["stateRoot"], json!(corpus.head_state_root));
    let metrics = six.metrics("executor");
    let wrong = "tandem_executor_tx_executor_failures_total{kind=\"wrong\"}";
    assert_eq!(counter(&metrics, wrong), 0.0, "an honest one is quarantined\n{}", six.log());
    let (status, _) = six.stop();
    assert!(status.success(), "{status}: {}", six.log());
    let (status, text) = Process::verify(binary(), folder.path());
    assert!(status.success(), "{status}\n{text}");
}
