//! Order of eviction from a full pool, by payment.

use crate::Fees;
use alloy_consensus::Header;
use tandem_chain::ChainSpec;

/// Factor by which the base fee of gas can change from one block to the next (EIP-1559).
const STEP: f64 = 1.125;

/// Minimum price of blob gas, in wei (EIP-4844, `MIN_BASE_FEE_PER_BLOB_GAS`).
pub(crate) const BLOB_PRICE_MIN: u128 = 1;

/// Prices at the head, in wei.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Market {
    /// Base fee of gas.
    pub base_fee: u128,
    /// Price of blob gas.
    pub blob_fee: u128,
}

impl Market {
    /// Returns the prices of the block with this header.
    pub fn of(spec: &ChainSpec, head: &Header) -> Self {
        let blob_fee = spec.blob_params_of(head).and_then(|params| head.blob_fee(params));
        Self {
            base_fee: head.base_fee_per_gas.unwrap_or_default().into(),
            blob_fee: blob_fee.unwrap_or(BLOB_PRICE_MIN),
        }
    }
}

/// Rank of a transaction, higher is better. First counts whether a block could hold it soon, then
/// the tip.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Rank {
    /// Number of blocks, negated, for which prices must fall until the transaction can pay them. 0
    /// if it can pay them now, however high its caps.
    shortfall: i32,
    /// Payment for gas besides the base fee, in wei.
    pub tip: u128,
}

impl Rank {
    /// Rank above every other.
    pub const MAX: Self = Self { shortfall: 0, tip: u128::MAX };

    /// Returns the rank of a transaction that pays these fees at most.
    pub fn of(fees: Fees, market: Market) -> Self {
        let Fees { tip, cap, blob_cap } = fees;
        let blob_steps = blob_cap.map_or(0, |cap| steps(cap, market.blob_fee));
        let shortfall = steps(cap, market.base_fee).min(blob_steps);
        Self { shortfall, tip: tip.min(cap.saturating_sub(market.base_fee)) }
    }
}

/// Returns the steps from a price down to the payment, 0 or less.
fn steps(paid: u128, price: u128) -> i32 {
    if paid >= price {
        return 0;
    }
    // A zero price never exceeds the payment.
    let ratio = (paid.max(1) as f64 / price as f64).ln() / STEP.ln();
    // A payment just below the price must not count as enough.
    (ratio.floor() as i32).min(-1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fees(tip: u128, cap: u128, blob_cap: u128) -> Fees {
        Fees { tip, cap, blob_cap: Some(blob_cap) }
    }

    #[test]
    fn what_a_block_can_hold_ranks_by_its_tip_and_above_what_none_can() {
        let market = Market { base_fee: 1_000, blob_fee: 100 };
        let rank = |tip, cap, blob_cap| Rank::of(fees(tip, cap, blob_cap), market);
        // Caps beyond the prices are not paid.
        assert_eq!(rank(5, 2_000, 100), rank(5, 9_000, 7_000));
        assert!(rank(6, 2_000, 100) > rank(5, 2_000, 100));
        // The cap limits the tip.
        assert_eq!(rank(500, 1_010, 100).tip, 10);
        for short in [rank(u128::MAX, 999, 100), rank(900, 2_000, 99), rank(0, 0, 0)] {
            assert!(short < rank(0, 1_000, 100), "{short:?}");
        }
        assert!(rank(1, 500, 100) > rank(9, 400, 100));
        assert!(rank(1, 2_000, 50) > rank(9, 2_000, 40));
        let free = Market { base_fee: 0, blob_fee: 0 };
        assert_eq!(Rank::of(fees(0, 0, 0), free), Rank { shortfall: 0, tip: 0 });
    }

    #[test]
    fn without_blobs_the_price_of_blob_gas_does_not_matter() {
        let dear = Market { base_fee: 7, blob_fee: u128::MAX };
        let plain = Fees { tip: 3, cap: 20, blob_cap: None };
        assert_eq!(Rank::of(plain, dear), Rank { shortfall: 0, tip: 3 });
    }

    proptest! {
        /// A transaction that pays at least as much in each respect never ranks lower.
        #[test]
        fn more_is_never_worth_less(
            low in any::<(u128, u128, u128)>(),
            more in any::<(u128, u128, u128)>(),
            base_fee in any::<u128>(),
            blob_fee in any::<u128>(),
        ) {
            let market = Market { base_fee, blob_fee };
            let high = (
                low.0.saturating_add(more.0),
                low.1.saturating_add(more.1),
                low.2.saturating_add(more.2),
            );
            let rank = |(tip, cap, blob_cap)| Rank::of(fees(tip, cap, blob_cap), market);
            prop_assert!(rank(high) >= rank(low));
            prop_assert!(rank(high) <= Rank::MAX);
        }

        /// Exactly what can pay both prices has no shortfall.
        #[test]
        fn a_shortfall_means_that_a_price_cannot_be_paid(
            cap in 0..2_000_u128,
            blob_cap in 0..2_000_u128,
            base_fee in 0..2_000_u128,
            blob_fee in 0..2_000_u128,
        ) {
            let rank = Rank::of(fees(0, cap, blob_cap), Market { base_fee, blob_fee });
            prop_assert_eq!(rank.shortfall == 0, cap >= base_fee && blob_cap >= blob_fee);
        }
    }
}
