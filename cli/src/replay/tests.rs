//! Tests of the replay against an engine that answers from a script.

use super::corpus::tests::file;
use super::session::ZERO_HASH;
use super::*;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Function that answers a call with a result, or an error object.
type Script = fn(method: &str, call: &Value) -> Result<Value, Value>;

struct FakeEngine {
    url: String,
    /// Calls in order, with whether they carried a token.
    calls: Arc<Mutex<Vec<Value>>>,
    connections: Arc<Mutex<usize>>,
}

impl FakeEngine {
    async fn start(script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let calls = Arc::new(Mutex::new(Vec::new()));
        let connections = Arc::new(Mutex::new(0));
        let engine = Self { url, calls: calls.clone(), connections: connections.clone() };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                *connections.lock().unwrap() += 1;
                tokio::spawn(serve(stream, script, calls.clone()));
            }
        });
        engine
    }

    fn calls(&self) -> Vec<Value> {
        self.calls.lock().unwrap().clone()
    }
}

async fn serve(mut stream: TcpStream, script: Script, calls: Arc<Mutex<Vec<Value>>>) {
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let Ok(byte) = stream.read_u8().await else { return };
            head.push(byte);
        }
        let head = String::from_utf8(head).unwrap().to_lowercase();
        let length = head.split("content-length: ").nth(1).unwrap();
        let mut body = vec![0; length.split("\r\n").next().unwrap().parse().unwrap()];
        stream.read_exact(&mut body).await.unwrap();
        let authorized = head.contains("authorization: bearer ");
        let mut call: Value = serde_json::from_slice(&body).unwrap();
        let answer = match script(call["method"].as_str().unwrap(), &call) {
            Ok(result) => json!({"jsonrpc": "2.0", "id": call["id"], "result": result}),
            Err(error) => json!({"jsonrpc": "2.0", "id": call["id"], "error": error}),
        };
        assert!(!head.contains("traceparent"), "nobody exports the parent");
        let mut more = String::new();
        if head.contains("want-traceresponse: 1\r\n") {
            let trace = format!("{:032x}", calls.lock().unwrap().len() + 1);
            more = format!("traceresponse: 00-{trace}-00000000000000aa-01\r\n");
            call["trace"] = json!(trace);
        }
        calls.lock().unwrap().push(call);
        let (status, text) = match authorized {
            true => ("200 OK", answer.to_string()),
            false => ("401 Unauthorized", "missing token".to_owned()),
        };
        let length = text.len();
        let response = format!("HTTP/1.1 {status}\r\n{more}content-length: {length}\r\n\r\n{text}");
        stream.write_all(response.as_bytes()).await.unwrap();
    }
}

fn hash(number: u64) -> String {
    format!("0x{number:064x}")
}

fn valid(hash: &Value) -> Value {
    json!({"status": "VALID", "latestValidHash": hash, "validationError": null})
}

fn all_valid(method: &str, call: &Value) -> Result<Value, Value> {
    if method.starts_with("engine_newPayload") {
        Ok(valid(&call["params"][0]["blockHash"]))
    } else if method.starts_with("engine_forkchoiceUpdated") {
        let status = valid(&call["params"][0]["headBlockHash"]);
        Ok(json!({"payloadStatus": status, "payloadId": null}))
    } else {
        Err(json!({"code": -32601, "message": "no such method"}))
    }
}

struct Setup {
    directory: tempfile::TempDir,
    args: ReplayArgs,
}

fn setup(engine: &FakeEngine) -> Setup {
    let directory = tempfile::tempdir().unwrap();
    let jwtsecret = directory.path().join("jwt.hex");
    Secret::load_or_create(&jwtsecret).unwrap();
    let args = ReplayArgs {
        engine: engine.url.clone(),
        jwtsecret,
        corpus: file(directory.path(), "payloads.jsonl.gz", 1..=6),
        warmup: 0,
        from: 0,
        to: u64::MAX,
        json: None,
        finality: Finality { safe: 2, finalized: 4 },
        no_forkchoice: false,
        gap_ms: 0,
        call_timeout: 5,
        jaeger_ui: None,
    };
    Setup { directory, args }
}

#[tokio::test]
async fn every_block_is_given_and_made_the_head_over_one_connection() {
    let engine = FakeEngine::start(all_valid).await;
    let mut setup = setup(&engine);
    setup.args.warmup = 2;
    setup.args.json = Some(setup.directory.path().join("report.json"));
    let report = run(setup.args.clone()).await.unwrap();
    assert!(report.is_valid());
    assert_eq!(
        report.blocks.iter().map(|block| block.number).collect::<Vec<_>>(),
        [1, 2, 3, 4, 5, 6]
    );
    assert_eq!(report.calls.iter().map(|summary| summary.n).collect::<Vec<_>>(), [4, 4, 4]);
    assert_eq!(*engine.connections.lock().unwrap(), 1);

    let calls = engine.calls();
    assert_eq!(calls[1]["method"], "engine_newPayloadV4");
    assert_eq!(calls[1]["params"][3], json!(["0x00cc"]));
    let states: Vec<_> = calls
        .iter()
        .filter(|call| call["method"] == "engine_forkchoiceUpdatedV3")
        .map(|call| {
            assert_eq!(call["params"][1], Value::Null);
            call["params"][0].clone()
        })
        .collect();
    // Block 0, the parent of the first block, counts as known.
    let zero = ZERO_HASH.to_owned();
    for (state, (safe, finalized)) in states.iter().zip([
        (zero.clone(), zero.clone()),
        (hash(0), zero.clone()),
        (hash(1), zero),
        (hash(2), hash(0)),
        (hash(3), hash(1)),
        (hash(4), hash(2)),
    ]) {
        assert_eq!(state["safeBlockHash"], safe);
        assert_eq!(state["finalizedBlockHash"], finalized);
    }
    assert_eq!(states[5]["headBlockHash"], hash(6));

    let json = std::fs::read(setup.args.json.unwrap()).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json["blocks"].as_array().unwrap().len(), 6);
    assert_eq!(json["failure"], Value::Null);
}

#[tokio::test]
async fn a_range_of_blocks_without_forkchoices() {
    let engine = FakeEngine::start(all_valid).await;
    let mut setup = setup(&engine);
    (setup.args.from, setup.args.to, setup.args.no_forkchoice) = (3, 4, true);
    let report = run(setup.args).await.unwrap();
    assert_eq!(report.blocks.len(), 2);
    assert_eq!(report.calls.len(), 1);
    assert!(engine.calls().iter().all(|call| call["method"] != "engine_forkchoiceUpdatedV3"));
}

#[tokio::test]
async fn the_first_answer_that_is_not_valid_stops_the_replay() {
    fn third_invalid(method: &str, call: &Value) -> Result<Value, Value> {
        if method == "engine_newPayloadV4" && call["params"][0]["blockNumber"] == "0x3" {
            return Ok(json!({
                "status": "INVALID", "latestValidHash": hash(2), "validationError": "wrong root",
            }));
        }
        all_valid(method, call)
    }
    let engine = FakeEngine::start(third_invalid).await;
    let report = run(setup(&engine).args).await.unwrap();
    assert!(!report.is_valid());
    assert_eq!(report.blocks.len(), 2);
    let text = report.render();
    for part in ["block 3", &hash(3), "engine_newPayloadV4", "\"VALID\"", "INVALID", "wrong root"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[tokio::test]
async fn errors_and_a_wrong_head_are_mismatches_too() {
    fn error(method: &str, call: &Value) -> Result<Value, Value> {
        match method {
            "engine_newPayloadV4" => Err(json!({"code": -38005, "message": "Unsupported fork"})),
            _ => all_valid(method, call),
        }
    }
    fn wrong_head(method: &str, call: &Value) -> Result<Value, Value> {
        match method {
            "engine_forkchoiceUpdatedV3" => {
                Ok(json!({"payloadStatus": valid(&json!(hash(0))), "payloadId": null}))
            }
            _ => all_valid(method, call),
        }
    }
    let engine = FakeEngine::start(error).await;
    let failure = run(setup(&engine).args).await.unwrap().failure.unwrap();
    assert!(failure.got.contains("-38005"), "{}", failure.got);
    let engine = FakeEngine::start(wrong_head).await;
    let failure = run(setup(&engine).args).await.unwrap().failure.unwrap();
    assert_eq!(failure.method, "engine_forkchoiceUpdatedV3");
}

#[tokio::test]
async fn wrong_arguments_are_usage_errors_and_an_absent_engine_is_not() {
    let engine = FakeEngine::start(all_valid).await;
    let Setup { directory, args } = setup(&engine);
    let absent = directory.path().join("absent");
    for wrong in [
        ReplayArgs { jwtsecret: absent.clone(), ..args.clone() },
        ReplayArgs { corpus: absent, ..args.clone() },
        ReplayArgs { engine: "https://localhost".into(), ..args.clone() },
        ReplayArgs { from: 100, ..args.clone() },
    ] {
        let error = run(wrong).await.unwrap_err();
        assert!(error.is::<UsageError>(), "{error:#}");
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let engine = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let error = run(ReplayArgs { engine, ..args }).await.unwrap_err();
    assert!(!error.is::<UsageError>(), "{error:#}");
}

#[test]
fn finality_is_two_distances() {
    assert_eq!("32,64".parse(), Ok(Finality { safe: 32, finalized: 64 }));
    assert_eq!("0,0".parse(), Ok(Finality { safe: 0, finalized: 0 }));
    for text in ["", "32", "64,32", "a,b", "1,2,3", "-1,2"] {
        assert!(text.parse::<Finality>().is_err(), "{text}");
    }
}

#[tokio::test]
async fn slowest_payloads_are_named_with_the_pages_of_their_traces() {
    let engine = FakeEngine::start(all_valid).await;
    let mut setup = setup(&engine);
    let without = run(setup.args.clone()).await.unwrap();
    assert!(engine.calls().iter().all(|call| call["trace"].is_null()), "only when asked");
    assert!(!without.render().contains("slowest"));

    setup.args.jaeger_ui = Some("http://jaeger:16686/".into());
    let asked_before = engine.calls().len();
    let report = run(setup.args).await.unwrap();
    let calls = engine.calls().split_off(asked_before);
    let is_payload = |call: &&Value| call["method"].as_str().unwrap().contains("newPayload");
    assert!(calls.iter().filter(|call| !is_payload(call)).all(|call| call["trace"].is_null()));
    let traces: Vec<String> = calls
        .iter()
        .filter(is_payload)
        .map(|call| call["trace"].as_str().unwrap().to_owned())
        .collect();
    let reported: Vec<String> =
        report.blocks.iter().filter_map(|block| block.trace_id.clone()).collect();
    assert_eq!((traces.len(), &traces), (6, &reported));
    let slowest = report.blocks.iter().max_by(|a, b| a.new_payload_ms.total_cmp(&b.new_payload_ms));
    let page = format!("http://jaeger:16686/trace/{}", slowest.unwrap().trace_id.as_ref().unwrap());
    let text = report.render();
    let first = text.lines().skip_while(|line| !line.contains("slowest newPayload")).nth(1);
    assert!(first.unwrap().ends_with(&page), "{text}");
    assert_eq!(text.matches("/trace/").count(), 5);
}
