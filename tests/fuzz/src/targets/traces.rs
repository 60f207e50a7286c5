//! Files of traces, as `tandem overlap` reads them.

use crate::{Target, heap, structures};
use tandem_overlap::{Analyzer, Options, Preset, analyze, html, json, read, read_from, text};

/// Target for uncompressed trace files: the output of gzip is bounded by a fixed number of bytes.
pub const TARGET: Target = Target {
    name: "traces",
    bytes_per_byte: 4,
    structures: structures::spans,
    constant: 16 << 10,
    input_len_max: 16 << 10,
    mutations: 4000,
    seeds,
    dictionary: &[
        b"null",
        b"[]",
        b"{}",
        b"\"\"",
        b"0",
        b"18446744073709551615",
        b"\"resourceSpans\":",
        b"\"data\":",
        b"\"result\":",
        b"\"busy\"",
        b"\"on_new_payload\"",
        b"\n{",
        b"\xff",
        b"\"links\":",
        b"-1",
        b"\x0a",
        b"\x12",
        b"\x00\x00\x00\x10",
    ],
    run: read_traces,
};

fn seeds() -> Vec<Vec<u8>> {
    let jaeger =
        include_bytes!("../../../../tracing/overlap/tests/fixtures/hand_counted.jaeger.json");
    let otlp = br#"{"resourceSpans":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"executor"}}]},
        "scopeSpans":[{"spans":[
        {"traceId":"0102030405060708090a0b0c0d0e0f10","spanId":"0102030405060708","name":"on_new_payload",
         "startTimeUnixNano":"100","endTimeUnixNano":"900","attributes":[{"key":"block.number","value":{"intValue":"5"}}]},
        {"traceId":"0102030405060708090a0b0c0d0e0f10","spanId":"0102030405060709","parentSpanId":"0102030405060708",
         "name":"payload processor","startTimeUnixNano":"110","endTimeUnixNano":"500",
         "attributes":[{"key":"busy_ns","value":{"arrayValue":{"values":[{"intValue":"120"},{"intValue":"300"}]}}}]},
        {"traceId":"0102030405060708090a0b0c0d0e0f10","spanId":"010203040506070a","parentSpanId":"0102030405060708",
         "name":"storage worker","startTimeUnixNano":"200","endTimeUnixNano":"700",
         "links":[{"traceId":"0102030405060708090a0b0c0d0e0f11","spanId":"0102030405060708"}]}]}]}]}"#;
    let prefixed = [&(PROTOBUF.len() as u32).to_be_bytes()[..], PROTOBUF].concat();
    vec![
        jaeger.to_vec(),
        otlp.to_vec(),
        [&otlp[..], b"\n", otlp].concat(),
        PROTOBUF.to_vec(),
        [&prefixed[..], &prefixed].concat(),
    ]
}

/// A handwritten `TracesData`: a service without a name, and one span with an attribute, a busy
/// event and a link.
const PROTOBUF: &[u8] = &[
    10, 137, 1, // resource_spans
    10, 20, 10, 18, 10, 12, b's', b'e', b'r', b'v', b'i', b'c', b'e', b'.', b'n', b'a', b'm', b'e',
    18, 2, 10, 0, // service.name, empty
    18, 113, 18, 111, // scope_spans, span
    10, 16, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, // trace_id
    18, 8, 1, 2, 3, 4, 5, 6, 7, 8, // span_id
    42, 14, b'o', b'n', b'_', b'n', b'e', b'w', b'_', b'p', b'a', b'y', b'l', b'o', b'a', b'd', 48,
    3, // kind
    57, 100, 0, 0, 0, 0, 0, 0, 0, // start
    65, 132, 3, 0, 0, 0, 0, 0, 0, // end
    74, 7, 10, 1, b'k', 18, 2, 24, 5, // attribute
    90, 6, 18, 4, b'b', b'u', b's', b'y', // event
    106, 28, 10, 16, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17, // link
    18, 8, 1, 2, 3, 4, 5, 6, 7, 9,
];

fn read_traces(input: &[u8]) {
    if input.starts_with(&[0x1f, 0x8b]) {
        let _ = read("input", input);
        return;
    }
    let spans = heap::measured(|| read("input", input));
    let report = analyze(spans, &Preset::Tandem.into(), 100);
    let _ = (text(&report), html(&report));
    // Read again in pieces, most of which are complete before the next one arrives.
    let mut analyzer = Analyzer::new(Options::new(Preset::Reth.into(), 100), Some(2));
    read_from("input", input, &mut |piece| analyzer.add(piece));
    let _ = text(&analyzer.finish());
    let report = json(&report);
    assert!(serde_json::from_str::<serde_json::Value>(&report).is_ok(), "{report}");
}
