//! Reader of OTLP in its JSON encoding: `resourceSpans` › `scopeSpans` › `spans`.
//!
//! <https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding>

use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::origin::Origin;
use super::{Array, Elements, Fields, Object, Sink, skip, span_id, trace_id};
use crate::doubt::DROPPED_EVENTS;
use crate::model::{Attribute, Kind, Link, Span};

pub(super) struct ResourceSpansList<'s>(pub(super) &'s mut Sink);

impl Elements for ResourceSpansList<'_> {
    fn element<'de, A: SeqAccess<'de>>(&mut self, seq: &mut A) -> Result<bool, A::Error> {
        let first = self.0.input.spans.len();
        let mut resource = ResourceSpans { sink: self.0, origin: Origin::default() };
        let result = seq.next_element_seed(Object(&mut resource));
        // The origin is set afterwards, because the resource may come after its spans. It is also
        // set when the document broke off, because the spans read so far are kept.
        let origin = resource.origin;
        origin.mark(&mut self.0.input.spans[first..]);
        Ok(result?.is_some())
    }
}

struct ResourceSpans<'s> {
    sink: &'s mut Sink,
    origin: Origin,
}

impl Fields for ResourceSpans<'_> {
    fn field<'de, M: MapAccess<'de>>(&mut self, key: &str, map: &mut M) -> Result<(), M::Error> {
        match key {
            "resource" => {
                let resource: Resource = map.next_value()?;
                for kv in resource.attributes {
                    if let Some(Attribute::Str(value)) = kv.value.map(Into::into) {
                        self.origin.attribute(&kv.key, &value);
                    }
                }
                Ok(())
            }
            "scopeSpans" | "scope_spans" | "instrumentationLibrarySpans" => {
                map.next_value_seed(Array(&mut ScopeSpansList(self.sink)))
            }
            _ => skip(map),
        }
    }
}

struct ScopeSpansList<'s>(&'s mut Sink);

impl Elements for ScopeSpansList<'_> {
    fn element<'de, A: SeqAccess<'de>>(&mut self, seq: &mut A) -> Result<bool, A::Error> {
        Ok(seq.next_element_seed(Object(&mut ScopeSpans(self.0)))?.is_some())
    }
}

struct ScopeSpans<'s>(&'s mut Sink);

impl Fields for ScopeSpans<'_> {
    fn field<'de, M: MapAccess<'de>>(&mut self, key: &str, map: &mut M) -> Result<(), M::Error> {
        match key {
            "spans" => map.next_value_seed(Array(&mut SpanList(self.0))),
            _ => skip(map),
        }
    }
}

struct SpanList<'s>(&'s mut Sink);

impl Elements for SpanList<'_> {
    fn element<'de, A: SeqAccess<'de>>(&mut self, seq: &mut A) -> Result<bool, A::Error> {
        // Raw first: a span with a field of a wrong type must not end the whole document.
        let Some(raw) = seq.next_element::<&RawValue>()? else { return Ok(false) };
        match serde_json::from_str::<RawSpan<'_>>(raw.get()).ok().and_then(RawSpan::into_span) {
            Some(span) => self.0.push(span),
            None => self.0.malformed(),
        }
        Ok(true)
    }
}

#[derive(Deserialize)]
struct Resource {
    #[serde(default, deserialize_with = "null_is_default")]
    attributes: Vec<KeyValue>,
}

#[derive(Deserialize)]
struct RawSpan<'a> {
    #[serde(alias = "trace_id", rename = "traceId", borrow)]
    trace_id: std::borrow::Cow<'a, str>,
    #[serde(alias = "span_id", rename = "spanId", borrow)]
    span_id: std::borrow::Cow<'a, str>,
    #[serde(default, alias = "parent_span_id", rename = "parentSpanId")]
    parent: Option<String>,
    #[serde(default)]
    name: String,
    /// Number, or the name of the enumeration's member.
    #[serde(default)]
    kind: serde_json::Value,
    #[serde(alias = "start_time_unix_nano", rename = "startTimeUnixNano")]
    start: Integer,
    #[serde(default, alias = "end_time_unix_nano", rename = "endTimeUnixNano")]
    end: Integer,
    #[serde(default, deserialize_with = "null_is_default")]
    attributes: Vec<KeyValue>,
    #[serde(default, deserialize_with = "null_is_default")]
    events: Vec<RawEvent>,
    #[serde(default, alias = "dropped_events_count", rename = "droppedEventsCount")]
    dropped_events: Option<Integer>,
    #[serde(default, deserialize_with = "null_is_default")]
    links: Vec<RawLink>,
}

#[derive(Deserialize)]
struct RawEvent {
    #[serde(default)]
    name: String,
    #[serde(default, deserialize_with = "null_is_default")]
    attributes: Vec<KeyValue>,
}

#[derive(Deserialize)]
struct RawLink {
    #[serde(default, alias = "trace_id", rename = "traceId")]
    trace_id: String,
    #[serde(default, alias = "span_id", rename = "spanId")]
    span_id: String,
}

impl RawSpan<'_> {
    fn into_span(self) -> Option<Span> {
        let link = |link: RawLink| {
            Some(Link { trace_id: trace_id(&link.trace_id)?, span_id: span_id(&link.span_id)? })
        };
        Some(Span {
            trace_id: trace_id(&self.trace_id)?,
            span_id: span_id(&self.span_id)?,
            parent: self.parent.as_deref().and_then(span_id),
            service: "".into(),
            host: "".into(),
            resource: Arc::default(),
            kind: kind(&self.kind),
            name: self.name,
            start_ns: u64::try_from(self.start.0).ok()?,
            end_ns: u64::try_from(self.end.0).ok()?,
            busy: self.events.into_iter().filter_map(RawEvent::into_busy).collect(),
            attributes: self
                .attributes
                .into_iter()
                .filter_map(|kv| Some((kv.key, kv.value?.into())))
                .chain(self.dropped_events.and_then(dropped_events))
                .collect(),
            links: self.links.into_iter().filter_map(link).collect(),
        })
    }
}

/// Returns the number of dropped events as an attribute, unless it is 0.
fn dropped_events(count: Integer) -> Option<(String, Attribute)> {
    let count = i64::try_from(count.0).ok().filter(|count| *count > 0)?;
    Some((DROPPED_EVENTS.to_owned(), Attribute::Int(count)))
}

fn kind(value: &serde_json::Value) -> Kind {
    match (value.as_u64(), value.as_str()) {
        (Some(2), _) | (_, Some("SPAN_KIND_SERVER")) => Kind::Server,
        (Some(3), _) | (_, Some("SPAN_KIND_CLIENT")) => Kind::Client,
        _ => Kind::Other,
    }
}

impl RawEvent {
    /// Returns the busy interval, if the event is a `busy` event with start and end.
    fn into_busy(self) -> Option<(u64, u64)> {
        if self.name != "busy" {
            return None;
        }
        let (mut start, mut end) = (None, None);
        for kv in self.attributes {
            let slot = match kv.key.as_str() {
                "busy.start_unix_nano" => &mut start,
                "busy.end_unix_nano" => &mut end,
                _ => continue,
            };
            *slot = kv.value.and_then(|value| Attribute::from(value).as_u64());
        }
        start.zip(end)
    }
}

#[derive(Deserialize)]
struct KeyValue {
    #[serde(default)]
    key: String,
    #[serde(default)]
    value: Option<AnyValue>,
}

/// Value of which exactly one field is set.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AnyValue {
    #[serde(alias = "string_value")]
    string_value: Option<String>,
    #[serde(alias = "int_value")]
    int_value: Option<Integer>,
    #[serde(alias = "bool_value")]
    bool_value: Option<bool>,
    /// Number, or `"NaN"`, `"Infinity"`, `"-Infinity"`.
    #[serde(alias = "double_value")]
    double_value: Option<serde_json::Value>,
    #[serde(alias = "array_value")]
    array_value: Option<Box<RawValue>>,
    #[serde(alias = "kvlist_value")]
    kvlist_value: Option<Box<RawValue>>,
    #[serde(alias = "bytes_value")]
    bytes_value: Option<String>,
}

impl From<AnyValue> for Attribute {
    fn from(value: AnyValue) -> Self {
        if let Some(text) = value.string_value {
            return Self::Str(text);
        }
        if let Some(Integer(int)) = value.int_value {
            return i64::try_from(int).map_or_else(|_| Self::Str(int.to_string()), Self::Int);
        }
        if let Some(bool) = value.bool_value {
            return Self::Bool(bool);
        }
        match value.double_value {
            Some(serde_json::Value::Number(number)) => {
                return Self::Float(number.as_f64().unwrap_or(f64::NAN));
            }
            Some(serde_json::Value::String(text)) => return Self::Str(text),
            _ => {}
        }
        let raw = value.array_value.or(value.kvlist_value);
        Self::Str(
            raw.map_or_else(|| value.bytes_value.unwrap_or_default(), |raw| raw.get().to_owned()),
        )
    }
}

/// 64-bit integer, written as a number or, as protobuf's JSON demands, as text.
#[derive(Default, Clone, Copy)]
struct Integer(i128);

impl<'de> Deserialize<'de> for Integer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct IntegerVisitor;
        impl Visitor<'_> for IntegerVisitor {
            type Value = Integer;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an integer or its decimal text")
            }

            fn visit_u64<E>(self, value: u64) -> Result<Integer, E> {
                Ok(Integer(value.into()))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Integer, E> {
                Ok(Integer(value.into()))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Integer, E> {
                text.parse().map(Integer).map_err(|_| E::custom("not an integer"))
            }
        }
        deserializer.deserialize_any(IntegerVisitor)
    }
}

/// Deserializes `null`, which Go writes for an empty list, as the default.
fn null_is_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
