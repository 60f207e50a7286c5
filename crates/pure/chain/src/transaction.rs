use crate::{
    Block, BlockError,
    codec::{exact_list, take_item},
    is_merged, large_fees,
};
use alloy_consensus::{
    EthereumTxEnvelope, Signed, TxEip1559, TxEip2930, TxEip4844, TxEip7702, TxLegacy,
    transaction::{RlpEcdsaDecodableTx, SignerRecoverable},
};
use alloy_primitives::{Address, Bytes, keccak256};
use rayon::prelude::*;

/// Signed transaction as blocks hold it: blob transactions without their blobs.
pub type Transaction = EthereumTxEnvelope<TxEip4844>;

/// Number of items below which handing over to other threads costs more than it saves.
pub(crate) const PARALLEL_MIN: usize = 16;

/// Size of the shortest transaction in bytes: a legacy one of nine empty fields, in a list.
pub(crate) const TRANSACTION_LEN_MIN: usize = 10;

/// First byte of an RLP list, and so of every legacy transaction; typed ones start below 0x80.
const RLP_LIST: u8 = 0xc0;

/// RLP of an empty string.
const RLP_EMPTY_STRING: u8 = 0x80;

/// Decodes a transaction from its EIP-2718 bytes, all of which it must use up.
///
/// The hash is computed from the given bytes. alloy's own decoder would encode legacy transactions
/// again to compute it.
///
/// # Errors
/// The message of the decoder.
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

/// Decodes all transactions of a block, in parallel if there are many.
pub(crate) fn decode_all(raw: &[Bytes]) -> Result<Vec<Transaction>, BlockError> {
    let decode = |(index, raw): (usize, &Bytes)| {
        decode_transaction(raw).map_err(|reason| diagnose(index, raw, reason))
    };
    // Transactions that are too short are found first, while that costs nothing.
    raw.iter()
        .enumerate()
        .filter(|(_, raw)| raw.len() < TRANSACTION_LEN_MIN)
        .try_for_each(|item| decode(item).map(drop))?;
    if raw.len() < PARALLEL_MIN {
        let mut decoded = Vec::with_capacity(raw.len());
        for item in raw.iter().enumerate() {
            decoded.push(decode(item)?);
        }
        return Ok(decoded);
    }
    // Collecting results as they are allocates the list once. Collecting into a single result would
    // grow a list in each thread and join them, which takes three times the decoded size.
    let mut decoded = Vec::new();
    raw.par_iter().enumerate().map(decode).collect_into_vec(&mut decoded);
    decoded.into_iter().collect()
}

/// Returns the rule broken by a transaction that does not decode.
fn diagnose(index: usize, raw: &[u8], reason: String) -> BlockError {
    if let Some(rule) = large_fees::broken_rule(raw) {
        return BlockError::LargeFees { index, rule };
    }
    // Number of fields before the recipient, in the types that require one.
    let fields = match raw.first() {
        Some(0x03 | 0x04) => 5,
        Some(&ty @ (0x00 | 0x05..0x80)) => return BlockError::UnknownType { index, ty },
        _ => return BlockError::TransactionEncoding { index, reason },
    };
    let mut items = exact_list(&raw[1..]).unwrap_or_default();
    // A type 3 transaction with blobs is a list that begins with the transaction's own list.
    if raw[0] == 0x03 && items.first() >= Some(&RLP_LIST) {
        return BlockError::BlobsAttached { index };
    }
    let skipped = (0..fields).try_for_each(|_| take_item(&mut items).map(drop));
    match (skipped, items.first()) {
        (Ok(()), Some(&RLP_EMPTY_STRING)) => BlockError::TypeCreates { index, ty: raw[0] },
        _ => BlockError::TransactionEncoding { index, reason },
    }
}

/// Recovers the senders of a block's transactions in parallel, in their order.
///
/// # Errors
/// [`BlockError::Signature`] for a signature that is invalid or has a high `s` (EIP-2). In a block
/// before the merge, [`crate::validate_body`] checks for a high `s`, because it knows the fork.
pub fn recover_senders(block: &Block) -> Result<Vec<Address>, BlockError> {
    let merged = is_merged(&block.header);
    let recover = |buffer: &mut Vec<u8>, (index, transaction): (usize, &Transaction)| {
        let sender = match merged {
            true => transaction.recover_with_buf(buffer),
            false => transaction.recover_unchecked_with_buf(buffer),
        };
        sender.map_err(|_| BlockError::Signature { index })
    };
    let transactions = &block.transactions;
    // A recovery takes tens of microseconds, so a second one is worth another thread.
    if let [transaction] = &transactions[..] {
        return Ok(vec![recover(&mut Vec::new(), (0, transaction))?]);
    }
    transactions.par_iter().enumerate().map_init(Vec::new, recover).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::list_header;

    /// Returns a transaction of this type whose fields are these bytes of RLP.
    fn typed(ty: u8, fields: &[u8]) -> Bytes {
        let mut raw = vec![ty];
        list_header(fields.len()).encode(&mut raw);
        raw.extend_from_slice(fields);
        raw.into()
    }

    #[test]
    fn the_first_of_many_wrong_transactions_is_named() {
        let good = Bytes::from_static(&[0xc9, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x1b, 1, 1]);
        let unknown = Bytes::from_static(&[5; TRANSACTION_LEN_MIN]);
        let mut raw = vec![good; 3 * PARALLEL_MIN];
        assert_eq!(decode_all(&raw).unwrap().len(), raw.len());
        for index in [40, 17, 30] {
            raw[index] = unknown.clone();
        }
        assert_eq!(decode_all(&raw), Err(BlockError::UnknownType { index: 17, ty: 5 }));
    }

    /// Only then can the list that the threads fill become the list of transactions in place.
    #[test]
    fn a_result_takes_no_more_room_than_a_transaction() {
        assert_eq!(size_of::<Result<Transaction, BlockError>>(), size_of::<Transaction>());
    }

    #[test]
    fn what_does_not_decode_is_told_apart() {
        let list = [0xc1, 0x80];
        for (raw, kind) in [
            (typed(3, &[1, 1, 1, 1, 1, 0x80, 0x80]), "type_creates"),
            (typed(4, &[1, 1, 1, 1, 1, 0x80]), "type_creates"),
            // These types may create contracts, so something else is wrong.
            (typed(2, &[1, 1, 1, 1, 1, 0x80]), "transaction_encoding"),
            (typed(1, &[1, 1, 1, 1, 1, 0x80]), "transaction_encoding"),
            (typed(3, &[1, 1, 1, 1, 1, 1]), "transaction_encoding"),
            (typed(3, &[1, 1, 1, 1, 1]), "transaction_encoding"),
            (typed(3, &[1, 1, 1, 0x8f]), "transaction_encoding"),
            (typed(3, &[]), "transaction_encoding"),
            (typed(3, &[&list[..], &[1, 1, 1]].concat()), "blobs_attached"),
            (typed(4, &[&list[..], &[1, 1, 1]].concat()), "transaction_encoding"),
            (typed(5, &[1]), "unknown_type"),
            (typed(0, &[1]), "unknown_type"),
            (typed(0x7f, &[1]), "unknown_type"),
            (Bytes::from_static(&[3]), "transaction_encoding"),
            (Bytes::new(), "transaction_encoding"),
            (Bytes::from_static(&[0xc0]), "transaction_encoding"),
        ] {
            let error = decode_all(std::slice::from_ref(&raw)).unwrap_err();
            assert_eq!(error.kind(), kind, "{raw}: {error}");
        }
    }
}
