//! One caller must not be able to harm others. Each test is an attack, with an honest call beside
//! it.

use super::*;
use crate::reports::reports_router;
use axum::body::HttpBody;
use axum::routing::get;
use http_body::Frame;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::task::JoinHandle;

const ECHO: &[u8] = br#"{"jsonrpc":"2.0","id":9,"method":"echo","params":["ok"]}"#;
const HUGE: &[u8] = br#"{"jsonrpc":"2.0","id":9,"method":"huge"}"#;
/// More than the sockets of both sides can hold.
const HUGE_LEN: usize = 32 << 20;

/// Fails if an honest call waits too long. An answer takes milliseconds.
async fn soon<T>(answer: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(20), answer).await.expect("an answer")
}

fn token() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    format!("authorization: Bearer {}\r\n", tandem_auth::sign(&SECRET, now))
}

/// A port, an honest request on it, and the answer to a request without a token.
struct Port {
    name: &'static str,
    router: Router,
    honest: String,
}

/// Returns the three kinds of ports.
fn ports() -> [Port; 3] {
    let honest = |headers: &str| {
        let length = ECHO.len();
        let body = std::str::from_utf8(ECHO).unwrap();
        format!("{HEAD}content-length: {length}\r\n{headers}\r\n{body}")
    };
    let reports = reports_router(Arc::new(String::new), Arc::new(|count| format!("[{count}]")));
    let router = reports.route("/livez", get(|| async { "ok\n" }));
    [
        Port {
            name: "http",
            router: public_router(methods(), Limits::public()),
            honest: honest(""),
        },
        Port {
            name: "engine",
            router: engine_router(methods(), SECRET, Limits::engine()),
            honest: honest(&token()),
        },
        Port {
            name: "metrics",
            router,
            honest: "GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(),
        },
    ]
}

/// Returns limits with few connections, so that a test fills them easily.
fn narrow() -> ConnectionLimits {
    ConnectionLimits { connections_max: 32, address_connections_max: 32, ..Default::default() }
}

#[tokio::test]
async fn idle_connections_make_room_for_an_honest_call() {
    for Port { name, router, honest } in ports() {
        let server = Server::start_within(router, narrow()).await;
        // An existing caller keeps its connection, like a consensus client.
        let mut known = server.connect().await;
        assert_eq!(soon(known.send(&honest)).await.0, 200, "{name}");
        let mut idle = Vec::new();
        for _ in 0..100 {
            idle.push(server.connect().await);
        }
        let mut fresh = server.connect().await;
        assert_eq!(soon(fresh.send(&honest)).await.0, 200, "{name}");
        if name == "engine" {
            assert_eq!(soon(known.send(&honest)).await.0, 200, "{name}");
        }
        // The oldest connections were evicted.
        assert!(soon(idle[0].stream.read_u8()).await.is_err(), "{name}");
        server.stop().await;
    }
}

#[tokio::test]
async fn connections_that_say_nothing_end() {
    let limits = ConnectionLimits { idle_time_max: Duration::from_millis(200), ..narrow() };
    for Port { name, router, honest } in ports() {
        let server = Server::start_within(router, limits.clone()).await;
        let mut silent = server.connect().await;
        let mut served = server.connect().await;
        assert_eq!(soon(served.send(&honest)).await.0, 200, "{name}");
        for mut client in [silent.stream, served.stream] {
            assert!(soon(client.read_u8()).await.is_err(), "{name}");
        }
        silent = server.connect().await;
        assert_eq!(soon(silent.send(&honest)).await.0, 200, "{name}");
        server.stop().await;
    }
}

#[tokio::test]
async fn heads_that_trickle_in_are_cut_off_and_hold_up_nobody() {
    let limits = ConnectionLimits { head_time_max: Duration::from_millis(300), ..narrow() };
    for Port { name, router, honest } in ports() {
        let server = Server::start_within(router, limits.clone()).await;
        let mut slow = Vec::new();
        for _ in 0..100 {
            let mut client = server.connect().await;
            let _ = client.stream.write_all(b"P").await;
            slow.push(client);
        }
        assert_eq!(soon(server.connect().await.send(&honest)).await.0, 200, "{name}");
        // The last connections are still open: a byte now and then does not save them.
        let mut last = slow.pop().unwrap();
        let trickle = async {
            while last.stream.write_all(b"O").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        soon(trickle).await;
        for mut client in slow {
            assert!(soon(client.stream.read_u8()).await.is_err(), "{name}");
        }
        server.stop().await;
    }
}

#[tokio::test]
async fn strangers_with_slow_bodies_take_no_place_of_the_engine_api() {
    let limits = Limits { requests_in_flight_max: 2, ..Limits::engine() };
    let server = Server::start(engine_router(methods(), SECRET, limits)).await;
    let mut honest = server.connect().await;
    let mut strangers = Vec::new();
    for _ in 0..80 {
        let mut stranger = server.connect().await;
        let head = format!("{HEAD}content-length: 100000\r\n\r\n{{");
        stranger.stream.write_all(head.as_bytes()).await.unwrap();
        assert_eq!(soon(honest.post(ECHO, &token())).await.0, 200);
        strangers.push(stranger);
    }
    let (status, head) = soon(strangers[0].head()).await;
    assert_eq!(status, 401);
    assert!(head.contains("connection: close"), "{head}");
    // The connection ends, although the body never does.
    for mut stranger in strangers {
        let mut rest = Vec::new();
        let _ = soon(stranger.stream.read_to_end(&mut rest)).await;
    }
    server.stop().await;
}

#[tokio::test]
async fn streams_without_a_token_take_no_place_of_the_engine_api() {
    let limits = Limits { requests_in_flight_max: 2, ..Limits::engine() };
    let server = Server::start(engine_router(methods(), SECRET, limits)).await;
    let mut honest = server.connect().await;
    let (sender, _) = http2(&server).await;
    let streams: Vec<_> = (0..200)
        .map(|_| {
            let mut sender = sender.clone();
            tokio::spawn(async move {
                let answer = sender.send_request(request(half_open())).await;
                answer.map(|response| response.status().as_u16())
            })
        })
        .collect();
    for _ in 0..50 {
        assert_eq!(soon(honest.post(ECHO, &token())).await.0, 200);
    }
    // The connection ends with the first refusal; later streams end with it.
    let mut refused = 0;
    for stream in streams {
        if let Ok(status) = soon(stream).await.unwrap() {
            assert_eq!(status, 401);
            refused += 1;
        }
    }
    assert!(refused > 0);
    server.stop().await;
}

#[tokio::test]
async fn half_open_streams_of_some_connections_leave_places_for_others() {
    let server = Server::start(public_router(methods(), Limits::public())).await;
    let mut attack = Vec::new();
    for _ in 0..5 {
        let (sender, _) = http2(&server).await;
        for _ in 0..100 {
            let mut sender = sender.clone();
            attack.push(tokio::spawn(async move {
                let _ = sender.send_request(request(half_open())).await;
            }));
        }
    }
    // All requests have been sent before these calls are answered.
    for _ in 0..50 {
        assert_eq!(soon(server.connect().await.post(ECHO, "")).await.0, 200);
    }
    attack.iter().for_each(JoinHandle::abort);
    server.stop().await;
}

#[tokio::test]
async fn a_connection_has_few_requests_at_once() {
    let (mut methods, running) = (Methods::new(), Arc::new(AtomicUsize::new(0)));
    let seen = running.clone();
    methods.add("wait", move |_| {
        seen.fetch_add(1, Ordering::SeqCst);
        std::future::pending()
    });
    let limits = ConnectionLimits { shutdown_time_max: Duration::ZERO, ..Default::default() };
    let server = Server::start_within(public_router(methods, Limits::public()), limits).await;
    let (sender, _connection) = http2(&server).await;
    let calls: Vec<_> = (0..100)
        .map(|_| {
            let mut sender = sender.clone();
            let call = Body::from(&br#"{"jsonrpc":"2.0","id":1,"method":"wait"}"#[..]);
            tokio::spawn(async move { sender.send_request(request(call)).await.is_ok() })
        })
        .collect();
    let all = async {
        while running.load(Ordering::SeqCst) < 16 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(all).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(running.load(Ordering::SeqCst), 16);
    calls.iter().for_each(JoinHandle::abort);
    server.stop().await;
}

/// Starts a port on which `huge` has a long answer, and callers must read quickly.
async fn huge_server(limits: Limits, stall_time_max: Duration) -> Server {
    let mut methods = methods();
    methods.add("huge", |_| async { to_result(&"x".repeat(HUGE_LEN)) });
    let limited = ConnectionLimits { stall_time_max, ..narrow() };
    Server::start_within(public_router(methods, limits), limited).await
}

/// Returns a caller that requests a long answer and does not read it.
async fn idle_reader(server: &Server) -> Client {
    let mut reader = server.connect().await;
    let head = format!("{HEAD}content-length: {}\r\n\r\n", HUGE.len());
    reader.stream.write_all(head.as_bytes()).await.unwrap();
    reader.stream.write_all(HUGE).await.unwrap();
    soon(reader.stream.readable()).await.unwrap();
    reader
}

/// Repeats the request until the answer has this status.
async fn until(server: &Server, body: &[u8], status: u16) {
    let asked = async {
        while server.connect().await.post(body, "").await.0 != status {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon(asked).await;
}

#[tokio::test]
async fn answers_that_are_not_taken_are_bounded() {
    // Room for two, but not three. Nobody is cut off in this test, however slow the machine.
    let limits = Limits { answers_bytes_max: 80 << 20, ..Limits::public() };
    let server = huge_server(limits, Duration::from_secs(60)).await;
    let readers = (idle_reader(&server).await, idle_reader(&server).await);
    let (status, text) = soon(server.connect().await.post(HUGE, "")).await;
    assert_eq!(status, 503);
    assert!(text.contains("answers"), "{text}");
    assert_eq!(soon(server.connect().await.post(ECHO, "")).await.0, 200, "a small one is sent");
    drop(readers);
    until(&server, HUGE, 200).await;
    server.stop().await;
}

#[tokio::test]
async fn answers_that_are_not_taken_are_cut_off() {
    let limits = Limits { answers_bytes_max: 80 << 20, ..Limits::public() };
    let server = huge_server(limits, Duration::from_millis(400)).await;
    let (one, mut two) = (idle_reader(&server).await, idle_reader(&server).await);
    // A byte now and then does not count as reading.
    let trickle = async {
        let mut bytes = 0;
        while two.stream.read_u8().await.is_ok() {
            bytes += 1;
            // The sockets' content arrives at once; the rest never comes.
            if bytes < 200 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        bytes
    };
    assert!(soon(trickle).await < HUGE_LEN);
    until(&server, HUGE, 200).await;
    drop(one);
    server.stop().await;
}

#[tokio::test]
async fn a_batch_counts_its_answer_as_it_grows() {
    let limits = Limits { answers_bytes_max: 40 << 20, ..Limits::public() };
    let batch = [b"[", HUGE, b",", HUGE, b"]"].concat();
    let limits = Limits { batch_response_bytes_max: 100 << 20, ..limits };
    let server = huge_server(limits, Duration::from_secs(60)).await;
    assert_eq!(soon(server.connect().await.post(&batch, "")).await.0, 503);
    assert_eq!(soon(server.connect().await.post(HUGE, "")).await.0, 200, "all is given back");
    server.stop().await;
}

#[tokio::test]
async fn a_closed_window_keeps_an_answer_no_longer_than_others() {
    let limits = Limits { answers_bytes_max: 40 << 20, ..Limits::public() };
    let limits = Limits { requests_in_flight_max: 1, ..limits };
    let server = huge_server(limits, Duration::from_secs(2)).await;
    let (mut sender, _connection) = http2(&server).await;
    let call = sender.send_request(request(Body::from(HUGE)));
    // Its body is not read: the window stays closed once it is full.
    let response = soon(call).await.unwrap();
    assert_eq!(soon(server.connect().await.post(HUGE, "")).await.0, 503);
    assert_eq!(soon(server.connect().await.post(ECHO, "")).await.0, 200, "it has no place");
    until(&server, HUGE, 200).await;
    drop(response);
    server.stop().await;
}

#[tokio::test]
async fn whether_a_process_lives_is_said_while_all_reports_are_taken() {
    let (release, waiting) = std::sync::mpsc::channel::<()>();
    let waiting = std::sync::Mutex::new(waiting);
    let traces = move |_| {
        let _ = waiting.lock().map(|waiting| waiting.recv());
        "[]".to_owned()
    };
    let router = reports_router(Arc::new(|| "all\n".to_owned()), Arc::new(traces));
    let router = router.route("/livez", get(|| async { "ok\n" }));
    let server = Server::start_within(router, narrow()).await;
    let ask = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let mut clients = Vec::new();
    for _ in 0..10 {
        let mut client = server.connect().await;
        client.stream.write_all(ask("/debug/traces").as_bytes()).await.unwrap();
        clients.push(client);
    }
    let mut fresh = server.connect().await;
    assert_eq!(soon(fresh.send(&ask("/livez"))).await, (200, "ok\n".to_owned()));
    assert_eq!(soon(fresh.send(&ask("/metrics"))).await, (200, "all\n".to_owned()));
    assert_eq!(soon(fresh.send(&ask("/debug/traces?n=x"))).await.0, 400);
    drop(release);
    assert_eq!(soon(clients[0].response()).await, (200, "[]".to_owned()));
    server.stop().await;
}

#[tokio::test]
async fn a_request_has_to_name_a_host_of_the_port() {
    let limits = Limits::public().with_hosts(Hosts::new(["localhost", "node.example"]));
    let server = Server::start(public_router(methods(), limits)).await;
    let length = ECHO.len();
    let echo = std::str::from_utf8(ECHO).unwrap();
    let ask = async |line: &str, host: &str| {
        let kind = "content-type: application/json\r\n";
        let request = format!("{line}\r\n{host}{kind}content-length: {length}\r\n\r\n{echo}");
        soon(server.connect().await.send(&request)).await
    };
    for host in ["host: localhost:1\r\n", "host: node.example\r\n", "host: 10.0.0.1:8545\r\n"] {
        assert_eq!(ask("POST / HTTP/1.1", host).await.0, 200, "{host}");
    }
    assert_eq!(ask("POST / HTTP/1.0", "").await.0, 200, "a caller that names none");
    let (status, text) = ask("POST / HTTP/1.1", "host: evil.example:8545\r\n").await;
    assert_eq!(status, 403);
    assert!(text.contains("`evil.example:8545`") && text.contains("--http.vhosts"), "{text}");
    let line = "POST http://evil.example/ HTTP/1.1";
    assert_eq!(ask(line, "host: localhost\r\n").await.0, 403, "the target counts");
    server.stop().await;

    let server = Server::engine().await;
    let head = HEAD.replace("localhost", "evil.example");
    let request = format!("{head}content-length: {length}\r\n{}\r\n{echo}", token());
    let (status, text) = soon(server.connect().await.send(&request)).await;
    assert_eq!(status, 403);
    assert!(text.contains("--authrpc.vhosts"), "{text}");
    server.stop().await;
}

#[tokio::test]
async fn a_body_has_to_be_said_to_be_json() {
    let server = Server::public().await;
    let length = ECHO.len();
    let echo = std::str::from_utf8(ECHO).unwrap();
    for (kind, status) in [
        ("", 415),
        ("content-type: text/plain\r\n", 415),
        ("content-type: application/json; charset=utf-8\r\n", 200),
        ("content-type: application/json-rpc\r\n", 200),
    ] {
        let head = format!("POST / HTTP/1.1\r\nhost: localhost\r\n{kind}");
        let request = format!("{head}content-length: {length}\r\n\r\n{echo}");
        assert_eq!(soon(server.connect().await.send(&request)).await.0, status, "{kind}");
    }
    server.stop().await;
}

#[tokio::test]
async fn pages_read_answers_where_their_origin_is_allowed() {
    let preflight = "OPTIONS / HTTP/1.1\r\nhost: localhost\r\norigin: https://app.example\r\n\
         access-control-request-method: POST\r\naccess-control-request-headers: content-type\r\n\r\n";
    let closed = Server::public().await;
    assert_eq!(soon(closed.connect().await.send(preflight)).await.0, 405);
    closed.stop().await;

    let limits = Limits::public().with_origins(Origins::new(["https://app.example"]));
    let server = Server::start(public_router(methods(), limits)).await;
    let mut client = server.connect().await;
    client.stream.write_all(preflight.as_bytes()).await.unwrap();
    let (status, head) = soon(client.head()).await;
    assert_eq!(status, 204);
    for header in [
        "access-control-allow-origin: https://app.example",
        "access-control-allow-methods: post",
        "access-control-allow-headers: content-type",
    ] {
        assert!(head.contains(header), "{head}");
    }
    for (origin, is_granted) in [("https://app.example", true), ("https://evil.example", false)] {
        let mut client = server.connect().await;
        let length = ECHO.len();
        let head = format!("{HEAD}origin: {origin}\r\ncontent-length: {length}\r\n\r\n");
        client.stream.write_all(head.as_bytes()).await.unwrap();
        client.stream.write_all(ECHO).await.unwrap();
        let (status, head) = soon(client.head()).await;
        assert_eq!((status, head.contains("access-control-allow-origin")), (200, is_granted));
    }
    server.stop().await;
}

#[test]
fn a_trace_is_continued_for_those_with_a_token_alone() {
    let subscriber = tracing_subscriber::registry();
    let spans = tracing::subscriber::with_default(subscriber, || {
        let mut headers = HeaderMap::new();
        let is_none = |headers: &HeaderMap| {
            [None, Some(SECRET)].map(|secret| {
                Endpoint::new(methods(), secret, Limits::public()).span(headers).is_none()
            })
        };
        assert_eq!(is_none(&headers), [true, true], "a call without a trace has no span");
        headers.insert("want-traceresponse", "1".parse().unwrap());
        let wanted = is_none(&headers);
        headers.clear();
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        headers.insert("traceparent", parent.parse().unwrap());
        [wanted, is_none(&headers)]
    });
    assert_eq!(spans, [[true, false]; 2]);
}

impl Client {
    /// Returns the status and the head of an answer, in lower case.
    async fn head(&mut self) -> (u16, String) {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.stream.read_u8().await.unwrap());
        }
        let head = String::from_utf8(head).unwrap().to_lowercase();
        (head[9..12].parse().unwrap(), head)
    }
}

async fn http2(server: &Server) -> (SendRequest<Body>, JoinHandle<()>) {
    let stream = TcpStream::connect(server.address).await.unwrap();
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(async move {
        let _ = connection.await;
    });
    (sender, connection)
}

fn request(body: Body) -> axum::http::Request<Body> {
    axum::http::Request::post("http://localhost/")
        .header(header::CONTENT_TYPE, "application/json")
        .body(body)
        .unwrap()
}

/// Returns a body that sends one byte, and nothing more.
fn half_open() -> Body {
    struct HalfOpen(bool);
    impl HttpBody for HalfOpen {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            match std::mem::replace(&mut self.0, true) {
                false => Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"{"))))),
                true => Poll::Pending,
            }
        }
    }
    Body::new(HalfOpen(false))
}
