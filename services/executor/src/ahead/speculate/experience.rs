//! Experience with recent blocks: contracts whose calls depended on one another, or take longer than their
//! gas says, and missed values.

use super::work::Weights;
use alloy_primitives::map::AddressMap;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tandem_primitives::{Address, BlockNumber};

/// Maximum number of remembered contracts. With more, all are forgotten.
const CONTRACTS_MAX: usize = 4_096;
/// Number of blocks for which a contract is remembered. Then its calls are executed ahead again, to
/// see whether they still conflict.
const BLOCKS: BlockNumber = 16;

/// Experience of the prewarm threads.
pub struct Experience {
    /// Contracts, with the block whose calls conflicted last.
    contracts: Mutex<AddressMap<BlockNumber>>,
    /// Whether most transactions of the latest block missed a value.
    missed: AtomicBool,
    /// Whether foretelling has failed in the latest block, so that rounds pay.
    rounds_pay: AtomicBool,
    /// Work of functions in blocks with access lists.
    pub weights: Weights,
}

impl Default for Experience {
    fn default() -> Self {
        let rounds_pay = AtomicBool::new(true);
        let (contracts, missed) = (Mutex::default(), AtomicBool::new(false));
        Self { contracts, missed, rounds_pay, weights: Weights::default() }
    }
}

impl Experience {
    /// Returns the contracts that are hot in this block.
    pub fn at(&self, number: BlockNumber) -> AddressMap<BlockNumber> {
        let mut contracts = self.contracts.lock();
        contracts.retain(|_, at| number.abs_diff(*at) < BLOCKS);
        contracts.clone()
    }

    /// Returns whether most transactions of the latest block missed a value.
    pub fn missed(&self) -> bool {
        self.missed.load(Relaxed)
    }

    /// Notes whether most transactions of a block missed a value.
    pub fn note_missed(&self, missed: bool) {
        self.missed.store(missed, Relaxed);
    }

    /// Returns whether rounds pay: in the latest block, many reads were not foretold.
    pub fn rounds_pay(&self) -> bool {
        self.rounds_pay.load(Relaxed)
    }

    /// Notes whether many reads of a block were not foretold.
    pub fn note_rounds_pay(&self, pay: bool) {
        self.rounds_pay.store(pay, Relaxed);
    }

    /// Notes contracts whose calls conflicted in this block.
    pub fn note(&self, number: BlockNumber, addresses: impl Iterator<Item = Address>) {
        let mut contracts = self.contracts.lock();
        contracts.extend(addresses.map(|address| (address, number)));
        if contracts.len() > CONTRACTS_MAX {
            contracts.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contracts_are_hot_for_some_blocks() {
        let (hot, address) = (Experience::default(), Address::repeat_byte(1));
        hot.note(10, [address].into_iter());
        assert!(hot.at(11).contains_key(&address) && hot.at(25).contains_key(&address));
        assert!(hot.at(26).is_empty() && hot.at(11).is_empty());
        let many = (0..=CONTRACTS_MAX as u64).map(|n| Address::left_padding_from(&n.to_be_bytes()));
        hot.note(30, many);
        assert!(hot.at(30).is_empty());
    }
}
