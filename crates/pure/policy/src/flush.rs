use crate::{Error, text};
use std::{fmt, str::FromStr};

/// Number of transactions whose state changes are merged into one update before it is sent to the
/// workers.
///
/// Except under `while-empty`, the decision depends on the transactions alone, so a block is always
/// split in the same way. The adaptive rule comes from ethrex, which also holds changes back while
/// its queue is not empty. Busy workers then cause large updates: the loop that
/// [`crate::Chunking::WhileIdle`] describes. ethrex also counts transactions past the threshold;
/// here the number counts the transactions in an update.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TransitionFlush {
    /// Sends the changes of every transaction at once, and those of every system call.
    #[default]
    EveryTx,
    /// Sends the changes of `n` transactions together.
    Fixed {
        /// Number of transactions in an update, at least 1.
        n: u32,
    },
    /// Sends fewer transactions together when they used much gas, since they change more then.
    Adaptive {
        /// Amount of gas from which on `min` applies.
        gas: u64,
        /// Number of transactions in an update below that gas, at least 1.
        base: u32,
        /// Number of transactions in an update from that gas on, at least 1 and at most `base`.
        min: u32,
    },
    /// Sends the changes of `n` transactions together, and of more while updates wait in a worker's
    /// queue. For comparisons: ethrex did so.
    WhileEmpty {
        /// Least number of transactions in an update, at least 1.
        n: u32,
    },
}

impl TransitionFlush {
    const KEY: &'static str = "transition_flush";
    const EXPECTED: &'static str = "`every-tx`, `fixed{transactions}`, \
                                    `adaptive{gas,transactions,transactions above that gas}` or \
                                    `while-empty{transactions}` \
                                    (transactions from 1 to 100000, the second number not above the first)";
    /// Largest number of transactions that the text may contain.
    const TRANSACTIONS_MAX: u32 = 100_000;

    /// Returns whether the changes gathered so far are sent now. They come from `transactions`
    /// transactions, at least one, which used `gas_used` gas together. `is_empty` says whether no
    /// update waits for the workers.
    #[must_use]
    pub fn is_due(
        &self,
        transactions: u32,
        gas_used: u64,
        is_empty: impl FnOnce() -> bool,
    ) -> bool {
        match *self {
            Self::EveryTx => true,
            Self::Fixed { n } => transactions >= n,
            Self::Adaptive { gas, base, min } => {
                transactions >= if gas_used >= gas { min.min(base) } else { base }
            }
            Self::WhileEmpty { n } => transactions >= n && is_empty(),
        }
    }
}

impl fmt::Display for TransitionFlush {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EveryTx => f.write_str("every-tx"),
            Self::Fixed { n } => write!(f, "fixed{{{n}}}"),
            Self::Adaptive { gas, base, min } => write!(f, "adaptive{{{gas},{base},{min}}}"),
            Self::WhileEmpty { n } => write!(f, "while-empty{{{n}}}"),
        }
    }
}

impl FromStr for TransitionFlush {
    type Err = Error;

    fn from_str(value: &str) -> Result<Self, Error> {
        let positive = |number| text::positive(number, Self::TRANSACTIONS_MAX);
        let parse = || {
            Some(match text::split::<3>(value)? {
                ("every-tx", 0, _) => Self::EveryTx,
                ("fixed", 1, [n, ..]) => Self::Fixed { n: positive(n)? },
                ("while-empty", 1, [n, ..]) => Self::WhileEmpty { n: positive(n)? },
                ("adaptive", 3, [gas, base, min]) if min <= base => {
                    Self::Adaptive { gas, base: positive(base)?, min: positive(min)? }
                }
                _ => return None,
            })
        };
        parse().ok_or_else(|| Error::value(Self::KEY, value, Self::EXPECTED))
    }
}

text::serde_as_text!(TransitionFlush);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the number of transactions in each update of a block whose transactions use this
    /// gas.
    fn cut(policy: &str, gas: &[u64]) -> Vec<u32> {
        let policy: TransitionFlush = policy.parse().unwrap();
        let (mut updates, mut open, mut used) = (Vec::new(), 0, 0);
        for gas in gas {
            (open, used) = (open + 1, used + gas);
            if policy.is_due(open, used, || open % 2 == 0) {
                updates.push(open);
                (open, used) = (0, 0);
            }
        }
        updates.extend((open > 0).then_some(open));
        updates
    }

    #[test]
    fn each_policy_cuts_a_block_its_own_way() {
        let transfers = [21_000; 12];
        assert_eq!(cut("every-tx", &transfers), [1; 12]);
        assert_eq!(cut("fixed{8}", &transfers), [8, 4]);
        assert_eq!(cut("fixed{1}", &transfers), [1; 12]);
        // The queue is empty after an even number of transactions.
        assert_eq!(cut("while-empty{3}", &transfers), [4; 3]);
        assert_eq!(cut("while-empty{4}", &transfers), [4; 3]);
        assert_eq!(cut("adaptive{500000,5,2}", &transfers), [5, 5, 2]);
        assert_eq!(cut("adaptive{500000,5,2}", &[300_000; 5]), [2, 2, 1]);
        assert_eq!(cut("adaptive{500000,5,2}", &[21_000, 21_000, 500_000, 1, 1]), [3, 2]);
        assert_eq!(cut("adaptive{500000,5,2}", &[499_998, 1, 1, 600_000]), [3, 1]);
        assert_eq!(cut("adaptive{500000,5,1}", &[600_000, 1, 600_000]), [1, 2]);
    }

    #[test]
    fn a_wrong_text_is_named_with_what_is_allowed() {
        for wrong in [
            "every",
            "every-tx{1}",
            "fixed{0}",
            "fixed{100001}",
            "fixed{1,2}",
            "adaptive{1,2}",
            "adaptive{1,2,3}",
            "adaptive{1,0,0}",
            "adaptive{1,5,0}",
            "while-empty",
            "while-empty{0}",
        ] {
            let error = wrong.parse::<TransitionFlush>().unwrap_err().to_string();
            let begin =
                format!("invalid value `{wrong}` for `transition_flush`; expected `every-tx`, ");
            assert!(error.starts_with(&begin), "{error}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(gas: u64, n in 1..=100_000u32, less: u32) {
            let min = n - less % n;
            for policy in [
                TransitionFlush::EveryTx,
                TransitionFlush::Fixed { n },
                TransitionFlush::Adaptive { gas, base: n, min },
                TransitionFlush::WhileEmpty { n },
            ] {
                prop_assert_eq!(policy.to_string().parse::<TransitionFlush>().unwrap(), policy);
            }
        }

        /// An update has at least one transaction and at most the policy's number.
        #[test]
        fn updates_keep_their_bounds(
            block in prop::collection::vec(0u64..2_000_000, 0..100),
            base in 1u32..9,
            less: u32,
        ) {
            let min = base - less % base;
            for policy in [format!("adaptive{{500000,{base},{min}}}"), format!("fixed{{{base}}}")] {
                let updates = cut(&policy, &block);
                prop_assert_eq!(updates.iter().sum::<u32>() as usize, block.len());
                prop_assert!(updates.iter().all(|&update| (1..=base).contains(&update)));
            }
        }
    }
}
