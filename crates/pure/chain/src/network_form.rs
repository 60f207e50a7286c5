//! Blob transactions together with their blobs, as the network sends them. EIP-4844 defines one
//! form; EIP-7594 defines another, with a version and proofs of cells. Blocks hold transactions
//! without blobs.

use crate::{
    Transaction,
    codec::{exact_list, take_item, take_list},
    decode_transaction,
};
use alloy_primitives::Bytes;
use std::fmt;

/// Number of bytes in a blob: 4096 field elements of 32 bytes (EIP-4844).
pub const BLOB_BYTES: usize = 131_072;

/// Number of bytes in a commitment or proof: a compressed point (EIP-4844).
const POINT_BYTES: usize = 48;

/// Type of blob transactions (EIP-2718, 4844).
const BLOB_TYPE: u8 = 0x03;

/// Version of the wrapper, the only one that exists (EIP-7594).
const VERSION_CELLS: u8 = 0x01;

/// Compressed point of BLS12-381's G1, unchecked.
pub type Point = [u8; POINT_BYTES];

/// Form in which a transaction and its blobs are wrapped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Wrapper {
    /// `rlp([tx_payload_body, blobs, commitments, proofs])`: one proof for each blob (EIP-4844).
    BlobProofs,
    /// `rlp([tx_payload_body, 1, blobs, commitments, cell_proofs])`: one proof for each cell of
    /// each blob (EIP-7594).
    CellProofs,
}

/// Blobs, commitments and proofs of a blob transaction. Only the lengths of the items are checked,
/// not their numbers, nor that they belong together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sidecar {
    /// Kind of the proofs.
    pub wrapper: Wrapper,
    /// Blobs of [`BLOB_BYTES`] each, slices of the decoded bytes.
    pub blobs: Vec<Bytes>,
    /// Commitments, one for each blob in a valid sidecar.
    pub commitments: Vec<Point>,
    /// Proofs, one for each blob or one for each cell in a valid sidecar.
    pub proofs: Vec<Point>,
}

/// Blob transaction with its sidecar.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NetworkForm {
    /// Transaction. Its hash is that of `raw`, without the sidecar.
    pub transaction: Transaction,
    /// EIP-2718 bytes of the transaction, as blocks hold them.
    pub raw: Bytes,
    /// Sidecar of the transaction.
    pub sidecar: Sidecar,
}

/// List of a sidecar.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SidecarPart {
    /// [`Sidecar::blobs`].
    Blob,
    /// [`Sidecar::commitments`].
    Commitment,
    /// [`Sidecar::proofs`].
    Proof,
}

impl fmt::Display for SidecarPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Blob => "blob",
            Self::Commitment => "commitment",
            Self::Proof => "proof",
        })
    }
}

/// Reason why bytes are not a blob transaction with its blobs.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NetworkFormError {
    /// The first byte is not that of blob transactions.
    #[error("not a blob transaction")]
    OtherType,
    /// The bytes contain only the transaction, as blocks hold it.
    #[error("missing sidecar in blob transaction")]
    NoSidecar,
    /// The bytes are invalid RLP or have other items than the wrapper.
    #[error("malformed network form: {0}")]
    Rlp(alloy_rlp::Error),
    /// The wrapper has an unknown version.
    #[error("unknown version of the sidecar")]
    UnknownVersion,
    /// The transaction cannot be decoded.
    #[error("malformed transaction: {0}")]
    Transaction(String),
    /// An item of the sidecar is too long or too short.
    #[error("{part} {index} has {got} bytes, not {want}")]
    ItemLength {
        /// List that contains the item.
        part: SidecarPart,
        /// Position of the item.
        index: usize,
        /// Number of bytes received.
        got: usize,
        /// Required number of bytes.
        want: usize,
    },
}

impl From<alloy_rlp::Error> for NetworkFormError {
    fn from(error: alloy_rlp::Error) -> Self {
        Self::Rlp(error)
    }
}

/// Decodes a blob transaction with its blobs, which must use up all bytes. Beyond the input, it
/// allocates memory only for the points and the transaction itself.
///
/// # Errors
/// [`NetworkFormError`].
pub fn decode_network_form(bytes: &Bytes) -> Result<NetworkForm, NetworkFormError> {
    let Some((&BLOB_TYPE, rlp)) = bytes.split_first() else {
        return Err(NetworkFormError::OtherType);
    };
    let mut fields = exact_list(rlp)?;
    if fields.first().is_some_and(|&first| first < 0xc0) {
        return Err(NetworkFormError::NoSidecar);
    }
    let start = fields;
    take_list(&mut fields)?;
    let body = &start[..start.len() - fields.len()];
    let wrapper = match fields.split_first() {
        Some((0xc0.., _)) => Wrapper::BlobProofs,
        // A byte below 0x80 is its own encoding.
        Some((&VERSION_CELLS, rest)) => {
            fields = rest;
            Wrapper::CellProofs
        }
        Some(_) => return Err(NetworkFormError::UnknownVersion),
        None => return Err(alloy_rlp::Error::InputTooShort.into()),
    };
    let mut blobs = Vec::new();
    let lists = [take_list(&mut fields)?, take_list(&mut fields)?, take_list(&mut fields)?];
    if !fields.is_empty() {
        return Err(alloy_rlp::Error::UnexpectedLength.into());
    }
    each(lists[0], SidecarPart::Blob, BLOB_BYTES, |blob| blobs.push(bytes.slice_ref(blob)))?;
    let commitments = points(lists[1], SidecarPart::Commitment)?;
    let proofs = points(lists[2], SidecarPart::Proof)?;
    let mut raw = Vec::with_capacity(1 + body.len());
    raw.push(BLOB_TYPE);
    raw.extend_from_slice(body);
    let transaction = decode_transaction(&raw).map_err(NetworkFormError::Transaction)?;
    let sidecar = Sidecar { wrapper, blobs, commitments, proofs };
    Ok(NetworkForm { transaction, raw: raw.into(), sidecar })
}

/// Passes each string of a list to `take`; all must have `want` bytes.
fn each<'a>(
    mut list: &'a [u8],
    part: SidecarPart,
    want: usize,
    mut take: impl FnMut(&'a [u8]),
) -> Result<(), NetworkFormError> {
    let mut index = 0;
    while !list.is_empty() {
        let (header, item) = take_item(&mut list)?;
        if header.list {
            return Err(alloy_rlp::Error::UnexpectedList.into());
        }
        if item.len() != want {
            return Err(NetworkFormError::ItemLength { part, index, got: item.len(), want });
        }
        take(item);
        index += 1;
    }
    Ok(())
}

fn points(list: &[u8], part: SidecarPart) -> Result<Vec<Point>, NetworkFormError> {
    // Each point has one header byte.
    let mut points = Vec::with_capacity(list.len() / (1 + POINT_BYTES));
    each(list, part, POINT_BYTES, |item| points.extend(Point::try_from(item)))?;
    Ok(points)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_consensus::{
        Blob, BlobTransactionSidecar, Signed, TxEip4844, TxEip4844Variant, TxEip4844WithSidecar,
    };
    use alloy_eips::{
        eip2718::Encodable2718,
        eip7594::{BlobTransactionSidecarEip7594, BlobTransactionSidecarVariant},
    };
    use alloy_primitives::{B256, Signature, U256};
    use alloy_rlp::Encodable;

    fn transaction() -> TxEip4844 {
        TxEip4844 {
            chain_id: 7,
            nonce: 3,
            gas_limit: 21_000,
            blob_versioned_hashes: vec![B256::repeat_byte(1); 2],
            ..TxEip4844::default()
        }
    }

    /// Encodes with alloy, which writes the form independently of this code.
    fn encoded(sidecar: BlobTransactionSidecarVariant) -> (Bytes, B256) {
        let tx = TxEip4844WithSidecar::from_tx_and_sidecar(transaction(), sidecar);
        let signature = Signature::new(U256::from(5), U256::from(6), true);
        let signed = Signed::new_unhashed(TxEip4844Variant::TxEip4844WithSidecar(tx), signature);
        let envelope = alloy_consensus::TxEnvelope::from(signed);
        (envelope.encoded_2718().into(), *envelope.tx_hash())
    }

    fn blob_proofs() -> BlobTransactionSidecar {
        let blobs = vec![Blob::repeat_byte(1), Blob::repeat_byte(2)];
        let point = |byte| [byte; POINT_BYTES].into();
        BlobTransactionSidecar::new(blobs, vec![point(3), point(4)], vec![point(5), point(6)])
    }

    fn cell_proofs() -> BlobTransactionSidecarEip7594 {
        let BlobTransactionSidecar { blobs, commitments, .. } = blob_proofs();
        let proofs = (0..=255).map(|byte| [byte; POINT_BYTES].into()).collect();
        BlobTransactionSidecarEip7594::new(blobs, commitments, proofs)
    }

    #[test]
    fn both_wrappers_are_read_as_they_were_written() {
        let forms = [
            (blob_proofs().into(), Wrapper::BlobProofs, 2),
            (cell_proofs().into(), Wrapper::CellProofs, 256),
        ];
        for (sidecar, wrapper, proofs) in forms {
            let (bytes, hash) = encoded(sidecar);
            let form = decode_network_form(&bytes).unwrap();
            assert_eq!((*form.transaction.hash(), form.sidecar.wrapper), (hash, wrapper));
            assert_eq!(decode_transaction(&form.raw).as_ref(), Ok(&form.transaction));
            let Transaction::Eip4844(signed) = &form.transaction else { panic!("another type") };
            assert_eq!(signed.tx(), &transaction());
            let Sidecar { blobs, commitments, proofs: got, .. } = form.sidecar;
            assert_eq!((blobs.len(), commitments, got.len()), (2, vec![[3; 48], [4; 48]], proofs));
            assert!(blobs.iter().zip(1..).all(|(blob, byte)| blob[..] == [byte; BLOB_BYTES]));
            // A slice of the input, not a copy.
            assert!(bytes.as_ptr_range().contains(&blobs[1].as_ptr()));
        }
    }

    fn list(items: &[&[u8]]) -> Vec<u8> {
        let payload = items.concat();
        let mut out = Vec::new();
        alloy_rlp::Header { list: true, payload_length: payload.len() }.encode(&mut out);
        out.extend(payload);
        out
    }

    fn string(len: usize) -> Vec<u8> {
        let mut out = Vec::new();
        vec![7_u8; len].as_slice().encode(&mut out);
        out
    }

    fn decode(fields: &[&[u8]]) -> Result<NetworkForm, NetworkFormError> {
        decode_network_form(&[&[BLOB_TYPE], &list(fields)[..]].concat().into())
    }

    #[test]
    fn what_is_malformed_is_told_apart() {
        let (bytes, _) = encoded(blob_proofs().into());
        let raw = decode_network_form(&bytes).unwrap().raw;
        let body = &raw[1..];
        let (empty, blob, point) = (list(&[]), list(&[&string(BLOB_BYTES)]), list(&[&string(48)]));
        let good = [body, &[1], &blob, &point, &point];
        assert_eq!(decode(&good).unwrap().sidecar.wrapper, Wrapper::CellProofs);
        // The verifier checks the counts.
        assert!(decode(&[body, &empty, &point, &empty]).is_ok());
        let error = |fields: &[&[u8]]| decode(fields).unwrap_err();
        for version in [&[0x00][..], &[0x80], &[2], &[0x81, 0x80], &[0x82, 0, 1], &[0x7f]] {
            let fields = [body, version, &blob, &point, &point];
            assert_eq!(error(&fields), NetworkFormError::UnknownVersion, "{version:?}");
        }
        for len in [0, BLOB_BYTES - 1, BLOB_BYTES + 1] {
            let blobs = list(&[&string(BLOB_BYTES), &string(len)]);
            let part = SidecarPart::Blob;
            let want = NetworkFormError::ItemLength { part, index: 1, got: len, want: BLOB_BYTES };
            assert_eq!(error(&[body, &blobs, &point, &point]), want);
        }
        for (place, part) in [(2, SidecarPart::Commitment), (3, SidecarPart::Proof)] {
            let long = list(&[&string(49)]);
            let mut fields = [body, &blob, &point, &point];
            fields[place] = &long;
            let want = NetworkFormError::ItemLength { part, index: 0, got: 49, want: 48 };
            assert_eq!(error(&fields), want);
        }
        let missing: [&[&[u8]]; 7] = [
            &[body],
            &[body, &blob],
            &[body, &blob, &point],
            &[body, &[1], &blob, &point],
            &[body, &blob, &point, &point, &point],
            &[body, &[1], &blob, &point, &point, &[1]],
            &[body, &list(&[&list(&[])]), &point, &point],
        ];
        for fields in missing {
            assert!(matches!(error(fields), NetworkFormError::Rlp(_)), "{}", fields.len());
        }
        let broken = error(&[&list(&[&[1]]), &blob, &point, &point]);
        assert!(matches!(broken, NetworkFormError::Transaction(_)), "{broken}");
    }

    #[test]
    fn what_has_no_sidecar_or_more_bytes_is_refused() {
        let (bytes, _) = encoded(cell_proofs().into());
        let raw = decode_network_form(&bytes).unwrap().raw;
        assert_eq!(decode_network_form(&raw), Err(NetworkFormError::NoSidecar));
        let other = |bytes: &[u8]| decode_network_form(&Bytes::copy_from_slice(bytes));
        for ty in [0x00, 0x02, 0x04, 0xc0, 0xff] {
            assert_eq!(other(&[ty, 0xc0]), Err(NetworkFormError::OtherType));
        }
        assert_eq!(other(&[]), Err(NetworkFormError::OtherType));
        for bytes in [[&bytes[..], &[0]].concat(), bytes[..bytes.len() - 1].to_vec(), vec![3]] {
            assert!(matches!(other(&bytes), Err(NetworkFormError::Rlp(_))));
        }
        assert!(other(&[3, 0xc0]).is_err());
    }
}
