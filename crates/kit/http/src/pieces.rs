//! Results that are made while sending. An answer with 128 blobs has 34 MB of text, which is never
//! in memory as a whole.

use crate::error::RpcError;
use crate::methods::Answer;
use axum::body::HttpBody;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use serde_json::value::RawValue;
use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

/// JSON of a result, in pieces.
pub struct Pieces {
    /// Bytes of all pieces.
    len: usize,
    pieces: Box<dyn Iterator<Item = Bytes> + Send>,
}

impl fmt::Debug for Pieces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pieces").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Pieces {
    /// Creates a result from pieces that together form one JSON value of `len` bytes. Each piece is
    /// made when it can be sent. Making one must take less time than a socket thread may be blocked
    /// (0.5 ms).
    pub fn new(len: usize, pieces: impl Iterator<Item = Bytes> + Send + 'static) -> Self {
        Self { len, pieces: Box::new(pieces) }
    }

    /// Returns the bytes of all pieces.
    pub fn byte_len(&self) -> usize {
        self.len
    }

    /// Collects all pieces in one text. Takes a while for a long one.
    ///
    /// # Errors
    /// -32603 if the text is not JSON.
    pub fn collect(self) -> Answer {
        let mut text = Vec::with_capacity(self.len);
        self.pieces.for_each(|piece| text.extend_from_slice(&piece));
        let text = String::from_utf8(text).map_err(|_| RpcError::internal())?;
        RawValue::from_string(text).map_err(|_| RpcError::internal())
    }

    /// Returns the body of an HTTP response: the result between `head` and `tail`.
    pub(crate) fn into_body(self, head: Bytes, tail: Bytes) -> PiecesBody {
        let left = (head.len() + self.len + tail.len()) as u64;
        let head = std::iter::once(head);
        let pieces = Box::new(head.chain(self.pieces).chain(std::iter::once(tail)));
        PiecesBody { left, pieces, rests: false }
    }
}

/// Response body of known length.
pub(crate) struct PiecesBody {
    left: u64,
    pieces: Box<dyn Iterator<Item = Bytes> + Send>,
    /// Whether to let other tasks run before the next piece.
    rests: bool,
}

impl HttpBody for PiecesBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        // Without this pause, a fast reader would occupy this thread until all pieces are made.
        if std::mem::take(&mut self.rests) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let Some(piece) = self.pieces.next() else { return Poll::Ready(None) };
        self.rests = true;
        self.left = self.left.saturating_sub(piece.len() as u64);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
