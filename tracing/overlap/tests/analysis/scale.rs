//! Large inputs, some larger than memory should hold, measured in bytes of heap. Times are printed
//! only.

use std::alloc::System;
use std::fmt::Write;
use std::io::Read;
use std::time::Instant;

use tandem_heap::{Counting, thread};
use tandem_overlap::{
    Analyzer, Attribute, Input, Kind, Link, Options, Preset, Report, Selection, Span, SpanId,
    TraceId, analyze, html, json, read, read_from, text,
};

#[global_allocator]
static ALLOCATOR: Counting<System> = Counting(System);

const MIB: usize = 1 << 20;

/// Returns a trace like the published one: 64 workers and 23,934 proofs.
fn trace_of_24_000_spans() -> String {
    let mut document = String::from(
        r#"{"resourceSpans":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"reth"}}]},"scopeSpans":[{"spans":["#,
    );
    let mut push = |id: u64, parent: u64, name: &str, start: u64, end: u64| {
        let comma = if id == 1 { "" } else { "," };
        write!(
            document,
            r#"{comma}{{"traceId":"000000000000000000000000000000a1","spanId":"{id:016x}","parentSpanId":"{parent:016x}","name":"{name}","startTimeUnixNano":"{start}","endTimeUnixNano":"{end}","attributes":[{{"key":"thread.id","value":{{"intValue":"{}"}}}},{{"key":"target","value":{{"stringValue":"trie::proof_task"}}}}]}}"#,
            id % 64
        )
        .unwrap();
    };
    push(1, 0, "on_new_payload", 1_000_000, 600_000_000);
    push(2, 1, "execute_block", 1_100_000, 309_000_000);
    for worker in 0..64 {
        push(3 + worker, 1, "storage worker", 1_000_000, 560_000_000);
    }
    for proof in 0..23_934 {
        let start = 1_000_000 + proof * 20_000;
        push(67 + proof, 3 + proof % 64, "Storage proof calculation", start, start + 1_200_000);
    }
    document.push_str("]}]}]}");
    document
}

#[test]
fn a_trace_of_24_000_spans_takes_less_than_300_mb() {
    let document = trace_of_24_000_spans();
    let started = Instant::now();
    let (peak, report) = thread::peak(|| {
        let mut analyzer = Analyzer::new(Options::new(Preset::Reth.into(), 10), None);
        read_from("big", document.as_bytes(), &mut |input| analyzer.add(input));
        analyzer.finish()
    });
    eprintln!("{} spans in {:?}, {} MiB of heap", report.spans, started.elapsed(), peak / MIB);
    assert_eq!(report.spans, 24_000);
    assert!(report.payloads[0].overlap.unwrap() > 0.9);
    assert!(peak < 300 * 1_000_000, "{peak} bytes");
    let started = Instant::now();
    let (peak, page) = thread::peak(|| html(&report));
    eprintln!("html of {} bytes in {:?}, {} MiB", page.len(), started.elapsed(), peak / MIB);
    assert!(peak < 300 * 1_000_000, "{peak} bytes");
    // Piecewise and whole input must give equal reports.
    let whole = analyze(read("big", document.as_bytes()), &Preset::Reth.into(), 10);
    assert_eq!((json(&whole), text(&whole)), (json(&report), text(&report)));
}

/// Lines as the collector writes them: spans of one service, of `TRACES_OPEN` payloads at a time.
/// Each trace therefore comes in pieces, interleaved with other traces.
struct Lines {
    next: u64,
    payloads: u64,
    line: Vec<u8>,
    read: usize,
}

const SPANS_A_PAYLOAD: u64 = 40;
const TRACES_OPEN: u64 = 16;

impl Lines {
    fn of(payloads: u64) -> Self {
        Self { next: 0, payloads, line: Vec::new(), read: 0 }
    }

    /// Writes one line: the `part`th quarter of the spans of some payloads.
    fn write(&mut self) {
        let (group, part) = (self.next / 4, self.next % 4);
        self.line.clear();
        self.read = 0;
        let mut line = String::from(
            r#"{"resourceSpans":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"executor"}}]},"scopeSpans":[{"spans":["#,
        );
        let quarter = SPANS_A_PAYLOAD / 4;
        let mut comma = "";
        for payload in group * TRACES_OPEN..((group + 1) * TRACES_OPEN).min(self.payloads) {
            for id in 1 + part * quarter..=(part + 1) * quarter {
                let start = 1_000_000_000 + payload * 100_000;
                let (name, parent, from, to) = match id {
                    1 => ("on_new_payload", String::new(), 0, 90_000),
                    2 => ("payload processor", format!("{:016x}", 1), 0, 50_000),
                    _ => ("storage worker", format!("{:016x}", 1), 10_000 + id * 100, 60_000),
                };
                write!(
                    line,
                    r#"{comma}{{"traceId":"{:032x}","spanId":"{id:016x}","parentSpanId":"{parent}","name":"{name}","startTimeUnixNano":"{}","endTimeUnixNano":"{}","attributes":[{{"key":"block.number","value":{{"intValue":"{payload}"}}}}]}}"#,
                    payload + 1,
                    start + from,
                    start + to,
                )
                .unwrap();
                comma = ",";
            }
        }
        line.push_str("]}]}]}\n");
        self.line = line.into_bytes();
        self.next += 1;
    }
}

impl Read for Lines {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.read == self.line.len() {
            if self.next / 4 * TRACES_OPEN >= self.payloads {
                return Ok(0);
            }
            self.write();
        }
        let n = buffer.len().min(self.line.len() - self.read);
        buffer[..n].copy_from_slice(&self.line[self.read..self.read + n]);
        self.read += n;
        Ok(n)
    }
}

/// Streams `payloads` payloads through a window of 2,000 spans. Returns the peak of the heap, the
/// maximum number of spans held, and the report.
fn stream(payloads: u64) -> (usize, usize, Report) {
    let mut options = Options::new(Selection::default(), 50);
    options.timeline = false;
    let mut held = 0;
    let (peak, report) = thread::peak(|| {
        let mut analyzer = Analyzer::new(options, Some(2_000));
        read_from("stream", Lines::of(payloads), &mut |input| {
            analyzer.add(input);
            held = held.max(analyzer.held());
        });
        analyzer.finish()
    });
    (peak, held, report)
}

#[test]
fn a_stream_of_many_spans_takes_no_more_memory_than_one_of_few() {
    let (few, few_held, report) = stream(250);
    assert_eq!((report.spans, report.problems.is_empty()), (10_000, true));
    let (many, many_held, report) = stream(2_500);
    eprintln!("10,000 spans: {few} bytes, 100,000 spans: {many} bytes of heap");
    assert_eq!((report.spans, report.partial), (100_000, false));
    assert_eq!(report.payloads.len(), 50, "the youngest");
    assert_eq!(report.payloads[49].block_number, Some(2_499));
    assert!(report.payloads.iter().all(|one| one.spans == 40));
    assert!(report.payloads.iter().all(|one| one.overlap.unwrap() > 0.7));
    // The bound is the window, plus the traces that are incomplete when it ends.
    let most = 2_000 + 2 * (TRACES_OPEN * SPANS_A_PAYLOAD) as usize;
    assert!(few_held <= most && many_held <= most, "{few_held} {many_held}");
    assert!(many < few + few / 2, "{few} bytes for a tenth, {many} for all");
}

/// Run with `cargo test … --test scale -- --ignored --nocapture`.
#[test]
#[ignore = "takes half a minute; prints how long"]
fn a_million_spans_are_streamed() {
    let started = Instant::now();
    let (peak, held, report) = stream(25_000);
    let seconds = started.elapsed().as_secs_f64();
    eprintln!(
        "{} spans in {seconds:.1} s ({:.0} a second), {} MiB of heap, {held} spans held at most",
        report.spans,
        report.spans as f64 / seconds,
        peak / MIB
    );
    assert_eq!((report.spans, report.partial), (1_000_000, false));
    assert!(peak < 64 * MIB, "{peak} bytes");
}

/// Returns a payload of `spans` spans in trace `trace`, at `start` µs.
fn payload(trace: u128, spans: u64, start: u64) -> Vec<Span> {
    (1..=spans)
        .map(|id| Span {
            trace_id: TraceId(trace),
            span_id: SpanId(id),
            parent: (id > 1).then_some(SpanId(1)),
            service: "executor".into(),
            host: "host".into(),
            resource: std::sync::Arc::default(),
            kind: Kind::Other,
            name: ["on_new_payload", "payload processor", "storage worker"]
                [usize::try_from(id - 1).unwrap().min(2)]
            .to_owned(),
            start_ns: start * 1_000,
            end_ns: (start + 100) * 1_000,
            busy: Vec::new(),
            attributes: vec![("block.number".to_owned(), Attribute::Int(trace as i64))],
            links: Vec::new(),
        })
        .collect()
}

fn add(analyzer: &mut Analyzer, spans: Vec<Span>) {
    analyzer.add(Input { spans, ..Input::default() });
}

#[test]
fn a_trace_is_complete_when_it_was_quiet_for_the_window() {
    let options = || Options::new(Selection::default(), 100);
    let mut analyzer = Analyzer::new(options(), Some(10));
    let mut first = payload(1, 4, 0);
    let rest = first.split_off(2);
    add(&mut analyzer, first);
    // After eight spans of another trace, the rest still comes in time.
    add(&mut analyzer, payload(2, 8, 200));
    add(&mut analyzer, rest);
    add(&mut analyzer, payload(3, 9, 400));
    assert_eq!(analyzer.held(), 13, "the second one is done");
    let report = analyzer.finish();
    assert_eq!((report.payloads.len(), report.payloads[0].spans), (3, 4));
    assert!(!report.partial);
}

#[test]
fn spans_that_come_too_late_are_counted_and_make_the_answer_partial() {
    let options = || Options::new(Selection::default(), 100);
    for (window, partial) in [(Some(10), true), (None, false)] {
        let mut analyzer = Analyzer::new(options(), window);
        let mut first = payload(1, 4, 0);
        let rest = first.split_off(2);
        add(&mut analyzer, first);
        add(&mut analyzer, payload(2, 12, 200));
        add(&mut analyzer, rest);
        let report = analyzer.finish();
        assert_eq!((report.partial, report.problems.late_spans), (partial, 2 * u64::from(partial)));
        assert_eq!(report.payloads[0].spans, if partial { 2 } else { 4 });
        assert_eq!(text(&report).contains("2 spans came long after"), partial);
    }
}

#[test]
fn traces_that_link_to_each_other_are_analysed_together() {
    let mut analyzer = Analyzer::new(Options::new(Selection::default(), 100), Some(10));
    let mut batch = payload(9, 1, 10).remove(0);
    batch.name = "storage worker".to_owned();
    batch.links =
        [1, 2].map(|trace| Link { trace_id: TraceId(trace), span_id: SpanId(1) }).to_vec();
    add(&mut analyzer, payload(1, 2, 0));
    add(&mut analyzer, vec![batch]);
    add(&mut analyzer, payload(2, 2, 5));
    add(&mut analyzer, payload(3, 20, 500));
    assert_eq!(analyzer.held(), 20, "the three traces went together");
    let report = analyzer.finish();
    let b_spans: Vec<usize> = report.payloads.iter().map(|one| one.b_spans).collect();
    assert_eq!(b_spans, [1, 1, 18], "both have the batch");
}

#[test]
fn duplicates_in_different_pieces_count_once() {
    let mut analyzer = Analyzer::new(Options::new(Selection::default(), 100), Some(1_000));
    add(&mut analyzer, payload(1, 4, 0));
    add(&mut analyzer, payload(1, 5, 0));
    let report = analyzer.finish();
    assert_eq!((report.spans, report.problems.duplicate_spans), (5, 4));
}
