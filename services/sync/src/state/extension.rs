//! Headers from a goal down to where they meet what is known.

use super::{line::Line, spans::Spans};
use crate::check::ChainHeader;
use std::time::Duration;
use tandem_primitives::{B256, BlockId, BlockNumber};

/// Headers of the goal's branch so far.
#[derive(Debug)]
pub struct Extension {
    goal: B256,
    /// Header that is wanted next.
    next: B256,
    spans: Spans,
    /// Time of the newest header.
    progressed: Duration,
}

/// Place where headers meet what is known. Numbers count the headers above it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Met {
    /// All headers are new.
    Nothing,
    /// The block is on the line, or is its anchor.
    Line(usize, BlockId),
    /// The block is executed.
    Executed(usize, BlockId),
    /// The headers lead to another genesis block.
    Bottom,
}

impl Extension {
    pub fn new(goal: B256, now: Duration) -> Self {
        Self { goal, next: goal, spans: Spans::default(), progressed: now }
    }

    pub fn goal(&self) -> B256 {
        self.goal
    }

    /// Returns the hash of the header that is wanted next.
    pub fn next(&self) -> B256 {
        self.next
    }

    pub fn top(&self) -> Option<BlockNumber> {
        self.spans.top().map(|top| top.number)
    }

    pub fn bottom(&self) -> Option<BlockNumber> {
        self.spans.bottom()
    }

    pub fn loaded(&self) -> usize {
        self.spans.loaded()
    }

    pub fn is_stalled(&self, now: Duration, after: Duration) -> bool {
        self.progressed + after <= now
    }

    /// Returns the hashes that are known.
    pub fn known_hashes(&self) -> impl Iterator<Item = B256> {
        self.spans.known_from(0).map(|block| block.hash)
    }

    /// Returns where headers, highest first, meet the line or what is executed. `known` is the place
    /// of the highest one that is executed.
    pub fn meet<B>(
        &self,
        line: Option<&Line<B>>,
        headers: &[ChainHeader],
        known: Option<usize>,
    ) -> Met {
        for (place, header) in headers.iter().enumerate() {
            if line.is_some_and(|line| line.has(header.id)) {
                return Met::Line(place, header.id);
            }
            if known == Some(place) {
                return Met::Executed(place, header.id);
            }
        }
        let Some(last) = headers.last() else { return Met::Nothing };
        let Some(number) = last.id.number.checked_sub(1) else { return Met::Bottom };
        let parent = BlockId::new(number, last.parent);
        match (line.is_some_and(|line| line.has(parent)), known == Some(headers.len())) {
            (true, _) => Met::Line(headers.len(), parent),
            (false, true) => Met::Executed(headers.len(), parent),
            (false, false) => Met::Nothing,
        }
    }

    /// Adds headers, highest first.
    pub fn add(&mut self, now: Duration, headers: &[ChainHeader], loaded_max: usize) {
        let Some(last) = headers.last() else { return };
        (self.next, self.progressed) = (last.parent, now);
        self.spans.push_below(headers.iter().cloned());
        self.spans.unload(loaded_max);
    }

    pub fn into_spans(self) -> Spans {
        self.spans
    }
}
