//! Reader of OTLP in its binary encoding: `TracesData` › `ResourceSpans` › `ScopeSpans` › `Span`.
//!
//! The bytes are read field by field. As with JSON, the part before a cut is therefore kept.
//!
//! <https://opentelemetry.io/docs/specs/otlp/>, <https://protobuf.dev/programming-guides/encoding/>

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::origin::Origin;
use super::{Format, Sink, zstd};
use crate::doubt::DROPPED_EVENTS;
use crate::model::{Attribute, Kind, Link, Span, SpanId, TraceId};

/// Maximum nesting of lists and maps. Deeper values are left out.
const DEPTH_MAX: usize = 16;

/// Reads messages that each follow their length.
pub(super) fn messages(source: &str, mut bytes: &[u8], sink: &mut Sink) {
    while !bytes.is_empty() {
        let Some((length, rest)) = bytes.split_first_chunk::<4>() else {
            sink.input.unreadable(cut(source));
            return;
        };
        let length = u32::from_be_bytes(*length) as usize;
        let whole = length <= rest.len();
        let (one, others) = rest.split_at(length.min(rest.len()));
        if !message(source, one, sink) {
            // Without a reliable length there is no next message.
            return;
        }
        if !whole {
            sink.input.unreadable(cut(source));
        }
        bytes = others;
    }
}

/// Reads one `TracesData`. Returns whether it could be read to its end.
pub(super) fn message(source: &str, bytes: &[u8], sink: &mut Sink) -> bool {
    if Format::of(bytes) == Format::Zstd {
        sink.input.unreadable(zstd(source));
        return false;
    }
    let read = Fields(bytes).each(|number, value| match (number, value) {
        (1, Value::Bytes(bytes)) => resource_spans(bytes, sink),
        (1, _) => Err(Broken::Damaged),
        _ => Ok(()),
    });
    match read {
        Ok(()) => return true,
        Err(Broken::Cut) => sink.input.unreadable(cut(source)),
        Err(Broken::Damaged) => {
            sink.input.unreadable(format!("{source} is damaged, or no OTLP in protobuf"));
        }
    }
    false
}

fn cut(source: &str) -> String {
    format!("{source} ends in the middle of the data: a protobuf message is cut off")
}

/// Reason why a message ends early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Broken {
    /// The bytes end before the message does.
    Cut,
    /// The bytes are not valid protobuf.
    Damaged,
}

/// Value of a field.
#[derive(Debug, Clone, Copy)]
enum Value<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    /// Four bytes, which OTLP's spans do not use.
    Fixed32,
    /// Bytes whose end is missing.
    Torn(&'a [u8]),
}

/// Fields of one message.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// Calls `field` with number and value of each field. A value whose end is missing is also
    /// passed, as a [`Value::Bytes`], because its complete fields are usable.
    fn each(
        mut self,
        mut field: impl FnMut(u64, Value<'a>) -> Result<(), Broken>,
    ) -> Result<(), Broken> {
        while !self.0.is_empty() {
            match self.next()? {
                (number, Value::Torn(bytes)) => {
                    field(number, Value::Bytes(bytes))?;
                    return Err(Broken::Cut);
                }
                (number, value) => field(number, value)?,
            }
        }
        Ok(())
    }

    /// Calls `field` as [`Self::each`] does, for a message that must be complete.
    fn each_of_whole(
        mut self,
        mut field: impl FnMut(u64, Value<'a>) -> Result<(), Broken>,
    ) -> Result<(), Broken> {
        while !self.0.is_empty() {
            match self.next()? {
                (_, Value::Torn(_)) => return Err(Broken::Damaged),
                (number, value) => field(number, value)?,
            }
        }
        Ok(())
    }

    fn next(&mut self) -> Result<(u64, Value<'a>), Broken> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            1 => Value::Fixed64(u64::from_le_bytes(*self.take::<8>()?)),
            2 => self.bytes()?,
            5 => self.take::<4>().map(|_| Value::Fixed32)?,
            _ => return Err(Broken::Damaged),
        };
        Ok((tag >> 3, value))
    }

    fn varint(&mut self) -> Result<u64, Broken> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (first, rest) = self.0.split_first().ok_or(Broken::Cut)?;
            self.0 = rest;
            value |= u64::from(first & 0x7f) << shift;
            if first & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Broken::Damaged)
    }

    fn take<const N: usize>(&mut self) -> Result<&'a [u8; N], Broken> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Broken::Cut)?;
        self.0 = rest;
        Ok(taken)
    }

    fn bytes(&mut self) -> Result<Value<'a>, Broken> {
        let length = usize::try_from(self.varint()?).map_err(|_| Broken::Damaged)?;
        if length > self.0.len() {
            return Ok(Value::Torn(std::mem::take(&mut self.0)));
        }
        let (bytes, rest) = self.0.split_at(length);
        self.0 = rest;
        Ok(Value::Bytes(bytes))
    }
}

fn resource_spans(bytes: &[u8], sink: &mut Sink) -> Result<(), Broken> {
    let first = sink.input.spans.len();
    let mut origin = Origin::default();
    let read = Fields(bytes).each(|number, value| match (number, value) {
        (1, Value::Bytes(resource)) => Fields(resource).each(|number, value| {
            if let (1, Value::Bytes(pair)) = (number, value)
                && let Some((key, Attribute::Str(value))) = key_value(pair)
            {
                origin.attribute(&key, &value);
            }
            Ok(())
        }),
        // Old versions have the scope spans in field 1000.
        (2 | 1000, Value::Bytes(scope)) => scope_spans(scope, sink),
        _ => Ok(()),
    });
    // This also runs if the message broke off: the spans read so far are kept.
    origin.mark(&mut sink.input.spans[first..]);
    read
}

fn scope_spans(bytes: &[u8], sink: &mut Sink) -> Result<(), Broken> {
    let mut fields = Fields(bytes);
    while !fields.0.is_empty() {
        match fields.next()? {
            (2, Value::Bytes(bytes)) => match span(bytes) {
                Some(span) => sink.push(span),
                None => sink.malformed(),
            },
            (_, Value::Torn(_)) => return Err(Broken::Cut),
            _ => {}
        }
    }
    Ok(())
}

fn span(bytes: &[u8]) -> Option<Span> {
    let (mut trace, mut id, mut times) = (None, None, (None, 0));
    let mut span = Span {
        trace_id: TraceId(0),
        span_id: SpanId(0),
        parent: None,
        service: "".into(),
        host: "".into(),
        resource: Arc::default(),
        kind: Kind::Other,
        name: String::new(),
        start_ns: 0,
        end_ns: 0,
        busy: Vec::new(),
        attributes: Vec::new(),
        links: Vec::new(),
    };
    let read = Fields(bytes).each_of_whole(|number, value| {
        match (number, value) {
            (1, Value::Bytes(bytes)) => trace = trace_id(bytes),
            (2, Value::Bytes(bytes)) => id = span_id(bytes),
            (4, Value::Bytes(bytes)) => span.parent = span_id(bytes),
            (5, Value::Bytes(bytes)) => span.name = text(bytes),
            (6, Value::Varint(2)) => span.kind = Kind::Server,
            (6, Value::Varint(3)) => span.kind = Kind::Client,
            (7, Value::Fixed64(time)) => times.0 = Some(time),
            (8, Value::Fixed64(time)) => times.1 = time,
            (9, Value::Bytes(bytes)) => span.attributes.extend(key_value(bytes)),
            (11, Value::Bytes(bytes)) => span.busy.extend(busy(bytes)),
            (12, Value::Varint(count)) if count > 0 => {
                let count = Attribute::Int(i64::try_from(count).unwrap_or(i64::MAX));
                span.attributes.push((DROPPED_EVENTS.to_owned(), count));
            }
            (13, Value::Bytes(bytes)) => span.links.extend(link(bytes)),
            (1 | 2 | 4 | 5 | 7 | 8 | 9 | 11 | 13, _) => return Err(Broken::Damaged),
            _ => {}
        }
        Ok(())
    });
    read.ok()?;
    (span.trace_id, span.span_id) = (trace?, id?);
    (span.start_ns, span.end_ns) = (times.0?, times.1);
    Some(span)
}

/// Returns the busy interval, if the event is a `busy` event with start and end.
fn busy(bytes: &[u8]) -> Option<(u64, u64)> {
    let (mut is_busy, mut start, mut end) = (false, None, None);
    let read = Fields(bytes).each_of_whole(|number, value| {
        match (number, value) {
            (2, Value::Bytes(name)) => is_busy = name == b"busy",
            (3, Value::Bytes(pair)) => match key_value(pair) {
                Some((key, value)) if key == "busy.start_unix_nano" => start = value.as_u64(),
                Some((key, value)) if key == "busy.end_unix_nano" => end = value.as_u64(),
                _ => {}
            },
            _ => {}
        }
        Ok(())
    });
    (read.is_ok() && is_busy).then_some(())?;
    start.zip(end)
}

fn link(bytes: &[u8]) -> Option<Link> {
    let (mut trace, mut span) = (None, None);
    let read = Fields(bytes).each_of_whole(|number, value| {
        match (number, value) {
            (1, Value::Bytes(bytes)) => trace = trace_id(bytes),
            (2, Value::Bytes(bytes)) => span = span_id(bytes),
            _ => {}
        }
        Ok(())
    });
    read.ok()?;
    Some(Link { trace_id: trace?, span_id: span? })
}

fn key_value(bytes: &[u8]) -> Option<(String, Attribute)> {
    let (mut key, mut found) = (String::new(), None);
    let read = Fields(bytes).each_of_whole(|number, value| {
        match (number, value) {
            (1, Value::Bytes(bytes)) => key = text(bytes),
            (2, Value::Bytes(bytes)) => found = any_value(bytes, 0),
            _ => {}
        }
        Ok(())
    });
    read.ok()?;
    Some((key, attribute(found?)))
}

fn attribute(value: Json) -> Attribute {
    match value {
        Json::Bool(value) => Attribute::Bool(value),
        Json::Number(number) => match number.as_i64() {
            Some(int) => Attribute::Int(int),
            None => Attribute::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Attribute::Str(text),
        other => Attribute::Str(other.to_string()),
    }
}

/// Parses an `AnyValue`. A float that JSON cannot hold becomes its text.
fn any_value(bytes: &[u8], depth: usize) -> Option<Json> {
    let mut found = None;
    let read = Fields(bytes).each_of_whole(|number, value| {
        let value = match (number, value) {
            (1, Value::Bytes(bytes)) => Json::from(text(bytes)),
            (2, Value::Varint(bool)) => Json::from(bool != 0),
            (3, Value::Varint(int)) => Json::from(int.cast_signed()),
            (4, Value::Fixed64(bits)) => {
                let float = f64::from_bits(bits);
                serde_json::Number::from_f64(float)
                    .map_or_else(|| Json::from(float.to_string()), Json::Number)
            }
            (5 | 6, Value::Bytes(_)) if depth >= DEPTH_MAX => return Ok(()),
            (5, Value::Bytes(bytes)) => list(bytes, depth)?,
            (6, Value::Bytes(bytes)) => map(bytes, depth)?,
            (7, Value::Bytes(bytes)) => {
                Json::from(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
            }
            _ => return Ok(()),
        };
        found = Some(value);
        Ok(())
    });
    read.ok()?;
    found
}

fn list(bytes: &[u8], depth: usize) -> Result<Json, Broken> {
    let mut list = Vec::new();
    Fields(bytes).each_of_whole(|number, value| {
        if let (1, Value::Bytes(bytes)) = (number, value) {
            list.push(any_value(bytes, depth + 1).unwrap_or(Json::Null));
        }
        Ok(())
    })?;
    Ok(Json::Array(list))
}

fn map(bytes: &[u8], depth: usize) -> Result<Json, Broken> {
    let mut map = json!({});
    Fields(bytes).each_of_whole(|number, value| {
        let (1, Value::Bytes(pair)) = (number, value) else { return Ok(()) };
        let (mut key, mut found) = (String::new(), None);
        Fields(pair).each_of_whole(|number, value| {
            match (number, value) {
                (1, Value::Bytes(bytes)) => key = text(bytes),
                (2, Value::Bytes(bytes)) => found = any_value(bytes, depth + 1),
                _ => {}
            }
            Ok(())
        })?;
        map[key] = found.unwrap_or(Json::Null);
        Ok(())
    })?;
    Ok(map)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn trace_id(bytes: &[u8]) -> Option<TraceId> {
    let id = u128::from_be_bytes(bytes.try_into().ok()?);
    (id != 0).then_some(TraceId(id))
}

fn span_id(bytes: &[u8]) -> Option<SpanId> {
    let id = u64::from_be_bytes(bytes.try_into().ok()?);
    (id != 0).then_some(SpanId(id))
}
