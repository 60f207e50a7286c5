//! Spans made by hand.

use tandem_overlap::{Input, Kind, Span, SpanId, TraceId};

/// Creates a span of trace 1, service `executor` on host `left`, with times in ns. Parent 0 means
/// none.
pub fn span(id: u64, parent: u64, name: &str, start_ns: u64, end_ns: u64) -> Span {
    Span {
        trace_id: TraceId(1),
        span_id: SpanId(id),
        parent: (parent != 0).then_some(SpanId(parent)),
        service: "executor".into(),
        host: "left".into(),
        resource: std::sync::Arc::default(),
        kind: Kind::Other,
        name: name.to_owned(),
        start_ns,
        end_ns,
        busy: Vec::new(),
        attributes: Vec::new(),
        links: Vec::new(),
    }
}

/// Returns the input that a reader would make of these spans, without a problem.
pub fn input(spans: Vec<Span>) -> Input {
    Input { spans, ..Input::default() }
}
