//! Spans as the analysis sees them, independent of the input format.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};

/// Identity of a trace, printed as 32 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TraceId(pub u128);

/// Identity of a span inside its trace, printed as 16 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpanId(pub u64);

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Serialize for TraceId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for SpanId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Reference to a span by its trace and its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Link {
    /// Trace of the span.
    pub trace_id: TraceId,
    /// Id of the span.
    pub span_id: SpanId,
}

/// Value of an attribute. Lists and maps are kept as their JSON text.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Attribute {
    /// Truth value.
    Bool(bool),
    /// Integer.
    Int(i64),
    /// Floating point number.
    Float(f64),
    /// Text.
    Str(String),
}

impl Attribute {
    /// Returns the value as an unsigned integer. Text is parsed as decimal.
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Int(value) => u64::try_from(*value).ok(),
            Self::Str(text) => text.parse().ok(),
            Self::Bool(_) | Self::Float(_) => None,
        }
    }
}

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => value.fmt(f),
            Self::Int(value) => value.fmt(f),
            Self::Float(value) => value.fmt(f),
            Self::Str(value) => f.write_str(value),
        }
    }
}

/// Role of a span in a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// No role, or a role that does not tell which span waits for which.
    #[default]
    Other,
    /// Side that waits for the answer.
    Client,
    /// Side that gives the answer.
    Server,
}

/// Finished span. Times are nanoseconds since the Unix epoch.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// Trace that the span belongs to.
    pub trace_id: TraceId,
    /// Identity in the trace.
    pub span_id: SpanId,
    /// Parent span, which may be missing from the input.
    pub parent: Option<SpanId>,
    /// `service.name` of the process that made the span.
    pub service: Arc<str>,
    /// Host whose clock timed the span: `k8s.node.name`, or else `host.name`,
    /// `service.instance.id`, or the service.
    pub host: Arc<str>,
    /// Text attributes of the process that made the span, except `service.name`.
    pub resource: Arc<[(String, String)]>,
    /// Role of the span in a call.
    pub kind: Kind,
    /// Operation name.
    pub name: String,
    /// Start time.
    pub start_ns: u64,
    /// End time, not before the start.
    pub end_ns: u64,
    /// Intervals of real work, in any order. An empty list means that the span carries none.
    pub busy: Vec<(u64, u64)>,
    /// Attributes in the order of the input.
    pub attributes: Vec<(String, Attribute)>,
    /// Related spans, usually of other traces.
    pub links: Vec<Link>,
}

impl Span {
    /// Returns the first attribute called `key`.
    pub fn attribute(&self, key: &str) -> Option<&Attribute> {
        self.attributes.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// Returns the first attribute of the process called `key`.
    pub fn resource_attribute(&self, key: &str) -> Option<&str> {
        self.resource.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// Returns the length in nanoseconds.
    pub fn duration_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }
}

/// Maximum number of lines in `Problems::unreadable`. It keeps garbage out of the report.
const UNREADABLE_MAX: usize = 8;

/// Problems of the input. All fields are zero or empty for valid input.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Problems {
    /// Parser messages, per place, for input that ended early or a part that was not JSON.
    pub unreadable: Vec<String>,
    /// Number of spans that were left out because of an unusable id or a field of a wrong type.
    pub malformed_spans: u64,
    /// Number of spans that were left out because an earlier span had their trace and span id.
    pub duplicate_spans: u64,
    /// Number of spans and busy intervals that end before they start. They count as empty.
    pub negative_durations: u64,
    /// Number of spans that were left out because their trace had already been analysed.
    pub late_spans: u64,
}

impl Problems {
    /// Returns whether the input was valid.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether a part of the input is missing from the spans. Duplicates do not count,
    /// because they come from an exporter's retries.
    pub fn lost_something(&self) -> bool {
        !self.unreadable.is_empty()
            || self.malformed_spans > 0
            || self.negative_durations > 0
            || self.late_spans > 0
    }

    /// Records that a part of a source could not be read.
    pub fn unreadable(&mut self, reason: String) {
        if self.unreadable.len() < UNREADABLE_MAX {
            self.unreadable.push(reason);
        }
    }

    /// Adds the problems of another source.
    pub fn merge(&mut self, other: Self) {
        for reason in other.unreadable {
            self.unreadable(reason);
        }
        self.malformed_spans += other.malformed_spans;
        self.duplicate_spans += other.duplicate_spans;
        self.negative_durations += other.negative_durations;
        self.late_spans += other.late_spans;
    }

    /// Returns one line in words per kind of problem.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = self.unreadable.clone();
        let mut count = |n: u64, what: &str| {
            if n > 0 {
                lines.push(format!("{n} {what}"));
            }
        };
        count(self.malformed_spans, "malformed spans were left out");
        count(self.duplicate_spans, "duplicated spans were left out");
        count(
            self.negative_durations,
            "spans or busy intervals end before they start, taken as empty",
        );
        count(self.late_spans, "spans came long after the rest of their trace and were left out");
        lines
    }
}

/// Spans read from any number of sources.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Input {
    /// Spans, unique by trace and span id.
    pub spans: Vec<Span>,
    /// Problems of the sources.
    pub problems: Problems,
}

impl Input {
    /// Adds the spans of another source. A span that is already known counts as a duplicate.
    pub fn merge(&mut self, other: Self) {
        let mut known: HashSet<(TraceId, SpanId)> =
            self.spans.iter().map(|span| (span.trace_id, span.span_id)).collect();
        for span in other.spans {
            if known.insert((span.trace_id, span.span_id)) {
                self.spans.push(span);
            } else {
                self.problems.duplicate_spans += 1;
            }
        }
        self.problems.merge(other.problems);
    }

    /// Records that a part of a source could not be read.
    pub fn unreadable(&mut self, reason: String) {
        self.problems.unreadable(reason);
    }
}
