//! `engine_getPayload` in its versions (execution-apis, `src/engine/paris.md` to `amsterdam.md`).

use super::engine_types::unsupported_fork;
use super::get_blobs::{write_data, write_list};
use super::hex::Quantity;
use crate::{BuiltPayload, PayloadId};
use alloy_primitives::{Bytes, FixedBytes, U256};
use bytes::Bytes as Piece;
use serde::Serialize;
use std::{iter, sync::Arc};
use tandem_chain::{Fork, Payload};
use tandem_http::{Output, Pieces, RpcError, Streamed, code, off_reactor, to_result};
use tandem_proto::blob_validator::{Proof, StoredBlob};

/// `payloadId`: eight bytes.
pub(super) type PayloadIdJson = FixedBytes<8>;

impl From<PayloadIdJson> for PayloadId {
    fn from(id: PayloadIdJson) -> Self {
        Self(id.0)
    }
}

/// Result from V2 on, without its blobs: each version adds to the previous one. V1 is the payload
/// alone.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct GetPayloadJson<'a> {
    execution_payload: &'a Payload,
    block_value: Quantity<U256>,
    /// Whether to prefer this payload over a builder's, since V3.
    #[serde(skip_serializing_if = "Option::is_none")]
    should_override_builder: Option<bool>,
    /// Execution requests, since V4.
    #[serde(skip_serializing_if = "Option::is_none")]
    execution_requests: Option<&'a [Bytes]>,
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

/// Returns the result of this version. Blobs are megabytes, so they are written while the answer is
/// sent.
///
/// # Errors
/// -32603 if the payload has no JSON form.
pub(super) async fn answer(version: u8, built: Arc<BuiltPayload>) -> Streamed {
    off_reactor(move || {
        if version == 1 {
            return Ok(Output::Json(to_result(&built.payload)?));
        }
        let json = to_result(&GetPayloadJson {
            execution_payload: &built.payload,
            block_value: Quantity(built.value),
            // No heuristic demands true.
            should_override_builder: (version >= 3).then_some(false),
            execution_requests: (version >= 4).then_some(&built.requests),
        })?;
        if version == 2 {
            return Ok(Output::Json(json));
        }
        let mut start = Box::<str>::from(json).into_string().into_bytes();
        // The bundle becomes the object's last field.
        start.pop();
        Ok(Output::Pieces(with_blobs(start, version, built.blobs.clone())))
    })
    .await
}

/// Returns a result that begins with `start` and ends with the blobs: `BlobsBundleV1` and, from V5 on
/// with cell proofs, `BlobsBundleV2`.
fn with_blobs(mut start: Vec<u8>, version: u8, blobs: Vec<Arc<StoredBlob>>) -> Pieces {
    const PROOFS: &[u8] = br#"],"proofs":["#;
    const BLOBS: &[u8] = br#"],"blobs":["#;
    const END: &[u8] = b"]}}";
    let count = blobs.len();
    start.extend_from_slice(br#","blobsBundle":{"commitments":["#);
    write_list(blobs.iter().map(|blob| &blob.commitment[..]), &mut start);
    start.extend_from_slice(PROOFS);
    write_list(blobs.iter().flat_map(|blob| proofs(version, blob)), &mut start);
    start.extend_from_slice(BLOBS);
    // Each blob has two quotation marks and `0x`, and all but one a comma.
    let hex = blobs.iter().map(|blob| 2 * blob.blob.len() + 4).sum::<usize>();
    let total = start.len() + hex + count.saturating_sub(1) + END.len();
    let blobs = blobs.into_iter().enumerate().map(|(index, blob)| {
        let blob = &blob.blob;
        let mut out = Vec::with_capacity(2 * blob.len() + 5);
        if index > 0 {
            out.push(b',');
        }
        write_data(blob, &mut out);
        Piece::from(out)
    });
    let end = iter::once(Piece::from_static(END));
    Pieces::new(total, iter::once(Piece::from(start)).chain(blobs).chain(end))
}

/// Returns a blob's proofs as this version has them: its own, or those of its cells.
fn proofs(version: u8, blob: &StoredBlob) -> impl Iterator<Item = &[u8]> {
    let proofs = match version {
        ..5 => blob.proof.as_ref().map(std::slice::from_ref),
        _ => blob.cell_proofs.as_deref(),
    };
    proofs.unwrap_or_default().iter().map(Proof::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn stored(byte: u8) -> Arc<StoredBlob> {
        Arc::new(StoredBlob {
            blob: vec![byte; 131_072].into(),
            commitment: [byte; 48],
            proof: Some([byte + 1; 48]),
            cell_proofs: Some(vec![[byte + 2; 48]; 128].into()),
        })
    }

    #[test]
    fn blobs_end_the_result_and_its_length_is_known_before() {
        for (version, blobs) in [(4, 3), (5, 2), (6, 1), (6, 0)] {
            let start = br#"{"blockValue":"0x1""#.to_vec();
            let pieces = with_blobs(start, version, (0..blobs).map(stored).collect());
            let len = pieces.byte_len();
            let json = pieces.collect().unwrap();
            assert_eq!(json.get().len(), len, "V{version}, {blobs} blobs");
            let result: Value = serde_json::from_str(json.get()).unwrap();
            assert_eq!(result["blockValue"], "0x1");
            let hex = |byte: u8, len| format!("0x{}", format!("{byte:02x}").repeat(len));
            let proofs = |byte| match version {
                4 => vec![hex(byte + 1, 48)],
                _ => vec![hex(byte + 2, 48); 128],
            };
            let want = json!({
                "commitments": (0..blobs).map(|byte| hex(byte, 48)).collect::<Vec<_>>(),
                "proofs": (0..blobs).flat_map(proofs).collect::<Vec<_>>(),
                "blobs": (0..blobs).map(|byte| hex(byte, 131_072)).collect::<Vec<_>>(),
            });
            assert!(result["blobsBundle"] == want, "V{version}, {blobs} blobs");
        }
    }

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
