//! Blocks with the pool's transactions: geth is the judge.

use alloy_primitives::B256;
use serde_json::{Value, json};
use std::{collections::BTreeMap, env, fs, path::Path};
use tandem_chain::{Fork, decode_transaction};
use tandem_cluster::Config;
use tandem_cluster_tests::{
    Builder, Client, Contents, Forks, GENESIS_TIME, Mixed, Node, Transfer,
    driver::{self, Proposal, attributes, choose, geth_engine, take},
};
use tandem_kzg::versioned_hash;
use tandem_testkit::geth::{Geth, is_installed, run};

/// Blocks of each chain, unless `TANDEM_BUILT_BLOCKS` says otherwise.
const BLOCKS: u64 = 24;

/// Returns the genesis of a chain whose first block has this fork.
fn genesis_json(builder: &Builder, fork: Fork) -> String {
    let mut genesis: Value = serde_json::from_str(builder.genesis_json()).unwrap();
    if fork == Fork::Amsterdam {
        genesis["config"]["amsterdamTime"] = json!(GENESIS_TIME + 1);
    }
    genesis.to_string()
}

/// Starts a geth on this genesis.
async fn start_geth(folder: &Path, genesis_json: &str) -> (Geth, Client) {
    let genesis = folder.join("genesis.json");
    fs::write(&genesis, genesis_json).unwrap();
    run(folder, "geth", "init", &[&genesis]);
    let args = ["--port", "0", "--syncmode", "full", "--cache", "64", "--maxpeers", "0"];
    let geth = Geth::start(folder, "geth", &args);
    let engine = geth_engine(folder, "geth").await;
    (geth, engine)
}

/// Sends random transactions to the node's pool. Returns how many it took.
async fn fill(node: &mut Node, mixed: &mut Mixed, number: u64, base_fee: u64, count: u64) -> u64 {
    for sender in Mixed::senders() {
        let params = json!([sender, "pending"]);
        let nonce = node.http.call("eth_getTransactionCount", params).await.unwrap();
        let nonce = nonce.as_str().unwrap().trim_start_matches("0x");
        mixed.set_nonce(sender, u64::from_str_radix(nonce, 16).unwrap());
    }
    let mut taken = 0;
    for _ in 0..count {
        let (raw, sender) = mixed.write(number, base_fee);
        if node.http.call("eth_sendRawTransaction", json!([raw])).await.is_ok() {
            taken += 1;
            let params = json!([sender, "pending"]);
            let nonce = node.http.call("eth_getTransactionCount", params).await.unwrap();
            let nonce = nonce.as_str().unwrap().trim_start_matches("0x");
            mixed.set_nonce(sender, u64::from_str_radix(nonce, 16).unwrap());
        }
    }
    taken
}

/// Checks that the bundle has the blobs of the payload's transactions, in their order.
fn check_bundle(proposal: &Proposal) -> usize {
    let hex = |value: &Value| alloy_primitives::hex::decode(value.as_str().unwrap()).unwrap();
    let list = |name: &str| proposal.bundle[name].as_array().unwrap().clone();
    let hashes: Vec<B256> =
        list("commitments").iter().map(|it| versioned_hash(&hex(it).try_into().unwrap())).collect();
    assert_eq!(Some(&hashes), proposal.sidecar.versioned_hashes.as_ref());
    assert_eq!(list("blobs").len(), hashes.len());
    assert_eq!(list("proofs").len(), 128 * hashes.len());
    hashes.len()
}

/// Builds a chain of blocks from random pools. Every block must be valid for geth and for the node
/// itself.
async fn build_chain(fork: Fork, seed: u64) {
    if !is_installed() {
        return;
    }
    let blocks = env::var("TANDEM_BUILT_BLOCKS").map_or(BLOCKS, |count| count.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let genesis = genesis_json(&builder, fork);
    let (_geth, mut geth) = start_geth(folder.path(), &genesis).await;
    let mut node = Node::start_with(&genesis, Config::small()).await;
    let mut mixed = Mixed::new(seed, &builder, fork);
    let (mut head, mut base_fee) = (builder.genesis(), 1_000_000_000);
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for number in 1..=blocks {
        let sent = fill(&mut node, &mut mixed, number, base_fee, 12 + number % 17).await;
        let asked = attributes(fork, GENESIS_TIME + 12 * number, number as u8);
        let id = choose(&mut node.engine, fork, head, asked).await.unwrap();
        let proposal = take(&mut node.engine, fork, &id).await;
        let transactions = &proposal.payload.transactions;
        assert!(sent == 0 || !transactions.is_empty(), "block {number} is empty");
        *kinds.entry("blob").or_default() += check_bundle(&proposal);
        for raw in transactions {
            let kind = match raw[0] {
                1 => "2930",
                2 => "1559",
                3 => "4844",
                4 => "7702",
                _ => "legacy",
            };
            *kinds.entry(kind).or_default() += 1;
            let creates =
                alloy_consensus::Transaction::is_create(&decode_transaction(raw).unwrap());
            *kinds.entry("creation").or_default() += usize::from(creates);
        }
        let hash = proposal.payload.block_hash;
        for (name, engine) in [("geth", &mut geth), ("tandem", &mut node.engine)] {
            let status = proposal.send(engine).await;
            let why = format!("{name}, block {number} with {}: {status:?}", transactions.len());
            assert_eq!(status.verdict(), ("VALID", Some(hash)), "{why}");
            let none = choose(engine, fork, hash, Value::Null).await;
            assert_eq!(none, None);
        }
        (head, base_fee) = (hash, proposal.payload.base_fee_per_gas.to());
    }
    for kind in ["legacy", "2930", "1559", "4844", "7702", "creation", "blob"] {
        assert!(kinds.get(kind).is_some_and(|count| *count > 0), "{kind}: {kinds:?}");
    }
    node.stop_and_verify().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_of_random_pools_are_valid_for_geth_on_osaka() {
    build_chain(Fork::Osaka, 61_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_of_random_pools_are_valid_for_geth_on_amsterdam() {
    build_chain(Fork::Amsterdam, 62_000).await;
}

/// Payloads of others come while one is built, on the same workers. Neither disturbs the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payloads_of_others_are_valid_while_one_is_built() {
    let fork = Fork::Osaka;
    let mut builder = Builder::new(Forks::at_genesis(fork));
    let mut node = Node::start_with(builder.genesis_json(), Config::small()).await;
    for nonce in 0..40 {
        for key in 0..10 {
            let Transfer { raw, .. } = Transfer::new(key, nonce, 1_000_000_000 + nonce as u128);
            node.http.call("eth_sendRawTransaction", json!([raw])).await.unwrap();
        }
    }
    let others = builder.chain(builder.genesis(), 63_000, 20, Contents::Random(8));
    let (mut head, mut time) = (builder.genesis(), GENESIS_TIME);
    let mut another = node.another_engine_client();
    let mut transactions = 0;
    for other in &others {
        let asked = attributes(fork, time + 1, 9);
        let id = choose(&mut node.engine, fork, head, asked).await.unwrap();
        let built = take(&mut another, fork, &id);
        let (own, ()) = tokio::join!(built, node.import(other));
        transactions += own.payload.transactions.len();
        let status = own.send(&mut node.engine).await;
        assert_eq!(status.verdict(), ("VALID", Some(own.payload.block_hash)), "{status:?}");
        node.set_head(other.hash).await;
        (head, time) = (other.hash, other.header.timestamp);
    }
    assert!(transactions > 0);
    node.assert_head(others.last().unwrap()).await;
    node.stop_and_verify().await;
}

/// A block whose transactions a caller names, for tests of clients (execution-apis, `src/testing`).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_to_order_has_the_transactions_named() {
    let fork = Fork::Osaka;
    let builder = Builder::new(Forks::at_genesis(fork));
    let mut config = Config::small();
    config.executor.testing_methods = true;
    let mut node = Node::start_with(builder.genesis_json(), config).await;
    let raw = |key, nonce| Transfer::new(key, nonce, 1_000_000_000).raw;
    // The pool's are not taken if there are others.
    node.http.call("eth_sendRawTransaction", json!([raw(5, 0)])).await.unwrap();
    let asked = attributes(fork, GENESIS_TIME + 12, 1);
    let order = |transactions: Value| json!([builder.genesis(), asked, transactions, "0x1234"]);
    let named = json!([raw(1, 0), raw(0, 0), raw(0, 1)]);
    let answer = node.http.call("testing_buildBlockV1", order(named.clone())).await.unwrap();
    let payload = &answer["executionPayload"];
    assert_eq!((&payload["transactions"], &payload["extraData"]), (&named, &json!("0x1234")));
    let proposal = driver::read(fork, &answer);
    let status = proposal.send(&mut node.engine).await;
    assert_eq!(status.verdict(), ("VALID", Some(proposal.payload.block_hash)), "{status:?}");

    let pooled = node.http.call("testing_buildBlockV1", order(Value::Null)).await.unwrap();
    assert_eq!(pooled["executionPayload"]["transactions"], json!([raw(5, 0)]));
    let none = node.http.call("testing_buildBlockV1", order(json!([]))).await.unwrap();
    assert_eq!(none["executionPayload"]["transactions"], json!([]));
    for (wrong, reason) in [
        (json!([raw(0, 0), raw(0, 2)]), "nonce too high"),
        (json!([raw(0, 0), raw(0, 0)]), "nonce too low"),
        (json!(["0x02c0"]), "input too short"),
    ] {
        let error = node.http.call("testing_buildBlockV1", order(wrong)).await.unwrap_err();
        assert!(error.code == -32000 && error.message.contains(reason), "{error:?}");
    }
    let long = json!([builder.genesis(), asked, null, format!("0x{}", "00".repeat(33))]);
    let error = node.http.call("testing_buildBlockV1", long).await.unwrap_err();
    assert_eq!(error.code, -32602);
    node.stop_and_verify().await;

    let mut usual = Node::start_with(builder.genesis_json(), Config::small()).await;
    let error = usual.http.call("testing_buildBlockV1", order(Value::Null)).await.unwrap_err();
    assert_eq!(error.code, -32601, "not without the setting");
    usual.stop_and_verify().await;
}
