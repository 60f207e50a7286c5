//! Critical path: the work that the answer waited for, at every instant of the payload.
//!
//! The walk starts at the end of the root and goes back in time. Inside a span, the child that
//! ended last is what the span waited for. Before that child's start, it is the child that ended
//! last before it. Time that no child covers is the span's own time. A child with busy intervals
//! counts for those intervals only, so an idle container does not take the blame. A span that only
//! waits for side B (`await_state_root`) has the work of side B as its children.
//!
//! While a span is busy by its own intervals, it waits for nothing, whatever its children do then.
//! Side A has a thread that executes and others that help it, by the first and the further names of
//! the selection. It waits for the helpers only while it is not busy itself.
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
use crate::intervals::Intervals;
use crate::payloads::{Index, Payload};

/// Maximum depth. Deeper spans count as their ancestor's own time. A real payload is a handful
/// deep.
const DEPTH_MAX: usize = 64;

/// Maximum number of cuts by the busy intervals of others, in one payload.
const CUTS_MAX: usize = 1_000_000;

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

/// Spans of the payload by their part in it, as indices.
pub(crate) struct Sides<'a> {
    /// Side A by the order of its names: the first is the thread that executes, the others help it.
    pub(crate) a: &'a [Vec<usize>],
    pub(crate) b: &'a [usize],
    /// Spans that wait for side B.
    pub(crate) waits: &'a [usize],
}

impl Sides<'_> {
    /// Returns the span that each helper of side A works for: the first one that it overlaps with.
    fn helped(&self, index: &Index<'_>) -> HashMap<usize, usize> {
        let Some((main, helpers)) = self.a.split_first() else { return HashMap::new() };
        let meets = |helper: usize, main: usize| {
            let (helper, main) = (&index.spans[helper], &index.spans[main]);
            helper.start_ns < main.end_ns && main.start_ns < helper.end_ns
        };
        let of = |helper: &usize| {
            let main = main.iter().find(|main| meets(*helper, **main) && *main != helper)?;
            // A span above the one that executes contains it, and does not help it.
            let above = std::iter::successors(index.parent(*main), |at| index.parent(*at));
            (!above.take(DEPTH_MAX).any(|at| at == *helper)).then_some((*helper, *main))
        };
        helpers.iter().flatten().filter_map(of).collect()
    }
}

pub(crate) struct CriticalPath<'i, 's> {
    index: &'i Index<'s>,
    derived_busy: &'i DerivedBusy,
    members: HashSet<usize>,
    /// Span of side A that each of its helpers works for.
    helped: HashMap<usize, usize>,
    /// Busy intervals of spans that others work for, in order of time.
    own_work: HashMap<usize, Vec<(u64, u64)>>,
    /// Number of cuts by such intervals that are still made.
    cuts_left: usize,
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
        sides: &Sides<'_>,
        derived_busy: &'i DerivedBusy,
    ) -> Vec<Part> {
        let root = &index.spans[payload.root];
        let members = payload.members.iter().copied().collect();
        let (waited_for, parts, stack) = (HashMap::new(), Vec::new(), Vec::new());
        let helped = sides.helped(index);
        let mut path = Self {
            index,
            derived_busy,
            members,
            helped,
            own_work: HashMap::new(),
            cuts_left: CUTS_MAX,
            waited_for,
            parts,
            stack,
        };
        path.find_waits(payload, sides.b, sides.waits);
        path.walk(payload.root, root.start_ns, root.end_ns);
        path.parts.reverse();
        path.parts
    }

    fn find_waits(&mut self, payload: &Payload, side_b: &[usize], waits: &[usize]) {
        for &span in payload.members.iter().filter(|span| **span != payload.root) {
            for piece in self.pieces(span) {
                self.find_waiter(piece, payload.root);
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

    /// Gives the piece to the nearest ancestor that lasts until it ends. An ancestor that has busy
    /// intervals did not wait for what lies in them, and what lies between them is given to the next
    /// ancestor.
    fn find_waiter(&mut self, piece: Piece, root: usize) {
        let mut left = match self.helped.get(&piece.span) {
            Some(main) => self.outside_of(*main, vec![piece]),
            None => vec![piece],
        };
        let Some(mut at) = self.above(piece.span, root) else { return };
        for _ in 0..DEPTH_MAX {
            if at != piece.span {
                if !self.index.spans[at].busy.is_empty() && at != root {
                    left = self.outside_of(at, left);
                } else {
                    let end = self.index.spans[at].end_ns.saturating_add(TOLERANCE_NS);
                    let (waited, longer) = left.into_iter().partition(|piece| piece.end <= end);
                    left = longer;
                    let waited: Vec<Piece> = waited;
                    self.waited_for.entry(at).or_default().extend(waited);
                }
            }
            if at == root || left.is_empty() {
                return;
            }
            let Some(next) = self.above(at, root) else { return };
            at = next;
        }
    }

    /// Returns the parts of the pieces outside of the busy intervals of span `at`. Where there would
    /// be very many, a piece stays whole.
    fn outside_of(&mut self, at: usize, pieces: Vec<Piece>) -> Vec<Piece> {
        let busy = self.own_work.entry(at).or_insert_with(|| {
            Intervals::union(self.index.spans[at].busy.iter().copied()).into_vec()
        });
        let mut outside = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let first = busy.partition_point(|(_, end)| *end <= piece.start);
            let last = busy.partition_point(|(start, _)| *start < piece.end);
            if last.saturating_sub(first) > self.cuts_left {
                outside.push(piece);
                continue;
            }
            let mut from = piece.start;
            for &(start, end) in busy.get(first..last).unwrap_or_default() {
                if from < start {
                    outside.push(Piece { start: from, end: start, ..piece });
                }
                from = from.max(end);
                self.cuts_left -= 1;
            }
            if from < piece.end {
                outside.push(Piece { start: from, ..piece });
            }
        }
        outside
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
            // The path never comes back to a later time: what began before goes on until `from`.
            let later = pieces.split_off(pieces.partition_point(|piece| piece.end <= from));
            let going_on = later.into_iter().filter(|piece| piece.start < from);
            pieces.extend(going_on.map(|piece| Piece { end: from, ..piece }));
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
