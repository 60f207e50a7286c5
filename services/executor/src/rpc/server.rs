//! HTTP in front of the method table: limits, authentication, batches.

use super::access::is_json;
use super::body::{BodyError, content_length, drain, read_body};
use super::budget::{Budget, Reservation};
use super::connection::Connection;
use super::envelope::{
    Body as RequestBody, Call, ParsedCall, RESPONSE_END, parse, write_response, write_result_start,
};
use super::error::{RpcError, code};
use super::limits::Limits;
use super::methods::{INLINE_BYTES_MAX, Methods, Output, Params, off_reactor};
use super::places::{Place, Places};
use super::refusals::{Reason, Refusals};
use crate::budget::Usage;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bytes::Bytes;
use std::fmt::Display;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tandem_auth::Secret;
use tokio::time::timeout;
use tracing::{Instrument, Span, info_span};

struct Endpoint {
    methods: Methods,
    limits: Limits,
    secret: Option<Secret>,
    bodies: Arc<Budget>,
    places: Places,
    refusals: Refusals,
}

/// The routes of the Engine API: `POST /`, every request with a token signed with `secret`.
pub fn engine_router(methods: Methods, secret: Secret, limits: Limits) -> Router {
    rpc_router(methods, Some(secret), limits)
}

/// The routes of the public port: `POST /`, and `OPTIONS /` for the browsers of web pages that may
/// call.
pub fn public_router(methods: Methods, limits: Limits) -> Router {
    rpc_router(methods, None, limits)
}

fn rpc_router(methods: Methods, secret: Option<Secret>, limits: Limits) -> Router {
    let mut routes = post(serve_rpc);
    if !limits.origins.is_empty() {
        routes = routes.options(serve_preflight);
    }
    let endpoint = Endpoint::new(methods, secret, limits);
    Router::new().route("/", routes).with_state(Arc::new(endpoint))
}

/// Answers a browser that asks whether a page may call.
async fn serve_preflight(State(endpoint): State<Arc<Endpoint>>, request: Request) -> Response {
    let (head, _) = request.into_parts();
    match endpoint.refuse_host(&head) {
        Some(refusal) => refusal.into_response(),
        None => (StatusCode::NO_CONTENT, endpoint.limits.origins.preflight(&head.headers))
            .into_response(),
    }
}

async fn serve_rpc(State(endpoint): State<Arc<Endpoint>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let connection = head.extensions.get::<Arc<Connection>>();
    if let Err(refusal) = endpoint.admit(&head) {
        drop(body);
        // The connection ends with it: nothing of the body is read.
        if let Some(connection) = connection {
            connection.close_unread();
        }
        return ([(header::CONNECTION, "close")], refusal).into_response();
    }
    if endpoint.secret.is_some()
        && let Some(connection) = connection
    {
        connection.trust();
    }
    let mut response = match endpoint.read(&head, body).await {
        Ok((body, _reserved)) => match endpoint.places.take(connection) {
            Some(place) => {
                let span = endpoint.span(&head.headers);
                answer_body(&endpoint, body, place).instrument(span).await
            }
            None => endpoint.refuse(Reason::Overload, "too many requests at once").into_response(),
        },
        Err(refusal) => refusal.into_response(),
    };
    endpoint.limits.origins.grant(&head.headers, response.headers_mut());
    response
}

/// A status and the reason.
type Refusal = (StatusCode, String);

impl Endpoint {
    fn new(methods: Methods, secret: Option<Secret>, limits: Limits) -> Self {
        Self {
            bodies: Budget::new(limits.bodies_bytes_max),
            places: Places::new(limits.requests_in_flight_max, limits.answers_bytes_max),
            refusals: Refusals::new(if secret.is_some() { "engine" } else { "http" }),
            methods,
            limits,
            secret,
        }
    }

    /// Looks at the head of a request, before anything is spent on it.
    fn admit(&self, head: &Parts) -> Result<(), Refusal> {
        if let Some(secret) = &self.secret
            && let Err(reason) = authenticate(secret, &head.headers)
        {
            return Err(self.refuse(Reason::Token, reason));
        }
        if let Some(refusal) = self.refuse_host(head) {
            return Err(refusal);
        }
        if !is_json(&head.headers) {
            let text = "invalid content type; expected application/json";
            return Err(self.refuse(Reason::ContentType, text));
        }
        Ok(())
    }

    fn refuse_host(&self, head: &Parts) -> Option<Refusal> {
        let host = self.limits.hosts.refused(head)?;
        let flag = if self.secret.is_some() { "--authrpc.vhosts" } else { "--http.vhosts" };
        let text = format!("invalid host `{host}`; expected an IP address or a name of {flag}");
        Some(self.refuse(Reason::Host, text))
    }

    /// Reads a body, with the bytes that it is counted with.
    async fn read(&self, head: &Parts, body: Body) -> Result<(Bytes, Reservation), Refusal> {
        let limits = &self.limits;
        let announced = content_length(&head.headers);
        // Only a caller that is known gets memory for what it announces.
        let room_max = if self.secret.is_some() { limits.body_bytes_max } else { INLINE_BYTES_MAX };
        let mut reserved = self.bodies.reserve();
        let read = read_body(body, announced, limits.body_bytes_max, room_max, &mut reserved);
        match timeout(limits.body_time_max, read).await {
            Ok(Ok(body)) => Ok((body, reserved)),
            Ok(Err(BodyError::TooLarge(rest))) => {
                drop(reserved);
                drain(&head.headers, rest).await;
                let text = format!("request body over {} bytes", limits.body_bytes_max);
                Err(self.refuse(Reason::BodySize, text))
            }
            Ok(Err(BodyError::TooMany(rest))) => {
                drop(reserved);
                drain(&head.headers, rest).await;
                Err(self.refuse(Reason::Bodies, "too many bytes of request bodies at once"))
            }
            Ok(Err(BodyError::Broken)) => {
                Err(self.refuse(Reason::BodyBroken, "broken request body"))
            }
            Err(_) => Err(self.refuse(Reason::BodyTime, "request body too slow")),
        }
    }

    /// The span of a request that belongs to a trace. A caller is believed that it does once it has
    /// shown a token: others could crowd the payloads out of the recent traces.
    fn span(&self, headers: &HeaderMap) -> Span {
        let parent = headers.get("traceparent").filter(|_| self.secret.is_some());
        match parent.and_then(|value| value.to_str().ok()) {
            Some(parent) => {
                let span =
                    info_span!("rpc", rpc.system = "jsonrpc", rpc.method = tracing::field::Empty);
                tandem_telemetry::set_remote_parent(&span, parent);
                span
            }
            // A span for every poll of the head would crowd the payloads out of the recent traces.
            None => Span::none(),
        }
    }

    fn refuse(&self, reason: Reason, text: impl Display) -> Refusal {
        let status = match reason {
            Reason::Token => StatusCode::UNAUTHORIZED,
            Reason::Host => StatusCode::FORBIDDEN,
            Reason::ContentType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Reason::BodySize => StatusCode::PAYLOAD_TOO_LARGE,
            Reason::BodyTime => StatusCode::REQUEST_TIMEOUT,
            Reason::BodyBroken => StatusCode::BAD_REQUEST,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        self.refusals.count(reason, &text);
        (status, format!("{text}\n"))
    }

    /// The answer as a response, unless too many wait to be taken.
    fn send(&self, json: Vec<u8>, mut place: Place) -> Response {
        match place.grow_to(json.len()) {
            true => json_response(place.send(json)),
            false => self.refuse_answer().into_response(),
        }
    }

    fn refuse_answer(&self) -> Refusal {
        self.refuse(Reason::Answers, "too many bytes of answers that callers have not taken yet")
    }
}

/// Answers the calls of a request body. The request is under way as long as its place is held.
async fn answer_body(endpoint: &Endpoint, body: Bytes, mut place: Place) -> Response {
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
        RequestBody::Single(Ok(call)) => return answer_single(endpoint, call, place).await,
        RequestBody::Single(call) => answer_call(endpoint, call, &Arc::default(), &mut out).await,
        RequestBody::Batch(calls) => {
            if !answer_batch(endpoint, calls, &mut place, &mut out).await {
                return endpoint.refuse_answer().into_response();
            }
        }
    }
    endpoint.send(out, place)
}

/// Answers the one call of a request, with a result that is made as it is sent where the method has
/// such.
async fn answer_single(endpoint: &Endpoint, call: Call, place: Place) -> Response {
    Span::current().record("rpc.method", call.method.as_str());
    let answer = endpoint.methods.call_streaming(&call.method, Params::new(call.params)).await;
    let mut out = Vec::new();
    let answer = match answer {
        _ if call.id.is_none() => return json_response(Body::empty()),
        Ok(Output::Pieces(pieces)) => {
            write_result_start(&mut out, call.id.as_ref());
            return json_response(place.send_pieces(out, pieces, RESPONSE_END));
        }
        Ok(Output::Json(json)) => Ok(json),
        Err(error) => Err(error),
    };
    write_response(&mut out, call.id.as_ref(), &answer);
    drop(answer);
    endpoint.send(out, place)
}

/// Answers one call of a batch, or says why it is none; a notification adds nothing.
async fn answer_call(endpoint: &Endpoint, call: ParsedCall, usage: &Arc<Usage>, out: &mut Vec<u8>) {
    match call {
        Err((id, error)) => write_response(out, id.as_ref(), &Err(error)),
        Ok(call) => {
            Span::current().record("rpc.method", call.method.as_str());
            let params = Params::of_request(call.params, usage);
            let answer = endpoint.methods.call(&call.method, params).await;
            if call.id.is_some() {
                write_response(out, call.id.as_ref(), &answer);
            }
        }
    }
}

/// Answers the calls of a batch in order, one after the other: forkchoice updates must be applied
/// in the order in which they came. Together they may use what one call may. False when there is no
/// room for the answer.
async fn answer_batch(
    endpoint: &Endpoint,
    calls: Vec<ParsedCall>,
    place: &mut Place,
    out: &mut Vec<u8>,
) -> bool {
    let usage = Arc::default();
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
            answer_call(endpoint, call, &usage, out).await;
        }
        if out.len() == separated {
            out.truncate(start);
        }
        // Counted as it grows: a batch is long before it is sent.
        if !place.grow_to(out.len()) {
            return false;
        }
    }
    // A batch of notifications has no answer at all.
    if out.len() == 1 {
        out.clear();
    } else {
        out.push(b']');
    }
    true
}

fn json_response(body: Body) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
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

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
