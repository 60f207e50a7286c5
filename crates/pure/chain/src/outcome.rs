use crate::{Block, BlockError, ChainSpec, Fork, Receipt, receipts_root};
use alloy_eips::eip7685::Requests;

/// What execution of a block gave, beside the state.
#[derive(Clone, Copy, Debug)]
pub struct Outcome<'a> {
    /// One for each transaction.
    pub receipts: &'a [Receipt],
    /// Gas that all transactions used.
    pub gas_used: u64,
    /// Blob gas that all transactions used (EIP-4844).
    pub blob_gas_used: u64,
    /// Execution requests (EIP-7685), none before Prague.
    pub requests: &'a Requests,
}

/// Compares what execution gave with what the header says: everything but the state root.
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
    let (root, bloom) = receipts_root(outcome.receipts);
    if header.logs_bloom != bloom {
        return Err(BlockError::LogsBloom);
    }
    if header.receipts_root != root {
        return Err(BlockError::ReceiptsRoot { got: header.receipts_root, want: root });
    }
    Ok(())
}
