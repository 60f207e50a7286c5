use std::ops::Range;

/// Returns the positions of the bad items in `range`, ascending. `all_good` tests whether a range
/// holds good items only.
///
/// One bad item in n costs at most `2·log2(n) + 1` tests (n a power of two): one for the whole
/// range, then two per halving. A half that must be bad because the other half is good is not
/// tested again.
pub fn find_bad(range: Range<usize>, mut all_good: impl FnMut(Range<usize>) -> bool) -> Vec<usize> {
    let mut bad = Vec::new();
    if !range.is_empty() && !all_good(range.clone()) {
        split(range, &mut all_good, &mut bad);
    }
    bad
}

/// Searches a range that is known to hold a bad item.
fn split(
    range: Range<usize>,
    all_good: &mut impl FnMut(Range<usize>) -> bool,
    bad: &mut Vec<usize>,
) {
    if range.len() == 1 {
        bad.push(range.start);
        return;
    }
    let middle = range.start + range.len() / 2;
    let (left, right) = (range.start..middle, middle..range.end);
    if all_good(left.clone()) {
        split(right, all_good, bad);
    } else {
        split(left, all_good, bad);
        if !all_good(right.clone()) {
            split(right, all_good, bad);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    proptest! {
        #[test]
        fn bisecting_finds_the_bad_ones_and_only_those(
            start in 0..5usize, items in vec(any::<bool>(), 0..200),
        ) {
            let good = |range: Range<usize>| items[range.start - start..range.end - start].iter().all(|&good| good);
            let bad = find_bad(start..start + items.len(), good);
            let expected: Vec<_> = (0..items.len()).filter(|&index| !items[index]).map(|index| start + index).collect();
            prop_assert_eq!(bad, expected);
        }

        #[test]
        fn one_bad_item_costs_two_tests_a_halving(power in 0..10u32, place: prop::sample::Index) {
            let count = 1 << power;
            let bad = place.index(count);
            let mut tests = 0;
            let found = find_bad(0..count, |range| {
                tests += 1;
                !range.contains(&bad)
            });
            prop_assert_eq!(found, vec![bad]);
            prop_assert!(tests <= 2 * power + 1, "{} tests for {}", tests, count);
        }
    }

    #[test]
    fn good_items_cost_one_test_and_no_items_none() {
        let mut tests = 0;
        let mut all_good = |_| {
            tests += 1;
            true
        };
        assert!(find_bad(0..0, &mut all_good).is_empty());
        assert!(find_bad(0..64, &mut all_good).is_empty());
        assert_eq!(tests, 1);
    }
}
