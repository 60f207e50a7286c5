//! Requests from the blobs where they lie.

use tandem_proto::{convert::OutgoingBlobRequest, wire::blob_validator::v1};
use tonic::{
    Status,
    codec::{Codec, EncodeBuf, Encoder},
};
use tonic_prost::{ProstCodec, ProstDecoder};

/// Writes [`OutgoingBlobRequest`]s and reads what answers them.
#[derive(Default)]
pub struct RequestCodec;

pub struct RequestEncoder;

impl Codec for RequestCodec {
    type Encode = OutgoingBlobRequest;
    type Decode = v1::ValidateResponse;
    type Encoder = RequestEncoder;
    type Decoder = ProstDecoder<v1::ValidateResponse>;

    fn encoder(&mut self) -> RequestEncoder {
        RequestEncoder
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<v1::ValidateRequest, v1::ValidateResponse>::default().decoder()
    }
}

impl Encoder for RequestEncoder {
    type Item = OutgoingBlobRequest;
    type Error = Status;

    fn encode(&mut self, item: Self::Item, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        // All at once: a buffer that grows copies what it holds.
        buffer.reserve(item.encoded_len());
        item.encode(buffer);
        Ok(())
    }
}
