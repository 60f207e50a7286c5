//! Block-level access lists (EIP-7928; execution-apis, `src/eth/block.yaml`,
//! `src/debug/getters.yaml`). storage-writer keeps the list of a block for a limited time.

use super::super::hex::{BlockParam, Quantity};
use super::{PRUNED_HISTORY, RpcError, Source, add_reading, known};
use crate::BlockTag;
use alloy_eips::eip7928::AccountChanges;
use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use alloy_rlp::{Decodable, EMPTY_LIST_CODE};
use serde::Serialize;
use std::sync::Arc;
use tandem_http::{Answer, Methods, required, to_result};

/// Error code for a block or list that does not exist.
const NOT_FOUND: i32 = -32001;

pub(super) fn add(methods: &mut Methods, source: &Arc<Source>) {
    add_reading(methods, source, "eth_getBlockAccessList", list);
    add_reading(methods, source, "debug_getRawBlockAccessList", raw);
}

/// Returns the RLP of a block's list. Returns `None` if there is no such block, or if it is from
/// before Amsterdam.
fn find(source: &Source, tag: BlockTag) -> Result<Option<Bytes>, RpcError> {
    let Some((id, header)) = known(source.chain.header(tag))? else { return Ok(None) };
    let Some(hash) = header.block_access_list_hash else { return Ok(None) };
    // A genesis block has no list in the database, because nothing was executed.
    if hash == keccak256([EMPTY_LIST_CODE]) {
        return Ok(Some(Bytes::from_static(&[EMPTY_LIST_CODE])));
    }
    match known(source.chain.access_list(BlockTag::Hash(id.hash)))? {
        Some(list) => Ok(Some(list)),
        None => Err(RpcError::new(PRUNED_HISTORY, "Pruned history unavailable")),
    }
}

fn list(source: &Source, (block,): (Option<BlockParam>,)) -> Answer {
    let BlockParam(tag) = required(block, 0)?;
    let Some(rlp) = find(source, tag)? else { return to_result(&()) };
    let Ok(accounts) = Vec::<AccountChanges>::decode(&mut &rlp[..]) else {
        tracing::warn!("a stored access list cannot be decoded");
        return Err(RpcError::internal());
    };
    to_result(&accounts.iter().map(AccountJson::from).collect::<Vec<_>>())
}

fn raw(source: &Source, (block,): (Option<BlockParam>,)) -> Answer {
    let BlockParam(tag) = required(block, 0)?;
    match find(source, tag)? {
        Some(rlp) => to_result(&rlp),
        None => Err(RpcError::new(NOT_FOUND, "Resource not found")),
    }
}

/// `AccountAccess`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AccountJson<'a> {
    address: Address,
    storage_changes: Vec<SlotJson>,
    storage_reads: Vec<B256>,
    balance_changes: Vec<ChangeJson<Quantity<U256>>>,
    nonce_changes: Vec<ChangeJson<Quantity<u64>>>,
    code_changes: Vec<CodeJson<'a>>,
}

/// `SlotChanges`.
#[derive(Serialize)]
struct SlotJson {
    key: B256,
    changes: Vec<ChangeJson<B256>>,
}

/// `StorageChange`, `BalanceChange`, `NonceChange`.
#[derive(Serialize)]
struct ChangeJson<T> {
    index: Quantity<u64>,
    value: T,
}

/// `CodeChange`.
#[derive(Serialize)]
struct CodeJson<'a> {
    index: Quantity<u64>,
    code: &'a Bytes,
}

impl<'a> From<&'a AccountChanges> for AccountJson<'a> {
    fn from(account: &'a AccountChanges) -> Self {
        let slots = account.storage_changes.iter().map(|slot| SlotJson {
            key: slot.slot.into(),
            changes: slot
                .changes
                .iter()
                .map(|change| ChangeJson {
                    index: Quantity(change.block_access_index.get()),
                    value: change.new_value.into(),
                })
                .collect(),
        });
        let balances = account.balance_changes.iter().map(|change| ChangeJson {
            index: Quantity(change.block_access_index.get()),
            value: Quantity(change.post_balance),
        });
        let nonces = account.nonce_changes.iter().map(|change| ChangeJson {
            index: Quantity(change.block_access_index.get()),
            value: Quantity(change.new_nonce),
        });
        let codes = account.code_changes.iter().map(|change| CodeJson {
            index: Quantity(change.block_access_index.get()),
            code: &change.new_code,
        });
        Self {
            address: account.address,
            storage_changes: slots.collect(),
            storage_reads: account.storage_reads.iter().map(|slot| (*slot).into()).collect(),
            balance_changes: balances.collect(),
            nonce_changes: nonces.collect(),
            code_changes: codes.collect(),
        }
    }
}
