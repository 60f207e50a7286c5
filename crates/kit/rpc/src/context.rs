//! The caller's span in the called process: W3C trace context in the metadata of a call.

use tandem_telemetry::{set_remote_parent, traceparent};
use tonic::{Request, metadata::MetadataMap};
use tracing::Span;

const TRACEPARENT: &str = "traceparent";

/// Makes a request whose handler continues the current span.
pub fn traced<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(context) = traceparent(&Span::current()) {
        set_traceparent(&mut request, &context);
    }
    request
}

/// Sets the span that the called process continues, as returned by [`traceparent`].
pub fn set_traceparent<T>(request: &mut Request<T>, context: &str) {
    // Text that is not ASCII is not a trace context either.
    if let Ok(context) = context.parse() {
        request.metadata_mut().insert(TRACEPARENT, context);
    }
}

/// Makes `span` a child of the caller's span, if the caller has one.
pub fn continued(span: Span, metadata: &MetadataMap) -> Span {
    if let Some(context) = context_of(metadata) {
        set_remote_parent(&span, context);
    }
    span
}

/// Returns the span of a call that matters only within its caller's span: none if the caller has
/// none.
pub fn remote_span(metadata: &MetadataMap, span: impl FnOnce() -> Span) -> Span {
    span_within(context_of(metadata), span)
}

/// Like [`remote_span`], for a caller's span that is known as text.
pub fn span_within(context: Option<&str>, span: impl FnOnce() -> Span) -> Span {
    let Some(context) = context else { return Span::none() };
    let span = span();
    set_remote_parent(&span, context);
    span
}

fn context_of(metadata: &MetadataMap) -> Option<&str> {
    metadata.get(TRACEPARENT)?.to_str().ok()
}
