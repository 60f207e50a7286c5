//! Network form of a blob transaction whose list of blobs is empty: eth/72 sends the blobs apart
//! (EIP-8070).

use super::{BLOB_TYPE, HEADER_BYTES, POINT_BYTES, list_len};
use alloy_primitives::Bytes;
use alloy_rlp::{EMPTY_LIST_CODE, Header};
use tandem_chain::BLOB_BYTES;

/// Blob transaction without its blobs. Nothing else in it is checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WithoutBlobs<'a> {
    /// Items before the list of blobs: the transaction and, with cell proofs, the version.
    before: &'a [u8],
    /// Items after it: commitments and proofs.
    after: &'a [u8],
    /// Number of commitments.
    blobs: usize,
}

impl<'a> WithoutBlobs<'a> {
    /// Returns the transaction in these bytes, `None` if they are anything but a blob transaction in its
    /// network form with an empty list of blobs.
    pub fn of(bytes: &'a [u8]) -> Option<Self> {
        let mut items = bytes.strip_prefix(&[BLOB_TYPE])?;
        let outer = Header::decode(&mut items).ok().filter(|header| header.list)?;
        if outer.payload_length != items.len() {
            return None;
        }
        let all = items;
        let list = |items: &mut &'a [u8]| {
            let header = Header::decode(items).ok().filter(|header| header.list)?;
            let (content, rest) = items.split_at_checked(header.payload_length)?;
            *items = rest;
            Some(content)
        };
        list(&mut items)?;
        if items.first().is_some_and(|&version| version < 0x80) {
            items = &items[1..];
        }
        let (&blobs, after) = items.split_first()?;
        if blobs != EMPTY_LIST_CODE {
            return None;
        }
        let before = &all[..all.len() - items.len()];
        items = after;
        let commitments = list(&mut items)?.len();
        list(&mut items)?;
        let is_whole = items.is_empty() && commitments.is_multiple_of(POINT_BYTES);
        is_whole.then_some(Self { before, after, blobs: commitments / POINT_BYTES })
    }

    /// Returns the number of its blobs, as its commitments say.
    pub fn blobs(&self) -> usize {
        self.blobs
    }

    /// Returns the network form with these blobs, which lie one after another.
    pub fn with(&self, blobs: &[u8]) -> Bytes {
        let (blobs, _) = blobs.as_chunks::<BLOB_BYTES>();
        let list = blobs.len() * (HEADER_BYTES + BLOB_BYTES);
        let payload_length = self.before.len() + list_len(list) + self.after.len();
        let mut out = Vec::with_capacity(1 + list_len(payload_length));
        out.push(BLOB_TYPE);
        Header { list: true, payload_length }.encode(&mut out);
        out.extend_from_slice(self.before);
        Header { list: true, payload_length: list }.encode(&mut out);
        for blob in blobs {
            Header { list: false, payload_length: BLOB_BYTES }.encode(&mut out);
            out.extend_from_slice(blob);
        }
        out.extend_from_slice(self.after);
        out.into()
    }
}
