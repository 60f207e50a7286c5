//! Figures that rest on shaky ground lead to no verdict, and say why.

use tandem_overlap::{
    Attribute, Doubt, Options, Preset, Report, Selection, Span, TraceId, Verdict, analyze,
    analyze_with, json, read, text,
};

use crate::common::{input, span};

/// Returns a payload of this trace whose sides overlap for 80 of 100 ns.
fn parallel(trace: u128) -> Vec<Span> {
    let mut spans = vec![
        span(1, 0, "on_new_payload", 0, 100),
        span(2, 1, "payload processor", 0, 90),
        span(3, 1, "storage worker", 5, 95),
    ];
    for span in &mut spans {
        span.trace_id = TraceId(trace);
    }
    spans
}

fn report(spans: Vec<Span>) -> Report {
    analyze(input(spans), &Selection::default(), 100)
}

#[test]
fn dropped_events_withhold_the_verdict() {
    let mut spans = parallel(1);
    spans[2].attributes.push(("otel.dropped_events_count".to_owned(), Attribute::Int(40)));
    let one = report(spans);
    assert_eq!(one.payloads[0].doubts, [Doubt::DroppedEvents]);
    assert_eq!((one.verdict, one.median_overlap()), (None, None));
    assert!(text(&one).contains("verdict: withheld"), "{}", text(&one));
    assert!(one.notes.iter().any(|note| note.contains("events were dropped")), "{:?}", one.notes);
}

#[test]
fn dropped_events_are_read_from_otlp() {
    let document = r#"{"resourceSpans":[{"scopeSpans":[{"spans":[
        {"traceId":"0000000000000000000000000000000a","spanId":"0000000000000001","name":"storage worker",
         "startTimeUnixNano":"1","endTimeUnixNano":"2","droppedEventsCount":128}]}]}]}"#;
    let spans = read("one", document.as_bytes()).spans;
    let count = spans[0].attribute("otel.dropped_events_count").and_then(Attribute::as_u64);
    assert_eq!(count, Some(128));
}

#[test]
fn joined_gaps_are_said_and_from_a_tenth_on_withhold_the_verdict() {
    for (exact, joined, doubts) in
        [(90, 0, vec![]), (85, 5, vec![]), (70, 20, vec![Doubt::JoinedGaps])]
    {
        let mut spans = parallel(1);
        spans[2].busy = vec![(5, 95)];
        spans[2].attributes.push(("busy.total_ns".to_owned(), Attribute::Int(exact)));
        let one = &report(spans).payloads[0];
        assert_eq!((one.joined_ns, &one.doubts), (joined, &doubts));
        assert_eq!(one.verdict.is_some(), doubts.is_empty());
    }
}

#[test]
fn some_payloads_in_doubt_leave_the_verdict_to_the_others() {
    let mut spans: Vec<Span> = (1..=3).flat_map(parallel).collect();
    spans[2].attributes.push(("otel.dropped_events_count".to_owned(), Attribute::Int(1)));
    let three = report(spans);
    assert_eq!(three.verdict, Some(Verdict::Parallel));
    assert_eq!(three.payloads.iter().filter(|one| one.verdict.is_none()).count(), 1);
}

#[test]
fn workers_without_children_were_idle_if_those_of_another_payload_have_some() {
    let mut with_work = parallel(1);
    with_work.push(span(4, 3, "Storage proof calculation", 10, 90));
    let idle = parallel(2);
    let both = analyze(input([with_work, idle].concat()), &Preset::Reth.into(), 100);
    let [first, second] = &both.payloads[..] else { panic!("two payloads") };
    assert_eq!((first.b_ns, first.overlap), (80, Some(1.0)));
    assert_eq!((second.b_ns, second.overlap, &second.doubts[..]), (0, None, &[][..]));
    assert_eq!(both.verdict, Some(Verdict::Parallel));
}

#[test]
fn clocks_that_differ_withhold_the_verdict_until_they_are_aligned() {
    // The worker's clock is 40 ns… in ms here, so that it is beyond the tolerance.
    let ms = 1_000_000;
    let mut spans: Vec<Span> = parallel(1);
    for span in &mut spans {
        (span.start_ns, span.end_ns) =
            (span.start_ns * ms + 1_000 * ms, span.end_ns * ms + 1_000 * ms);
    }
    spans[2].host = "right".into();
    spans[2].start_ns -= 40 * ms;
    let first = report(spans.clone());
    assert_eq!((first.verdict, &first.payloads[0].doubts[..]), (None, &[Doubt::Clocks][..]));
    let mut options = Options::new(Selection::default(), 100);
    options.align = first.clocks.into_iter().map(|clock| clock.corrected(true)).collect();
    let second = analyze_with(input(spans), options);
    assert!(second.verdict.is_some() && second.payloads[0].doubts.is_empty());
}

#[test]
fn json_names_doubts_and_worth() {
    let mut spans = parallel(1);
    spans[2].attributes.push(("otel.dropped_events_count".to_owned(), Attribute::Int(1)));
    let report: serde_json::Value = serde_json::from_str(&json(&report(spans))).unwrap();
    let one = &report["payloads"][0];
    assert_eq!((&one["doubts"][0], &one["saved_ns"]), (&"dropped_events".into(), &85.into()));
    assert_eq!(one["weight"], 0.9);
}

#[test]
fn verdict_rests_on_gain_tail_and_weight() {
    let sides = |a: u64, b: (u64, u64), wait: u64| {
        report(vec![
            span(1, 0, "on_new_payload", 0, 1_000),
            span(2, 1, "payload processor", 0, a),
            span(3, 1, "storage worker", b.0, b.1),
            span(4, 1, "await_state_root", a, a + wait),
        ])
        .verdict
    };
    assert_eq!(sides(800, (100, 500), 50), Some(Verdict::Parallel));
    assert_eq!(sides(800, (100, 500), 150), Some(Verdict::Partial), "the answer waits");
    assert_eq!(sides(500, (300, 700), 200), Some(Verdict::Partial));
    assert_eq!(sides(500, (450, 850), 350), Some(Verdict::Sequential));
    assert_eq!(sides(900, (100, 190), 0), Some(Verdict::NothingToGain));
    // Idle time between the sides is no gain, even if all of the shorter one overlaps.
    assert_eq!(sides(500, (0, 400), 0), Some(Verdict::Parallel));
}

/// Returns the verdict on a payload whose threads had a processor for these times.
fn verdict_on(processors: Option<i64>, a_cpu: i64, b_cpu: i64) -> Option<Verdict> {
    let mut spans = parallel(1);
    let count = processors.map(|count| ("processors".to_owned(), Attribute::Int(count)));
    spans[0].attributes.extend(count);
    for (at, busy, total, cpu) in [(1, (0, 90), 90, a_cpu), (2, (5, 95), 90, b_cpu)] {
        spans[at].busy = vec![busy];
        spans[at].attributes.push(("busy.total_ns".to_owned(), Attribute::Int(total)));
        spans[at].attributes.push(("busy.cpu_ns".to_owned(), Attribute::Int(cpu)));
    }
    report(spans).verdict
}

#[test]
fn sides_that_take_turns_on_a_processor_are_concurrent() {
    for processors in [None, Some(1)] {
        assert_eq!(verdict_on(processors, 90, 90), Some(Verdict::Parallel));
        assert_eq!(verdict_on(processors, 80, 75), Some(Verdict::Parallel));
        assert_eq!(verdict_on(processors, 50, 45), Some(Verdict::Concurrent));
    }
    // With two, something else used them.
    assert_eq!(verdict_on(Some(2), 50, 45), Some(Verdict::Parallel));
}
