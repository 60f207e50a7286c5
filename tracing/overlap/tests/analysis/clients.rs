//! Traces of other clients: recorded where they are on this machine, or with the names of their
//! source.

use tandem_overlap::{
    Attribute, Preset, Report, Selection, Span, TailUntil, Verdict, analyze, read,
};

use crate::common::{input, span};

const US: u64 = 1_000;

fn report(spans: Vec<Span>, preset: Preset) -> Report {
    analyze(input(spans), &preset.into(), 100)
}

/// Three blocks of transfers and contracts on geth 1.17.8, as it exports them by OTLP. The root is
/// computed once execution is over.
#[test]
fn recorded_geth_computes_the_root_after_execution() {
    let bytes = include_bytes!("../fixtures/geth_1_17.otlp.json.gz");
    let report = analyze(read("geth", bytes), &Preset::Geth.into(), 100);
    assert!(!report.partial, "{:?}", report.notes);
    // Block, payload, execution, validation, and the time between the two, from the file.
    let expected = [
        (25, 94_167_807, 82_099_307, 4_624_541, 2_146),
        (40, 81_330_012, 71_844_565, 3_157_600, 2_666),
        (50, 77_037_098, 67_793_088, 3_275_185, 2_386),
    ];
    let found: Vec<_> = report
        .payloads
        .iter()
        .map(|one| (one.block_number.unwrap(), one.payload_ns, one.a_ns, one.b_ns, one.neither_ns))
        .collect();
    assert_eq!(found, expected);
    for one in &report.payloads {
        assert_eq!((one.overlap, one.both_ns), (Some(0.0), 0));
        assert_eq!(one.tail_until, Some(TailUntil::SideB));
        assert_eq!(one.verdict, Some(Verdict::NothingToGain), "hashing takes under a tenth");
    }
}

/// A payload of reth 1.10: names with spaces, a call of the coordinator for each batch.
///
/// ```text
///                              0  2     10   20    30  35   40  45 50  55 µs
///  on_new_payload              [--------------------------------------]
///  execute_block                  [##################]                     2–35
///  storage worker                 [-----######-------######---]            10–20, 35–45
///  update_sparse_trie                                 [-----]              40–50
///    drain updates                                     [##]                45–48
///  await_state_root                                   [------]             36–52
/// ```
#[test]
fn names_of_reth_1_10_are_known() {
    let mut root = span(1, 0, "on_new_payload", 0, 55 * US);
    root.attributes.push(("block_num".to_owned(), Attribute::Int(9)));
    let report = report(
        vec![
            root,
            span(2, 1, "payload processor", US, 52 * US),
            span(3, 1, "execute_block", 2 * US, 35 * US),
            span(4, 1, "storage worker", 2 * US, 50 * US),
            span(5, 4, "Storage proof calculation", 10 * US, 20 * US),
            span(6, 4, "Storage proof calculation", 35 * US, 45 * US),
            span(7, 1, "update_sparse_trie", 40 * US, 50 * US),
            span(8, 7, "drain updates", 45 * US, 48 * US),
            span(9, 1, "await_state_root", 36 * US, 52 * US),
        ],
        Preset::Reth,
    );
    let one = &report.payloads[0];
    assert_eq!(one.block_number, Some(9));
    assert_eq!((one.a_ns, one.b_ns, one.both_ns), (33 * US, 23 * US, 10 * US));
    assert_eq!((one.tail_ns, one.tail_until), (Some(17 * US), Some(TailUntil::Wait)));
}

/// A payload of reth 2.5: names with underscores, and no span that waits for the root. The tail
/// ends with the last work.
///
/// ```text
///                              0  2     10   20    30  35   40  45 48  55 µs
///  on_new_payload              [--------------------------------------]
///  execute_block                  [##################]                     2–35
///  storage_worker                 [-----######-------######---]            10–20, 35–45
///  account_worker                 [-------------------------------]        idle
///  sparse_trie_task               [-------------------------##----]        45–48
/// ```
#[test]
fn names_of_reth_2_5_are_known() {
    let mut root = span(1, 0, "on_new_payload", 0, 55 * US);
    root.attributes.push(("block_num".to_owned(), Attribute::Int(10)));
    let report = report(
        vec![
            root,
            span(3, 1, "execute_block", 2 * US, 35 * US),
            span(4, 1, "storage_worker", 2 * US, 50 * US),
            span(5, 4, "Storage proof calculation", 10 * US, 20 * US),
            span(6, 4, "Storage proof calculation", 35 * US, 45 * US),
            span(7, 1, "account_worker", 2 * US, 52 * US),
            span(8, 1, "sparse_trie_task", 2 * US, 52 * US),
            span(9, 8, "process_new_updates", 45 * US, 48 * US),
        ],
        Preset::Reth,
    );
    let one = &report.payloads[0];
    assert_eq!(one.block_number, Some(10));
    assert_eq!((one.a_ns, one.b_ns, one.both_ns), (33 * US, 23 * US, 10 * US));
    assert_eq!((one.tail_ns, one.tail_until), (Some(13 * US), Some(TailUntil::SideB)));
    // The wall is 2–48, of which both sides together need 56.
    assert_eq!(one.verdict, Some(Verdict::Partial));
    assert!((one.worth.reached.unwrap() - 10.0 / 23.0).abs() < 1e-12);
}

/// Grafana Tempo's answers: version 1 calls the list `batches` and writes ids in base64, version 2
/// has the trace in an object.
#[test]
fn answers_of_tempo_are_read() {
    let otlp = include_str!("../fixtures/hand_counted.otlp.json");
    let want = read("otlp", otlp.as_bytes());
    let v1 = base64_ids(&otlp.replace("\"resourceSpans\"", "\"batches\""));
    assert_ne!(v1, otlp);
    for answer in [v1, format!("{{\"trace\": {otlp}, \"metrics\": {{}}}}")] {
        let got = read("tempo", answer.as_bytes());
        assert_eq!(got.problems, want.problems);
        assert_eq!(got.spans, want.spans);
        let report = analyze(got, &Selection::default(), 100);
        assert_eq!(report, analyze(want.clone(), &Selection::default(), 100));
    }
    let search = r#"{"traces": [{"traceID": "2f3e", "rootServiceName": "executor"}]}"#;
    let got = read("tempo", search.as_bytes());
    assert!(got.problems.unreadable[0].contains("without their spans"), "{:?}", got.problems);
}

/// Returns the document with all ids in base64, as protobuf's JSON writes bytes.
fn base64_ids(document: &str) -> String {
    use base64::prelude::{BASE64_STANDARD, Engine as _};
    let mut document: serde_json::Value = serde_json::from_str(document).unwrap();
    let mut todo = vec![&mut document];
    while let Some(value) = todo.pop() {
        match value {
            serde_json::Value::Array(list) => todo.extend(list),
            serde_json::Value::Object(fields) => {
                for (key, value) in fields {
                    let bytes = match key.as_str() {
                        "traceId" => 16,
                        "spanId" | "parentSpanId" => 8,
                        _ => {
                            todo.push(value);
                            continue;
                        }
                    };
                    let Some(text) = value.as_str().filter(|text| !text.is_empty()) else {
                        continue;
                    };
                    let id = u128::from_str_radix(text, 16).unwrap().to_be_bytes();
                    *value = BASE64_STANDARD.encode(&id[16 - bytes..]).into();
                }
            }
            _ => {}
        }
    }
    document.to_string()
}
