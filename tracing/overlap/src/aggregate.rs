//! Aggregation of payloads into the report: the part kept of each, and the figures over all.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use tandem_verdict::{Thresholds, Verdict};

use crate::analyze::{
    Analysis, PayloadDetail, PayloadReport, Timeline, analyze_payload, block_number, ratio,
};
use crate::clocks::{Clock, Observations, align, ready_ns};
use crate::doubt::Doubt;
use crate::filter::Filter;
use crate::intervals::Intervals;
use crate::listed::ListedBlocks;
use crate::model::{Attribute, Problems, Span, TraceId};
use crate::notes::notes;
use crate::payloads::{Index, Payload};
use crate::report::{Distribution, QueueGap, Report, Summary, Totals};
use crate::select::Selection;
use crate::stats::median;
use crate::what_if::{PayloadGain, gains, over_all};

/// Number of payloads named in [`Report::worst`] and in [`Report::slowest`].
const WORST: usize = 5;
/// Maximum number of payloads whose spans are kept for the timeline: the worst and the youngest.
const TIMELINES_MAX: usize = 64;
/// Maximum number of spans of these payloads. Further payloads are left out, to keep the page
/// responsive.
const TIMELINE_SPANS_MAX: usize = 200_000;
/// Maximum number of queue gaps kept per payload and name. A larger set is reduced to this many
/// evenly spread gaps.
const GAPS_MAX: usize = 1_024;

/// Options of an analysis and of its report.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Names of the spans to look for.
    pub selection: Selection,
    /// Filter of the payloads that count.
    pub filter: Filter,
    /// Maximum number of payloads to analyse, the youngest first.
    pub limit: usize,
    /// Clocks with the corrections to make ([`Clock::corrected`]), as estimated by another report
    /// on the same spans ([`Report::clocks`]). Empty for no correction.
    pub align: Vec<Clock>,
    /// Address at which Jaeger shows traces, such as `http://127.0.0.1:16686`, for links to the
    /// worst payloads.
    pub jaeger_ui: Option<String>,
    /// Whether to keep spans for [`html`](crate::html).
    pub timeline: bool,
    /// Whether to say what faster stages would gain ([`Report::what_if`]).
    pub what_if: bool,
    /// Part of its time that each stage is asked to lose besides a tenth and a half, below 1.
    pub what_if_part: Option<f64>,
}

impl Options {
    /// Creates options for the `limit` youngest payloads of `selection`, with a timeline.
    pub fn new(selection: Selection, limit: usize) -> Self {
        let (filter, align, jaeger_ui) = (Filter::default(), Vec::new(), None);
        Self {
            selection,
            filter,
            limit,
            align,
            jaeger_ui,
            timeline: true,
            what_if: false,
            what_if_part: None,
        }
    }
}

/// Analysed payload, with the details that the report needs of it.
struct Analysed {
    report: PayloadReport,
    detail: Option<PayloadDetail>,
    gaps: Vec<(String, Gaps)>,
    /// Gains of faster stages, if they are wanted.
    gains: Vec<PayloadGain>,
    /// The report if workers without children were idle, where the payload alone does not tell.
    if_idle: Option<Box<PayloadReport>>,
    /// Hosts of the spans on both sides.
    hosts: Vec<Arc<str>>,
    /// `service.instance.id` of the process that made the root.
    instance: Option<String>,
    /// Whether the root says that side B worked, and none of its spans is in the input.
    lost_side_b: bool,
}

/// Times from ready to taken, for one name in one payload.
#[derive(Default)]
struct Gaps {
    n: usize,
    values: Vec<u64>,
}

/// Report under construction.
pub(crate) struct Aggregate {
    options: Options,
    thresholds: Thresholds,
    payloads: Vec<Analysed>,
    observations: Observations,
    spans: usize,
    other_traces: usize,
    filtered: usize,
    /// Number of spans in the timelines that are kept.
    timeline_spans: usize,
    /// Whether any payload has spans that count by their children, and children.
    has_children: bool,
    listed: ListedBlocks,
}

impl Aggregate {
    pub(crate) fn new(options: Options) -> Self {
        Self {
            options,
            thresholds: Thresholds::default(),
            payloads: Vec::new(),
            observations: Observations::default(),
            spans: 0,
            other_traces: 0,
            filtered: 0,
            timeline_spans: 0,
            has_children: false,
            listed: ListedBlocks::default(),
        }
    }

    /// Adds all payloads of `spans`. The input must contain their known parents and links.
    pub(crate) fn add(&mut self, mut spans: Vec<Span>) {
        align(&mut spans, &self.options.align);
        let spans = Arc::new(spans);
        let index = Index::new(&spans);
        let mut found = index.payloads(&self.options.selection);
        let roots: HashSet<TraceId> =
            found.iter().map(|payload| spans[payload.root].trace_id).collect();
        let traces: HashSet<TraceId> = spans.iter().map(|span| span.trace_id).collect();
        self.spans += spans.len();
        self.other_traces += traces.difference(&roots).count();
        let all = found.len();
        let filter = &self.options.filter;
        found.retain(|one| filter.admits(&spans[one.root], block_number(&index, one)));
        self.filtered += all - found.len();
        found.drain(..found.len().saturating_sub(self.options.limit));
        let admitted: HashSet<TraceId> =
            found.iter().map(|payload| spans[payload.root].trace_id).collect();
        let admitted = spans.iter().filter(|span| admitted.contains(&span.trace_id));
        admitted.for_each(|span| self.listed.add(span));
        let mut seen = HashSet::new();
        for payload in &found {
            let analysed = self.payload(&index, &spans, payload, &mut seen);
            self.payloads.push(analysed);
        }
        // This does not run at each payload: many payloads share its cost.
        if self.payloads.len() / 5 * 4 > self.options.limit.max(TIMELINES_MAX) {
            self.drop_oldest();
        }
        if self.timeline_spans / 5 * 4 > TIMELINE_SPANS_MAX {
            self.drop_timelines();
        }
    }

    fn payload(
        &mut self,
        index: &Index<'_>,
        spans: &Arc<Vec<Span>>,
        payload: &Payload,
        seen: &mut HashSet<usize>,
    ) -> Analysed {
        let selection = &self.options.selection;
        let root = &spans[payload.root];
        let analysis = analyze_payload(index, payload, selection, &self.thresholds, false);
        self.has_children |= analysis.has_children;
        let if_idle = analysis.is_childless.then(|| {
            let idle = analyze_payload(index, payload, selection, &self.thresholds, true);
            Box::new(idle.report)
        });
        let Analysis { report, a, b, a_members, b_members, derived_busy, path, last_wait, .. } =
            analysis;
        let gains = match self.options.what_if {
            true => {
                let asked = self.options.what_if_part;
                gains(index, &path, [&a, &b], [&a_members, &b_members], last_wait, asked)
            }
            false => Vec::new(),
        };
        let mut hosts: Vec<Arc<str>> = Vec::new();
        for at in a_members.iter().chain(&b_members) {
            if !hosts.contains(&spans[*at].host) {
                hosts.push(Arc::clone(&spans[*at].host));
            }
        }
        self.observations.root(root);
        let mut gaps: HashMap<&str, Vec<u64>> = HashMap::new();
        // A batch that serves several payloads counts once.
        for at in payload.members.iter().copied().filter(|at| seen.insert(*at)) {
            let span = &spans[at];
            if let Some(parent) = index.parent(at) {
                let wait = last_wait.map(|wait| &spans[wait]);
                self.observations.pair(&spans[parent], span, wait, selection);
            }
            if let Some(gap) = queue_gap(span) {
                gaps.entry(&span.name).or_default().push(gap);
            }
        }
        let gaps = gaps.into_iter().map(|(name, all)| (name.to_owned(), Gaps::of(all))).collect();
        let timeline = self.options.timeline.then(|| Timeline {
            spans: Arc::clone(spans),
            members: payload.members.clone(),
            a_members,
            b_members,
            derived_busy,
        });
        self.timeline_spans += timeline.as_ref().map_or(0, |kept| kept.members.len());
        let window = (root.start_ns, root.end_ns);
        let instance = root.resource_attribute("service.instance.id").map(str::to_owned);
        let worked = root.attribute("overlap.b_us").and_then(Attribute::as_u64);
        let lost_side_b = report.b_spans == 0 && worked.is_some_and(|us| us > 0);
        let detail = Some(PayloadDetail { a, b, window, timeline });
        Analysed { report, detail, gaps, gains, if_idle, hosts, instance, lost_side_b }
    }

    /// Keeps only the youngest payloads, in order of start.
    fn drop_oldest(&mut self) {
        self.payloads.sort_by_key(|one| one.report.start_unix_ns);
        let drained = self.payloads.len().saturating_sub(self.options.limit);
        for one in self.payloads.drain(..drained) {
            self.timeline_spans -= one.detail.map_or(0, |detail| detail.spans());
        }
        self.drop_timelines();
    }

    /// Keeps only the details of payloads that will be shown.
    fn drop_timelines(&mut self) {
        self.payloads.sort_by_key(|one| one.report.start_unix_ns);
        let reports: Vec<&PayloadReport> = self.payloads.iter().map(|one| &one.report).collect();
        let shown = shown(&reports);
        self.timeline_spans = 0;
        for (at, one) in self.payloads.iter_mut().enumerate() {
            if shown.contains(&at) {
                self.timeline_spans += one.detail.as_ref().map_or(0, PayloadDetail::spans);
            } else {
                one.detail = None;
            }
        }
    }

    pub(crate) fn finish(mut self, problems: Problems) -> Report {
        self.drop_oldest();
        let queue_gaps = self.queue_gaps();
        let clocks = match self.options.align.is_empty() {
            true => self.observations.clocks(),
            false => std::mem::take(&mut self.options.align),
        };
        self.resolve(&clocks);
        let gains = self.payloads.iter().filter(|one| !one.gains.is_empty());
        let gains: Vec<_> = gains.map(|one| (one.report.payload_ns, &one.gains[..])).collect();
        let what_if = over_all(&gains);
        let instances: HashSet<&str> =
            self.payloads.iter().filter_map(|one| one.instance.as_deref()).collect();
        let processes = instances.len();
        let lost_sides = self.payloads.iter().filter(|one| one.lost_side_b).count();
        let (payloads, details): (Vec<_>, Vec<_>) =
            self.payloads.into_iter().map(|one| (one.report, one.detail)).unzip();
        let all: Vec<&PayloadReport> = payloads.iter().collect();
        let summary = summarize(&payloads);
        let worst = trace_ids(&payloads, &worst(&all));
        let slowest = trace_ids(&payloads, &slowest(&all));
        let jaeger_ui = self.options.jaeger_ui.map(|url| url.trim_end_matches('/').to_owned());
        let page = |trace: &TraceId| Some(format!("{}/trace/{trace}", jaeger_ui.as_ref()?));
        let mut report = Report {
            schema: "tandem.overlap/1",
            selection: self.options.selection,
            filter: self.options.filter,
            thresholds: self.thresholds,
            verdict: verdict(&self.thresholds, &payloads),
            partial: problems.lost_something()
                || lost_sides > 0
                || payloads
                    .iter()
                    .any(|one| one.orphans > 0 || one.doubts.contains(&Doubt::LostWorkers)),
            problems,
            notes: Vec::new(),
            spans: self.spans,
            other_traces: self.other_traces,
            filtered: self.filtered,
            worst_urls: worst.iter().map(page).collect(),
            slowest_urls: slowest.iter().map(page).collect(),
            jaeger_ui,
            worst,
            slowest,
            queue_gaps,
            what_if,
            skew: self.observations.skew(),
            clocks,
            summary,
            payloads,
            details,
            processes,
            lost_sides,
            limit: self.options.limit,
        };
        report.notes = notes(&report);
        report.notes.extend(self.listed.note());
        report
    }

    /// Decides what single payloads could not tell: whether workers without children were idle, and
    /// whether the clocks of their hosts agree.
    fn resolve(&mut self, clocks: &[Clock]) {
        let has_children = self.has_children;
        let wrong = |host: &Arc<str>| {
            clocks
                .iter()
                .any(|clock| *clock.host == **host && clock.differs && clock.corrected_ns == 0)
        };
        for one in &mut self.payloads {
            match one.if_idle.take() {
                Some(idle) if has_children => {
                    one.report = *idle;
                    if let Some(detail) = &mut one.detail {
                        detail.b = Intervals::default();
                    }
                }
                Some(_) => one.report.doubts.push(Doubt::WholeSpans),
                None => {}
            }
            if one.hosts.iter().any(wrong) {
                one.report.doubts.push(Doubt::Clocks);
            }
            if !one.report.doubts.is_empty() {
                one.report.verdict = None;
            }
        }
    }

    fn queue_gaps(&self) -> Vec<QueueGap> {
        let mut gaps: BTreeMap<&str, (usize, Vec<f64>)> = BTreeMap::new();
        for (name, one) in self.payloads.iter().flat_map(|payload| &payload.gaps) {
            let (n, values) = gaps.entry(name).or_default();
            *n += one.n;
            values.extend(one.values.iter().map(|gap| *gap as f64));
        }
        let mut gaps: Vec<QueueGap> = gaps
            .into_iter()
            .filter_map(|(name, (n, values))| {
                let gap_ns = Distribution { n, ..Distribution::of(values)? };
                Some(QueueGap { name: name.to_owned(), gap_ns })
            })
            .collect();
        gaps.sort_by(|a, b| b.gap_ns.p50.total_cmp(&a.gap_ns.p50));
        gaps
    }
}

impl PayloadDetail {
    fn spans(&self) -> usize {
        self.timeline.as_ref().map_or(0, |timeline| timeline.members.len())
    }
}

impl Gaps {
    fn of(mut values: Vec<u64>) -> Self {
        let n = values.len();
        if n > GAPS_MAX {
            values.sort_unstable();
            // The smallest and the largest are among them.
            values = (0..GAPS_MAX).map(|at| values[at * (n - 1) / (GAPS_MAX - 1)]).collect();
        }
        Self { n, values }
    }
}

/// Returns the time from "ready in a queue" to "taken from it".
fn queue_gap(span: &Span) -> Option<u64> {
    match ready_ns(span) {
        Some(ready) => Some(span.start_ns.saturating_sub(ready)),
        None => Some(span.attribute("queue_wait_us")?.as_u64()?.saturating_mul(1_000)),
    }
}

/// Returns the verdict on the medians of the payloads without doubts, or `None` if those with
/// doubts are as many.
fn verdict(thresholds: &Thresholds, payloads: &[PayloadReport]) -> Option<Verdict> {
    let with_both = || payloads.iter().filter(|one| one.overlap.is_some());
    let sound = || with_both().filter(|one| one.doubts.is_empty());
    if with_both().count() >= 2 * sound().count() {
        return None;
    }
    let over =
        |value: fn(&PayloadReport) -> Option<f64>| median(sound().filter_map(value).collect());
    let (reached, weight) = (over(|one| one.worth.reached), over(|one| one.worth.weight));
    let tail = over(|one| one.tail_share);
    thresholds.verdict(reached, weight, tail, over(PayloadReport::proved))
}

fn summarize(payloads: &[PayloadReport]) -> Summary {
    let over = |value: fn(&PayloadReport) -> Option<f64>| {
        Distribution::of(payloads.iter().filter_map(value))
    };
    let mut total = Totals::default();
    let mut shorter = 0;
    for payload in payloads.iter().filter(|payload| payload.overlap.is_some()) {
        total.wall_ns += payload.wall_ns;
        total.a_ns += payload.a_ns;
        total.b_ns += payload.b_ns;
        total.both_ns += payload.both_ns;
        total.neither_ns += payload.neither_ns;
        shorter += payload.a_ns.min(payload.b_ns);
    }
    total.overlap = ratio(total.both_ns, shorter);
    Summary {
        overlap: over(|one| one.overlap),
        container_overlap: over(|one| one.container_overlap),
        serialization: over(|one| one.serialization),
        payload_ns: over(|one| Some(one.payload_ns as f64)),
        a_ns: over(|one| Some(one.a_ns as f64)),
        b_ns: over(|one| Some(one.b_ns as f64)),
        wasted_ns: over(|one| one.wasted_ns.map(|ns| ns as f64)),
        b_lag_ns: over(|one| one.b_lag_ns.map(|ns| ns as f64)),
        tail_ns: over(|one| one.tail_ns.map(|ns| ns as f64)),
        tail_share: over(|one| one.tail_share),
        chance: over(|one| one.worth.chance),
        gain: over(|one| one.worth.gain),
        reached: over(|one| one.worth.reached),
        b_per_a: over(|one| one.worth.b_per_a),
        imbalance: over(|one| one.imbalance),
        weight: over(|one| one.worth.weight),
        cpu_share: over(|one| one.worth.cpu_share),
        proved: over(|one| one.worth.proved),
        saved_ns: over(|one| one.overlap.map(|_| one.worth.saved_ns as f64)),
        could_save_ns: over(|one| one.overlap.map(|_| one.worth.could_save_ns as f64)),
        tail_busy_ns: over(|one| one.worth.tail_busy_ns.map(|ns| ns as f64)),
        tail_waiting_ns: over(|one| one.worth.tail_waiting_ns.map(|ns| ns as f64)),
        total,
    }
}

/// Returns the indices of the payloads with the least overlap, the worst first.
fn worst(payloads: &[&PayloadReport]) -> Vec<usize> {
    let mut order: Vec<(f64, usize)> =
        payloads.iter().enumerate().filter_map(|(at, one)| Some((one.overlap?, at))).collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0));
    order.into_iter().take(WORST).map(|(_, at)| at).collect()
}

/// Returns the indices of the payloads that took longest, the slowest first.
fn slowest(payloads: &[&PayloadReport]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..payloads.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(payloads[*at].payload_ns));
    order.truncate(WORST);
    order
}

fn trace_ids(payloads: &[PayloadReport], places: &[usize]) -> Vec<TraceId> {
    places.iter().map(|at| payloads[*at].trace_id).collect()
}

/// Returns the indices of the payloads that are shown span by span: the worst, the slowest, then
/// the youngest.
fn shown(payloads: &[&PayloadReport]) -> HashSet<usize> {
    let youngest = (0..payloads.len()).rev();
    let (mut chosen, mut spans) = (HashSet::new(), 0);
    for at in worst(payloads).into_iter().chain(slowest(payloads)).chain(youngest) {
        let size = payloads[at].spans;
        if chosen.contains(&at) || (!chosen.is_empty() && spans + size > TIMELINE_SPANS_MAX) {
            continue;
        }
        spans += size;
        chosen.insert(at);
        if chosen.len() >= TIMELINES_MAX {
            break;
        }
    }
    chosen
}
