//! Small trace whose numbers were counted by hand, in all formats.
//!
//! Times in µs after the start of the root:
//!
//! ```text
//!                              0    10   20   30   40   50   60   70   80   90   100
//!  on_new_payload              [------------------------------------------------]      0–100
//!  validate_block_with_state    [----------------------------------------------]       2–98
//!  payload processor              [##########··#################]                      5–65
//!  storage worker                 [··##########··········#####···············]         5–90
//!  storage worker                 [·······##########··············########···]         5–90
//!  account worker                 [·····································#####·]        5–92
//!  await_state_root                                               [------------]      65–92
//!
//!  A            = 5–25, 30–65                       |A|   = 20 + 35      = 55
//!  B            = 10–30, 50–60, 20–40, 70–85, 80–90
//!               = 10–40, 50–60, 70–90               |B|   = 30 + 10 + 20 = 60
//!  A ∩ B        = 10–25, 30–40, 50–60               |A∩B| = 15 + 10 + 10 = 35
//!  overlap      = 35 / min(55, 60)                  = 35 / 55 = 0.636…
//!  wall         = 5–90                              = 85
//!  neither      = 65–70                             = 5
//!  serialization = (85 − 60) / 55                   = 25 / 55 = 0.454…
//!  containers   A 5–65, B 5–92: both 60, min 60     = 1.0, misleading
//!  tail         = 65–92 (await_state_root)          = 27, of 100 = 0.27
//!  lag          = 10 − 5                            = 5
//!
//!  Critical path, walking back from 100:
//!    on_new_payload 98–100 · validate 92–98 · await 90–92 · account 80–90 · storage 70–80 ·
//!    await 65–70 · payload processor 30–65 · storage 20–30 · storage 10–20 ·
//!    payload processor 5–10 · validate 2–5 · on_new_payload 0–2
//!    payload processor 40, storage worker 30, account worker 10, validate 9, await 7, root 4
//! ```

use std::io::Write;

use tandem_overlap::{
    PayloadReport, Report, Selection, TailUntil, Verdict, analyze, html, json, read, text,
};

const OTLP: &str = include_str!("../fixtures/hand_counted.otlp.json");
const JAEGER: &str = include_str!("../fixtures/hand_counted.jaeger.json");

fn report(bytes: &[u8]) -> Report {
    let input = read("trace", bytes);
    assert!(input.problems.is_empty(), "{:?}", input.problems);
    analyze(input, &Selection::default(), 100)
}

fn assert_hand_count(one: &PayloadReport) {
    let close = |value: Option<f64>, expected: f64| (value.unwrap() - expected).abs() < 1e-12;
    assert_eq!(one.block_number, Some(7));
    assert_eq!(one.payload_ns, 100_000);
    assert_eq!((one.a_ns, one.b_ns, one.both_ns), (55_000, 60_000, 35_000));
    assert_eq!((one.wall_ns, one.neither_ns), (85_000, 5_000));
    assert!(close(one.overlap, 35.0 / 55.0));
    assert!(close(one.serialization, 25.0 / 55.0));
    assert!(close(one.container_overlap, 1.0));
    assert_eq!((one.tail_ns, one.tail_until), (Some(27_000), Some(TailUntil::Wait)));
    assert!(close(one.tail_share, 0.27));
    assert_eq!(one.b_lag_ns, Some(5_000));
    // Chance 60/85, gain 115/85, reached (115 − 85)/55, weight 55/100; the tail 65–92 is busy in
    // 70–90.
    assert!(close(one.worth.chance, 60.0 / 85.0) && close(one.worth.gain, 115.0 / 85.0));
    assert!(close(one.worth.reached, 30.0 / 55.0) && close(one.worth.weight, 0.55));
    assert!(close(one.worth.b_per_a, 60.0 / 55.0));
    assert_eq!((one.worth.saved_ns, one.worth.could_save_ns), (35_000, 20_000));
    assert_eq!((one.worth.tail_busy_ns, one.worth.tail_waiting_ns), (Some(20_000), Some(7_000)));
    assert_eq!((one.joined_ns, one.doubts.len()), (0, 0));
    assert_eq!(one.verdict, Some(Verdict::Partial));
    assert_eq!((one.spans, one.a_spans, one.b_spans), (7, 1, 3));
    let path: Vec<(&str, u64)> =
        one.critical_path.iter().map(|step| (step.name.as_str(), step.ns / 1_000)).collect();
    let expected = [
        ("payload processor", 40),
        ("storage worker", 30),
        ("account worker", 10),
        ("validate_block_with_state", 9),
        ("await_state_root", 7),
        ("on_new_payload", 4),
    ];
    assert_eq!(path, expected);
}

#[test]
fn otlp_json_gives_the_hand_count() {
    let report = report(OTLP.as_bytes());
    assert!(!report.partial);
    assert_hand_count(&report.payloads[0]);
    assert_eq!(report.verdict, Some(Verdict::Partial));
    // Workers were ready at 1 and 3 µs and started at 5 µs.
    let gaps = &report.queue_gaps[0];
    assert_eq!(
        (gaps.name.as_str(), gaps.gap_ns.min, gaps.gap_ns.max),
        ("storage worker", 2e3, 4e3)
    );
}

#[test]
fn jaeger_json_gives_the_hand_count() {
    assert_hand_count(&report(JAEGER.as_bytes()).payloads[0]);
}

#[test]
fn jaeger_v3_wrapping_gives_the_hand_count() {
    let wrapped = format!("{{\"result\": {OTLP}}}");
    assert_hand_count(&report(wrapped.as_bytes()).payloads[0]);
}

#[test]
fn compressed_file_gives_the_hand_count() {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(OTLP.as_bytes()).unwrap();
    assert_hand_count(&report(&encoder.finish().unwrap()).payloads[0]);
}

#[test]
fn collector_file_with_one_object_per_line_gives_the_hand_count() {
    // The collector's file exporter writes the batch of every service in a line of its own.
    let whole: serde_json::Value = serde_json::from_str(OTLP).unwrap();
    let lines: String = whole["resourceSpans"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| format!("{}\n", serde_json::json!({ "resourceSpans": [one] })))
        .collect();
    assert_eq!(lines.lines().count(), 2);
    assert_hand_count(&report(lines.as_bytes()).payloads[0]);
}

#[test]
fn text_says_verdict_thresholds_and_numbers() {
    let text = text(&report(OTLP.as_bytes()));
    for expected in [
        "verdict: PARTIAL, median overlap 0.64",
        "PARALLEL ≥ 0.80 > PARTIAL ≥ 0.30 > SEQUENTIAL",
        "block 7",
        "0.45",
        "27.0 %",
        "payload processor 0.040 ms",
    ] {
        assert!(text.contains(expected), "{expected:?} is not in\n{text}");
    }
}

#[test]
fn json_has_the_documented_fields() {
    let report: serde_json::Value = serde_json::from_str(&json(&report(OTLP.as_bytes()))).unwrap();
    assert_eq!(report["schema"], "tandem.overlap/1");
    assert_eq!(report["verdict"], "PARTIAL");
    assert_eq!(report["partial"], false);
    assert_eq!(report["thresholds"]["parallel"], 0.8);
    assert_eq!(report["payloads"][0]["trace_id"], "000000000000000000000000000000a1");
    assert_eq!(report["payloads"][0]["both_ns"], 35_000);
    assert_eq!(report["payloads"][0]["tail_until"], "wait");
    assert_eq!(report["summary"]["total"]["wall_ns"], 85_000);
    assert_eq!(report["worst"][0], "000000000000000000000000000000a1");
}

#[test]
fn html_is_one_file_with_the_data_in_it() {
    let input = read("trace", OTLP.as_bytes());
    let page = html(&analyze(input, &Selection::default(), 100));
    assert!(page.starts_with("<!doctype html>"));
    assert!(page.contains("\"tandem.timeline/1\""));
    assert!(page.contains("await_state_root"));
    assert!(!page.contains("http://") && !page.contains("https://"));
}
