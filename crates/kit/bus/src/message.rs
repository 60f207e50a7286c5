use bytes::Bytes;
use std::{fmt::Write, sync::Arc};
use tandem_telemetry::SpanContext;
use tracing::Span;

/// Published payload, with the span that published it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// Payload as it was published.
    pub payload: Bytes,
    /// Span that was current at the publisher, if it is recorded. A worker on one message makes it
    /// the parent of its span ([`tandem_telemetry::set_remote_parent`]). A worker on several
    /// messages links to each ([`tandem_telemetry::add_link`]). Both functions take its text.
    pub context: Option<SpanContext>,
    /// Publisher's part of the subject, as [`subject_token`] writes it. It is set if many
    /// publishers have a subject each and these are heard together. NATS lets users publish on
    /// their own subject only, so it identifies the publisher.
    pub member: Option<Arc<str>>,
}

impl Message {
    /// Makes a message on behalf of the current span.
    pub(crate) fn here(payload: Bytes) -> Self {
        Self { payload, context: SpanContext::of(&Span::current()), member: None }
    }
}

/// Returns a name as one token of a subject. Letters, digits, `-` and `_` stay. Every other byte
/// becomes `=` and two hexadecimal digits, so that different names have different tokens.
pub fn subject_token(name: &str) -> String {
    let mut token = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') {
            token.push(byte.into());
        } else {
            // Writing to a string cannot fail.
            let _ = write!(token, "={byte:02x}");
        }
    }
    token
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_nothing_that_a_subject_gives_a_meaning() {
        for (name, token) in [
            ("tandem-worker_0", "tandem-worker_0"),
            ("host.example:9601", "host=2eexample=3a9601"),
            ("*", "=2a"),
            (">", "=3e"),
            ("a=2a", "a=3d2a"),
        ] {
            assert_eq!(subject_token(name), token);
        }
    }
}
