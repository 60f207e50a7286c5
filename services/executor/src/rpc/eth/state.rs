//! Accounts, storage and code, with and without proofs.

use super::super::hex::{BlockParam, Hex, Quantity, parse_storage_key};
use super::{RpcError, Source, add_calling, add_reading, cut_error, pin, read_error};
use crate::{AccountProof, BlockTag};
use alloy_primitives::{Address, B256, Bytes, U256};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use tandem_http::code;
use tandem_http::usage::Running;
use tandem_http::{Answer, Methods, Params, required, to_result};
use tandem_primitives::Account;

/// Maximum number of slots in one `eth_getStorageValues`.
const SLOTS_MAX: usize = 1024;
/// Maximum number of storage keys in one `eth_getProof`.
const PROOF_KEYS_MAX: usize = 1024;

pub(super) fn add(methods: &mut Methods, source: &Arc<Source>) {
    add_reading(methods, source, "eth_getBalance", balance);
    let its = source.clone();
    methods.add("eth_getTransactionCount", move |params| transaction_count(its.clone(), params));
    add_reading(methods, source, "eth_getCode", code_at);
    add_reading(methods, source, "eth_getStorageAt", storage_at);
    add_calling(methods, source, "eth_getStorageValues", storage_values);
    add_calling(methods, source, "eth_getProof", proof);
}

/// Parameters of the methods that read an account: the address and the block, by default the head.
type AccountParams = (Option<Hex<Address>>, Option<BlockParam>);

/// Returns the state to read.
fn state(source: &Source, block: Option<BlockParam>) -> Result<BlockTag, RpcError> {
    Ok(BlockTag::Hash(pin(source, block)?.hash))
}

fn account(source: &Source, (address, block): AccountParams) -> Result<Account, RpcError> {
    let Hex(address) = required(address, 0)?;
    let tag = state(source, block)?;
    Ok(source.chain.account(tag, address).map_err(read_error)?.unwrap_or_default())
}

fn balance(source: &Source, params: AccountParams) -> Answer {
    to_result(&Quantity(account(source, params)?.balance))
}

/// Returns an account's nonce, for the pending block with its pending transactions in the pool.
async fn transaction_count(source: Arc<Source>, params: Params) -> Answer {
    let (read, usage) = (source.clone(), params.usage());
    let params: AccountParams = params.decode()?;
    let pending = match (&params, source.pool.get()) {
        ((Some(Hex(address)), Some(BlockParam(BlockTag::Pending))), Some(pool)) => {
            pool.next_nonce(*address).await.map_err(RpcError::server)?
        }
        _ => None,
    };
    let work = move |_: &Running<'_>| Ok(account(&read, params)?.nonce);
    let nonce = source.pools.reads.run(source.lane, usage, work).await?;
    to_result(&Quantity(pending.map_or(nonce, |pending| pending.max(nonce))))
}

fn code_at(source: &Source, (address, block): AccountParams) -> Answer {
    let Hex(address) = required(address, 0)?;
    let tag = state(source, block)?;
    to_result(&source.chain.code(tag, address).map_err(read_error)?)
}

fn storage_at(
    source: &Source,
    (address, key, block): (Option<Hex<Address>>, Option<String>, Option<BlockParam>),
) -> Answer {
    let (Hex(address), key) = (required(address, 0)?, required(key, 1)?);
    let slot = parse_storage_key(&key).map_err(RpcError::invalid_params)?;
    let tag = state(source, block)?;
    let value = source.chain.storage(tag, address, slot).map_err(read_error)?;
    to_result(&B256::from(value))
}

/// Slots by account.
type Slots = BTreeMap<Hex<Address>, Vec<Hex<B256>>>;

fn storage_values(
    source: &Source,
    running: &Running<'_>,
    (slots, block): (Option<Slots>, Option<BlockParam>),
) -> Answer {
    let slots = required(slots, 0)?;
    match slots.values().map(Vec::len).sum() {
        0 => return Err(RpcError::invalid_params("empty request")),
        1..=SLOTS_MAX => {}
        _ => {
            let message = format!("too many slots (max {SLOTS_MAX})");
            return Err(RpcError::new(code::CLIENT_LIMIT_EXCEEDED, message));
        }
    }
    let tag = state(source, block)?;
    let mut answer = BTreeMap::<Address, Vec<B256>>::new();
    for (Hex(address), keys) in slots {
        let mut values = Vec::with_capacity(keys.len());
        for Hex(key) in keys {
            running.check().map_err(cut_error)?;
            let value = source.chain.storage(tag, address, key.into()).map_err(read_error)?;
            values.push(B256::from(value));
        }
        answer.insert(address, values);
    }
    to_result(&answer)
}

/// Slot with its proof.
#[derive(Serialize)]
struct SlotProofJson {
    /// Key as requested: 32 bytes are returned as such, anything shorter as a QUANTITY.
    key: String,
    value: Quantity<U256>,
    proof: Vec<Bytes>,
}

/// Answer of `eth_getProof` (EIP-1186).
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ProofJson {
    address: Address,
    account_proof: Vec<Bytes>,
    balance: Quantity<U256>,
    code_hash: B256,
    nonce: Quantity<u64>,
    storage_hash: B256,
    storage_proof: Vec<SlotProofJson>,
}

type ProofParams = (Option<Hex<Address>>, Option<Vec<String>>, Option<BlockParam>);

fn proof(source: &Source, _: &Running<'_>, (address, keys, block): ProofParams) -> Answer {
    let (Hex(address), keys) = (required(address, 0)?, required(keys, 1)?);
    if keys.len() > PROOF_KEYS_MAX {
        let got = keys.len();
        return Err(RpcError::invalid_params(format_args!(
            "too many storage keys requested (max {PROOF_KEYS_MAX}, got {got})"
        )));
    }
    let slots: Result<Vec<U256>, _> = keys.iter().map(|key| parse_storage_key(key)).collect();
    let slots = slots.map_err(RpcError::invalid_params)?;
    let id = pin(source, block)?;
    let found = source.queries.proofs.account(id, address, &slots).map_err(read_error)?;
    let AccountProof { account, account_proof, storage_root, slots: proofs } = found;
    let storage_proof = keys.iter().zip(slots).zip(proofs).map(|((text, slot), found)| {
        let digits = text.trim_start_matches("0x").trim_start_matches("0X").len();
        SlotProofJson {
            key: if digits > 62 { B256::from(slot).to_string() } else { format!("{slot:#x}") },
            value: Quantity(found.value),
            proof: found.proof,
        }
    });
    // A non-existent account has neither code hash nor storage root: zeros, as in geth.
    to_result(&ProofJson {
        address,
        account_proof,
        balance: Quantity(account.map_or(U256::ZERO, |account| account.balance)),
        code_hash: account.map_or(B256::ZERO, |account| account.code_hash),
        nonce: Quantity(account.map_or(0, |account| account.nonce)),
        storage_hash: account.map_or(B256::ZERO, |_| storage_root),
        storage_proof: storage_proof.collect(),
    })
}
