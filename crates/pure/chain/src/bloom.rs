//! Bloom filters of logs, whose hashes are computed together.

use alloy_primitives::{Bloom, BloomInput, Log};
use tandem_trie::HashBatch;

/// Computes the bloom filters of one receipt after another (yellow paper, section 4.3.1). Addresses and
/// topics of a receipt are hashed together. The buffers are used again.
#[derive(Debug, Default)]
pub struct Blooms {
    inputs: HashBatch,
}

impl Blooms {
    /// Returns the bloom filter of these logs.
    pub fn of(&mut self, logs: &[Log]) -> Bloom {
        let mut bloom = Bloom::ZERO;
        if logs.is_empty() {
            return bloom;
        }
        // Gas limits the number of logs.
        self.inputs.clear();
        for log in logs {
            self.inputs.push(log.address.as_slice());
            log.topics().iter().for_each(|topic| self.inputs.push(topic.as_slice()));
        }
        self.inputs.hash().iter().for_each(|hash| bloom.accrue(BloomInput::Hash(*hash)));
        bloom
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::{Address, B256, Bytes, logs_bloom};
    use proptest::prelude::*;

    fn log() -> impl Strategy<Value = Log> {
        // Few values, so that they repeat.
        let topics = prop::collection::vec(0_u8..6, 0..=4);
        (0_u8..4, topics).prop_map(|(address, topics)| {
            let topics = topics.into_iter().map(B256::with_last_byte).collect();
            Log::new_unchecked(Address::repeat_byte(address), topics, Bytes::new())
        })
    }

    proptest! {
        #[test]
        fn they_are_those_of_alloy(
            receipts in prop::collection::vec(prop::collection::vec(log(), 0..12), 0..6),
        ) {
            let mut blooms = Blooms::default();
            for logs in receipts {
                prop_assert_eq!(blooms.of(&logs), logs_bloom(&logs));
            }
        }
    }
}
