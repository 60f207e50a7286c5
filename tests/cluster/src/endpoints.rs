//! Addresses of an executor in another process, and the two calls that extend a chain.

use crate::{
    client::{Client, RpcError, decode_status},
    corpus::Recorded,
};
use alloy_primitives::B256;
use serde_json::{Value, json};
use std::{net::SocketAddr, path::PathBuf};
use tandem_auth::Secret;

/// The two ports of an executor.
#[derive(Clone, Debug)]
pub struct Endpoints {
    engine: SocketAddr,
    http: SocketAddr,
    secret: PathBuf,
}

impl Endpoints {
    /// Creates endpoints from the Engine API, the port without tokens, and the file with the
    /// tokens' secret.
    pub fn new(engine: SocketAddr, http: SocketAddr, secret: PathBuf) -> Self {
        Self { engine, http, secret }
    }

    /// Returns the endpoints of the same secret on other ports.
    pub fn moved(&self, engine: SocketAddr, http: SocketAddr) -> Self {
        Self::new(engine, http, self.secret.clone())
    }

    /// Returns a new client of the Engine API.
    pub fn engine(&self) -> Client {
        Client::new(self.engine, Some(Secret::load(&self.secret).expect("there is a secret")))
    }

    /// Returns a new client of the port without tokens.
    pub fn http(&self) -> Client {
        Client::new(self.http, None)
    }
}

/// Sends a block once. A verdict other than VALID or SYNCING ends the test.
///
/// # Errors
/// The reason why there is no verdict: the caller may retry.
pub async fn send_payload(engine: &mut Client, block: &Recorded) -> Result<(), String> {
    let answer = engine.try_call(&block.method, block.params.clone()).await?;
    let status = decode_status(retriable(answer)?);
    if status.status == "SYNCING" {
        return Err("SYNCING".to_owned());
    }
    assert_eq!(status.verdict(), ("VALID", Some(block.hash)), "{status:?}");
    Ok(())
}

/// Makes a block the head, once.
///
/// # Errors
/// As for [`send_payload`].
pub async fn send_head(engine: &mut Client, head: B256) -> Result<(), String> {
    send_forkchoice(engine, head, B256::ZERO).await
}

/// Makes a block the head and another the finalized block, once. A zero hash means no finalized
/// block.
///
/// # Errors
/// As for [`send_payload`].
pub async fn send_forkchoice(
    engine: &mut Client,
    head: B256,
    finalized: B256,
) -> Result<(), String> {
    let state = json!({
        "headBlockHash": head, "safeBlockHash": finalized, "finalizedBlockHash": finalized,
    });
    let answer = engine.try_call("engine_forkchoiceUpdatedV3", json!([state, null])).await?;
    let status = decode_status(retriable(answer)?["payloadStatus"].clone());
    if status.status == "SYNCING" {
        return Err("SYNCING".to_owned());
    }
    assert_eq!(status.verdict(), ("VALID", Some(head)), "{status:?}");
    Ok(())
}

/// Returns the result. An error of the server may pass; any other error ends the test.
fn retriable(answer: Result<Value, RpcError>) -> Result<Value, String> {
    answer.map_err(|error| {
        assert_eq!(error.code, -32000, "{error:?}");
        format!("{error:?}")
    })
}
