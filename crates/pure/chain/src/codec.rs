//! RLP of headers and bodies, with raw transactions kept as they are.

use crate::{BlockError, transaction::TRANSACTION_LEN_MIN};
use alloy_consensus::Header;
use alloy_eips::eip4895::Withdrawal;
use alloy_primitives::Bytes;
use alloy_rlp::{Decodable, Encodable, length_of_length};

/// Returns whether the transaction is typed: the list holds it as a string, a legacy one as is.
fn is_wrapped(raw: &[u8]) -> bool {
    raw.first().is_some_and(|&byte| byte < 0x80)
}

/// Returns the RLP of the body and the length of its payload.
pub(crate) fn encode_body(raw: &[Bytes], withdrawals: Option<&[Withdrawal]>) -> (Bytes, usize) {
    let wrapped_len = |raw: &Bytes| match is_wrapped(raw) {
        true => string_header(raw.len()).length_with_payload(),
        false => raw.len(),
    };
    let transactions_len = raw.iter().map(wrapped_len).sum();
    let withdrawals_len =
        withdrawals.map(|withdrawals| withdrawals.iter().map(Encodable::length).sum::<usize>());
    let ommers_len = 1;
    let payload_len = list_len(transactions_len) + ommers_len + withdrawals_len.map_or(0, list_len);

    let mut out = Vec::with_capacity(list_len(payload_len));
    list_header(payload_len).encode(&mut out);
    list_header(transactions_len).encode(&mut out);
    for raw in raw {
        if is_wrapped(raw) {
            string_header(raw.len()).encode(&mut out);
        }
        out.extend_from_slice(raw);
    }
    list_header(0).encode(&mut out);
    if let (Some(withdrawals), Some(len)) = (withdrawals, withdrawals_len) {
        list_header(len).encode(&mut out);
        withdrawals.iter().for_each(|withdrawal| withdrawal.encode(&mut out));
    }
    (out.into(), payload_len)
}

/// Parts of a body.
pub(crate) struct Body {
    /// EIP-2718 bytes, slices of the body.
    pub(crate) raw_transactions: Vec<Bytes>,
    pub(crate) ommers: Vec<Header>,
    pub(crate) withdrawals: Option<Vec<Withdrawal>>,
    /// Number of bytes inside the body's list.
    pub(crate) payload_len: usize,
}

/// Decodes a header that uses up all bytes.
///
/// # Errors
/// [`BlockError`] with the fault of the encoding.
pub fn decode_header(mut rlp: &[u8]) -> Result<Header, BlockError> {
    let header = Header::decode(&mut rlp).map_err(|reason| rlp_error("header", reason))?;
    match rlp.is_empty() {
        true => Ok(header),
        false => Err(rlp_error("header", alloy_rlp::Error::UnexpectedLength)),
    }
}

pub(crate) fn decode_body(body_rlp: &Bytes) -> Result<Body, BlockError> {
    let body_error = |reason| rlp_error("body", reason);
    let fields = &mut exact_list(body_rlp).map_err(body_error)?;
    let payload_len = fields.len();
    let transactions = take_list(fields).map_err(body_error)?;
    let ommers = Vec::decode(fields).map_err(body_error)?;
    let withdrawals = match fields.is_empty() {
        true => None,
        false => Some(take_withdrawals(fields).map_err(body_error)?),
    };
    if !fields.is_empty() {
        return Err(body_error(alloy_rlp::Error::UnexpectedLength));
    }
    let raw_transactions = unwrap_transactions(body_rlp, transactions).map_err(body_error)?;
    Ok(Body { raw_transactions, ommers, withdrawals, payload_len })
}

/// Counts the items in the payload of a list. Counting first allows a single allocation: a growing
/// list takes up to three times as much memory. Small decoded items already take more memory than
/// their bytes.
pub(crate) fn count_items(mut items: &[u8]) -> alloy_rlp::Result<usize> {
    let mut count = 0;
    while !items.is_empty() {
        take_item(&mut items)?;
        count += 1;
    }
    Ok(count)
}

/// Takes a list of withdrawals off the front.
fn take_withdrawals(fields: &mut &[u8]) -> alloy_rlp::Result<Vec<Withdrawal>> {
    // Index, validator and amount of a byte each, an address of 21, and the list's own header.
    const LEN_MIN: usize = 25;
    let mut items = take_list(fields)?;
    let mut withdrawals = Vec::with_capacity(count_items(items)?.min(items.len() / LEN_MIN));
    while !items.is_empty() {
        withdrawals.push(Withdrawal::decode(&mut items)?);
    }
    Ok(withdrawals)
}

/// Returns the EIP-2718 bytes of each transaction in this body; `items` is the payload of the
/// transaction list. Stops after the first one that is too short for a transaction, because it
/// makes the block invalid.
fn unwrap_transactions(body: &Bytes, mut items: &[u8]) -> alloy_rlp::Result<Vec<Bytes>> {
    let count = count_items(items)?.min(items.len() / TRANSACTION_LEN_MIN + 1);
    let mut transactions = Vec::with_capacity(count);
    while !items.is_empty() {
        let start = items;
        let (header, payload) = take_item(&mut items)?;
        let item = &start[..start.len() - items.len()];
        // A legacy transaction inside a string would have two encodings.
        if !header.list && !is_wrapped(payload) {
            return Err(alloy_rlp::Error::Custom("wrapped transaction without a type"));
        }
        let raw = if header.list { item } else { payload };
        transactions.push(body.slice_ref(raw));
        if raw.len() < TRANSACTION_LEN_MIN {
            break;
        }
    }
    Ok(transactions)
}

pub(crate) fn list_header(payload_length: usize) -> alloy_rlp::Header {
    alloy_rlp::Header { list: true, payload_length }
}

fn string_header(payload_length: usize) -> alloy_rlp::Header {
    alloy_rlp::Header { list: false, payload_length }
}

/// Returns the size of a list with this payload in bytes.
pub(crate) fn list_len(payload_len: usize) -> usize {
    length_of_length(payload_len) + payload_len
}

/// Takes one RLP item off the front: its header and its payload.
///
/// # Errors
/// If the header is not canonical or announces more bytes than there are; the content of `rlp` is
/// then unspecified.
pub fn take_item<'a>(rlp: &mut &'a [u8]) -> alloy_rlp::Result<(alloy_rlp::Header, &'a [u8])> {
    let header = alloy_rlp::Header::decode(rlp)?;
    let (payload, rest) =
        rlp.split_at_checked(header.payload_length).ok_or(alloy_rlp::Error::InputTooShort)?;
    *rlp = rest;
    Ok((header, payload))
}

/// Takes one list off the front and returns its payload.
pub(crate) fn take_list<'a>(rlp: &mut &'a [u8]) -> alloy_rlp::Result<&'a [u8]> {
    match take_item(rlp)? {
        (header, payload) if header.list => Ok(payload),
        _ => Err(alloy_rlp::Error::UnexpectedString),
    }
}

/// Returns the payload of a list that uses up all bytes.
pub(crate) fn exact_list(mut rlp: &[u8]) -> alloy_rlp::Result<&[u8]> {
    let payload = take_list(&mut rlp)?;
    if rlp.is_empty() { Ok(payload) } else { Err(alloy_rlp::Error::UnexpectedLength) }
}

pub(crate) fn rlp_error(part: &'static str, reason: alloy_rlp::Error) -> BlockError {
    BlockError::Rlp { part, reason }
}
