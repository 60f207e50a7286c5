//! Readers: OTLP/JSON and Jaeger's query API, told apart by their content.

mod jaeger;
mod otlp;

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::io::Read;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::model::{Input, Span, SpanId, TraceId};

/// Bytes of JSON read from one source, after decompression; more is cut off and reported.
pub const MAX_BYTES: u64 = 1 << 30;

/// Reads all spans in `bytes`, which may be gzip-compressed and hold any number of JSON documents:
///
/// * OTLP/JSON, as `/debug/traces` answers it (one object) and as the OpenTelemetry Collector's file
///   exporter writes it (one object per line), also inside `{"result": …}` (Jaeger's v3 API),
/// * `{"data": [trace, …]}` as Jaeger's `/api/traces` answers it.
///
/// Never fails: whatever cannot be read is noted in [`Input::problems`], and the spans before it are
/// kept, also those of a document that ends in its middle. `source` names the bytes in the notes.
pub fn read(source: &str, bytes: &[u8]) -> Input {
    let mut sink = Sink::default();
    let plain = decompress(source, bytes, &mut sink.input);
    let text = text_of(&plain);
    let mut rest: &str = &text;
    while !rest.trim_start().is_empty() {
        let mut documents = serde_json::Deserializer::from_str(rest).into_iter::<&RawValue>();
        let broken = loop {
            match documents.next() {
                Some(Ok(document)) => {
                    if let Err(error) = parse(document.get(), &mut sink) {
                        sink.input.unreadable(format!("{source} is not trace data: {error}"));
                    }
                }
                Some(Err(error)) => break Some(error),
                None => break None,
            }
        };
        let Some(error) = broken else { break };
        // The document at this offset is broken; the spans before the break are taken all the same.
        rest = &rest[documents.byte_offset().min(rest.len())..];
        let _ = parse(rest, &mut sink);
        if error.is_eof() {
            sink.input.unreadable(format!("{source} ends in the middle of the data: {error}"));
            break;
        }
        sink.input.unreadable(format!("{source} is damaged: {error}"));
        // Go on with the next document, which in a file of many begins a line.
        rest = rest.trim_start();
        rest = rest.find("\n{").map_or("", |end| &rest[end + 1..]);
    }
    sink.input
}

/// The bytes as text, with a question mark for each piece that is none. (The standard library's
/// replacement character has three bytes, which would make much of a damaged file.)
fn text_of(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return text.into();
    }
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        if !chunk.invalid().is_empty() {
            text.push('?');
        }
    }
    text.into()
}

/// Undoes gzip, if the bytes begin with its magic number.
fn decompress<'a>(source: &str, bytes: &'a [u8], input: &mut Input) -> Cow<'a, [u8]> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return bytes.into();
    }
    let mut plain = Vec::new();
    let mut decoder = flate2::read::MultiGzDecoder::new(bytes).take(MAX_BYTES);
    if let Err(error) = decoder.read_to_end(&mut plain) {
        input.unreadable(format!("{source}: compressed data is damaged or cut off: {error}"));
    } else if decoder.limit() == 0 {
        input.unreadable(format!("{source}: only the first {MAX_BYTES} bytes were read"));
    }
    plain.into()
}

fn parse(document: &str, sink: &mut Sink) -> Result<(), serde_json::Error> {
    Object(&mut Document(sink)).deserialize(&mut serde_json::Deserializer::from_str(document))
}

/// Collects spans as they are parsed, so that those before an error are kept.
#[derive(Default)]
struct Sink {
    input: Input,
    known: HashSet<(TraceId, SpanId)>,
}

impl Sink {
    fn push(&mut self, mut span: Span) {
        if !self.known.insert((span.trace_id, span.span_id)) {
            self.input.problems.duplicate_spans += 1;
            return;
        }
        if span.end_ns < span.start_ns {
            self.input.problems.negative_durations += 1;
            span.end_ns = span.start_ns;
        }
        for (start, end) in &mut span.busy {
            if end < start {
                self.input.problems.negative_durations += 1;
                *end = *start;
            }
        }
        self.input.spans.push(span);
    }

    fn malformed(&mut self) {
        self.input.problems.malformed_spans += 1;
    }
}

/// The outermost object of either format.
struct Document<'s>(&'s mut Sink);

impl Fields for Document<'_> {
    fn field<'de, M: MapAccess<'de>>(&mut self, key: &str, map: &mut M) -> Result<(), M::Error> {
        match key {
            "resourceSpans" | "resource_spans" => {
                map.next_value_seed(Array(&mut otlp::ResourceSpansList(self.0)))
            }
            "result" => map.next_value_seed(Object(&mut Document(self.0))),
            "data" => map.next_value_seed(Array(&mut jaeger::TraceList(self.0))),
            _ => skip(map),
        }
    }
}

/// Reads the value of each field of an object.
trait Fields {
    fn field<'de, M: MapAccess<'de>>(&mut self, key: &str, map: &mut M) -> Result<(), M::Error>;
}

/// Reads each element of an array; it has to consume exactly one element, or answer that there is none.
trait Elements {
    /// Whether there was an element.
    fn element<'de, A: SeqAccess<'de>>(&mut self, seq: &mut A) -> Result<bool, A::Error>;
}

fn skip<'de, M: MapAccess<'de>>(map: &mut M) -> Result<(), M::Error> {
    map.next_value::<IgnoredAny>().map(|_| ())
}

struct Object<'a, T>(&'a mut T);

impl<'de, T: Fields> DeserializeSeed<'de> for Object<'_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, T: Fields> Visitor<'de> for Object<'_, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            self.0.field(&key, &mut map)?;
        }
        Ok(())
    }
}

struct Array<'a, T>(&'a mut T);

impl<'de, T: Elements> DeserializeSeed<'de> for Array<'_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T: Elements> Visitor<'de> for Array<'_, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while self.0.element(&mut seq)? {}
        Ok(())
    }

    /// Go writes `null` for an empty list.
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

/// Parses an id of up to `bytes` bytes from hexadecimal; `None` for anything else, and for zero.
fn hex_id(text: &str, bytes: usize) -> Option<u128> {
    if text.is_empty() || text.len() > 2 * bytes || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u128::from_str_radix(text, 16).ok().filter(|id| *id != 0)
}

fn trace_id(text: &str) -> Option<TraceId> {
    hex_id(text, 16).map(TraceId)
}

fn span_id(text: &str) -> Option<SpanId> {
    hex_id(text, 8).and_then(|id| u64::try_from(id).ok()).map(SpanId)
}
