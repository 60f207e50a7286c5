//! HTTP in front of the method table: limits, authentication, batches.

use crate::entry::{Admitted, Entry};
use crate::envelope::{
    Body as RequestBody, Call, ParsedCall, RESPONSE_END, parse, write_response, write_result_start,
};
use crate::error::{RpcError, code};
use crate::limits::Limits;
use crate::methods::{Grouped, INLINE_BYTES_MAX, Methods, Output, Params, off_reactor};
use crate::places::Place;
use crate::usage::Usage;
use crate::websocket::{self, WebSockets};
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use bytes::Bytes;
use std::iter::{self, Peekable};
use std::sync::Arc;
use std::vec::IntoIter;
use tandem_auth::Secret;
use tracing::{Instrument, Span, info_span};

pub(crate) struct Endpoint {
    methods: Methods,
    pub(crate) entry: Entry,
}

/// Returns the routes of the Engine API: `POST /`, every request with a token signed with `secret`.
pub fn engine_router(methods: Methods, secret: Secret, limits: Limits) -> Router {
    rpc_router(methods, Some(secret), limits)
}

/// Returns the routes of the public port: `POST /`, and `OPTIONS /` for the browsers of allowed web
/// pages.
pub fn public_router(methods: Methods, limits: Limits) -> Router {
    rpc_router(methods, None, limits)
}

/// Returns the routes of the public port like [`public_router`], and `GET /` for WebSockets.
pub fn public_router_with(methods: Methods, limits: Limits, sockets: WebSockets) -> Router {
    let endpoint = Arc::new(Endpoint::new(methods, None, limits));
    let upgrades = get(websocket::upgrade).with_state((endpoint.clone(), Arc::new(sockets)));
    Router::new().route("/", routes(endpoint).merge(upgrades))
}

fn rpc_router(methods: Methods, secret: Option<Secret>, limits: Limits) -> Router {
    Router::new().route("/", routes(Arc::new(Endpoint::new(methods, secret, limits))))
}

fn routes(endpoint: Arc<Endpoint>) -> MethodRouter {
    let mut routes = post(serve_rpc);
    if !endpoint.entry.limits.origins.is_empty() {
        routes = routes.options(serve_preflight);
    }
    routes.with_state(endpoint)
}

/// Answers a browser's preflight request.
async fn serve_preflight(State(endpoint): State<Arc<Endpoint>>, request: Request) -> Response {
    endpoint.entry.preflight(&request.into_parts().0)
}

/// Header of an answer with the context of its span, in the form of `traceparent` (W3C Trace
/// Context, level 2).
const TRACE_RESPONSE: &str = "traceresponse";
/// Header of a request that wants a trace of its own, and [`TRACE_RESPONSE`] in the answer.
const WANT_TRACE_RESPONSE: &str = "want-traceresponse";

async fn serve_rpc(State(endpoint): State<Arc<Endpoint>>, request: Request) -> Response {
    let Admitted { head, body, reserved: _reserved, place } =
        match endpoint.entry.take(request).await {
            Ok(admitted) => admitted,
            Err(refusal) => return *refusal,
        };
    let span = endpoint.span(&head.headers);
    let trace =
        tandem_telemetry::traceparent(&span).and_then(|trace| HeaderValue::try_from(trace).ok());
    let mut response = answer_body(&endpoint, body, place).instrument(span).await;
    if let Some(trace) = trace {
        response.headers_mut().insert(TRACE_RESPONSE, trace);
    }
    endpoint.entry.grant(&head.headers, response)
}

impl Endpoint {
    fn new(methods: Methods, secret: Option<Secret>, limits: Limits) -> Self {
        Self { methods, entry: Entry::new(secret, limits) }
    }

    /// Returns the span of a request that belongs to a trace. Only authenticated callers may join a
    /// trace: others could crowd the payloads out of the recent traces.
    fn span(&self, headers: &HeaderMap) -> Span {
        let parent = headers.get("traceparent").and_then(|value| value.to_str().ok());
        // A span for every poll of the head would crowd the payloads out of the recent traces.
        let is_wanted = parent.is_some() || headers.contains_key(WANT_TRACE_RESPONSE);
        if !is_wanted || !self.entry.is_trusted() {
            return Span::none();
        }
        let span = info_span!(
            "rpc",
            otel.kind = "server",
            rpc.system = "jsonrpc",
            rpc.method = tracing::field::Empty,
        );
        if let Some(parent) = parent {
            tandem_telemetry::set_remote_parent(&span, parent);
        }
        span
    }
}

/// Answers the calls of a request body. The request counts as running while its place is held.
async fn answer_body(endpoint: &Endpoint, body: Bytes, mut place: Place) -> Response {
    let batch_len_max = endpoint.entry.limits.batch_len_max;
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
                return endpoint.entry.refuse_answer().into_response();
            }
        }
    }
    endpoint.entry.send(out, place)
}

/// Answers the only call of a request. A result in pieces is made while sending.
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
    endpoint.entry.send(out, place)
}

/// Answers one call of a batch, or reports why it is invalid; a notification adds nothing.
pub(crate) async fn answer_call(
    endpoint: &Endpoint,
    call: ParsedCall,
    usage: &Arc<Usage>,
    out: &mut Vec<u8>,
) {
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

/// Answers the calls of a batch one after the other, because forkchoice updates must be applied in
/// order of arrival. Only calls of a method that takes several are answered together, if they follow each other. All
/// calls share the limits of one request. Returns false if there is no room for the answer.
pub(crate) async fn answer_batch(
    endpoint: &Endpoint,
    calls: Vec<ParsedCall>,
    place: &mut Place,
    out: &mut Vec<u8>,
) -> bool {
    let usage = Arc::default();
    out.push(b'[');
    let mut calls = calls.into_iter().peekable();
    while let Some(call) = calls.next() {
        if out.len() > endpoint.entry.limits.batch_response_bytes_max {
            // A notification has no id; an invalid request has one, even if it is null.
            let id = match call {
                Ok(call) => call.id.map(Some),
                Err((id, _)) => Some(id),
            };
            if let Some(id) = id {
                let error = RpcError::new(code::RESPONSE_TOO_LARGE, "response too large");
                write_response(out, id.as_ref(), &Err(error));
                out.push(b',');
            }
        } else {
            let method = call.as_ref().ok().and_then(|it| endpoint.methods.grouped(&it.method));
            match (call, method) {
                (Ok(call), Some(method)) => {
                    let calls = group(call, &mut calls);
                    answer_group(&method, calls, &usage, out).await;
                }
                (call, _) => {
                    let start = out.len();
                    answer_call(endpoint, call, &usage, out).await;
                    if out.len() > start {
                        out.push(b',');
                    }
                }
            }
        }
        // Counted as it grows: a batch is long before it is sent.
        if !place.grow_to(out.len()) {
            return false;
        }
    }
    // A batch of notifications has no answer at all.
    match out.last_mut() {
        Some(last) if *last == b',' => *last = b']',
        _ => out.clear(),
    }
    true
}

/// Takes the calls that are answered together with this one: those of the same method that follow it.
fn group(first: Call, rest: &mut Peekable<IntoIter<ParsedCall>>) -> Vec<Call> {
    let is_same = |call: &ParsedCall| call.as_ref().is_ok_and(|it| it.method == first.method);
    let others: Vec<_> = iter::from_fn(|| rest.next_if(is_same)).flatten().collect();
    iter::once(first).chain(others).collect()
}

/// Answers calls of one method together. Notifications add nothing.
async fn answer_group(method: &Grouped, calls: Vec<Call>, usage: &Arc<Usage>, out: &mut Vec<u8>) {
    Span::current().record("rpc.method", method.name);
    let (ids, params): (Vec<_>, Vec<_>) =
        calls.into_iter().map(|it| (it.id, Params::of_request(it.params, usage))).unzip();
    for (id, answer) in ids.iter().zip(&method.call(params).await) {
        if id.is_some() {
            write_response(out, id.as_ref(), answer);
            out.push(b',');
        }
    }
}

pub(crate) fn json_response(body: Body) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

#[cfg(test)]
mod tests;
