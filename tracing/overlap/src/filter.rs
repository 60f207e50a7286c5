//! Which payloads count.

use serde::Serialize;

use crate::model::Span;

/// Conditions that a payload has to meet, all of them. The default is none.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Filter {
    /// Services of which one has its root span.
    pub services: Vec<String>,
    /// It began no earlier than this, in nanoseconds of Unix time.
    pub since_unix_ns: Option<u64>,
    /// It began before this.
    pub until_unix_ns: Option<u64>,
    /// Its block is no lower than this.
    pub first_block: Option<u64>,
    /// Its block is no higher than this.
    pub last_block: Option<u64>,
    /// Its root span is no shorter than this.
    pub least_ns: Option<u64>,
}

impl Filter {
    /// Whether the payload of `root`, on the block of that number, meets all conditions. One without
    /// a number is in no range of blocks.
    pub(crate) fn admits(&self, root: &Span, block_number: Option<u64>) -> bool {
        let service = self.services.is_empty()
            || self.services.iter().any(|service| **service == *root.service);
        let above = |least: Option<u64>, value: Option<u64>| {
            least.is_none_or(|least| value.is_some_and(|value| value >= least))
        };
        let below = |most: Option<u64>, value: Option<u64>| {
            most.is_none_or(|most| value.is_some_and(|value| value <= most))
        };
        service
            && above(self.since_unix_ns, Some(root.start_ns))
            && self.until_unix_ns.is_none_or(|until| root.start_ns < until)
            && above(self.first_block, block_number)
            && below(self.last_block, block_number)
            && above(self.least_ns, Some(root.duration_ns()))
    }
}
