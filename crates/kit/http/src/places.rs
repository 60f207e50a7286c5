//! Places of running requests, and the bytes of answers until they are sent.

use crate::budget::{Budget, Reservation};
use crate::connection::{Answer, Connection, ConnectionPlace};
use crate::pieces::Pieces;
use axum::body::Body;
use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Places of a port, and the bytes of the answers that wait to be sent.
pub(crate) struct Places {
    in_flight: Arc<Semaphore>,
    answers: Arc<Budget>,
}

impl Places {
    pub(crate) fn new(requests_max: usize, answers_bytes_max: u64) -> Self {
        let in_flight = Arc::new(Semaphore::new(requests_max));
        Self { in_flight, answers: Budget::new(answers_bytes_max) }
    }

    /// Returns a place for a request of this connection, or `None` if all are taken.
    pub(crate) fn take(&self, connection: Option<&Arc<Connection>>) -> Option<Place> {
        let permit = self.in_flight.clone().try_acquire_owned().ok()?;
        self.with(permit, connection)
    }

    /// Waits for a free place, otherwise like [`Self::take`].
    pub(crate) async fn wait(&self, connection: Option<&Arc<Connection>>) -> Option<Place> {
        let permit = self.in_flight.clone().acquire_owned().await.ok()?;
        self.with(permit, connection)
    }

    fn with(
        &self,
        permit: OwnedSemaphorePermit,
        connection: Option<&Arc<Connection>>,
    ) -> Option<Place> {
        // A given-up connection ends before it could be answered.
        let connection = match connection {
            Some(connection) => Some(connection.place()?),
            None => None,
        };
        Some(Place { bytes: self.answers.reserve(), connection, _permit: permit })
    }
}

/// Place of one request.
pub(crate) struct Place {
    /// Bytes of its answer.
    bytes: Reservation,
    /// Place on its connection, if there is one.
    connection: Option<ConnectionPlace>,
    _permit: OwnedSemaphorePermit,
}

impl Place {
    /// Counts the answer, which has `bytes` bytes so far. Returns false if there are too many bytes
    /// of answers.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> bool {
        self.bytes.grow_to(bytes)
    }

    /// Returns the answer's body. The place is released at once, so that slow readers block no
    /// other callers. The answer's bytes count until they are sent.
    pub(crate) fn send(self, bytes: impl AsRef<[u8]> + Send + 'static) -> Body {
        let answer = self.begin(bytes.as_ref().len());
        Body::from(Bytes::from_owner(Kept { bytes, _answer: answer, _kept: self.bytes }))
    }

    /// Returns the answer's body like [`Self::send`], but keeps the place until the answer is sent.
    pub(crate) fn send_and_keep(self, bytes: impl AsRef<[u8]> + Send + 'static) -> Body {
        let len = bytes.as_ref().len();
        Body::from(self.keep(bytes, len))
    }

    /// Returns a body that is made while sending, between `head` and `tail`. It keeps the place
    /// until it is sent, because making it is work.
    pub(crate) fn send_pieces(self, head: Vec<u8>, pieces: Pieces, tail: &'static [u8]) -> Body {
        let len = head.len() + pieces.byte_len() + tail.len();
        let tail = self.keep(tail, len);
        Body::new(pieces.into_body(head.into(), tail))
    }

    /// Returns the last bytes of an answer of `len` bytes: they are dropped once they are sent.
    fn keep(self, bytes: impl AsRef<[u8]> + Send + 'static, len: usize) -> Bytes {
        Bytes::from_owner(Kept { bytes, _answer: self.begin(len), _kept: self })
    }

    fn begin(&self, len: usize) -> Option<Answer> {
        self.connection.as_ref().map(|connection| connection.answer(len as u64))
    }
}

/// Bytes being sent, and the resources that are released once they are sent.
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
