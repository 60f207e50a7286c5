//! Division of the spans into payloads, each a root span and the spans that belong to it.

use std::collections::{HashMap, HashSet};

use crate::model::{Link, Span};
use crate::select::Selection;

/// Index of a slice of spans, by identity and by parent.
pub(crate) struct Index<'s> {
    pub(crate) spans: &'s [Span],
    by_id: HashMap<Link, usize>,
    /// Children by parent, which need not be present itself. Spans of other traces that link to a
    /// span are also its children: a batch that serves many payloads belongs to each.
    children: HashMap<Link, Vec<usize>>,
}

/// Payload, as indices into the spans of its [`Index`].
#[derive(Debug)]
pub(crate) struct Payload {
    pub(crate) root: usize,
    /// All spans of the payload, including the root, each once. Ancestors of the root are no
    /// members: they last longer than the payload, and may be of its caller.
    pub(crate) members: Vec<usize>,
    /// Number of members whose parent is not in the input.
    pub(crate) orphans: usize,
}

impl<'s> Index<'s> {
    pub(crate) fn new(spans: &'s [Span]) -> Self {
        let mut by_id = HashMap::with_capacity(spans.len());
        let mut children: HashMap<Link, Vec<usize>> = HashMap::new();
        for (at, span) in spans.iter().enumerate() {
            by_id.entry(identity(span)).or_insert(at);
            if let Some(parent) = parent(span) {
                children.entry(parent).or_default().push(at);
            }
            for link in span.links.iter().filter(|link| link.trace_id != span.trace_id) {
                children.entry(*link).or_default().push(at);
            }
        }
        Self { spans, by_id, children }
    }

    /// Returns the children of the span at `at`.
    pub(crate) fn children(&self, at: usize) -> &[usize] {
        self.children.get(&identity(&self.spans[at])).map_or(&[], Vec::as_slice)
    }

    /// Returns the parent of the span at `at`, if it is in the input.
    pub(crate) fn parent(&self, at: usize) -> Option<usize> {
        self.by_id.get(&parent(&self.spans[at])?).copied()
    }

    /// Returns the spans in the input that the span at `at` links to.
    pub(crate) fn links(&self, at: usize) -> impl Iterator<Item = usize> + '_ {
        self.spans[at].links.iter().filter_map(|link| self.by_id.get(link).copied())
    }

    /// Returns all payloads, in order of their start.
    pub(crate) fn payloads(&self, selection: &Selection) -> Vec<Payload> {
        let is_root = |at: &usize| selection.root.matches(&self.spans[*at].name);
        let candidates: Vec<usize> = (0..self.spans.len()).filter(is_root).collect();
        let candidate_set: HashSet<usize> = candidates.iter().copied().collect();
        let mut roots: Vec<usize> = candidates
            .into_iter()
            .filter(|at| !self.ancestors(*at).any(|ancestor| candidate_set.contains(&ancestor)))
            .collect();
        roots.sort_by_key(|at| self.spans[*at].start_ns);

        let mut by_trace: HashMap<_, Vec<usize>> = HashMap::new();
        for (at, span) in self.spans.iter().enumerate() {
            by_trace.entry(span.trace_id).or_default().push(at);
        }
        let mut roots_of_trace: HashMap<_, usize> = HashMap::new();
        for root in &roots {
            *roots_of_trace.entry(self.spans[*root].trace_id).or_default() += 1;
        }
        roots
            .iter()
            .map(|&root| {
                let trace = self.spans[root].trace_id;
                let alone = roots_of_trace.get(&trace) == Some(&1);
                let same_trace = by_trace.get(&trace).map_or(&[][..], Vec::as_slice);
                self.payload(root, same_trace, alone)
            })
            .collect()
    }

    /// Returns the payload of `root`: its descendants, and the whole trace if it is `alone` in its
    /// trace. Otherwise it includes spans that lost their ancestors and overlap with it in time.
    fn payload(&self, root: usize, same_trace: &[usize], alone: bool) -> Payload {
        let window = &self.spans[root];
        let stray = |at: &&usize| {
            let span = &self.spans[**at];
            alone
                || (self.is_orphan(**at)
                    && span.start_ns < window.end_ns
                    && span.end_ns > window.start_ns)
        };
        let mut todo = vec![root];
        todo.extend(same_trace.iter().filter(stray));
        let mut seen: HashSet<usize> = self.ancestors(root).filter(|at| *at != root).collect();
        let mut members = Vec::new();
        while let Some(at) = todo.pop() {
            if seen.insert(at) {
                members.push(at);
                todo.extend(self.children(at));
            }
        }
        members.sort_by_key(|at| self.spans[*at].start_ns);
        // The parent of the root may be elsewhere, for example in the consensus client.
        let orphans = members.iter().filter(|at| **at != root && self.is_orphan(**at)).count();
        Payload { root, members, orphans }
    }

    fn is_orphan(&self, at: usize) -> bool {
        self.spans[at].parent.is_some() && self.parent(at).is_none()
    }

    /// Returns the ancestors, nearest first, up to a cycle.
    fn ancestors(&self, at: usize) -> impl Iterator<Item = usize> + '_ {
        let mut seen = HashSet::from([at]);
        std::iter::successors(self.parent(at), |at| self.parent(*at))
            .take_while(move |at| seen.insert(*at))
    }
}

fn identity(span: &Span) -> Link {
    Link { trace_id: span.trace_id, span_id: span.span_id }
}

fn parent(span: &Span) -> Option<Link> {
    Some(Link { trace_id: span.trace_id, span_id: span.parent? })
}
