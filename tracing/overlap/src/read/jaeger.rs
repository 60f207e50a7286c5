//! Reader of Jaeger's query API, `GET /api/traces`. Times are microseconds. The services are in a
//! table after the spans. A span event is a log whose field `event` is the name.
//!
//! <https://www.jaegertracing.io/docs/latest/architecture/apis/>

use std::collections::HashMap;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{MapAccess, SeqAccess};
use serde_json::value::RawValue;

use super::origin::Origin;
use super::{Array, Elements, Fields, Object, Sink, skip, span_id, trace_id};
use crate::model::{Attribute, Kind, Link, Span};

pub(super) struct TraceList<'s>(pub(super) &'s mut Sink);

impl Elements for TraceList<'_> {
    fn element<'de, A: SeqAccess<'de>>(&mut self, seq: &mut A) -> Result<bool, A::Error> {
        let first = self.0.input.spans.len();
        let mut trace = Trace { sink: self.0, processes: HashMap::new() };
        let result = seq.next_element_seed(Object(&mut trace));
        // Until here `service` holds the process id. The table that resolves it comes last, and is
        // missing when the document broke off.
        let processes = trace.processes;
        let origins: HashMap<String, Origin> =
            processes.into_iter().map(|(id, process)| (id, process.into_origin())).collect();
        let unknown = Origin::default();
        for span in &mut self.0.input.spans[first..] {
            let origin = origins.get(span.service.as_ref()).unwrap_or(&unknown);
            origin.mark(std::slice::from_mut(span));
        }
        Ok(result?.is_some())
    }
}

struct Trace<'s> {
    sink: &'s mut Sink,
    processes: HashMap<String, Process>,
}

impl Fields for Trace<'_> {
    fn field<'de, M: MapAccess<'de>>(&mut self, key: &str, map: &mut M) -> Result<(), M::Error> {
        match key {
            "spans" => map.next_value_seed(Array(&mut SpanList(self.sink))),
            "processes" => {
                self.processes = map.next_value::<Option<_>>()?.unwrap_or_default();
                Ok(())
            }
            _ => skip(map),
        }
    }
}

struct SpanList<'s>(&'s mut Sink);

impl Elements for SpanList<'_> {
    fn element<'de, A: SeqAccess<'de>>(&mut self, seq: &mut A) -> Result<bool, A::Error> {
        let Some(raw) = seq.next_element::<&RawValue>()? else { return Ok(false) };
        match serde_json::from_str::<RawSpan>(raw.get()).ok().and_then(RawSpan::into_span) {
            Some((span, negative)) => {
                self.0.input.problems.negative_durations += u64::from(negative);
                self.0.push(span);
            }
            None => self.0.malformed(),
        }
        Ok(true)
    }
}

#[derive(Deserialize)]
struct Process {
    #[serde(default, rename = "serviceName")]
    service: String,
    #[serde(default)]
    tags: Option<Vec<Tag>>,
}

impl Process {
    fn into_origin(self) -> Origin {
        let mut origin = Origin::default();
        if !self.service.is_empty() {
            origin.attribute("service.name", &self.service);
        }
        for tag in self.tags.unwrap_or_default() {
            if let serde_json::Value::String(value) = &tag.value {
                origin.attribute(&tag.key, value);
            }
        }
        origin
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawSpan {
    #[serde(rename = "traceID")]
    trace_id: String,
    #[serde(rename = "spanID")]
    span_id: String,
    #[serde(default)]
    operation_name: String,
    #[serde(default)]
    references: Option<Vec<Reference>>,
    start_time: u64,
    duration: i64,
    #[serde(default)]
    tags: Option<Vec<Tag>>,
    #[serde(default)]
    logs: Option<Vec<Log>>,
    #[serde(default, rename = "processID")]
    process_id: String,
}

#[derive(Deserialize)]
struct Reference {
    #[serde(default, rename = "refType")]
    kind: String,
    #[serde(default, rename = "traceID")]
    trace_id: String,
    #[serde(default, rename = "spanID")]
    span_id: String,
}

#[derive(Deserialize)]
struct Tag {
    #[serde(default)]
    key: String,
    #[serde(default)]
    value: serde_json::Value,
}

#[derive(Deserialize)]
struct Log {
    #[serde(default)]
    fields: Option<Vec<Tag>>,
}

impl RawSpan {
    /// Returns the span, and whether its duration was negative.
    fn into_span(self) -> Option<(Span, bool)> {
        let own_trace = trace_id(&self.trace_id)?;
        let (mut parent, mut links) = (None, Vec::new());
        for reference in self.references.unwrap_or_default() {
            let (Some(trace_id), Some(span_id)) =
                (trace_id(&reference.trace_id), span_id(&reference.span_id))
            else {
                continue;
            };
            if reference.kind == "CHILD_OF" && trace_id == own_trace && parent.is_none() {
                parent = Some(span_id);
            } else {
                links.push(Link { trace_id, span_id });
            }
        }
        let tags = self.tags.unwrap_or_default();
        let kind = match tags.iter().find(|tag| tag.key == "span.kind").map(|tag| &tag.value) {
            Some(value) if value == "server" => Kind::Server,
            Some(value) if value == "client" => Kind::Client,
            _ => Kind::Other,
        };
        let start_ns = self.start_time.checked_mul(1_000)?;
        let length_ns = u64::try_from(self.duration).unwrap_or(0).checked_mul(1_000)?;
        let span = Span {
            trace_id: own_trace,
            span_id: span_id(&self.span_id)?,
            parent,
            service: self.process_id.into(),
            host: "".into(),
            resource: Arc::default(),
            kind,
            name: self.operation_name,
            start_ns,
            end_ns: start_ns.checked_add(length_ns)?,
            busy: self.logs.unwrap_or_default().into_iter().filter_map(Log::into_busy).collect(),
            attributes: tags.into_iter().map(|tag| (tag.key, attribute(tag.value))).collect(),
            links,
        };
        Some((span, self.duration < 0))
    }
}

impl Log {
    /// Returns the busy interval, if the log is a `busy` event with start and end.
    fn into_busy(self) -> Option<(u64, u64)> {
        let (mut is_busy, mut start, mut end) = (false, None, None);
        for field in self.fields.unwrap_or_default() {
            match field.key.as_str() {
                "event" => is_busy = field.value == "busy",
                "busy.start_unix_nano" => start = attribute(field.value).as_u64(),
                "busy.end_unix_nano" => end = attribute(field.value).as_u64(),
                _ => {}
            }
        }
        is_busy.then_some(())?;
        start.zip(end)
    }
}

fn attribute(value: serde_json::Value) -> Attribute {
    match value {
        serde_json::Value::Bool(value) => Attribute::Bool(value),
        serde_json::Value::Number(number) => match number.as_i64() {
            Some(int) => Attribute::Int(int),
            None => Attribute::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Attribute::Str(text),
        other => Attribute::Str(other.to_string()),
    }
}
