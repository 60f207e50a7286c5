//! Damaged, strange and large inputs. They must give a clear message and a partial answer, never a
//! panic.

use crate::common::{input, span};
use proptest::prelude::*;
use tandem_overlap::{
    Analyzer, Attribute, Busy, Doubt, Input, Link, Options, Pattern, Preset, Selection, Side, Span,
    SpanId, TraceId, Verdict, analyze, html, json, read, text,
};

const OTLP: &str = include_str!("../fixtures/hand_counted.otlp.json");
const JAEGER: &str = include_str!("../fixtures/hand_counted.jaeger.json");

/// Runs all renderers, which must accept every report.
fn render_all(input: &Input, selection: &Selection) {
    let report = analyze(input.clone(), selection, 100);
    assert!(!text(&report).is_empty());
    assert!(!json(&report).is_empty());
    assert!(!html(&report).is_empty());
}

#[test]
fn file_cut_anywhere_keeps_the_spans_before_the_cut() {
    for document in [OTLP, JAEGER] {
        let mut most = 0;
        for cut in 1..document.trim_end().len() {
            let input = read("cut", &document.as_bytes()[..cut]);
            assert!(input.problems.lost_something(), "cut at {cut}");
            assert!(
                input.problems.lines()[0].contains("ends in the middle"),
                "{:?}",
                input.problems
            );
            assert!(input.spans.len() >= most, "cut at {cut}");
            most = input.spans.len();
            let report = analyze(input, &Selection::default(), 10);
            assert!(report.partial);
        }
        assert_eq!(most, 7);
    }
}

#[test]
fn cut_otlp_file_still_names_the_services() {
    let cut = OTLP.find("account worker").unwrap();
    let input = read("cut", &OTLP.as_bytes()[..cut]);
    assert_eq!(input.spans.len(), 6);
    assert_eq!(&*input.spans[5].service, "multiproof-workers");
}

#[test]
fn broken_line_costs_only_itself() {
    let line = OTLP.replace('\n', "");
    let other = line.replace("a1\"", "a2\"");
    let input =
        read("lines", format!("{line}\n{{\"resourceSpans\":[oops]}}\n{other}\n").as_bytes());
    assert_eq!(input.spans.len(), 14);
    assert_eq!(input.problems.unreadable.len(), 1, "{:?}", input.problems);
    assert!(input.problems.unreadable[0].starts_with("lines is damaged"));
}

#[test]
fn foreign_json_and_garbage_are_named() {
    for (garbage, lost) in [
        ("", false),
        ("   \n", false),
        ("{}", false),
        ("[]", true),
        ("not json", true),
        ("{\"error\": \"no such trace\"}", false),
        ("{\"resourceSpans\": 7}", true),
        ("{\"resourceSpans\": null}", false),
        ("\u{0}\u{1}\u{2}", true),
    ] {
        let input = read("garbage", garbage.as_bytes());
        assert_eq!(input.problems.lost_something(), lost, "{garbage:?}: {:?}", input.problems);
        let report = analyze(input.clone(), &Selection::default(), 10);
        assert_eq!(report.verdict, None);
        assert!(report.notes[0].contains("on_new_payload"), "{:?}", report.notes);
        render_all(&input, &Selection::default());
    }
}

#[test]
fn damaged_gzip_is_reported() {
    let input = read("x.gz", &[0x1f, 0x8b, 8, 0, 1, 2, 3]);
    assert!(input.problems.unreadable[0].contains("x.gz: compressed data is damaged"));
}

#[test]
fn duplicated_spans_count_once() {
    let twice = format!("{OTLP}\n{OTLP}");
    let input = read("twice", twice.as_bytes());
    assert_eq!((input.spans.len(), input.problems.duplicate_spans), (7, 7));
    assert!(!input.problems.lost_something(), "nothing is missing");
    let mut merged = read("one", OTLP.as_bytes());
    merged.merge(read("two", JAEGER.as_bytes()));
    assert_eq!((merged.spans.len(), merged.problems.duplicate_spans), (7, 7));
}

#[test]
fn span_with_a_field_of_a_wrong_type_is_left_out_and_counted() {
    let bad = OTLP.replacen(
        "\"startTimeUnixNano\":\"1700000000000005000\"",
        "\"startTimeUnixNano\":[]",
        1,
    );
    assert_ne!(bad, OTLP);
    let input = read("bad", bad.as_bytes());
    assert_eq!((input.spans.len(), input.problems.malformed_spans), (6, 1));
    let input = read("bad", OTLP.replace("a1\"", "zz\"").as_bytes());
    assert_eq!((input.spans.len(), input.problems.malformed_spans), (0, 7));
}

#[test]
fn span_that_ends_before_it_starts_is_empty_and_counted() {
    let bad = OTLP.replacen("1700000000000092000", "1600000000000000000", 1);
    let input = read("bad", bad.as_bytes());
    assert_eq!(input.problems.negative_durations, 1);
    assert!(input.spans.iter().all(|span| span.start_ns <= span.end_ns));
    assert!(analyze(input, &Selection::default(), 10).partial);
}

#[test]
fn missing_parent_keeps_the_span_and_marks_the_answer() {
    let spans = vec![
        span(1, 0, "on_new_payload", 0, 100),
        span(2, 1, "payload processor", 0, 50),
        span(3, 99, "storage worker", 10, 60),
    ];
    let report = analyze(input(spans), &Selection::default(), 10);
    let one = &report.payloads[0];
    assert!(report.partial);
    assert_eq!((one.orphans, one.b_ns, one.both_ns), (1, 50, 40));
    assert_eq!(one.verdict, Some(Verdict::Parallel), "40 of 50");
}

#[test]
fn ancestors_of_the_root_are_neither_members_nor_lost() {
    // The span above `rpc` is of a caller that exports elsewhere, or nowhere.
    let spans = vec![
        span(9, 99, "rpc", 0, 101),
        span(1, 9, "on_new_payload", 0, 100),
        span(2, 1, "payload processor", 0, 60),
        span(3, 1, "state root, while executing", 20, 50),
        span(4, 1, "state root, after execution", 60, 90),
        span(5, 9, "validate_blobs", 10, 20),
    ];
    let report = analyze(input(spans), &Selection::default(), 10);
    let one = &report.payloads[0];
    assert!(!report.partial, "{:?}", report.notes);
    assert_eq!((one.spans, one.orphans), (5, 0), "all but rpc");
    assert_eq!((one.a_ns, one.b_ns, one.both_ns), (60, 60, 30));
    let path: Vec<_> = one.critical_path.iter().map(|step| (&*step.name, step.ns)).collect();
    assert_eq!(
        path,
        [("payload processor", 60), ("state root, after execution", 30), ("on_new_payload", 10)]
    );
}

#[test]
fn two_runs_in_one_file_are_noticed_and_told_apart_by_a_tag() {
    let mut spans = Vec::new();
    for (run, b_start) in [("one", 0_u64), ("two", 50)] {
        let resource: std::sync::Arc<[(String, String)]> =
            [("service.instance.id", run), ("run", run)]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into();
        for (id, name, start, end) in [
            (1, "on_new_payload", 0, 100),
            (2, "payload processor", 0, 50),
            (3, "state root, while executing", b_start, b_start + 50),
        ] {
            let mut span = span(id, u64::from(id != 1), name, start, end);
            (span.trace_id, span.resource) = (TraceId(2 + u128::from(b_start)), resource.clone());
            spans.push(span);
        }
    }
    let report = analyze(input(spans.clone()), &Selection::default(), 10);
    assert_eq!(report.payloads.len(), 2);
    assert!(report.notes.iter().any(|note| note.starts_with("2 processes")), "{:?}", report.notes);
    let mut options = Options::new(Selection::default(), 10);
    options.filter.tags = vec![("run".to_owned(), "two".to_owned())];
    let mut analyzer = Analyzer::new(options, None);
    analyzer.add(input(spans.clone()));
    let report = analyzer.finish();
    assert_eq!(report.payloads.len(), 1);
    assert_eq!(report.verdict, Some(Verdict::Sequential));
    assert!(!report.notes.iter().any(|note| note.contains("processes")), "{:?}", report.notes);
    let limited = analyze(input(spans), &Selection::default(), 1);
    assert!(limited.notes.iter().any(|note| note.contains("--limit")), "{:?}", limited.notes);
}

#[test]
fn side_that_a_failed_export_lost_is_missed() {
    let mut root = span(1, 0, "on_new_payload", 0, 100);
    let spans = |root: &Span| vec![root.clone(), span(2, 1, "payload processor", 0, 50)];
    assert!(!analyze(input(spans(&root)), &Selection::default(), 10).partial);
    root.attributes.push(("overlap.b_us".to_owned(), Attribute::Int(7)));
    let report = analyze(input(spans(&root)), &Selection::default(), 10);
    assert!(report.partial);
    assert!(report.notes.iter().any(|note| note.contains("lost all spans of side B")));
}

#[test]
fn parent_cycles_end() {
    let spans = vec![
        span(1, 2, "on_new_payload", 0, 100),
        span(2, 1, "validate_block_with_state", 0, 100),
        span(3, 3, "storage worker", 0, 10),
        span(4, 2, "payload processor", 0, 20),
    ];
    let input = input(spans);
    let report = analyze(input.clone(), &Selection::default(), 10);
    assert_eq!(report.payloads.len(), 1);
    let path: u64 = report.payloads[0].critical_path.iter().map(|step| step.ns).sum();
    assert_eq!(path, 100, "the path covers the payload");
    render_all(&input, &Selection::default());
}

#[test]
fn payloads_sharing_a_trace_are_kept_apart() {
    // A consensus client sends one traceparent for two calls.
    let spans = vec![
        span(1, 9, "on_new_payload", 0, 100),
        span(2, 1, "payload processor", 0, 50),
        span(3, 1, "storage worker", 0, 50),
        span(4, 9, "on_new_payload", 200, 300),
        span(5, 4, "payload processor", 200, 250),
        span(6, 4, "storage worker", 250, 300),
        span(7, 77, "storage worker", 240, 250),
    ];
    let report = analyze(input(spans), &Selection::default(), 10);
    let overlaps: Vec<f64> = report.payloads.iter().filter_map(|one| one.overlap).collect();
    assert_eq!(overlaps, [1.0, 0.2], "the lost span of 240–250 went to the payload it overlaps");
    assert_eq!(report.payloads[1].tail_ns, Some(50));
}

#[test]
fn batch_in_another_trace_belongs_to_the_payload_it_links_to() {
    let mut batch = span(3, 0, "storage worker", 10, 40);
    batch.trace_id = TraceId(2);
    batch.links = vec![Link { trace_id: TraceId(1), span_id: SpanId(1) }];
    let spans =
        vec![span(1, 0, "on_new_payload", 0, 100), span(2, 1, "payload processor", 0, 50), batch];
    let report = analyze(input(spans), &Selection::default(), 10);
    assert_eq!((report.payloads[0].b_ns, report.payloads[0].overlap), (30, Some(1.0)));
}

#[test]
fn work_after_the_answer_does_not_count() {
    let spans = vec![
        span(1, 0, "on_new_payload", 0, 100),
        span(2, 1, "payload processor", 0, 60),
        span(3, 1, "storage worker", 40, 500),
    ];
    let report = analyze(input(spans), &Selection::default(), 10);
    assert_eq!((report.payloads[0].b_ns, report.payloads[0].wall_ns), (60, 100));
}

#[test]
fn payload_without_one_side_has_no_verdict() {
    let spans = vec![span(1, 0, "on_new_payload", 0, 100), span(2, 1, "payload processor", 0, 60)];
    let input = input(spans);
    let report = analyze(input.clone(), &Selection::default(), 10);
    assert_eq!((report.verdict, report.median_overlap()), (None, None));
    assert!(report.notes.iter().any(|note| note.contains("without work on side B")));
    render_all(&input, &Selection::default());
}

#[test]
fn workers_of_reth_are_busy_while_their_proofs_run() {
    let spans = vec![
        span(1, 0, "on_new_payload", 0, 100),
        span(2, 1, "execute_block", 0, 50),
        span(3, 1, "payload processor", 0, 100),
        span(4, 1, "storage worker", 0, 100),
        span(5, 4, "Storage proof calculation", 40, 60),
        span(6, 1, "storage worker", 0, 100),
    ];
    let report = analyze(input(spans.clone()), &Preset::Reth.into(), 10);
    let one = &report.payloads[0];
    assert_eq!((one.a_ns, one.b_ns, one.both_ns), (50, 20, 10), "A is execute_block, B the proof");
    assert_eq!(one.container_overlap, Some(1.0));
    let path: Vec<(&str, u64)> =
        one.critical_path.iter().map(|step| (step.name.as_str(), step.ns)).collect();
    let expected =
        [("execute_block", 40), ("on_new_payload", 40), ("Storage proof calculation", 20)];
    assert_eq!(path, expected, "containers take no blame");
    // Without proof spans (a lower trace level) only the containers remain, and a note says so.
    let without: Vec<Span> = spans.into_iter().filter(|span| span.span_id.0 != 5).collect();
    let report = analyze(input(without), &Preset::Reth.into(), 10);
    assert_eq!(report.payloads[0].b_ns, 100);
    assert_eq!(report.payloads[0].doubts, [Doubt::WholeSpans]);
    assert_eq!((report.verdict, report.payloads[0].verdict), (None, None));
    assert!(report.notes.iter().any(|note| note.contains("upper bound")), "{:?}", report.notes);
}

#[test]
fn published_regression_is_called_sequential() {
    // Figures of the batching regression: 309.26 ms and 321.76 ms of work in 555.21 ms.
    let ms = |ms: f64| (ms * 1e6) as u64;
    let spans = vec![
        span(1, 0, "on_new_payload", 0, ms(555.39)),
        span(2, 1, "payload processor", 0, ms(309.26)),
        span(3, 1, "storage worker", ms(555.21 - 321.76), ms(555.21)),
    ];
    let report = analyze(input(spans), &Selection::default(), 10);
    assert_eq!(report.verdict, Some(Verdict::Sequential));
    assert!((report.median_overlap().unwrap() - 0.245).abs() < 0.001);
    let spans = vec![
        span(1, 0, "on_new_payload", 0, ms(122.42)),
        span(2, 1, "payload processor", ms(0.5), ms(114.16)),
        span(3, 1, "storage worker", ms(0.6), ms(122.31)),
    ];
    let report = analyze(input(spans), &Selection::default(), 10);
    assert_eq!(report.verdict, Some(Verdict::Parallel));
}

#[test]
fn clocks_that_disagree_are_reported() {
    let mut remote = span(3, 1, "storage worker", 900_000, 2_000_000);
    remote.service = "multiproof-workers".into();
    let spans = vec![
        span(1, 0, "on_new_payload", 1_000_000, 5_000_000),
        span(2, 1, "payload processor", 1_000_000, 2_000_000),
        remote,
    ];
    let report = analyze(input(spans), &Selection::default(), 10);
    assert_eq!((report.skew[0].at_least_ns, report.skew[0].violations), (100_000, 1));
    assert!(report.notes.iter().any(|note| note.contains("clocks differ")));
}

#[test]
fn own_names_can_be_chosen() {
    let spans = vec![
        span(1, 0, "root", 0, 100),
        span(2, 1, "execute 1", 0, 30),
        span(3, 1, "execute 2", 30, 60),
        span(4, 1, "hash", 50, 70),
    ];
    let selection = Selection {
        root: Pattern::new("root"),
        a: Side::new(["execute *"], Busy::Whole),
        b: Side::new(["hash"], Busy::Whole),
        wait: Pattern::new("await*"),
        answered: Vec::new(),
    };
    let report = analyze(input(spans), &selection, 10);
    let one = &report.payloads[0];
    assert_eq!((one.a_ns, one.b_ns, one.both_ns, one.tail_ns), (60, 20, 10, Some(10)));
}

#[test]
fn limit_takes_the_youngest_payloads() {
    let mut spans = Vec::new();
    for n in 0..10 {
        let mut root = span(1, 0, "on_new_payload", n * 100, n * 100 + 50);
        root.trace_id = TraceId(u128::from(n) + 1);
        root.attributes.push(("block.number".to_owned(), Attribute::Int(n as i64)));
        spans.push(root);
    }
    let report = analyze(input(spans), &Selection::default(), 3);
    let blocks: Vec<u64> = report.payloads.iter().filter_map(|one| one.block_number).collect();
    assert_eq!(blocks, [7, 8, 9]);
}

/// Returns random forests of spans with random names, times and parents, including cycles.
fn forests() -> impl Strategy<Value = Vec<Span>> {
    let names = prop::sample::select(vec![
        "on_new_payload",
        "payload processor",
        "storage worker",
        "account worker",
        "await_state_root",
        "validate_block_with_state",
    ]);
    let times = (0u64..1_000, 0u64..1_000);
    let one = (
        0u128..3,
        1u64..30,
        0u64..30,
        names,
        times,
        prop::collection::vec((0u64..1_000, 0u64..1_000), 0..4),
    );
    prop::collection::vec(one, 0..40).prop_map(|spans| {
        spans
            .into_iter()
            .map(|(trace, id, parent, name, (start, length), busy)| Span {
                trace_id: TraceId(trace + 1),
                busy,
                ..span(id, parent, name, start, start + length)
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_forest_gives_figures_that_hang_together(spans in forests()) {
        let input = input(spans);
        let report = analyze(input.clone(), &Selection::default(), usize::MAX);
        for one in &report.payloads {
            prop_assert!(one.both_ns <= one.a_ns.min(one.b_ns));
            prop_assert!(one.a_ns.max(one.b_ns) <= one.wall_ns);
            prop_assert!(one.wall_ns <= one.payload_ns);
            prop_assert_eq!(one.wall_ns, one.a_ns + one.b_ns - one.both_ns + one.neither_ns);
            for share in [one.overlap, one.container_overlap, one.serialization, one.tail_share] {
                prop_assert!(share.is_none_or(|share| (0.0..=1.0).contains(&share)), "{:?}", one);
            }
            prop_assert!(one.critical_path.iter().all(|step| step.ns > 0));
            let path: u64 = one.critical_path.iter().map(|step| step.ns).sum();
            prop_assert_eq!(path, one.payload_ns, "the critical path covers the payload exactly");
        }
        render_all(&input, &Selection::default());
    }

    #[test]
    fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        read("bytes", &bytes);
    }

    #[test]
    fn bytes_that_are_no_text_cost_what_they_touch(at in 0..OTLP.len()) {
        let mut bytes = OTLP.as_bytes().to_vec();
        bytes.splice(at..at, [0xff, 0xfe, 0x80]);
        let input = read("binary", &bytes);
        prop_assert!(input.spans.len() <= read("otlp", OTLP.as_bytes()).spans.len());
        render_all(&input, &Selection::default());
    }

    #[test]
    fn one_flipped_byte_is_survived(at in 0..OTLP.len(), byte in any::<u8>()) {
        let mut bytes = OTLP.as_bytes().to_vec();
        bytes[at] = byte;
        let input = read("flipped", &bytes);
        render_all(&input, &Selection::default());
    }
}
