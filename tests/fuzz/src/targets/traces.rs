//! Files of traces, as `tandem overlap` reads them.

use crate::{Target, heap, structures};
use tandem_overlap::{Preset, analyze, html, json, read, text};

/// Trace files, not compressed: what gzip unpacks to is bounded by a fixed number of bytes.
pub const TARGET: Target = Target {
    name: "traces",
    bytes_per_byte: 4,
    structures: structures::none,
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
    vec![jaeger.to_vec(), otlp.to_vec(), [&otlp[..], b"\n", otlp].concat()]
}

fn read_traces(input: &[u8]) {
    if input.starts_with(&[0x1f, 0x8b]) {
        let _ = read("input", input);
        return;
    }
    let spans = heap::measured(|| read("input", input));
    let report = analyze(&spans, &Preset::Tandem.into(), 100);
    let _ = (text(&report), html(&report, &spans));
    let report = json(&report);
    assert!(serde_json::from_str::<serde_json::Value>(&report).is_ok(), "{report}");
}
