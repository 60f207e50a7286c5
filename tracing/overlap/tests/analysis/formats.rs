//! Equal traces in every readable encoding give equal spans, complete and truncated.

use std::io::{Read, Write};

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::{Event, Link};
use opentelemetry_proto::tonic::trace::v1::{self as otlp, ResourceSpans, ScopeSpans, TracesData};
use prost::Message;
use tandem_overlap::{Attribute, Input, Kind, Span, analyze, read, read_from};

const OTLP: &str = include_str!("../fixtures/hand_counted.otlp.json");
const JAEGER: &str = include_str!("../fixtures/hand_counted.jaeger.json");
const SKEWED: &str = include_str!("../fixtures/skewed_clocks.otlp.json");
const ASYNC: &str = include_str!("../fixtures/async_siblings.otlp.json");

fn pair(key: &str, value: Value) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

fn text(text: &str) -> Value {
    Value::StringValue(text.to_owned())
}

/// Returns the input with the only attribute that [`wire`] gives to a process.
fn with_host(mut input: Input) -> Input {
    for span in &mut input.spans {
        span.resource = [("host.name".to_owned(), span.host.to_string())].into();
    }
    input
}

/// Returns the span as OpenTelemetry's own code writes it.
fn wire(span: &Span) -> otlp::Span {
    let int = |ns: u64| Value::IntValue(i64::try_from(ns).unwrap());
    otlp::Span {
        trace_id: span.trace_id.0.to_be_bytes().to_vec(),
        span_id: span.span_id.0.to_be_bytes().to_vec(),
        parent_span_id: span.parent.map_or(Vec::new(), |id| id.0.to_be_bytes().to_vec()),
        name: span.name.clone(),
        kind: match span.kind {
            Kind::Other => 1,
            Kind::Server => 2,
            Kind::Client => 3,
        },
        start_time_unix_nano: span.start_ns,
        end_time_unix_nano: span.end_ns,
        attributes: span
            .attributes
            .iter()
            .map(|(key, value)| match value {
                Attribute::Bool(value) => pair(key, Value::BoolValue(*value)),
                Attribute::Int(value) => pair(key, Value::IntValue(*value)),
                Attribute::Float(value) => pair(key, Value::DoubleValue(*value)),
                Attribute::Str(value) => pair(key, text(value)),
            })
            .collect(),
        events: span
            .busy
            .iter()
            .map(|(start, end)| Event {
                time_unix_nano: *start,
                name: "busy".to_owned(),
                attributes: vec![
                    pair("busy.start_unix_nano", int(*start)),
                    pair("busy.end_unix_nano", int(*end)),
                ],
                ..Event::default()
            })
            .collect(),
        links: span
            .links
            .iter()
            .map(|link| Link {
                trace_id: link.trace_id.0.to_be_bytes().to_vec(),
                span_id: link.span_id.0.to_be_bytes().to_vec(),
                ..Link::default()
            })
            .collect(),
        ..otlp::Span::default()
    }
}

/// Returns one message per service, in the order of the spans.
fn messages(input: &Input) -> Vec<TracesData> {
    let mut messages: Vec<((&str, &str), TracesData)> = Vec::new();
    for span in &input.spans {
        let origin = (&*span.service, &*span.host);
        if messages.last().is_none_or(|(last, _)| *last != origin) {
            let attributes =
                vec![pair("service.name", text(origin.0)), pair("host.name", text(origin.1))];
            let resource = Resource { attributes, ..Resource::default() };
            let scope_spans = vec![ScopeSpans::default()];
            let resource_spans =
                vec![ResourceSpans { resource: Some(resource), scope_spans, ..Default::default() }];
            messages.push((origin, TracesData { resource_spans }));
        }
        let (_, last) = messages.last_mut().unwrap();
        last.resource_spans[0].scope_spans[0].spans.push(wire(span));
    }
    messages.into_iter().map(|(_, message)| message).collect()
}

fn one_message(input: &Input) -> Vec<u8> {
    let resource_spans = messages(input).into_iter().flat_map(|one| one.resource_spans).collect();
    TracesData { resource_spans }.encode_to_vec()
}

/// Encodes the messages as the collector's file exporter writes them.
fn prefixed(input: &Input) -> Vec<u8> {
    let mut file = Vec::new();
    for message in messages(input) {
        let bytes = message.encode_to_vec();
        file.extend(u32::try_from(bytes.len()).unwrap().to_be_bytes());
        file.extend(bytes);
    }
    file
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Reader that gives one byte at a time, and finally fails if the flag is set.
struct Slow<'a>(&'a [u8], bool);

impl Read for Slow<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match (self.0.split_first(), buffer.first_mut()) {
            (Some((first, rest)), Some(place)) => {
                *place = *first;
                self.0 = rest;
                Ok(1)
            }
            (None, Some(_)) if self.1 => Err(std::io::Error::other("the disk is gone")),
            _ => Ok(0),
        }
    }
}

/// Returns the spans from [`read_from`], with the number of pieces.
fn streamed(reader: impl Read) -> (Input, usize) {
    let (mut all, mut pieces) = (Input::default(), 0);
    read_from("stream", reader, &mut |piece| {
        pieces += usize::from(!piece.spans.is_empty());
        all.merge(piece);
    });
    (all, pieces)
}

#[test]
fn protobuf_gives_the_spans_of_the_json() {
    for json in [OTLP, SKEWED, ASYNC] {
        let expected = with_host(read("json", json.as_bytes()));
        assert!(expected.problems.is_empty());
        for bytes in [one_message(&expected), prefixed(&expected)] {
            for bytes in [gzip(&bytes), bytes] {
                let input = read("protobuf", &bytes);
                assert!(input.problems.is_empty(), "{:?}", input.problems);
                assert_eq!(input.spans, expected.spans);
                let (input, _) = streamed(&bytes[..]);
                assert_eq!(input, expected);
            }
        }
    }
}

#[test]
fn all_kinds_of_attributes_are_read() {
    let mut span = wire(&read("json", OTLP.as_bytes()).spans[0]);
    let list = ArrayValue {
        values: vec![AnyValue { value: Some(Value::IntValue(-1)) }, AnyValue { value: None }],
    };
    span.attributes = vec![
        pair("bool", Value::BoolValue(true)),
        pair("float", Value::DoubleValue(0.5)),
        pair("nan", Value::DoubleValue(f64::NAN)),
        pair("list", Value::ArrayValue(list)),
        pair("bytes", Value::BytesValue(vec![1, 255])),
        KeyValue { key: "nothing".to_owned(), ..KeyValue::default() },
    ];
    let scope_spans = vec![ScopeSpans { spans: vec![span], ..ScopeSpans::default() }];
    let resource_spans = vec![ResourceSpans { scope_spans, ..ResourceSpans::default() }];
    let input = read("attributes", &TracesData { resource_spans }.encode_to_vec());
    assert!(input.problems.is_empty(), "{:?}", input.problems);
    let shown: Vec<String> =
        input.spans[0].attributes.iter().map(|(key, value)| format!("{key}={value}")).collect();
    assert_eq!(shown, ["bool=true", "float=0.5", "nan=NaN", "list=[-1,null]", "bytes=01ff"]);
    assert_eq!(&*input.spans[0].service, "unknown");
}

#[test]
fn protobuf_cut_anywhere_keeps_the_spans_before_the_cut() {
    let whole = with_host(read("json", OTLP.as_bytes()));
    for bytes in [one_message(&whole), prefixed(&whole)] {
        let mut most = 0;
        // From 16 bytes on, the format can be distinguished from text.
        for cut in 16..bytes.len() {
            let input = read("cut", &bytes[..cut]);
            // A cut between two fields of the outermost message cannot be detected.
            let sound = input.problems.is_empty();
            assert!(!sound || whole.spans.starts_with(&input.spans), "cut at {cut}");
            assert!(
                sound || input.problems.lines()[0].contains("ends in the middle"),
                "cut at {cut}: {:?}",
                input.problems
            );
            assert!(input.spans.len() >= most, "cut at {cut}");
            most = input.spans.len();
            let (pieces, _) = streamed(&bytes[..cut]);
            assert_eq!(pieces.spans, input.spans, "cut at {cut}");
            assert_eq!(pieces.problems.is_empty(), sound, "cut at {cut}");
        }
        assert_eq!(most, 6);
    }
}

#[test]
fn damaged_protobuf_is_named() {
    for (bytes, words) in [
        (&[0x0a, 0x03, 0x0f, 0x01, 0x02][..], "is damaged, or no OTLP"),
        (&[0x0a, 0x02, 0x0a, 0x00, 0x0f], "is damaged, or no OTLP"),
        (&[0x00, 0x00, 0x00, 0x01, 0x0f], "is damaged, or no OTLP"),
        (&[0x00, 0x00, 0x00], "ends in the middle"),
        (&[0x28, 0xb5, 0x2f, 0xfd, 0x04, 0x00], "zstd"),
        (&[0x00, 0x00, 0x00, 0x05, 0x28, 0xb5, 0x2f, 0xfd, 0x04], "zstd"),
    ] {
        for input in [read("bad", bytes), streamed(bytes).0] {
            assert!(input.problems.lost_something(), "{bytes:?}");
            let line = &input.problems.lines()[0];
            assert!(line.starts_with("bad") || line.starts_with("stream"), "{line}");
            assert!(line.contains(words), "{bytes:?}: {line}");
        }
    }
}

#[test]
fn a_span_that_is_no_span_costs_only_itself() {
    let whole = read("json", OTLP.as_bytes());
    let mut messages = messages(&whole);
    messages[0].resource_spans[0].scope_spans[0].spans[2].trace_id.truncate(7);
    messages[0].resource_spans[0].scope_spans[0].spans[3].start_time_unix_nano = 0;
    let input = read("bad", &messages[0].encode_to_vec());
    // A time of 0 is not written at all.
    assert_eq!((input.spans.len(), input.problems.malformed_spans), (2, 2));
}

#[test]
fn ids_in_base64_are_read() {
    // Some versions of Jaeger's v3 API write bytes as base64.
    let base64 = OTLP
        .replace("000000000000000000000000000000a1", "AAAAAAAAAAAAAAAAAAAAoQ==")
        .replace("\"0000000000000001\"", "\"AAAAAAAAAAE=\"")
        .replace("\"0000000000000002\"", "\"AAAAAAAAAAI=\"");
    assert!(!base64.contains("000a1"));
    let input = read("base64", format!("{{\"result\":{base64}}}").as_bytes());
    assert_eq!(input, read("hex", OTLP.as_bytes()));
}

#[test]
fn streams_give_what_whole_files_give() {
    let line = |json: &str| json.replace('\n', "");
    let lines = [OTLP, SKEWED, ASYNC].map(line).join("\n");
    let pretty: serde_json::Value = serde_json::from_str(JAEGER).unwrap();
    let pretty = serde_json::to_string_pretty(&pretty).unwrap();
    for (text, pieces) in [
        (OTLP.to_owned(), 1),
        (JAEGER.to_owned(), 1),
        (pretty, 1),
        (lines.clone(), 3),
        (format!("\n\n{lines}\n"), 3),
        (format!("{OTLP}{SKEWED}\n\n{ASYNC}"), 3),
        (format!("{}{}", line(OTLP), line(SKEWED)), 1),
    ] {
        let expected = read("stream", text.as_bytes());
        assert!(expected.problems.is_empty(), "{:?}", expected.problems);
        assert_eq!(streamed(text.as_bytes()), (expected.clone(), pieces));
        assert_eq!(streamed(Slow(text.as_bytes(), false)), (expected.clone(), pieces));
        assert_eq!(streamed(&gzip(text.as_bytes())[..]), (expected, pieces));
    }
}

#[test]
fn a_broken_line_in_a_stream_costs_only_itself() {
    let line = |json: &str| json.replace('\n', "");
    for broken in [
        "{\"resourceSpans\":[oops]}",
        "{\"resourceSpans\":[{\"scopeSpans\":[",
        "{\"resourceSpans\": \"",
        "oops",
    ] {
        let text = format!("{}\n{broken}\n{}\n", line(OTLP), line(SKEWED));
        let (input, _) = streamed(text.as_bytes());
        assert_eq!(input.spans.len(), 7 + 9, "{broken}");
        assert_eq!(input.problems.unreadable.len(), 1, "{broken}: {:?}", input.problems);
    }
}

#[test]
fn a_source_that_fails_keeps_what_came_before() {
    let two = format!("{}\n{}", OTLP.replace('\n', ""), SKEWED.replace('\n', ""));
    let (input, _) = streamed(Slow(two.as_bytes(), true));
    assert_eq!(input.spans.len(), 16);
    assert!(input.problems.lines().iter().any(|line| line.contains("the disk is gone")));
    let cut = gzip(two.as_bytes());
    let (input, _) = streamed(&cut[..cut.len() - 20]);
    let lines = input.problems.lines();
    assert!(lines.iter().any(|line| line.contains("damaged or cut off")), "{lines:?}");
    assert!(!input.spans.is_empty());
    assert!(analyze(input, &Default::default(), 10).partial);
    let (nothing, _) = streamed(&[0x1f, 0x8b, 8, 0, 1][..]);
    assert!(nothing.problems.lost_something());
}
