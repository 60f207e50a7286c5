use bytes::Bytes;
use tandem_telemetry::SpanContext;
use tracing::Span;

/// What was published, and on whose behalf.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// As it was published.
    pub payload: Bytes,
    /// The span that was current where it was published, if that is recorded. Whoever works on one
    /// message makes it the parent of its span ([`tandem_telemetry::set_remote_parent`]); whoever
    /// works on several links to each ([`tandem_telemetry::add_link`]). Both take its text.
    pub context: Option<SpanContext>,
}

impl Message {
    /// A message on behalf of the current span.
    pub(crate) fn here(payload: Bytes) -> Self {
        Self { payload, context: SpanContext::of(&Span::current()) }
    }
}
