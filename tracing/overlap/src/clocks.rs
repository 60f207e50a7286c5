//! Estimate of how far the clocks of hosts are apart, from spans whose parent is on another host.
//!
//! Two facts hold in true time. A child does not start before its parent. A server's work for a
//! call ends before the caller has the answer. Each such pair bounds how far one clock is ahead of
//! the other. Over many pairs the bounds converge. The bounds of all hosts are combined as the
//! shortest paths of a graph. Bounds on A and B, and on B and C, thus also bound A and C.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use crate::model::{Attribute, Kind, Span};
use crate::select::Selection;

/// Tolerance, in ns, between clock readings of one machine in formats that round to microseconds.
pub(crate) const TOLERANCE_NS: u64 = 2_000;
/// Maximum number of hosts compared. The time grows with the third power of it.
const HOSTS_MAX: usize = 128;
/// Attribute with the time at which the work of a span was ready in a queue, by its host's clock.
pub(crate) const READY: &str = "queue.ready_unix_nano";

/// Contradiction between the clocks of two services: spans that start before their parent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Skew {
    /// Service of the parents.
    pub parent_service: String,
    /// Service of the children.
    pub child_service: String,
    /// Time in ns by which the child's clock is behind, at least.
    pub at_least_ns: u64,
    /// Number of parent and child pairs between the two services.
    pub pairs: u64,
    /// Number of pairs in which the child starts first.
    pub violations: u64,
}

/// Known facts on the clock of one host, compared with the clock of another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Clock {
    /// Host: `k8s.node.name`, `host.name` or `service.instance.id` of its spans, or the service.
    pub host: String,
    /// Host that it is compared with: the host with most payloads.
    pub reference: String,
    /// Lower bound of the lead over the reference, negative if the clock may be behind.
    pub low_ns: Option<i64>,
    /// Upper bound of the lead over the reference.
    pub high_ns: Option<i64>,
    /// Middle of the two bounds.
    pub offset_ns: Option<i64>,
    /// Half of the distance between the bounds: the true lead is `offset_ns` plus or minus this.
    pub uncertainty_ns: Option<u64>,
    /// Number of pairs of a parent and a child of which exactly one is on this host.
    pub pairs: u64,
    /// Number of these pairs that are a call and its answer, and so bound from both sides.
    pub answered: u64,
    /// Whether the clocks are certain to differ.
    pub differs: bool,
    /// Whether the bounds contradict: a clock was set or drifted, or a caller did not wait.
    pub contradictory: bool,
    /// Time that was subtracted from all times of the host, 0 unless requested.
    pub corrected_ns: i64,
}

impl Clock {
    /// Returns the clock with the time to subtract from the times of the host to match the
    /// reference's clock: the middle of two bounds, and with `one_sided` also a single bound.
    #[must_use]
    pub fn corrected(self, one_sided: bool) -> Self {
        let corrected_ns = match (self.low_ns, self.high_ns) {
            _ if !self.differs || self.contradictory => 0,
            (Some(_), Some(_)) => self.offset_ns.unwrap_or(0),
            (Some(bound), None) | (None, Some(bound)) if one_sided => bound,
            _ => 0,
        };
        Self { corrected_ns, ..self }
    }

    /// Returns the known facts in words.
    pub(crate) fn sentence(&self) -> String {
        let Self { host, reference, .. } = self;
        let ms = |ns: i64| format!("{:.3} ms", ns.unsigned_abs() as f64 / 1e6);
        let way = |ns: i64| if ns < 0 { "behind" } else { "ahead of" };
        let known = match (self.offset_ns.zip(self.uncertainty_ns), self.low_ns, self.high_ns) {
            _ if self.contradictory => {
                return format!(
                    "the clocks of {host} and {reference} contradict themselves: one was set or \
                     drifted meanwhile, or a caller did not wait for its answer"
                );
            }
            (Some((offset, uncertainty)), ..) => {
                let within = uncertainty as f64 / 1e6;
                format!("{} ± {within:.3} ms {} that of {reference}", ms(offset), way(offset))
            }
            (None, Some(low), _) if self.differs => {
                format!("at least {} ahead of that of {reference}", ms(low))
            }
            (None, _, Some(high)) if self.differs => {
                format!("at least {} behind that of {reference}", ms(high))
            }
            _ => format!("not known to differ from that of {reference}"),
        };
        let pairs = format!("{} pairs of spans, {} of them answered", self.pairs, self.answered);
        format!("the clock of {host} is {known} ({pairs})")
    }
}

/// Evidence from pairs of spans, by the hosts or services of parent and child.
#[derive(Debug, Default)]
pub(crate) struct Observations {
    hosts: BTreeMap<(Arc<str>, Arc<str>), Bounds>,
    services: BTreeMap<(Arc<str>, Arc<str>), Leads>,
    /// Number of payloads by the host of their root.
    roots: BTreeMap<Arc<str>, u64>,
}

/// Bounds of the child's clock's lead over the parent's.
#[derive(Debug)]
struct Bounds {
    low: Option<i64>,
    high: i64,
    pairs: u64,
    answered: u64,
}

#[derive(Debug, Default)]
struct Leads {
    pairs: u64,
    violations: u64,
    most: u64,
}

impl Observations {
    /// Records the root of a payload.
    pub(crate) fn root(&mut self, root: &Span) {
        *self.roots.entry(Arc::clone(&root.host)).or_default() += 1;
    }

    /// Records a span and its parent. `wait` is the last waiting span of their payload.
    pub(crate) fn pair(
        &mut self,
        parent: &Span,
        child: &Span,
        wait: Option<&Span>,
        selection: &Selection,
    ) {
        if parent.service != child.service {
            let key = (Arc::clone(&parent.service), Arc::clone(&child.service));
            let leads = self.services.entry(key).or_default();
            let lead = parent.start_ns.saturating_sub(child.start_ns);
            leads.pairs += 1;
            if lead > TOLERANCE_NS {
                leads.violations += 1;
                leads.most = leads.most.max(lead);
            }
        }
        if parent.host != child.host {
            let key = (Arc::clone(&parent.host), Arc::clone(&child.host));
            let bounds = self.hosts.entry(key).or_insert(Bounds {
                low: None,
                high: i64::MAX,
                pairs: 0,
                answered: 0,
            });
            bounds.pairs += 1;
            bounds.high = bounds.high.min(difference(child.start_ns, parent.start_ns));
            if let Some(answered_ns) = answered_ns(parent, child, wait, selection) {
                bounds.answered += 1;
                let low = difference(child.end_ns, answered_ns);
                bounds.low = Some(bounds.low.map_or(low, |known| known.max(low)));
            }
        }
    }

    /// Returns the services whose children start before their parents.
    pub(crate) fn skew(&self) -> Vec<Skew> {
        self.services
            .iter()
            .filter(|(_, leads)| leads.violations > 0)
            .map(|((parent, child), leads)| Skew {
                parent_service: parent.to_string(),
                child_service: child.to_string(),
                at_least_ns: leads.most,
                pairs: leads.pairs,
                violations: leads.violations,
            })
            .collect()
    }

    /// Returns the clocks of all hosts that can be compared with the reference, by name. The
    /// reference is the host with most payloads.
    pub(crate) fn clocks(&self) -> Vec<Clock> {
        let most = self.roots.iter().max_by_key(|(_, payloads)| **payloads);
        let Some((reference, _)) = most else { return Vec::new() };
        let mut hosts = vec![Arc::clone(reference)];
        for (parent, child) in self.hosts.keys() {
            for host in [parent, child] {
                if !hosts.contains(host) && hosts.len() < HOSTS_MAX {
                    hosts.push(Arc::clone(host));
                }
            }
        }
        let ahead = self.shortest(&hosts);
        let mut clocks: Vec<Clock> = (1..hosts.len())
            .filter_map(|at| {
                let (low, high) = (ahead[at][0].map(i64::saturating_neg), ahead[0][at]);
                (low.is_some() || high.is_some()).then(|| self.clock(&hosts, at, low, high))
            })
            .collect();
        clocks.sort_by(|a, b| a.host.cmp(&b.host));
        clocks
    }

    fn clock(&self, hosts: &[Arc<str>], at: usize, low: Option<i64>, high: Option<i64>) -> Clock {
        let host = &hosts[at];
        let own = |(key, _): &(&(Arc<str>, Arc<str>), &Bounds)| key.0 == *host || key.1 == *host;
        let tolerance = TOLERANCE_NS.cast_signed();
        let contradictory =
            low.zip(high).is_some_and(|(low, high)| low.saturating_sub(high) > tolerance);
        let both = low.zip(high).filter(|_| !contradictory);
        Clock {
            host: host.to_string(),
            reference: hosts[0].to_string(),
            low_ns: low,
            high_ns: high,
            offset_ns: both.map(|(low, high)| low.midpoint(high)),
            uncertainty_ns: both.map(|(low, high)| high.saturating_sub(low).max(0) as u64 / 2),
            pairs: self.hosts.iter().filter(own).map(|(_, bounds)| bounds.pairs).sum(),
            answered: self.hosts.iter().filter(own).map(|(_, bounds)| bounds.answered).sum(),
            differs: contradictory
                || low.is_some_and(|low| low > tolerance)
                || high.is_some_and(|high| high < -tolerance),
            contradictory,
            corrected_ns: 0,
        }
    }

    /// Returns the upper bound of the second clock's lead over the first, for each pair of hosts
    /// (Floyd and Warshall's algorithm).
    fn shortest(&self, hosts: &[Arc<str>]) -> Vec<Vec<Option<i64>>> {
        let mut ahead = vec![vec![None; hosts.len()]; hosts.len()];
        let mut bound = |from: usize, to: usize, at_most: i64| {
            let known: &mut Option<i64> = &mut ahead[from][to];
            *known = Some(known.map_or(at_most, |known| known.min(at_most)));
        };
        let place = |host: &Arc<str>| hosts.iter().position(|known| known == host);
        for ((parent, child), bounds) in &self.hosts {
            let Some((parent, child)) = place(parent).zip(place(child)) else { continue };
            bound(parent, child, bounds.high);
            if let Some(low) = bounds.low {
                bound(child, parent, low.saturating_neg());
            }
        }
        for over in 0..hosts.len() {
            for from in 0..hosts.len() {
                for to in (0..hosts.len()).filter(|to| *to != from) {
                    let Some((first, second)) = ahead[from][over].zip(ahead[over][to]) else {
                        continue;
                    };
                    let way = first.saturating_add(second);
                    let known = &mut ahead[from][to];
                    *known = Some(known.map_or(way, |known: i64| known.min(way)));
                }
            }
        }
        ahead
    }
}

/// Returns when the host of `parent` had the answer that `child` ended with, if it waited for one.
fn answered_ns(
    parent: &Span,
    child: &Span,
    wait: Option<&Span>,
    selection: &Selection,
) -> Option<u64> {
    if parent.kind == Kind::Client && child.kind == Kind::Server {
        return Some(parent.end_ns);
    }
    let named = selection.answered.iter().any(|name| name.matches(&child.name));
    wait.filter(|wait| named && wait.host == parent.host).map(|wait| wait.end_ns)
}

/// Subtracts the known leads of other hosts' clocks.
pub(crate) fn align(spans: &mut [Span], clocks: &[Clock]) {
    let corrections: BTreeMap<&str, i64> = clocks
        .iter()
        .map(|clock| (clock.host.as_str(), clock.corrected_ns))
        .filter(|(_, ns)| *ns != 0)
        .collect();
    if corrections.is_empty() {
        return;
    }
    for span in spans {
        let Some(ns) = corrections.get(span.host.as_ref()) else { continue };
        let moved = |time: u64| time.saturating_add_signed(ns.saturating_neg());
        (span.start_ns, span.end_ns) = (moved(span.start_ns), moved(span.end_ns));
        for (start, end) in &mut span.busy {
            (*start, *end) = (moved(*start), moved(*end));
        }
        for (key, value) in &mut span.attributes {
            if key == READY
                && let Some(time) = value.as_u64()
            {
                *value = Attribute::Int(i64::try_from(moved(time)).unwrap_or(i64::MAX));
            }
        }
    }
}

/// Returns when the work of `span` was ready in a queue, if the span has that attribute.
pub(crate) fn ready_ns(span: &Span) -> Option<u64> {
    span.attribute(READY).and_then(Attribute::as_u64)
}

/// Returns `a − b`, clamped to ±2^61.
fn difference(a: u64, b: u64) -> i64 {
    const MOST: i128 = 1 << 61;
    let exact = i128::from(a) - i128::from(b);
    // The result is within ±2^61, which an i64 holds.
    exact.clamp(-MOST, MOST) as i64
}
