//! Requests from the blobs where they lie: the codec of a generated client would copy all of them
//! into one buffer first.

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

/// What stands before a message: that it is not compressed, and its length (gRPC over HTTP/2,
/// "Length-Prefixed-Message").
const PREFIX_LEN: usize = 5;

/// A channel that sends one request, with the body that it has rather than with the one it is given.
pub struct Gathering {
    channel: Channel,
    body: Gathered,
}

impl Gathering {
    /// Over `channel`; the message has `len` bytes.
    pub fn new(channel: Channel, request: OutgoingBlobRequest, len: u32) -> Self {
        let mut head = BytesMut::with_capacity(PREFIX_LEN);
        head.put_u8(0);
        head.put_u32(len);
        let body = Gathered {
            left: PREFIX_LEN as u64 + u64::from(len),
            parts: request.into_parts(head).into_iter(),
        };
        Self { channel, body }
    }
}

impl Service<http::Request<Body>> for Gathering {
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

/// A message in parts.
#[derive(Default)]
struct Gathered {
    parts: vec::IntoIter<Bytes>,
    /// Bytes of those to come.
    left: u64,
}

impl HttpBody for Gathered {
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

/// Writes nothing, because [`Gathering`] has the message, and reads what answers it.
#[derive(Default)]
pub struct AnswerCodec;

pub struct Nothing;

impl Codec for AnswerCodec {
    type Encode = ();
    type Decode = v1::ValidateResponse;
    type Encoder = Nothing;
    type Decoder = ProstDecoder<v1::ValidateResponse>;

    fn encoder(&mut self) -> Nothing {
        Nothing
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<v1::ValidateRequest, v1::ValidateResponse>::default().decoder()
    }
}

impl Encoder for Nothing {
    type Item = ();
    type Error = Status;

    fn encode(&mut self, _item: (), _buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        Ok(())
    }
}
