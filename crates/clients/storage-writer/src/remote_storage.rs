//! One call over the connection of a client.

use super::client::ClientConfig;
use crate::metrics as names;
use metrics::{counter, histogram};
use prost::Message;
use std::time::{Duration, Instant};
use tandem_primitives::Bytes;
use tandem_proto::{
    limits::STORAGE_MESSAGE_BYTES_MAX,
    storage::{Error, Result},
    wire::storage_writer::v1::storage_writer_client::StorageWriterClient,
};
use tandem_rpc::{CallError, CallPolicy, ClientConnection, set_traceparent};
use tandem_telemetry::traceparent;
use tonic::{Code, Request, Status, transport::Channel};
use tracing::Span;

/// Generated client that makes the calls.
pub type Calls = StorageWriterClient<Channel>;

/// Connection of a client, with its settings.
pub struct RemoteStorage {
    pub config: ClientConfig,
    pub connection: ClientConnection<Channel>,
}

/// Settings of one call.
#[derive(Clone, Copy)]
pub struct CallOptions {
    name: &'static str,
    timeout: Duration,
    retry: bool,
    /// Whether the caller's span continues at the server.
    traced: bool,
}

impl CallOptions {
    /// Returns these settings for a call in which the caller's span continues, if it has one.
    pub fn traced(self) -> Self {
        Self { traced: true, ..self }
    }

    /// Returns these settings with another longest wait.
    pub fn within(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Returns these settings for a call of which this time has passed already.
    pub fn after(self, passed: Duration) -> Self {
        Self { timeout: self.timeout.saturating_sub(passed), ..self }
    }

    /// Returns these settings without a retry after a loss.
    pub fn once(self) -> Self {
        Self { retry: false, ..self }
    }
}

impl ClientConfig {
    pub(super) fn read(&self, name: &'static str) -> CallOptions {
        let timeout = Duration::from_millis(self.read_ms_max);
        CallOptions { name, timeout, retry: true, traced: false }
    }

    /// Returns the settings of a call that is useful only within a given time.
    pub(super) fn renewal(&self, name: &'static str, timeout: Duration) -> CallOptions {
        CallOptions { name, timeout, retry: false, traced: false }
    }

    pub(super) fn write(&self, name: &'static str) -> CallOptions {
        let timeout = Duration::from_millis(self.write_ms_max);
        CallOptions { name, timeout, retry: true, traced: true }
    }
}

impl RemoteStorage {
    /// Makes a call directly, if that is possible. Blocks the thread.
    pub fn call_directly<R: Message, A: Message + Default>(
        &self,
        CallOptions { name, timeout, traced, .. }: CallOptions,
        method: &'static str,
        request: &R,
    ) -> Option<A> {
        let started = Instant::now();
        let context = if traced { traceparent(&Span::current()) } else { None };
        // A vector has room for everything.
        let write = |buffer: &mut Vec<u8>| {
            buffer.reserve(request.encoded_len());
            let _ = request.encode(buffer);
        };
        let answer = self.connection.direct().call(method, context.as_deref(), timeout, write)?;
        // One that cannot be read is asked for once more, for the error.
        let answer = A::decode(Bytes::from(answer)).ok()?;
        histogram!(names::CLIENT_SECONDS, "call" => name).record(started.elapsed());
        Some(answer)
    }

    /// Makes a call with `send`, at most twice.
    ///
    /// # Errors
    /// [`Error::Refused`] also when the request is larger than a message may be.
    pub async fn call<R: Message + Clone, A, F>(
        &self,
        options: CallOptions,
        request: R,
        send: impl Fn(Calls, Request<R>) -> F,
    ) -> Result<A>
    where
        F: Future<Output = Result<A, Status>>,
    {
        let CallOptions { name, timeout, retry, traced } = options;
        let bytes = request.encoded_len();
        if bytes > STORAGE_MESSAGE_BYTES_MAX {
            return Err(Error::Refused(format!(
                "{name}: {bytes} bytes, a message has at most {STORAGE_MESSAGE_BYTES_MAX}"
            )));
        }
        let started = Instant::now();
        let reconnect_wait = Duration::from_millis(self.config.reconnect_wait_ms);
        let policy = CallPolicy { deadline: started + timeout, reconnect_wait, retry };
        let context = if traced { traceparent(&Span::current()) } else { None };
        let answer = self.connection.call(policy, |channel, left| {
            let mut request = Request::new(request.clone());
            request.set_timeout(left);
            if let Some(context) = &context {
                set_traceparent(&mut request, context);
            }
            let calls = Calls::new(channel)
                .max_decoding_message_size(STORAGE_MESSAGE_BYTES_MAX)
                .max_encoding_message_size(STORAGE_MESSAGE_BYTES_MAX);
            send(calls, request)
        });
        let answer = answer.await;
        histogram!(names::CLIENT_SECONDS, "call" => name).record(started.elapsed());
        answer.map_err(|error| match error {
            CallError::NotConnected => Error::Unavailable("no connection".to_owned()),
            CallError::Lost(status) => {
                Error::Unavailable(format!("the connection went: {}", status.message()))
            }
            // A cancelled call past its deadline is a timeout, whether the server, the connection
            // or the caller noticed it first.
            CallError::Status(status)
                if status.code() != Code::Cancelled || Instant::now() < policy.deadline =>
            {
                status.into()
            }
            CallError::Status(_) | CallError::DeadlineExceeded => {
                counter!(names::CLIENT_TIMEOUTS).increment(1);
                Error::Unavailable("no answer in time".to_owned())
            }
        })
    }
}
