//! Parts of a block's header and body that storage-writer itself reads.

use crate::Error;
use alloy_consensus::Header;
use alloy_rlp::Decodable;
use std::sync::Arc;
use tandem_chain::take_item;
use tandem_primitives::{B256, Bytes, keccak256};
use tandem_store::{View, tables::Headers};

/// Returns the header of a block that must be known.
///
/// # Errors
/// When the header is missing or malformed.
pub fn header(view: &View<'_>, hash: B256) -> Result<Header, Error> {
    let found = view.get::<Headers>(hash)?;
    let (_, rlp) = found.ok_or_else(|| Error::absent(format!("header of block {hash}")))?;
    decode_header(&rlp)
}

/// Decodes a header.
///
/// # Errors
/// [`Error::Damaged`].
pub fn decode_header(rlp: &Bytes) -> Result<Header, Error> {
    Header::decode(&mut rlp.as_ref())
        .map_err(|error| Error::Damaged(format!("malformed header: {error}")))
}

/// Returns the hashes of the transactions in a body's RLP: the keccak of each as in EIP-2718. In a
/// body, a transaction is a list (legacy) or a byte string that wraps it.
///
/// # Errors
/// [`Error::Damaged`].
pub fn transaction_hashes(body: &[u8]) -> Result<Arc<[B256]>, Error> {
    let hashes = || -> alloy_rlp::Result<Arc<[B256]>> {
        let mut fields = alloy_rlp::Header::decode_bytes(&mut &*body, true)?;
        let mut transactions = alloy_rlp::Header::decode_bytes(&mut fields, true)?;
        let mut hashes = Vec::new();
        while !transactions.is_empty() {
            let start = transactions;
            let (item, payload) = take_item(&mut transactions)?;
            let whole = &start[..start.len() - transactions.len()];
            hashes.push(keccak256(if item.list { whole } else { payload }));
        }
        Ok(hashes.into())
    };
    hashes().map_err(|error| Error::Damaged(format!("malformed body: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_hash_as_in_eip_2718() {
        let legacy = [0xc2, 1, 2];
        let typed = [2u8, 0xc1, 9];
        let mut transactions = legacy.to_vec();
        transactions.push(0x83);
        transactions.extend_from_slice(&typed);
        let mut body = vec![0xc0 + 9, 0xc0 + 7];
        body.extend_from_slice(&transactions);
        body.push(0xc0);
        let hashes = transaction_hashes(&body).unwrap();
        assert_eq!(*hashes, [keccak256(legacy), keccak256(typed)]);
        assert!(transaction_hashes(&body[..5]).is_err());
        assert!(transaction_hashes(&[0xc2, 0xc0, 0xc0]).unwrap().is_empty());
    }
}
