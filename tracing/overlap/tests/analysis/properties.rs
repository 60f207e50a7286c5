//! Properties of any input, compared with nanosecond-by-nanosecond counting and with the true
//! values.

use crate::common::{input, span};
use proptest::prelude::*;
use tandem_overlap::{Attribute, Clock, Kind, Options, Report, Selection, analyze, analyze_with};

/// Returns intervals below 80 that may be empty, reversed, touch or overlap.
fn intervals() -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop::collection::vec((0u64..80, 0u64..80), 1..10)
}

/// Returns the nanoseconds of the root, 8–72, that any of `parts` covers.
fn covered(parts: &[(u64, u64)]) -> Vec<bool> {
    (8..72).map(|at| parts.iter().any(|(start, end)| *start <= at && at < *end)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn figures_equal_a_count_of_every_nanosecond(a in intervals(), b in intervals()) {
        let mut processor = span(2, 1, "payload processor", 0, 80);
        processor.busy.clone_from(&a);
        // There is one worker per interval, alternately with events and as whole spans.
        let workers = b.iter().enumerate().map(|(n, (start, end))| {
            let id = 3 + n as u64;
            if n % 2 == 0 {
                let mut worker = span(id, 1, "storage worker", 0, 80);
                worker.busy.push((*start, *end));
                worker
            } else {
                span(id, 1, "storage worker", *start, (*end).max(*start))
            }
        });
        let mut spans = vec![span(1, 0, "on_new_payload", 8, 72), processor];
        spans.extend(workers);
        let report = analyze(input(spans), &Selection::default(), 1);
        let one = &report.payloads[0];

        let (a, b) = (covered(&a), covered(&b));
        let count = |test: &dyn Fn(bool, bool) -> bool| {
            a.iter().zip(&b).filter(|(a, b)| test(**a, **b)).count() as u64
        };
        let any: Vec<usize> = (0..64).filter(|at| a[*at] || b[*at]).collect();
        let wall = any.first().zip(any.last()).map_or(0, |(first, last)| (last - first + 1) as u64);
        prop_assert_eq!(one.a_ns, count(&|a, _| a));
        prop_assert_eq!(one.b_ns, count(&|_, b| b));
        prop_assert_eq!(one.both_ns, count(&|a, b| a && b));
        prop_assert_eq!(one.wall_ns, wall);
        prop_assert_eq!(one.neither_ns, wall - count(&|a, b| a || b));
        let shorter = one.a_ns.min(one.b_ns);
        prop_assert_eq!(one.overlap, (shorter > 0).then(|| one.both_ns as f64 / shorter as f64));
    }

    /// Sends calls from left to right and from right to left in true time. The right clock is ahead
    /// by `ahead`.
    #[test]
    fn the_true_offset_of_a_clock_is_within_its_bounds(
        ahead in -5_000_000i64..5_000_000,
        calls in prop::collection::vec(
            (0u64..1_000_000, 1u64..50_000, 1u64..50_000, 1u64..50_000, any::<bool>()), 1..20),
    ) {
        let base = 1_700_000_000_000_000_000;
        let mut spans = vec![span(1, 0, "on_new_payload", base, base + 2_000_000)];
        // These are the tightest bounds, computed by hand.
        let (mut low, mut high) = (i64::MIN, i64::MAX);
        for (n, (at, there, work, back, to_right)) in calls.iter().enumerate() {
            let id = 10 + 2 * n as u64;
            let sent = base + at;
            let (begun, ended) = (sent + there, sent + there + work);
            let mut call = span(id, 1, "call", sent, ended + back);
            let mut answer = span(id + 1, id, "answer", begun, ended);
            (call.kind, answer.kind) = (Kind::Client, Kind::Server);
            let right = if *to_right { &mut answer } else { &mut call };
            (right.host, right.service) = ("right".into(), "right".into());
            right.start_ns = right.start_ns.saturating_add_signed(ahead);
            right.end_ns = right.end_ns.saturating_add_signed(ahead);
            let (there, back) = (there.cast_signed(), back.cast_signed());
            let (least, most) = if *to_right { (-back, there) } else { (-there, back) };
            (low, high) = (low.max(ahead + least), high.min(ahead + most));
            spans.extend([call, answer]);
        }
        let report = analyze(input(spans.clone()), &Selection::default(), 1);
        let clock = &report.clocks[0];
        // The parent of a call from the right host is the root, on the left. The call starts later
        // than it.
        prop_assert!(clock.low_ns == Some(low), "{:?} {}", clock, low);
        prop_assert!(clock.high_ns.unwrap() <= high, "{:?} {}", clock, high);
        prop_assert!(clock.low_ns.unwrap() <= ahead && ahead <= clock.high_ns.unwrap());
        prop_assert!(!clock.contradictory);
        let (offset, within) = (clock.offset_ns.unwrap(), clock.uncertainty_ns.unwrap());
        prop_assert!((offset - ahead).unsigned_abs() <= within + 1);

        // After the correction, no child starts before its parent.
        let mut options = Options::new(Selection::default(), 1);
        options.align = report.clocks.into_iter().map(|clock| clock.corrected(true)).collect();
        let aligned = analyze_with(input(spans), options);
        if aligned.clocks[0].differs {
            prop_assert!(aligned.skew.is_empty(), "{:?}", aligned.skew);
        }
    }
}

/// Span by id, parent, kind, host and times.
type Spoken<'a> = (u64, u64, Kind, &'a str, (u64, u64));

/// Analyses a payload on host "left" with spans of other hosts.
fn clocks(spans: &[Spoken<'_>]) -> Report {
    let mut all = vec![span(1, 0, "on_new_payload", 1_000_000, 9_000_000)];
    for (id, parent, kind, host, times) in spans {
        let mut one = span(*id, *parent, "work", times.0, times.1);
        (one.kind, one.host, one.service) = (*kind, (*host).into(), (*host).into());
        all.push(one);
    }
    analyze(input(all), &Selection::default(), 1)
}

#[test]
fn bounds_go_from_host_to_host() {
    // By the clocks, middle begins at most 1 ms after left, and right at most 2 ms after middle.
    let report = clocks(&[
        (2, 1, Kind::Other, "middle", (2_000_000, 3_000_000)),
        (3, 2, Kind::Other, "right", (4_000_000, 5_000_000)),
    ]);
    let highs: Vec<(&str, Option<i64>)> =
        report.clocks.iter().map(|clock| (clock.host.as_str(), clock.high_ns)).collect();
    assert_eq!(highs, [("middle", Some(1_000_000)), ("right", Some(3_000_000))]);
    assert!(report.clocks.iter().all(|clock| clock.low_ns.is_none() && !clock.differs));
}

#[test]
fn one_sided_evidence_is_corrected_by_no_more_than_it_says() {
    let spans = [(2, 1, Kind::Other, "right", (400_000, 3_000_000))];
    let report = clocks(&spans);
    let [Clock { low_ns: None, high_ns: Some(-600_000), offset_ns: None, differs: true, .. }] =
        report.clocks.as_slice()
    else {
        panic!("{:?}", report.clocks)
    };
    assert!(
        report.notes.iter().any(|note| note.contains("at least 0.600 ms behind")),
        "{:?}",
        report.notes
    );
}

#[test]
fn clocks_that_contradict_themselves_are_named_and_left_alone() {
    // The call is answered 1 ms before it begins, whatever the clocks.
    let report = clocks(&[
        (2, 1, Kind::Client, "left", (2_000_000, 3_000_000)),
        (3, 2, Kind::Server, "right", (2_500_000, 4_500_000)),
    ]);
    let clock = &report.clocks[0];
    assert_eq!((clock.low_ns, clock.high_ns), (Some(1_500_000), Some(500_000)));
    assert!(clock.contradictory && clock.differs && clock.offset_ns.is_none());
    assert!(report.notes.iter().any(|note| note.contains("contradict themselves")));
}

#[test]
fn tandems_workers_are_bounded_by_the_wait_for_their_answer() {
    let mut process = span(4, 2, "process_block", 1_500_000, 3_900_000);
    process.host = "right".into();
    let spans = vec![
        span(1, 0, "on_new_payload", 1_000_000, 5_000_000),
        span(2, 1, "spawn_payload_processor", 1_100_000, 1_200_000),
        span(3, 1, "await_state_root", 2_000_000, 4_000_000),
        process,
    ];
    let clock = analyze(input(spans), &Selection::default(), 1).clocks.remove(0);
    assert_eq!((clock.low_ns, clock.high_ns), (Some(-100_000), Some(400_000)));
    assert!(!clock.differs);
}

#[test]
fn ready_times_move_with_their_clock() {
    let mut worker = span(2, 1, "proof job", 3_000_000, 4_000_000);
    worker.host = "right".into();
    worker.attributes.push(("queue.ready_unix_nano".to_owned(), Attribute::Int(2_900_000)));
    let spans = vec![span(1, 0, "on_new_payload", 1_000_000, 9_000_000), worker];
    let mut options = Options::new(Selection::default(), 1);
    options.align = vec![Clock {
        host: "right".to_owned(),
        reference: "left".to_owned(),
        low_ns: Some(1_000_000),
        high_ns: Some(1_000_000),
        offset_ns: Some(1_000_000),
        uncertainty_ns: Some(0),
        pairs: 1,
        answered: 1,
        differs: true,
        contradictory: false,
        corrected_ns: 1_000_000,
    }];
    let report = analyze_with(input(spans), options);
    assert_eq!(report.queue_gaps[0].gap_ns.p50, 100_000.0, "the gap is by one clock");
    assert_eq!(report.clocks[0].corrected_ns, 1_000_000);
}
