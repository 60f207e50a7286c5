//! A JSON-RPC client over HTTP/1.1, with one connection that stays open.

use alloy_primitives::B256;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{
    Request,
    client::conn::http1::{SendRequest, handshake},
    header,
};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    net::SocketAddr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tandem_auth::Secret;
use tokio::{net::TcpStream, time::timeout};

/// Longest time a call may take; a longer one fails the test.
const CALL_TIME_MAX: Duration = Duration::from_secs(60);

/// `PayloadStatusV1`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PayloadStatus {
    /// `VALID`, `INVALID`, `SYNCING`, `ACCEPTED`.
    pub status: String,
    /// The newest valid ancestor.
    pub latest_valid_hash: Option<B256>,
    /// Description of the error.
    pub validation_error: Option<String>,
}

impl PayloadStatus {
    /// Returns status and latest valid hash, for comparison.
    pub fn verdict(&self) -> (&str, Option<B256>) {
        (&self.status, self.latest_valid_hash)
    }
}

/// Decodes the status in a JSON-RPC result.
pub fn decode_status(result: Value) -> PayloadStatus {
    serde_json::from_value(result.clone())
        .unwrap_or_else(|error| panic!("{result} is no payload status: {error}"))
}

/// The error object of a JSON-RPC answer.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct RpcError {
    /// Error code of JSON-RPC or of the Engine API.
    pub code: i64,
    /// Message for people.
    pub message: String,
    /// Details.
    pub data: Option<Value>,
}

/// An HTTP answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// The whole body.
    pub body: Bytes,
}

impl Answer {
    /// Parses the body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error} in HTTP {}: {:?}", self.status, self.body))
    }

    /// Returns the result in the body, or the error object.
    pub fn result(&self) -> Result<Value, RpcError> {
        let mut json = self.json();
        match json.get_mut("error") {
            Some(error) => Err(serde_json::from_value(error.take()).expect("an error object")),
            None => Ok(json["result"].take()),
        }
    }
}

/// A client of one port.
pub struct Client {
    address: SocketAddr,
    secret: Option<Secret>,
    connection: Option<SendRequest<Full<Bytes>>>,
}

impl Client {
    /// Creates a client that is not connected yet. With a secret, every call carries a fresh token.
    pub fn new(address: SocketAddr, secret: Option<Secret>) -> Self {
        Self { address, secret, connection: None }
    }

    /// Makes one call. Transport failures end the test.
    pub async fn call(&mut self, method: &str, params: Value) -> Result<Value, RpcError> {
        self.try_call(method, params).await.unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// Makes one call to a server that may be gone.
    ///
    /// # Errors
    /// The failure of the connection.
    pub async fn try_call(
        &mut self,
        method: &str,
        params: Value,
    ) -> Result<Result<Value, RpcError>, String> {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let token = self.token();
        let answer = self.post(Bytes::from(body.to_string()), token.as_deref()).await?;
        if answer.status != 200 {
            return Err(format!("HTTP {}: {:?}", answer.status, answer.body));
        }
        Ok(answer.result())
    }

    /// Makes a batch of calls and returns the results in order. An error ends the test.
    pub async fn batch(&mut self, calls: &[(&str, Value)]) -> Vec<Value> {
        let entries: Vec<_> = calls
            .iter()
            .enumerate()
            .map(|(id, (method, params))| {
                json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
            })
            .collect();
        let token = self.token();
        let body = Bytes::from(serde_json::to_vec(&entries).unwrap());
        let answer = self.post(body, token.as_deref()).await.expect("the node answers");
        let Value::Array(answers) = answer.json() else { panic!("{answer:?}") };
        assert_eq!(answers.len(), calls.len());
        let results = answers.into_iter().zip(calls).enumerate();
        results
            .map(|(id, (mut answer, call))| {
                assert_eq!(answer["id"], json!(id));
                assert!(answer.get("error").is_none(), "{call:?}: {answer}");
                answer["result"].take()
            })
            .collect()
    }

    /// Returns a fresh value for the `Authorization` header.
    pub fn token(&self) -> Option<String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        self.secret.as_ref().map(|secret| format!("Bearer {}", tandem_auth::sign(secret, now)))
    }

    /// Sends this body with this `Authorization` header, on the open connection if there is one.
    ///
    /// # Errors
    /// The failure of the connection.
    pub async fn post(
        &mut self,
        body: impl Into<Bytes>,
        authorization: Option<&str>,
    ) -> Result<Answer, String> {
        let mut request = Request::post("/")
            .header(header::HOST, self.address.to_string())
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(value) = authorization {
            request = request.header(header::AUTHORIZATION, value);
        }
        let request = request.body(Full::new(body.into())).map_err(|error| error.to_string())?;
        let exchange = async {
            let connection = self.connected().await?;
            let response = connection.send_request(request).await.map_err(|e| format!("{e:?}"))?;
            let status = response.status().as_u16();
            let body = response.into_body().collect().await.map_err(|e| format!("{e:?}"))?;
            Ok(Answer { status, body: body.to_bytes() })
        };
        let answer = timeout(CALL_TIME_MAX, exchange).await;
        let answer = answer.unwrap_or_else(|_| Err("no answer in time".to_owned()));
        if answer.is_err() {
            self.connection = None;
        }
        answer
    }

    /// Returns whether a connection is open that can take another request.
    pub async fn is_connected(&mut self) -> bool {
        match &mut self.connection {
            Some(connection) => connection.ready().await.is_ok(),
            None => false,
        }
    }

    async fn connected(&mut self) -> Result<&mut SendRequest<Full<Bytes>>, String> {
        if !self.is_connected().await {
            self.connection = None;
        }
        let connection = match self.connection.take() {
            Some(open) => open,
            None => connect(self.address).await?,
        };
        Ok(self.connection.insert(connection))
    }
}

async fn connect(address: SocketAddr) -> Result<SendRequest<Full<Bytes>>, String> {
    let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    let (sender, connection) =
        handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    tokio::spawn(connection);
    Ok(sender)
}
