//! WebSockets: calls, subscriptions, and callers that break the rules.

use super::*;
use crate::{
    MESSAGE_BYTES_MAX, SUBSCRIPTIONS_MAX, Subscriber, Subscription, Subscriptions, WebSockets,
    server::public_router_with, subscription,
};
use futures_util::{SinkExt, StreamExt};
use parking_lot::Mutex;
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, connect_async, connect_async_with_config,
    tungstenite::{
        Error, Message,
        client::IntoClientRequest,
        http::StatusCode,
        protocol::{WebSocketConfig, frame::coding::CloseCode},
    },
};

/// Subscribers so far. Each may be four notices behind.
#[derive(Default)]
struct Source(Mutex<Vec<Subscriber>>);

impl Source {
    fn tell(&self, subscriber: usize, notice: u64) -> bool {
        let notice = serde_json::value::to_raw_value(&notice).unwrap().into();
        self.0.lock()[subscriber].tell(notice)
    }
}

impl Subscriptions for Source {
    fn begin(&self, params: &Params) -> Result<Subscription, RpcError> {
        let (topic,): (Option<String>,) = params.decode()?;
        if required(topic, 0)? != "numbers" {
            return Err(RpcError::invalid_params("no such topic"));
        }
        let (subscriber, subscription) = subscription(4);
        self.0.lock().push(subscriber);
        Ok(subscription)
    }
}

struct Served {
    server: Server,
    source: Arc<Source>,
    stopping: CancellationToken,
}

async fn serve(connections_max: usize) -> Served {
    let (source, stopping) = (Arc::<Source>::default(), CancellationToken::new());
    let sockets = WebSockets::new(source.clone(), connections_max, stopping.clone());
    let limits = Limits {
        batch_len_max: 4,
        origins: Origins::new(["https://app.example"]),
        ..Limits::public()
    };
    let server = Server::start(public_router_with(methods(), limits, sockets)).await;
    Served { server, source, stopping }
}

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

impl Served {
    async fn connect(&self) -> Socket {
        let url = format!("ws://{}", self.server.address);
        let config = WebSocketConfig::default().max_frame_size(None);
        connect_async_with_config(url, Some(config), false).await.unwrap().0
    }

    async fn refused(&self, header: &'static str, value: &'static str) -> Option<StatusCode> {
        let mut request = format!("ws://{}", self.server.address).into_client_request().unwrap();
        request.headers_mut().insert(header, value.parse().unwrap());
        match connect_async(request).await {
            Ok(_) => None,
            Err(Error::Http(response)) => Some(response.status()),
            Err(error) => panic!("{error}"),
        }
    }
}

async fn send(socket: &mut Socket, text: impl Into<String>) {
    socket.send(Message::text(text.into())).await.unwrap();
}

/// Returns the next text.
async fn next(socket: &mut Socket) -> String {
    loop {
        let message = timeout(Duration::from_secs(10), socket.next()).await.expect("no message");
        match message.unwrap().unwrap() {
            Message::Text(text) => return text.to_string(),
            Message::Ping(_) | Message::Pong(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Waits for the end, and returns its code.
async fn end(socket: &mut Socket) -> Option<CloseCode> {
    loop {
        let message = timeout(Duration::from_secs(10), socket.next()).await.expect("no end");
        match message {
            Some(Ok(Message::Close(frame))) => return frame.map(|frame| frame.code),
            Some(Ok(_)) => {}
            Some(Err(_)) | None => return None,
        }
    }
}

async fn call(socket: &mut Socket, method: &str, params: &str) -> String {
    let call = format!(r#"{{"jsonrpc":"2.0","id":7,"method":"{method}","params":{params}}}"#);
    send(socket, call).await;
    next(socket).await
}

fn result(json: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":7,"result":{json}}}"#)
}

#[tokio::test]
async fn calls_and_batches_are_answered_in_order() {
    let served = serve(2).await;
    let mut socket = served.connect().await;
    assert_eq!(call(&mut socket, "echo", "[[1,\"x\"]]").await, result("[1,\"x\"]"));
    let whole = call(&mut socket, "pieces", "[]").await;
    assert_eq!(whole.len(), result("").len() + PIECES * (PIECE_LEN + 3) + 1, "pieces in one text");
    assert!(call(&mut socket, "absent", "[]").await.contains("-32601"));
    send(&mut socket, "{").await;
    assert!(next(&mut socket).await.contains("-32700"));
    let one = r#"{"jsonrpc":"2.0","id":7,"method":"echo","params":[1]}"#;
    // A notification has no answer: the next answer is that of the batch.
    send(&mut socket, r#"{"jsonrpc":"2.0","method":"echo","params":[1]}"#).await;
    send(&mut socket, format!("[{one},{one}]")).await;
    assert_eq!(next(&mut socket).await, format!("[{0},{0}]", result("1")));
    send(&mut socket, format!("[{one},{one},{one},{one},{one}]")).await;
    assert!(next(&mut socket).await.contains("batch too large"));
    // The port still answers over HTTP.
    let (status, answer) = served.server.connect().await.post(one.as_bytes(), "").await;
    assert_eq!((status, answer), (200, result("1")));
}

#[tokio::test]
async fn subscribers_get_what_they_asked_for_until_they_end_it() {
    let served = serve(2).await;
    let mut socket = served.connect().await;
    assert!(call(&mut socket, "eth_subscribe", "[\"letters\"]").await.contains("no such topic"));
    assert_eq!(call(&mut socket, "eth_subscribe", "[\"numbers\"]").await, result("\"0x1\""));
    assert_eq!(call(&mut socket, "eth_subscribe", "[\"numbers\"]").await, result("\"0x2\""));
    let notice = |id: &str, number| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"eth_subscription","params":{{"subscription":"{id}","result":{number}}}}}"#
        )
    };
    for number in 0..9 {
        assert!(served.source.tell(1, number));
        assert_eq!(next(&mut socket).await, notice("0x2", number));
    }
    assert_eq!(call(&mut socket, "eth_unsubscribe", "[\"0x2\"]").await, result("true"));
    assert!(call(&mut socket, "eth_unsubscribe", "[\"0x2\"]").await.contains("not found"));
    assert!(!served.source.tell(1, 9), "its source sees that it is gone");
    assert!(served.source.tell(0, 10));
    assert_eq!(next(&mut socket).await, notice("0x1", 10));
    drop(socket);
    for _ in 0..1000 {
        if served.source.0.lock()[0].is_gone() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the subscription outlives its connection");
}

#[tokio::test]
async fn a_subscriber_that_is_too_far_behind_loses_the_connection() {
    let served = serve(2).await;
    let mut socket = served.connect().await;
    call(&mut socket, "eth_subscribe", "[\"numbers\"]").await;
    // Faster than any connection: the notices are there before one of them is taken.
    let told = (0..64).take_while(|number| served.source.tell(0, *number)).count();
    assert!((4..64).contains(&told), "{told}");
    served.source.0.lock().clear();
    assert_eq!(end(&mut socket).await, Some(CloseCode::Policy));
}

#[tokio::test]
async fn connections_subscriptions_and_messages_are_bounded() {
    let served = serve(2).await;
    let (mut first, second) = (served.connect().await, served.connect().await);
    let crowded = served.refused("x-any", "1").await;
    assert_eq!(crowded, Some(StatusCode::SERVICE_UNAVAILABLE));
    drop(second);
    for _ in 0..SUBSCRIPTIONS_MAX {
        let answer = call(&mut first, "eth_subscribe", "[\"numbers\"]").await;
        assert!(answer.contains("result"), "{answer}");
    }
    let answer = call(&mut first, "eth_subscribe", "[\"numbers\"]").await;
    assert!(answer.contains("at most 32 subscriptions"), "{answer}");
    let fitting = format!("[\"{}\"]", "x".repeat(MESSAGE_BYTES_MAX - 100));
    assert!(call(&mut first, "length", &fitting).await.starts_with(&result("")[..27]));
    let _ = first.send(Message::text(" ".repeat(MESSAGE_BYTES_MAX + 1))).await;
    end(&mut first).await;
    let mut third = served.connect().await;
    assert_eq!(call(&mut third, "echo", "[3]").await, result("3"), "its place is free again");
}

#[tokio::test]
async fn pages_of_other_origins_and_other_hosts_are_refused() {
    let served = serve(8).await;
    assert_eq!(served.refused("origin", "https://app.example").await, None);
    let forbidden = Some(StatusCode::FORBIDDEN);
    assert_eq!(served.refused("origin", "https://evil.example").await, forbidden);
    assert_eq!(served.refused("host", "evil.example").await, forbidden);
}

#[tokio::test]
async fn connections_end_when_the_node_stops() {
    let served = serve(2).await;
    let mut socket = served.connect().await;
    assert_eq!(call(&mut socket, "echo", "[1]").await, result("1"));
    served.stopping.cancel();
    assert_eq!(end(&mut socket).await, Some(CloseCode::Away));
    served.server.stop().await;
}
