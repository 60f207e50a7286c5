//! Tests tx-pool in a process of its own: what users send, what blocks of the executor have, what
//! restarts keep, and how transactions travel between the cluster and a peer.

use crate::binary;
use alloy_primitives::{B256, Bytes};
use serde_json::{Value, json};
use std::{fs, net::Ipv4Addr, sync::Arc, time::Duration};
use tandem_chain::Fork;
use tandem_cluster::{Config, load_or_create_node_key};
use tandem_cluster_tests::{
    Builder, Client, Forks, GENESIS_TIME, Node, Process, Running, Six, TestBlob, Transfer,
    blob_transaction,
    driver::{Proposal, attributes, choose, take},
    signal, wait,
};
use tandem_proto::tx_pool::{Error, TxPoolApi};
use tandem_tx_pool_client as tx_pool;
use tempfile::TempDir;

const FORK: Fork = Fork::Osaka;
const TIP: u128 = 1_000_000_000;

async fn send(http: &mut Client, raw: &Bytes) -> B256 {
    let hash = http.call("eth_sendRawTransaction", json!([raw])).await.unwrap();
    serde_json::from_value(hash).unwrap()
}

/// Returns the numbers of pending and queued transactions, `None` without an answer of the pool.
async fn counts(http: &mut Client) -> Option<(u64, u64)> {
    let status = http.try_call("txpool_status", json!([])).await.ok()?.ok()?;
    let number = |name: &str| {
        let text = status[name].as_str().unwrap().trim_start_matches("0x");
        u64::from_str_radix(text, 16).unwrap()
    };
    Some((number("pending"), number("queued")))
}

async fn wait_for_counts(http: &mut Client, want: (u64, u64)) {
    wait(&format!("{want:?}"), async || (counts(http).await == Some(want)).then_some(())).await;
}

async fn has(http: &mut Client, hash: B256) -> bool {
    let found = http.call("eth_getTransactionByHash", json!([hash])).await;
    found.is_ok_and(|found| !found.is_null())
}

/// Builds blocks on this head until one has the transaction. Each gets the time to be improved.
async fn proposal(engine: &mut Client, head: B256, time: u64, wanted: &Bytes) -> Proposal {
    let mut salt = 0;
    wait("a block with the transaction", async || {
        salt += 1;
        let id = choose(engine, FORK, head, attributes(FORK, time, salt)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let built = take(engine, FORK, &id).await;
        built.payload.transactions.contains(wanted).then_some(built)
    })
    .await
}

async fn accept(engine: &mut Client, built: &Proposal) -> B256 {
    let hash = built.payload.block_hash;
    assert_eq!(built.send(engine).await.verdict(), ("VALID", Some(hash)));
    choose(engine, FORK, hash, Value::Null).await;
    hash
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pool_of_a_cluster_outlives_itself_and_the_executor() {
    let folder = TempDir::new().unwrap();
    let builder = Builder::new(Forks::at_genesis(FORK));
    let genesis = folder.path().join("genesis.json");
    fs::write(&genesis, builder.genesis_json()).unwrap();
    let mut six = Six::start(binary(), folder.path(), &genesis, &["--nats", "none"]);
    let (mut engine, mut http) = (six.endpoints.engine(), six.endpoints.http());
    assert_eq!(counts(&mut http).await, Some((0, 0)));

    // A user's transaction is seen, and in the next block.
    let first = Transfer::new(0, 0, TIP);
    assert_eq!(send(&mut http, &first.raw).await, first.hash);
    assert!(has(&mut http, first.hash).await);
    let params = json!([first.sender, "pending"]);
    assert_eq!(http.call("eth_getTransactionCount", params).await.unwrap(), json!("0x1"));
    let again = http.call("eth_sendRawTransaction", json!([first.raw])).await.unwrap_err();
    assert_eq!(again.data.unwrap()["reason"], json!("already_known"));
    let built = proposal(&mut engine, builder.genesis(), GENESIS_TIME + 12, &first.raw).await;
    let head = accept(&mut engine, &built).await;
    // The pool follows the head.
    wait_for_counts(&mut http, (0, 0)).await;

    // A pool that does not answer: blocks are empty and in time, and users are told.
    let (second, gapped) = (Transfer::new(0, 1, TIP), Transfer::new(1, 3, TIP));
    send(&mut http, &second.raw).await;
    send(&mut http, &gapped.raw).await;
    let content = http.call("txpool_content", json!([])).await.unwrap();
    let listed = &content["pending"][&second.sender.to_checksum(None)]["1"]["hash"];
    assert_eq!(listed, &json!(second.hash));
    let pid = six.running("tx-pool");
    signal(pid, rustix::process::Signal::STOP);
    let id = choose(&mut engine, FORK, head, attributes(FORK, GENESIS_TIME + 24, 1)).await.unwrap();
    let empty = take(&mut engine, FORK, &id).await;
    assert!(empty.payload.transactions.is_empty(), "{:?}", empty.payload.transactions);
    let head = accept(&mut engine, &empty).await;
    let third = Transfer::new(2, 0, TIP);
    let away = wait("a refusal", async || {
        http.call("eth_sendRawTransaction", json!([third.raw])).await.err()
    })
    .await;
    assert!(away.message.contains("tx-pool is not available"), "{away:?}");
    assert_eq!(away.data.unwrap()["reason"], json!("unavailable"));
    signal(pid, rustix::process::Signal::CONT);

    // A killed one comes back with what users sent. What was refused may have been taken.
    six.kill("tx-pool");
    wait("the next pool", async || six.pid("tx-pool").filter(|it| *it != pid)).await;
    wait("the journal", async || {
        let is_back = has(&mut http, second.hash).await && has(&mut http, gapped.hash).await;
        is_back.then_some(())
    })
    .await;
    let kept = counts(&mut http).await.unwrap();
    assert!(kept == (1, 1) || kept == (2, 1), "{kept:?}");

    // The executor's end costs the pool nothing.
    let pid = six.running("executor");
    six.kill("executor");
    wait("the next executor", async || six.pid("executor").filter(|it| *it != pid)).await;
    let (mut engine, mut http) = (six.endpoints.engine(), six.endpoints.http());
    wait("an answer of it", async || counts(&mut http).await.filter(|it| *it == kept)).await;
    let built = proposal(&mut engine, head, GENESIS_TIME + 36, &second.raw).await;
    accept(&mut engine, &built).await;
    wait_for_counts(&mut http, (0, 1)).await;
    let metrics = six.metrics("tx-pool");
    assert!(metrics.contains("tandem_tx_pool_pooled{"), "{metrics}");

    let (status, _) = six.stop();
    assert!(status.success(), "{status}: {}", six.log());
    let (status, text) = Process::verify(binary(), folder.path());
    assert!(status.success(), "{status}\n{text}");
}

/// Returns the settings of a node that dials only this peer.
fn dialling(peer: String) -> Config {
    let mut config = Config::small();
    config.with_sessions = true;
    config.peer_sessions.listen = (Ipv4Addr::LOCALHOST, 0).into();
    config.peer_sessions.static_peers = vec![peer];
    config.peer_sessions.redial_secs = 1;
    config.peer_sessions.dial_ms = 100;
    config
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_travel_between_a_cluster_and_its_peer() {
    let folder = TempDir::new().unwrap();
    let builder = Builder::new(Forks::at_genesis(FORK));
    let genesis = folder.path().join("genesis.json");
    fs::write(&genesis, builder.genesis_json()).unwrap();
    let mut six = Six::start(binary(), folder.path(), &genesis, &["--nats", "none"]);
    let mut http = six.endpoints.http();
    // One that is there before the session, and goes to the peer as a hash.
    let early = Transfer::new(0, 0, TIP);
    send(&mut http, &early.raw).await;
    let id = *load_or_create_node_key(&folder.path().join("data")).unwrap().public();
    let peer = format!("enode://{id:x}@127.0.0.1:{}", six.port("peer-sessions", "sessions"));
    let mut node = Node::start_with(builder.genesis_json(), dialling(peer)).await;
    wait("the early one", async || has(&mut node.http, early.hash).await.then_some(())).await;

    // In full and as a hash, both ways, with blobs and without.
    let there = Transfer::new(1, 0, TIP);
    send(&mut http, &there.raw).await;
    wait("one of the cluster", async || has(&mut node.http, there.hash).await.then_some(())).await;
    let back = Transfer::new(2, 0, TIP);
    send(&mut node.http, &back.raw).await;
    wait("one of the node", async || has(&mut http, back.hash).await.then_some(())).await;
    for (sender, seed) in [(3, 1), (4, 2)] {
        let blobs = [TestBlob::constant(seed)];
        let raw = blob_transaction(sender, &blobs, |_| ()).with_cells(&blobs).encode();
        let (from, to) =
            if seed == 1 { (&mut http, &mut node.http) } else { (&mut node.http, &mut http) };
        let hash = send(from, &raw).await;
        wait("a transaction with a blob", async || has(to, hash).await.then_some(())).await;
    }

    // The exchange goes on with the next pool, and with the next sessions.
    for (process, sender) in [("tx-pool", 5), ("peer-sessions", 7)] {
        let pid = six.running(process);
        six.kill(process);
        wait("the next process", async || six.pid(process).filter(|it| *it != pid)).await;
        wait("the pool", async || counts(&mut http).await).await;
        // An announcement while the process is away stays unheard, so further ones follow.
        let mut nonces = 0..;
        wait("one of the node", async || {
            let back = Transfer::new(sender, nonces.next()?, TIP);
            send(&mut node.http, &back.raw).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            has(&mut http, back.hash).await.then_some(())
        })
        .await;
        let there = Transfer::new(sender + 1, 0, TIP);
        send(&mut http, &there.raw).await;
        wait("one of the cluster", async || has(&mut node.http, there.hash).await.then_some(()))
            .await;
    }
    node.stop_and_verify().await;
    let (status, _) = six.stop();
    assert!(status.success(), "{status}: {}", six.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_chain_calls_say_so_and_the_process_waits_for_it() {
    let folder = TempDir::new().unwrap();
    let datadir = folder.path().join("pool");
    let arguments = [
        "tx-pool",
        "--datadir",
        datadir.to_str().unwrap(),
        "--grpc.port=0",
        "--metrics.port=0",
        // No process listens there.
        "--storage-writer=http://127.0.0.1:9",
        "--blob-validator=http://127.0.0.1:9",
        "--peer-sessions=http://127.0.0.1:9",
    ];
    let mut process = Running::start(binary(), folder.path(), "tx-pool", arguments);
    let address = process.says("listening port=\"grpc\" address=");
    let runtime = tokio::runtime::Handle::current();
    let settings = tx_pool::ClientConfig::default();
    let client = tx_pool::Client::connect(&format!("http://{address}"), settings, &runtime);
    let client: Arc<tx_pool::Client> = client.unwrap();
    wait("a connection", async || client.is_connected().then_some(())).await;
    let reason = "it waits for the chain of storage-writer".to_owned();
    assert_eq!(client.counts().await, Err(Error::Unavailable(reason)));
    process.says("waiting for the chain");
    let (status, _) = process.terminate();
    assert!(status.success(), "{}", process.log());
}
