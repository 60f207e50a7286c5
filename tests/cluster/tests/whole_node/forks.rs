//! Chains of every fork and over every transition: all blocks are VALID, the state is the oracle's,
//! and the database is clean.

use alloy_primitives::{Address, U256, keccak256};
use serde_json::json;
use std::collections::BTreeSet;
use tandem_chain::Fork;
use tandem_cluster_tests::{Builder, Built, Contents, Forks, Node};

const BLOCKS: usize = 40;

/// Time of a transition: about the twentieth block.
const TRANSITION_SECONDS: u64 = 240;

/// Replays a chain, with a restart on the way.
async fn replay(forks: Forks, seed: u64) {
    let mut builder = Builder::new(forks);
    let mut blocks = builder.chain(builder.genesis(), seed, BLOCKS - 5, Contents::Random(12));
    let tip = blocks.last().unwrap().hash;
    blocks.extend(builder.chain(tip, seed + 1, 5, Contents::Everything));
    let seen: BTreeSet<_> = blocks.iter().map(|built| built.fork).collect();
    let blob_forks: BTreeSet<_> = blocks
        .iter()
        .map(|built| forks.blob_rules(built.header.timestamp))
        .map(|r| r.map(|r| r.max))
        .collect();
    let times = forks.times.iter().chain([&forks.bpo1]);
    if times.flatten().any(|time| *time > 0) {
        assert_eq!(seen.len().max(blob_forks.len()), 2, "the chain crosses the transition");
    }

    let genesis = builder.get(builder.genesis()).clone();
    let mut node = Node::start(builder.genesis_json()).await;
    node.assert_head(&genesis).await;
    for (index, built) in blocks.iter().enumerate() {
        node.import(built).await;
        // From time to time the head lags a few blocks behind the executed ones.
        if index % 7 > 2 || index + 1 == blocks.len() {
            node.set_head(built.hash).await;
        }
        if index == BLOCKS / 2 {
            node.set_head(built.hash).await;
            node.assert_head(built).await;
            node = node.restart().await;
            node.assert_head(built).await;
        }
    }
    let head = blocks.last().unwrap();
    node.assert_head(head).await;
    let earlier = &blocks[BLOCKS - 6];
    node.assert_state(&earlier.world, &format!("{:#x}", earlier.header.number)).await;
    node.assert_absent(&head.world, &ever_alive(&blocks)).await;
    assert_receipts(&mut node, &blocks).await;
    node.stop_and_verify().await;
}

/// Returns every account that exists in the state of any block.
fn ever_alive(blocks: &[Built]) -> Vec<Address> {
    let all: BTreeSet<_> = blocks.iter().flat_map(|built| built.world.0.keys()).copied().collect();
    all.into_iter().collect()
}

/// Checks that every transaction is found by its hash, old ones and those of the head, and that the
/// receipts of a block add up.
async fn assert_receipts(node: &mut Node, blocks: &[Built]) {
    for built in [&blocks[1], &blocks[BLOCKS - 10], &blocks[BLOCKS - 1]] {
        let hashes = built.payload.transactions.iter().map(keccak256);
        let calls: Vec<_> =
            hashes.map(|hash| ("eth_getTransactionReceipt", json!([hash]))).collect();
        let number = built.header.number;
        let mut gas_used = U256::ZERO;
        for (receipt, call) in node.http.batch(&calls).await.into_iter().zip(&calls) {
            assert_eq!(receipt["blockHash"], json!(built.hash), "block {number}: {call:?}");
            gas_used += receipt["gasUsed"].as_str().unwrap().parse::<U256>().unwrap();
        }
        assert_eq!(gas_used, U256::from(built.header.gas_used), "block {number}");
    }
}

macro_rules! chains {
    ($($name:ident: $forks:expr, $seed:literal;)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            replay($forks, $seed).await;
        }
    )*};
}

chains! {
    a_chain_of_paris_is_valid: Forks::at_genesis(Fork::Paris), 100;
    a_chain_of_shanghai_is_valid: Forks::at_genesis(Fork::Shanghai), 200;
    a_chain_of_cancun_is_valid: Forks::at_genesis(Fork::Cancun), 300;
    a_chain_of_prague_is_valid: Forks::at_genesis(Fork::Prague), 400;
    a_chain_of_osaka_is_valid: Forks::at_genesis(Fork::Osaka), 500;
    a_chain_into_shanghai_is_valid: Forks::leaving(Fork::Paris, TRANSITION_SECONDS), 600;
    a_chain_into_cancun_is_valid: Forks::leaving(Fork::Shanghai, TRANSITION_SECONDS), 700;
    a_chain_into_prague_is_valid: Forks::leaving(Fork::Cancun, TRANSITION_SECONDS), 800;
    a_chain_into_osaka_is_valid: Forks::leaving(Fork::Prague, TRANSITION_SECONDS), 900;
    a_chain_into_a_blob_fork_is_valid: Forks::leaving(Fork::Osaka, TRANSITION_SECONDS), 1000;
}
