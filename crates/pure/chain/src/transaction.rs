use crate::{Block, BlockError};
use alloy_consensus::{
    EthereumTxEnvelope, Signed, TxEip1559, TxEip2930, TxEip4844, TxEip7702, TxLegacy,
    transaction::{RlpEcdsaDecodableTx, SignerRecoverable},
};
use alloy_primitives::{Address, Bytes, keccak256};
use rayon::prelude::*;

/// A signed transaction as blocks hold it: blob transactions without their blobs.
pub type Transaction = EthereumTxEnvelope<TxEip4844>;

/// Below this many items the hand-over to other threads costs more than it saves.
pub(crate) const PARALLEL_MIN: usize = 16;

/// First byte of an RLP list, and so of every legacy transaction; typed ones start below 0x80.
const RLP_LIST: u8 = 0xc0;

/// Decodes a transaction from its EIP-2718 bytes, all of which it must use up.
///
/// The hash is that of the bytes given. alloy's own decoder would encode legacy transactions again
/// to learn it.
///
/// # Errors
/// What the decoder met, in words.
pub fn decode_transaction(raw: &[u8]) -> Result<Transaction, String> {
    match raw.first() {
        Some(0x01) => decode_typed::<TxEip2930>(raw).map(Transaction::Eip2930),
        Some(0x02) => decode_typed::<TxEip1559>(raw).map(Transaction::Eip1559),
        Some(0x03) => decode_typed::<TxEip4844>(raw).map(Transaction::Eip4844),
        Some(0x04) => decode_typed::<TxEip7702>(raw).map(Transaction::Eip7702),
        Some(RLP_LIST..) => decode_signed::<TxLegacy>(raw, raw).map(Transaction::Legacy),
        Some(ty) => Err(format!("unknown type {ty:#04x}")),
        None => Err("no bytes".to_owned()),
    }
}

fn decode_typed<T: RlpEcdsaDecodableTx>(raw: &[u8]) -> Result<Signed<T>, String> {
    decode_signed(raw, &raw[1..])
}

fn decode_signed<T: RlpEcdsaDecodableTx>(raw: &[u8], mut rlp: &[u8]) -> Result<Signed<T>, String> {
    let (transaction, signature) =
        T::rlp_decode_with_signature(&mut rlp).map_err(|error| error.to_string())?;
    if !rlp.is_empty() {
        return Err(format!("{} bytes too many", rlp.len()));
    }
    Ok(Signed::new_unchecked(transaction, signature, keccak256(raw)))
}

/// Decodes all transactions of a block, many of them in parallel.
pub(crate) fn decode_all(raw: &[Bytes]) -> Result<Vec<Transaction>, BlockError> {
    let decode = |(index, raw): (usize, &Bytes)| {
        let error = |reason| BlockError::TransactionEncoding { index, reason };
        decode_transaction(raw).map_err(error)
    };
    if raw.len() < PARALLEL_MIN {
        return raw.iter().enumerate().map(decode).collect();
    }
    raw.par_iter().enumerate().map(decode).collect()
}

/// The senders of a block's transactions, in their order, recovered in parallel.
///
/// # Errors
/// [`BlockError::Signature`] for a signature that is invalid or has a high `s` (EIP-2).
pub fn recover_senders(block: &Block) -> Result<Vec<Address>, BlockError> {
    let recover = |buffer: &mut Vec<u8>, (index, transaction): (usize, &Transaction)| {
        let sender = transaction.recover_with_buf(buffer);
        sender.map_err(|_| BlockError::Signature { index })
    };
    let transactions = &block.transactions;
    // A recovery takes tens of microseconds: worth another thread from the second one on.
    if let [transaction] = &transactions[..] {
        return Ok(vec![recover(&mut Vec::new(), (0, transaction))?]);
    }
    transactions.par_iter().enumerate().map_init(Vec::new, recover).collect()
}
