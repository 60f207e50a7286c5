//! Calls of JSON-RPC by name.

use crate::http_client::{HttpClient, result};
use anyhow::{Context, anyhow};
use serde_json::{Value, json};
use std::time::Duration;
use tandem_auth::Secret;

/// Longest wait for an answer.
const CALL_TIME_MAX: Duration = Duration::from_secs(20);

/// One connection to a node.
pub struct Rpc(HttpClient);

impl Rpc {
    /// Returns a caller, not connected yet. With a secret it may call the Engine API.
    ///
    /// # Errors
    /// Returns an error if the URL cannot be used.
    pub fn new(url: &str, secret: Option<Secret>) -> anyhow::Result<Self> {
        Ok(Self(HttpClient::new(url, secret, CALL_TIME_MAX)?))
    }

    /// Makes a call.
    ///
    /// # Errors
    /// Returns the inner error if the node refuses the call, with its message, and the outer one if
    /// there is no answer.
    pub async fn try_call(
        &mut self,
        method: &str,
        params: Value,
    ) -> anyhow::Result<Result<Value, String>> {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let answer = self.0.post(body.to_string().into()).await?;
        match result(&answer) {
            Ok(result) => Ok(Ok(serde_json::from_str(result.get())?)),
            Err(error) if answer.status.is_success() => Ok(Err(message(&error))),
            Err(error) => Err(anyhow!(error)),
        }
    }

    /// Makes a call that the node must not refuse.
    ///
    /// # Errors
    /// Returns an error that names the method.
    pub async fn call(&mut self, method: &str, params: Value) -> anyhow::Result<Value> {
        let answer = self.try_call(method, params).await.with_context(|| method.to_owned())?;
        answer.map_err(|error| anyhow!("{method}: {error}"))
    }

    /// Makes a call that is answered with a quantity.
    ///
    /// # Errors
    /// Returns an error that names the method.
    pub async fn quantity(&mut self, method: &str, params: Value) -> anyhow::Result<u128> {
        let answer = self.call(method, params).await?;
        quantity(&answer).with_context(|| format!("{method}: expected a quantity, got {answer}"))
    }
}

/// Returns a quantity of at most 128 bits.
pub fn quantity(value: &Value) -> Option<u128> {
    u128::from_str_radix(value.as_str()?.strip_prefix("0x")?, 16).ok()
}

/// Returns the message of an error object, without what differs from call to call.
fn message(error: &str) -> String {
    let object = error.strip_prefix("error ").and_then(|text| serde_json::from_str(text).ok());
    let said = object.as_ref().and_then(|object: &Value| object["message"].as_str());
    let said = said.unwrap_or(error);
    said.split([':', ';']).next().unwrap_or_default().chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_with_different_numbers_count_as_one() {
        let said = |text| message(&format!(r#"error {{"code":-32000,"message":"{text}"}}"#));
        assert_eq!(said("nonce too low: next nonce 5, tx nonce 4"), "nonce too low");
        assert_eq!(
            said("replacement transaction underpriced"),
            "replacement transaction underpriced"
        );
        assert_eq!(message("HTTP 413: too large"), "HTTP 413");
    }

    #[test]
    fn quantities_are_hexadecimal() {
        assert_eq!(quantity(&json!("0x10")), Some(16));
        for wrong in [json!("10"), json!(16), json!("0x"), json!(null)] {
            assert_eq!(quantity(&wrong), None);
        }
    }
}
