//! Traces of typical shapes, made by hand, with the numbers counted by hand.

use tandem_overlap::{
    Options, PayloadReport, Report, Selection, TailUntil, Verdict, analyze, analyze_with, read,
    text,
};

fn report(name: &str, bytes: &str) -> Report {
    let input = read(name, bytes.as_bytes());
    assert!(input.problems.is_empty(), "{:?}", input.problems);
    analyze(input, &Selection::default(), 100)
}

fn close(value: Option<f64>, expected: f64) {
    assert!((value.unwrap() - expected).abs() < 1e-12, "{value:?} is not {expected}");
}

/// Returns the critical path in µs. Time in a queue has a name of its own.
fn path(one: &PayloadReport) -> Vec<(String, u64)> {
    let name = |queued: bool, name: &str| match queued {
        true => format!("{name} in its queue"),
        false => name.to_owned(),
    };
    one.critical_path.iter().map(|step| (name(step.queued, &step.name), step.ns / 1_000)).collect()
}

fn assert_path(one: &PayloadReport, expected: &[(&str, u64)]) {
    let expected: Vec<(String, u64)> =
        expected.iter().map(|(name, us)| ((*name).to_owned(), *us)).collect();
    assert_eq!(path(one), expected);
}

/// ```text
///                        0      2    4  10              60 62       100  110 114  120 121 122 µs
///  on_new_payload        [--------------------------------------------------------------]
///  validate_block        1 [--------------------------------------------------------] 121
///  payload processor          [##########################################]
///  storage worker             [···####################··##############····######·]
///  storage worker             [·······##########################·················]
///  await_state_root                                                      [-------]
///
///  A     = 2–114                                  = 112
///  B     = 4–60, 62–110, 114–120 and 10–100
///        = 4–110, 114–120                         = 106 + 6 = 112
///  A ∩ B = 4–110                                  = 106
///  wall  = 2–120                                  = 118, all of it busy
/// ```
#[test]
fn parallel_trace_gives_the_hand_count() {
    let report = report("parallel", include_str!("../fixtures/parallel.otlp.json"));
    let one = &report.payloads[0];
    assert_eq!((one.a_ns, one.b_ns, one.both_ns), (112_000, 112_000, 106_000));
    assert_eq!((one.wall_ns, one.neither_ns, one.payload_ns), (118_000, 0, 122_000));
    close(one.overlap, 106.0 / 112.0);
    close(one.container_overlap, 1.0);
    close(one.serialization, 6.0 / 112.0);
    assert_eq!((one.tail_ns, one.tail_until), (Some(7_000), Some(TailUntil::Wait)));
    close(one.tail_share, 7.0 / 122.0);
    assert_eq!(one.b_lag_ns, Some(2_000));
    assert_eq!((one.verdict, report.verdict), (Some(Verdict::Parallel), Some(Verdict::Parallel)));
    assert!(!report.partial);
    assert_path(
        one,
        &[
            ("payload processor", 112),
            ("storage worker", 6),
            ("on_new_payload", 2),
            ("await_state_root", 1),
            ("validate_block_with_state", 1),
        ],
    );
}

/// Tests workers that begin when the last batch is sent, 9 µs before the last transaction ends.
///
/// ```text
///                        0 2                           300 309                    552 553 555 µs
///  payload processor       [#################################]
///  storage worker          [································##########################]
///  await_state_root                                          [--------------------------]
///
///  A = 307, B = 252, A ∩ B = 9, wall = 2–552 = 550
///  serialization = (550 − 307) / 252 = 243 / 252
/// ```
#[test]
fn sequential_trace_gives_the_hand_count() {
    let report = report("sequential", include_str!("../fixtures/sequential.otlp.json"));
    let one = &report.payloads[0];
    assert_eq!((one.a_ns, one.b_ns, one.both_ns), (307_000, 252_000, 9_000));
    assert_eq!((one.wall_ns, one.neither_ns), (550_000, 0));
    close(one.overlap, 9.0 / 252.0);
    close(one.container_overlap, 1.0);
    close(one.serialization, 243.0 / 252.0);
    assert_eq!((one.tail_ns, one.b_lag_ns), (Some(244_000), Some(298_000)));
    assert_eq!(report.verdict, Some(Verdict::Sequential));
    assert_path(
        one,
        &[
            ("payload processor", 298),
            ("storage worker", 252),
            ("on_new_payload", 2),
            ("validate_block_with_state", 2),
            ("await_state_root", 1),
        ],
    );
}

/// Tests a right host whose clock is 500 µs ahead of the left one's. In true time the worker was
/// busy 1100–1400 and 1500–1800, the payload processor 1020–1500. The payload took 1000–2000.
///
/// ```text
///  call              sent   begun   ended   answered    clock ahead by
///  process_block     1030    1560    2380       1900    2380 − 1900 = 480 … 1560 − 1030 = 530
///  storage_call      1510    2020    2090       1600    2090 − 1600 = 490 … 2020 − 1510 = 510
///                                                       both:         490 … 510 = 500 ± 10
/// ```
#[test]
fn skewed_clocks_are_estimated_and_corrected_only_where_asked() {
    let bytes = include_str!("../fixtures/skewed_clocks.otlp.json");
    let as_it_came = report("skewed", bytes);
    let one = &as_it_came.payloads[0];
    // The result is 1600–1900 on the wrong clock: 2000–2300 would be after the answer.
    assert_eq!((one.a_ns, one.b_ns, one.both_ns), (480_000, 300_000, 0));
    assert_eq!((as_it_came.verdict, one.verdict), (None, None), "it would be wrong");
    let [clock] = as_it_came.clocks.as_slice() else { panic!("{:?}", as_it_came.clocks) };
    assert_eq!((clock.host.as_str(), clock.reference.as_str()), ("right", "left"));
    assert_eq!((clock.low_ns, clock.high_ns), (Some(490_000), Some(510_000)));
    assert_eq!((clock.offset_ns, clock.uncertainty_ns), (Some(500_000), Some(10_000)));
    assert_eq!((clock.pairs, clock.answered), (2, 2), "the worker is on the host of its parent");
    assert!(clock.differs && !clock.contradictory);
    assert_eq!(clock.corrected_ns, 0);
    let said = text(&as_it_came);
    assert!(said.contains("right is 0.500 ms ± 0.010 ms ahead of that of left"), "{said}");
    assert!(said.contains("--align-clocks"), "{said}");

    let mut options = Options::new(Selection::default(), 100);
    options.align = as_it_came.clocks.into_iter().map(|clock| clock.corrected(true)).collect();
    let aligned = analyze_with(read("skewed", bytes.as_bytes()), options);
    let one = &aligned.payloads[0];
    assert_eq!((one.a_ns, one.b_ns, one.both_ns), (480_000, 600_000, 300_000));
    close(one.overlap, 300.0 / 480.0);
    assert_eq!((aligned.verdict, one.tail_ns), (Some(Verdict::Partial), Some(450_000)));
    assert_eq!(
        (aligned.clocks[0].corrected_ns, aligned.clocks[0].offset_ns),
        (500_000, Some(500_000))
    );
    assert!(text(&aligned).contains("0.500 ms were taken off its times"), "{}", text(&aligned));
}

/// Tests a trace without `validate_block_with_state` and `await_state_root`. Two spans have no
/// parent, and the tail ends with side B.
#[test]
fn dropped_spans_give_a_partial_answer() {
    let report = report("dropped", include_str!("../fixtures/dropped_spans.otlp.json"));
    let one = &report.payloads[0];
    assert!(report.partial);
    assert_eq!(one.orphans, 2);
    assert_eq!((one.a_ns, one.b_ns, one.both_ns, one.wall_ns), (50_000, 50_000, 40_000, 60_000));
    close(one.overlap, 0.8);
    assert_eq!((one.tail_ns, one.tail_until), (Some(10_000), Some(TailUntil::SideB)));
    assert_path(one, &[("storage worker", 50), ("on_new_payload", 40), ("payload processor", 10)]);
    let said = text(&report);
    assert!(said.contains("2 spans whose parent is missing"), "{said}");
    assert!(said.contains("PARTIAL ANSWER"), "{said}");
}

/// Tests three payloads in which parents and times alone mislead.
///
/// ```text
///  105  fetch one     0–100    fetch three begins when fetch two ends, but its link says that it
///       fetch two     0–200    follows fetch one, after 100 µs without any recorded span
///       fetch three 200–500
///  106  spawn 5–10 starts a worker 8–90 without waiting for it, but the payload waits; it also
///       starts a write 20–150 that nothing waits for
///  107  proof job 60–90 was ready at 40, when the payload processor (0–40), to which it links,
///       was done; another job ran until 60
/// ```
#[test]
fn async_siblings_do_not_mislead_the_critical_path() {
    let report = report("async", include_str!("../fixtures/async_siblings.otlp.json"));
    let [links, outlives, queue] = report.payloads.as_slice() else { panic!("three payloads") };
    assert_path(links, &[("fetch three", 300), ("fetch one", 100), ("on_new_payload", 100)]);
    assert_path(
        outlives,
        &[("storage worker", 82), ("on_new_payload", 15), ("spawn_payload_processor", 3)],
    );
    assert_path(
        queue,
        &[
            ("payload processor", 40),
            ("proof job", 30),
            ("proof job in its queue", 20),
            ("on_new_payload", 10),
        ],
    );
    let gaps = &report.queue_gaps[0];
    assert_eq!((gaps.name.as_str(), gaps.gap_ns.n, gaps.gap_ns.p50), ("proof job", 1, 20_000.0));
}

#[test]
fn worst_payloads_are_named_with_their_pages() {
    let lines = [
        include_str!("../fixtures/parallel.otlp.json"),
        include_str!("../fixtures/sequential.otlp.json"),
    ];
    let mut options = Options::new(Selection::default(), 100);
    options.jaeger_ui = Some("http://jaeger:16686/".to_owned());
    let report = analyze_with(read("both", lines.concat().as_bytes()), options);
    let url = |trace: &str| Some(format!("http://jaeger:16686/trace/{trace:0>32}"));
    assert_eq!(report.worst_urls, [url("b2"), url("b1")], "least overlap first");
    assert_eq!(report.slowest_urls, [url("b2"), url("b1")]);
    assert!(text(&report).contains("http://jaeger:16686/trace/000000000000000000000000000000b2"));
}

#[test]
fn filters_leave_out_payloads_and_say_how_many() {
    let bytes = [
        include_str!("../fixtures/parallel.otlp.json"),
        include_str!("../fixtures/sequential.otlp.json"),
        include_str!("../fixtures/dropped_spans.otlp.json"),
    ]
    .concat();
    let start = 1_700_000_000_000_000_000;
    let blocks = |change: &dyn Fn(&mut Options)| {
        let mut options = Options::new(Selection::default(), 100);
        change(&mut options);
        let report = analyze_with(read("filter", bytes.as_bytes()), options);
        let blocks: Vec<u64> = report.payloads.iter().filter_map(|one| one.block_number).collect();
        assert_eq!(blocks.len() + report.filtered, 3);
        blocks
    };
    assert_eq!(blocks(&|_| {}), [101, 102, 104]);
    assert_eq!(blocks(&|options| options.filter.first_block = Some(102)), [102, 104]);
    assert_eq!(blocks(&|options| options.filter.last_block = Some(102)), [101, 102]);
    assert_eq!(blocks(&|options| options.filter.least_ns = Some(122_000)), [101, 102]);
    assert_eq!(blocks(&|options| options.filter.since_unix_ns = Some(start)), [101, 102, 104]);
    assert!(blocks(&|options| options.filter.since_unix_ns = Some(start + 1)).is_empty());
    assert!(blocks(&|options| options.filter.until_unix_ns = Some(start)).is_empty());
    assert_eq!(blocks(&|options| options.filter.services = vec!["executor".to_owned()]).len(), 3);
    assert!(blocks(&|options| options.filter.services = vec!["reth".to_owned()]).is_empty());
}
