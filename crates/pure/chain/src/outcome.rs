use crate::{
    AccessList, Block, BlockError, ChainSpec, Fork,
    access_list::{check_items, first_difference},
};
use alloy_eips::eip7685::Requests;
use alloy_primitives::{B256, Bloom};

/// Result of executing a block, without the state.
#[derive(Clone, Copy, Debug)]
pub struct Outcome<'a> {
    /// Root of the receipts, one for each transaction: [`crate::receipts_root`].
    pub receipts_root: B256,
    /// Bloom filter over the logs of all receipts.
    pub logs_bloom: Bloom,
    /// Gas used by all transactions.
    pub gas_used: u64,
    /// Blob gas used by all transactions (EIP-4844).
    pub blob_gas_used: u64,
    /// Execution requests (EIP-7685), none before Prague.
    pub requests: &'a Requests,
    /// Block-level access list (EIP-7928), none before Amsterdam.
    pub access_list: Option<&'a AccessList>,
}

/// Compares the result of execution with the header, except the state root.
///
/// # Errors
/// [`BlockError::GasUsed`], [`BlockError::BlobGasUsed`], [`BlockError::RequestsHash`],
/// [`BlockError::LogsBloom`], [`BlockError::ReceiptsRoot`], [`BlockError::AccessListTooLong`],
/// [`BlockError::AccessList`].
pub fn validate_outcome(
    spec: &ChainSpec,
    block: &Block,
    outcome: &Outcome<'_>,
) -> Result<(), BlockError> {
    let header = &block.header;
    if header.gas_used != outcome.gas_used {
        return Err(BlockError::GasUsed { got: header.gas_used, want: outcome.gas_used });
    }
    let blob_gas_used = header.blob_gas_used.unwrap_or(0);
    if blob_gas_used != outcome.blob_gas_used {
        let want = outcome.blob_gas_used;
        return Err(BlockError::BlobGasUsed { got: blob_gas_used, want });
    }
    if spec.fork_of(header) >= Fork::Prague {
        let (got, want) =
            (header.requests_hash.unwrap_or_default(), outcome.requests.requests_hash());
        if got != want {
            return Err(BlockError::RequestsHash { got, want });
        }
    }
    if header.logs_bloom != outcome.logs_bloom {
        return Err(BlockError::LogsBloom);
    }
    let (got, want) = (header.receipts_root, outcome.receipts_root);
    if got != want {
        return Err(BlockError::ReceiptsRoot { got, want });
    }
    match outcome.access_list {
        Some(list) => check_access_list(block, list),
        None => Ok(()),
    }
}

/// Compares the list of execution with that of the header. Equal lists have equal bytes, because
/// their order is fixed.
fn check_access_list(block: &Block, list: &AccessList) -> Result<(), BlockError> {
    let header = &block.header;
    check_items(list.items(), header.gas_limit)?;
    let (got, want) = (header.block_access_list_hash.unwrap_or_default(), list.hash());
    if got == want {
        return Ok(());
    }
    let given = block.access_list.as_ref();
    let difference = given.and_then(|given| first_difference(given.rlp(), list.rlp()));
    let difference = difference.map_or_else(String::new, |difference| format!(": {difference}"));
    Err(BlockError::AccessList { got, want, difference })
}
