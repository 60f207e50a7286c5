//! Watch over whether clients take their answers: an answer that a client does not read would
//! otherwise stay in this process for ever.

use crate::{connections::Connection, host::FRAME_BYTES, socket::Caller};
use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tonic::{
    Status,
    body::Body,
    codegen::{
        Body as HttpBody, Bytes, Service,
        http::{self, Uri},
    },
    server::NamedService,
};

/// Bytes of an answer that go to the connection at once. This is one frame, so that nothing is
/// split that goes on the wire as one.
const PIECE_BYTES: usize = FRAME_BYTES as usize;
/// Longest final piece that is sent whole. If it is longer, its last byte is sent by itself, and
/// can be handed over only when the client has room for all before it. So at most this much of a
/// finished answer lies unread in the connection.
const TAIL_BYTES: usize = 16 << 10;

/// Service whose answers are watched.
#[derive(Clone)]
pub struct UnreadWatch<S>(pub S);

impl<S: NamedService> NamedService for UnreadWatch<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for UnreadWatch<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Unpin,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = AnswerFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let caller = request.extensions().get::<Caller>();
        let connection = caller.and_then(|caller| caller.connection.clone());
        let connection = connection.map(|connection| (connection, request.uri().clone()));
        AnswerFuture { call: self.0.call(request), connection }
    }
}

/// Pending call.
pub struct AnswerFuture<F> {
    call: F,
    connection: Option<(Arc<Connection>, Uri)>,
}

impl<F> Future for AnswerFuture<F>
where
    F: Future<Output = Result<http::Response<Body>, Infallible>> + Unpin,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Ok(response) = ready!(Pin::new(&mut self.call).poll(context));
        let Some((connection, uri)) = self.connection.take() else {
            return Poll::Ready(Ok(response));
        };
        // A refusal has no body.
        if response.body().is_end_stream() {
            return Poll::Ready(Ok(response));
        }
        let answer = connection.begin_answer(uri);
        let watched =
            |body| Body::new(WatchedBody { body, rest: Bytes::new(), connection, answer });
        Poll::Ready(Ok(response.map(watched)))
    }
}

/// Body that tells its connection when it waits for the client.
struct WatchedBody {
    body: Body,
    /// Rest of a frame.
    rest: Bytes,
    connection: Arc<Connection>,
    answer: usize,
}

impl WatchedBody {
    /// Returns the next piece of the rest.
    fn piece(&mut self) -> Bytes {
        let bytes = match self.rest.len() {
            left if left > PIECE_BYTES => PIECE_BYTES,
            left if left > TAIL_BYTES => left - 1,
            left => left,
        };
        self.rest.split_to(bytes)
    }
}

impl HttpBody for WatchedBody {
    type Data = Bytes;
    type Error = Status;

    /// Called for more once the client has room for what was given before.
    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Status>>> {
        if self.rest.is_empty() {
            let frame = Pin::new(&mut self.body).poll_frame(context);
            match frame {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                other => {
                    self.connection.set_unread(self.answer, false);
                    return other;
                }
            }
        }
        self.connection.set_unread(self.answer, true);
        let piece = self.piece();
        Poll::Ready(Some(Ok(http_body::Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }
}

impl Drop for WatchedBody {
    fn drop(&mut self) {
        self.connection.finish_answer(self.answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connections::{Connections, ListenerLimits};
    use http_body_util::{BodyExt, Full};

    #[tokio::test]
    async fn a_large_answer_comes_in_pieces_the_last_byte_by_itself() {
        let connections = Connections::new("test", ListenerLimits::default());
        let slot = connections.admit("127.0.0.1:1".parse().unwrap()).unwrap();
        let sizes = [
            (100, vec![100]),
            (TAIL_BYTES, vec![TAIL_BYTES]),
            (PIECE_BYTES, vec![PIECE_BYTES - 1, 1]),
            (2 * PIECE_BYTES + 5, vec![PIECE_BYTES, PIECE_BYTES, 5]),
        ];
        for (size, want) in sizes {
            let bytes: Bytes = (0..size).map(|at| at as u8).collect();
            let connection = slot.connection().clone();
            let answer = connection.begin_answer(Uri::from_static("/a/b"));
            let body = Body::new(Full::new(bytes.clone()));
            let mut body = WatchedBody { body, rest: Bytes::new(), connection, answer };
            let mut pieces = Vec::new();
            while let Some(frame) = body.frame().await {
                pieces.push(frame.unwrap().into_data().unwrap());
            }
            assert_eq!(pieces.iter().map(Bytes::len).collect::<Vec<_>>(), want);
            assert_eq!(pieces.concat(), bytes);
        }
    }
}
