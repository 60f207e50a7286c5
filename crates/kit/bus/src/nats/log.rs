//! Logs: streams of JetStream that one writer at a time extends.
//!
//! An append names the number of the last message. The server refuses it if another writer was
//! faster, so the messages of two writers never interleave. One append is under way at a time.
//!
//! A reader asks for messages by their numbers. It makes no consumer, because the server would let a
//! consumer deliver to any subject, past the permissions of its user.

use super::ANSWER_MAX;
use async_nats::{
    Client,
    connection::State,
    header::HeaderMap,
    jetstream::{
        ContextBuilder,
        context::{CreateStreamErrorKind, PublishErrorKind},
        message::{PublishMessage, StreamMessage},
        stream::{
            Config, DirectGetErrorKind, DiscardPolicy, LastRawMessageErrorKind, RetentionPolicy,
            StorageType, Stream,
        },
    },
};
use bytes::Bytes;
use std::{fmt::Display, time::Duration};
use tokio::sync::watch;
use tracing::{info, warn};

/// Header with the note of a message.
const NOTE: &str = "Tandem-Note";

/// Bytes of a message that its headers may take.
const HEADERS_BYTES: usize = 1 << 10;

/// Description of a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogOptions {
    /// Name of the stream: letters, digits, `-` and `_`.
    pub name: &'static str,
    /// Its only subject.
    pub subject: String,
    /// Number of servers that have a copy: 1, 3 or 5.
    pub replicas: usize,
    /// Maximum bytes; the oldest messages go first.
    pub bytes_max: u64,
    /// Maximum age of a message.
    pub age_max: Duration,
}

/// Reason why a log cannot be used now.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LogError {
    /// There is no connection, or no NATS at all.
    #[error("no connection to NATS")]
    NoConnection,
    /// The stream does not exist.
    #[error("NATS has no stream `{0}`")]
    Missing(&'static str),
    /// The stream has other subjects, so it belongs to another chain.
    #[error("stream `{name}` has the subjects {found:?}, expected only `{expected}`")]
    OtherSubjects {
        /// Name of the stream.
        name: &'static str,
        /// Its subjects.
        found: Vec<String>,
        /// Subject of this log.
        expected: String,
    },
    /// Another writer appended a message.
    #[error("another writer has appended to the stream")]
    Overtaken,
    /// The server does not take so large a message.
    #[error("a message of {bytes} bytes is too large for NATS, whose `max_payload` is {max}")]
    TooLarge {
        /// Size of the payload.
        bytes: usize,
        /// Limit of the server.
        max: usize,
    },
    /// The server refused the request, or did not answer in time.
    #[error("JetStream: {0}")]
    Server(String),
}

/// Message of a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogMessage {
    /// Number in the log.
    pub sequence: u64,
    /// Text of the writer about the message; empty if there is none.
    pub note: String,
    /// Payload.
    pub payload: Bytes,
}

/// Numbers of the messages that a log holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogBounds {
    /// Number of the oldest message, 0 in a log that never had one.
    pub first: u64,
    /// Number of the newest message ever, which may have gone.
    pub last: u64,
    /// Number of messages.
    pub messages: u64,
}

/// Open log. It stays usable through reconnects.
#[derive(Clone, Debug)]
pub struct Log {
    stream: Stream<()>,
    context: async_nats::jetstream::Context,
    client: Client,
    name: &'static str,
    subject: String,
}

fn server(error: &dyn Display) -> LogError {
    LogError::Server(error.to_string())
}

/// Returns the client if it is connected. Otherwise it would keep requests and send them late.
fn connected(client: &watch::Receiver<Option<Client>>) -> Result<Client, LogError> {
    let client = client.borrow().clone();
    let connected = client.filter(|client| client.connection_state() == State::Connected);
    connected.ok_or(LogError::NoConnection)
}

/// Opens a log that exists.
pub async fn find(
    client: &watch::Receiver<Option<Client>>,
    name: &'static str,
    subject: String,
) -> Result<Log, LogError> {
    let log = Log::over(connected(client)?, name, subject).await?;
    let config = log.info().await?.config;
    log.check(&config)?;
    Ok(log)
}

/// Opens a log, and makes it if it is missing.
pub async fn open(
    client: &watch::Receiver<Option<Client>>,
    options: &LogOptions,
) -> Result<Log, LogError> {
    let log = Log::over(connected(client)?, options.name, options.subject.clone()).await?;
    let config = match log.info().await {
        Ok(info) => info.config,
        Err(LogError::Missing(_)) => {
            info!(stream = options.name, replicas = options.replicas, "making a stream in NATS");
            let made = log.context.create_stream(config(options)).await;
            made.map_err(|error| match error.kind() {
                CreateStreamErrorKind::JetStreamUnavailable => {
                    LogError::Server("it is not enabled, or not permitted".to_owned())
                }
                _ => server(&error),
            })?
            .cached_info()
            .config
            .clone()
        }
        Err(error) => return Err(error),
    };
    log.check(&config)?;
    if config.num_replicas != options.replicas {
        let (stream, found, expected) = (options.name, config.num_replicas, options.replicas);
        warn!(stream, found, expected, "the stream has another number of copies than configured");
    }
    Ok(log)
}

fn config(options: &LogOptions) -> Config {
    Config {
        name: options.name.to_owned(),
        description: Some("Blocks of Tandem".to_owned()),
        subjects: vec![options.subject.clone()],
        retention: RetentionPolicy::Limits,
        discard: DiscardPolicy::Old,
        storage: StorageType::File,
        max_bytes: i64::try_from(options.bytes_max).unwrap_or(i64::MAX),
        max_messages: -1,
        max_messages_per_subject: -1,
        max_consumers: -1,
        max_age: options.age_max,
        num_replicas: options.replicas,
        allow_direct: true,
        ..Config::default()
    }
}

impl Log {
    async fn over(client: Client, name: &'static str, subject: String) -> Result<Self, LogError> {
        let context =
            ContextBuilder::new().timeout(ANSWER_MAX).ack_timeout(ANSWER_MAX).build(client.clone());
        let stream = context.get_stream_no_info(name).await.map_err(|error| server(&error))?;
        Ok(Self { stream, context, client, name, subject })
    }

    async fn info(&self) -> Result<async_nats::jetstream::stream::Info, LogError> {
        use async_nats::jetstream::{ErrorCode, context::GetStreamErrorKind};
        match self.context.get_stream(self.name).await {
            Ok(stream) => Ok(stream.cached_info().clone()),
            Err(error) => Err(match error.kind() {
                GetStreamErrorKind::JetStream(error)
                    if error.error_code() == ErrorCode::STREAM_NOT_FOUND =>
                {
                    LogError::Missing(self.name)
                }
                _ => server(&error),
            }),
        }
    }

    fn check(&self, config: &Config) -> Result<(), LogError> {
        if config.subjects == [self.subject.as_str()] {
            return Ok(());
        }
        Err(LogError::OtherSubjects {
            name: self.name,
            found: config.subjects.clone(),
            expected: self.subject.clone(),
        })
    }

    /// Returns the numbers of the messages in the log, from the server that leads it.
    ///
    /// # Errors
    /// [`LogError::Missing`], [`LogError::Server`].
    pub async fn bounds(&self) -> Result<LogBounds, LogError> {
        let state = self.info().await?.state;
        let (first, last) = (state.first_sequence, state.last_sequence);
        Ok(LogBounds { first, last, messages: state.messages })
    }

    /// Returns the number of the newest message, and the message if it is still there. The server
    /// that leads the log answers, so nothing older can come back later.
    ///
    /// # Errors
    /// [`LogError::Missing`], [`LogError::Server`].
    pub async fn last(&self) -> Result<(u64, Option<LogMessage>), LogError> {
        let LogBounds { last, messages, .. } = self.bounds().await?;
        if messages == 0 {
            return Ok((last, None));
        }
        match self.stream.get_raw_message(last).await {
            Ok(message) => Ok((last, Some(message.into()))),
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => {
                Ok((last, None))
            }
            Err(error) => Err(server(&error)),
        }
    }

    /// Returns the message with this number, `None` if it has not come yet or has gone. Any server
    /// with a copy may answer.
    ///
    /// # Errors
    /// [`LogError::Server`].
    pub async fn read(&self, sequence: u64) -> Result<Option<LogMessage>, LogError> {
        match self.stream.direct_get(sequence).await {
            Ok(message) => Ok(Some(message.into())),
            Err(error) if error.kind() == DirectGetErrorKind::NotFound => Ok(None),
            Err(error) => Err(server(&error)),
        }
    }

    /// Returns the largest payload that an append may have now.
    pub fn payload_bytes_max(&self) -> usize {
        self.client.max_payload().saturating_sub(HEADERS_BYTES)
    }

    /// Appends the message after the one with the number `last`, and waits until a majority of the
    /// copies has it. Returns its number. `id` is unique to the message, so the server stores it once
    /// even if it comes twice.
    ///
    /// The next message must wait for this answer. Otherwise the server would take it after another
    /// writer's message, whose number this one was to have.
    ///
    /// # Errors
    /// [`LogError::Overtaken`], [`LogError::NoConnection`], [`LogError::TooLarge`],
    /// [`LogError::Server`]. The message may be there after all if the answer did not come in time.
    pub async fn append(
        &self,
        last: u64,
        id: &str,
        note: &str,
        payload: Bytes,
    ) -> Result<u64, LogError> {
        if self.client.connection_state() != State::Connected {
            return Err(LogError::NoConnection);
        }
        let (bytes, max) = (payload.len(), self.payload_bytes_max());
        if bytes > max {
            return Err(LogError::TooLarge { bytes, max });
        }
        let message = PublishMessage::build()
            .header(NOTE, note)
            .message_id(id)
            .expected_stream(self.name)
            .expected_last_sequence(last)
            .payload(payload);
        let sent = self.context.send_publish(self.subject.clone(), message).await;
        match sent.map_err(|error| server(&error))?.await {
            Ok(ack) if ack.sequence == last + 1 => Ok(ack.sequence),
            Ok(_) => Err(LogError::Overtaken),
            Err(error) if error.kind() == PublishErrorKind::WrongLastSequence => {
                Err(LogError::Overtaken)
            }
            Err(error) => Err(server(&error)),
        }
    }
}

impl From<StreamMessage> for LogMessage {
    fn from(message: StreamMessage) -> Self {
        let StreamMessage { sequence, headers, payload, .. } = message;
        Self { sequence, note: note(&headers), payload }
    }
}

fn note(headers: &HeaderMap) -> String {
    headers.get(NOTE).map(|value| value.as_str().to_owned()).unwrap_or_default()
}
