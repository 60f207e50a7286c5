//! The critical path: whose work the answer waited for, at every instant of the payload.
//!
//! Walks back from the end of the root. Inside a span, the child that ended last is what the span
//! waited for; before that child started, the child that ended last before it; what no child covers
//! is the span's own time. A child with busy intervals stands for those intervals only, so that an
//! idle container does not take the blame. A span that merely waits for side B (`await_state_root`)
//! has the work of side B as its children.

use crate::analyze::DerivedBusy;
use crate::payloads::{Index, Payload};

/// Deeper spans count as their ancestor's own time; a real payload is a handful deep.
const DEPTH_MAX: usize = 64;

pub(crate) struct CriticalPath<'i, 's> {
    index: &'i Index<'s>,
    /// Spans of side B, and the spans that wait for them.
    side_b: &'i [usize],
    waits: &'i [usize],
    derived_busy: &'i DerivedBusy,
    /// `(span, start, end)`, youngest first.
    steps: Vec<(usize, u64, u64)>,
    /// Spans on the way down, against cycles.
    stack: Vec<usize>,
}

impl<'i, 's> CriticalPath<'i, 's> {
    /// The path of `payload` as `(span, start, end)` in order of time. The steps cover the root
    /// exactly, without gaps.
    pub(crate) fn of(
        index: &'i Index<'s>,
        payload: &Payload,
        side_b: &'i [usize],
        waits: &'i [usize],
        derived_busy: &'i DerivedBusy,
    ) -> Vec<(usize, u64, u64)> {
        let root = &index.spans[payload.root];
        let (steps, stack) = (Vec::new(), Vec::new());
        let mut path = Self { index, side_b, waits, derived_busy, steps, stack };
        path.walk(payload.root, root.start_ns, root.end_ns);
        path.steps.reverse();
        path.steps
    }

    /// Attributes `from..to`, a part of span `at`, youngest first.
    fn walk(&mut self, at: usize, from: u64, to: u64) {
        let mut now = to;
        if self.stack.len() < DEPTH_MAX && !self.stack.contains(&at) {
            self.stack.push(at);
            for (end, start, child) in self.pieces(at, from, to) {
                if start >= now {
                    // It ran beside a piece that ended later: not what was waited for.
                    continue;
                }
                let end = end.min(now);
                self.own(at, end, now);
                self.walk(child, start, end);
                now = start;
            }
            self.stack.pop();
        }
        self.own(at, from, now);
    }

    fn own(&mut self, at: usize, from: u64, to: u64) {
        if from < to {
            self.steps.push((at, from, to));
        }
    }

    /// What the children of `at` did in `from..to`: `(end, start, child)`, last end first.
    fn pieces(&self, at: usize, from: u64, to: u64) -> Vec<(u64, u64, usize)> {
        let waited_for: &[usize] = if self.waits.contains(&at) { self.side_b } else { &[] };
        let mut pieces = Vec::new();
        for &child in self.index.children(at).iter().chain(waited_for) {
            let span = &self.index.spans[child];
            let whole = [(span.start_ns, span.end_ns)];
            let active = match self.derived_busy.get(&child) {
                Some(derived) => derived,
                None if span.busy.is_empty() => &whole[..],
                None => &span.busy,
            };
            for &(start, end) in active {
                let (start, end) = (start.max(from), end.min(to));
                if start < end {
                    pieces.push((end, start, child));
                }
            }
        }
        pieces.sort_unstable_by(|a, b| b.cmp(a));
        pieces
    }
}
