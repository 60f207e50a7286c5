//! Messages that are executed without lasting changes.

use super::super::hex::{BlockParam, Hex, Quantity};
use super::super::revert::revert_error;
use super::{RpcError, Source, add_calling, pin, read_error};
use crate::{BlockTag, CallOutcome, CallRequest, GasEstimate};
use alloy_eips::{eip2930::AccessList, eip7702::SignedAuthorization};
use alloy_primitives::{Address, B256, Bytes, U256};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::sync::Arc;
use tandem_http::usage::Running;
use tandem_http::{Answer, Methods, required, to_result};

pub(super) fn add(methods: &mut Methods, source: &Arc<Source>) {
    add_calling(methods, source, "eth_call", call);
    add_calling(methods, source, "eth_estimateGas", estimate_gas);
    add_calling(methods, source, "eth_createAccessList", create_access_list);
}

/// Transaction object of calls (execution-apis, `GenericTransaction`).
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CallJson {
    from: Option<Hex<Address>>,
    to: Option<Hex<Address>>,
    gas: Option<Quantity<u64>>,
    gas_price: Option<Quantity<u128>>,
    max_fee_per_gas: Option<Quantity<u128>>,
    max_priority_fee_per_gas: Option<Quantity<u128>>,
    value: Option<Quantity<U256>>,
    nonce: Option<Quantity<u64>>,
    data: Option<Hex<Bytes>>,
    input: Option<Hex<Bytes>>,
    access_list: Option<AccessList>,
    chain_id: Option<Quantity<U256>>,
    max_fee_per_blob_gas: Option<Quantity<u128>>,
    blob_versioned_hashes: Option<Vec<Hex<B256>>>,
    authorization_list: Option<Vec<SignedAuthorization>>,
}

impl CallJson {
    fn into_request(self, chain_id: u64) -> Result<CallRequest, RpcError> {
        if let Some(Quantity(theirs)) = self.chain_id
            && theirs != U256::from(chain_id)
        {
            return Err(RpcError::server(format_args!(
                "chainId does not match node's (have={theirs}, want={chain_id})"
            )));
        }
        let data = match (self.input, self.data) {
            (Some(input), Some(data)) if input != data => {
                let reason = "both \"data\" and \"input\" are set and not equal. \
                              Please use \"input\" to pass transaction call data";
                return Err(RpcError::server(reason));
            }
            (input, data) => input.or(data).unwrap_or_default().0,
        };
        Ok(CallRequest {
            from: self.from.map(|from| from.0),
            to: self.to.map(|to| to.0),
            gas: self.gas.map(|gas| gas.0),
            gas_price: self.gas_price.map(|price| price.0),
            max_fee_per_gas: self.max_fee_per_gas.map(|fee| fee.0),
            max_priority_fee_per_gas: self.max_priority_fee_per_gas.map(|fee| fee.0),
            value: self.value.map(|value| value.0),
            data,
            nonce: self.nonce.map(|nonce| nonce.0),
            access_list: self.access_list,
            max_fee_per_blob_gas: self.max_fee_per_blob_gas.map(|fee| fee.0),
            blob_versioned_hashes: self
                .blob_versioned_hashes
                .unwrap_or_default()
                .into_iter()
                .map(|Hex(hash)| hash)
                .collect(),
            authorization_list: self.authorization_list.unwrap_or_default(),
        })
    }
}

/// The call, the block, and overrides of state and block, which are not supported.
type CallParams =
    (Option<CallJson>, Option<BlockParam>, Option<Box<RawValue>>, Option<Box<RawValue>>);

/// Returns the call and its state.
fn read(
    source: &Source,
    (request, block, state, environment): CallParams,
) -> Result<(BlockTag, CallRequest), RpcError> {
    let request = required(request, 0)?.into_request(source.spec.chain_id())?;
    if [state, environment].iter().flatten().any(|overrides| overrides.get() != "{}") {
        return Err(RpcError::invalid_params("overrides are not supported"));
    }
    Ok((BlockTag::Hash(pin(source, block)?.hash), request))
}

fn call(source: &Source, running: &Running<'_>, params: CallParams) -> Answer {
    let (tag, request) = read(source, params)?;
    match source.queries.calls.call(tag, request, running).map_err(read_error)? {
        CallOutcome::Return(output) => to_result(&output),
        CallOutcome::Revert(output) => Err(revert_error(&output)),
        CallOutcome::Halt(reason) => Err(RpcError::server(reason)),
    }
}

fn estimate_gas(source: &Source, running: &Running<'_>, params: CallParams) -> Answer {
    let (tag, request) = read(source, params)?;
    match source.queries.calls.estimate_gas(tag, request, running).map_err(read_error)? {
        GasEstimate::Gas(gas) => to_result(&Quantity(gas)),
        GasEstimate::Revert(output) => Err(revert_error(&output)),
        GasEstimate::Halt(reason) => Err(RpcError::server(reason)),
    }
}

/// Answer of `eth_createAccessList`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AccessListJson {
    access_list: AccessList,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    gas_used: Quantity<u64>,
}

fn create_access_list(source: &Source, running: &Running<'_>, params: CallParams) -> Answer {
    let (tag, request) = read(source, params)?;
    let found =
        source.queries.calls.create_access_list(tag, request, running).map_err(read_error)?;
    to_result(&AccessListJson {
        access_list: found.access_list,
        error: found.error,
        gas_used: Quantity(found.gas_used),
    })
}
