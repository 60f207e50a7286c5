//! Forwarding of calls to the executor that has the right to write.

use crate::body::next_data;
use crate::places::Place;
use axum::body::Body;
use axum::http::request::Parts;
use axum::http::uri::InvalidUri;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, Uri, header};
use hyper::body::Incoming;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use std::fmt::{self, Display};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::timeout;

/// Header of a forwarded call, with the name of the forwarding executor. Such a call is not
/// forwarded again, so two executors never send one back and forth.
pub(crate) const FORWARDED_BY: HeaderName = HeaderName::from_static("tandem-forwarded-by");

/// Headers that are forwarded with a call. Other headers concern the connection, or a browser,
/// which this executor answers.
const PASSED: [HeaderName; 3] =
    [header::CONTENT_TYPE, header::AUTHORIZATION, HeaderName::from_static("traceparent")];

/// Maximum time to connect.
const CONNECT_TIME_MAX: Duration = Duration::from_millis(500);

/// Maximum time until the whole answer has arrived.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);

/// Maximum time until an executor reports whether it serves.
const PROBE_TIME_MAX: Duration = Duration::from_secs(1);

/// Time after which an idle connection is closed, long before the other side closes it.
const IDLE_TIME_MAX: Duration = Duration::from_secs(10);

/// Maximum number of idle connections kept.
const IDLE_MAX: usize = 16;

/// Executor that receives forwarded calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Name of the executor.
    pub executor: String,
    /// Address of its port of the called kind.
    pub address: SocketAddr,
}

impl Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "executor {} at {}", self.executor, self.address)
    }
}

/// Answer of another executor.
pub(crate) struct Forwarded {
    pub(crate) status: StatusCode,
    pub(crate) content_type: Option<HeaderValue>,
    pub(crate) body: Vec<u8>,
}

/// Reason for a missing answer.
pub(crate) enum Failure {
    /// The connection failed: the call was not sent.
    Unreachable(String),
    /// The call was sent, and may have been executed.
    Broken(String),
    /// Too many bytes of answers already wait for callers.
    NoRoom,
}

/// Connections to other executors.
pub(crate) struct Forwarder {
    client: Client<HttpConnector, Body>,
    name: HeaderValue,
}

impl Forwarder {
    /// Creates the forwarder of the executor with this name.
    pub(crate) fn new(name: &str) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_TIME_MAX));
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIME_MAX)
            .pool_max_idle_per_host(IDLE_MAX)
            .build(connector);
        let name = HeaderValue::from_str(name).unwrap_or(HeaderValue::from_static("executor"));
        Self { client, name }
    }

    /// Forwards a call and returns the answer, whose bytes count against the place.
    pub(crate) async fn send(
        &self,
        target: &Target,
        head: &Parts,
        body: Body,
        place: &mut Place,
    ) -> Result<Forwarded, Failure> {
        let request = self.request(target, head, body).map_err(broken)?;
        let answer = async {
            let response = self.client.request(request).await;
            let response = response.map_err(|error| {
                let text = with_sources(&error);
                if error.is_connect() { Failure::Unreachable(text) } else { Failure::Broken(text) }
            })?;
            let (status, headers) = (response.status(), response.headers());
            let content_type = headers.get(header::CONTENT_TYPE).cloned();
            let body = collect(response.into_body(), place).await?;
            Ok(Forwarded { status, content_type, body })
        };
        let late = |_| Err(Failure::Broken(format!("no answer within {ANSWER_TIME_MAX:?}")));
        timeout(ANSWER_TIME_MAX, answer).await.unwrap_or_else(late)
    }

    /// Returns whether an executor serves. A serving executor refuses a GET with 405, any other
    /// with 503.
    pub(crate) async fn reaches(&self, target: &Target) -> bool {
        let Ok(uri) = uri(target) else { return false };
        let request = Request::get(uri).header(FORWARDED_BY, &self.name).body(Body::empty());
        let Ok(request) = request else { return false };
        let answer = timeout(PROBE_TIME_MAX, self.client.request(request)).await;
        answer.is_ok_and(|answer| {
            answer.is_ok_and(|answer| answer.status() == StatusCode::METHOD_NOT_ALLOWED)
        })
    }

    fn request(&self, target: &Target, head: &Parts, body: Body) -> Result<Request<Body>, String> {
        let mut request = Request::new(body);
        *request.method_mut() = head.method.clone();
        *request.uri_mut() = uri(target).map_err(|error| error.to_string())?;
        let headers = request.headers_mut();
        for name in &PASSED {
            if let Some(value) = head.headers.get(name) {
                headers.insert(name, value.clone());
            }
        }
        // Host as named by the caller: both executors have the same settings, and this one allows
        // it.
        if let Some(host) = host(head) {
            headers.insert(header::HOST, host);
        }
        headers.insert(FORWARDED_BY, self.name.clone());
        Ok(request)
    }
}

/// Returns whether another executor forwarded this call.
pub(crate) fn is_forwarded(headers: &HeaderMap) -> bool {
    headers.contains_key(FORWARDED_BY)
}

fn uri(target: &Target) -> Result<Uri, InvalidUri> {
    format!("http://{}/", target.address).parse()
}

fn host(head: &Parts) -> Option<HeaderValue> {
    match head.uri.authority() {
        Some(authority) => HeaderValue::from_str(authority.as_str()).ok(),
        None => head.headers.get(header::HOST).cloned(),
    }
}

async fn collect(body: Incoming, place: &mut Place) -> Result<Vec<u8>, Failure> {
    let (mut body, mut whole) = (Body::new(body), Vec::new());
    while let Some(data) = next_data(&mut body).await.map_err(broken)? {
        if !place.grow_to(whole.len() + data.len()) {
            return Err(Failure::NoRoom);
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole)
}

fn broken(error: impl Display) -> Failure {
    Failure::Broken(error.to_string())
}

/// Returns the error with its causes, because the outermost error only says "client error".
fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}
