//! Critical path where a span works by itself while others work for it, counted by hand.

use tandem_overlap::{Attribute, Doubt, Report, Selection, Span, analyze};

use crate::common::{input, span};

const US: u64 = 1_000;

/// Creates a span with busy intervals. All times are in µs.
fn busy(id: u64, parent: u64, name: &str, at: (u64, u64), parts: &[(u64, u64)]) -> Span {
    let busy = parts.iter().map(|(start, end)| (start * US, end * US)).collect();
    Span { busy, ..span(id, parent, name, at.0 * US, at.1 * US) }
}

fn report(spans: Vec<Span>) -> Report {
    analyze(input(spans), &Selection::default(), 100)
}

fn path(report: &Report) -> Vec<(&str, u64)> {
    let steps = report.payloads[0].critical_path.iter();
    steps.map(|step| (step.name.as_str(), step.ns / US)).collect()
}

/// ```text
///                        0    10        60   80   90 100 110 µs
///  on_new_payload        [------------------------------]
///  payload processor     [##############····#########]      busy 0–60, 80–100
///  read_ahead                 [------------------]           10–90
/// ```
#[test]
fn busy_parent_is_not_waiting_for_its_children() {
    let report = report(vec![
        span(1, 0, "on_new_payload", 0, 110 * US),
        busy(2, 1, "payload processor", (0, 100), &[(0, 60), (80, 100)]),
        span(3, 2, "read_ahead", 10 * US, 90 * US),
    ]);
    let expected = [("payload processor", 80), ("read_ahead", 20), ("on_new_payload", 10)];
    assert_eq!(path(&report), expected);
}

/// ```text
///                        0       40     50      70     95 100   110 120 µs
///  on_new_payload        [----------------------------------------]
///  payload processor     [#########·············##########]             busy 0–40, 70–100
///  prewarm               [##############################]                busy 0–50, 55–95
///  prewarm               [·········######]                               busy 40–52
///  state root, after…                                      [####]       100–110
/// ```
///
/// Execution waits from 40 to 70: for the first thread from 55 on, and for the second one before.
#[test]
fn prewarm_threads_have_the_time_for_which_execution_waits() {
    let report = report(vec![
        span(1, 0, "on_new_payload", 0, 120 * US),
        busy(2, 1, "payload processor", (0, 100), &[(0, 40), (70, 100)]),
        busy(3, 1, "prewarm", (0, 95), &[(0, 50), (55, 95)]),
        busy(4, 1, "prewarm", (0, 95), &[(40, 52)]),
        busy(5, 1, "state root, after execution", (100, 110), &[(100, 110)]),
    ]);
    // 55–70 and 40–52 for the two threads; nothing happens in 52–55.
    let expected = [
        ("payload processor", 70),
        ("prewarm", 27),
        ("on_new_payload", 13),
        ("state root, after execution", 10),
    ];
    assert_eq!(path(&report), expected);
}

#[test]
fn many_pieces_beside_a_long_one_take_no_time_to_walk() {
    const PIECES: u64 = 200_000;
    let parts: Vec<_> = (0..PIECES).map(|at| (3 * at, 3 * at + 1)).collect();
    let children: Vec<_> = (0..PIECES).map(|at| (3 * at + 1, 3 * at + 2)).collect();
    let end = 3 * PIECES;
    let report = report(vec![
        span(1, 0, "on_new_payload", 0, end * US),
        busy(2, 1, "payload processor", (0, end), &parts),
        busy(3, 2, "short", (0, end), &children),
        span(4, 2, "long", 0, end * US),
    ]);
    // The long one ends last, so all that the thread does not do itself is waiting for it.
    let expected = [("long", 2 * PIECES), ("payload processor", PIECES)];
    assert_eq!(path(&report), expected);
}

#[test]
fn workers_that_were_lost_in_part_leave_no_verdict() {
    let with_said = |said_us: i64| {
        let mut root = span(1, 0, "on_new_payload", 0, 10_000 * US);
        root.attributes.push(("overlap.b_us".to_owned(), Attribute::Int(said_us)));
        report(vec![
            root,
            busy(2, 1, "payload processor", (0, 9_000), &[(0, 9_000)]),
            busy(3, 1, "state root, while executing", (0, 4_000), &[(0, 4_000)]),
        ])
    };
    let all = with_said(4_300);
    assert!(all.payloads[0].doubts.is_empty() && all.verdict.is_some() && !all.partial);
    let lost = with_said(5_000);
    assert_eq!(lost.payloads[0].doubts, [Doubt::LostWorkers]);
    assert!(lost.verdict.is_none() && lost.partial);
}

#[test]
fn imbalance_is_the_largest_over_the_mean_of_all_processes() {
    let lane = |id, [owners, busy_ns, busy_max_ns]: [i64; 3]| {
        let mut piece = busy(id, 1, "state root, while executing", (0, 50), &[(0, 50)]);
        for (key, value) in
            [("owners", owners), ("owners.busy_ns", busy_ns), ("owners.busy_max_ns", busy_max_ns)]
        {
            piece.attributes.push((key.to_owned(), Attribute::Int(value)));
        }
        piece
    };
    let imbalance = |lanes: Vec<Span>| {
        let mut spans = vec![
            span(1, 0, "on_new_payload", 0, 100 * US),
            busy(2, 1, "payload processor", (0, 90), &[(0, 90)]),
        ];
        spans.extend(lanes);
        report(spans).payloads[0].imbalance
    };
    // Two processes with two and one workers: 30 and 10, 20. The mean is 20.
    assert_eq!(imbalance(vec![lane(3, [2, 40, 30]), lane(4, [1, 20, 20])]), Some(1.5));
    assert_eq!(imbalance(vec![lane(3, [1, 20, 20])]), None, "one worker is balanced");
    assert_eq!(imbalance(vec![]), None);
}

#[test]
fn wasted_work_of_all_processes_is_no_part_of_the_overlap() {
    let lane = |id, at: (u64, u64), wasted: Option<i64>| {
        let mut piece = busy(id, 1, "state root, while executing", at, &[at]);
        let own = [("threads.busy_ns", Some(60_000)), ("threads.wasted_ns", wasted)];
        let own = own.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
        piece.attributes.extend(own.map(|(key, value)| (key, Attribute::Int(value))));
        piece
    };
    let analyzed = |wasted: [Option<i64>; 2]| {
        let one = report(vec![
            span(1, 0, "on_new_payload", 0, 100 * US),
            busy(2, 1, "payload processor", (0, 60), &[(0, 60)]),
            lane(3, (20, 60), wasted[0]),
            lane(4, (60, 80), wasted[1]),
        ]);
        let one = &one.payloads[0];
        (one.wasted_ns.map(|ns| ns / US), one.b_ns / US, one.both_ns / US, one.neither_ns / US)
    };
    assert_eq!(analyzed([None, None]), (None, 60, 40, 0));
    // A tenth of what the threads of both processes did was in vain: 6 of 60, and of the 40 hidden.
    assert_eq!(analyzed([Some(12_000), Some(0)]), (Some(6), 54, 34, 0));
    assert_eq!(analyzed([Some(12_000), None]), (Some(12), 48, 28, 0), "the process that tells");
    assert_eq!(analyzed([Some(60_000), Some(60_000)]), (Some(40), 20, 0, 0), "what was hidden");
}
