//! OTLP in its JSON encoding, as the OpenTelemetry Collector's file exporter writes it: camel-case
//! keys, 64-bit integers as strings, ids as lowercase hexadecimal.
//!
//! <https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding>

use std::collections::BTreeMap;
use std::fmt;

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};

use crate::record::{SpanRecord, Value};
use crate::resource::Resource;

/// Name of the instrumentation scope of all spans of the project.
pub(crate) const SCOPE: &str = "tandem";
/// Value of `STATUS_CODE_ERROR`.
const STATUS_ERROR: u32 = 2;

/// Renders `spans` of a process as one `TracesData` object, one `resourceSpans` entry per service.
pub(crate) fn render<'a>(
    spans: impl Iterator<Item = &'a SpanRecord>,
    process: &Resource,
) -> String {
    let mut services: BTreeMap<&'static str, Vec<&SpanRecord>> = BTreeMap::new();
    for span in spans {
        services.entry(span.service).or_default().push(span);
    }
    // Writing the crate's own types to a string cannot fail. An empty answer would still be valid.
    serde_json::to_string(&TracesData(&services, process))
        .unwrap_or_else(|_| r#"{"resourceSpans":[]}"#.to_owned())
}

struct TracesData<'a>(&'a BTreeMap<&'static str, Vec<&'a SpanRecord>>, &'a Resource);

impl Serialize for TracesData<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        map(serializer, |m| {
            let all = || self.0.iter().map(|service| ResourceSpans(service, self.1));
            m.serialize_entry("resourceSpans", &List(all))
        })
    }
}

struct ResourceSpans<'a>((&'a &'static str, &'a Vec<&'a SpanRecord>), &'a Resource);

impl Serialize for ResourceSpans<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (service, spans) = self.0;
        let own = [("service.name", *service), ("service.namespace", SCOPE)];
        let attributes = || own.into_iter().chain(self.1.attributes());
        map(serializer, |m| {
            // The resource comes first, so that a truncated document still names the service.
            m.serialize_entry(
                "resource",
                &Entry(
                    "attributes",
                    &List(|| attributes().map(|(key, value)| KeyValue(key, AnyValue::Str(value)))),
                ),
            )?;
            m.serialize_entry("scopeSpans", &[ScopeSpans(spans)])
        })
    }
}

struct ScopeSpans<'a>(&'a [&'a SpanRecord]);

impl Serialize for ScopeSpans<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        map(serializer, |m| {
            m.serialize_entry("scope", &Entry("name", SCOPE))?;
            m.serialize_entry("spans", &List(|| self.0.iter().map(|span| Span(span))))
        })
    }
}

struct Span<'a>(&'a SpanRecord);

impl Serialize for Span<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let span = self.0;
        map(serializer, |m| {
            m.serialize_entry("traceId", &Hex128(span.trace_id))?;
            m.serialize_entry("spanId", &Hex64(span.span_id))?;
            if span.parent_id != 0 {
                m.serialize_entry("parentSpanId", &Hex64(span.parent_id))?;
            }
            m.serialize_entry("name", span.name)?;
            m.serialize_entry("kind", &(span.kind as u32))?;
            m.serialize_entry("startTimeUnixNano", &Text(span.start_ns))?;
            m.serialize_entry("endTimeUnixNano", &Text(span.end_ns))?;
            m.serialize_entry("attributes", &List(|| attributes(span)))?;
            if !span.busy.is_empty() {
                m.serialize_entry("events", &List(|| span.busy.iter().map(BusyEvent)))?;
            }
            if !span.links.is_empty() {
                m.serialize_entry("links", &List(|| span.links.iter().map(Link)))?;
            }
            if let Some(reason) = &span.error {
                m.serialize_entry("status", &Status(reason))?;
            }
            Ok(())
        })
    }
}

/// Returns the span's own attributes, then its thread by OpenTelemetry's semantic conventions.
fn attributes(span: &SpanRecord) -> impl Iterator<Item = KeyValue<'_>> {
    let own = span.attributes.iter().map(|(key, value)| {
        KeyValue(
            key,
            match value {
                Value::Str(text) => AnyValue::Str(text),
                Value::Int(int) => AnyValue::Int(*int),
                Value::Float(float) => AnyValue::Float(*float),
                Value::Bool(bool) => AnyValue::Bool(*bool),
            },
        )
    });
    let thread_id = i64::try_from(span.thread.id).unwrap_or(i64::MAX);
    own.chain([
        KeyValue("thread.id", AnyValue::Int(thread_id)),
        KeyValue("thread.name", AnyValue::Str(&span.thread.name)),
    ])
}

/// Busy interval as a span event, whose time is the start.
struct BusyEvent<'a>(&'a (u64, u64));

impl Serialize for BusyEvent<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let nanos = |ns: u64| AnyValue::Int(i64::try_from(ns).unwrap_or(i64::MAX));
        let (start, end) = *self.0;
        map(serializer, |m| {
            m.serialize_entry("timeUnixNano", &Text(start))?;
            m.serialize_entry("name", "busy")?;
            m.serialize_entry(
                "attributes",
                &[
                    KeyValue("busy.start_unix_nano", nanos(start)),
                    KeyValue("busy.end_unix_nano", nanos(end)),
                ],
            )
        })
    }
}

struct Link<'a>(&'a crate::record::Link);

impl Serialize for Link<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        map(serializer, |m| {
            m.serialize_entry("traceId", &Hex128(self.0.trace_id))?;
            m.serialize_entry("spanId", &Hex64(self.0.span_id))
        })
    }
}

/// Status of a span that failed, with the reason.
struct Status<'a>(&'a str);

impl Serialize for Status<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        map(serializer, |m| {
            m.serialize_entry("message", self.0)?;
            m.serialize_entry("code", &STATUS_ERROR)
        })
    }
}

struct KeyValue<'a>(&'a str, AnyValue<'a>);

impl Serialize for KeyValue<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        map(serializer, |m| {
            m.serialize_entry("key", self.0)?;
            m.serialize_entry("value", &self.1)
        })
    }
}

enum AnyValue<'a> {
    Str(&'a str),
    Int(i64),
    Float(f64),
    Bool(bool),
}

impl Serialize for AnyValue<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        map(serializer, |m| match self {
            Self::Str(text) => m.serialize_entry("stringValue", text),
            Self::Int(int) => m.serialize_entry("intValue", &Text(int)),
            // JSON has no NaN and no infinities. Protobuf's JSON writes them as text.
            Self::Float(float) if float.is_finite() => m.serialize_entry("doubleValue", float),
            Self::Float(float) if float.is_nan() => m.serialize_entry("doubleValue", "NaN"),
            Self::Float(float) => {
                let text = if *float > 0.0 { "Infinity" } else { "-Infinity" };
                m.serialize_entry("doubleValue", text)
            }
            Self::Bool(bool) => m.serialize_entry("boolValue", bool),
        })
    }
}

/// Value that serializes by `Display`, as a JSON string.
struct Text<T>(T);

impl<T: fmt::Display> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

struct Hex128(u128);

impl Serialize for Hex128 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:032x}", self.0))
    }
}

struct Hex64(u64);

impl Serialize for Hex64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:016x}", self.0))
    }
}

/// Object with one entry.
struct Entry<'a, T: ?Sized>(&'a str, &'a T);

impl<T: Serialize + ?Sized> Serialize for Entry<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        map(serializer, |m| m.serialize_entry(self.0, self.1))
    }
}

/// Array made from a fresh iterator, without collecting it first.
struct List<F>(F);

impl<F, I> Serialize for List<F>
where
    F: Fn() -> I,
    I: Iterator,
    I::Item: Serialize,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut seq = serializer.serialize_seq(None)?;
        for item in (self.0)() {
            seq.serialize_element(&item)?;
        }
        seq.end()
    }
}

fn map<S: Serializer>(
    serializer: S,
    fill: impl FnOnce(&mut S::SerializeMap) -> Result<(), S::Error>,
) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(None)?;
    fill(&mut map)?;
    map.end()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Kind, Link, Thread};

    #[test]
    fn span_is_written_in_the_collectors_json() {
        let record = SpanRecord {
            trace_id: 0xabc,
            span_id: 0xdef,
            parent_id: 0x123,
            parent_is_remote: false,
            service: "storage-writer",
            name: "write_batch",
            kind: Kind::Server,
            error: Some("disk full".into()),
            start_ns: 1_700_000_000_000_000_001,
            end_ns: 1_700_000_000_000_000_009,
            attributes: vec![
                ("block.number", Value::Int(7)),
                ("note", Value::Str("a \"b\"".to_owned())),
                ("ratio", Value::Float(f64::NAN)),
                ("ok", Value::Bool(true)),
            ],
            thread: Thread { id: 4, name: "writer".into() },
            busy: vec![(1_700_000_000_000_000_002, 1_700_000_000_000_000_003)],
            links: vec![Link { trace_id: 0xabc, span_id: 0x9 }],
        };
        let process = Resource::default().with_text("host.name=node-7").unwrap();
        let json: serde_json::Value =
            serde_json::from_str(&render(std::iter::once(&record), &process)).unwrap();
        let expected = serde_json::json!({"resourceSpans": [{
            "resource": {"attributes": [
                {"key": "service.name", "value": {"stringValue": "storage-writer"}},
                {"key": "service.namespace", "value": {"stringValue": "tandem"}},
                {"key": "host.name", "value": {"stringValue": "node-7"}},
            ]},
            "scopeSpans": [{
                "scope": {"name": "tandem"},
                "spans": [{
                    "traceId": "00000000000000000000000000000abc",
                    "spanId": "0000000000000def",
                    "parentSpanId": "0000000000000123",
                    "name": "write_batch",
                    "kind": 2,
                    "startTimeUnixNano": "1700000000000000001",
                    "endTimeUnixNano": "1700000000000000009",
                    "attributes": [
                        {"key": "block.number", "value": {"intValue": "7"}},
                        {"key": "note", "value": {"stringValue": "a \"b\""}},
                        {"key": "ratio", "value": {"doubleValue": "NaN"}},
                        {"key": "ok", "value": {"boolValue": true}},
                        {"key": "thread.id", "value": {"intValue": "4"}},
                        {"key": "thread.name", "value": {"stringValue": "writer"}},
                    ],
                    "events": [{
                        "timeUnixNano": "1700000000000000002",
                        "name": "busy",
                        "attributes": [
                            {"key": "busy.start_unix_nano", "value": {"intValue": "1700000000000000002"}},
                            {"key": "busy.end_unix_nano", "value": {"intValue": "1700000000000000003"}},
                        ],
                    }],
                    "links": [{
                        "traceId": "00000000000000000000000000000abc",
                        "spanId": "0000000000000009",
                    }],
                    "status": {"message": "disk full", "code": 2},
                }],
            }],
        }]});
        assert_eq!(json, expected);
    }

    #[test]
    fn nothing_recorded_is_an_empty_document() {
        let nothing = render(std::iter::empty(), &Resource::default());
        assert_eq!(nothing, r#"{"resourceSpans":[]}"#);
    }
}
