//! Order of eviction from a full pool, by payment.

/// Factor by which the base fee of gas can change from one block to the next (EIP-1559).
const STEP: f64 = 1.125;

/// Prices at the head, in wei.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Market {
    /// Base fee of gas.
    pub base_fee: u128,
    /// Price of blob gas.
    pub blob_fee: u128,
}

/// Rank of a transaction, higher is better. First counts whether a block could hold it soon, then
/// the tip.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Rank {
    /// Number of blocks, negated, for which prices must fall until the transaction can pay them. 0
    /// if it can pay them now, however high its caps.
    shortfall: i32,
    /// Payment for gas besides the base fee, in wei.
    pub tip: u128,
}

impl Rank {
    /// Returns the rank of a transaction that pays these fees at most: tip, gas and blob gas.
    pub fn of([tip, cap, blob_cap]: [u128; 3], market: Market) -> Self {
        let steps = steps(cap, market.base_fee).min(steps(blob_cap, market.blob_fee));
        Self { shortfall: steps, tip: tip.min(cap.saturating_sub(market.base_fee)) }
    }
}

/// Returns the steps from a price down to the payment, 0 or less.
fn steps(paid: u128, price: u128) -> i32 {
    if paid >= price {
        return 0;
    }
    // A zero price never exceeds the payment.
    let ratio = (paid.max(1) as f64 / price as f64).ln() / STEP.ln();
    ratio.floor() as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_block_can_hold_ranks_by_its_tip_and_above_what_none_can() {
        let market = Market { base_fee: 1_000, blob_fee: 100 };
        let rank = |tip, cap, blob_cap| Rank::of([tip, cap, blob_cap], market);
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
        assert_eq!(Rank::of([0; 3], free), Rank { shortfall: 0, tip: 0 });
    }
}
