//! engine_forkchoiceUpdated as specified (execution-apis, `src/engine/paris.md`,
//! `engine_forkchoiceUpdatedV1`, and the changes of later forks).

use alloy_primitives::B256;
use serde_json::{Value, json};
use tandem_chain::Fork;
use tandem_cluster::Config;
use tandem_cluster_tests::{
    Builder, Built, Contents, FORKS, Forks, GENESIS_TIME, Node, RpcError, new_payload, reseal,
};

/// Function that makes attributes for a payload on a block.
type MakeAttributes = Box<dyn Fn(&Built) -> Value>;

const TRANSACTIONS: Contents = Contents::Random(3);

/// Starts a node whose head is the last of `len` blocks on genesis; the chain begins with genesis.
async fn start(fork: Fork, len: usize) -> (Builder, Node, Vec<Built>) {
    let mut builder = Builder::new(Forks::at_genesis(fork));
    let mut node = Node::start(builder.genesis_json()).await;
    let mut chain = vec![builder.get(builder.genesis()).clone()];
    chain.extend(builder.chain(builder.genesis(), 41_000, len, TRANSACTIONS));
    for built in &chain[1..] {
        node.extend(built).await;
    }
    (builder, node, chain)
}

fn state(head: B256, safe: B256, finalized: B256) -> Value {
    json!({"headBlockHash": head, "safeBlockHash": safe, "finalizedBlockHash": finalized})
}

/// Returns attributes of Cancun and later, at a time.
fn attributes(timestamp: u64) -> Value {
    json!({
        "timestamp": format!("{timestamp:#x}"),
        "prevRandao": B256::repeat_byte(1),
        "suggestedFeeRecipient": "0x0202020202020202020202020202020202020202",
        "withdrawals": [],
        "parentBeaconBlockRoot": B256::repeat_byte(3),
    })
}

async fn update(node: &mut Node, head: B256, attributes: Value) -> Result<Value, RpcError> {
    let params = json!([state(head, B256::ZERO, B256::ZERO), attributes]);
    node.engine.call("engine_forkchoiceUpdatedV3", params).await
}

fn valid(head: B256) -> Value {
    json!({
        "payloadStatus": {"status": "VALID", "latestValidHash": head, "validationError": null},
        "payloadId": null,
    })
}

fn syncing() -> Value {
    json!({
        "payloadStatus": {"status": "SYNCING", "latestValidHash": null, "validationError": null},
        "payloadId": null,
    })
}

/// Checks an error of the Engine API: its code, its message, and no data (common.md, Errors).
fn assert_refused(answer: Result<Value, RpcError>, code: i64, message: &str) {
    let error = answer.unwrap_err();
    assert_eq!((error.code, error.message.as_str(), error.data), (code, message, None));
}

/// Point 9: the form of the answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_has_exactly_its_members() {
    let (_, mut node, chain) = start(Fork::Osaka, 2).await;
    let head = chain[2].hash;
    // A repeated call has the same answer.
    for _ in 0..2 {
        assert_eq!(update(&mut node, head, Value::Null).await.unwrap(), valid(head));
    }
    let unknown = B256::repeat_byte(9);
    // Attributes are checked only if the head is valid (point 8).
    for attributes in [Value::Null, attributes(0), json!({"nonsense": 1})] {
        assert_eq!(update(&mut node, unknown, attributes).await.unwrap(), syncing());
    }
    for method in ["engine_forkchoiceUpdatedV1", "engine_forkchoiceUpdatedV2"] {
        let params = json!([state(head, head, head)]);
        assert_eq!(node.engine.call(method, params).await.unwrap(), valid(head));
    }
    node.assert_head(&chain[2]).await;
    node.stop_and_verify().await;
}

/// cancun.md, `engine_forkchoiceUpdatedV3`, point 1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forkchoice_state_of_another_form_is_invalid_params() {
    let (_, mut node, chain) = start(Fork::Osaka, 1).await;
    let good = state(chain[1].hash, B256::ZERO, B256::ZERO);
    let mut wrong =
        vec![json!([]), json!([null]), json!([7]), json!([[]]), json!([good, null, null])];
    for name in ["headBlockHash", "safeBlockHash", "finalizedBlockHash"] {
        for value in [Value::Null, json!("0x12"), json!(5), json!("latest")] {
            let mut state = good.clone();
            state[name] = value;
            wrong.push(json!([state]));
        }
        let mut state = good.clone();
        state.as_object_mut().unwrap().remove(name);
        wrong.push(json!([state]));
    }
    let mut more = good.clone();
    more["justifiedBlockHash"] = json!(B256::ZERO);
    wrong.push(json!([more]));
    for params in wrong {
        let error = node.engine.call("engine_forkchoiceUpdatedV3", params.clone()).await;
        assert_eq!(error.unwrap_err().code, -32602, "{params}");
    }
    node.assert_head(&chain[1]).await;
    node.stop_and_verify().await;
}

/// Point 5, and the error's form.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn safe_or_finalized_off_the_heads_chain_is_an_invalid_forkchoice_state() {
    let (mut builder, mut node, chain) = start(Fork::Osaka, 4).await;
    let side = builder.chain(chain[2].hash, 41_100, 1, TRANSACTIONS);
    node.import(&side[0]).await;
    let (unknown, zero) = (B256::repeat_byte(9), B256::ZERO);
    for (head, safe, finalized) in [
        (&chain[4], unknown, zero),
        (&chain[4], zero, unknown),
        (&chain[4], side[0].hash, zero),
        (&chain[4], zero, side[0].hash),
        // Above the head.
        (&chain[3], chain[4].hash, zero),
        (&chain[3], zero, chain[4].hash),
        (&side[0], chain[3].hash, chain[2].hash),
    ] {
        let params = json!([state(head.hash, safe, finalized)]);
        let answer = node.engine.call("engine_forkchoiceUpdatedV3", params).await;
        assert_refused(answer, -38002, "Invalid forkchoice state");
        node.assert_head(&chain[4]).await;
    }
    // An unknown head takes precedence: the other blocks cannot be judged.
    let params = json!([state(unknown, unknown, unknown)]);
    let answer = node.engine.call("engine_forkchoiceUpdatedV3", params).await;
    assert_eq!(answer.unwrap(), syncing());
    node.stop_and_verify().await;
}

/// Points 2 and 7: only an ancestor of the finalized block may leave the forkchoice unchanged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_head_goes_back_as_far_as_the_finalized_block_and_no_further() {
    let (mut builder, mut node, chain) = start(Fork::Osaka, 8).await;
    let finalized = chain[3].hash;
    node.forkchoice(chain[8].hash, chain[5].hash, finalized).await.unwrap();
    for (index, bad_attributes) in [(2, attributes(0)), (0, json!(7)), (1, Value::Null)] {
        let hash = chain[index].hash;
        let answer = update(&mut node, hash, bad_attributes).await.unwrap();
        assert_eq!(answer, valid(hash), "an ancestor of the finalized block");
        node.assert_head(&chain[8]).await;
    }
    // No build starts there either, although the attributes are valid.
    let good = attributes(chain[2].header.timestamp + 1);
    assert_eq!(update(&mut node, chain[2].hash, good).await.unwrap(), valid(chain[2].hash));
    for index in [6, 4, 3, 7, 8, 3] {
        node.forkchoice(chain[index].hash, B256::ZERO, finalized).await.unwrap();
        node.assert_head(&chain[index]).await;
        let above = json!([format!("{:#x}", index + 1), false]);
        let block = node.http.call("eth_getBlockByNumber", above).await.unwrap();
        assert_eq!(block, Value::Null, "above the head");
    }
    // The chain may continue from there on another branch.
    let other = builder.chain(chain[3].hash, 41_200, 2, TRANSACTIONS);
    for built in &other {
        node.extend(built).await;
    }
    node.assert_head(&other[1]).await;
    node.stop_and_verify().await;
}

/// Point 7, without a finalized block: back to genesis, past the base, and forward again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_finalized_block_the_head_goes_back_to_genesis() {
    let (mut builder, mut node, chain) = start(Fork::Shanghai, 24).await;
    for index in [10, 0, 5, 24, 1] {
        node.set_head(chain[index].hash).await;
        node.assert_head(&chain[index]).await;
    }
    node = node.restart().await;
    node.assert_head(&chain[1]).await;
    for built in &chain[2..] {
        node.extend(built).await;
    }
    let next = builder.build(chain[24].hash, 41_300, TRANSACTIONS);
    node.extend(&next).await;
    node.assert_head(&next).await;
    node.stop_and_verify().await;
}

/// Point 6: this client is limited by how far back it can restore the state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reorg_deeper_than_the_state_reaches_is_too_deep() {
    let mut builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let mut config = Config::default();
    config.storage_writer.persist_depth = 2;
    config.storage_writer.unfinalized_blocks_max = 2;
    config.storage_writer.reverse_diff_blocks = 3;
    let mut node = Node::start_with(builder.genesis_json(), config).await;
    let chain = builder.chain(builder.genesis(), 42_000, 24, TRANSACTIONS);
    let side = builder.chain(chain[1].hash, 42_001, 1, TRANSACTIONS);
    for built in &chain[..3] {
        node.extend(built).await;
    }
    node.import(&side[0]).await;
    for built in &chain[3..] {
        node.extend(built).await;
    }
    for hash in [chain[4].hash, chain[0].hash, side[0].hash] {
        for _ in 0..2 {
            let answer = update(&mut node, hash, Value::Null).await;
            assert_refused(answer, -38006, "Too deep reorg");
        }
        node.assert_head(&chain[23]).await;
    }
    node.set_head(chain[20].hash).await;
    node.assert_head(&chain[20]).await;
    node.set_head(chain[23].hash).await;
    node.stop_and_verify().await;
}

/// Point 8.3: the forkchoice stays applied if the attributes are invalid. The order of the checks
/// is that of cancun.md, `engine_forkchoiceUpdatedV3`, point 2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_attributes_do_not_undo_the_forkchoice() {
    let (mut builder, mut node, chain) = start(Fork::Osaka, 1).await;
    let mut head = chain[1].clone();
    let time = |built: &Built, seconds: u64| built.header.timestamp + seconds;
    let without = |name: &str| {
        let name = name.to_owned();
        move |built: &Built| {
            let mut attributes = attributes(time(built, 1));
            attributes.as_object_mut().unwrap().remove(&name);
            attributes
        }
    };
    let with = |name: &str, value: Value| {
        let name = name.to_owned();
        move |built: &Built| {
            let mut attributes = attributes(time(built, 1));
            attributes[&name] = value.clone();
            attributes
        }
    };
    let wrong: Vec<MakeAttributes> = vec![
        Box::new(without("timestamp")),
        Box::new(without("prevRandao")),
        Box::new(without("suggestedFeeRecipient")),
        Box::new(without("withdrawals")),
        Box::new(without("parentBeaconBlockRoot")),
        Box::new(with("withdrawals", Value::Null)),
        Box::new(with("withdrawals", json!([{}]))),
        Box::new(with("slotNumber", json!("0x1"))),
        Box::new(with("timestamp", json!(5))),
        Box::new(|_| json!("text")),
        Box::new(|_| json!([])),
        // Not later than the head's time.
        Box::new(move |built| attributes(time(built, 0))),
        Box::new(|_| attributes(0)),
        Box::new(|_| attributes(GENESIS_TIME)),
    ];
    for (index, wrong) in wrong.iter().enumerate() {
        head = builder.build(head.hash, 43_000 + index as u64, TRANSACTIONS);
        node.import(&head).await;
        let answer = update(&mut node, head.hash, wrong(&head)).await;
        assert_refused(answer, -38003, "Invalid payload attributes");
        node.assert_head(&head).await;
    }
    node.stop_and_verify().await;
}

/// shanghai.md and cancun.md, `engine_forkchoiceUpdatedV2` and `V3`; cancun.md and prague.md,
/// "Update the methods of previous forks".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attributes_of_another_fork_than_the_methods_are_refused() {
    let bare = |mut full: Value, version: u8| {
        let members = full.as_object_mut().unwrap();
        if version < 3 {
            members.remove("parentBeaconBlockRoot");
        }
        if version < 2 {
            members.remove("withdrawals");
        }
        full
    };
    for fork in FORKS {
        let (_, mut node, chain) = start(fork, 1).await;
        let head = &chain[1];
        let full = attributes(head.header.timestamp + 12);
        for (version, form, want) in [
            // The right form for the version; the result depends on the fork.
            (1, 1, if fork == Fork::Paris { 0 } else { -38005 }),
            (
                2,
                2,
                match fork {
                    Fork::Paris => -38003,
                    Fork::Shanghai => 0,
                    _ => -38005,
                },
            ),
            (3, 3, if fork >= Fork::Cancun { 0 } else { -38005 }),
            // The form of another version takes precedence.
            (1, 2, -38003),
            (2, 3, -38003),
            (3, 2, -38003),
            (2, 1, if fork == Fork::Paris { 0 } else { -38003 }),
        ] {
            let method = format!("engine_forkchoiceUpdatedV{version}");
            let params =
                json!([state(head.hash, B256::ZERO, B256::ZERO), bare(full.clone(), form)]);
            let answer = node.engine.call(&method, params).await;
            let code = answer.as_ref().map_or_else(|error| error.code, |_| 0);
            assert_eq!(code, want, "V{version} with form V{form} at {fork}: {answer:?}");
            assert_eq!(answer.is_ok_and(|answer| answer["payloadId"].is_string()), want == 0);
        }
        node.stop_and_verify().await;
    }
}

/// Points 4 and 9: an invalid head changes nothing and begins no build.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_head_is_named_with_its_newest_valid_ancestor() {
    let (mut builder, mut node, chain) = start(Fork::Osaka, 2).await;
    let built = builder.build(chain[2].hash, 44_000, TRANSACTIONS);
    let mut payload = built.payload.clone();
    payload.receipts_root = B256::repeat_byte(5);
    reseal(&mut payload, &built.sidecar);
    let (method, params) = new_payload(built.fork, &payload, &built.sidecar);
    assert_eq!(node.engine.call(method, params).await.unwrap()["status"], "INVALID");
    for attributes in [Value::Null, attributes(built.header.timestamp + 12), json!(7)] {
        let mut answer = update(&mut node, payload.block_hash, attributes).await.unwrap();
        assert!(answer["payloadStatus"]["validationError"].take().is_string());
        let status = json!({
            "status": "INVALID", "latestValidHash": chain[2].hash, "validationError": null,
        });
        assert_eq!(answer, json!({"payloadStatus": status, "payloadId": null}));
        node.assert_head(&chain[2]).await;
    }
    node.stop_and_verify().await;
}
