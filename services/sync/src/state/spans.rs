//! Headers of one branch, in spans: a span that is not in memory is fetched again by the hash of its
//! top. So the memory for a branch of any length is bounded.

use crate::check::ChainHeader;
use std::collections::VecDeque;
use tandem_primitives::{BlockId, BlockNumber};

/// Maximum number of headers of a span: as many as one request may ask for.
pub const SPAN_HEADERS_MAX: u64 = 1024;

/// Consecutive headers of a branch.
#[derive(Debug)]
struct Span {
    /// Highest block.
    top: BlockId,
    /// Number of blocks, at least one.
    len: u64,
    /// The headers, lowest first; empty if they are not in memory.
    headers: VecDeque<ChainHeader>,
}

impl Span {
    fn bottom(&self) -> BlockNumber {
        self.top.number + 1 - self.len
    }

    fn is_loaded(&self) -> bool {
        !self.headers.is_empty()
    }
}

/// Consecutive spans of a branch, lowest first.
#[derive(Debug, Default)]
pub struct Spans {
    list: VecDeque<Span>,
    /// Number of headers in memory.
    loaded: usize,
}

impl Spans {
    /// Returns the highest block.
    pub fn top(&self) -> Option<BlockId> {
        self.list.back().map(|span| span.top)
    }

    /// Returns the number of the lowest block.
    pub fn bottom(&self) -> Option<BlockNumber> {
        self.list.front().map(Span::bottom)
    }

    /// Returns the number of headers in memory.
    pub fn loaded(&self) -> usize {
        self.loaded
    }

    /// Adds headers below the lowest one. They are consecutive, highest first.
    pub fn push_below(&mut self, headers: impl IntoIterator<Item = ChainHeader>) {
        for header in headers {
            self.loaded += 1;
            if let Some(lowest) =
                self.list.front_mut().filter(|span| span.is_loaded() && span.len < SPAN_HEADERS_MAX)
            {
                lowest.len += 1;
                lowest.headers.push_front(header);
                continue;
            }
            let span = Span { top: header.id, len: 1, headers: VecDeque::from([header]) };
            self.list.push_front(span);
        }
    }

    /// Adds another branch above the highest header.
    pub fn append(&mut self, above: Self) {
        self.loaded += above.loaded;
        for span in above.list {
            let Some(last) = self.list.back_mut() else {
                self.list.push_back(span);
                continue;
            };
            // Each new head of the chain adds a header or two: they join the span below them.
            if last.len + span.len > SPAN_HEADERS_MAX {
                self.list.push_back(span);
                continue;
            }
            let both = last.is_loaded() && span.is_loaded();
            last.top = span.top;
            last.len += span.len;
            if both {
                last.headers.extend(span.headers);
            } else {
                self.loaded -= last.headers.len() + span.headers.len();
                last.headers.clear();
            }
        }
    }

    /// Forgets headers, those of the highest spans first, until at most `max` are in memory. The
    /// lowest span stays.
    pub fn unload(&mut self, max: usize) {
        for span in self.list.iter_mut().skip(1).rev() {
            if self.loaded <= max {
                return;
            }
            self.loaded -= span.headers.len();
            span.headers.clear();
        }
    }

    /// Returns whether this block is on the branch, as far as headers in memory and tops of spans
    /// say.
    pub fn has(&self, block: BlockId) -> bool {
        self.at(block.number).is_some_and(|(span, at)| {
            span.top == block || span.headers.get(at).is_some_and(|header| header.id == block)
        })
    }

    /// Returns the header of this number, if it is in memory.
    pub fn header(&self, number: BlockNumber) -> Option<&ChainHeader> {
        self.at(number).and_then(|(span, at)| span.headers.get(at))
    }

    /// Returns the hashes that are known of blocks at this number or above.
    pub fn known_from(&self, number: BlockNumber) -> impl Iterator<Item = BlockId> {
        let above = self.list.iter().filter(move |span| span.top.number >= number);
        above.flat_map(move |span| {
            let loaded = span.headers.iter().map(|header| header.id);
            let top = (!span.is_loaded()).then_some(span.top);
            loaded.chain(top).filter(move |id| id.number >= number)
        })
    }

    /// Returns the span with this number, and the number's place in it.
    fn at(&self, number: BlockNumber) -> Option<(&Span, usize)> {
        let place = self.list.partition_point(|span| span.top.number < number);
        let span = self.list.get(place)?;
        Some((span, number.checked_sub(span.bottom())? as usize))
    }

    /// Drops all blocks above a number. Where that is inside a span without headers, the whole span
    /// goes.
    pub fn cut_above(&mut self, number: BlockNumber) {
        while let Some(mut span) = self.list.pop_back() {
            if span.top.number <= number {
                self.list.push_back(span);
                return;
            }
            self.loaded -= span.headers.len();
            span.headers.retain(|header| header.id.number <= number);
            if let Some(top) = span.headers.back() {
                span.len = top.id.number + 1 - span.bottom();
                span.top = top.id;
                self.loaded += span.headers.len();
                self.list.push_back(span);
                return;
            }
        }
    }

    /// Drops all blocks up to a number.
    pub fn drop_through(&mut self, number: BlockNumber) {
        while let Some(span) = self.list.front_mut() {
            if span.bottom() > number {
                return;
            }
            if span.top.number > number {
                let gone = number + 1 - span.bottom();
                span.len -= gone;
                if span.is_loaded() {
                    span.headers.drain(..gone as usize);
                    self.loaded -= gone as usize;
                }
                return;
            }
            self.loaded -= span.headers.len();
            self.list.pop_front();
        }
    }

    /// Returns top and length of the lowest spans that are not in memory, as far as there is room
    /// for `max` headers in memory.
    pub fn missing(&self, max: usize) -> impl Iterator<Item = (BlockId, u64)> {
        let mut below = 0;
        let wanted = self.list.iter().take_while(move |span| {
            below += span.len as usize;
            below <= max
        });
        wanted.filter(|span| !span.is_loaded()).map(|span| (span.top, span.len))
    }

    /// Fills the span with this top by headers, highest first: all of them, or the upper ones.
    /// Returns whether there was such a span without headers.
    pub fn fill(&mut self, top: BlockId, headers: &[ChainHeader]) -> bool {
        let place = self.list.partition_point(|span| span.top.number < top.number);
        let Some(span) = self.list.get_mut(place) else { return false };
        let (Some(lowest), true) = (headers.last(), span.top == top && !span.is_loaded()) else {
            return false;
        };
        let count = headers.len() as u64;
        if count > span.len || headers[0].id != top {
            return false;
        }
        let rest = span.len - count;
        span.len = count;
        span.headers = headers.iter().rev().cloned().collect();
        self.loaded += headers.len();
        if rest > 0 {
            let top = BlockId::new(lowest.id.number - 1, lowest.parent);
            self.list.insert(place, Span { top, len: rest, headers: VecDeque::new() });
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::{header, headers_down};

    fn numbers(spans: &Spans) -> Vec<(u64, u64, bool)> {
        spans.list.iter().map(|s| (s.bottom(), s.top.number, s.is_loaded())).collect()
    }

    fn count(spans: &Spans) -> usize {
        spans.list.iter().map(|span| span.headers.len()).sum()
    }

    #[test]
    fn a_long_branch_keeps_the_lowest_headers_and_the_tops_of_the_others() {
        let mut spans = Spans::default();
        for top in [5000, 4000, 3000, 2000, 1000] {
            spans.push_below(headers_down(top, 1000));
            spans.unload(2100);
        }
        assert_eq!(
            numbers(&spans),
            [
                (1, 904, true),
                (905, 1928, true),
                (1929, 2952, false),
                (2953, 3976, false),
                (3977, 5000, false)
            ]
        );
        assert_eq!((spans.loaded(), spans.top()), (1928, Some(header(5000).id)));
        assert!(spans.has(header(2952).id) && !spans.has(header(2951).id));
        assert!(spans.has(header(17).id) && spans.header(17).is_some());

        // Executed blocks make room, and the next span is asked for.
        spans.drop_through(1000);
        let missing: Vec<_> = spans.missing(3000).collect();
        assert_eq!(missing, [(header(2952).id, 1024), (header(3976).id, 1024)]);
        assert!(!spans.fill(header(2951).id, &headers_down(2951, 5)));
        assert!(spans.fill(header(2952).id, &headers_down(2952, 1000)));
        assert_eq!(
            numbers(&spans)[..3],
            [(1001, 1928, true), (1929, 1952, false), (1953, 2952, true)]
        );
        assert!(spans.fill(header(1952).id, &headers_down(1952, 24)));
        assert!((1001..=2952).all(|number| spans.header(number) == Some(&header(number))));
        assert_eq!(spans.loaded(), count(&spans));
    }

    #[test]
    fn new_heads_join_the_span_below_them() {
        let mut spans = Spans::default();
        spans.push_below(headers_down(10, 10));
        for number in 11..=2000 {
            let mut above = Spans::default();
            above.push_below([header(number)]);
            spans.append(above);
        }
        assert_eq!(numbers(&spans), [(1, 1024, true), (1025, 2000, true)]);
        spans.cut_above(1500);
        assert_eq!((numbers(&spans)[1], spans.loaded()), ((1025, 1500, true), 1500));
        spans.unload(0);
        assert_eq!(numbers(&spans), [(1, 1024, true), (1025, 1500, false)]);
        let mut above = Spans::default();
        above.push_below([header(1501)]);
        spans.append(above);
        assert_eq!((numbers(&spans)[1], spans.loaded()), ((1025, 1501, false), 1024));
        spans.cut_above(1300);
        assert_eq!((spans.top(), spans.loaded()), (Some(header(1024).id), count(&spans)));
        assert_eq!(spans.known_from(1023).count(), 2);
        spans.drop_through(1024);
        assert_eq!((spans.top(), spans.list.len(), spans.loaded()), (None, 0, 0));
    }
}
