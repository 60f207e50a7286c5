//! Gains of faster stages, on traces counted by hand and on those of real runs.

use crate::common::{input, span};
use tandem_overlap::{Attribute, Options, Report, Selection, analyze_with, read};

fn what_if(spans: Vec<tandem_overlap::Span>) -> Report {
    let options = Options { what_if: true, ..Options::new(Selection::default(), 10) };
    analyze_with(input(spans), options)
}

/// Returns the parts of the payload for a stage: on the path, gained by 10 % and by 50 %.
fn parts(report: &Report, stage: &str) -> [f64; 3] {
    let found = report.what_if.iter().find(|gain| gain.stage == stage);
    let found = found.unwrap_or_else(|| panic!("{stage} in {:?}", report.what_if));
    let parts = [found.on_path.median, found.gain_10.median, found.gain_50.median];
    parts.map(|part| (part * 1e6).round() / 1e6)
}

/// A payload of 100: decoding until 10, execution until 80 with a wait for state of 20 in it, workers
/// beside it and until 90, storing until 100.
fn payload() -> Vec<tandem_overlap::Span> {
    let mut execution = span(3, 1, "payload processor", 10, 80);
    execution.busy = vec![(10, 40), (60, 80)];
    execution.attributes.push(("wait.state_ns".into(), Attribute::Int(20)));
    let mut lane = span(4, 1, "state root, while executing", 20, 70);
    lane.busy = vec![(20, 30), (60, 70)];
    vec![
        span(1, 0, "on_new_payload", 0, 100),
        span(2, 1, "decode_payload", 0, 10),
        execution,
        lane,
        span(5, 1, "state root, after execution", 80, 90),
        span(6, 1, "await_state_root", 80, 90),
        span(7, 1, "write_batch", 90, 100),
    ]
}

#[test]
fn each_stage_and_each_wait_has_its_gain() {
    let report = what_if(payload());
    assert_eq!(parts(&report, "decode_payload"), [0.1, 0.01, 0.05]);
    assert_eq!(parts(&report, "payload processor"), [0.5, 0.05, 0.25]);
    assert_eq!(parts(&report, "execution waits: for state"), [0.2, 0.02, 0.1]);
    assert_eq!(parts(&report, "state root"), [0.1, 0.01, 0.05]);
    assert_eq!(parts(&report, "write_batch"), [0.1, 0.01, 0.05]);
    let all: f64 = report.what_if.iter().map(|gain| gain.on_path.median).sum();
    assert!((all - 1.0).abs() < 1e-9, "the path is the whole payload: {all}");
    let text = tandem_overlap::text(&report);
    let line = "   50.0 %      5.0 [5.0, 5.0] %   25.0 [25.0, 25.0] %  payload processor\n";
    assert!(text.contains(line), "{text}");
}

#[test]
fn nothing_is_said_unless_asked() {
    let report = analyze_with(input(payload()), Options::new(Selection::default(), 10));
    assert!(report.what_if.is_empty());
    assert!(!tandem_overlap::text(&report).contains("what if"));
}

#[test]
fn real_traces_are_covered_and_gain_no_more_than_all() {
    for (name, text) in [
        ("parallel", include_str!("../fixtures/parallel.otlp.json")),
        ("sequential", include_str!("../fixtures/sequential.otlp.json")),
    ] {
        let report = what_if(read(name, text.as_bytes()).spans);
        assert!(!report.what_if.is_empty(), "{name}");
        for gain in &report.what_if {
            let (ten, half) = (gain.gain_10.median, gain.gain_50.median);
            assert!(ten >= -1e-9 && ten <= half + 1e-9 && half < 1.0, "{name}: {gain:?}");
        }
        let found = |stage: &str| report.what_if.iter().find(|gain| gain.stage == stage).unwrap();
        if name == "sequential" {
            assert!(found("state root").gain_50.median > 0.1, "{:?}", report.what_if);
        }
    }
}
