//! Fees of a transaction, and its cost for the sender.

use alloy_consensus::Transaction as _;
use alloy_primitives::{Address, U256};
use tandem_chain::Transaction;

/// Maximum fees of a transaction, in wei for each unit of gas.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fees {
    /// Payment besides the base fee; the gas price of transactions without a tip.
    pub tip: u128,
    /// Payment with the base fee.
    pub cap: u128,
    /// Payment for blob gas, `None` without blobs.
    pub blob_cap: Option<u128>,
}

impl Fees {
    /// Returns the fees of a transaction.
    pub fn of(transaction: &Transaction) -> Self {
        let cap = transaction.max_fee_per_gas();
        Self {
            tip: transaction.max_priority_fee_per_gas().unwrap_or(cap),
            cap,
            blob_cap: transaction.max_fee_per_blob_gas(),
        }
    }

    /// Returns whether these fees are enough to replace a transaction with the fees `known`: each
    /// must be higher, and by at least `percent`. That is go-ethereum's rule, with 10 % for
    /// transactions without blobs and 100 % for those with blobs.
    pub fn outbid(&self, known: &Self, percent: u32) -> bool {
        let enough = |fee: u128, known: u128| {
            // As U256, because neither product may wrap.
            let (hundred, factor) = (U256::from(100), U256::from(100 + u64::from(percent)));
            fee > known && U256::from(fee) * hundred >= U256::from(known) * factor
        };
        let blobs = match (self.blob_cap, known.blob_cap) {
            (Some(fee), Some(known)) => enough(fee, known),
            _ => true,
        };
        enough(self.tip, known.tip) && enough(self.cap, known.cap) && blobs
    }
}

/// Returns the maximum cost of a transaction for its sender, in wei, value included. Saturates at a
/// value above any balance.
pub fn cost(transaction: &Transaction) -> U256 {
    let gas = U256::from(transaction.gas_limit()) * U256::from(transaction.max_fee_per_gas());
    let blob_gas = transaction.blob_gas_used().unwrap_or_default();
    let blob_fee = transaction.max_fee_per_blob_gas().unwrap_or_default();
    let blobs = U256::from(blob_gas) * U256::from(blob_fee);
    gas.saturating_add(blobs).saturating_add(transaction.value())
}

/// Returns the accounts whose code the transaction sets (EIP-7702), without those whose signature
/// is invalid. Each takes the time of a signature.
pub fn authorities(transaction: &Transaction) -> Vec<Address> {
    let list = transaction.authorization_list().unwrap_or_default();
    let mut found: Vec<_> = list.iter().filter_map(|it| it.recover_authority().ok()).collect();
    found.sort_unstable();
    found.dedup();
    // A pool keeps the list, and many authorizations may name one account.
    found.shrink_to_fit();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plain(tip: u128, cap: u128) -> Fees {
        Fees { tip, cap, blob_cap: None }
    }

    #[test]
    fn a_replacement_must_raise_every_fee() {
        let known = plain(100, 1_000);
        for (tip, cap, enough) in [
            (110, 1_100, true),
            (109, 1_100, false),
            (110, 1_099, false),
            (u128::MAX, 1_000, false),
            (100, u128::MAX, false),
        ] {
            assert_eq!(plain(tip, cap).outbid(&known, 10), enough, "{tip} {cap}");
        }
        // A tenth of little rounds to nothing, but more it must be.
        assert!(!plain(1, 1).outbid(&plain(1, 1), 0));
        assert!(!plain(0, 9).outbid(&plain(0, 1), 10));
        assert!(plain(1, 9).outbid(&plain(0, 1), 10));
        let blobs = |tip, cap, blob| Fees { tip, cap, blob_cap: Some(blob) };
        assert!(blobs(2, 20, 200).outbid(&blobs(1, 10, 100), 100));
        assert!(!blobs(2, 20, 199).outbid(&blobs(1, 10, 100), 100));
    }

    proptest! {
        #[test]
        fn no_two_transactions_can_outbid_each_other(
            one in any::<(u128, u128)>(),
            other in any::<(u128, u128)>(),
            percent in 0..200_u32,
        ) {
            let (one, other) = (plain(one.0, one.1), plain(other.0, other.1));
            prop_assert!(!one.outbid(&one, percent));
            prop_assert!(!(one.outbid(&other, percent) && other.outbid(&one, percent)));
        }
    }
}
