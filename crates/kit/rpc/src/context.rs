//! The caller's span on the other side: W3C trace context in the metadata of a call.

use tandem_telemetry::{set_remote_parent, traceparent};
use tonic::{Request, metadata::MetadataMap};
use tracing::Span;

const TRACEPARENT: &str = "traceparent";

/// A request that continues the present span on the other side.
pub fn traced<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(context) = traceparent(&Span::current()) {
        set_traceparent(&mut request, &context);
    }
    request
}

/// Continues a span on the other side, as [`traceparent`] gave it.
pub fn set_traceparent<T>(request: &mut Request<T>, context: &str) {
    // What is no ASCII is no trace context either.
    if let Ok(context) = context.parse() {
        request.metadata_mut().insert(TRACEPARENT, context);
    }
}

/// Makes `span` a child of the caller's, where the caller has one.
pub fn continued(span: Span, metadata: &MetadataMap) -> Span {
    if let Some(context) = context_of(metadata) {
        set_remote_parent(&span, context);
    }
    span
}

/// The span of a call that is of interest only within its caller's: none where that has none.
pub fn remote_span(metadata: &MetadataMap, span: impl FnOnce() -> Span) -> Span {
    if context_of(metadata).is_none() {
        return Span::none();
    }
    continued(span(), metadata)
}

fn context_of(metadata: &MetadataMap) -> Option<&str> {
    metadata.get(TRACEPARENT)?.to_str().ok()
}
