//! JSON-RPC over WebSockets (RFC 6455): the calls of the port, and subscriptions (execution-apis,
//! `eth_subscribe`).
//!
//! A connection answers one message after the other. Each subscription has a bounded queue of notices.
//! A subscriber that does not take them in time loses its connection, so it knows that it missed some.
//! The number of connections and of subscriptions, and the size of a message are bounded.

use crate::{
    envelope::{Body as RequestBody, Call, parse, write_response},
    error::{RpcError, code},
    limits::STALL_TIME_MAX,
    methods::{Answer, Params, required, to_result},
    refusals::Reason,
    server::{Endpoint, answer_batch, answer_call},
};
use axum::{
    extract::{
        State, WebSocketUpgrade,
        ws::{CloseFrame, Message, WebSocket, close_code},
    },
    http::request::Parts,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::{StreamExt, future::Either, stream};
use serde_json::value::RawValue;
use std::{pin::Pin, sync::Arc, time::Duration};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::{Instant, MissedTickBehavior, interval, timeout},
};
use tokio_stream::{Stream, StreamMap, wrappers::ReceiverStream};
use tokio_util::sync::CancellationToken;
use tracing::debug;

/// Bytes of a message from a caller; a longer one ends the connection. Larger calls, such as blob
/// transactions, go over HTTP.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Subscriptions of one connection; more is an error.
pub const SUBSCRIPTIONS_MAX: usize = 32;

/// Bytes that wait to be sent on a connection.
const SEND_BYTES_MAX: usize = 32 << 20;

/// Time between two pings.
const PING_EVERY: Duration = Duration::from_secs(30);

/// Time without any sign of life after which a connection ends.
const SILENCE_MAX: Duration = Duration::from_secs(75);

/// Notice for a subscriber: the `result` of a notification.
pub type Notice = Arc<RawValue>;

/// Source of subscriptions.
pub trait Subscriptions: Send + Sync + 'static {
    /// Begins a subscription with the parameters of `eth_subscribe`. Quick: it runs on the reactor.
    ///
    /// # Errors
    /// -32602 for wrong parameters.
    fn begin(&self, params: &Params) -> Result<Subscription, RpcError>;
}

/// Sending end of a subscription.
#[derive(Debug)]
pub struct Subscriber(mpsc::Sender<Notice>);

/// Receiving end of a subscription.
#[derive(Debug)]
pub struct Subscription(mpsc::Receiver<Notice>);

/// Creates a subscription whose subscriber may be this many notices behind.
pub fn subscription(behind_max: usize) -> (Subscriber, Subscription) {
    let (sender, receiver) = mpsc::channel(behind_max.max(1));
    (Subscriber(sender), Subscription(receiver))
}

impl Subscriber {
    /// Tells the subscriber. Never waits. Returns false once it is gone or too far behind; the
    /// subscription must end then.
    pub fn tell(&self, notice: Notice) -> bool {
        self.0.try_send(notice).is_ok()
    }

    /// Returns whether the subscriber is gone.
    pub fn is_gone(&self) -> bool {
        self.0.is_closed()
    }
}

/// WebSockets of a port.
pub struct WebSockets {
    subscriptions: Arc<dyn Subscriptions>,
    places: Arc<Semaphore>,
    stopping: CancellationToken,
}

impl std::fmt::Debug for WebSockets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WebSockets").field("places", &self.places).finish_non_exhaustive()
    }
}

impl WebSockets {
    /// Creates them with at most this many connections at once, until `stopping` is cancelled.
    pub fn new(
        subscriptions: Arc<dyn Subscriptions>,
        connections_max: usize,
        stopping: CancellationToken,
    ) -> Self {
        Self { subscriptions, places: Arc::new(Semaphore::new(connections_max)), stopping }
    }
}

/// State of the route.
pub(crate) type Served = (Arc<Endpoint>, Arc<WebSockets>);

/// Accepts a WebSocket, or refuses it.
pub(crate) async fn upgrade(
    State((endpoint, sockets)): State<Served>,
    upgrade: WebSocketUpgrade,
    head: Parts,
) -> Response {
    let entry = &endpoint.entry;
    if let Some(refusal) = entry.refuse_host(&head) {
        return refusal.into_response();
    }
    if !entry.limits.origins.may_connect(&head.headers) {
        let text = "web pages of this origin may not connect; see --http.corsdomain";
        return entry.refuse(Reason::Origin, text).into_response();
    }
    let Ok(permit) = sockets.places.clone().try_acquire_owned() else {
        return entry.refuse(Reason::Overload, "too many WebSockets at once").into_response();
    };
    upgrade
        .max_message_size(MESSAGE_BYTES_MAX)
        .max_frame_size(MESSAGE_BYTES_MAX)
        .max_write_buffer_size(SEND_BYTES_MAX)
        .on_upgrade(move |socket| Socket::new(endpoint, sockets, socket, permit).serve())
}

/// Notices of one subscription; `None` at its end.
type Notices = Pin<Box<dyn Stream<Item = Option<Notice>> + Send>>;

/// An open connection.
struct Socket {
    endpoint: Arc<Endpoint>,
    sockets: Arc<WebSockets>,
    socket: WebSocket,
    open: StreamMap<u64, Notices>,
    /// Number of subscriptions so far.
    begun: u64,
    _permit: OwnedSemaphorePermit,
}

/// Reason for which a connection ends.
enum End {
    /// The caller has closed it, or it is broken.
    Gone,
    /// The node closes it, and says why.
    Closed(u16, &'static str),
}

impl Socket {
    fn new(
        endpoint: Arc<Endpoint>,
        sockets: Arc<WebSockets>,
        socket: WebSocket,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        Self { endpoint, sockets, socket, open: StreamMap::new(), begun: 0, _permit: permit }
    }

    async fn serve(mut self) {
        if let End::Closed(code, reason) = self.run().await {
            debug!(reason, "WebSocket closed");
            let frame = CloseFrame { code, reason: reason.into() };
            let _ = timeout(STALL_TIME_MAX, self.socket.send(Message::Close(Some(frame)))).await;
        }
    }

    async fn run(&mut self) -> End {
        let stopping = self.sockets.stopping.clone();
        let mut pings = interval(PING_EVERY);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heard = Instant::now();
        loop {
            // A map without streams ends at once.
            let notice = match self.open.is_empty() {
                true => Either::Left(std::future::pending()),
                false => Either::Right(self.open.next()),
            };
            let sent = tokio::select! {
                () = stopping.cancelled() => return End::Closed(close_code::AWAY, "the node stops"),
                _ = pings.tick() => match heard.elapsed() > SILENCE_MAX {
                    true => return End::Gone,
                    false => self.send(Message::Ping(Bytes::new())).await,
                },
                message = self.socket.recv() => {
                    let Some(Ok(message)) = message else { return End::Gone };
                    heard = Instant::now();
                    match message {
                        Message::Text(text) => self.answer(text.into()).await,
                        Message::Binary(bytes) => self.answer(bytes).await,
                        // The library answers them.
                        Message::Ping(_) | Message::Pong(_) => Ok(()),
                        Message::Close(_) => return End::Gone,
                    }
                }
                Some((id, notice)) = notice => match notice {
                    Some(notice) => self.notify(id, &notice).await,
                    None => Err(End::Closed(close_code::POLICY, "subscriber too slow")),
                },
            };
            if let Err(end) = sent {
                return end;
            }
        }
    }

    /// Sends a message. A caller that does not take it in time is gone.
    async fn send(&mut self, message: Message) -> Result<(), End> {
        match timeout(STALL_TIME_MAX, self.socket.send(message)).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(End::Gone),
        }
    }

    async fn send_text(&mut self, json: Vec<u8>) -> Result<(), End> {
        // All parts of it are JSON, so it is UTF-8.
        let text = String::from_utf8(json).map_err(|_| End::Gone)?;
        self.send(Message::Text(text.into())).await
    }

    async fn notify(&mut self, id: u64, notice: &RawValue) -> Result<(), End> {
        let json = format!(
            r#"{{"jsonrpc":"2.0","method":"eth_subscription","params":{{"subscription":"{id:#x}","result":{notice}}}}}"#
        );
        self.send(Message::Text(json.into())).await
    }

    /// Answers the calls of a message.
    async fn answer(&mut self, body: Bytes) -> Result<(), End> {
        let endpoint = self.endpoint.clone();
        // Unlike a request over HTTP, a message waits for a place: its caller sends no further ones
        // meanwhile, and one caller takes one place at most.
        let Some(mut place) = endpoint.entry.places.wait(None).await else { return Err(End::Gone) };
        let mut out = Vec::new();
        match parse(&body, endpoint.entry.limits.batch_len_max) {
            RequestBody::Unusable(error) => write_response(&mut out, None, &Err(error)),
            RequestBody::Single(Ok(call)) if call.method == "eth_subscribe" => {
                let answer = self.subscribe(&Params::new(call.params.clone()));
                respond(&mut out, &call, &answer);
            }
            RequestBody::Single(Ok(call)) if call.method == "eth_unsubscribe" => {
                let answer = self.unsubscribe(&Params::new(call.params.clone()));
                respond(&mut out, &call, &answer);
            }
            RequestBody::Single(call) => {
                answer_call(&endpoint, call, &Arc::default(), &mut out).await;
            }
            RequestBody::Batch(calls) => {
                if !answer_batch(&endpoint, calls, &mut place, &mut out).await {
                    return Err(End::Closed(close_code::AGAIN, "too many bytes of answers"));
                }
            }
        }
        if !place.grow_to(out.len()) {
            return Err(End::Closed(close_code::AGAIN, "too many bytes of answers"));
        }
        if out.is_empty() {
            return Ok(());
        }
        self.send_text(out).await
    }

    fn subscribe(&mut self, params: &Params) -> Answer {
        if self.open.len() >= SUBSCRIPTIONS_MAX {
            let text = format!("at most {SUBSCRIPTIONS_MAX} subscriptions on a connection");
            return Err(RpcError::new(code::LIMIT_EXCEEDED, text));
        }
        let Subscription(notices) = self.sockets.subscriptions.begin(params)?;
        self.begun += 1;
        let ended = stream::once(std::future::ready(None));
        let notices = ReceiverStream::new(notices).map(Some).chain(ended);
        self.open.insert(self.begun, Box::pin(notices));
        to_result(&format!("{:#x}", self.begun))
    }

    fn unsubscribe(&mut self, params: &Params) -> Answer {
        let (id,): (Option<String>,) = params.decode()?;
        let id = required(id, 0)?;
        let number = id.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
        match number.and_then(|number| self.open.remove(&number)) {
            Some(_) => to_result(&true),
            None => Err(RpcError::server("subscription not found")),
        }
    }
}

/// Appends the response to a call that wants one.
fn respond(out: &mut Vec<u8>, call: &Call, answer: &Answer) {
    if call.id.is_some() {
        write_response(out, call.id.as_ref(), answer);
    }
}
