use crate::{Block, BlockError, ChainSpec, Fork, Transaction, transaction::PARALLEL_MIN};
use alloy_consensus::{Eip2718EncodableReceipt, EthereumReceipt, TxReceipt, TxType};
use alloy_eips::eip7685::Requests;
use alloy_evm::{
    Evm,
    eth::receipt_builder::{self, ReceiptBuilderCtx},
};
use alloy_primitives::{B256, Bloom, Bytes};
use alloy_rlp::Decodable;
use rayon::prelude::*;
use tandem_trie::list_root;

/// A receipt without its bloom filter, which its logs imply.
pub type Receipt = EthereumReceipt;

/// Makes [`Receipt`]s for alloy-evm's block executor. Unlike alloy's own builder it leaves the
/// bloom filters to [`validate_outcome`], which makes them in parallel after execution.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReceiptBuilder;

impl receipt_builder::ReceiptBuilder for ReceiptBuilder {
    type Transaction = Transaction;
    type Receipt = Receipt;

    fn build_receipt<E: Evm>(&self, context: ReceiptBuilderCtx<'_, TxType, E>) -> Receipt {
        Receipt {
            tx_type: context.tx_type,
            success: context.result.is_success(),
            cumulative_gas_used: context.cumulative_gas_used,
            logs: context.result.into_logs(),
        }
    }
}

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
    if spec.fork_at(header.timestamp) >= Fork::Prague {
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

/// Root of the receipts, and the bloom filter over all their logs.
pub fn receipts_root(receipts: &[Receipt]) -> (B256, Bloom) {
    let encode = |receipt: &Receipt| {
        let bloom = receipt.bloom();
        let mut encoded = Vec::with_capacity(receipt.eip2718_encoded_length_with_bloom(&bloom));
        receipt.eip2718_encode_with_bloom(&bloom, &mut encoded);
        (encoded, bloom)
    };
    let (encoded, blooms): (Vec<_>, Vec<_>) = match receipts.len() < PARALLEL_MIN {
        true => receipts.iter().map(encode).unzip(),
        false => receipts.par_iter().map(encode).unzip(),
    };
    let bloom = blooms.iter().fold(Bloom::ZERO, |all, bloom| all | *bloom);
    (list_root(&encoded), bloom)
}

/// The receipts of a block as the database keeps them: an RLP list of receipts, each its type,
/// status, cumulative gas and logs, without bloom filters.
pub fn encode_receipts(receipts: &[Receipt]) -> Bytes {
    let mut out = Vec::new();
    alloy_rlp::encode_list(receipts, &mut out);
    out.into()
}

/// Reads what [`encode_receipts`] wrote.
///
/// # Errors
/// What the decoder met, also when bytes are left over.
pub fn decode_receipts(mut bytes: &[u8]) -> Result<Vec<Receipt>, alloy_rlp::Error> {
    let receipts = Decodable::decode(&mut bytes)?;
    if bytes.is_empty() { Ok(receipts) } else { Err(alloy_rlp::Error::UnexpectedLength) }
}
