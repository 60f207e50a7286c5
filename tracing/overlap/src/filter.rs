//! Filter of the payloads that count.

use serde::Serialize;

use crate::model::Span;

/// Conditions that a payload must meet, all of them. The default has no condition.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Filter {
    /// Allowed services of the root span.
    pub services: Vec<String>,
    /// Earliest start, in nanoseconds of Unix time.
    pub since_unix_ns: Option<u64>,
    /// Time before which the payload must start, in nanoseconds of Unix time.
    pub until_unix_ns: Option<u64>,
    /// Lowest block number.
    pub first_block: Option<u64>,
    /// Highest block number.
    pub last_block: Option<u64>,
    /// Minimum length of the root span, in nanoseconds.
    pub least_ns: Option<u64>,
    /// Attributes that the root span, or the process that made it, must have with these values.
    pub tags: Vec<(String, String)>,
}

impl Filter {
    /// Returns whether the payload of `root`, on the block of that number, meets all conditions. A
    /// payload without a number is in no range of blocks.
    pub(crate) fn admits(&self, root: &Span, block_number: Option<u64>) -> bool {
        let service = self.services.is_empty()
            || self.services.iter().any(|service| **service == *root.service);
        let above = |least: Option<u64>, value: Option<u64>| {
            least.is_none_or(|least| value.is_some_and(|value| value >= least))
        };
        let below = |most: Option<u64>, value: Option<u64>| {
            most.is_none_or(|most| value.is_some_and(|value| value <= most))
        };
        let has = |(key, value): &(String, String)| {
            let own = root.attribute(key).is_some_and(|own| own.to_string() == *value);
            own || root.resource_attribute(key).is_some_and(|of_process| of_process == value)
        };
        service
            && self.tags.iter().all(has)
            && above(self.since_unix_ns, Some(root.start_ns))
            && self.until_unix_ns.is_none_or(|until| root.start_ns < until)
            && above(self.first_block, block_number)
            && below(self.last_block, block_number)
            && above(self.least_ns, Some(root.duration_ns()))
    }
}
