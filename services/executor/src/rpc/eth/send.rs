//! Transactions sent by users.

use super::super::hex::Hex;
use super::Source;
use alloy_primitives::Bytes;
use serde::Serialize;
use std::sync::Arc;
use tandem_http::{Answer, Methods, Params, required, to_result};
use tandem_http::{RpcError, code};
use tandem_proto::tx_pool::Error;
use tracing::warn;

pub(super) fn add(methods: &mut Methods, source: &Arc<Source>) {
    let source = source.clone();
    methods.add_grouped("eth_sendRawTransaction", move |calls| send_raw(source.clone(), calls));
}

/// Handles calls of `eth_sendRawTransaction`: blob transactions in their network form (EIP-4844, 7594). They go to
/// the pool together.
async fn send_raw(source: Arc<Source>, calls: Vec<Params>) -> Vec<Answer> {
    let mut raw = Vec::with_capacity(calls.len());
    let take = |decoded: Result<(Option<Hex<Bytes>>,), RpcError>| {
        let (transaction,) = decoded?;
        raw.push(required(transaction, 0)?.0);
        Ok(())
    };
    let decoded: Vec<_> = Params::decode_all(calls).await.into_iter().map(take).collect();
    let mut added = match source.pool() {
        Ok(pool) => pool.add(raw).await.into_iter(),
        Err(error) => {
            let refuse = |decoded: Result<(), RpcError>| decoded.and(Err(error.clone()));
            return decoded.into_iter().map(refuse).collect();
        }
    };
    let answer = |decoded: Result<(), RpcError>| {
        decoded?;
        match added.next().ok_or_else(RpcError::internal)? {
            Ok(hash) => to_result(&hash),
            Err(error) => Err(send_error(&error)),
        }
    };
    decoded.into_iter().map(answer).collect()
}

/// Details of a refusal, for programs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Refusal<'a> {
    /// Name of the reason.
    reason: &'a str,
    /// Time after which to retry, if a retry may help.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_milliseconds: Option<u64>,
}

fn send_error(error: &Error) -> RpcError {
    let mut retry_after_milliseconds = None;
    let (reason, refusal) = match error {
        Error::Refused { kind, .. } => (&**kind, RpcError::server(error)),
        Error::Overloaded { retry_after } => {
            let milliseconds = u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX);
            retry_after_milliseconds = Some(milliseconds);
            ("overloaded", RpcError::new(code::LIMIT_EXCEEDED, error.to_string()))
        }
        Error::Unavailable(_) => {
            warn!(%error, "transaction not judged");
            ("unavailable", RpcError::server(error))
        }
    };
    refusal.with_data(&Refusal { reason, retry_after_milliseconds })
}
