//! Analysis of one payload: the two sides, their overlap, the tail and the critical path.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;
use tandem_verdict::{Thresholds, Verdict};

use crate::critical_path::{CriticalPath, Part, Sides};
use crate::doubt::{Doubt, doubts, joined_ns};
use crate::intervals::Intervals;
use crate::model::{Attribute, Span, SpanId, TraceId};
use crate::payloads::{Index, Payload};
use crate::select::{Busy, Pattern, Selection, Side};
use crate::worth::{ThreadTimes, Worth};

/// Time of the workers that may be missing without a doubt: at least this, and this part of theirs.
const LOST_LEAST_NS: u64 = 100_000;
const LOST_SHARE: f64 = 0.10;

/// Event up to which the tail was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TailUntil {
    /// End of the last waiting span, `await_state_root`.
    Wait,
    /// End of the last busy interval of side B, because no waiting span was found.
    SideB,
}

/// Kind of span on the critical path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Step {
    /// Service of the spans.
    pub service: String,
    /// Name of the spans.
    pub name: String,
    /// Whether the work of the spans waited in a queue in this time instead of being done.
    pub queued: bool,
    /// Time that the payload's answer waited for the spans, in nanoseconds.
    pub ns: u64,
}

/// Analysis of one payload. Times ending in `_ns` are nanoseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PayloadReport {
    /// Trace of the payload.
    pub trace_id: TraceId,
    /// Root span of the payload.
    pub root_span_id: SpanId,
    /// `block.number` of the root, or of any span of the payload.
    pub block_number: Option<u64>,
    /// `block.hash` of the root, or of any span of the payload.
    pub block_hash: Option<String>,
    /// Start of the root, Unix time.
    pub start_unix_ns: u64,
    /// Length of the root.
    pub payload_ns: u64,
    /// Time from the first to the last instant at which a side is busy, inside the root.
    pub wall_ns: u64,
    /// |A|.
    pub a_ns: u64,
    /// |B|, without wasted work.
    pub b_ns: u64,
    /// Work of B whose results were thrown away, spread over B's threads. It was done ahead, so it is
    /// taken from |A∩B| as well. Absent unless the workers tell.
    pub wasted_ns: Option<u64>,
    /// |A∩B|, without wasted work.
    pub both_ns: u64,
    /// Part of the wall in which neither side is busy.
    pub neither_ns: u64,
    /// |A∩B| / min(|A|,|B|), absent when a side has no work.
    pub overlap: Option<f64>,
    /// Overlap computed from whole spans instead of busy intervals.
    pub container_overlap: Option<f64>,
    /// (wall − max(|A|,|B|)) / min(|A|,|B|), clamped to 0..1, absent when a side has no work.
    pub serialization: Option<f64>,
    /// Delay of the start of B after the start of A, negative when B began earlier.
    pub b_lag_ns: Option<i64>,
    /// Time from the end of A to the event in `tail_until`, absent without A.
    pub tail_ns: Option<u64>,
    /// `tail_ns` as a part of `payload_ns`.
    pub tail_share: Option<f64>,
    /// Event up to which the tail was measured.
    pub tail_until: Option<TailUntil>,
    /// Number of processors that the process of the root may use, if it tells.
    pub processors: Option<u64>,
    /// Worth of overlapping.
    #[serde(flatten)]
    pub worth: Worth,
    /// Length of gaps between busy intervals that were joined: either side may be shorter by it.
    pub joined_ns: u64,
    /// Largest over mean busy time of the workers: 1 if all had the same to do. Absent unless their
    /// spans tell.
    pub imbalance: Option<f64>,
    /// Reasons why there is no verdict.
    pub doubts: Vec<Doubt>,
    /// Verdict on this payload, absent when a side has no work or there are doubts.
    pub verdict: Option<Verdict>,
    /// Number of spans of the payload.
    pub spans: usize,
    /// Number of spans of side A.
    pub a_spans: usize,
    /// Number of spans of side B.
    pub b_spans: usize,
    /// Number of spans of either side that carry no busy intervals and counted for their whole
    /// length.
    pub whole_spans: usize,
    /// Number of spans whose parent is not in the input.
    pub orphans: usize,
    /// Work that the answer waited for, longest first. The times add up to `payload_ns`.
    pub critical_path: Vec<Step>,
}

/// Details of a payload that the renderers need beyond its report.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PayloadDetail {
    pub(crate) a: Intervals,
    pub(crate) b: Intervals,
    /// Start and end of the root.
    pub(crate) window: (u64, u64),
    /// Spans of the payload, if a timeline is wanted.
    pub(crate) timeline: Option<Timeline>,
}

/// Spans of a payload.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Timeline {
    /// Spans that the indices refer to.
    pub(crate) spans: Arc<Vec<Span>>,
    /// Indices of all spans of the payload, in order of start, and of the spans of each side.
    pub(crate) members: Vec<usize>,
    pub(crate) a_members: Vec<usize>,
    pub(crate) b_members: Vec<usize>,
    /// Busy intervals of spans that carry none and count by their children.
    pub(crate) derived_busy: DerivedBusy,
}

/// Result of the analysis of one payload.
pub(crate) struct Analysis {
    pub(crate) report: PayloadReport,
    pub(crate) a: Intervals,
    pub(crate) b: Intervals,
    pub(crate) a_members: Vec<usize>,
    pub(crate) b_members: Vec<usize>,
    pub(crate) derived_busy: DerivedBusy,
    /// Critical path, in order of time.
    pub(crate) path: Vec<Part>,
    /// Waiting span that ends last.
    pub(crate) last_wait: Option<usize>,
    /// Whether spans that count by their children have none in this payload: either they were idle,
    /// or children were not recorded.
    pub(crate) is_childless: bool,
    /// Whether spans that count by their children have any in this payload.
    pub(crate) has_children: bool,
}

/// Busy intervals by index of the span.
pub(crate) type DerivedBusy = HashMap<usize, Vec<(u64, u64)>>;

/// Spans of one side of one payload, with the times at which they were busy and open.
struct Measured {
    members: Vec<usize>,
    busy: Intervals,
    containers: Intervals,
    derived_busy: DerivedBusy,
    whole_spans: usize,
    joined_ns: u64,
    is_childless: bool,
    has_children: bool,
    threads: Option<ThreadTimes>,
    /// Part of the threads' busy time that was in vain, if they tell.
    wasted: Option<f64>,
}

/// Returns `block.number` of the root, or of any span of the payload.
pub(crate) fn block_number(index: &Index<'_>, payload: &Payload) -> Option<u64> {
    attribute(index, payload, &["block.number", "block_number", "block_num", "num", "number"])?
        .parse()
        .ok()
}

/// Analyses a payload. `recorded` says that children are known to be recorded, so that a worker
/// without any was idle.
pub(crate) fn analyze_payload(
    index: &Index<'_>,
    payload: &Payload,
    selection: &Selection,
    thresholds: &Thresholds,
    recorded: bool,
) -> Analysis {
    let root = &index.spans[payload.root];
    let window = (root.start_ns, root.end_ns);
    let a = measure(index, payload, &selection.a, window, recorded);
    let b = measure(index, payload, &selection.b, window, recorded);
    let mut derived_busy = a.derived_busy;
    derived_busy.extend(b.derived_busy);
    let either = Intervals::union(a.busy.as_slice().iter().chain(b.busy.as_slice()).copied());
    let wall_ns = either.hull().map_or(0, |(start, end)| end - start);
    let all_ns = a.busy.total() + b.busy.total() - either.total();
    let wasted_ns = b.wasted.map(|share| ((b.busy.total() as f64 * share) as u64).min(all_ns));
    let wasted = wasted_ns.unwrap_or_default();
    let (a_ns, b_ns, both_ns) = (a.busy.total(), b.busy.total() - wasted, all_ns - wasted);
    let shorter = a_ns.min(b_ns);
    let overlap = ratio(both_ns, shorter);
    let waits = named(index, payload, std::slice::from_ref(&selection.wait));
    let tail = tail(index, &a.busy, &b.busy, &waits, window);
    let tail_ns = tail.map(|(start, end, _)| end - start);
    let payload_ns = root.duration_ns();
    let tail_share = tail_ns.and_then(|tail| ratio(tail, payload_ns));
    let worth = {
        let (tail, threads) = (tail.map(|(start, end, _)| (start, end)), [a.threads, b.threads]);
        Worth::of(&a.busy, &b.busy, &either, wasted, payload_ns, tail, threads)
    };
    let joined_ns = a.joined_ns + b.joined_ns;
    let sides = a.members.iter().chain(&b.members).map(|at| &index.spans[*at]);
    let mut doubts = doubts(sides, joined_ns, shorter);
    if has_lost_workers(root, b.busy.total()) {
        doubts.push(Doubt::LostWorkers);
    }
    let a_by_name = by_name(index, &selection.a, &a.members);
    let roles = Sides { a: &a_by_name, b: &b.members, waits: &waits };
    let processors = root.attribute("processors").and_then(Attribute::as_u64);
    let proved = worth.proved.filter(|_| may_take_turns(processors));
    let verdict = thresholds.verdict(worth.reached, worth.weight, tail_share, proved);
    let path = CriticalPath::of(index, payload, &roles, &derived_busy);
    let report = PayloadReport {
        trace_id: root.trace_id,
        root_span_id: root.span_id,
        block_number: block_number(index, payload),
        block_hash: attribute(index, payload, &["block.hash", "block_hash"]),
        start_unix_ns: root.start_ns,
        payload_ns,
        wall_ns,
        a_ns,
        b_ns,
        wasted_ns,
        both_ns,
        neither_ns: wall_ns - either.total(),
        overlap,
        container_overlap: container_overlap(&a.containers, &b.containers),
        serialization: ratio(wall_ns - a_ns.max(b_ns), shorter).map(|value| value.min(1.0)),
        b_lag_ns: lag(&a.busy, &b.busy),
        tail_ns,
        tail_share,
        tail_until: tail.map(|(_, _, until)| until),
        processors,
        worth,
        verdict: verdict.filter(|_| doubts.is_empty()),
        joined_ns,
        imbalance: imbalance(b.members.iter().map(|at| &index.spans[*at])),
        doubts,
        spans: payload.members.len(),
        a_spans: a.members.len(),
        b_spans: b.members.len(),
        whole_spans: a.whole_spans + b.whole_spans,
        orphans: payload.orphans,
        critical_path: critical_path(index, &path),
    };
    let last_wait = waits.into_iter().max_by_key(|at| index.spans[*at].end_ns);
    Analysis {
        report,
        a: a.busy,
        b: b.busy,
        a_members: a.members,
        b_members: b.members,
        derived_busy,
        path,
        last_wait,
        is_childless: a.is_childless || b.is_childless,
        has_children: a.has_children || b.has_children,
    }
}

fn measure(
    index: &Index<'_>,
    payload: &Payload,
    side: &Side,
    window: (u64, u64),
    recorded: bool,
) -> Measured {
    let mut alternatives = side.alternatives.iter().map(|patterns| named(index, payload, patterns));
    let members = alternatives.find(|members| !members.is_empty()).unwrap_or_default();
    let any_children = members.iter().any(|at| !index.children(*at).is_empty());
    let (mut busy, mut containers, mut whole_spans) = (Vec::new(), Vec::new(), 0);
    let mut derived_busy = DerivedBusy::new();
    for &at in &members {
        let span = &index.spans[at];
        let whole = (span.start_ns, span.end_ns);
        containers.push(whole);
        if !span.busy.is_empty() {
            busy.extend_from_slice(&span.busy);
        } else if side.busy == Busy::Children && (any_children || recorded) {
            let parts = while_children_run(index, at);
            busy.extend_from_slice(&parts);
            derived_busy.insert(at, parts);
        } else {
            busy.push(whole);
            whole_spans += 1;
        }
    }
    // Spans of the less preferred names contain the preferred ones: they have no work of their own.
    for at in alternatives.flatten().filter(|at| index.spans[*at].busy.is_empty()) {
        derived_busy.insert(at, while_children_run(index, at));
    }
    let joined_ns = members.iter().map(|at| joined_ns(&index.spans[*at])).sum();
    let threads = thread_times(members.iter().map(|at| &index.spans[*at]));
    let wasted = wasted_share(members.iter().map(|at| &index.spans[*at]));
    let is_childless = side.busy == Busy::Children && !any_children && whole_spans > 0;
    Measured {
        threads,
        wasted,
        joined_ns,
        is_childless,
        has_children: side.busy == Busy::Children && any_children,
        members,
        busy: Intervals::union(busy).clip(window.0, window.1),
        containers: Intervals::union(containers).clip(window.0, window.1),
        derived_busy,
        whole_spans,
    }
}

/// Returns whether threads that had too little processor time may have taken turns on a single
/// processor. With more of them, others used the processors too.
fn may_take_turns(processors: Option<u64>) -> bool {
    processors.is_none_or(|count| count == 1)
}

impl PayloadReport {
    /// Returns the part of the overlap that processor time proves, where the sides may have taken
    /// turns on a single processor.
    pub(crate) fn proved(&self) -> Option<f64> {
        self.worth.proved.filter(|_| may_take_turns(self.processors))
    }
}

/// Returns the times of the threads that these spans are of. A lane has the times of all its
/// threads on one span. Without a lane, `None` unless all spans tell their own.
fn thread_times<'s>(spans: impl Iterator<Item = &'s Span> + Clone) -> Option<ThreadTimes> {
    let times = |span: &Span, [busy, cpu]: [&str; 2]| {
        let time = |key| span.attribute(key).and_then(Attribute::as_u64);
        Some(ThreadTimes { busy_ns: time(busy)?, cpu_ns: time(cpu)? })
    };
    let of_lane = |span| times(span, ["threads.busy_ns", "threads.cpu_ns"]);
    let lanes: Vec<_> = spans.clone().filter_map(of_lane).collect();
    let all = match lanes.is_empty() {
        true => spans
            .map(|span| times(span, ["busy.total_ns", "busy.cpu_ns"]))
            .collect::<Option<_>>()?,
        false => lanes,
    };
    all.into_iter().reduce(|sum, one| ThreadTimes {
        busy_ns: sum.busy_ns + one.busy_ns,
        cpu_ns: sum.cpu_ns + one.cpu_ns,
    })
}

/// Returns the part of the busy time of a lane's threads that was in vain, in all processes.
fn wasted_share<'s>(spans: impl Iterator<Item = &'s Span>) -> Option<f64> {
    let (mut wasted, mut busy) = (0, 0);
    for span in spans {
        let number = |key| span.attribute(key).and_then(Attribute::as_u64);
        let Some(ns) = number("threads.wasted_ns") else { continue };
        wasted += ns;
        busy += number("threads.busy_ns")?;
    }
    ratio(wasted, busy).map(|share| share.min(1.0))
}

/// Returns the times at which any child of the span runs. The result is never empty, as that would
/// mean busy throughout.
fn while_children_run(index: &Index<'_>, at: usize) -> Vec<(u64, u64)> {
    let children = index.children(at).iter().map(|child| &index.spans[*child]);
    let parts = Intervals::union(children.map(|child| (child.start_ns, child.end_ns)));
    let start = index.spans[at].start_ns;
    if parts.is_empty() { vec![(start, start)] } else { parts.into_vec() }
}

/// Returns the members of a side by the patterns of the alternative that they match, in its order.
fn by_name(index: &Index<'_>, side: &Side, members: &[usize]) -> Vec<Vec<usize>> {
    let of = |pattern: &Pattern| {
        let matches = |at: &usize| pattern.matches(&index.spans[*at].name);
        members.iter().copied().filter(matches).collect::<Vec<_>>()
    };
    let used =
        side.alternatives.iter().find(|patterns| patterns.iter().any(|one| !of(one).is_empty()));
    used.map_or(Vec::new(), |patterns| patterns.iter().map(of).collect())
}

/// Returns whether the payload says that its workers were busy for longer than their spans in the
/// input are. Some are missing then.
fn has_lost_workers(root: &Span, b_ns: u64) -> bool {
    let said = root.attribute("overlap.b_us").and_then(Attribute::as_u64).unwrap_or(0);
    let lost_ns = said.saturating_mul(1_000).saturating_sub(b_ns);
    b_ns > 0 && lost_ns > LOST_LEAST_NS && lost_ns as f64 > said as f64 * 1_000.0 * LOST_SHARE
}

/// Returns the largest over the mean busy time of the workers that own tries, in all processes.
fn imbalance<'s>(spans: impl Iterator<Item = &'s Span>) -> Option<f64> {
    let (mut owners, mut sum, mut largest) = (0, 0, 0);
    for span in spans {
        let number = |key| span.attribute(key).and_then(Attribute::as_u64);
        let Some(count) = number("owners") else { continue };
        owners += count;
        sum += number("owners.busy_ns")?;
        largest = largest.max(number("owners.busy_max_ns")?);
    }
    ratio(largest.saturating_mul(owners), sum).filter(|_| owners > 1)
}

/// Returns the members of the payload whose name matches one of `patterns`.
fn named(index: &Index<'_>, payload: &Payload, patterns: &[Pattern]) -> Vec<usize> {
    let matches =
        |at: &usize| patterns.iter().any(|pattern| pattern.matches(&index.spans[*at].name));
    payload.members.iter().copied().filter(matches).collect()
}

/// Returns `part / whole`, or `None` when the whole is 0.
pub(crate) fn ratio(part: u64, whole: u64) -> Option<f64> {
    // Nanosecond counts of a payload are far below 2^53, so no precision is lost.
    (whole > 0).then(|| part as f64 / whole as f64)
}

fn container_overlap(a: &Intervals, b: &Intervals) -> Option<f64> {
    ratio(a.intersection(b).total(), a.total().min(b.total()))
}

fn lag(a: &Intervals, b: &Intervals) -> Option<i64> {
    let (a, b) = (a.hull()?.0, b.hull()?.0);
    i64::try_from(i128::from(b) - i128::from(a)).ok()
}

/// Returns start and end of the tail, and what its end is.
fn tail(
    index: &Index<'_>,
    a: &Intervals,
    b: &Intervals,
    waits: &[usize],
    window: (u64, u64),
) -> Option<(u64, u64, TailUntil)> {
    let (_, a_end) = a.hull()?;
    let wait_end = waits.iter().map(|at| index.spans[*at].end_ns.min(window.1)).max();
    let (end, until) = match (wait_end, b.hull()) {
        (Some(end), _) => (end, TailUntil::Wait),
        (None, Some((_, end))) => (end, TailUntil::SideB),
        (None, None) => return None,
    };
    Some((a_end, end.max(a_end), until))
}

/// Returns the first of `keys` that the root has, or else any span of the payload, as text.
fn attribute(index: &Index<'_>, payload: &Payload, keys: &[&str]) -> Option<String> {
    let candidates = std::iter::once(payload.root).chain(payload.members.iter().copied());
    candidates
        .flat_map(|at| keys.iter().filter_map(move |key| index.spans[at].attribute(key)))
        .map(ToString::to_string)
        .next()
}

fn critical_path(index: &Index<'_>, path: &[Part]) -> Vec<Step> {
    let mut totals: HashMap<(&str, &str, bool), u64> = HashMap::new();
    for part in path {
        let span = &index.spans[part.span];
        let kind = (&*span.service, span.name.as_str(), part.queued);
        *totals.entry(kind).or_default() += part.end_ns - part.start_ns;
    }
    let mut steps: Vec<Step> = totals
        .into_iter()
        .map(|((service, name, queued), ns)| Step {
            service: service.to_owned(),
            name: name.to_owned(),
            queued,
            ns,
        })
        .collect();
    steps.sort_by(|x, y| {
        let rest = |step: &Step| (step.name.clone(), step.service.clone(), step.queued);
        y.ns.cmp(&x.ns).then_with(|| rest(x).cmp(&rest(y)))
    });
    steps
}
