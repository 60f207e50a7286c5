use super::blob_validator::BlobRequest;
use crate::wire::blob_validator::v1;
use bytes::{BufMut, Bytes, BytesMut};
use prost::{
    Message,
    encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len, uint64},
};

/// Numbers of fields that this module encodes instead of generated code.
mod tag {
    pub const BUNDLE_BLOBS: u32 = 3;
    pub const REQUEST_BUNDLE: u32 = 1;
    pub const REQUEST_TIMEOUT_MS: u32 = 2;
}

/// Outgoing request. A generated message would have to copy its blobs into one buffer; this type
/// leaves them in place.
pub struct OutgoingBlobRequest {
    request: BlobRequest,
    /// Bundle without its blobs.
    rest: v1::Bundle,
    timeout_ms: u64,
    blobs_len: usize,
    bundle_len: usize,
}

impl From<BlobRequest> for OutgoingBlobRequest {
    fn from(request: BlobRequest) -> Self {
        let rest = v1::Bundle::without_blobs(&request.bundle);
        let blobs_len = request.bundle.blobs.iter().map(|blob| blob.len()).sum();
        let bundle_len = rest.encoded_len() + field_len(tag::BUNDLE_BLOBS, blobs_len);
        let timeout_ms = request.timeout_ms();
        Self { request, rest, timeout_ms, blobs_len, bundle_len }
    }
}

impl OutgoingBlobRequest {
    /// Returns the size of the message in bytes.
    pub fn encoded_len(&self) -> usize {
        let timeout = match self.timeout_ms {
            0 => 0,
            millis => uint64::encoded_len(tag::REQUEST_TIMEOUT_MS, &millis),
        };
        field_len(tag::REQUEST_BUNDLE, self.bundle_len) + timeout
    }

    /// Returns the bytes of a [`v1::ValidateRequest`] in parts. The first part holds the content of
    /// `head` and everything except the blobs; each blob follows as a part.
    pub fn into_parts(self, mut head: BytesMut) -> Vec<Bytes> {
        let blobs = &self.request.bundle.blobs;
        head.reserve(self.encoded_len() - self.blobs_len);
        if self.timeout_ms != 0 {
            uint64::encode(tag::REQUEST_TIMEOUT_MS, &self.timeout_ms, &mut head);
        }
        encode_field(tag::REQUEST_BUNDLE, self.bundle_len, &mut head);
        self.rest.encode_raw(&mut head);
        encode_field(tag::BUNDLE_BLOBS, self.blobs_len, &mut head);
        let mut parts = Vec::with_capacity(1 + blobs.len());
        parts.push(head.freeze());
        parts.extend(blobs.iter().map(|blob| blob.0.clone()));
        parts
    }
}

/// Returns the size of a field with `len` bytes, including its key and length.
fn field_len(tag: u32, len: usize) -> usize {
    key_len(tag) + encoded_len_varint(len as u64) + len
}

/// Encodes the key and the length of a field.
fn encode_field(tag: u32, len: usize, buffer: &mut impl BufMut) {
    encode_key(tag, WireType::LengthDelimited, buffer);
    encode_varint(len as u64, buffer);
}
