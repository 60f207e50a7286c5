use crate::{Block, BlockError, ChainSpec, Fork};
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
}

/// Compares the result of execution with the header, except the state root.
///
/// # Errors
/// [`BlockError::GasUsed`], [`BlockError::BlobGasUsed`], [`BlockError::RequestsHash`],
/// [`BlockError::LogsBloom`], [`BlockError::ReceiptsRoot`].
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
    Ok(())
}
