//! Sends block after block to one Engine API.

use super::Finality;
use super::corpus::Entry;
use super::report::{Mismatch, milliseconds};
use crate::http_client::{Answer, HttpClient, result};
use anyhow::Context;
use serde_json::{Value, json};
use std::collections::VecDeque;

/// Hash in a forkchoice while there is no safe or finalized block.
pub const ZERO_HASH: &str = "0x0000000000000000000000000000000000000000000000000000000000000000";

/// Times of one block's calls, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CallTimes {
    /// Time of `engine_newPayload`.
    pub new_payload_ms: f64,
    /// Time of `engine_forkchoiceUpdated`, `None` if it was not called.
    pub forkchoice_updated_ms: Option<f64>,
    /// Trace in which `engine_newPayload` was recorded, if the engine says so.
    pub trace_id: Option<u128>,
}

/// Caller of one Engine API that remembers the blocks it sent.
pub struct Session {
    client: HttpClient,
    /// Finality of the forkchoices; `None` for payloads only, without forkchoices.
    finality: Option<Finality>,
    /// Whether each payload gets a trace of its own.
    traced: bool,
    /// Hashes of the newest blocks, newest first.
    recent: VecDeque<String>,
}

impl Session {
    /// Returns a session over this client; with `finality`, every block becomes the head.
    pub fn new(client: HttpClient, finality: Option<Finality>) -> Self {
        Self { client, finality, traced: false, recent: VecDeque::new() }
    }

    /// Asks for the trace of each payload. It sends no parent, because nobody would export it.
    pub fn traced(self) -> Self {
        Self { traced: true, ..self }
    }

    /// Returns the name that the client gives itself, if any. Also proves that the client is there
    /// and accepts the secret.
    ///
    /// # Errors
    /// Returns an error if the client cannot be reached or refuses the secret.
    pub async fn client_name(&mut self) -> anyhow::Result<Option<String>> {
        let us = json!([{
            "code": "TD", "name": "tandem replay", "version": env!("CARGO_PKG_VERSION"),
            "commit": "0x00000000",
        }]);
        let body = json!({
            "jsonrpc": "2.0", "id": 0, "method": "engine_getClientVersionV1", "params": us,
        });
        let answer = self.client.post(body.to_string().into()).await?;
        let versions = match result(&answer) {
            Ok(raw) => serde_json::from_str(raw.get()).ok(),
            // A client may lack this method, but it must accept the secret.
            Err(_) if answer.status.is_success() => None,
            Err(text) => anyhow::bail!("{text}"),
        };
        Ok(versions.and_then(|versions: Value| {
            let first = versions.get(0)?;
            Some(format!("{} {}", first["name"].as_str()?, first["version"].as_str()?))
        }))
    }

    /// Sends one payload and makes it the head. Returns the times, or the unexpected answer.
    ///
    /// # Errors
    /// Returns an error if a call gets no answer.
    pub async fn block(&mut self, entry: &Entry) -> anyhow::Result<Result<CallTimes, Mismatch>> {
        let Entry { number, hash, parent_hash, method, version, body, .. } = entry;
        if self.recent.is_empty() {
            self.recent.push_front(parent_hash.clone());
        }
        let no_answer = |method: &str| format!("{method} of block {number}");
        self.client.trace(self.traced);
        let answer = self.client.post(body.clone()).await.with_context(|| no_answer(method))?;
        self.client.trace(false);
        let trace_id = answer.trace_id;
        if let Some(mismatch) = check(method, *number, hash, &answer, |result| result) {
            return Ok(Err(mismatch));
        }
        let new_payload_ms = milliseconds(answer.elapsed);
        let Some(finality) = self.finality else {
            return Ok(Ok(CallTimes { new_payload_ms, forkchoice_updated_ms: None, trace_id }));
        };

        self.recent.push_front(hash.clone());
        self.recent.truncate(finality.safe.max(finality.finalized) + 1);
        // Newest version for the forks that this version of newPayload serves.
        let method = format!("engine_forkchoiceUpdatedV{}", (*version).min(3));
        let body = self.forkchoice(&method, *number, finality);
        let answer = self.client.post(body.into()).await.with_context(|| no_answer(&method))?;
        let mismatch = check(&method, *number, hash, &answer, |result| &result["payloadStatus"]);
        if let Some(mismatch) = mismatch {
            return Ok(Err(mismatch));
        }
        let forkchoice_updated_ms = Some(milliseconds(answer.elapsed));
        Ok(Ok(CallTimes { new_payload_ms, forkchoice_updated_ms, trace_id }))
    }

    /// Returns the request that makes the newest block the head.
    fn forkchoice(&self, method: &str, number: u64, finality: Finality) -> String {
        let behind = |distance: usize| match distance {
            0 => ZERO_HASH,
            _ => self.recent.get(distance).map_or(ZERO_HASH, String::as_str),
        };
        let state = json!({
            "headBlockHash": self.recent.front(),
            "safeBlockHash": behind(finality.safe),
            "finalizedBlockHash": behind(finality.finalized),
        });
        json!({"jsonrpc": "2.0", "id": number, "method": method, "params": [state, null]})
            .to_string()
    }
}

/// Compares an answer with the one that says VALID, and returns it if it differs. `status` finds
/// the payload status in the result.
fn check(
    method: &str,
    number: u64,
    hash: &str,
    answer: &Answer,
    status: impl Fn(&Value) -> &Value,
) -> Option<Mismatch> {
    let got = match result(answer) {
        Ok(raw) => match serde_json::from_str::<Value>(raw.get()) {
            Ok(value) => {
                let status = status(&value);
                let valid_hash = status["latestValidHash"].as_str().unwrap_or_default();
                if status["status"] == "VALID" && valid_hash.eq_ignore_ascii_case(hash) {
                    return None;
                }
                describe(&status["status"], &status["latestValidHash"], &status["validationError"])
            }
            Err(error) => error.to_string(),
        },
        Err(text) => text,
    };
    let expected = describe(&json!("VALID"), &json!(hash), &Value::Null);
    Some(Mismatch {
        method: method.to_owned(),
        number,
        hash: hash.to_owned(),
        expected,
        got,
        answer: String::from_utf8_lossy(&answer.body).trim().to_owned(),
    })
}

/// Formats a payload status with its members in the order of the Engine API.
fn describe(status: &Value, latest_valid_hash: &Value, validation_error: &Value) -> String {
    format!("status {status}, latestValidHash {latest_valid_hash}, error {validation_error}")
}
