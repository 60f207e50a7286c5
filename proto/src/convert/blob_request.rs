use super::blob_validator::BlobRequest;
use crate::wire::blob_validator::v1;
use bytes::{BufMut, Bytes, BytesMut};
use prost::{
    Message,
    encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len, uint64},
};

/// Numbers of fields that are written here rather than by generated code.
mod tag {
    pub const BUNDLE_BLOBS: u32 = 3;
    pub const REQUEST_BUNDLE: u32 = 1;
    pub const REQUEST_TIMEOUT_MS: u32 = 2;
}

/// A request on its way out. As a message, it would have to gather its blobs in one buffer; this
/// leaves them where they lie.
pub struct OutgoingBlobRequest {
    request: BlobRequest,
    /// All of the bundle but the blobs.
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
    /// Bytes of the message.
    pub fn encoded_len(&self) -> usize {
        let timeout = match self.timeout_ms {
            0 => 0,
            millis => uint64::encoded_len(tag::REQUEST_TIMEOUT_MS, &millis),
        };
        field_len(tag::REQUEST_BUNDLE, self.bundle_len) + timeout
    }

    /// The bytes from which a [`v1::ValidateRequest`] is read, in parts: what stands in `head`
    /// already and all but the blobs, then each blob.
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

/// A field of so many bytes, with what stands before them.
fn field_len(tag: u32, len: usize) -> usize {
    key_len(tag) + encoded_len_varint(len as u64) + len
}

/// What stands before the bytes of a field.
fn encode_field(tag: u32, len: usize, buffer: &mut impl BufMut) {
    encode_key(tag, WireType::LengthDelimited, buffer);
    encode_varint(len as u64, buffer);
}
