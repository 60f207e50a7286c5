//! Spans made with ordinary `tracing` macros, as they come out of the ring.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use tandem_telemetry::{
    BusyIntervals, Recorder, Ring, SpanContext, SpanRecord, TraceLevel, Value, add_link,
    mark_ready, set_remote_parent, traceparent, unix_nanos,
};
use tracing::{Span, debug_span, info_span};
use tracing_subscriber::layer::SubscriberExt;

/// Runs `f` under a recorder and returns the finished spans.
fn record(level: TraceLevel, f: impl FnOnce()) -> Vec<Arc<SpanRecord>> {
    let recorder = Recorder::new(level, Arc::new(Ring::new(1_000, 64 << 20)));
    let subscriber = tracing_subscriber::registry().with(recorder.layer());
    tracing::subscriber::with_default(subscriber, f);
    recorder.ring().traces(usize::MAX).into_iter().flatten().collect()
}

fn named<'a>(spans: &'a [Arc<SpanRecord>], name: &str) -> &'a SpanRecord {
    spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("no span {name}"))
}

#[test]
fn only_spans_of_our_crates_are_recorded() {
    let spans = record(TraceLevel::Stage, || {
        let _foreign = info_span!(target: "hyper::client", "connect").entered();
        let _ours = info_span!(target: "tandem_executor::tree", "on_new_payload").entered();
    });
    assert_eq!(spans.len(), 1);
    assert_eq!(
        (spans[0].service, spans[0].parent_id),
        ("executor", 0),
        "the foreign parent is skipped"
    );
}

#[test]
fn library_crate_inherits_the_service_of_its_caller() {
    let spans = record(TraceLevel::Stage, || {
        let _service = info_span!(target: "tandem_storage_writer", "commit_block").entered();
        let _library = info_span!(target: "tandem_store::batch", "write_batch").entered();
    });
    assert_eq!(named(&spans, "write_batch").service, "storage-writer");
}

#[test]
fn level_selects_stages_or_jobs_or_nothing() {
    let make = || {
        let _stage = info_span!(target: "tandem_executor", "stage").entered();
        let _job = debug_span!(target: "tandem_executor", "job").entered();
    };
    assert_eq!(record(TraceLevel::Off, make).len(), 0);
    assert_eq!(record(TraceLevel::Stage, make).len(), 1);
    assert_eq!(record(TraceLevel::Job, make).len(), 2);
}

#[test]
fn fields_become_attributes_and_a_later_value_replaces_the_earlier() {
    let spans = record(TraceLevel::Stage, || {
        let span = info_span!(
            target: "tandem_executor", "on_new_payload",
            block.number = 7u64, valid = false, ratio = 0.5, hash = %"0xab", jobs = tracing::field::Empty
        );
        span.record("jobs", 3u64);
        span.record("valid", true);
    });
    let expected = vec![
        ("block.number", Value::Int(7)),
        ("valid", Value::Bool(true)),
        ("ratio", Value::Float(0.5)),
        ("hash", Value::Str("0xab".to_owned())),
        ("jobs", Value::Int(3)),
    ];
    assert_eq!(spans[0].attributes, expected);
}

#[test]
fn busy_intervals_are_attached_and_idle_time_is_not_busy() {
    let before = unix_nanos();
    let spans = record(TraceLevel::Stage, || {
        let span = info_span!(target: "tandem_multiproof_workers", "storage worker");
        let mut busy = BusyIntervals::new(&span);
        for _ in 0..3 {
            {
                let _working = busy.enter();
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    let worker = &spans[0];
    assert_eq!(worker.busy.len(), 3);
    assert!(worker.busy.iter().all(|(start, end)| before <= *start && end - start >= 1_000_000));
    assert!(worker.busy.windows(2).all(|pair| pair[1].0 - pair[0].1 >= 2_000_000));
    let sum: u64 = worker.busy.iter().map(|(start, end)| end - start).sum();
    assert!(worker.attributes.contains(&("busy.total_ns", Value::from(sum))));
    assert!(worker.end_ns >= worker.busy[2].1);
}

#[test]
fn worker_that_never_worked_is_not_busy() {
    let spans = record(TraceLevel::Stage, || {
        let span = info_span!(target: "tandem_multiproof_workers", "storage worker");
        drop(BusyIntervals::new(&span));
    });
    assert_eq!(spans[0].busy.iter().map(|(start, end)| end - start).sum::<u64>(), 0);
    assert!(!spans[0].busy.is_empty(), "an empty list would mean busy throughout");
}

#[test]
fn busy_span_shows_the_thread_that_worked() {
    let spans = record(TraceLevel::Stage, || {
        let span = info_span!(target: "tandem_multiproof_workers", "storage worker");
        let dispatch = tracing::dispatcher::get_default(Clone::clone);
        let work = move || {
            let _default = tracing::dispatcher::set_default(&dispatch);
            BusyIntervals::new(&span).start();
        };
        std::thread::Builder::new().name("shard-3".to_owned()).spawn(work).unwrap().join().unwrap();
    });
    assert_eq!(&*spans[0].thread.name, "shard-3");
}

#[test]
fn trace_goes_on_in_another_process() {
    let mut header = None;
    let here = record(TraceLevel::Stage, || {
        let span = info_span!(target: "tandem_executor", "commit_block");
        header = traceparent(&span);
    });
    let header = header.unwrap();
    let there = record(TraceLevel::Stage, || {
        let span = info_span!(target: "tandem_storage_writer", "commit_block");
        assert!(set_remote_parent(&span, &header));
        let _entered = span.entered();
        let _child = info_span!(target: "tandem_storage_writer", "write_batch").entered();
    });
    let (server, child) = (named(&there, "commit_block"), named(&there, "write_batch"));
    assert_eq!(server.trace_id, here[0].trace_id);
    assert_eq!((server.parent_id, server.parent_is_remote), (here[0].span_id, true));
    assert_eq!(child.trace_id, here[0].trace_id);
    assert_eq!((child.parent_id, child.parent_is_remote), (server.span_id, false));
}

#[test]
fn malformed_traceparent_leaves_the_span_a_root() {
    let spans = record(TraceLevel::Stage, || {
        let span = info_span!(target: "tandem_executor", "on_new_payload");
        assert!(!set_remote_parent(&span, "00-zz-1-01"));
    });
    assert_eq!(spans[0].parent_id, 0);
}

#[test]
fn batch_links_to_the_requests_it_serves() {
    let spans = record(TraceLevel::Stage, || {
        let first = info_span!(target: "tandem_executor", "first");
        let second = info_span!(target: "tandem_executor", "second");
        let batch = info_span!(target: "tandem_storage_writer", "write_batch");
        assert!(add_link(&batch, &traceparent(&first).unwrap()));
        batch.follows_from(&second);
    });
    let links: Vec<u64> =
        named(&spans, "write_batch").links.iter().map(|link| link.span_id).collect();
    assert_eq!(links, [named(&spans, "first").span_id, named(&spans, "second").span_id]);
}

#[test]
fn ready_time_is_an_attribute_and_never_in_the_future() {
    let spans = record(TraceLevel::Stage, || {
        let span = info_span!(target: "tandem_executor", "on_new_payload");
        mark_ready(&span, u64::MAX);
    });
    let (name, value) = &spans[0].attributes[0];
    assert_eq!(*name, "queue.ready_unix_nano");
    assert!(matches!(value, Value::Int(ns) if (*ns as u64) <= unix_nanos()));
}

#[test]
fn without_a_recorder_every_helper_does_nothing() {
    let span = Span::none();
    assert_eq!(traceparent(&span), None);
    assert_eq!(SpanContext::of(&span), None);
    assert!(!set_remote_parent(&span, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"));
    assert!(!add_link(&span, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"));
}

#[test]
fn recording_a_span_costs_microseconds() {
    const SPANS: u32 = 20_000;
    let mut took = Duration::ZERO;
    record(TraceLevel::Stage, || {
        let _root = info_span!(target: "tandem_executor", "on_new_payload").entered();
        let start = Instant::now();
        for n in 0..SPANS {
            let _span = info_span!(target: "tandem_executor", "stage", block.number = n).entered();
        }
        took = start.elapsed();
    });
    let each = took / SPANS;
    eprintln!("one span costs {each:?}");
    // Each takes around 1 µs on a quiet machine. The bound leaves room for a busy one.
    assert!(each < Duration::from_micros(20), "{each:?}");
}

#[test]
fn cut_span_ends_there_although_it_is_still_held() {
    let mut cut_ns = 0;
    let spans = record(TraceLevel::Stage, || {
        let span = info_span!(target: "tandem_executor", "prewarm");
        let mut busy = BusyIntervals::new(&span);
        busy.start();
        cut_ns = unix_nanos();
        std::thread::sleep(Duration::from_millis(1));
        busy.stop();
        busy.cut(cut_ns);
    });
    assert_eq!(named(&spans, "prewarm").end_ns, cut_ns);
}
