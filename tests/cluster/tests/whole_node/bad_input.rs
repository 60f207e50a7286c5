//! Invalid requests: each returns an error, and the node stays alive.

use bytes::Bytes;
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};
use tandem_auth::Secret;
use tandem_chain::Fork;
use tandem_cluster_tests::{Answer, Builder, Client, Forks, Node};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const CHAIN_ID: &str = r#"{"jsonrpc":"2.0","id":9,"method":"eth_chainId","params":[]}"#;

async fn node() -> Node {
    Node::start(Builder::new(Forks::at_genesis(Fork::Osaka)).genesis_json()).await
}

/// Checks that a valid request is answered, on the open connection and on a new one.
async fn assert_alive(node: &mut Node, label: &str) {
    assert!(node.engine.is_connected().await, "{label}: the connection is gone");
    assert_answers(node, label).await;
}

/// Checks that a valid request is answered, whether the connection is open or not.
async fn assert_answers(node: &mut Node, label: &str) {
    let secret = Secret::load(&node.secret_file()).unwrap();
    let fresh = Client::new(node.engine_address(), Some(secret));
    let mut clients = [&mut node.engine, &mut { fresh }];
    for client in &mut clients {
        let answer = client.call("eth_chainId", json!([])).await;
        assert_eq!(answer.unwrap(), json!("0x116aa"), "{label}");
    }
}

/// Sends a body with a valid token.
async fn post(node: &mut Node, body: impl Into<Bytes>) -> Answer {
    let token = node.engine.token();
    node.engine.post(body, token.as_deref()).await.unwrap()
}

fn code(answer: &Value) -> i64 {
    answer["error"]["code"].as_i64().unwrap_or_else(|| panic!("no error: {answer}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_request_is_answered_by_an_error() {
    let mut node = node().await;
    let nested = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let deep =
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"engine_newPayloadV4","params":{nested}}}"#);
    let bodies: Vec<(Vec<u8>, i64)> = [
        ("", -32700),
        (" ", -32700),
        ("{", -32700),
        ("nonsense", -32700),
        (r#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId""#, -32700),
        (r#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId"}}"#, -32700),
        ("[1,", -32700),
        ("[]", -32600),
        ("7", -32600),
        ("null", -32600),
        (r#""eth_chainId""#, -32600),
        ("{}", -32600),
        (r#"{"jsonrpc":"2.0","id":1}"#, -32600),
        (r#"{"jsonrpc":"1.0","id":1,"method":"eth_chainId"}"#, -32600),
        (r#"{"id":1,"method":"eth_chainId"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":{},"method":"eth_chainId"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":7}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":"eth_nothing"}"#, -32601),
        (r#"{"jsonrpc":"2.0","id":1,"method":""}"#, -32601),
        (r#"{"jsonrpc":"2.0","id":1,"method":"engine_newPayloadV9","params":[]}"#, -32601),
        (r#"{"jsonrpc":"2.0","id":1,"method":"engine_exchangeTransitionConfigurationV1"}"#, -32601),
        (r#"{"jsonrpc":"2.0","id":1,"method":"engine_newPayloadV4","params":{}}"#, -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"engine_newPayloadV4","params":[]}"#, -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"engine_newPayloadV4","params":"x"}"#, -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"engine_newPayloadV1","params":[[]]}"#, -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"engine_forkchoiceUpdatedV3","params":[]}"#, -32602),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"engine_forkchoiceUpdatedV3",
                "params":[{"headBlockHash":"0x12","safeBlockHash":"0x","finalizedBlockHash":1}]}"#,
            -32602,
        ),
        (r#"{"jsonrpc":"2.0","id":1,"method":"eth_getBalance","params":["0x1","latest"]}"#, -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"eth_getBlockByNumber","params":[7]}"#, -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"eth_call","params":[{"to":5}]}"#, -32602),
    ]
    .into_iter()
    .map(|(body, code)| (body.as_bytes().to_vec(), code))
    .chain([
        (vec![0xff, 0xfe, 0x00], -32700),
        (vec![0; 1 << 20], -32700),
        (deep.into_bytes(), -32602),
    ])
    .collect();
    for (body, want) in bodies {
        let label = String::from_utf8_lossy(&body[..body.len().min(120)]).into_owned();
        let answer = post(&mut node, body).await;
        assert_eq!(answer.status, 200, "{label}");
        assert_eq!(code(&answer.json()), want, "{label}: {}", answer.json());
        assert_alive(&mut node, &label).await;
    }
    // A batch with one invalid entry.
    let answer = post(&mut node, nested).await.json();
    assert_eq!(code(&answer[0]), -32600, "{answer}");
    assert_alive(&mut node, "nested arrays").await;
    node.stop_and_verify().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_answered_call_by_call() {
    let mut node = node().await;
    let batch = format!(
        r#"[{CHAIN_ID},
            {{"jsonrpc":"2.0","id":"two","method":"eth_nothing"}},
            {{"jsonrpc":"2.0","method":"eth_chainId"}},
            5,
            {{"jsonrpc":"2.0","id":null,"method":"net_version"}},
            [{CHAIN_ID}]]"#
    );
    let answer = post(&mut node, batch).await.json();
    let answers = answer.as_array().unwrap();
    assert_eq!(answers.len(), 5, "the notification has no answer: {answer}");
    assert_eq!((&answers[0]["id"], &answers[0]["result"]), (&json!(9), &json!("0x116aa")));
    assert_eq!((&answers[1]["id"], code(&answers[1])), (&json!("two"), -32601));
    assert_eq!(code(&answers[2]), -32600);
    assert_eq!((&answers[3]["id"], &answers[3]["result"]), (&Value::Null, &json!("71338")));
    assert_eq!(code(&answers[4]), -32600);

    let many = |count: usize| format!("[{}]", vec![CHAIN_ID; count].join(","));
    let answer = post(&mut node, many(100)).await.json();
    assert_eq!(answer.as_array().map(Vec::len), Some(100));
    let answer = post(&mut node, many(101)).await.json();
    assert_eq!(code(&answer), -32600);
    let answer = post(&mut node, format!("[{}1]", "1,".repeat(1_000_000))).await.json();
    assert_eq!(code(&answer), -32600);
    assert_alive(&mut node, "large batches").await;
    node.stop_and_verify().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notification_has_no_answer() {
    let mut node = node().await;
    for body in [
        r#"{"jsonrpc":"2.0","method":"eth_chainId"}"#,
        r#"{"jsonrpc":"2.0","method":"eth_nothing"}"#,
        r#"[{"jsonrpc":"2.0","method":"eth_chainId"},{"jsonrpc":"2.0","method":"x"}]"#,
    ] {
        let answer = post(&mut node, body).await;
        assert_eq!((answer.status, answer.body.len()), (200, 0), "{body}: {:?}", answer.body);
        assert_alive(&mut node, body).await;
    }
    node.stop_and_verify().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_without_a_good_token_is_unauthorized() {
    let mut node = node().await;
    let secret = Secret::load(&node.secret_file()).unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let good = tandem_auth::sign(&secret, now);
    let (message, signature) = good.rsplit_once('.').unwrap();
    let (_, claims) = message.split_once('.').unwrap();
    // {"alg":"none"}
    let unsigned = format!("eyJhbGciOiJub25lIn0.{claims}.");
    let other_claims = tandem_auth::sign(&secret, now - 1);
    let (other_message, _) = other_claims.rsplit_once('.').unwrap();
    let tokens = [
        ("missing", None),
        ("expired", Some(tandem_auth::sign(&secret, now - 120))),
        ("from the future", Some(tandem_auth::sign(&secret, now + 120))),
        ("of another secret", Some(tandem_auth::sign(&Secret::random(), now))),
        ("not signed", Some(unsigned)),
        ("with another's signature", Some(format!("{other_message}.{signature}"))),
        ("cut short", Some(good[..good.len() - 2].to_owned())),
        ("without signature", Some(message.to_owned())),
        ("empty", Some(String::new())),
        ("nonsense", Some("x.y.z".to_owned())),
        ("huge", Some("A".repeat(6_000))),
    ];
    for (label, token) in tokens {
        let header = token.map(|token| format!("Bearer {token}"));
        let answer = node.engine.post(CHAIN_ID, header.as_deref()).await.unwrap();
        assert_eq!(answer.status, 401, "{label}: {:?}", answer.body);
        // The connection of an unauthenticated caller ends.
        assert_answers(&mut node, label).await;
    }
    for header in [good.clone(), format!("Basic {good}"), format!("Bearer{good}")] {
        let answer = node.engine.post(CHAIN_ID, Some(&header)).await.unwrap();
        assert_eq!(answer.status, 401, "{header}");
    }
    let answer = node.engine.post(CHAIN_ID, Some(&format!("Bearer {good}"))).await.unwrap();
    assert_eq!(answer.json()["result"], json!("0x116aa"));

    // The other port needs no token and has none of these methods.
    let answer = node.http.call("eth_chainId", json!([])).await;
    assert_eq!(answer.unwrap(), json!("0x116aa"));
    let answer = node.http.call("engine_newPayloadV4", json!([])).await;
    assert_eq!(answer.unwrap_err().code, -32601);
    node.stop_and_verify().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_is_too_large_is_refused() {
    let mut node = node().await;
    let body = Bytes::from(vec![b' '; 200 << 20]);
    let answer = post(&mut node, body.clone()).await;
    assert_eq!(answer.status, 413);
    assert_alive(&mut node, "200 MiB").await;
    // Without a token the request is refused for that reason, whatever its size.
    // The server need not read on then, so the connection may break while the body is sent.
    let mut answer = node.engine.post(body.clone(), None).await;
    for _ in 0..10 {
        if answer.is_ok() {
            break;
        }
        answer = node.engine.post(body.clone(), None).await;
    }
    assert_eq!(answer.unwrap().status, 401);
    let answer = node.http.post(body.slice(..6 << 20), None).await.unwrap();
    assert_eq!(answer.status, 413);
    let answer = node.http.call("eth_chainId", json!([])).await;
    assert_eq!(answer.unwrap(), json!("0x116aa"));
    // As large as allowed, but not JSON.
    let answer = post(&mut node, body.slice(..128 << 20)).await;
    assert_eq!((answer.status, code(&answer.json())), (200, -32700));
    assert_alive(&mut node, "128 MiB").await;
    node.stop_and_verify().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_http_ends_its_own_connection_only() {
    let mut node = node().await;
    assert!(node.engine.call("eth_chainId", json!([])).await.is_ok());
    let token = node.engine.token().unwrap();
    for bytes in [
        b"\x16\x03\x01\x02\x00\x01\x00".to_vec(),
        b"GET\r\n\r\n".to_vec(),
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n".to_vec(),
        // A body that ends too early.
        format!(
            "POST / HTTP/1.1\r\nHost: x\r\nAuthorization: {token}\r\nContent-Length: 50\r\n\r\n{{"
        )
        .into_bytes(),
    ] {
        let mut stream = TcpStream::connect(node.engine_address()).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        stream.shutdown().await.unwrap();
        // Whatever the answer is, the connection ends.
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
        assert_alive(&mut node, &String::from_utf8_lossy(&bytes)).await;
    }
    node.stop_and_verify().await;
}
