//! newPayload with parameters of another shape, or of another fork, than the method's. Each returns
//! an error, and the valid payload is still accepted.

use serde_json::{Value, json};
use tandem_chain::Fork;
use tandem_cluster_tests::{
    Builder, Built, Contents, FORKS, Forks, Node, decode_status, new_payload,
};

/// Starts a node at genesis, and builds a valid first block with all actions in it.
async fn start(fork: Fork) -> (Node, Built) {
    let mut builder = Builder::new(Forks::at_genesis(fork));
    let valid = builder.build(builder.genesis(), 21_000, Contents::Everything);
    (Node::start(builder.genesis_json()).await, valid)
}

/// Each member of the payload is missing, of another type, or not a hexadecimal number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payloads_of_another_shape_are_invalid_params() {
    let (mut node, valid) = start(Fork::Prague).await;
    let (method, params) = valid.new_payload();
    let names: Vec<_> = params[0].as_object().unwrap().keys().cloned().collect();
    assert_eq!(names.len(), 17);
    let mut wrong = Vec::new();
    for name in names {
        for value in [None, Some(Value::Null), Some(json!(7)), Some(json!("zz")), Some(json!({}))] {
            let mut params = params.clone();
            let payload = params[0].as_object_mut().unwrap();
            match value {
                Some(value) => payload.insert(name.clone(), value),
                None => payload.remove(&name),
            };
            wrong.push(params);
        }
    }
    for position in 0..4 {
        for value in [Value::Null, json!(7), json!("zz"), json!({"a": 1}), json!(["0x1"])] {
            let mut params = params.clone();
            params[position] = value;
            wrong.push(params);
        }
        let mut params = params.clone();
        params.as_array_mut().unwrap().truncate(position);
        wrong.push(params);
    }
    let mut longer = params.clone();
    longer.as_array_mut().unwrap().push(json!(null));
    wrong.push(longer);
    for params in wrong {
        let answer = node.engine.call(method, params.clone()).await;
        assert_eq!(
            answer.as_ref().map_err(|error| error.code),
            Err(-32602),
            "{params}: {answer:?}"
        );
    }
    node.extend(&valid).await;
    node.stop_and_verify().await;
}

/// engine_newPayload of another fork (Engine API: -38005 for the fork, -32602 for its fields).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payloads_of_another_fork_than_the_methods_are_refused() {
    for fork in FORKS {
        let (mut node, valid) = start(fork).await;
        let (own, _) = valid.new_payload();
        for (other, version) in
            [(Fork::Paris, 1), (Fork::Shanghai, 2), (Fork::Cancun, 3), (Fork::Prague, 4)]
        {
            let (payload, mut sidecar) = (valid.payload.clone(), valid.sidecar.clone());
            sidecar.versioned_hashes.get_or_insert_default();
            sidecar.parent_beacon_block_root.get_or_insert_default();
            sidecar.execution_requests.get_or_insert_default();
            let (method, params) = new_payload(other, &payload, &sidecar);
            if method == own {
                continue;
            }
            let answer = node.engine.call(method, params).await;
            // V2 serves Paris too.
            if (fork, version) == (Fork::Paris, 2) {
                assert_eq!(decode_status(answer.unwrap()).status, "VALID");
                continue;
            }
            let complete = version >= 3 && (fork >= Fork::Cancun);
            let want = if complete { -38005 } else { -32602 };
            let got = answer.as_ref().map_err(|error| error.code);
            assert_eq!(got, Err(want), "{fork} by V{version}: {answer:?}");
        }
        node.extend(&valid).await;
    }
}
