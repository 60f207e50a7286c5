//! Trace context across process boundaries (W3C Trace Context, level 1) and links.
//!
//! Inside one process a span travels as a [`tracing::Span`] in the actor envelope. Over gRPC and
//! NATS it travels as a `traceparent` header: `00-<32 hex trace id>-<16 hex span id>-<2 hex flags>`.
//!
//! <https://www.w3.org/TR/trace-context/#traceparent-header>

use tracing::Span;

use crate::record::{Link, Value, unix_nanos};
use crate::recorder::{set_attribute, with_record};

/// Maximum number of links per span. A batch of more requests links to the first ones only.
const LINKS_MAX: usize = 128;

/// Identity of a span, as it travels between processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanContext {
    /// Id of the trace, never 0.
    pub trace_id: u128,
    /// Id of the span, never 0.
    pub span_id: u64,
}

impl SpanContext {
    /// Returns the context of an open, recorded span.
    pub fn of(span: &Span) -> Option<Self> {
        with_record(span, |record| Self { trace_id: record.trace_id, span_id: record.span_id })
    }

    /// Parses a `traceparent` header. Returns `None` if it is malformed or all-zero. Versions above
    /// 00 are read by their first four fields, as the specification asks.
    pub fn parse(traceparent: &str) -> Option<Self> {
        let mut fields = traceparent.trim().split('-');
        let version = hex(fields.next()?, 2)?;
        let trace_id = hex(fields.next()?, 32)?;
        let span_id = u64::try_from(hex(fields.next()?, 16)?).ok()?;
        hex(fields.next()?, 2)?;
        let trailing = fields.next().is_some();
        if version == 0xff || (version == 0 && trailing) || trace_id == 0 || span_id == 0 {
            return None;
        }
        Some(Self { trace_id, span_id })
    }
}

impl std::fmt::Display for SpanContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "00-{:032x}-{:016x}-01", self.trace_id, self.span_id)
    }
}

/// Parses exactly `digits` lowercase hexadecimal digits.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if text.len() != digits || !text.bytes().all(lower) {
        return None;
    }
    u128::from_str_radix(text, 16).ok()
}

/// Returns the `traceparent` header to send with a request on behalf of `span`, or `None` when the
/// span is not recorded. The flags say "sampled": a recorded span is worth recording downstream.
pub fn traceparent(span: &Span) -> Option<String> {
    SpanContext::of(span).map(|context| context.to_string())
}

/// Makes the remote span named by `traceparent` the parent of `span`. Call it right after making
/// `span`, before it has children, because children copy the trace id when they are made.
///
/// Returns `false` for a malformed header or a span that is not recorded, otherwise `true`.
pub fn set_remote_parent(span: &Span, traceparent: &str) -> bool {
    let Some(context) = SpanContext::parse(traceparent) else { return false };
    with_record(span, |record| {
        record.trace_id = context.trace_id;
        record.parent_id = context.span_id;
        record.parent_is_remote = true;
    })
    .is_some()
}

/// Links `span` to the span named by `traceparent`: for one batch that serves many requests.
///
/// Returns whether the link was added. At most 128 links are kept.
pub fn add_link(span: &Span, traceparent: &str) -> bool {
    let Some(context) = SpanContext::parse(traceparent) else { return false };
    with_record(span, |record| {
        if record.links.len() >= LINKS_MAX {
            return false;
        }
        record.links.push(Link { trace_id: context.trace_id, span_id: context.span_id });
        true
    })
    .unwrap_or(false)
}

/// Records that the work of `span` has been ready in a queue since `ready_unix_ns` (see
/// [`crate::unix_nanos`]), as attribute `queue.ready_unix_nano`. `tandem overlap` reports the gap
/// between it and the start of the span. A time in the future counts as now.
pub fn mark_ready(span: &Span, ready_unix_ns: u64) {
    with_record(span, |record| {
        let ready = Value::from(ready_unix_ns.min(unix_nanos()));
        set_attribute(&mut record.attributes, "queue.ready_unix_nano", ready);
    });
}

/// Gives `span` these times, in nanoseconds since the Unix epoch, instead of those of its creation
/// and its end. `busy` are the intervals in which it really worked. Has no effect on a span that is
/// not recorded.
pub fn set_times(span: &Span, start_unix_ns: u64, end_unix_ns: u64, busy: Vec<(u64, u64)>) {
    with_record(span, |record| {
        record.start_ns = start_unix_ns;
        record.end_ns = end_unix_ns.max(start_unix_ns);
        record.busy = busy;
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn header_of_the_specification_parses_and_prints_back() {
        let context = SpanContext::parse(HEADER).unwrap();
        assert_eq!(context.trace_id, 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c);
        assert_eq!(context.span_id, 0xb7ad_6b71_6920_3331);
        assert_eq!(context.to_string(), HEADER);
    }

    #[test]
    fn malformed_headers_are_refused() {
        for header in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-extra",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "0ü-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert_eq!(SpanContext::parse(header), None, "{header}");
        }
    }

    #[test]
    fn later_versions_may_carry_more_fields() {
        let header = "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more";
        assert!(SpanContext::parse(header).is_some());
    }
}
