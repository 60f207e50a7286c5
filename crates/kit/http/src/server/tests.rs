use super::*;
use crate::access::{Hosts, Origins};
use crate::limits::ConnectionLimits;
use crate::listener::serve_within;
use crate::methods::{Answer, required, to_result};
use crate::pieces::Pieces;
use serde_json::{Value, json};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

mod attacks;
mod websockets;

const SECRET: Secret = Secret::new([3; 32]);

async fn panicking(_: Params) -> Answer {
    panic!("a defect")
}

fn methods() -> Methods {
    let mut methods = Methods::new();
    methods.add("echo", |params: Params| async move {
        let (text,) = params.decode::<(Option<Value>,)>()?;
        to_result(&required(text, 0)?)
    });
    methods.add("length", |params: Params| async move {
        let (text,) = params.decode_large::<(Option<String>,)>().await?;
        to_result(&required(text, 0)?.len())
    });
    methods.add("large", |_| async { to_result(&"x".repeat(1000)) });
    methods.add("panic", panicking);
    // Answers with the number of calls and its own parameter; a call without one fails, and so does a group with 13.
    methods.add_grouped("grouped", |calls: Vec<Params>| async move {
        let count = calls.len();
        let decoded = Params::decode_all::<(Option<u64>,)>(calls).await;
        assert!(!decoded.iter().any(|value| matches!(value, Ok((Some(13),)))), "a defect");
        let answer = |decoded: Result<(Option<u64>,), RpcError>| {
            to_result(&(count, required(decoded?.0, 0)?))
        };
        decoded.into_iter().map(answer).collect()
    });
    methods.add_streaming("pieces", |_| async { Ok(Output::Pieces(pieces())) });
    methods
}

/// Returns a list of long texts, made one by one; [`MADE`] counts them.
fn pieces() -> Pieces {
    let piece = |index| {
        MADE.fetch_add(1, Ordering::Relaxed);
        let before = if index == 0 { "[" } else { "," };
        let after = if index == PIECES - 1 { "]" } else { "" };
        Bytes::from(format!("{before}\"{}\"{after}", "x".repeat(PIECE_LEN)))
    };
    Pieces::new(PIECES * (PIECE_LEN + 3) + 1, (0..PIECES).map(piece))
}

const PIECES: usize = 64;
const PIECE_LEN: usize = 256 << 10;
static MADE: AtomicUsize = AtomicUsize::new(0);

/// Head of a request, without the length of the body and the end.
const HEAD: &str = "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";

struct Server {
    address: SocketAddr,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<io::Result<()>>,
}

impl Server {
    async fn start(router: Router) -> Self {
        Self::start_within(router, ConnectionLimits::default()).await
    }

    async fn start_within(router: Router, limits: ConnectionLimits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(serve_within(listener, router, limits, shutdown.clone()));
        Self { address, shutdown, task }
    }

    async fn public() -> Self {
        let limits = Limits {
            body_bytes_max: 2 << 20,
            batch_len_max: 4,
            batch_response_bytes_max: 1500,
            ..Limits::public()
        };
        Self::start(public_router(methods(), limits)).await
    }

    async fn engine() -> Self {
        Self::start(engine_router(methods(), SECRET, Limits::engine())).await
    }

    async fn connect(&self) -> Client {
        Client { stream: TcpStream::connect(self.address).await.unwrap() }
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.unwrap().unwrap();
    }
}

/// Keep-alive connection, written by hand so that requests can have any fault.
struct Client {
    stream: TcpStream,
}

impl Client {
    async fn post(&mut self, body: &[u8], headers: &str) -> (u16, String) {
        let length = body.len();
        let head = format!("{HEAD}content-length: {length}\r\n{headers}\r\n");
        self.stream.write_all(head.as_bytes()).await.unwrap();
        self.stream.write_all(body).await.unwrap();
        self.response().await
    }

    async fn call(&mut self, body: &str) -> Value {
        let (status, body) = self.post(body.as_bytes(), "").await;
        assert_eq!(status, 200);
        serde_json::from_str(&body).unwrap()
    }

    async fn send(&mut self, request: &str) -> (u16, String) {
        self.stream.write_all(request.as_bytes()).await.unwrap();
        self.response().await
    }

    async fn response(&mut self) -> (u16, String) {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.stream.read_u8().await.unwrap());
        }
        let head = String::from_utf8(head).unwrap().to_lowercase();
        let status = head[9..12].parse().unwrap();
        let length = head.split("content-length: ").nth(1).unwrap();
        let length: usize = length.split("\r\n").next().unwrap().parse().unwrap();
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await.unwrap();
        (status, String::from_utf8(body).unwrap())
    }

    async fn still_works(&mut self) {
        let answer = self.call(r#"{"jsonrpc":"2.0","id":9,"method":"echo","params":["ok"]}"#).await;
        assert_eq!(answer, json!({"jsonrpc": "2.0", "id": 9, "result": "ok"}));
    }
}

fn code_of(answer: &Value) -> i64 {
    answer["error"]["code"].as_i64().unwrap_or_default()
}

#[tokio::test]
async fn malformed_requests_get_an_error_and_the_connection_lives() {
    let server = Server::public().await;
    let mut client = server.connect().await;
    for (body, want) in [
        ("", -32700),
        ("{", -32700),
        ("\u{0}\u{1}", -32700),
        ("[]", -32600),
        ("{}", -32600),
        ("7", -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":"nothing"}"#, -32601),
        (r#"{"jsonrpc":"2.0","id":1,"method":"echo"}"#, -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"echo","params":{}}"#, -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"echo","params":[1,2]}"#, -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"length","params":[1]}"#, -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"panic"}"#, -32603),
    ] {
        let answer = client.call(body).await;
        assert_eq!(code_of(&answer), want, "{body}: {answer}");
        client.still_works().await;
    }
    server.stop().await;
}

#[tokio::test]
async fn batches_are_answered_in_order_without_the_notifications() {
    let server = Server::public().await;
    let mut client = server.connect().await;
    let answer = client
        .call(
            r#"[{"jsonrpc":"2.0","id":2,"method":"echo","params":[1]},
                {"jsonrpc":"2.0","method":"echo","params":[2]},
                {"jsonrpc":"2.0","id":"a","method":"nothing"},
                5]"#,
        )
        .await;
    let codes: Vec<_> = answer.as_array().unwrap().iter().map(|a| (&a["id"], code_of(a))).collect();
    assert_eq!(codes, [(&json!(2), 0), (&json!("a"), -32601), (&Value::Null, -32600)]);

    let notification = r#"{"jsonrpc":"2.0","method":"echo","params":[2]}"#;
    for body in [notification.to_owned(), format!("[{notification},{notification}]")] {
        assert_eq!(client.post(body.as_bytes(), "").await, (200, String::new()));
    }
    assert_eq!(code_of(&client.call("[1,2,3,4,5]").await), -32600);
    server.stop().await;
}

#[tokio::test]
async fn calls_that_follow_each_other_are_answered_together_if_their_method_can() {
    let server = Server::public().await;
    let mut client = server.connect().await;
    let call = |id: u64, method: &str, params: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":[{params}]}}"#)
    };
    let grouped = |id, params| call(id, "grouped", params);
    let silent = r#"{"jsonrpc":"2.0","method":"grouped","params":[9]}"#.to_owned();
    for (calls, want) in [
        (vec![grouped(1, "7")], json!([[1, 7]])),
        (vec![grouped(1, "7"), grouped(2, "8"), silent.clone()], json!([[3, 7], [3, 8]])),
        (vec![grouped(1, "7"), grouped(2, ""), grouped(3, "8")], json!([[3, 7], -32602, [3, 8]])),
        (
            vec![grouped(1, "7"), call(2, "echo", "5"), grouped(3, "8"), grouped(4, "9")],
            json!([[1, 7], 5, [2, 8], [2, 9]]),
        ),
        (vec![grouped(1, "7"), grouped(2, "13"), call(3, "echo", "5")], json!([-32603, -32603, 5])),
        (vec![silent.clone(), call(1, "large", ""), silent, grouped(2, "1")], json!(["", [2, 1]])),
    ] {
        let answer = client.call(&format!("[{}]", calls.join(","))).await;
        let answers = answer.as_array().unwrap();
        let ids: Vec<_> = answers.iter().map(|answer| answer["id"].as_u64().unwrap()).collect();
        assert_eq!(ids, (1..=ids.len() as u64).collect::<Vec<_>>(), "{answer}");
        let of = |answer: &Value| match code_of(answer) {
            0 if answer["result"].is_string() => json!(""),
            0 => answer["result"].clone(),
            code => json!(code),
        };
        assert_eq!(Value::from_iter(answers.iter().map(of)), want);
    }
    assert_eq!(client.call(&grouped(1, "7")).await["result"], json!([1, 7]));
    server.stop().await;
}

#[tokio::test]
async fn the_answer_to_a_batch_is_bounded() {
    let server = Server::public().await;
    let mut client = server.connect().await;
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"large"}"#;
    let answer = client.call(&format!("[{call},{call},{call}]")).await;
    let codes: Vec<_> = answer.as_array().unwrap().iter().map(code_of).collect();
    assert_eq!(codes, [0, 0, -32003]);
    client.still_works().await;
    server.stop().await;
}

#[tokio::test]
async fn a_body_over_the_limit_gets_413_and_the_server_lives() {
    let server = Server::public().await;
    let mut client = server.connect().await;
    let body = vec![b'x'; 200 << 20];
    assert_eq!(client.post(&body, "").await.0, 413);
    client.still_works().await;

    // Chunked: the length becomes known only during the transfer.
    client
        .stream
        .write_all(format!("{HEAD}transfer-encoding: chunked\r\n\r\n").as_bytes())
        .await
        .unwrap();
    for _ in 0..48 {
        client.stream.write_all(b"10000\r\n").await.unwrap();
        client.stream.write_all(&body[..0x10000]).await.unwrap();
        client.stream.write_all(b"\r\n").await.unwrap();
    }
    client.stream.write_all(b"0\r\n\r\n").await.unwrap();
    assert_eq!(client.response().await.0, 413);
    client.still_works().await;

    // A caller that asks first is refused before it sends anything.
    let head = format!("{HEAD}expect: 100-continue\r\ncontent-length: 900000000\r\n\r\n");
    assert_eq!(server.connect().await.send(&head).await.0, 413);
    server.stop().await;
}

#[tokio::test]
async fn large_parameters_are_decoded_off_the_reactor() {
    let server = Server::public().await;
    let mut client = server.connect().await;
    let text = "y".repeat(1 << 20);
    let answer = client
        .call(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"length","params":["{text}"]}}"#))
        .await;
    assert_eq!(answer["result"], json!(1 << 20));
    let cut = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"length","params":["{text}"]"#);
    assert_eq!(code_of(&client.call(&cut).await), -32700);
    server.stop().await;
}

/// One test for everything, because several would count each other's pieces.
#[tokio::test]
async fn a_result_in_pieces_is_made_as_it_is_taken() {
    let server = Server::public().await;
    let mut client = server.connect().await;
    let body = r#"{"jsonrpc":"2.0","id":"a","method":"pieces"}"#;
    let want = json!(vec!["x".repeat(PIECE_LEN); PIECES]);
    let answer = client.call(body).await;
    assert_eq!((&answer["id"], &answer["result"]), (&json!("a"), &want));
    client.still_works().await;
    assert_eq!(MADE.swap(0, Ordering::Relaxed), PIECES);

    // In a batch it is made as a whole, and counts towards the maximum of the batch's answer.
    let answer = client.call(&format!("[{body},{body}]")).await;
    assert_eq!(answer[0]["result"], want);
    assert_eq!(code_of(&answer[1]), -32003);
    assert_eq!(MADE.swap(0, Ordering::Relaxed), PIECES);

    // The caller does not read: only what the sockets hold is made. Other callers are served
    // meanwhile.
    let mut idle = server.connect().await;
    let head = format!("{HEAD}content-length: {}\r\n\r\n", body.len());
    idle.stream.write_all(head.as_bytes()).await.unwrap();
    idle.stream.write_all(body.as_bytes()).await.unwrap();
    idle.stream.readable().await.unwrap();
    let mut made = MADE.load(Ordering::Relaxed);
    loop {
        tokio::time::sleep(Duration::from_millis(50)).await;
        client.still_works().await;
        let now = MADE.load(Ordering::Relaxed);
        if now == made {
            break;
        }
        made = now;
    }
    assert!((1..PIECES).contains(&made), "{made}");
    drop(idle);
    server.stop().await;
    assert!(MADE.load(Ordering::Relaxed) < PIECES);
}

#[tokio::test]
async fn a_result_that_is_still_taken_counts_as_a_request_under_way() {
    let limits = Limits { requests_in_flight_max: 1, ..Limits::public() };
    let mut methods = methods();
    methods.add_streaming("endless", |_| async {
        let piece = Bytes::from(vec![b' '; PIECE_LEN]);
        Ok(Output::Pieces(Pieces::new(1 << 40, std::iter::repeat(piece))))
    });
    let server = Server::start(public_router(methods, limits)).await;
    let mut first = server.connect().await;
    let body = br#"{"jsonrpc":"2.0","id":1,"method":"endless"}"#;
    let head = format!("{HEAD}content-length: {}\r\n\r\n", body.len());
    first.stream.write_all(head.as_bytes()).await.unwrap();
    first.stream.write_all(body).await.unwrap();
    first.stream.readable().await.unwrap();
    let mut second = server.connect().await;
    assert_eq!(second.post(br#"{"jsonrpc":"2.0","id":1,"method":"large"}"#, "").await.0, 503);
    drop(first);
    loop {
        let echo = br#"{"jsonrpc":"2.0","id":1,"method":"echo","params":[1]}"#;
        if second.post(echo, "").await.0 == 200 {
            break;
        }
        tokio::task::yield_now().await;
    }
    server.stop().await;
}

#[tokio::test]
async fn without_a_good_token_there_is_only_401() {
    let server = Server::engine().await;
    let body = br#"{"jsonrpc":"2.0","id":1,"method":"echo","params":["in"]}"#;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let good = tandem_auth::sign(&SECRET, now);
    let forged = tandem_auth::sign(&Secret::new([4; 32]), now);
    let stale = tandem_auth::sign(&SECRET, now - 120);
    let future = tandem_auth::sign(&SECRET, now + 120);
    for (headers, reason) in [
        (String::new(), "missing token"),
        ("authorization: \r\n".into(), "missing token"),
        ("authorization: Bearer\r\n".into(), "missing token"),
        (format!("authorization: Basic {good}\r\n"), "missing token"),
        ("authorization: Bearer x.y\r\n".into(), "malformed token"),
        (format!("authorization: Bearer {forged}\r\n"), "signature is invalid"),
        (format!("authorization: Bearer {stale}\r\n"), "stale token"),
        (format!("authorization: Bearer {future}\r\n"), "future token"),
    ] {
        let mut client = server.connect().await;
        assert_eq!(client.post(body, &headers).await, (401, format!("{reason}\n")), "{headers}");
        assert!(client.stream.read_u8().await.is_err(), "the connection ends");
    }
    let mut client = server.connect().await;
    for scheme in ["Bearer", "bearer"] {
        let (status, answer) =
            client.post(body, &format!("authorization: {scheme} {good}\r\n")).await;
        assert_eq!((status, answer.contains("\"in\"")), (200, true));
    }
    // A large body of an unauthenticated caller is neither kept nor parsed.
    assert_eq!(client.post(&vec![b'['; 8 << 20], "").await.0, 401);
    server.stop().await;
}

#[tokio::test]
async fn other_methods_and_paths_are_refused() {
    let server = Server::public().await;
    let mut client = server.connect().await;
    for method in ["GET", "PUT", "DELETE"] {
        let request = format!(
            "{method} / HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 0\r\n\r\n"
        );
        assert_eq!(client.send(&request).await.0, 405, "{method}");
    }
    // Traces are for the operator, on another port.
    for path in ["/nowhere", "/debug/traces"] {
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        assert_eq!(client.send(&request).await.0, 404, "{path}");
    }
    server.stop().await;
}

#[tokio::test]
async fn more_requests_at_once_than_allowed_get_503() {
    let limits = Limits { requests_in_flight_max: 1, ..Limits::public() };
    let mut methods = methods();
    let release = Arc::new(tokio::sync::Notify::new());
    let waiting = release.clone();
    methods.add("wait", move |_| {
        let waiting = waiting.clone();
        async move {
            waiting.notified().await;
            to_result(&true)
        }
    });
    let server = Server::start(public_router(methods, limits)).await;
    let mut first = server.connect().await;
    let mut second = server.connect().await;
    let body = br#"{"jsonrpc":"2.0","id":1,"method":"wait"}"#;
    let head = format!("{HEAD}content-length: {}\r\n\r\n", body.len());
    first.stream.write_all(head.as_bytes()).await.unwrap();
    first.stream.write_all(body).await.unwrap();
    loop {
        let (status, _) =
            second.post(br#"{"jsonrpc":"2.0","id":1,"method":"echo","params":[1]}"#, "").await;
        if status == 503 {
            break;
        }
        tokio::task::yield_now().await;
    }
    release.notify_one();
    assert_eq!(first.response().await.0, 200);
    second.still_works().await;
    server.stop().await;
}

#[tokio::test]
async fn shutdown_lets_a_request_finish() {
    let server = Server::public().await;
    let mut client = server.connect().await;
    client.still_works().await;
    server.stop().await;
    assert!(client.stream.read_u8().await.is_err());
}
