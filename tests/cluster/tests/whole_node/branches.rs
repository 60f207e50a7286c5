//! Long and numerous branches beside the canonical one. Valid blocks are never lost, the head's
//! branch is always accepted, and no side block moves the base.

use alloy_primitives::B256;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tandem_chain::Fork;
use tandem_cluster::Config;
use tandem_cluster_tests::{Builder, Built, Contents, Forks, Node, new_payload, reseal};
use tandem_proto::storage::BlockRef;

const TRANSACTIONS: Contents = Contents::Random(4);

/// Returns a configuration whose base follows 16 to 24 blocks behind the head.
fn short() -> Config {
    let mut config = Config::default();
    config.storage_writer.unfinalized_blocks_max = 24;
    config
}

async fn start(config: Config) -> (Builder, Node) {
    let builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let node = Node::start_with(builder.genesis_json(), config).await;
    (builder, node)
}

/// Makes a block the head that may have to be executed first.
async fn choose(node: &mut Node, built: &Built) {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let status = node.forkchoice(built.hash, B256::ZERO, B256::ZERO).await.unwrap();
        if status.verdict() == ("VALID", Some(built.hash)) {
            return;
        }
        assert_eq!(status.verdict(), ("SYNCING", None), "{status:?}");
        assert!(Instant::now() < until, "{} is never executed", built.header.number);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Returns the number of the base, once it is at least `least`.
async fn base(node: &mut Node, least: u64) -> u64 {
    let storage = node.storage();
    let wait = move || {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let base = storage.checkpoint().unwrap().base.number;
            if base >= least {
                return base;
            }
            assert!(Instant::now() < until, "the base stays at {base}");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    tokio::task::spawn_blocking(wait).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_branch_grows_beside_the_canonical_one_for_long_and_either_may_win() {
    let (mut builder, mut node) = start(short()).await;
    let left = builder.chain(builder.genesis(), 51_000, 70, TRANSACTIONS);
    let right = builder.chain(builder.genesis(), 51_001, 70, TRANSACTIONS);
    for (left, right) in left.iter().zip(&right) {
        node.extend(left).await;
        let status = node.new_payload(right).await;
        let far = left.header.number > 16;
        let taken = status.status == "VALID" || far && status.status == "ACCEPTED";
        assert!(taken, "{status:?}");
    }
    base(&mut node, 46).await;
    choose(&mut node, &right[69]).await;
    node.assert_head(&right[69]).await;
    node = node.restart().await;
    choose(&mut node, &left[69]).await;
    node.assert_head(&left[69]).await;
    for (tip, seed) in [(&right[69], 51_002), (&left[69], 51_003)] {
        let next = builder.build(tip.hash, seed, TRANSACTIONS);
        let status = node.new_payload(&next).await;
        assert!(matches!(&*status.status, "VALID" | "ACCEPTED"), "{status:?}");
        choose(&mut node, &next).await;
        node.assert_head(&next).await;
    }
    node.stop_and_verify().await;
}

/// The base steps back so far below an executed block that the layers between them are not loaded.
/// Payloads that wait for that block continue once the base has come close.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_branch_of_more_blocks_than_are_loaded_at_once_may_win_again() {
    let (mut builder, mut node) = start(short()).await;
    let left = builder.chain(builder.genesis(), 58_000, 531, Contents::Random(0));
    let right = builder.chain(builder.genesis(), 58_001, 60, TRANSACTIONS);
    for built in &left[..530] {
        node.extend(built).await;
    }
    base(&mut node, 506).await;
    for built in &right {
        assert_eq!(node.new_payload(built).await.status, "ACCEPTED");
    }
    choose(&mut node, &right[59]).await;
    base(&mut node, 36).await;
    assert_eq!(node.new_payload(&left[530]).await.status, "ACCEPTED");
    choose(&mut node, &left[530]).await;
    node.assert_head(&left[530]).await;
    node.stop_and_verify().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_head_is_taken_however_many_side_blocks_there_are() {
    let mut config = short();
    config.storage_writer.side_branch_bytes_max = 60_000;
    let (mut builder, mut node) = start(config).await;
    let mut trunk = builder.chain(builder.genesis(), 52_000, 10, TRANSACTIONS);
    for built in &trunk {
        node.extend(built).await;
    }
    for seed in 0..40 {
        let side = builder.build(trunk[8].hash, 52_100 + seed, TRANSACTIONS);
        node.import(&side).await;
    }
    for restart in [false, true] {
        if restart {
            node = node.restart().await;
        }
        let next = builder.build(trunk.last().unwrap().hash, 52_001, TRANSACTIONS);
        node.extend(&next).await;
        trunk.push(next);
    }
    let storage = node.storage();
    let pending = tokio::task::spawn_blocking(move || storage.pending().unwrap());
    let pending = pending.await.unwrap().len();
    assert!(pending > trunk.len() && pending < 40, "{pending} are pending");
    node.assert_head(trunk.last().unwrap()).await;
    node.stop_and_verify().await;
}

/// A proposer that builds far below the head does not move the base back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deep_side_block_does_not_move_the_base_before_it_is_chosen() {
    let (mut builder, mut node) = start(short()).await;
    let trunk = builder.chain(builder.genesis(), 53_000, 60, TRANSACTIONS);
    for built in &trunk {
        node.extend(built).await;
    }
    let side = builder.chain(trunk[4].hash, 53_001, 3, TRANSACTIONS);
    let before = base(&mut node, 36).await;
    for built in &side {
        assert_eq!(node.new_payload(built).await.verdict(), ("ACCEPTED", None));
    }
    assert_eq!(base(&mut node, 0).await, before);
    assert_eq!(node.http.call("eth_syncing", json!([])).await.unwrap(), json!(false));
    choose(&mut node, &side[2]).await;
    node.assert_head(&side[2]).await;
    choose(&mut node, &trunk[59]).await;
    node.assert_head(&trunk[59]).await;
    node.stop_and_verify().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_that_comes_before_its_parent_is_kept_for_it() {
    let (mut builder, mut node) = start(Config::default()).await;
    let chain = builder.chain(builder.genesis(), 54_000, 6, TRANSACTIONS);
    for built in [&chain[2], &chain[1]] {
        assert_eq!(node.new_payload(built).await.verdict(), ("SYNCING", None));
    }
    let syncing = node.http.call("eth_syncing", json!([])).await.unwrap();
    assert_eq!(syncing["highestBlock"], "0x3", "{syncing}");
    node.import(&chain[0]).await;
    // They are executed without a second call, at the latest by a forkchoice.
    node.set_head(chain[2].hash).await;
    node.assert_head(&chain[2]).await;
    assert_eq!(node.http.call("eth_syncing", json!([])).await.unwrap(), Value::Bool(false));
    // They survive a restart.
    for built in [&chain[5], &chain[4]] {
        assert_eq!(node.new_payload(built).await.verdict(), ("SYNCING", None));
    }
    node = node.restart().await;
    assert_eq!(
        node.forkchoice(chain[5].hash, B256::ZERO, B256::ZERO).await.unwrap().verdict(),
        ("SYNCING", None)
    );
    node.import(&chain[3]).await;
    node.set_head(chain[5].hash).await;
    node.assert_head(&chain[5]).await;
    node.stop_and_verify().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kept_block_that_is_invalid_condemns_those_on_it() {
    let (mut builder, mut node) = start(Config::default()).await;
    let chain = builder.chain(builder.genesis(), 55_000, 3, TRANSACTIONS);
    let mut payload = chain[1].payload.clone();
    payload.state_root = B256::repeat_byte(1);
    reseal(&mut payload, &chain[1].sidecar);
    let mut child = chain[2].payload.clone();
    child.parent_hash = payload.block_hash;
    reseal(&mut child, &chain[2].sidecar);
    for (payload, sidecar) in [(&payload, &chain[1].sidecar), (&child, &chain[2].sidecar)] {
        let (method, params) = new_payload(Fork::Osaka, payload, sidecar);
        assert_eq!(node.engine.call(method, params).await.unwrap()["status"], "SYNCING");
    }
    node.import(&chain[0]).await;
    let status = node.forkchoice(child.block_hash, B256::ZERO, B256::ZERO).await.unwrap();
    assert_eq!(status.verdict(), ("INVALID", Some(chain[0].hash)), "{status:?}");
    node.extend(&chain[1]).await;
    node.stop_and_verify().await;
}

/// With the usual finality, 64 and 32 blocks behind the head, both states can be read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_states_of_the_safe_and_the_finalized_block_can_be_read() {
    let (mut builder, mut node) = start(Config::default()).await;
    let chain = builder.chain(builder.genesis(), 56_000, 100, Contents::Random(1));
    for (index, built) in chain.iter().enumerate() {
        node.import(built).await;
        let back =
            |blocks: usize| index.checked_sub(blocks).map_or(B256::ZERO, |at| chain[at].hash);
        node.forkchoice(built.hash, back(32), back(64)).await.unwrap();
    }
    base(&mut node, 31).await;
    node.assert_state(&chain[99 - 32].world, "safe").await;
    node.assert_state(&chain[99 - 64].world, "finalized").await;
    let proof = json!([chain[0].header.beneficiary, [], "finalized"]);
    assert!(node.http.call("eth_getProof", proof).await.is_ok());
    node.stop_and_verify().await;
}

/// A power cut takes the unsynced end of a log, while the executor runs elsewhere and survives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_that_storage_writer_lost_are_committed_again() {
    let (mut builder, mut node) = start(Config::default()).await;
    let chain = builder.chain(builder.genesis(), 57_000, 6, TRANSACTIONS);
    node.extend(&chain[0]).await;
    for built in &chain[1..5] {
        node.import(built).await;
    }
    let lost = [4, 3, 2].map(|at| chain[at].hash);
    node.lose(&lost);
    let storage = node.storage();
    let gone = move || lost.map(|hash| storage.header(BlockRef::Hash(hash)).unwrap());
    assert_eq!(tokio::task::spawn_blocking(gone).await.unwrap(), [const { None }; 3]);
    node.extend(&chain[5]).await;
    node.assert_head(&chain[5]).await;
    let storage = node.storage();
    let found = move || lost.map(|hash| storage.block(BlockRef::Hash(hash)).unwrap().is_some());
    assert_eq!(tokio::task::spawn_blocking(found).await.unwrap(), [true; 3]);
    node = node.restart().await;
    node.assert_head(&chain[5]).await;
    node.stop_and_verify().await;
}
