//! JSON-RPC caller over one persistent HTTP/1.1 connection, made for measuring. Connecting and
//! encoding happen before the clock starts, and nothing is pipelined or pooled.

use anyhow::{Context, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use serde_json::value::RawValue;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tandem_auth::Secret;
use tandem_telemetry::SpanContext;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tracing::debug;

/// Longest wait for a connection.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);

/// An answer, and the time from sending the request to the last byte.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: StatusCode,
    /// The whole body.
    pub body: Bytes,
    /// Time from sending the request to the last byte.
    pub elapsed: Duration,
    /// Trace in which the server recorded the call, if it says so.
    pub trace_id: Option<u128>,
}

/// A client of one JSON-RPC endpoint.
pub struct HttpClient {
    uri: Uri,
    authority: String,
    secret: Option<Secret>,
    call_time_max: Duration,
    /// Whether the next requests want to know their traces.
    traced: bool,
    connection: Option<SendRequest<Full<Bytes>>>,
}

impl HttpClient {
    /// Returns a client of the endpoint at `url` (`http` only), not connected yet. With a secret,
    /// every request carries a fresh token. A call that takes longer than `call_time_max` fails.
    ///
    /// # Errors
    /// Returns an error if the URL cannot be used.
    pub fn new(url: &str, secret: Option<Secret>, call_time_max: Duration) -> anyhow::Result<Self> {
        let uri: Uri = url.parse().with_context(|| format!("parse URL {url}"))?;
        if uri.scheme_str() != Some("http") {
            bail!("URL {url}: only http:// is supported");
        }
        let Some(host) = uri.host() else { bail!("URL {url} has no host") };
        let authority = format!("{host}:{}", uri.port_u16().unwrap_or(80));
        Ok(Self { uri, authority, secret, call_time_max, traced: false, connection: None })
    }

    /// Makes later requests ask for a trace of their own, or not. The answer has its id then, if the
    /// server can say it.
    pub fn trace(&mut self, traced: bool) {
        self.traced = traced;
    }

    /// Sends one request body and waits for the whole answer. A connection that was closed while
    /// idle is reopened before the clock starts.
    ///
    /// # Errors
    /// Returns an error if there is no connection, if it breaks, or if the call takes too long.
    pub async fn post(&mut self, body: Bytes) -> anyhow::Result<Answer> {
        let time_max = self.call_time_max;
        let request = self.request(body)?;
        let connection = self.connected().await?;
        let started = Instant::now();
        let exchange = async {
            let response = connection.send_request(request).await.context("send request")?;
            let status = response.status();
            let trace = response.headers().get("traceresponse");
            let trace = trace.and_then(|value| SpanContext::parse(value.to_str().ok()?));
            let trace_id = trace.map(|context| context.trace_id);
            let body = response.into_body().collect().await.context("read answer")?.to_bytes();
            Ok::<_, anyhow::Error>(Answer { status, body, elapsed: started.elapsed(), trace_id })
        };
        let answer = timeout(time_max, exchange).await;
        // The rest of a failed exchange must not be taken for the next answer.
        if !matches!(&answer, Ok(Ok(_))) {
            self.connection = None;
        }
        answer.with_context(|| format!("no answer within {} s", time_max.as_secs_f64()))?
    }

    fn request(&self, body: Bytes) -> anyhow::Result<Request<Full<Bytes>>> {
        let path = self.uri.path_and_query().map_or("/", |path| path.as_str());
        let mut request = Request::post(path)
            .header(header::HOST, &self.authority)
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(secret) = &self.secret {
            let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
            let token = format!("Bearer {}", tandem_auth::sign(secret, now));
            request = request.header(header::AUTHORIZATION, token);
        }
        if self.traced {
            request = request.header("want-traceresponse", "1");
        }
        Ok(request.body(Full::new(body))?)
    }

    async fn connected(&mut self) -> anyhow::Result<&mut SendRequest<Full<Bytes>>> {
        if let Some(connection) = &mut self.connection
            && connection.ready().await.is_err()
        {
            self.connection = None;
        }
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect().await.with_context(|| format!("connect to {}", self.uri))?,
        };
        Ok(self.connection.insert(connection))
    }

    async fn connect(&self) -> anyhow::Result<SendRequest<Full<Bytes>>> {
        let connecting = TcpStream::connect(self.authority.as_str());
        let stream = timeout(CONNECT_TIME_MAX, connecting).await??;
        stream.set_nodelay(true)?;
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                debug!(%error, "connection ended");
            }
        });
        sender.ready().await?;
        Ok(sender)
    }
}

/// Returns the body of `GET url` (`http` only), within a minute.
///
/// # Errors
/// Returns an error that names the URL if there is no answer, or its status is not a success.
pub async fn get(url: &str) -> anyhow::Result<Bytes> {
    get_within(url, Duration::from_secs(60)).await
}

/// Returns the body of `GET url` like [`get`], within `time_max`.
///
/// # Errors
/// Returns the errors of [`get`].
pub async fn get_within(url: &str, time_max: Duration) -> anyhow::Result<Bytes> {
    let client = HttpClient::new(url, None, time_max)?;
    let path = client.uri.path_and_query().map_or("/", |path| path.as_str());
    let request =
        Request::get(path).header(header::HOST, &client.authority).body(Full::default())?;
    let exchange = async {
        let mut connection = client.connect().await.context("connect")?;
        let response = connection.send_request(request).await.context("send request")?;
        let status = response.status();
        let body = response.into_body().collect().await.context("read answer")?.to_bytes();
        if !status.is_success() {
            bail!("HTTP {}: {:.300}", status.as_u16(), String::from_utf8_lossy(&body).trim());
        }
        Ok(body)
    };
    timeout(time_max, exchange).await.context("no answer")?.with_context(|| format!("get {url}"))
}

#[derive(serde::Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

/// Returns the result of a single call.
///
/// # Errors
/// Returns the error object, or the whole body if it is not a JSON-RPC answer.
pub fn result(answer: &Answer) -> Result<&RawValue, String> {
    let whole = || {
        let text = String::from_utf8_lossy(&answer.body);
        format!("HTTP {}: {:.2000}", answer.status.as_u16(), text.trim())
    };
    let envelope: Envelope<'_> = serde_json::from_slice(&answer.body).map_err(|_| whole())?;
    match envelope {
        Envelope { error: Some(error), .. } if error.get() != "null" => {
            Err(format!("error {}", error.get()))
        }
        Envelope { result: Some(result), .. } => Ok(result),
        _ => Err(whole()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &'static str) -> Answer {
        Answer {
            status: StatusCode::from_u16(status).unwrap(),
            body: Bytes::from_static(body.as_bytes()),
            elapsed: Duration::ZERO,
            trace_id: None,
        }
    }

    #[test]
    fn results_errors_and_other_answers_are_told_apart() {
        let good = answer(200, r#"{"jsonrpc":"2.0","id":1,"result":{"a":1}}"#);
        assert_eq!(result(&good).unwrap().get(), r#"{"a":1}"#);
        let error = answer(200, r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601}}"#);
        assert_eq!(result(&error).unwrap_err(), r#"error {"code":-32601}"#);
        let refused = answer(401, "missing token\n");
        assert_eq!(result(&refused).unwrap_err(), "HTTP 401: missing token");
        assert_eq!(result(&answer(200, "{}")).unwrap_err(), "HTTP 200: {}");
    }

    #[test]
    fn only_http_urls_with_a_host_are_taken() {
        for url in ["https://localhost:8551", "localhost:8551", "ftp://x", "", "http://"] {
            assert!(HttpClient::new(url, None, Duration::from_secs(1)).is_err(), "{url}");
        }
        for url in ["http://127.0.0.1:8551", "http://localhost", "http://[::1]:1/path"] {
            assert!(HttpClient::new(url, None, Duration::from_secs(1)).is_ok(), "{url}");
        }
    }
}
