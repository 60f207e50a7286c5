//! Critical path: the work that the answer waited for, at every instant of the payload.
//!
//! The walk starts at the end of the root and goes back in time. Inside a span, the child that
//! ended last is what the span waited for. Before that child's start, it is the child that ended
//! last before it. Time that no child covers is the span's own time. A child with busy intervals
//! counts for those intervals only, so an idle container does not take the blame. A span that only
//! waits for side B (`await_state_root`) has the work of side B as its children.
//!
//! Parents and times alone are not enough in two cases:
//!
//! * **Work that outlives its parent** was not waited for by that parent. It counts, from its own
//!   start, for the nearest ancestor that lasts until the work ends. If the work ends after the
//!   answer, nothing waited for it.
//! * **Parallel siblings**: the sibling that ended last before another began need not be the cause.
//!   If the other one names its cause, that holds. From the instant its work was ready
//!   (`queue.ready_unix_nano`) until its start it waited in a queue. Before that, the span that it
//!   links to was at work.

use std::collections::{HashMap, HashSet};

use crate::analyze::DerivedBusy;
use crate::clocks::{TOLERANCE_NS, ready_ns};
use crate::payloads::{Index, Payload};

/// Maximum depth. Deeper spans count as their ancestor's own time. A real payload is a handful
/// deep.
const DEPTH_MAX: usize = 64;

/// Part of the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// Index of the span.
    pub(crate) span: usize,
    /// Whether the span's work waited in a queue instead of being done.
    pub(crate) queued: bool,
    pub(crate) start_ns: u64,
    pub(crate) end_ns: u64,
}

/// Interval in which a span was at work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Piece {
    end: u64,
    start: u64,
    span: usize,
}

pub(crate) struct CriticalPath<'i, 's> {
    index: &'i Index<'s>,
    derived_busy: &'i DerivedBusy,
    members: HashSet<usize>,
    /// Work that each span waited for, in order of the ends.
    waited_for: HashMap<usize, Vec<Piece>>,
    /// Parts of the path, youngest first.
    parts: Vec<Part>,
    /// Spans on the way down, to detect cycles.
    stack: Vec<usize>,
}

impl<'i, 's> CriticalPath<'i, 's> {
    /// Returns the path of `payload` in order of time. The parts cover the root exactly, without
    /// gaps.
    pub(crate) fn of(
        index: &'i Index<'s>,
        payload: &Payload,
        side_b: &[usize],
        waits: &[usize],
        derived_busy: &'i DerivedBusy,
    ) -> Vec<Part> {
        let root = &index.spans[payload.root];
        let members = payload.members.iter().copied().collect();
        let (waited_for, parts, stack) = (HashMap::new(), Vec::new(), Vec::new());
        let mut path = Self { index, derived_busy, members, waited_for, parts, stack };
        path.find_waits(payload, side_b, waits);
        path.walk(payload.root, root.start_ns, root.end_ns);
        path.parts.reverse();
        path.parts
    }

    fn find_waits(&mut self, payload: &Payload, side_b: &[usize], waits: &[usize]) {
        for &span in payload.members.iter().filter(|span| **span != payload.root) {
            for piece in self.pieces(span) {
                let Some(waiter) = self.waiter(piece, payload.root) else { continue };
                self.waited_for.entry(waiter).or_default().push(piece);
            }
        }
        // A waiting span waits for everything that side B did meanwhile, whatever comes after.
        let worked: Vec<Piece> = side_b.iter().flat_map(|span| self.pieces(*span)).collect();
        for wait in waits {
            let span = &self.index.spans[*wait];
            let meanwhile =
                worked.iter().filter(|one| one.start < span.end_ns && one.end > span.start_ns);
            self.waited_for.entry(*wait).or_default().extend(meanwhile);
        }
        for pieces in self.waited_for.values_mut() {
            pieces.sort_unstable();
            pieces.dedup();
        }
    }

    /// Returns the intervals in which `span` was at work.
    fn pieces(&self, span: usize) -> Vec<Piece> {
        let own = &self.index.spans[span];
        let whole = [(own.start_ns, own.end_ns)];
        let active = match self.derived_busy.get(&span) {
            Some(derived) => derived,
            None if own.busy.is_empty() => &whole[..],
            None => &own.busy,
        };
        let piece = |(start, end): &(u64, u64)| Piece { end: *end, start: *start, span };
        active.iter().filter(|(start, end)| start < end).map(piece).collect()
    }

    /// Returns the nearest ancestor that lasts until the piece ends.
    fn waiter(&self, piece: Piece, root: usize) -> Option<usize> {
        let outlives = |ancestor: &usize| {
            piece.end > self.index.spans[*ancestor].end_ns.saturating_add(TOLERANCE_NS)
        };
        let mut at = self.above(piece.span, root)?;
        for _ in 0..DEPTH_MAX {
            if at != piece.span && !outlives(&at) {
                return Some(at);
            }
            if at == root {
                return None;
            }
            at = self.above(at, root)?;
        }
        None
    }

    /// Returns the parent of a span. For a batch that is the span that it links to, for a span that
    /// lost its parent the root. Spans beside the root have no parent in the payload.
    fn above(&self, span: usize, root: usize) -> Option<usize> {
        let lost = || {
            let parent = self.index.spans[span].parent;
            (parent.is_some() && parent != self.index.spans[root].parent).then_some(root)
        };
        let mut linked = self.index.links(span).filter(|linked| self.members.contains(linked));
        self.index.parent(span).or_else(|| linked.next()).or_else(lost)
    }

    /// Attributes `from..to`, a part of span `at`, youngest first.
    fn walk(&mut self, at: usize, from: u64, to: u64) {
        let mut now = to;
        if self.stack.len() < DEPTH_MAX && !self.stack.contains(&at) {
            self.stack.push(at);
            // The entry is removed meanwhile: a span is on the stack only once.
            let mut pieces = self.waited_for.remove(&at).unwrap_or_default();
            for piece in pieces.iter().rev().take_while(|piece| piece.end > from) {
                let (start, end) = (piece.start.max(from), piece.end.min(now));
                if start >= end {
                    // The piece ran beside a piece that ended later, so it was not waited for.
                    continue;
                }
                self.push(at, false, end, now);
                self.walk(piece.span, start, end);
                now = self.cause(at, piece.span, from, start);
            }
            // The path never comes back to a later time.
            while pieces.last().is_some_and(|piece| piece.start >= from) {
                pieces.pop();
            }
            self.waited_for.insert(at, pieces);
            self.stack.pop();
        }
        self.push(at, false, from, now);
    }

    /// Follows the causes of the start of `span` at `now`, on which `at` waited, back to `from` at
    /// most. Returns the time that this reached.
    fn cause(&mut self, at: usize, span: usize, from: u64, now: u64) -> u64 {
        let mut now = now;
        let mut span = span;
        for _ in 0..DEPTH_MAX {
            let own = &self.index.spans[span];
            if own.start_ns != now || now <= from {
                break;
            }
            if let Some(ready) = ready_ns(own).filter(|ready| *ready < now) {
                let ready = ready.max(from);
                self.push(span, true, ready, now);
                now = ready;
            }
            let Some(before) = self.linked(span, from, now) else { break };
            let (start, end) = (before.start.max(from), before.end.min(now));
            self.push(at, false, end, now);
            self.walk(before.span, start, end);
            (span, now) = (before.span, start);
        }
        now
    }

    /// Returns the last work before `now` of the spans that `span` links to.
    fn linked(&self, span: usize, from: u64, now: u64) -> Option<Piece> {
        self.index
            .links(span)
            .filter(|linked| self.members.contains(linked))
            .filter(|linked| !self.stack.contains(linked) && *linked != span)
            .flat_map(|linked| self.pieces(linked))
            .filter(|piece| piece.start < now && piece.end > from)
            .max_by_key(|piece| (piece.end.min(now), piece.start))
    }

    fn push(&mut self, span: usize, queued: bool, start_ns: u64, end_ns: u64) {
        if start_ns < end_ns {
            self.parts.push(Part { span, queued, start_ns, end_ns });
        }
    }
}
