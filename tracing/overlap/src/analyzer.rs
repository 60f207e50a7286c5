//! Analysis of spans as they come, of more than fit into memory.
//!
//! Spans of one trace may come in pieces, and those of others between them: an exporter sends what
//! has ended, and each service has an exporter of its own. So a trace is held until it has been quiet
//! for a number of spans of others (the window); then its payloads are analysed, and its spans are
//! gone but for those of a timeline. Traces that link to each other are held and analysed together.
//! What comes later than that is left out, and counted: the answer is partial then.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::aggregate::{Aggregate, Options};
use crate::model::{Input, Problems, Span, SpanId, TraceId};
use crate::report::Report;

/// Spans of others after which a trace is taken to be complete. The collector writes batches of some
/// thousand spans, and each service's come within a few of them.
pub const WINDOW_SPANS: usize = 20_000;
/// Spans that are held at most: beyond it the trace that was quiet longest is taken as it is.
const HELD_SPANS_MAX: usize = 2_000_000;
/// Traces that are remembered after their analysis, so that spans that come too late are noticed.
const DONE_TRACES_MAX: usize = 100_000;

/// Takes spans in any number of pieces and makes a report of them.
pub struct Analyzer {
    aggregate: Aggregate,
    problems: Problems,
    /// `None`: every trace is held until the end.
    window: Option<usize>,
    groups: HashMap<u64, Group>,
    /// The group of each trace that is held, and of each one that a held span links to.
    of_trace: HashMap<TraceId, u64>,
    /// When which group got a span; the last of its entries counts.
    touched: VecDeque<(u64, u64)>,
    /// Spans so far: what time is here.
    now: u64,
    held: usize,
    next_group: u64,
    done: HashSet<TraceId>,
    done_in_order: VecDeque<TraceId>,
}

/// Traces that link to each other.
#[derive(Default)]
struct Group {
    spans: Vec<Span>,
    known: HashSet<(TraceId, SpanId)>,
    traces: Vec<TraceId>,
    touched: u64,
}

impl Analyzer {
    /// With `window` spans of others a trace is complete ([`WINDOW_SPANS`]); `None` holds all spans
    /// until the end, which any order needs, such as that of several files one after the other.
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

    /// Spans that are held now.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Takes the spans of a piece, and what was wrong with it.
    pub fn add(&mut self, input: Input) {
        self.problems.merge(input.problems);
        for span in input.spans {
            self.take(span);
        }
    }

    /// The report on all that came.
    pub fn finish(mut self) -> Report {
        let mut left: Vec<(u64, u64)> =
            self.groups.iter().map(|(id, group)| (group.touched, *id)).collect();
        left.sort_unstable();
        // One after the other: what is analysed makes room.
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
            // What was analysed already has its batch no more; the batch may serve others.
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

    /// Makes one group of two, and answers which.
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
        // Not those that were only linked to: they may still come, alone.
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
