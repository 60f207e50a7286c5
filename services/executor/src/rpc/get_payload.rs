//! `engine_getPayload` in its versions (execution-apis, `src/engine/paris.md` to `amsterdam.md`).

use super::engine_types::unsupported_fork;
use super::hex::Quantity;
use crate::{BuiltPayload, PayloadId};
use alloy_primitives::{Bytes, FixedBytes, U256};
use serde::Serialize;
use std::sync::Arc;
use tandem_chain::{Fork, Payload};
use tandem_http::{RpcError, code};
use tandem_proto::blob_validator::StoredBlob;

/// `payloadId`: eight bytes.
pub(super) type PayloadIdJson = FixedBytes<8>;

impl From<PayloadIdJson> for PayloadId {
    fn from(id: PayloadIdJson) -> Self {
        Self(id.0)
    }
}

/// Result from V2 on: each version adds to the previous one. V1 is the payload alone.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct GetPayloadJson<'a> {
    execution_payload: &'a Payload,
    block_value: Quantity<U256>,
    /// Blobs, since V3. From V5 on the proofs are cell proofs (`BlobsBundleV2`).
    #[serde(skip_serializing_if = "Option::is_none")]
    blobs_bundle: Option<BlobsBundle<'a>>,
    /// Whether to prefer this payload over a builder's, since V3.
    #[serde(skip_serializing_if = "Option::is_none")]
    should_override_builder: Option<bool>,
    /// Execution requests, since V4.
    #[serde(skip_serializing_if = "Option::is_none")]
    execution_requests: Option<&'a [Bytes]>,
}

/// `BlobsBundleV1` and, with cell proofs, `BlobsBundleV2`.
#[derive(Debug, Serialize)]
struct BlobsBundle<'a> {
    commitments: Vec<FixedBytes<48>>,
    /// Proofs in the order of the blobs: one for each, or one for each of its cells.
    proofs: Vec<FixedBytes<48>>,
    blobs: Vec<&'a Bytes>,
}

impl<'a> BlobsBundle<'a> {
    /// Returns the bundle with the proofs of this version.
    fn new(version: u8, blobs: &'a [Arc<StoredBlob>]) -> Self {
        let mut proofs = Vec::new();
        for blob in blobs {
            match version {
                ..5 => proofs.extend(blob.proof.iter().map(FixedBytes::from)),
                _ => proofs.extend(blob.cell_proofs.iter().flatten().map(FixedBytes::from)),
            }
        }
        Self {
            commitments: blobs.iter().map(|blob| blob.commitment.into()).collect(),
            proofs,
            blobs: blobs.iter().map(|blob| &blob.blob).collect(),
        }
    }
}

/// Checks that this version serves payloads of this fork.
///
/// # Errors
/// -38005 if it does not.
pub(super) fn check_get_payload(version: u8, fork: Fork) -> Result<(), RpcError> {
    let served = match version {
        1 => fork < Fork::Shanghai,
        2 => fork < Fork::Cancun,
        3 => fork == Fork::Cancun,
        4 => fork == Fork::Prague,
        5 => fork == Fork::Osaka,
        _ => fork >= Fork::Amsterdam,
    };
    if served { Ok(()) } else { Err(unsupported_fork("getPayload", version, Some(fork))) }
}

/// Returns error -38001.
pub(super) fn unknown_payload(id: PayloadIdJson) -> RpcError {
    RpcError::engine(code::UNKNOWN_PAYLOAD, format_args!("no payload {id}"))
}

/// Returns the newest version that serves payloads of this fork.
pub(super) fn newest_version(fork: Fork) -> u8 {
    match fork {
        Fork::Cancun => 3,
        Fork::Prague => 4,
        Fork::Osaka => 5,
        fork if fork >= Fork::Amsterdam => 6,
        _ => 2,
    }
}

impl<'a> GetPayloadJson<'a> {
    /// Returns the result of this version.
    pub(super) fn new(version: u8, built: &'a BuiltPayload) -> Self {
        Self {
            execution_payload: &built.payload,
            block_value: Quantity(built.value),
            blobs_bundle: (version >= 3).then(|| BlobsBundle::new(version, &built.blobs)),
            // No heuristic demands true.
            should_override_builder: (version >= 3).then_some(false),
            execution_requests: (version >= 4).then_some(&built.requests),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_serves_the_payloads_of_its_forks() {
        for (version, forks) in [
            (1, &[Fork::Paris][..]),
            (2, &[Fork::Paris, Fork::Shanghai]),
            (3, &[Fork::Cancun]),
            (4, &[Fork::Prague]),
            (5, &[Fork::Osaka]),
            (6, &[Fork::Amsterdam]),
        ] {
            for fork in Fork::MERGED {
                let code = check_get_payload(version, fork).map_err(|error| error.code);
                let want = if forks.contains(&fork) { Ok(()) } else { Err(code::UNSUPPORTED_FORK) };
                assert_eq!(code, want, "{fork} by V{version}");
                assert!(check_get_payload(newest_version(fork), fork).is_ok());
            }
        }
    }
}
