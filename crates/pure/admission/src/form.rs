//! Bytes of transactions as users and peers send them: blob transactions with their blobs, all
//! others as blocks hold them.

use crate::rules::TRANSACTION_BYTES_MAX;
use alloy_eips::eip7594::CELLS_PER_EXT_BLOB;
use alloy_primitives::{B256, Bytes, keccak256};
use alloy_rlp::Header as RlpHeader;
use tandem_chain::{
    BLOB_BYTES, ChainSpec, Fork, NetworkForm, NetworkFormError, Point, Sidecar, Transaction,
    Wrapper, decode_network_form, decode_transaction,
};

mod without_blobs;

pub use without_blobs::WithoutBlobs;

/// Type of blob transactions (EIP-2718, 4844).
const BLOB_TYPE: u8 = 0x03;

/// Bytes of a blob's commitment or proof as an RLP string.
const POINT_BYTES: usize = 1 + 48;

/// Bytes of the header of an RLP list or string of at most 16 MiB.
const HEADER_BYTES: usize = 4;

/// Transaction as it was sent, decoded.
#[derive(Clone, Debug)]
pub struct Submitted {
    /// Transaction.
    pub transaction: Transaction,
    /// EIP-2718 bytes, as blocks hold them.
    pub raw: Bytes,
    /// Bytes as they were sent, with blobs.
    pub network_bytes: usize,
    /// Blobs and their proofs, for blob transactions.
    pub sidecar: Option<Sidecar>,
}

impl Submitted {
    /// Returns the hash of the transaction.
    pub fn hash(&self) -> B256 {
        *self.transaction.hash()
    }
}

/// Reason why bytes are no transaction, or a blob transaction without its blobs.
pub type MalformedError = NetworkFormError;

/// Decodes a transaction in its network form, which must use up all bytes.
///
/// # Errors
/// [`MalformedError`].
pub fn decode(bytes: &Bytes) -> Result<Submitted, MalformedError> {
    let network_bytes = bytes.len();
    if bytes.first() == Some(&BLOB_TYPE) {
        let NetworkForm { transaction, raw, sidecar } = decode_network_form(bytes)?;
        return Ok(Submitted { transaction, raw, network_bytes, sidecar: Some(sidecar) });
    }
    let transaction = decode_transaction(bytes).map_err(MalformedError::Transaction)?;
    Ok(Submitted { transaction, raw: bytes.clone(), network_bytes, sidecar: None })
}

/// Returns the hash of the transaction in these bytes without decoding it, so that a known one costs
/// little. Reads the two outer headers of a blob transaction in its network form. Returns `None` for
/// bytes that certainly are no transaction.
pub fn pooled_hash(bytes: &[u8]) -> Option<B256> {
    let (&kind, rlp) = bytes.split_first()?;
    if kind != BLOB_TYPE {
        return (!(0x80..0xc0).contains(&kind)).then(|| keccak256(bytes));
    }
    let mut inner = rlp;
    let outer = RlpHeader::decode(&mut inner).ok().filter(|header| header.list)?;
    if outer.payload_length != inner.len() {
        return None;
    }
    if inner.first().is_none_or(|&first| first < 0xc0) {
        // Without its blobs.
        return Some(keccak256(bytes));
    }
    let mut after = inner;
    let body = RlpHeader::decode(&mut after).ok()?;
    let end = inner.len() - after.len() + body.payload_length;
    let body = inner.get(..end)?;
    Some(keccak256([&[BLOB_TYPE], body].concat()))
}

/// Returns the bytes of the largest network form that any fork of this chain allows, if a
/// transaction has at most `blobs_max` blobs. Returns 0 on a chain without blobs.
pub fn network_form_bytes_max(spec: &ChainSpec, blobs_max: usize) -> usize {
    let of_fork = |time: u64| {
        let blobs = spec.blob_params_at(time).map_or(0, |params| params.max_blobs_per_tx);
        let blobs = usize::try_from(blobs).map_or(blobs_max, |blobs| blobs.min(blobs_max));
        let cells = spec.fork_at(time) >= Fork::Osaka;
        largest(blobs, if cells { CELLS_PER_EXT_BLOB } else { 1 })
    };
    let times = spec.fork_points().times;
    times.into_iter().map(of_fork).max().unwrap_or(0)
}

/// Returns the bytes of the largest network form that any chain allows, if a transaction has at most
/// `blobs_max` blobs.
pub fn any_network_form_bytes_max(blobs_max: usize) -> usize {
    largest(blobs_max, CELLS_PER_EXT_BLOB)
}

/// Returns the maximum bytes of a network form with `blobs` blobs and `proofs` proofs for each.
fn largest(blobs: usize, proofs: usize) -> usize {
    let sidecar = blobs * (HEADER_BYTES + BLOB_BYTES + (1 + proofs) * POINT_BYTES);
    if sidecar == 0 { 0 } else { TRANSACTION_BYTES_MAX + sidecar + 8 * HEADER_BYTES }
}

/// Returns the bytes of [`encode_network_form`] for a transaction whose EIP-2718 form has `raw`
/// bytes.
pub fn network_form_len(raw: usize, wrapper: Wrapper, blobs: usize) -> usize {
    form_len(raw, wrapper, &Lists::of(wrapper, blobs))
}

fn form_len(raw: usize, wrapper: Wrapper, lists: &Lists) -> usize {
    1 + list_len(lists.payload(raw.saturating_sub(1), wrapper))
}

/// Returns how many bytes of the network form its list of blobs takes beyond an empty one.
pub fn blobs_len(raw: usize, wrapper: Wrapper, blobs: usize) -> usize {
    let without = Lists { blobs: 0, ..Lists::of(wrapper, blobs) };
    network_form_len(raw, wrapper, blobs) - form_len(raw, wrapper, &without)
}

/// Encodes a blob transaction with its blobs: `raw` are its EIP-2718 bytes. Each blob has
/// [`BLOB_BYTES`], and the lists have the lengths that the form demands.
pub fn encode_network_form(raw: &[u8], wrapper: Wrapper, blobs: &[StoredParts<'_>]) -> Bytes {
    encode(raw, wrapper, blobs, Lists::of(wrapper, blobs.len()))
}

/// Same as [`encode_network_form`], with an empty list of blobs.
pub fn encode_without_blobs(raw: &[u8], wrapper: Wrapper, blobs: &[StoredParts<'_>]) -> Bytes {
    encode(raw, wrapper, blobs, Lists { blobs: 0, ..Lists::of(wrapper, blobs.len()) })
}

fn encode(raw: &[u8], wrapper: Wrapper, blobs: &[StoredParts<'_>], lists: Lists) -> Bytes {
    let body = raw.get(1..).unwrap_or_default();
    let payload = lists.payload(body.len(), wrapper);
    let mut out = Vec::with_capacity(1 + list_len(payload));
    let list = |out: &mut Vec<u8>, payload_length| {
        RlpHeader { list: true, payload_length }.encode(out);
    };
    let string = |out: &mut Vec<u8>, bytes: &[u8]| {
        RlpHeader { list: false, payload_length: bytes.len() }.encode(out);
        out.extend_from_slice(bytes);
    };
    out.push(BLOB_TYPE);
    list(&mut out, payload);
    out.extend_from_slice(body);
    if wrapper == Wrapper::CellProofs {
        // A byte below 0x80 is its own encoding.
        out.push(1);
    }
    list(&mut out, lists.blobs);
    if lists.blobs > 0 {
        blobs.iter().for_each(|(blob, _, _)| string(&mut out, blob));
    }
    list(&mut out, lists.commitments);
    blobs.iter().for_each(|(_, commitment, _)| string(&mut out, &commitment[..]));
    list(&mut out, lists.proofs);
    blobs.iter().flat_map(|(_, _, proofs)| *proofs).for_each(|proof| string(&mut out, proof));
    out.into()
}

/// Blob, its commitment, and its proofs.
pub type StoredParts<'a> = (&'a [u8], &'a Point, &'a [Point]);

/// Bytes inside the lists of a sidecar.
struct Lists {
    blobs: usize,
    commitments: usize,
    proofs: usize,
}

impl Lists {
    fn of(wrapper: Wrapper, blobs: usize) -> Self {
        let proofs = match wrapper {
            Wrapper::BlobProofs => 1,
            Wrapper::CellProofs => CELLS_PER_EXT_BLOB,
        };
        let blob = HEADER_BYTES + BLOB_BYTES;
        Self {
            blobs: blobs * blob,
            commitments: blobs * POINT_BYTES,
            proofs: blobs * proofs * POINT_BYTES,
        }
    }

    fn payload(&self, body: usize, wrapper: Wrapper) -> usize {
        let version = usize::from(wrapper == Wrapper::CellProofs);
        let lists = list_len(self.blobs) + list_len(self.commitments) + list_len(self.proofs);
        body + version + lists
    }
}

fn list_len(payload_length: usize) -> usize {
    RlpHeader { list: true, payload_length }.length_with_payload()
}

#[cfg(test)]
mod tests;
