use super::*;
use crate::forward::FORWARDED_BY;
use crate::listener::serve_lingering;
use crate::methods::{Methods, Params, to_result};
use crate::server::engine_router;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

const SECRET: Secret = Secret::new([7; 32]);

/// Signals of a call whose answer waits for the test.
#[derive(Clone, Default)]
struct Hold {
    begun: Arc<Notify>,
    go: Arc<Notify>,
}

/// Returns routes that name the answering executor.
fn routes(name: &'static str, hold: &Hold) -> Router {
    let (hold, mut methods) = (hold.clone(), Methods::new());
    methods.add("who", move |_: Params| async move { to_result(&name) });
    methods.add("held", move |_: Params| {
        let hold = hold.clone();
        async move {
            hold.begun.notify_one();
            hold.go.notified().await;
            to_result(&name)
        }
    });
    engine_router(methods, SECRET, Limits::engine())
}

/// Gate that is served on its own port.
struct Port {
    gate: Gate,
    address: SocketAddr,
    leaving: CancellationToken,
}

impl Port {
    async fn start(name: &str) -> Self {
        let gate = Gate::engine(name, SECRET, Limits::engine());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, leaving) = (listener.local_addr().unwrap(), CancellationToken::new());
        let (router, token) = (gate.router(), leaving.clone());
        tokio::spawn(serve_lingering(listener, router, token, CancellationToken::new()));
        Self { gate, address, leaving }
    }

    async fn that_serves(name: &'static str) -> (Self, Hold) {
        let (port, hold) = (Self::start(name).await, Hold::default());
        port.gate.open(routes(name, &hold));
        (port, hold)
    }

    fn target(&self) -> Target {
        Target { executor: "other".to_owned(), address: self.address }
    }

    /// Returns status and body of a call.
    async fn call(&self, method: &str) -> (u16, String) {
        call(self.address, method, &token(), "").await
    }
}

fn token() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    format!("authorization: Bearer {}\r\n", tandem_auth::sign(&SECRET, now))
}

async fn call(address: SocketAddr, method: &str, token: &str, more: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!("{token}{more}connection: close\r\n");
    stream.write_all(request(method, &head).as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn request(method: &str, head: &str) -> String {
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":[]}}"#);
    format!(
        "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{head}\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn answered_by(name: &str) -> (u16, String) {
    (200, format!(r#"{{"jsonrpc":"2.0","id":1,"result":"{name}"}}"#))
}

/// Starts a server that records the heads of requests and answers `{}`.
async fn noting() -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, heads) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<String>>>::default());
    let noted = heads.clone();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (mut text, mut bytes) = (String::new(), vec![0; 64 << 10]);
            // Reads the whole call, because unread bytes would reset the connection.
            while !text.ends_with('}') {
                let length = stream.read(&mut bytes).await.unwrap();
                text += &String::from_utf8_lossy(&bytes[..length]);
            }
            noted.lock().unwrap().push(text.split("\r\n\r\n").next().unwrap().to_owned());
            let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\
                          connection: close\r\ncontent-length: 2\r\n\r\n{}";
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    (address, heads)
}

#[tokio::test]
async fn a_call_is_answered_by_the_executor_that_has_the_right() {
    let (standby, (holder, _)) = (Port::start("standby").await, Port::that_serves("holder").await);
    standby.gate.pass_on(holder.target());
    assert!(standby.gate.reaches().await);
    assert_eq!(standby.call("who").await, answered_by("holder"));
    // An error of the call is forwarded unchanged.
    let (status, body) = standby.call("missing").await;
    assert!(status == 200 && body.contains("-32601"), "{body}");
    standby.gate.open(routes("standby", &Hold::default()));
    assert_eq!(standby.call("who").await, answered_by("standby"));
    assert!(!standby.gate.reaches().await, "no other one is called");
}

#[tokio::test]
async fn a_caller_without_a_token_is_refused_before_anything_is_passed_on() {
    let (standby, (address, heads)) = (Port::start("standby").await, noting().await);
    standby.gate.pass_on(Target { executor: "holder".to_owned(), address });
    let wrong = "authorization: Bearer a.b.c\r\n";
    for token in ["", wrong] {
        assert_eq!(call(standby.address, "who", token, "").await.0, 401);
    }
    let host = "x-other: 1\r\n";
    let foreign = request("who", &format!("{}{host}connection: close\r\n", token()));
    let foreign = foreign.replacen("host: localhost", "host: evil.example", 1);
    let mut stream = TcpStream::connect(standby.address).await.unwrap();
    stream.write_all(foreign.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    assert!(heads.lock().unwrap().is_empty());
}

#[tokio::test]
async fn token_host_and_trace_go_with_a_call_and_nothing_else() {
    let (standby, (address, heads)) = (Port::start("standby").await, noting().await);
    standby.gate.pass_on(Target { executor: "holder".to_owned(), address });
    let token = token();
    let more = "traceparent: 00-1-2-03\r\norigin: http://a\r\ncookie: a=b\r\n";
    let answer = call(standby.address, "who", &token, more).await;
    assert_eq!(answer, (200, "{}".to_owned()));
    let heads = heads.lock().unwrap();
    let mut lines: Vec<_> = heads[0].lines().skip(1).collect();
    lines.sort_unstable();
    let length = lines.iter().position(|line| line.starts_with("content-length: ")).unwrap();
    lines.remove(length);
    let mark = format!("{FORWARDED_BY}: standby");
    let mut wanted = vec![
        token.trim_end(),
        "content-type: application/json",
        "host: localhost",
        &mark,
        "traceparent: 00-1-2-03",
    ];
    wanted.sort_unstable();
    assert_eq!(lines, wanted);
}

#[tokio::test]
async fn two_that_stand_by_never_pass_a_call_around() {
    let (one, two) = (Port::start("one").await, Port::start("two").await);
    one.gate.pass_on(two.target());
    two.gate.pass_on(one.target());
    assert!(!one.gate.reaches().await, "the other one does not serve");
    let (status, text) = one.call("who").await;
    assert_eq!(status, 503, "{text}");
    assert!(text.contains("the call was passed on already"), "{text}");
}

#[tokio::test]
async fn without_an_executor_a_call_is_refused_with_the_reason() {
    let standby = Port::start("standby").await;
    standby.gate.close("no executor has the right to write");
    let refused = (503, "no executor has the right to write\n".to_owned());
    assert_eq!(standby.call("who").await, refused);
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    standby.gate.pass_on(Target { executor: "gone".to_owned(), address: free });
    assert!(!standby.gate.reaches().await);
    let (status, text) = standby.call("who").await;
    assert_eq!(status, 503);
    let start = format!("executor gone at {free} cannot be reached: ");
    assert!(text.starts_with(&start), "{text}");
}

#[tokio::test]
async fn a_call_waits_for_the_executor_that_takes_over() {
    let standby = Port::start("standby").await;
    let (called, opened) = tokio::join!(standby.call("who"), async {
        // The order of call and opening does not matter: the answer is the same.
        tokio::task::yield_now().await;
        standby.gate.open(routes("standby", &Hold::default()));
    });
    assert_eq!((called, opened), (answered_by("standby"), ()));
}

#[tokio::test]
async fn a_call_under_way_moves_to_the_successor() {
    let standby = Port::start("standby").await;
    let ((stuck, hold), (next, _)) =
        (Port::that_serves("stuck").await, Port::that_serves("next").await);
    standby.gate.pass_on(stuck.target());
    // The first executor never answers; the second one's method of this name answers at once.
    let mut methods = Methods::new();
    methods.add("held", |_: Params| async { to_result(&"next") });
    next.gate.open(engine_router(methods, SECRET, Limits::engine()));
    let (called, ()) = tokio::join!(standby.call("held"), async {
        hold.begun.notified().await;
        standby.gate.pass_on(next.target());
    });
    assert_eq!(called, answered_by("next"));
}

#[tokio::test]
async fn one_that_leaves_finishes_what_it_has_and_passes_on_the_rest() {
    let ((old, hold), (new, _)) = (Port::that_serves("old").await, Port::that_serves("new").await);
    let (called, ()) = tokio::join!(old.call("held"), async {
        hold.begun.notified().await;
        old.leaving.cancel();
        old.gate.leave("stopping");
        let waits = tokio::time::timeout(Duration::from_millis(20), old.gate.drained()).await;
        assert!(waits.is_err(), "a call is under way");
        old.gate.pass_on(new.target());
        assert_eq!(old.call("who").await, answered_by("new"));
        old.gate.open(routes("old", &hold));
        assert_eq!(old.call("who").await, answered_by("new"), "too late to open");
        hold.go.notify_one();
        old.gate.drained().await;
    });
    assert_eq!(called, answered_by("old"));
}

#[tokio::test]
async fn a_call_that_takes_too_long_at_the_end_is_given_up() {
    let (old, hold) = Port::that_serves("old").await;
    let (called, ()) = tokio::join!(old.call("held"), async {
        hold.begun.notified().await;
        old.gate.leave("stopping");
        old.gate.cut();
    });
    assert_eq!(called, (503, "this executor is stopping\n".to_owned()));
}

#[tokio::test]
async fn idle_connections_end_when_it_leaves_and_new_ones_end_after_their_answer() {
    let (old, _) = Port::that_serves("old").await;
    let mut kept = TcpStream::connect(old.address).await.unwrap();
    let call = request("who", &token());
    let mut answer = vec![0; 4096];
    kept.write_all(call.as_bytes()).await.unwrap();
    assert!(kept.read(&mut answer).await.unwrap() > 0, "it is answered, and stays open");
    old.leaving.cancel();
    old.gate.leave("stopping");
    assert_eq!(kept.read(&mut answer).await.unwrap(), 0, "it ends");
    let mut new = TcpStream::connect(old.address).await.unwrap();
    new.write_all(call.as_bytes()).await.unwrap();
    let mut answer = String::new();
    new.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503") && answer.ends_with("stopping\n"), "{answer}");
    assert!(answer.contains("connection: close"), "{answer}");
}
