//! Limit on the memory of arriving messages. The service bounds the sidecars that it holds.
//! Arriving ones, many at a time and megabytes each, are bounded here. A message counts from the
//! moment its length is known until the service has it. A sidecar that the queue has no room for is
//! refused at that moment: reading it would only keep the thread from serving others.

use super::server::refusal;
use crate::{
    admission::{Admission, Gate},
    metrics as names,
};
use bytes::Bytes;
use http_body::Frame;
use metrics::counter;
use std::{
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tandem_blob_validator_client::VALIDATE;
use tandem_proto::{
    blob_validator::{BLOB_BYTES, BlobApi, Error},
    limits::BLOB_MESSAGE_BYTES_MAX,
};
use tonic::{
    Status,
    body::Body,
    codegen::{Body as HttpBody, Service, http},
    server::NamedService,
};

/// Time after which some of the arriving messages should have arrived.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// gRPC service whose messages are counted while they arrive.
#[derive(Clone)]
pub struct Incoming<S> {
    service: S,
    api: Arc<dyn BlobApi>,
    gate: Gate,
}

impl<S> Incoming<S> {
    /// Admits at most `bytes_max` arriving bytes to `service`, which makes calls of `api`.
    pub fn new(service: S, api: Arc<dyn BlobApi>, bytes_max: usize) -> Self {
        Self { service, api, gate: Gate::new(bytes_max) }
    }
}

impl<S: NamedService> NamedService for Incoming<S> {
    const NAME: &'static str = S::NAME;
}

impl<S: Service<http::Request<Body>>> Service<http::Request<Body>> for Incoming<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> S::Future {
        // A stream goes on after a refusal, so its answers refuse its messages.
        let queue = (request.uri().path() == VALIDATE).then(|| self.api.clone());
        let meter = Meter::new(self.gate.clone(), queue);
        self.service.call(request.map(|inner| Body::new(Metered { inner, meter })))
    }
}

/// Body of a call, read through a [`Meter`].
struct Metered {
    inner: Body,
    meter: Meter,
}

impl HttpBody for Metered {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        let Some(frame) = ready!(Pin::new(&mut this.inner).poll_frame(context)) else {
            return Poll::Ready(None);
        };
        let frame = frame?;
        if let Some(data) = frame.data_ref() {
            this.meter.read(data)?;
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }
}

/// Parser that follows the messages in a body. Each is a byte, its length in four more, and its
/// content (gRPC over HTTP/2, "Length-Prefixed-Message").
struct Meter {
    gate: Gate,
    /// API to ask for room, if each message is a sidecar for the queue.
    queue: Option<Arc<dyn BlobApi>>,
    header: [u8; 5],
    /// Number of header bytes received.
    header_len: usize,
    /// Bytes of the message still to come.
    missing: usize,
    /// Admission of the message that is arriving, or arrived last.
    admission: Option<Admission>,
}

impl Meter {
    fn new(gate: Gate, queue: Option<Arc<dyn BlobApi>>) -> Self {
        Self { gate, queue, header: [0; 5], header_len: 0, missing: 0, admission: None }
    }

    fn read(&mut self, mut data: &[u8]) -> Result<(), Status> {
        while !data.is_empty() {
            let skipped = self.missing.min(data.len());
            self.missing -= skipped;
            data = &data[skipped..];
            if self.missing > 0 {
                break;
            }
            let taken = (self.header.len() - self.header_len).min(data.len());
            let (start, rest) = data.split_at(taken);
            self.header[self.header_len..][..taken].copy_from_slice(start);
            self.header_len += taken;
            data = rest;
            if self.header_len == self.header.len() {
                self.begin()?;
            }
        }
        Ok(())
    }

    /// Begins a message of known length.
    fn begin(&mut self) -> Result<(), Status> {
        let [_, length @ ..] = mem::take(&mut self.header);
        self.header_len = 0;
        self.missing = u32::from_be_bytes(length) as usize;
        // The message before belongs to the service by now.
        self.admission = None;
        if self.missing > BLOB_MESSAGE_BYTES_MAX {
            // Its reader refuses it before a byte of it is kept.
            return Ok(());
        }
        if let Some(error) = self.queue.as_ref().and_then(|q| q.refuse(self.missing / BLOB_BYTES)) {
            return Err(refusal(error));
        }
        self.admission = self.gate.admit_bytes(self.missing);
        if self.admission.is_none() {
            counter!(names::OVERLOADED).increment(1);
            return Err(refusal(Error::Overloaded { retry_after: RETRY_AFTER }));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    fn message(length: u32, there: usize) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend(length.to_be_bytes());
        bytes.resize(bytes.len() + there, 1);
        bytes
    }

    #[test]
    fn a_message_counts_before_its_bytes_are_there_and_until_the_next_begins() {
        let gate = Gate::new(100);
        let (mut one, mut two) = (Meter::new(gate.clone(), None), Meter::new(gate.clone(), None));
        one.read(&message(60, 0)).unwrap();
        let refused = two.read(&message(41, 0)).unwrap_err();
        assert_eq!(Error::from(refused), Error::Overloaded { retry_after: RETRY_AFTER });
        one.read(&[1; 60]).unwrap();
        one.read(&message(30, 5)).unwrap();
        let mut three = Meter::new(gate.clone(), None);
        three.read(&message(70, 0)).unwrap();
        drop(three);
        drop(one);
        assert!(gate.admit_bytes(100).is_some(), "all is given back");
    }

    #[test]
    fn what_is_longer_than_any_message_takes_no_room() {
        let gate = Gate::new(100);
        Meter::new(gate.clone(), None).read(&message(u32::MAX, 10)).unwrap();
        assert!(gate.admit_bytes(100).is_some());
    }

    proptest! {
        /// Checks that all messages are seen, however the bytes are cut.
        #[test]
        fn messages_are_followed_over_any_cuts(
            lengths in vec(0..40usize, 0..10), cuts in vec(1..9usize, 1..20),
        ) {
            let body: Vec<_> =
                lengths.iter().flat_map(|&length| message(length as u32, length)).collect();
            let gate = Gate::new(40);
            let mut meter = Meter::new(gate.clone(), None);
            let (mut rest, mut cuts) = (&body[..], cuts.iter().cycle());
            while !rest.is_empty() {
                let (start, end) = rest.split_at(rest.len().min(*cuts.next().unwrap()));
                meter.read(start).unwrap();
                rest = end;
            }
            prop_assert_eq!((meter.missing, meter.header_len), (0, 0));
            let last = lengths.last().copied().unwrap_or(0);
            prop_assert!(gate.admit_bytes(40 - last).is_some());
            prop_assert!(last == 0 || gate.admit_bytes(41 - last).is_none());
        }
    }
}
