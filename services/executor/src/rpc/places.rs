//! Places of requests under way, and the bytes of answers until they are sent.

use super::budget::{Budget, Reservation};
use super::connection::{Answer, Connection, ConnectionPlace};
use super::pieces::Pieces;
use axum::body::Body;
use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The places of a port, and the bytes of the answers that wait to be sent.
pub(super) struct Places {
    in_flight: Arc<Semaphore>,
    answers: Arc<Budget>,
}

impl Places {
    pub(super) fn new(requests_max: usize, answers_bytes_max: u64) -> Self {
        let in_flight = Arc::new(Semaphore::new(requests_max));
        Self { in_flight, answers: Budget::new(answers_bytes_max) }
    }

    /// A place for a request of this connection, `None` when all are taken.
    pub(super) fn take(&self, connection: Option<&Arc<Connection>>) -> Option<Place> {
        let permit = self.in_flight.clone().try_acquire_owned().ok()?;
        self.with(permit, connection)
    }

    /// As [`Self::take`], when one is free.
    pub(super) async fn wait(&self, connection: Option<&Arc<Connection>>) -> Option<Place> {
        let permit = self.in_flight.clone().acquire_owned().await.ok()?;
        self.with(permit, connection)
    }

    fn with(
        &self,
        permit: OwnedSemaphorePermit,
        connection: Option<&Arc<Connection>>,
    ) -> Option<Place> {
        // One that has been given up ends before it could be answered.
        let connection = match connection {
            Some(connection) => Some(connection.place()?),
            None => None,
        };
        Some(Place { bytes: self.answers.reserve(), connection, _permit: permit })
    }
}

/// The place of one request.
pub(super) struct Place {
    /// Those of its answer.
    bytes: Reservation,
    /// That on its connection, where there is one.
    connection: Option<ConnectionPlace>,
    _permit: OwnedSemaphorePermit,
}

impl Place {
    /// Counts the answer, which is so long by now; false when there are too many bytes of answers.
    pub(super) fn grow_to(&mut self, bytes: usize) -> bool {
        self.bytes.grow_to(bytes)
    }

    /// The answer's body. The place is given back at once, so that callers that read slowly hold up
    /// no others; the answer's bytes count until they are sent.
    pub(super) fn send(self, bytes: impl AsRef<[u8]> + Send + 'static) -> Body {
        let answer = self.begin(bytes.as_ref().len());
        Body::from(Bytes::from_owner(Kept { bytes, _answer: answer, _kept: self.bytes }))
    }

    /// As [`Self::send`], and the place is kept until the answer is sent.
    pub(super) fn send_and_keep(self, bytes: impl AsRef<[u8]> + Send + 'static) -> Body {
        let len = bytes.as_ref().len();
        Body::from(self.keep(bytes, len))
    }

    /// A body that is made as it is sent, between `head` and `tail`, and keeps the place until it
    /// is: to make it is work.
    pub(super) fn send_pieces(self, head: Vec<u8>, pieces: Pieces, tail: &'static [u8]) -> Body {
        let len = head.len() + pieces.len() + tail.len();
        let tail = self.keep(tail, len);
        Body::new(pieces.into_body(head.into(), tail))
    }

    /// The last bytes of an answer of `len` bytes: they are dropped once they are sent.
    fn keep(self, bytes: impl AsRef<[u8]> + Send + 'static, len: usize) -> Bytes {
        Bytes::from_owner(Kept { bytes, _answer: self.begin(len), _kept: self })
    }

    fn begin(&self, len: usize) -> Option<Answer> {
        self.connection.as_ref().map(|connection| connection.answer(len as u64))
    }
}

/// Bytes on their way, and what is given back once they are sent.
struct Kept<T, K> {
    bytes: T,
    _answer: Option<Answer>,
    _kept: K,
}

impl<T: AsRef<[u8]>, K> AsRef<[u8]> for Kept<T, K> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}
