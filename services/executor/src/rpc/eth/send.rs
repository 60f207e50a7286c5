//! Transactions sent by users.

use super::super::hex::Hex;
use super::{Source, read_error};
use crate::SendError;
use alloy_primitives::Bytes;
use serde::Serialize;
use std::sync::Arc;
use tandem_http::{Answer, Methods, Params, required, to_result};
use tandem_http::{RpcError, code};
use tandem_proto::blob_validator;
use tracing::warn;

pub(super) fn add(methods: &mut Methods, source: &Arc<Source>) {
    let source = source.clone();
    methods.add("eth_sendRawTransaction", move |params| send_raw(source.clone(), params));
}

/// Handles `eth_sendRawTransaction`: blob transactions in their network form (EIP-4844, 7594).
async fn send_raw(source: Arc<Source>, params: Params) -> Answer {
    let (raw,) = params.decode_large::<(Option<Hex<Bytes>>,)>().await?;
    let Hex(raw) = required(raw, 0)?;
    match source.blobs.send(raw).await {
        Ok(hash) => to_result(&hash),
        Err(error) => Err(send_error(error)),
    }
}

/// Details of a refusal, for programs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Refusal {
    /// Name of the reason, see [`SendError::kind`].
    reason: &'static str,
    /// Time after which to retry, if a retry may help.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_milliseconds: Option<u64>,
}

fn send_error(error: SendError) -> RpcError {
    let reason = error.kind();
    let mut retry_after_milliseconds = None;
    let refusal = match error {
        SendError::Chain(error) => read_error(error),
        SendError::NoVerdict(blob_validator::Error::Overloaded { retry_after }) => {
            let milliseconds = u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX);
            retry_after_milliseconds = Some(milliseconds);
            RpcError::new(code::LIMIT_EXCEEDED, "too many blobs are being verified, retry later")
        }
        SendError::NoVerdict(error) => {
            warn!(%error, "no verdict on a sidecar");
            RpcError::server(error)
        }
        error => RpcError::server(error),
    };
    refusal.with_data(&Refusal { reason, retry_after_milliseconds })
}
