//! Parameters and results of the Engine API, and the checks that depend on the method's version
//! (execution-apis, `src/engine/paris.md` to `amsterdam.md`).

use super::get_payload::PayloadIdJson;
use super::hex::{Hex, Quantity};
use super::strict::{Members, Strict};
use crate::{ForkchoiceState, PayloadAttributes, PayloadStatus};
use alloy_eips::eip4895::Withdrawal;
use alloy_primitives::{Address, B256, Bytes, FixedBytes};
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use std::fmt;
use tandem_chain::{Fork, Payload, PayloadSidecar};
use tandem_http::{Positional, required};
use tandem_http::{RpcError, code};

/// Parameters of `engine_newPayload`: each version has the first one, three or four of them.
pub(super) type NewPayloadParams =
    (Option<Strict<Payload>>, Option<Vec<B256>>, Option<B256>, Option<Vec<Bytes>>);

impl Members for Payload {
    const NAMES: &'static [&'static str] = &[
        "parentHash",
        "feeRecipient",
        "stateRoot",
        "receiptsRoot",
        "logsBloom",
        "prevRandao",
        "blockNumber",
        "gasLimit",
        "gasUsed",
        "timestamp",
        "extraData",
        "baseFeePerGas",
        "blockHash",
        "transactions",
        "withdrawals",
        "blobGasUsed",
        "excessBlobGas",
        "blockAccessList",
        "slotNumber",
    ];
}

/// Payload with its sidecar, checked for the version and fork.
#[derive(Debug)]
pub(super) struct NewPayload {
    pub payload: Payload,
    pub sidecar: PayloadSidecar,
}

impl NewPayload {
    /// Checks the parameters in this order:
    ///
    /// * Exactly the parameters and fields of this version are present (-32602).
    /// * The version serves the payload's fork (-38005).
    /// * The execution requests are well formed (-32602).
    ///
    /// # Errors
    /// Returns the error object that the specification demands.
    pub(super) fn new(
        version: u8,
        params: NewPayloadParams,
        fork_at: impl Fn(u64) -> Option<Fork>,
    ) -> Result<Self, RpcError> {
        let (payload, versioned_hashes, parent_beacon_block_root, execution_requests) = params;
        let Strict(payload) = required(payload, 0)?;
        let sidecar =
            PayloadSidecar { versioned_hashes, parent_beacon_block_root, execution_requests };
        check_fields(version, &payload, &sidecar)?;
        let fork = check_fork(version, fork_at(payload.timestamp))?;
        // Only this version serves forks with and without withdrawals.
        if version == 2 && payload.withdrawals.is_some() != (fork >= Fork::Shanghai) {
            return Err(invalid_params("withdrawals must be there from Shanghai on, not before"));
        }
        if let Some(requests) = &sidecar.execution_requests {
            check_requests(requests)?;
        }
        Ok(Self { payload, sidecar })
    }
}

/// Checks that each version-dependent field is present exactly if this version has it.
fn check_fields(version: u8, payload: &Payload, sidecar: &PayloadSidecar) -> Result<(), RpcError> {
    let from_v3 = [
        ("blobGasUsed", payload.blob_gas_used.is_some()),
        ("excessBlobGas", payload.excess_blob_gas.is_some()),
        ("expectedBlobVersionedHashes", sidecar.versioned_hashes.is_some()),
        ("parentBeaconBlockRoot", sidecar.parent_beacon_block_root.is_some()),
    ];
    for (name, present) in from_v3 {
        check_presence(version, 3, name, present)?;
    }
    check_presence(version, 4, "executionRequests", sidecar.execution_requests.is_some())?;
    let from_v5 = [
        ("blockAccessList", payload.block_access_list.is_some()),
        ("slotNumber", payload.slot_number.is_some()),
    ];
    for (name, present) in from_v5 {
        check_presence(version, 5, name, present)?;
    }
    match version {
        2 => Ok(()),
        _ => check_presence(version, 3, "withdrawals", payload.withdrawals.is_some()),
    }
}

fn check_presence(version: u8, since: u8, name: &str, present: bool) -> Result<(), RpcError> {
    match (version >= since, present) {
        (true, false) => Err(invalid_params(format_args!("{name} is missing"))),
        (false, true) => Err(invalid_params(format_args!("{name} is not part of V{version}"))),
        _ => Ok(()),
    }
}

/// Checks that this version of `newPayload` serves payloads of this fork (`None`: an unknown fork).
/// V1 has no such rule: later payloads cannot have the right hash in its form.
fn check_fork(version: u8, fork: Option<Fork>) -> Result<Fork, RpcError> {
    let served = |fork: &Fork| match version {
        1 => true,
        2 => *fork < Fork::Cancun,
        3 => *fork == Fork::Cancun,
        4 => *fork >= Fork::Prague && *fork < Fork::Amsterdam,
        _ => *fork >= Fork::Amsterdam,
    };
    fork.filter(served).ok_or_else(|| unsupported_fork("newPayload", version, fork))
}

pub(super) fn unsupported_fork(method: &str, version: u8, fork: Option<Fork>) -> RpcError {
    let fork = fork.map_or("a later fork".to_owned(), |fork| fork.to_string());
    let reason = format_args!("engine_{method}V{version} does not serve {fork}");
    RpcError::engine(code::UNSUPPORTED_FORK, reason)
}

/// Checks that execution requests are in ascending order of type, have data, and that each type
/// occurs at most once (EIP-7685).
fn check_requests(requests: &[Bytes]) -> Result<(), RpcError> {
    if requests.iter().any(|request| request.len() < 2) {
        return Err(invalid_params("execution request without data"));
    }
    if !requests.is_sorted_by(|a, b| a[0] < b[0]) {
        return Err(invalid_params("execution requests are not in ascending order of type"));
    }
    Ok(())
}

fn invalid_params(reason: impl std::fmt::Display) -> RpcError {
    RpcError::engine(code::INVALID_PARAMS, reason)
}

/// `ForkchoiceStateV1`.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ForkchoiceStateJson {
    head_block_hash: B256,
    safe_block_hash: B256,
    finalized_block_hash: B256,
}

impl Members for ForkchoiceStateJson {
    const NAMES: &'static [&'static str] =
        &["headBlockHash", "safeBlockHash", "finalizedBlockHash"];
}

impl From<ForkchoiceStateJson> for ForkchoiceState {
    fn from(state: ForkchoiceStateJson) -> Self {
        Self {
            head: state.head_block_hash,
            safe: state.safe_block_hash,
            finalized: state.finalized_block_hash,
        }
    }
}

/// Parameters of `engine_forkchoiceUpdated`. The attributes stay text until the forkchoice is
/// applied: invalid attributes must not prevent that.
pub(super) type ForkchoiceParams = (Option<Strict<ForkchoiceStateJson>>, Option<Box<RawValue>>);

/// Parameters of `engine_forkchoiceUpdatedV4`: the columns of custody come last, as 16 bytes.
pub(super) type ForkchoiceV4Params =
    (Option<Strict<ForkchoiceStateJson>>, Option<Box<RawValue>>, Option<Hex<FixedBytes<16>>>);

/// `PayloadAttributesV1` to `V4`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PayloadAttributesJson {
    timestamp: Quantity<u64>,
    prev_randao: B256,
    suggested_fee_recipient: Address,
    withdrawals: Option<Vec<Withdrawal>>,
    parent_beacon_block_root: Option<B256>,
    slot_number: Option<Quantity<u64>>,
    target_gas_limit: Option<Quantity<u64>>,
}

impl Members for PayloadAttributesJson {
    const NAMES: &'static [&'static str] = &[
        "timestamp",
        "prevRandao",
        "suggestedFeeRecipient",
        "withdrawals",
        "parentBeaconBlockRoot",
        "slotNumber",
        "targetGasLimit",
    ];
}

/// Checks payload attributes against the method's version and the head to build on. Follows the
/// order of the specification: form (-38003), fork (-38005), timestamp (-38003).
///
/// # Errors
/// Returns the error object that the specification demands.
pub(super) fn check_attributes(
    version: u8,
    attributes: &RawValue,
    head_timestamp: u64,
    fork_at: impl Fn(u64) -> Option<Fork>,
) -> Result<PayloadAttributes, RpcError> {
    let invalid = |reason: &str| RpcError::engine(code::INVALID_PAYLOAD_ATTRIBUTES, reason);
    let Strict(attributes): Strict<PayloadAttributesJson> =
        tandem_json::from_str(attributes.get()).map_err(|error| invalid(&error.to_string()))?;
    // An unknown later fork has everything that the known forks have.
    let fork = fork_at(attributes.timestamp.0);
    let wants_withdrawals = match version {
        1 => false,
        2 => fork.is_none_or(|fork| fork >= Fork::Shanghai),
        _ => true,
    };
    if attributes.parent_beacon_block_root.is_some() != (version >= 3) {
        return Err(invalid("parentBeaconBlockRoot must be there from V3 on, not before"));
    }
    if attributes.withdrawals.is_some() != wants_withdrawals {
        return Err(invalid("withdrawals must be there from Shanghai on, not before"));
    }
    let of_v4 = [attributes.slot_number.is_some(), attributes.target_gas_limit.is_some()];
    if of_v4 != [version >= 4; 2] {
        return Err(invalid("slotNumber and targetGasLimit must be there from V4 on, not before"));
    }
    let served = |fork: Fork| match version {
        1 => fork == Fork::Paris,
        2 => fork < Fork::Cancun,
        3 => fork >= Fork::Cancun && fork < Fork::Amsterdam,
        _ => fork >= Fork::Amsterdam,
    };
    if !fork.is_some_and(served) {
        return Err(unsupported_fork("forkchoiceUpdated", version, fork));
    }
    if attributes.timestamp.0 <= head_timestamp {
        return Err(invalid("timestamp is not above the head's"));
    }
    Ok(PayloadAttributes {
        timestamp: attributes.timestamp.0,
        prev_randao: attributes.prev_randao,
        suggested_fee_recipient: attributes.suggested_fee_recipient,
        withdrawals: attributes.withdrawals,
        parent_beacon_block_root: attributes.parent_beacon_block_root,
        slot_number: attributes.slot_number.map(|Quantity(slot)| slot),
        target_gas_limit: attributes.target_gas_limit.map(|Quantity(limit)| limit),
    })
}

/// `PayloadStatusV1`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PayloadStatusJson {
    status: &'static str,
    latest_valid_hash: Option<B256>,
    validation_error: Option<String>,
}

impl PayloadStatusJson {
    /// Returns the status in the form of this version of `newPayload`.
    pub(super) fn of_new_payload(version: u8, status: PayloadStatus) -> Self {
        PayloadStatus { status: status.status.answered_by(version), ..status }.into()
    }
}

impl From<PayloadStatus> for PayloadStatusJson {
    fn from(status: PayloadStatus) -> Self {
        Self {
            status: status.status.as_str(),
            latest_valid_hash: status.latest_valid_hash,
            validation_error: status.validation_error,
        }
    }
}

/// Result of `engine_forkchoiceUpdated`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ForkchoiceUpdatedJson {
    pub payload_status: PayloadStatusJson,
    pub payload_id: Option<PayloadIdJson>,
}

/// `ExecutionPayloadBodyV1` and `V2`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PayloadBodyJson {
    transactions: Vec<Bytes>,
    withdrawals: Option<Vec<Withdrawal>>,
    /// Access list, since V2. `null` before Amsterdam, and if the list is not kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    block_access_list: Option<Option<Bytes>>,
}

impl PayloadBodyJson {
    /// Returns the body of a block in the form of this version, with its access list if it is kept.
    pub(super) fn new(version: u8, block: tandem_chain::Block, list: Option<Bytes>) -> Self {
        Self {
            transactions: block.raw_transactions,
            withdrawals: block.withdrawals,
            block_access_list: (version >= 2).then_some(list),
        }
    }
}

/// `ClientVersionV1`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ClientVersionJson {
    pub code: String,
    pub name: String,
    pub version: String,
    pub commit: String,
}

/// Execution requests, at most as many as there are types, because each has its own type
/// (EIP-7685). A list of a million empty requests is thus never allocated.
#[derive(Debug)]
struct Requests(Vec<Bytes>);

impl<'de> Deserialize<'de> for Requests {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ListVisitor;
        impl<'de> Visitor<'de> for ListVisitor {
            type Value = Requests;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of execution requests")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Requests, A::Error> {
                let mut requests = Vec::new();
                while let Some(request) = seq.next_element()? {
                    if requests.len() > usize::from(u8::MAX) {
                        return Err(A::Error::custom("more execution requests than types"));
                    }
                    requests.push(request);
                }
                Ok(Requests(requests))
            }
        }
        deserializer.deserialize_seq(ListVisitor)
    }
}

/// Decodes exactly the parameters of this version of `newPayload`; a further one is an error.
pub(super) fn decode_new_payload(
    version: u8,
    params: &tandem_http::Params,
) -> Result<NewPayloadParams, RpcError> {
    fn decode<T: Positional>(params: &tandem_http::Params) -> Result<T, RpcError> {
        params.decode()
    }
    match version {
        1 | 2 => decode(params).map(|(payload,)| (payload, None, None, None)),
        3 => decode(params).map(|(payload, hashes, root)| (payload, hashes, root, None)),
        _ => {
            decode(params).map(|(payload, hashes, root, requests): (_, _, _, Option<Requests>)| {
                (payload, hashes, root, requests.map(|Requests(requests)| requests))
            })
        }
    }
}

#[cfg(test)]
mod tests;
