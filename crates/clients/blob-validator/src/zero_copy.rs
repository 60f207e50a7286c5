//! Requests sent directly from the memory of their blobs. The codec of a generated client would
//! copy all blobs into one buffer first.

use bytes::{BufMut, Bytes, BytesMut};
use http_body::{Frame, SizeHint};
use std::{
    pin::Pin,
    task::{Context, Poll},
    vec,
};
use tandem_proto::{convert::OutgoingBlobRequest, wire::blob_validator::v1};
use tonic::{
    Status,
    body::Body,
    codec::{Codec, EncodeBuf, Encoder},
    codegen::{Body as HttpBody, Service, http},
    transport::Channel,
};
use tonic_prost::{ProstCodec, ProstDecoder};

/// Bytes before a message: that it is not compressed, and its length (gRPC over HTTP/2,
/// "Length-Prefixed-Message").
const PREFIX_LEN: usize = 5;

/// Channel that sends one request with its own body, in place of the body it is given.
pub struct ZeroCopyChannel {
    channel: Channel,
    body: ZeroCopyBody,
}

impl ZeroCopyChannel {
    /// Makes a channel over `channel` for a message of `len` bytes.
    pub fn new(channel: Channel, request: OutgoingBlobRequest, len: u32) -> Self {
        let mut head = BytesMut::with_capacity(PREFIX_LEN);
        head.put_u8(0);
        head.put_u32(len);
        let body = ZeroCopyBody {
            left: PREFIX_LEN as u64 + u64::from(len),
            parts: request.into_parts(head).into_iter(),
        };
        Self { channel, body }
    }
}

impl Service<http::Request<Body>> for ZeroCopyChannel {
    type Response = <Channel as Service<http::Request<Body>>>::Response;
    type Error = <Channel as Service<http::Request<Body>>>::Error;
    type Future = <Channel as Service<http::Request<Body>>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.channel.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let body = std::mem::take(&mut self.body);
        self.channel.call(request.map(|_| Body::new(body)))
    }
}

/// Message in parts.
#[derive(Default)]
struct ZeroCopyBody {
    parts: vec::IntoIter<Bytes>,
    /// Bytes of the parts still to come.
    left: u64,
}

impl HttpBody for ZeroCopyBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let part = self.parts.next();
        self.left -= part.as_ref().map_or(0, |part| part.len() as u64);
        Poll::Ready(part.map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.parts.len() == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// Codec that writes nothing, because [`ZeroCopyChannel`] has the message, and reads the answer.
#[derive(Default)]
pub struct AnswerCodec;

pub struct NoEncoder;

impl Codec for AnswerCodec {
    type Encode = ();
    type Decode = v1::ValidateResponse;
    type Encoder = NoEncoder;
    type Decoder = ProstDecoder<v1::ValidateResponse>;

    fn encoder(&mut self) -> NoEncoder {
        NoEncoder
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<v1::ValidateRequest, v1::ValidateResponse>::default().decoder()
    }
}

impl Encoder for NoEncoder {
    type Item = ();
    type Error = Status;

    fn encode(&mut self, _item: (), _buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        Ok(())
    }
}
