//! Readers of OTLP, as JSON or binary, and of Jaeger's query API, distinguished by content.

mod jaeger;
mod origin;
mod otlp;
mod protobuf;
mod stream;

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::io::Read;

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::model::{Input, Span, SpanId, TraceId};

pub use stream::read_from;

/// Maximum size in bytes of one document, or of the whole input of [`read()`], after decompression.
/// Excess bytes are cut off and reported.
pub const MAX_BYTES: u64 = 1 << 30;

/// Reads all spans in `bytes`, which may be gzip-compressed and hold any number of documents:
///
/// * OTLP/JSON, as from `/debug/traces` (one object) and from the OpenTelemetry Collector's file
///   exporter (one object per line), also inside `{"result": …}` (Jaeger's v3 API),
/// * `{"batches": …}` and `{"trace": …}` as from Grafana Tempo's `/api/traces/ID` and
///   `/api/v2/traces/ID`,
/// * `{"data": [trace, …]}` as from Jaeger's `/api/traces`,
/// * OTLP/protobuf: one message, or several, each after its length in four big-endian bytes, as
///   from the collector's file exporter with `format: proto`.
///
/// The function never fails. Unreadable parts are noted in [`Input::problems`]. The spans before
/// them are kept, including those of a document that ends in its middle. `source` names the bytes
/// in the notes.
pub fn read(source: &str, bytes: &[u8]) -> Input {
    let mut sink = Sink::default();
    let plain = decompress(source, bytes, &mut sink.input);
    match Format::of(&plain) {
        Format::Json => json(source, &plain, &mut sink),
        Format::Protobuf => {
            protobuf::message(source, &plain, &mut sink);
        }
        Format::PrefixedProtobuf => protobuf::messages(source, &plain, &mut sink),
        Format::Zstd => sink.input.unreadable(zstd(source)),
    }
    sink.input
}

/// Format of input bytes after gzip is decompressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    /// JSON, or text that is meant to be JSON.
    Json,
    /// Single OTLP message.
    Protobuf,
    /// Sequence of OTLP messages, each after its length.
    PrefixedProtobuf,
    /// zstd, which this crate does not decompress.
    Zstd,
}

/// Number of bytes that [`Format::of`] examines.
const HEAD_BYTES: usize = 64;

impl Format {
    fn of(bytes: &[u8]) -> Self {
        let head = &bytes[..bytes.len().min(HEAD_BYTES)];
        // JSON has no control characters except white space. A message has them as tags and
        // lengths.
        let control = |byte: &u8| *byte < 0x20 && !byte.is_ascii_whitespace();
        match head {
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            // This is the tag of the first field, or a newline in text.
            [0x0a, rest @ ..] if rest.iter().any(control) => Self::Protobuf,
            // No message has 2^29 bytes or more.
            [first, ..] if control(first) => Self::PrefixedProtobuf,
            _ => Self::Json,
        }
    }
}

fn zstd(source: &str) -> String {
    format!("{source} is compressed with zstd, which is not read: unpack it first")
}

/// Reads JSON documents as far as possible.
fn json(source: &str, bytes: &[u8], sink: &mut Sink) {
    let text = text_of(bytes);
    let mut rest: &str = &text;
    while !rest.trim_start().is_empty() {
        let mut documents = serde_json::Deserializer::from_str(rest).into_iter::<&RawValue>();
        let broken = loop {
            match documents.next() {
                Some(Ok(document)) => {
                    if let Err(error) = parse(document.get(), sink) {
                        sink.input.unreadable(format!("{source} is not trace data: {error}"));
                    }
                }
                Some(Err(error)) => break Some(error),
                None => break None,
            }
        };
        let Some(error) = broken else { break };
        // The document at this offset is broken. The spans before the break are still taken.
        rest = &rest[documents.byte_offset().min(rest.len())..];
        let _ = parse(rest, sink);
        if error.is_eof() {
            sink.input.unreadable(format!("{source} ends in the middle of the data: {error}"));
            break;
        }
        sink.input.unreadable(format!("{source} is damaged: {error}"));
        // Continue with the next document, which in a file of many begins a line.
        rest = rest.trim_start();
        rest = rest.find("\n{").map_or("", |end| &rest[end + 1..]);
    }
}

/// Returns the bytes as text, with a question mark for each invalid piece. The standard library's
/// replacement character has three bytes, which would enlarge a damaged file.
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

/// Decompresses gzip, if the bytes begin with its magic number.
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

/// Collector of spans during parsing, so that spans before an error are kept.
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

/// Outermost object of either format.
struct Document<'s>(&'s mut Sink);

impl Fields for Document<'_> {
    fn field<'de, M: MapAccess<'de>>(&mut self, key: &str, map: &mut M) -> Result<(), M::Error> {
        match key {
            "resourceSpans" | "resource_spans" | "batches" => {
                map.next_value_seed(Array(&mut otlp::ResourceSpansList(self.0)))
            }
            "result" | "trace" => map.next_value_seed(Object(&mut Document(self.0))),
            "data" => map.next_value_seed(Array(&mut jaeger::TraceList(self.0))),
            "traces" => Err(de::Error::custom(
                "a search of Grafana Tempo lists traces without their spans; ask \
                 /api/traces/ID for each",
            )),
            _ => skip(map),
        }
    }
}

/// Reader of the fields of an object.
trait Fields {
    fn field<'de, M: MapAccess<'de>>(&mut self, key: &str, map: &mut M) -> Result<(), M::Error>;
}

/// Reader of the elements of an array. It must consume exactly one element, or report that there is
/// none.
trait Elements {
    /// Reads one element. Returns whether there was an element.
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

    /// Accepts `null`, which Go writes for an empty list.
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

/// Parses an id of up to `bytes` bytes from hexadecimal, or of `bytes` bytes from base64, as some
/// versions of Jaeger's v3 API write it. Returns `None` for any other text, and for zero.
fn id(text: &str, bytes: usize) -> Option<u128> {
    if text.ends_with('=') {
        return base64_id(text, bytes).filter(|id| *id != 0);
    }
    if text.is_empty() || text.len() > 2 * bytes || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u128::from_str_radix(text, 16).ok().filter(|id| *id != 0)
}

/// Parses an id from base64. Neither 8 nor 16 bytes are a multiple of three, so both end with `=`.
fn base64_id(text: &str, bytes: usize) -> Option<u128> {
    let digits = text.trim_end_matches('=');
    if text.len() != bytes.div_ceil(3) * 4 || digits.len() != (bytes * 8).div_ceil(6) {
        return None;
    }
    let (mut id, mut bits) = (0_u128, bytes * 8);
    for digit in digits.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => return None,
        };
        // Only the upper bits of the last digit belong to the id.
        let used = bits.min(6);
        id = (id << used) | u128::from(value >> (6 - used));
        bits -= used;
    }
    Some(id)
}

fn trace_id(text: &str) -> Option<TraceId> {
    id(text, 16).map(TraceId)
}

fn span_id(text: &str) -> Option<SpanId> {
    id(text, 8).and_then(|id| u64::try_from(id).ok()).map(SpanId)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_hexadecimal_or_base64() {
        assert_eq!(span_id("00000000000000a1"), Some(SpanId(0xa1)));
        assert_eq!(span_id("a1"), Some(SpanId(0xa1)));
        // 0x0102030405060708 and 0x0102…0f10.
        assert_eq!(span_id("AQIDBAUGBwg="), Some(SpanId(0x0102_0304_0506_0708)));
        let trace = TraceId(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10);
        assert_eq!(trace_id("AQIDBAUGBwgJCgsMDQ4PEA=="), Some(trace));
        assert_eq!(trace_id("0102030405060708090a0b0c0d0e0f10"), Some(trace));
        for wrong in ["", "0", "xyz", "AAAAAAAAAAA=", "AQIDBAUGBwg==", "AQIDBAUGBw=", "=", "===="] {
            assert_eq!(span_id(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn formats_are_told_apart_by_their_first_bytes() {
        for (bytes, format) in [
            (&b"{\"resourceSpans\":[]}"[..], Format::Json),
            (b"\n{\n  \"resourceSpans\": []}", Format::Json),
            (b"", Format::Json),
            (b"oops", Format::Json),
            (b"\x0a\x7b\x0a\x20\x0a\x1e\x0a\x0cservice.name", Format::Protobuf),
            (b"\x00\x00\x01\x02\x0a\x7b", Format::PrefixedProtobuf),
            (&[0x28, 0xb5, 0x2f, 0xfd, 0], Format::Zstd),
        ] {
            assert_eq!(Format::of(bytes), format, "{bytes:?}");
        }
    }
}
