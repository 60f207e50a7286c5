//! Bloom filters of logs, whose hashes are computed together.

use alloy_primitives::{B256, Bloom, BloomInput, Log};
use tandem_trie::hash_batch;

/// Computes the bloom filters of one receipt after another (yellow paper, section 4.3.1). Addresses and
/// topics of a receipt are hashed together. The buffers are used again.
#[derive(Debug, Default)]
pub struct Blooms {
    bytes: Vec<u8>,
    /// End of each address or topic in `bytes`.
    ends: Vec<u32>,
    hashes: Vec<B256>,
}

impl Blooms {
    /// Returns the bloom filter of these logs.
    pub fn of(&mut self, logs: &[Log]) -> Bloom {
        let mut bloom = Bloom::ZERO;
        if logs.is_empty() {
            return bloom;
        }
        self.bytes.clear();
        self.ends.clear();
        for log in logs {
            self.push(log.address.as_slice());
            log.topics().iter().for_each(|topic| self.push(topic.as_slice()));
        }
        hash_batch(&self.bytes, &self.ends, &mut self.hashes);
        self.hashes.iter().for_each(|hash| bloom.accrue(BloomInput::Hash(*hash)));
        bloom
    }

    fn push(&mut self, input: &[u8]) {
        self.bytes.extend_from_slice(input);
        // At most 32 bytes for each of the inputs, whose number gas limits.
        self.ends.push(self.bytes.len() as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::{Address, Bytes, logs_bloom};
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
