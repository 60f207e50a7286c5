//! HTTP in front of the method table: limits, authentication, batches.

use super::envelope::{
    Body as RequestBody, Call, ParsedCall, RESPONSE_END, parse, write_response, write_result_start,
};
use super::error::{RpcError, code};
use super::listener::BoundedListener;
use super::methods::{INLINE_BYTES_MAX, Methods, Output, Params, off_reactor};
use super::metrics::RPC_REFUSED_TOTAL;
use crate::blobs::network_form_bytes_max;
use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::{Bytes, BytesMut};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tandem_auth::Secret;
use tandem_chain::ChainSpec;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span, debug, info_span};

/// What one listener allows its callers. Beyond each of these, the caller gets an error and the
/// server goes on.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Length of a request body in bytes; more is HTTP 413.
    pub body_bytes_max: usize,
    /// Calls in a batch; more is -32600.
    pub batch_len_max: usize,
    /// Length of the answer to a batch in bytes; the calls beyond get -32003.
    pub batch_response_bytes_max: usize,
    /// HTTP requests served at once; more is HTTP 503.
    pub requests_in_flight_max: usize,
    /// Time for a request body to arrive; more is HTTP 408.
    pub body_time_max: Duration,
}

impl Limits {
    /// For the Engine API: its one caller is trusted, and payloads are large.
    pub fn engine() -> Self {
        Self {
            body_bytes_max: 128 << 20,
            batch_len_max: 100,
            batch_response_bytes_max: 64 << 20,
            requests_in_flight_max: 64,
            body_time_max: Duration::from_secs(60),
        }
    }

    /// For the public port.
    pub fn public() -> Self {
        Self {
            body_bytes_max: 5 << 20,
            batch_len_max: 100,
            batch_response_bytes_max: 25 << 20,
            requests_in_flight_max: 128,
            body_time_max: Duration::from_secs(30),
        }
    }
}

impl Limits {
    /// The same with room for the largest blob transaction that any fork of this chain allows, in
    /// hexadecimal digits.
    #[must_use]
    pub fn with_blobs(mut self, spec: &ChainSpec) -> Self {
        // Around the digits.
        const ENVELOPE_BYTES: usize = 4 << 10;
        let request = 2 * network_form_bytes_max(spec) + ENVELOPE_BYTES;
        self.body_bytes_max = self.body_bytes_max.max(request);
        self
    }
}

/// Gives the newest traces, at most as many as asked for, as JSON. May block.
pub type Traces = Arc<dyn Fn(usize) -> String + Send + Sync>;

struct Endpoint {
    methods: Methods,
    limits: Limits,
    secret: Option<Secret>,
    in_flight: Arc<Semaphore>,
}

/// The routes of the Engine API: `POST /`, every request with a token signed with `secret`.
pub fn engine_router(methods: Methods, secret: Secret, limits: Limits) -> Router {
    rpc_router(methods, Some(secret), limits)
}

/// The routes of the public port: `POST /`, and `GET /debug/traces?n=COUNT`.
pub fn public_router(methods: Methods, traces: Traces, limits: Limits) -> Router {
    rpc_router(methods, None, limits).merge(traces_router(traces))
}

/// The route of recent traces: `GET /debug/traces?n=COUNT`.
pub fn traces_router(traces: Traces) -> Router {
    Router::new().route("/debug/traces", get(serve_traces)).with_state(traces)
}

fn rpc_router(methods: Methods, secret: Option<Secret>, limits: Limits) -> Router {
    let in_flight = Arc::new(Semaphore::new(limits.requests_in_flight_max));
    let endpoint = Arc::new(Endpoint { methods, limits, secret, in_flight });
    Router::new().route("/", post(serve_rpc)).with_state(endpoint)
}

/// Connections open at once to one listener; further callers wait.
const CONNECTIONS_MAX: usize = 512;

/// A connection on which nothing happens for so long is closed.
const IDLE_TIME_MAX: Duration = Duration::from_secs(150);

/// How long requests under way may go on after `shutdown`.
const SHUTDOWN_TIME_MAX: Duration = Duration::from_secs(10);

/// Serves until `shutdown` is cancelled, then lets the requests under way finish, within 10 s.
///
/// # Errors
/// Only when the listener cannot be used at all; a failing connection ends nothing but itself.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let listener = BoundedListener::new(listener, CONNECTIONS_MAX, IDLE_TIME_MAX);
    let signal = shutdown.clone().cancelled_owned();
    let overdue = async {
        shutdown.cancelled().await;
        sleep(SHUTDOWN_TIME_MAX).await;
    };
    tokio::select! {
        served = axum::serve(listener, router).with_graceful_shutdown(signal) => served,
        () = overdue => Ok(()),
    }
}

async fn serve_traces(State(traces): State<Traces>, uri: Uri) -> Response {
    const TRACES_MAX: usize = 10_000;
    let count = match uri.query() {
        None | Some("") => Some(100),
        Some(query) => query.strip_prefix("n=").and_then(|count| count.parse::<usize>().ok()),
    };
    let Some(count) = count.map(|count| count.min(TRACES_MAX)) else {
        return (StatusCode::BAD_REQUEST, "the only parameter is n=COUNT\n").into_response();
    };
    match off_reactor(move || Ok(traces(count))).await {
        Ok(json) => json_response(json.into_bytes()),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn serve_rpc(State(endpoint): State<Arc<Endpoint>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let permit = match endpoint.in_flight.clone().try_acquire_owned() {
        Ok(permit) => permit,
        Err(_) => {
            let text = "too many requests at once";
            return refuse(StatusCode::SERVICE_UNAVAILABLE, "overload", text, &head.headers, body)
                .await;
        }
    };
    if let Some(secret) = &endpoint.secret
        && let Err(reason) = authenticate(secret, &head.headers)
    {
        let text = reason.to_string();
        return refuse(StatusCode::UNAUTHORIZED, "token", &text, &head.headers, body).await;
    }
    let read = read_body(body, content_length(&head.headers), endpoint.limits.body_bytes_max);
    let body = match timeout(endpoint.limits.body_time_max, read).await {
        Ok(Ok(body)) => body,
        Ok(Err(BodyError::TooLarge(rest))) => {
            let text = format!("request body over {} bytes", endpoint.limits.body_bytes_max);
            return refuse(StatusCode::PAYLOAD_TOO_LARGE, "body_size", &text, &head.headers, rest)
                .await;
        }
        Ok(Err(BodyError::Broken)) => {
            return refusal(StatusCode::BAD_REQUEST, "body_broken", "broken request body");
        }
        Err(_) => {
            return refusal(StatusCode::REQUEST_TIMEOUT, "body_time", "request body too slow");
        }
    };

    let span = match head.headers.get("traceparent").and_then(|value| value.to_str().ok()) {
        Some(parent) => {
            let span =
                info_span!("rpc", rpc.system = "jsonrpc", rpc.method = tracing::field::Empty);
            tandem_telemetry::set_remote_parent(&span, parent);
            span
        }
        // A span for every poll of the head would crowd the payloads out of the recent traces.
        None => Span::none(),
    };
    answer_body(&endpoint, body, permit).instrument(span).await
}

/// Answers the calls of a request body. The request is under way as long as its permit is held.
async fn answer_body(endpoint: &Endpoint, body: Bytes, permit: OwnedSemaphorePermit) -> Response {
    let batch_len_max = endpoint.limits.batch_len_max;
    let parsed = if body.len() <= INLINE_BYTES_MAX {
        parse(&body, batch_len_max)
    } else {
        let work = move || Ok(parse(&body, batch_len_max));
        off_reactor(work).await.unwrap_or_else(RequestBody::Unusable)
    };
    let mut out = Vec::new();
    match parsed {
        RequestBody::Unusable(error) => write_response(&mut out, None, &Err(error)),
        RequestBody::Single(Ok(call)) => return answer_single(endpoint, call, permit).await,
        RequestBody::Single(call) => answer_call(endpoint, call, &mut out).await,
        RequestBody::Batch(calls) => answer_batch(endpoint, calls, &mut out).await,
    }
    json_response(out)
}

/// Answers the one call of a request, with a result that is made as it is sent where the method has
/// such.
async fn answer_single(endpoint: &Endpoint, call: Call, permit: OwnedSemaphorePermit) -> Response {
    Span::current().record("rpc.method", call.method.as_str());
    let answer = endpoint.methods.call_streaming(&call.method, Params::new(call.params)).await;
    let mut out = Vec::new();
    let answer = match answer {
        _ if call.id.is_none() => return json_response(out),
        Ok(Output::Pieces(pieces)) => {
            write_result_start(&mut out, call.id.as_ref());
            let body = Body::new(pieces.into_body(out, RESPONSE_END, permit));
            return ([(header::CONTENT_TYPE, "application/json")], body).into_response();
        }
        Ok(Output::Json(json)) => Ok(json),
        Err(error) => Err(error),
    };
    write_response(&mut out, call.id.as_ref(), &answer);
    json_response(out)
}

/// Answers one call of a batch, or says why it is none; a notification adds nothing.
async fn answer_call(endpoint: &Endpoint, call: ParsedCall, out: &mut Vec<u8>) {
    match call {
        Err((id, error)) => write_response(out, id.as_ref(), &Err(error)),
        Ok(call) => {
            Span::current().record("rpc.method", call.method.as_str());
            let answer = endpoint.methods.call(&call.method, Params::new(call.params)).await;
            if call.id.is_some() {
                write_response(out, call.id.as_ref(), &answer);
            }
        }
    }
}

/// Answers the calls of a batch in order, one after the other: forkchoice updates must be applied
/// in the order in which they came.
async fn answer_batch(endpoint: &Endpoint, calls: Vec<ParsedCall>, out: &mut Vec<u8>) {
    out.push(b'[');
    for call in calls {
        let start = out.len();
        if start > 1 {
            out.push(b',');
        }
        let separated = out.len();
        if start > endpoint.limits.batch_response_bytes_max {
            // A notification has no id, what is no request has one even if it is null.
            let id = match call {
                Ok(call) => call.id.map(Some),
                Err((id, _)) => Some(id),
            };
            if let Some(id) = id {
                let error = RpcError::new(code::RESPONSE_TOO_LARGE, "response too large");
                write_response(out, id.as_ref(), &Err(error));
            }
        } else {
            answer_call(endpoint, call, out).await;
        }
        if out.len() == separated {
            out.truncate(start);
        }
    }
    // A batch of notifications has no answer at all.
    if out.len() == 1 {
        out.clear();
    } else {
        out.push(b']');
    }
}

fn json_response(json: Vec<u8>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], json).into_response()
}

/// Checks the bearer token of a request against the wall clock.
fn authenticate(secret: &Secret, headers: &HeaderMap) -> Result<(), AuthError> {
    let value = headers.get(header::AUTHORIZATION).ok_or(AuthError::Missing)?;
    let value = value.to_str().map_err(|_| AuthError::Missing)?;
    let (scheme, token) = value.split_once(' ').ok_or(AuthError::Missing)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(AuthError::Missing);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    Ok(tandem_auth::verify(secret, token.trim(), now)?)
}

#[derive(Debug, thiserror::Error)]
enum AuthError {
    #[error("missing token")]
    Missing,
    #[error(transparent)]
    Token(#[from] tandem_auth::Error),
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

enum BodyError {
    /// More bytes than allowed; the rest is still in the body.
    TooLarge(Body),
    /// The connection broke, or the framing is wrong.
    Broken,
}

/// Reads a whole body into one piece of memory.
async fn read_body(
    mut body: Body,
    announced: Option<u64>,
    bytes_max: usize,
) -> Result<Bytes, BodyError> {
    if announced.is_some_and(|length| length > bytes_max as u64) {
        return Err(BodyError::TooLarge(body));
    }
    let mut whole = BytesMut::with_capacity(announced.unwrap_or(0) as usize);
    while let Some(data) = next_data(&mut body).await.map_err(|_| BodyError::Broken)? {
        if whole.len() + data.len() > bytes_max {
            return Err(BodyError::TooLarge(body));
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.freeze())
}

/// The next piece of a body, `None` at its end; trailers are skipped.
async fn next_data(body: &mut Body) -> Result<Option<Bytes>, axum::Error> {
    loop {
        match poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
            None => return Ok(None),
            Some(Err(error)) => return Err(error),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

/// Refuses a request whose body was not read (to its end). The body is taken in and dropped first,
/// within bounds: answering into a caller that is still sending resets the connection, and the
/// caller would see that instead of the answer.
async fn refuse(
    status: StatusCode,
    reason: &'static str,
    text: &str,
    headers: &HeaderMap,
    mut body: Body,
) -> Response {
    const BYTES_MAX: usize = 1 << 30;
    const TIME_MAX: Duration = Duration::from_secs(10);
    // A caller that asks first sends nothing when it is refused.
    if !headers.contains_key(header::EXPECT) {
        let drain = async {
            let mut bytes = 0;
            while let Ok(Some(data)) = next_data(&mut body).await {
                bytes += data.len();
                if bytes > BYTES_MAX {
                    break;
                }
            }
        };
        let _ = timeout(TIME_MAX, drain).await;
    }
    refusal(status, reason, text)
}

fn refusal(status: StatusCode, reason: &'static str, text: &str) -> Response {
    metrics::counter!(RPC_REFUSED_TOTAL, "reason" => reason).increment(1);
    debug!(%status, text, "request refused");
    (status, format!("{text}\n")).into_response()
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
