//! Settings of the stream.

use crate::Error;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tandem_bus::LogOptions;
use tandem_primitives::B256;
use tandem_proto::feed_log::{FEED_STREAM, feed_subject};

/// Smallest limit on the bytes of a stream: a large block must fit beside others.
const BYTES_MIN: u64 = 128 << 20;

/// Longest wait of a forkchoice that can be configured. A consensus client gives up long before.
const ACK_WAIT_MS_MAX: u64 = 60_000;

/// Stream to which the feed is published.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FeedStream {
    /// None. Followers read the feed over gRPC only.
    #[default]
    None,
    /// A stream of JetStream in NATS.
    JetStream,
}

/// Acknowledgement for which a forkchoice waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FeedAcks {
    /// That of the own database.
    #[default]
    Leader,
    /// That of the stream too.
    Stream,
}

/// Settings of the published feed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FeedConfig {
    /// Stream to which the canonical blocks are published.
    pub stream: FeedStream,
    /// Acknowledgement for which a forkchoice waits.
    pub acks: FeedAcks,
    /// Longest wait of a forkchoice for the stream, in milliseconds. It fails after that.
    pub ack_wait_ms: u64,
    /// Number of NATS servers that have a copy of the stream: 1, 3 or 5.
    pub replicas: usize,
    /// Maximum bytes of the stream. The oldest blocks go first.
    pub bytes_max: u64,
    /// Maximum age of a block in the stream, in seconds.
    pub age_seconds_max: u64,
}

impl Default for FeedConfig {
    fn default() -> Self {
        Self {
            stream: FeedStream::None,
            acks: FeedAcks::Leader,
            ack_wait_ms: 2_000,
            replicas: 1,
            bytes_max: 1 << 30,
            age_seconds_max: 7 * 24 * 3600,
        }
    }
}

impl FeedConfig {
    /// Returns whether the feed is published.
    pub fn is_published(&self) -> bool {
        self.stream != FeedStream::None
    }

    /// Returns how long a forkchoice waits for the stream, `None` if it does not.
    pub(crate) fn ack_wait(&self) -> Option<Duration> {
        (self.acks == FeedAcks::Stream).then(|| Duration::from_millis(self.ack_wait_ms))
    }

    /// Refuses settings that contradict each other.
    ///
    /// # Errors
    /// [`Error::FeedConfig`].
    pub(crate) fn check(&self) -> Result<(), Error> {
        let refuse = |text: String| Err(Error::FeedConfig(text));
        if self.acks == FeedAcks::Stream && !self.is_published() {
            return refuse("`acks = \"stream\"` needs `stream = \"jetstream\"`".to_owned());
        }
        if !matches!(self.replicas, 1 | 3 | 5) {
            let replicas = self.replicas;
            return refuse(format!("invalid value {replicas} for `replicas`; expected 1, 3 or 5"));
        }
        if !(1..=ACK_WAIT_MS_MAX).contains(&self.ack_wait_ms) {
            let wait = self.ack_wait_ms;
            return refuse(format!(
                "invalid value {wait} for `ack_wait_ms`; expected 1 to {ACK_WAIT_MS_MAX}"
            ));
        }
        if self.bytes_max < BYTES_MIN {
            let bytes = self.bytes_max;
            return refuse(format!(
                "invalid value {bytes} for `bytes_max`; expected {BYTES_MIN} or more"
            ));
        }
        Ok(())
    }

    /// Returns the description of the stream of a chain.
    pub(crate) fn log(&self, genesis: B256) -> LogOptions {
        LogOptions {
            name: FEED_STREAM,
            subject: feed_subject(genesis),
            replicas: self.replicas,
            bytes_max: self.bytes_max,
            age_max: Duration::from_secs(self.age_seconds_max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_are_named() {
        let good = FeedConfig { stream: FeedStream::JetStream, ..FeedConfig::default() };
        assert!(FeedConfig::default().check().is_ok() && good.check().is_ok());
        for (wrong, text) in [
            (FeedConfig { acks: FeedAcks::Stream, ..FeedConfig::default() }, "needs `stream"),
            (FeedConfig { replicas: 2, ..good.clone() }, "invalid value 2 for `replicas`"),
            (FeedConfig { ack_wait_ms: 0, ..good.clone() }, "invalid value 0 for `ack_wait_ms`"),
            (FeedConfig { bytes_max: 1, ..good }, "invalid value 1 for `bytes_max`"),
        ] {
            let error = wrong.check().unwrap_err().to_string();
            assert!(error.starts_with("storage_writer.feed: ") && error.contains(text), "{error}");
        }
    }
}
