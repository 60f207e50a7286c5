//! Sets of time as sorted, disjoint, half-open intervals.

use std::cmp::{max, min};

/// Set of nanoseconds: intervals `[start, end)`, sorted, disjoint, not touching, none empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Intervals(Vec<(u64, u64)>);

impl Intervals {
    /// Returns the union of `parts`, in any order, overlapping or not. Empty and reversed parts are
    /// ignored.
    pub fn union(parts: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut parts: Vec<(u64, u64)> =
            parts.into_iter().filter(|(start, end)| start < end).collect();
        parts.sort_unstable();
        parts.dedup_by(|next, kept| {
            let joins = next.0 <= kept.1;
            if joins {
                kept.1 = max(kept.1, next.1);
            }
            joins
        });
        Self(parts)
    }

    /// Returns the intersection of both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let (mut left, mut right) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut both = Vec::new();
        while let (Some(&&a), Some(&&b)) = (left.peek(), right.peek()) {
            let (start, end) = (max(a.0, b.0), min(a.1, b.1));
            if start < end {
                both.push((start, end));
            }
            if a.1 <= b.1 {
                left.next();
            } else {
                right.next();
            }
        }
        Self(both)
    }

    /// Returns the part of the set in `[start, end)`.
    #[must_use]
    pub fn clip(&self, start: u64, end: u64) -> Self {
        let clipped = self.0.iter().map(|part| (max(part.0, start), min(part.1, end)));
        Self(clipped.filter(|(start, end)| start < end).collect())
    }

    /// Returns the number of nanoseconds in the set.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    /// Returns the first nanosecond, and the one after the last, or `None` for the empty set.
    pub fn hull(&self) -> Option<(u64, u64)> {
        Some((self.0.first()?.0, self.0.last()?.1))
    }

    /// Returns the intervals in order of time.
    pub fn as_slice(&self) -> &[(u64, u64)] {
        &self.0
    }

    /// Returns the intervals in order of time, by value.
    pub fn into_vec(self) -> Vec<(u64, u64)> {
        self.0
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the nanoseconds below 64 of a set, by testing each.
    fn members(parts: &[(u64, u64)]) -> Vec<u64> {
        (0..64).filter(|at| parts.iter().any(|(start, end)| start <= at && at < end)).collect()
    }

    fn parts() -> impl Strategy<Value = Vec<(u64, u64)>> {
        prop::collection::vec((0u64..64, 0u64..64), 0..12)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        #[test]
        fn union_holds_what_any_part_holds(parts in parts()) {
            let union = Intervals::union(parts.iter().copied());
            prop_assert_eq!(members(union.as_slice()), members(&parts));
            prop_assert_eq!(union.total(), members(&parts).len() as u64);
            prop_assert!(union.as_slice().iter().all(|(start, end)| start < end));
            prop_assert!(union.as_slice().windows(2).all(|pair| pair[0].1 < pair[1].0));
        }

        #[test]
        fn intersection_holds_what_both_hold(a in parts(), b in parts()) {
            let both = Intervals::union(a.iter().copied())
                .intersection(&Intervals::union(b.iter().copied()));
            let (in_a, in_b) = (members(&a), members(&b));
            let expected: Vec<u64> = in_a.into_iter().filter(|at| in_b.contains(at)).collect();
            prop_assert_eq!(members(both.as_slice()), expected);
            prop_assert!(both.as_slice().windows(2).all(|pair| pair[0].1 <= pair[1].0));
        }

        #[test]
        fn clip_is_the_intersection_with_one_interval(a in parts(), start in 0u64..64, end in 0u64..64) {
            let set = Intervals::union(a);
            prop_assert_eq!(set.clip(start, end), set.intersection(&Intervals::union([(start, end)])));
        }

        #[test]
        fn hull_spans_the_members(a in parts()) {
            let set = Intervals::union(a.iter().copied());
            let expected = members(&a).first().copied().zip(members(&a).last().map(|last| last + 1));
            prop_assert_eq!(set.hull(), expected);
        }
    }
}
