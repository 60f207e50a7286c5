use crate::{Error, text};
use std::{fmt, str::FromStr, time::Duration};

/// Number of state updates that are merged before the trie paths of their keys are requested.
///
/// Merging saves paths that several updates need, at the cost of overlap. No worker reads while a
/// batch is gathered, and one large batch keeps one worker busy for long. Published traces of
/// another client show newPayload four times slower under `fixed{16,500}` where large batches met
/// [`crate::Chunking::WhileIdle`].
///
/// The policy concerns requests only. The values of updates always go into the tries as they
/// arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Batching {
    /// Requests every update on its own.
    None,
    /// Takes the updates in the queue, up to limits. Never waits for more.
    Fixed {
        /// Maximum number of updates in a batch, at least 1.
        messages: u32,
        /// Number of keys in a batch at which no further update is added, at least 1.
        targets: u32,
    },
    /// Merges only when the queue has grown.
    Pressure {
        /// Number of updates that may wait behind the first one without being merged.
        threshold: u32,
        /// Maximum number of updates in a batch, at least 1.
        max: u32,
    },
    /// Gathers for a span of time, even when the queue is empty. A batch is never requested sooner,
    /// unless the block has no more updates.
    Window {
        /// Time from the first update on, in microseconds, at least 1.
        micros: u32,
    },
    /// Takes all updates in the queue, limited only by the caller. Never waits for more.
    #[default]
    Drain,
}

/// Batch that is being gathered, with at least one update.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Batch {
    /// Number of merged updates.
    pub messages: usize,
    /// Number of keys to request.
    pub targets: usize,
    /// Number of updates that wait in the queue.
    pub queued: usize,
    /// Time since the first update was taken.
    pub elapsed: Duration,
}

/// Next step for a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// The batch is requested.
    Dispatch,
    /// The next update in the queue joins the batch. Returned only when there is one.
    Take,
    /// The queue is empty: the batch is requested after this time, unless an update arrives first.
    /// Never zero.
    Wait(Duration),
}

impl Batching {
    const KEY: &'static str = "batching";
    const EXPECTED: &'static str = "`none`, `fixed{messages,targets}`, `pressure{threshold,max}`, \
                                    `window{microseconds}` or `drain` \
                                    (numbers from 1 to 1000000, the threshold from 0)";
    /// Largest number that the text may contain.
    const NUMBER_MAX: u32 = 1_000_000;

    /// Returns the next step for the batch.
    #[must_use]
    pub fn next(&self, batch: Batch) -> Next {
        let more = match *self {
            Self::None => false,
            Self::Fixed { messages, targets } => {
                batch.messages < messages as usize && batch.targets < targets as usize
            }
            // The length of the queue is checked once, while the batch has only its first update.
            // That settles whether there is pressure.
            Self::Pressure { threshold, max } => {
                let begun = batch.messages > 1 || batch.queued > threshold as usize;
                begun && batch.messages < max as usize
            }
            Self::Window { micros } => {
                let left = Duration::from_micros(micros.into()).saturating_sub(batch.elapsed);
                if batch.queued == 0 && !left.is_zero() {
                    return Next::Wait(left);
                }
                !left.is_zero()
            }
            Self::Drain => true,
        };
        if more && batch.queued > 0 { Next::Take } else { Next::Dispatch }
    }
}

impl fmt::Display for Batching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Fixed { messages, targets } => write!(f, "fixed{{{messages},{targets}}}"),
            Self::Pressure { threshold, max } => write!(f, "pressure{{{threshold},{max}}}"),
            Self::Window { micros } => write!(f, "window{{{micros}}}"),
            Self::Drain => f.write_str("drain"),
        }
    }
}

impl FromStr for Batching {
    type Err = Error;

    fn from_str(value: &str) -> Result<Self, Error> {
        let positive = |number| text::positive(number, Self::NUMBER_MAX);
        let parse = || {
            Some(match text::split::<2>(value)? {
                ("none", 0, _) => Self::None,
                ("fixed", 2, [messages, targets]) => {
                    Self::Fixed { messages: positive(messages)?, targets: positive(targets)? }
                }
                ("pressure", 2, [threshold, max]) => {
                    let threshold = if threshold == 0 { 0 } else { positive(threshold)? };
                    Self::Pressure { threshold, max: positive(max)? }
                }
                ("window", 1, [micros, _]) => Self::Window { micros: positive(micros)? },
                ("drain", 0, _) => Self::Drain,
                _ => return None,
            })
        };
        parse().ok_or_else(|| Error::value(Self::KEY, value, Self::EXPECTED))
    }
}

text::serde_as_text!(Batching);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn batch(messages: usize, targets: usize, queued: usize, micros: u64) -> Batch {
        Batch { messages, targets, queued, elapsed: Duration::from_micros(micros) }
    }

    /// Gathers batches from a queue that is full from the start; each update has `targets` keys.
    fn gather(policy: Batching, updates: usize, targets: usize) -> Vec<usize> {
        let (mut queued, mut batches) = (updates, Vec::new());
        while queued > 0 {
            queued -= 1;
            let mut messages = 1;
            while policy.next(batch(messages, messages * targets, queued, 0)) == Next::Take {
                (messages, queued) = (messages + 1, queued - 1);
            }
            batches.push(messages);
        }
        batches
    }

    #[test]
    fn each_policy_cuts_a_full_queue_its_own_way() {
        let cut =
            |policy: &str, updates, targets| gather(policy.parse().unwrap(), updates, targets);
        assert_eq!(cut("none", 4, 10), [1; 4]);
        assert_eq!(cut("fixed{16,500}", 40, 10), [16, 16, 8]);
        assert_eq!(cut("fixed{16,500}", 20, 100), [5; 4], "by its targets");
        assert_eq!(cut("fixed{1,500}", 3, 10), [1; 3]);
        // First 20 wait behind the first update, then 10, and so on; with four or fewer, each goes
        // alone.
        assert_eq!(cut("pressure{4,10}", 21, 10), [10, 10, 1]);
        assert_eq!(cut("pressure{4,10}", 5, 10), [1; 5]);
        assert_eq!(cut("pressure{4,10}", 6, 10), [6]);
        assert_eq!(cut("pressure{0,1}", 3, 10), [1; 3]);
        assert_eq!(cut("drain", 1000, 1000), [1000]);
    }

    #[test]
    fn a_window_waits_also_when_nothing_is_queued_and_then_ends() {
        let window = Batching::Window { micros: 100 };
        assert_eq!(window.next(batch(1, 1, 0, 0)), Next::Wait(Duration::from_micros(100)));
        assert_eq!(window.next(batch(1, 1, 0, 99)), Next::Wait(Duration::from_micros(1)));
        assert_eq!(window.next(batch(9, 900, 1, 99)), Next::Take);
        for queued in [0, 1] {
            assert_eq!(window.next(batch(1, 1, queued, 100)), Next::Dispatch);
        }
    }

    #[test]
    fn a_wrong_text_is_named_with_what_is_allowed() {
        for wrong in [
            "",
            "None",
            "fixed",
            "fixed{16}",
            "fixed{0,500}",
            "fixed{16,0}",
            "fixed{16, 500}",
            "fixed16",
            "pressure{4,0}",
            "pressure{1000001,1}",
            "window{0}",
            "window{4294967396}",
            "window{1,0}",
            "drain{1}",
        ] {
            let error = wrong.parse::<Batching>().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!(
                    "invalid value `{wrong}` for `batching`; expected `none`, `fixed{{m"
                )),
                "{error}"
            );
        }
        let long = "x".repeat(1 << 20).parse::<Batching>().unwrap_err().to_string();
        assert!(long.len() < 300, "{}", long.len());
    }

    pub(crate) fn any() -> impl Strategy<Value = Batching> {
        let number = || 1..=Batching::NUMBER_MAX;
        prop_oneof![
            Just(Batching::None),
            (number(), number())
                .prop_map(|(messages, targets)| Batching::Fixed { messages, targets }),
            (0..=Batching::NUMBER_MAX, number())
                .prop_map(|(threshold, max)| Batching::Pressure { threshold, max }),
            number().prop_map(|micros| Batching::Window { micros }),
            Just(Batching::Drain),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(policy in any()) {
            prop_assert_eq!(policy.to_string().parse::<Batching>().unwrap(), policy);
            let json = serde_json::to_string(&policy).unwrap();
            prop_assert_eq!(serde_json::from_str::<Batching>(&json).unwrap(), policy);
        }

        #[test]
        fn no_text_makes_it_panic(text in ".{0,40}") {
            if let Ok(policy) = text.parse::<Batching>() {
                prop_assert_eq!(policy.to_string().parse::<Batching>().unwrap(), policy);
            }
        }

        /// Under every policy, limits hold, an empty queue is not taken from, a wait is not zero
        /// and ends, and nothing overflows.
        #[test]
        fn decisions_keep_their_bounds(
            policy in any(),
            messages in 1usize..,
            targets: usize,
            queued: usize,
            elapsed: u64,
        ) {
            let batch = batch(messages, targets, queued, elapsed);
            match policy.next(batch) {
                Next::Take => {
                    prop_assert!(queued > 0);
                    match policy {
                        Batching::None => prop_assert!(false),
                        Batching::Fixed { messages: max, targets: most } => {
                            prop_assert!(messages < max as usize && targets < most as usize);
                        }
                        Batching::Pressure { max, .. } => prop_assert!(messages < max as usize),
                        Batching::Window { micros } => prop_assert!(elapsed < micros.into()),
                        Batching::Drain => {}
                    }
                }
                Next::Wait(time) => {
                    prop_assert!(!time.is_zero() && queued == 0);
                    let later = Batch { elapsed: batch.elapsed.saturating_add(time), ..batch };
                    prop_assert_eq!(policy.next(later), Next::Dispatch);
                }
                Next::Dispatch => {}
            }
        }

        /// Every update of a queue is in exactly one batch, whatever the numbers are.
        #[test]
        fn batches_hold_everything(policy in any(), updates in 0usize..200, targets in 0usize..200) {
            if !matches!(policy, Batching::Window { .. }) {
                let batches = gather(policy, updates, targets);
                prop_assert_eq!(batches.iter().sum::<usize>(), updates);
            }
        }
    }
}
