//! Comparison of two sets of traces, block by block.

use tandem_overlap::{
    Attribute, Change, Comparison, Input, Kind, Report, Selection, Span, SpanId, TraceId, analyze,
    comparison_json, comparison_text,
};

/// Payload of a block: A is 0–`a`, B is `b0`–`b1`, the whole is `length`, in µs.
#[derive(Clone, Copy)]
struct Shape {
    block: u64,
    length: u64,
    a: u64,
    b: (u64, u64),
}

fn report(shapes: impl IntoIterator<Item = Shape>, hash: impl Fn(u64) -> Option<String>) -> Report {
    let mut spans = Vec::new();
    for (n, shape) in shapes.into_iter().enumerate() {
        let trace = TraceId(n as u128 + 1);
        let mut span = |id: u64, name: &str, start: u64, end: u64| {
            let mut attributes = Vec::new();
            if id == 1 {
                let number = i64::try_from(shape.block).unwrap();
                attributes.push(("block.number".to_owned(), Attribute::Int(number)));
                let hash = hash(shape.block).map(Attribute::Str);
                attributes.extend(hash.map(|hash| ("block.hash".to_owned(), hash)));
            }
            spans.push(Span {
                trace_id: trace,
                span_id: SpanId(id),
                parent: (id > 1).then_some(SpanId(1)),
                service: "executor".into(),
                host: "host".into(),
                resource: std::sync::Arc::default(),
                kind: Kind::Other,
                name: name.to_owned(),
                start_ns: (n as u64 * 1_000_000 + start) * 1_000,
                end_ns: (n as u64 * 1_000_000 + end) * 1_000,
                busy: Vec::new(),
                attributes,
                links: Vec::new(),
            });
        };
        span(1, "on_new_payload", 0, shape.length);
        span(2, "payload processor", 0, shape.a);
        span(3, "storage worker", shape.b.0, shape.b.1);
    }
    analyze(Input { spans, ..Input::default() }, &Selection::default(), usize::MAX)
}

fn nameless(_: u64) -> Option<String> {
    None
}

/// Returns blocks of 1,000 to 1,019 µs. A is 0–500 and B 100–600, so the overlap is 0.8, the tail
/// 100 µs and the serialization 0.2.
fn base() -> impl Iterator<Item = Shape> + Clone {
    (0..20).map(|n| Shape { block: 100 + n, length: 1_000 + n, a: 500, b: (100, 600) })
}

fn compare(base: &Report, new: &Report) -> Comparison {
    tandem_overlap::compare(base, new, 7)
}

#[test]
fn the_same_traces_show_no_difference() {
    let one = report(base(), nameless);
    let same = compare(&one, &one);
    assert_eq!(
        (same.pairs, same.unpaired, same.verdict),
        (20, 0, Some(Change::NoVisibleDifference))
    );
    let time = same.new_payload_ns.as_ref().unwrap();
    assert_eq!((time.change.median, time.change.low, time.change.high), (1.0, 1.0, 1.0));
    assert_eq!(same.overlap.as_ref().unwrap().base, 0.8);
    assert!(same.most_slower.is_empty());
    assert!(comparison_text(&same).contains("verdict: no visible difference"));
}

#[test]
fn what_a_change_moved_is_found_by_hand_count() {
    // Half as long again, and B begins at 300. A ∩ B = 300–500, so the overlap is 0.4. The tail is
    // 300 µs. The wall is 0–800, so the serialization is (800 − 500) / 500 = 0.6.
    let slow = base().map(|shape| Shape { length: shape.length * 3 / 2, b: (300, 800), ..shape });
    let result = compare(&report(base(), nameless), &report(slow, nameless));
    assert_eq!((result.pairs, result.seed), (20, 7));
    assert_eq!(result.verdict, Some(Change::Worse));
    let time = result.new_payload_ns.as_ref().unwrap();
    assert_eq!(time.base, 1_009_500.0);
    assert!((time.change.median - 1.5).abs() < 1e-3, "{time:?}");
    let overlap = result.overlap.as_ref().unwrap();
    assert_eq!((overlap.base, overlap.new, overlap.verdict), (0.8, 0.4, Change::Worse));
    assert!((overlap.change.median + 0.4).abs() < 1e-12);
    let tail = result.tail_ns.as_ref().unwrap();
    assert_eq!((tail.change.median, tail.verdict), (200_000.0, Change::Worse));
    let serialization = result.serialization.as_ref().unwrap();
    assert!((serialization.change.median - 0.4).abs() < 1e-12);
    assert_eq!(result.most_slower.len(), 5);
    let said = comparison_text(&result);
    for words in
        ["verdict: slower", "bootstrap seed 7", "20 blocks in both", "× 1.5", "slower most"]
    {
        assert!(said.contains(words), "{words:?} is not in\n{said}");
    }
    assert!(said.contains("overlap was PARALLEL, is PARTIAL"), "{said}");
    let back = compare(
        &report(base().map(|shape| Shape { length: shape.length * 2, ..shape }), nameless),
        &report(base(), nameless),
    );
    assert_eq!(back.verdict, Some(Change::Better));
    assert!(comparison_text(&back).contains("verdict: faster"));
}

#[test]
fn noise_around_nothing_is_no_difference() {
    let noisy = base().enumerate().map(|(n, shape)| {
        let length = if n % 2 == 0 { shape.length + 40 } else { shape.length - 40 };
        Shape { length, ..shape }
    });
    let result = compare(&report(base(), nameless), &report(noisy, nameless));
    assert_eq!(result.verdict, Some(Change::NoVisibleDifference));
}

#[test]
fn the_same_seed_gives_the_same_json() {
    let other = base().map(|shape| Shape { length: shape.length + shape.block % 7 * 30, ..shape });
    let (base, other) = (report(base(), nameless), report(other, nameless));
    let once = comparison_json(&compare(&base, &other));
    assert_eq!(once, comparison_json(&compare(&base, &other)));
    let json: serde_json::Value = serde_json::from_str(&once).unwrap();
    assert_eq!(json["schema"], "tandem.compare/1");
    assert_eq!(json["verdict"], "worse");
    assert_eq!(json["new_payload_ns"]["change"]["blocks"], 20);
}

#[test]
fn blocks_are_paired_by_number_and_by_hash_where_it_is_there() {
    let hash = |block: u64| Some(format!("0xAB{block}"));
    let lower = |block: u64| Some(format!("0xab{block}"));
    let fork = |block: u64| Some(format!("0x{}{block}", if block < 110 { "ab" } else { "cd" }));
    let with = report(base(), hash);
    assert_eq!(compare(&with, &report(base(), lower)).pairs, 20, "case does not matter");
    assert_eq!(compare(&with, &report(base(), nameless)).pairs, 20);
    let forked = compare(&with, &report(base(), fork));
    assert_eq!((forked.pairs, forked.different_blocks), (10, 10));
    let later = compare(&with, &report(base().skip(5), hash));
    assert_eq!((later.pairs, later.unpaired), (15, 5));
    let none = compare(&with, &report(std::iter::empty(), hash));
    assert_eq!((none.pairs, none.verdict), (0, None));
    assert!(comparison_text(&none).contains("verdict: none  (nothing to pair)"));
}

#[test]
fn a_block_that_came_several_times_is_one_pair() {
    // 900, 1,000 and 9,000 µs: the median counts.
    let thrice = base().flat_map(|shape| {
        [900, 1_000, 9_000].map(|length| Shape { length: length + shape.block - 100, ..shape })
    });
    let result = compare(&report(base(), nameless), &report(thrice, nameless));
    assert_eq!((result.pairs, result.unpaired), (20, 0));
    assert_eq!(result.new_payload_ns.unwrap().change.median, 1.0);
}

#[test]
fn few_blocks_say_nothing() {
    let slow = base().take(7).map(|shape| Shape { length: shape.length * 3, ..shape });
    let result = compare(&report(base(), nameless), &report(slow, nameless));
    assert_eq!((result.pairs, result.verdict), (7, Some(Change::NoVisibleDifference)));
    assert!(comparison_text(&result).contains("under 8 blocks say nothing"));
}
