//! Branches: side chains of all depths, and forkchoices to all targets except a plain new head.

use alloy_primitives::B256;
use tandem_chain::Fork;
use tandem_cluster_tests::{
    Builder, Built, Contents, Forks, Node, decode_status, new_payload, reseal,
};

const TRANSACTIONS: Contents = Contents::Random(6);

/// Builds a trunk of this many blocks, all of them canonical.
async fn trunk(fork: Fork, seed: u64, len: usize) -> (Builder, Vec<Built>, Node) {
    let mut builder = Builder::new(Forks::at_genesis(fork));
    let mut trunk = vec![builder.get(builder.genesis()).clone()];
    trunk.extend(builder.chain(builder.genesis(), seed, len, TRANSACTIONS));
    let mut node = Node::start(builder.genesis_json()).await;
    for built in &trunk[1..] {
        node.extend(built).await;
    }
    (builder, trunk, node)
}

/// Makes a branch from `depth` blocks below the head the chain, then the old one again, and after a
/// restart the branch.
async fn reorganise(fork: Fork, seed: u64, depth: usize) {
    let (mut builder, trunk, mut node) = trunk(fork, seed, depth + 6).await;
    let head = trunk.last().unwrap();
    let fork_point = &trunk[trunk.len() - 1 - depth];
    let side = builder.chain(fork_point.hash, seed + 1, depth + 1, TRANSACTIONS);
    let side_head = side.last().unwrap();
    for built in &side {
        node.import(built).await;
    }
    node.assert_head(head).await;
    node.set_head(side_head.hash).await;
    node.assert_head(side_head).await;

    node.set_head(head.hash).await;
    node.assert_head(head).await;
    let next = builder.build(head.hash, seed + 2, TRANSACTIONS);
    node.extend(&next).await;
    node.assert_head(&next).await;

    node = node.restart().await;
    node.assert_head(&next).await;
    for built in &side {
        node.import(built).await;
    }
    node.set_head(side_head.hash).await;
    node.assert_head(side_head).await;
    node = node.restart().await;
    node.assert_head(side_head).await;
    let next = builder.build(side_head.hash, seed + 3, TRANSACTIONS);
    node.extend(&next).await;
    node.assert_head(&next).await;
    node.stop_and_verify().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reorganisation_by_1_block_ends_in_the_right_state() {
    reorganise(Fork::Osaka, 11_000, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reorganisation_by_3_blocks_ends_in_the_right_state() {
    reorganise(Fork::Prague, 12_000, 3).await;
}

/// Deeper than the base lies below the head: the base has to step back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reorganisation_by_20_blocks_ends_in_the_right_state() {
    reorganise(Fork::Shanghai, 13_000, 20).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reorganisation_by_100_blocks_ends_in_the_right_state() {
    reorganise(Fork::Osaka, 14_000, 100).await;
}

/// Paris: contracts that were destroyed on one branch exist on the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reorganisation_brings_destroyed_contracts_back() {
    reorganise(Fork::Paris, 15_000, 40).await;
}

/// Every block answered VALID survives a restart, even if its branch leaves the chain below the
/// base.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_side_chain_outlives_a_restart() {
    let seed = 20_000;
    let (mut builder, trunk, mut node) = trunk(Fork::Osaka, seed, 30).await;
    let head = trunk.last().unwrap();
    let deep = builder.chain(trunk[5].hash, seed + 1, 3, TRANSACTIONS);
    let shallow = builder.chain(trunk[28].hash, seed + 2, 3, TRANSACTIONS);
    for built in deep.iter().chain(&shallow) {
        node.import(built).await;
    }
    // The base returns to its place, past the point where the deep branch forks off.
    let next = builder.build(head.hash, seed + 3, TRANSACTIONS);
    node.extend(&next).await;
    node = node.restart().await;
    for (label, side) in [("shallow", &shallow), ("deep", &deep)] {
        let tip = side.last().unwrap();
        let child = builder.build(tip.hash, seed + 4, TRANSACTIONS);
        let status = node.new_payload(&child).await;
        assert_eq!(status.verdict(), ("VALID", Some(child.hash)), "{label}: {status:?}");
        node.set_head(child.hash).await;
        node.assert_head(&child).await;
    }
    node.stop_and_verify().await;
}

/// Two branches grow in turns, and the head alternates between them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn branches_may_grow_in_turns() {
    let seed = 16_000;
    let (mut builder, trunk, mut node) = trunk(Fork::Cancun, seed, 20).await;
    let start = &trunk[18];
    let left = builder.chain(start.hash, seed + 1, 24, TRANSACTIONS);
    let right = builder.chain(start.hash, seed + 2, 24, TRANSACTIONS);
    for (index, (left, right)) in left.iter().zip(&right).enumerate() {
        node.import(left).await;
        node.import(right).await;
        match index % 4 {
            0 => node.set_head(left.hash).await,
            2 => node.set_head(right.hash).await,
            _ => {}
        }
        if index % 8 == 2 {
            node.assert_head(right).await;
        }
        if index == 13 {
            node = node.restart().await;
        }
    }
    for tip in [left.last().unwrap(), right.last().unwrap()] {
        node.set_head(tip.hash).await;
        node.assert_head(tip).await;
    }
    node.stop_and_verify().await;
}

/// Side branches from several depths, some below the base, grow while the head is elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_side_chain_below_the_base_does_not_disturb_the_head() {
    let seed = 17_000;
    let (mut builder, trunk, mut node) = trunk(Fork::Osaka, seed, 40).await;
    let head = trunk.last().unwrap();
    for (branch, below) in [30, 5, 25, 1].into_iter().enumerate() {
        let from = &trunk[trunk.len() - 1 - below];
        for built in builder.chain(from.hash, seed + 1 + branch as u64, 3, TRANSACTIONS) {
            node.import(&built).await;
        }
        node.assert_head(head).await;
    }
    let next = builder.build(head.hash, seed + 9, TRANSACTIONS);
    node.extend(&next).await;
    node.assert_head(&next).await;
    node.stop_and_verify().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forkchoice_is_checked() {
    let seed = 18_000;
    let (mut builder, trunk, mut node) = trunk(Fork::Osaka, seed, 24).await;
    let head = trunk.last().unwrap().hash;
    let side = builder.chain(trunk[20].hash, seed + 1, 2, TRANSACTIONS);
    for built in &side {
        node.import(built).await;
    }
    let (zero, unknown) = (B256::ZERO, B256::repeat_byte(0x42));

    let status = node.forkchoice(unknown, zero, zero).await.unwrap();
    assert_eq!(status.verdict(), ("SYNCING", None));

    let (safe, finalized) = (trunk[20].hash, trunk[2].hash);
    let status = node.forkchoice(head, safe, finalized).await.unwrap();
    assert_eq!(status.verdict(), ("VALID", Some(head)));
    for (tag, hash) in [("safe", safe), ("finalized", finalized)] {
        let block = node.http.call("eth_getBlockByNumber", serde_json::json!([tag, false])).await;
        assert_eq!(block.unwrap()["hash"], serde_json::json!(hash), "{tag}");
    }
    // Safe or finalized block unknown, on another branch, or above the head.
    let new = builder.build(head, seed + 2, TRANSACTIONS);
    node.import(&new).await;
    for (safe, finalized) in [
        (unknown, finalized),
        (safe, unknown),
        (side[1].hash, finalized),
        (safe, side[0].hash),
        (zero, unknown),
    ] {
        let error = node.forkchoice(new.hash, safe, finalized).await.unwrap_err();
        assert_eq!(error.code, -38002, "{safe} {finalized}: {error:?}");
        node.assert_head(&trunk[24]).await;
    }
    node.set_head(new.hash).await;

    // An invalid block, and one on top of it.
    let valid = builder.build(new.hash, seed + 3, TRANSACTIONS);
    let mut payload = valid.payload.clone();
    payload.state_root = B256::repeat_byte(3);
    reseal(&mut payload, &valid.sidecar);
    let (method, params) = new_payload(valid.fork, &payload, &valid.sidecar);
    let status = decode_status(node.engine.call(method, params).await.unwrap());
    assert_eq!(status.verdict(), ("INVALID", Some(new.hash)));
    let status = node.forkchoice(payload.block_hash, zero, zero).await.unwrap();
    assert_eq!(status.verdict(), ("INVALID", Some(new.hash)));
    node.assert_head(&new).await;
    node.extend(&valid).await;
    node.assert_head(&valid).await;
    node.stop_and_verify().await;
}

/// A chain whose first block is missing is executed only once that block arrives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_without_its_parent_is_syncing_until_the_parent_comes() {
    let seed = 19_000;
    let (mut builder, trunk, mut node) = trunk(Fork::Osaka, seed, 3).await;
    let more = builder.chain(trunk[3].hash, seed + 1, 3, TRANSACTIONS);
    for built in more.iter().rev().take(2) {
        assert_eq!(node.new_payload(built).await.verdict(), ("SYNCING", None));
        let status = node.forkchoice(built.hash, B256::ZERO, B256::ZERO).await.unwrap();
        assert_eq!(status.verdict(), ("SYNCING", None));
    }
    for built in &more {
        node.extend(built).await;
    }
    node.assert_head(&more[2]).await;
    // Repeated: a known block is VALID without a second check.
    for built in more.iter().chain(&trunk[1..]) {
        node.import(built).await;
    }
    node.stop_and_verify().await;
}
