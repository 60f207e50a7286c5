//! Streaming analysis of more spans than fit into memory.
//!
//! Spans of one trace may come in pieces, interleaved with spans of other traces. An exporter sends
//! spans that have ended, and each service has an exporter of its own. A trace is therefore held
//! until it has been quiet for a number of spans of other traces (the window). Then its payloads
//! are analysed, and its spans are dropped except those of a timeline. Traces that link to each
//! other are held and analysed together. Later spans are left out and counted, and the answer is
//! then partial.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::aggregate::{Aggregate, Options};
use crate::model::{Input, Problems, Span, SpanId, TraceId};
use crate::report::Report;

/// Number of spans of other traces after which a trace counts as complete. The collector writes
/// batches of some thousand spans, and the spans of each service come within a few batches.
pub const WINDOW_SPANS: usize = 20_000;
/// Maximum number of spans held. Beyond it, the trace that was quiet longest is analysed as it is.
const HELD_SPANS_MAX: usize = 2_000_000;
/// Number of traces that are remembered after their analysis, so that late spans are noticed.
const DONE_TRACES_MAX: usize = 100_000;

/// Analyzer that takes spans in any number of pieces and makes a report of them.
pub struct Analyzer {
    aggregate: Aggregate,
    problems: Problems,
    /// Window in spans, or `None` to hold every trace until the end.
    window: Option<usize>,
    groups: HashMap<u64, Group>,
    /// Group of each held trace, and of each trace that a held span links to.
    of_trace: HashMap<TraceId, u64>,
    /// Times at which groups got a span, with the groups. Only the last entry of a group counts.
    touched: VecDeque<(u64, u64)>,
    /// Number of spans so far, which serves as the time.
    now: u64,
    held: usize,
    next_group: u64,
    done: HashSet<TraceId>,
    done_in_order: VecDeque<TraceId>,
}

/// Group of traces that link to each other.
#[derive(Default)]
struct Group {
    spans: Vec<Span>,
    known: HashSet<(TraceId, SpanId)>,
    traces: Vec<TraceId>,
    touched: u64,
}

impl Analyzer {
    /// Creates an analyzer for which a trace is complete after `window` spans of other traces
    /// ([`WINDOW_SPANS`]). `None` holds all spans until the end. Input in arbitrary order needs
    /// this, such as several files one after the other.
    pub fn new(options: Options, window: Option<usize>) -> Self {
        Self {
            aggregate: Aggregate::new(options),
            problems: Problems::default(),
            window,
            groups: HashMap::new(),
            of_trace: HashMap::new(),
            touched: VecDeque::new(),
            now: 0,
            held: 0,
            next_group: 0,
            done: HashSet::new(),
            done_in_order: VecDeque::new(),
        }
    }

    /// Returns the number of spans that are held now.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Takes the spans and the problems of a piece.
    pub fn add(&mut self, input: Input) {
        self.problems.merge(input.problems);
        for span in input.spans {
            self.take(span);
        }
    }

    /// Returns the report on all input.
    pub fn finish(mut self) -> Report {
        let mut left: Vec<(u64, u64)> =
            self.groups.iter().map(|(id, group)| (group.touched, *id)).collect();
        left.sort_unstable();
        // The groups are analysed one after the other, and each frees its memory.
        for (_, id) in left {
            self.release(id);
        }
        self.aggregate.finish(self.problems)
    }

    fn take(&mut self, span: Span) {
        if self.done.contains(&span.trace_id) {
            self.problems.late_spans += 1;
            return;
        }
        let mut id = self.group_of(span.trace_id);
        for link in span.links.iter().filter(|link| link.trace_id != span.trace_id) {
            // An analysed trace no longer has its batch. The batch may still serve others.
            if !self.done.contains(&link.trace_id) {
                let other = self.group_of(link.trace_id);
                id = self.join(id, other);
            }
        }
        let Some(group) = self.groups.get_mut(&id) else { return };
        if !group.known.insert((span.trace_id, span.span_id)) {
            self.problems.duplicate_spans += 1;
            return;
        }
        self.now += 1;
        self.held += 1;
        group.touched = self.now;
        group.spans.push(span);
        if let Some(window) = self.window {
            self.touched.push_back((self.now, id));
            self.release_quiet(window as u64);
        }
    }

    fn group_of(&mut self, trace: TraceId) -> u64 {
        if let Some(id) = self.of_trace.get(&trace) {
            return *id;
        }
        let id = self.next_group;
        self.next_group += 1;
        self.groups.insert(id, Group { traces: vec![trace], ..Group::default() });
        self.of_trace.insert(trace, id);
        id
    }

    /// Joins two groups, and returns the id of the joined group.
    fn join(&mut self, a: u64, b: u64) -> u64 {
        let size = |id: u64| self.groups.get(&id).map_or(0, |group| group.spans.len());
        let (into, from) = if size(a) >= size(b) { (a, b) } else { (b, a) };
        if into == from {
            return into;
        }
        let Some(moved) = self.groups.remove(&from) else { return into };
        for trace in &moved.traces {
            self.of_trace.insert(*trace, into);
        }
        let group = self.groups.entry(into).or_default();
        group.spans.extend(moved.spans);
        group.known.extend(moved.known);
        group.traces.extend(moved.traces);
        group.touched = group.touched.max(moved.touched);
        into
    }

    fn release_quiet(&mut self, window: u64) {
        while let Some((touched, id)) = self.touched.front().copied() {
            if touched + window > self.now && self.held <= HELD_SPANS_MAX {
                return;
            }
            self.touched.pop_front();
            if self.groups.get(&id).is_some_and(|group| group.touched == touched) {
                self.release(id);
            }
        }
    }

    fn release(&mut self, id: u64) {
        let Some(group) = self.groups.remove(&id) else { return };
        self.held -= group.spans.len();
        for trace in &group.traces {
            self.of_trace.remove(trace);
        }
        // Traces that were only linked to are not done: they may still come, alone.
        for span in &group.spans {
            if self.done.insert(span.trace_id) {
                self.done_in_order.push_back(span.trace_id);
            }
        }
        while self.done_in_order.len() > DONE_TRACES_MAX {
            if let Some(oldest) = self.done_in_order.pop_front() {
                self.done.remove(&oldest);
            }
        }
        self.aggregate.add(group.spans);
    }
}
