//! engine_newPayload as specified (execution-apis, `src/engine`), as far as the fixture suites do
//! not cover it.

use alloy_primitives::{B256, Bytes};
use serde_json::{Value, json};
use tandem_chain::{Fork, Payload, PayloadSidecar};
use tandem_cluster::Config;
use tandem_cluster_tests::{
    Builder, Built, Contents, FORKS, Forks, GENESIS_TIME, Node, PayloadStatus, decode_status,
    new_payload, reseal,
};

const TRANSACTIONS: Contents = Contents::Random(4);

/// Starts a node at genesis, and builds a chain of valid blocks that it does not know yet.
async fn start(fork: Fork, len: usize) -> (Builder, Node, Vec<Built>) {
    let mut builder = Builder::new(Forks::at_genesis(fork));
    let node = Node::start(builder.genesis_json()).await;
    let chain = builder.chain(builder.genesis(), 31_000, len, TRANSACTIONS);
    (builder, node, chain)
}

async fn send(
    node: &mut Node,
    fork: Fork,
    payload: &Payload,
    sidecar: &PayloadSidecar,
) -> PayloadStatus {
    let (method, params) = new_payload(fork, payload, sidecar);
    decode_status(node.engine.call(method, params).await.unwrap())
}

/// Returns the block with an invalid state root, and blocks on top of it that are valid except for
/// that ancestor.
fn invalid_branch(valid: &Built, above: &[Built]) -> Vec<(Payload, PayloadSidecar)> {
    let mut branch = Vec::new();
    let (mut payload, sidecar) = (valid.payload.clone(), valid.sidecar.clone());
    payload.state_root = B256::repeat_byte(3);
    reseal(&mut payload, &sidecar);
    branch.push((payload, sidecar));
    for built in above {
        let (mut payload, sidecar) = (built.payload.clone(), built.sidecar.clone());
        payload.parent_hash = branch.last().map(|(parent, _)| parent.block_hash).unwrap();
        reseal(&mut payload, &sidecar);
        branch.push((payload, sidecar));
    }
    branch
}

/// paris.md, `engine_newPayloadV1`, Response: the three members, `null` if there is no value.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_status_has_exactly_its_three_members() {
    let (_, mut node, chain) = start(Fork::Osaka, 2).await;
    let (method, params) = chain[1].new_payload();
    let syncing = json!({"status": "SYNCING", "latestValidHash": null, "validationError": null});
    assert_eq!(node.engine.call(method, params).await.unwrap(), syncing);
    let (method, params) = chain[0].new_payload();
    let hash = chain[0].hash;
    let valid = json!({"status": "VALID", "latestValidHash": hash, "validationError": null});
    assert_eq!(node.engine.call(method, params).await.unwrap(), valid);
    let (payload, sidecar) = &invalid_branch(&chain[1], &[])[0];
    let (method, params) = new_payload(Fork::Osaka, payload, sidecar);
    let mut invalid = node.engine.call(method, params).await.unwrap();
    assert!(invalid["validationError"].take().is_string());
    let want = json!({"status": "INVALID", "latestValidHash": hash, "validationError": null});
    assert_eq!(invalid, want);
    node.stop_and_verify().await;
}

/// paris.md, `engine_newPayloadV1`, points 1 and 6: in all cases, even if nothing else is known
/// about the branch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_or_undecodable_transaction_is_invalid_without_a_latest_valid_hash() {
    for fork in FORKS {
        let (_, mut node, chain) = start(fork, 2).await;
        // The second block's parent is not known yet.
        for built in [&chain[1], &chain[0]] {
            for bad in ["0x", "0x00", "0x02", "0x7f01", "0xc0", "0xc101", "0x03c0", "0xf8"] {
                let (mut payload, sidecar) = (built.payload.clone(), built.sidecar.clone());
                payload.transactions.insert(0, bad.parse::<Bytes>().unwrap());
                reseal(&mut payload, &sidecar);
                let status = send(&mut node, fork, &payload, &sidecar).await;
                assert_eq!(status.verdict(), ("INVALID", None), "{fork} {bad}: {status:?}");
            }
        }
        for built in &chain {
            node.extend(built).await;
        }
    }
}

/// paris.md, `engine_newPayloadV1`, points 2 and 6; shanghai.md, `engine_newPayloadV2`, Response
/// and point 2: only V1 has a separate status for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_block_hash_is_named_so_by_v1_and_invalid_later() {
    for fork in FORKS {
        let (_, mut node, chain) = start(fork, 2).await;
        for built in [&chain[1], &chain[0]] {
            let mut payload = built.payload.clone();
            payload.block_hash = B256::repeat_byte(7);
            let status = send(&mut node, fork, &payload, &built.sidecar).await;
            let want = if fork == Fork::Paris { "INVALID_BLOCK_HASH" } else { "INVALID" };
            assert_eq!(status.verdict(), (want, None), "{fork}");
            if fork == Fork::Paris {
                let answer = node.engine.call("engine_newPayloadV2", json!([payload])).await;
                assert_eq!(decode_status(answer.unwrap()).verdict(), ("INVALID", None));
            }
        }
        // Neither the block with this hash nor the one that should have it is affected.
        for built in &chain {
            node.extend(built).await;
        }
    }
}

/// cancun.md, `engine_newPayloadV3`, point 3: at once in all cases; `latestValidHash` is null.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_blob_hashes_than_expected_are_invalid_and_not_held_against_the_block() {
    let mut builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let mut node = Node::start(builder.genesis_json()).await;
    let chain = builder.chain(builder.genesis(), 32_000, 2, Contents::Everything);
    for built in [&chain[1], &chain[0]] {
        let hashes = built.sidecar.versioned_hashes.clone().unwrap();
        assert!(hashes.len() > 1, "the block has blobs");
        let mut swapped = hashes.clone();
        swapped.swap(0, 1);
        let wrong = [vec![], hashes[1..].to_vec(), [&hashes[..], &[B256::ZERO]].concat(), swapped];
        for wrong in wrong.into_iter().filter(|wrong| *wrong != hashes) {
            let sidecar = PayloadSidecar { versioned_hashes: Some(wrong), ..built.sidecar.clone() };
            let status = send(&mut node, Fork::Osaka, &built.payload, &sidecar).await;
            assert_eq!(status.verdict(), ("INVALID", None), "{status:?}");
        }
    }
    for built in &chain {
        node.extend(built).await;
    }
    node.stop_and_verify().await;
}

/// prague.md, `engine_newPayloadV4`, point 2, and the parameter's form.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn execution_requests_are_part_of_the_hash_and_well_formed() {
    let (_, mut node, chain) = start(Fork::Prague, 1).await;
    let built = &chain[0];
    let with = |requests: Vec<Bytes>| PayloadSidecar {
        execution_requests: Some(requests),
        ..built.sidecar.clone()
    };
    let request = |bytes: &[u8]| Bytes::copy_from_slice(bytes);
    let status = send(&mut node, Fork::Prague, &built.payload, &with(vec![request(&[2, 9])])).await;
    assert_eq!(status.verdict(), ("INVALID", None));
    for wrong in [
        vec![request(&[])],
        vec![request(&[0])],
        vec![request(&[0, 1]), request(&[1])],
        vec![request(&[1, 1]), request(&[0, 1])],
        vec![request(&[1, 1]), request(&[1, 2])],
    ] {
        let (method, params) = new_payload(Fork::Prague, &built.payload, &with(wrong));
        let error = node.engine.call(method, params).await.unwrap_err();
        assert_eq!(error.code, -32602, "{error:?}");
    }
    let (method, mut params) = built.new_payload();
    params[3] = Value::Null;
    assert_eq!(node.engine.call(method, params).await.unwrap_err().code, -32602);
    node.extend(built).await;
    node.stop_and_verify().await;
}

/// cancun.md, `engine_newPayloadV3`, point 1: exactly the fields of the structure; `null` counts as
/// absent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_a_payload_does_not_have_are_invalid_params() {
    let (_, mut node, chain) = start(Fork::Osaka, 1).await;
    let (method, params) = chain[0].new_payload();
    for name in ["blockAccessList", "slotNumber", "BlockHash", "", "extra"] {
        let mut params = params.clone();
        params[0][name] = json!("0x1");
        let error = node.engine.call(method, params.clone()).await.unwrap_err();
        assert_eq!(error.code, -32602, "{name}: {error:?}");
        params[0][name] = Value::Null;
        let status = decode_status(node.engine.call(method, params).await.unwrap());
        assert_eq!(status.verdict(), ("VALID", Some(chain[0].hash)), "{name}");
    }
    node.stop_and_verify().await;
}

/// paris.md, "Payload validation", point 3: the newest valid ancestor, however far up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn descendants_of_an_invalid_block_name_its_valid_parent() {
    let (_, mut node, chain) = start(Fork::Osaka, 6).await;
    node.extend(&chain[0]).await;
    node.import(&chain[1]).await;
    let branch = invalid_branch(&chain[2], &chain[3..]);
    // Nothing is known about the branch before its invalid block arrives.
    for (payload, sidecar) in branch[1..].iter().rev() {
        let status = send(&mut node, Fork::Osaka, payload, sidecar).await;
        assert_eq!(status.verdict(), ("SYNCING", None));
    }
    let want = ("INVALID", Some(chain[1].hash));
    for (payload, sidecar) in &branch {
        let status = send(&mut node, Fork::Osaka, payload, sidecar).await;
        assert_eq!(status.verdict(), want, "{status:?}");
    }
    for (payload, sidecar) in branch.iter().rev() {
        let status = send(&mut node, Fork::Osaka, payload, sidecar).await;
        assert_eq!(status.verdict(), want, "{status:?}");
        let hash = payload.block_hash;
        let status = node.forkchoice(hash, chain[0].hash, B256::ZERO).await.unwrap();
        assert_eq!(status.verdict(), want, "{status:?}");
        let block = node.http.call("eth_getBlockByHash", json!([hash, false])).await;
        assert_eq!(block.unwrap(), Value::Null, "an invalid block is shown");
    }
    node.assert_head(&chain[0]).await;
    for built in &chain[2..] {
        node.extend(built).await;
    }
    node.assert_head(&chain[5]).await;
    node.stop_and_verify().await;
}

/// paris.md, "Payload validation", point 3: the parent of the invalid block is genesis.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_latest_valid_block_may_be_genesis() {
    for fork in FORKS {
        let (builder, mut node, chain) = start(fork, 3).await;
        for (payload, sidecar) in invalid_branch(&chain[0], &chain[1..]) {
            let status = send(&mut node, fork, &payload, &sidecar).await;
            assert_eq!(status.verdict(), ("INVALID", Some(builder.genesis())), "{fork}");
        }
        node.stop_and_verify().await;
    }
}

/// paris.md, "Payload validation", point 4.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_verdict_stays_however_often_the_payload_comes() {
    let (builder, mut node, chain) = start(Fork::Osaka, 24).await;
    let branch = invalid_branch(&chain[0], &chain[1..2]);
    for round in 0..3 {
        for built in &chain[..2] {
            node.import(built).await;
        }
        for (payload, sidecar) in &branch {
            let status = send(&mut node, Fork::Osaka, payload, sidecar).await;
            assert_eq!(status.verdict(), ("INVALID", Some(builder.genesis())), "{round}");
        }
    }
    // Long enough for the first blocks to be in the base; after a restart, from the database alone.
    for built in &chain {
        node.extend(built).await;
    }
    for _ in 0..2 {
        for built in &chain {
            node.import(built).await;
        }
        for (index, (payload, sidecar)) in branch.iter().enumerate() {
            let status = send(&mut node, Fork::Osaka, payload, sidecar).await;
            assert_eq!(status.verdict(), ("INVALID", Some(builder.genesis())), "{index}");
        }
        node.assert_head(&chain[23]).await;
        node = node.restart().await;
    }
    node.stop_and_verify().await;
}

/// paris.md, `engine_newPayloadV1`, point 6: a well-formed block off the canonical chain that
/// cannot be executed, because the state below it can no longer be restored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_on_a_state_that_is_gone_is_accepted_and_never_valid() {
    let mut builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let mut config = Config::default();
    config.storage_writer.persist_depth = 2;
    config.storage_writer.unfinalized_blocks_max = 2;
    config.storage_writer.reverse_diff_blocks = 3;
    let mut node = Node::start_with(builder.genesis_json(), config).await;
    let chain = builder.chain(builder.genesis(), 33_000, 24, TRANSACTIONS);
    for built in &chain {
        node.extend(built).await;
    }
    let side = builder.chain(chain[1].hash, 33_001, 2, TRANSACTIONS);
    for _ in 0..2 {
        let status = node.new_payload(&side[0]).await;
        assert_eq!(status.verdict(), ("ACCEPTED", None), "{status:?}");
        assert_eq!(status.validation_error, None);
        // Nor is the block on top of it.
        assert_eq!(node.new_payload(&side[1]).await.verdict(), ("ACCEPTED", None));
        let error = node.forkchoice(side[0].hash, B256::ZERO, B256::ZERO).await.unwrap_err();
        assert_eq!(error.code, -38006, "{error:?}");
    }
    // A fault that shows without the state is still invalid.
    let mut payload = side[0].payload.clone();
    payload.gas_limit *= 2;
    reseal(&mut payload, &side[0].sidecar);
    let status = send(&mut node, Fork::Osaka, &payload, &side[0].sidecar).await;
    assert_eq!(status.verdict(), ("INVALID", Some(chain[1].hash)), "{status:?}");
    node.assert_head(&chain[23]).await;
    let next = builder.build(chain[23].hash, 33_002, TRANSACTIONS);
    node.extend(&next).await;
    node.stop_and_verify().await;
}

/// cancun.md, `engine_newPayloadV3`, point 2; prague.md, `engine_newPayloadV4`, point 1, and the
/// updates of the methods of previous forks: the time decides, to the second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_before_or_after_the_methods_forks_is_an_unsupported_fork() {
    for (old, version) in [(Fork::Shanghai, 2), (Fork::Cancun, 3), (Fork::Prague, 4)] {
        let start = 1_000;
        let mut builder = Builder::new(Forks::leaving(old, start));
        let mut node = Node::start(builder.genesis_json()).await;
        let valid = builder.build(builder.genesis(), 34_000, TRANSACTIONS);
        let next = GENESIS_TIME + start;
        for (timestamp, served) in
            [(next - 1, true), (next, version == 4), (next + 1, version == 4)]
        {
            let mut payload = valid.payload.clone();
            payload.timestamp = timestamp;
            let (method, params) = new_payload(old, &payload, &valid.sidecar);
            let answer = node.engine.call(method, params).await;
            match served {
                // Osaka has no newPayload of its own; the hash is wrong now.
                true => assert_eq!(decode_status(answer.unwrap()).verdict(), ("INVALID", None)),
                false => {
                    let error = answer.unwrap_err();
                    let found = (error.code, error.message.as_str(), error.data);
                    assert_eq!(found, (-38005, "Unsupported fork", None), "{old} {timestamp}");
                }
            }
        }
        if version > 2 {
            let mut payload = valid.payload.clone();
            payload.timestamp = 0;
            let earlier = Builder::new(Forks::leaving(Fork::Shanghai, 100_000));
            let mut node = Node::start(earlier.genesis_json()).await;
            let (method, params) = new_payload(old, &payload, &valid.sidecar);
            assert_eq!(node.engine.call(method, params).await.unwrap_err().code, -38005, "{old}");
        }
        node.stop_and_verify().await;
    }
}

/// prague.md and osaka.md do not cover later forks: the client cannot validate a payload of a fork
/// that it does not know.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_of_a_fork_that_is_not_known_is_an_unsupported_fork() {
    let mut builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let mut genesis: Value = serde_json::from_str(builder.genesis_json()).unwrap();
    let unknown = GENESIS_TIME + 1_000;
    genesis["config"]["bogotaTime"] = json!(unknown);
    let mut node = Node::start(&genesis.to_string()).await;
    let built = builder.build(builder.genesis(), 35_000, TRANSACTIONS);
    let mut payload = built.payload.clone();
    payload.timestamp = unknown;
    let (method, params) = new_payload(Fork::Osaka, &payload, &built.sidecar);
    assert_eq!(node.engine.call(method, params).await.unwrap_err().code, -38005);
    node.extend(&built).await;
    node.stop_and_verify().await;
}

/// common.md, Errors: no data except in -32000; paris.md, "Message ordering" of a batch: in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_of_payloads_and_forkchoices_is_answered_in_its_order() {
    let (_, mut node, chain) = start(Fork::Osaka, 4).await;
    let mut calls = Vec::new();
    for built in &chain {
        calls.push(built.new_payload());
        let state = json!({
            "headBlockHash": built.hash, "safeBlockHash": B256::ZERO,
            "finalizedBlockHash": B256::ZERO,
        });
        calls.push(("engine_forkchoiceUpdatedV3", json!([state])));
    }
    let answers = node.engine.batch(&calls).await;
    for (built, answers) in chain.iter().zip(answers.chunks(2)) {
        let want = ("VALID", Some(built.hash));
        assert_eq!(decode_status(answers[0].clone()).verdict(), want);
        assert_eq!(decode_status(answers[1]["payloadStatus"].clone()).verdict(), want);
    }
    node.assert_head(&chain[3]).await;
    node.stop_and_verify().await;
}
