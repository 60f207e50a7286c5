//! Gas prices of the newest blocks, computed once.
//!
//! A suggestion depends only on the head. The first caller after a new head triggers its
//! computation, and callers meanwhile wait for the result. It is made from the tips of blocks,
//! which never change, so a new head requires only one new block.

use alloy_primitives::B256;
use parking_lot::Mutex;
use quick_cache::{Weighter, sync::Cache};
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use tokio::sync::OnceCell;

/// Number of blocks whose lowest tips are kept. Exceeds the blocks of a suggestion, because heads
/// may differ.
const SAMPLED_BLOCKS_MAX: usize = 128;
/// Maximum bytes of blocks whose tips are kept for fee histories: 1024 blocks of 1200 transactions.
const TIPS_BYTES_MAX: u64 = 40 << 20;
/// Bytes of such a block besides its tips.
const BLOCK_BYTES: u64 = 128;

/// Suggested price on one head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Suggestion {
    /// Suggested tip, in wei.
    pub(super) tip: u128,
    /// Base fee of the head, in wei; 0 before London.
    pub(super) base_fee: u64,
}

/// Data of a block for a suggestion.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Sampled {
    /// Hash of the parent block.
    pub(super) parent: B256,
    /// Lowest tips that count, in wei.
    pub(super) tips: Vec<u128>,
}

/// Tips of all transactions of a block with their gas, ascending by tip.
pub(super) type Tips = Arc<[(u128, u64)]>;

#[derive(Clone)]
struct Weight;

impl Weighter<B256, Tips> for Weight {
    fn weight(&self, _: &B256, tips: &Tips) -> u64 {
        BLOCK_BYTES + size_of_val::<[(u128, u64)]>(tips) as u64
    }
}

type OfHead = (B256, Arc<OnceCell<Suggestion>>);

/// Gas prices of the newest blocks.
pub(crate) struct Prices {
    head: Mutex<OfHead>,
    sampled: Cache<B256, Arc<Sampled>>,
    tips: Cache<B256, Tips, Weight>,
}

impl Default for Prices {
    fn default() -> Self {
        let blocks = (TIPS_BYTES_MAX / BLOCK_BYTES) as usize;
        Self {
            head: Mutex::default(),
            sampled: Cache::new(SAMPLED_BLOCKS_MAX),
            tips: Cache::with_weighter(blocks.min(1024), TIPS_BYTES_MAX, Weight),
        }
    }
}

impl fmt::Debug for Prices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prices").finish_non_exhaustive()
    }
}

impl Prices {
    /// Returns the suggestion on a head. One of several simultaneous callers computes it. If that
    /// caller fails or goes away, the next one does.
    ///
    /// # Errors
    /// Errors of `compute`.
    pub(super) async fn suggestion<E, F>(
        &self,
        head: B256,
        compute: impl FnOnce() -> F,
    ) -> Result<Suggestion, E>
    where
        F: Future<Output = Result<Suggestion, E>>,
    {
        let cell = {
            let mut newest = self.head.lock();
            if newest.0 != head {
                *newest = (head, Arc::default());
            }
            newest.1.clone()
        };
        cell.get_or_try_init(compute).await.copied()
    }

    /// Returns the lowest tips of a block, reading them if they are unknown.
    ///
    /// # Errors
    /// Errors of `read`.
    pub(super) fn sampled<E>(
        &self,
        block: B256,
        read: impl FnOnce() -> Result<Sampled, E>,
    ) -> Result<Arc<Sampled>, E> {
        self.sampled.get_or_insert_with(&block, || read().map(Arc::new))
    }

    /// Returns the tips of a block, reading them if they are unknown.
    ///
    /// # Errors
    /// Errors of `read`.
    pub(super) fn tips<E>(
        &self,
        block: B256,
        read: impl FnOnce() -> Result<Tips, E>,
    ) -> Result<Tips, E> {
        self.tips.get_or_insert_with(&block, read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    use tokio::sync::Notify;

    const HEAD: B256 = B256::repeat_byte(1);

    #[tokio::test]
    async fn callers_at_the_same_time_share_one_computation_for_each_head() {
        let (prices, computed) = (Prices::default(), AtomicU32::new(0));
        let gate = Notify::new();
        let ask = async |head| {
            let compute = async || {
                gate.notified().await;
                let tip = u128::from(computed.fetch_add(1, Relaxed));
                Ok::<_, ()>(Suggestion { tip, base_fee: 7 })
            };
            prices.suggestion(head, compute).await.unwrap().tip
        };
        let open = async {
            tokio::task::yield_now().await;
            gate.notify_one();
        };
        let (one, two, three, ()) = tokio::join!(ask(HEAD), ask(HEAD), ask(HEAD), open);
        assert_eq!((one, two, three), (0, 0, 0));
        assert_eq!(ask(HEAD).await, 0);
        gate.notify_one();
        assert_eq!(ask(B256::repeat_byte(2)).await, 1, "another head has another price");
    }

    #[tokio::test]
    async fn what_fails_is_computed_by_the_next_caller() {
        let prices = Prices::default();
        let failed = prices.suggestion(HEAD, async || Err("cut")).await;
        assert_eq!(failed, Err("cut"));
        let suggestion = Suggestion { tip: 1, base_fee: 2 };
        let found = prices.suggestion(HEAD, async || Ok::<_, ()>(suggestion)).await;
        assert_eq!(found, Ok(suggestion));
    }

    #[test]
    fn tips_are_read_once_for_each_block_and_bounded_together() {
        let prices = Prices::default();
        let full: Tips = vec![(1, 1); 2_000].into();
        for number in 0..1000_u16 {
            let block = B256::left_padding_from(&number.to_be_bytes());
            let tips = prices.tips(block, || Ok::<_, ()>(full.clone())).unwrap();
            assert_eq!(tips.len(), full.len());
            // The tips stay cached at least for a moment.
            prices.tips(block, || Err("read again")).unwrap();
        }
        let weight = prices.tips.weight();
        assert!(weight > TIPS_BYTES_MAX / 2 && weight <= TIPS_BYTES_MAX, "{weight}");
    }
}
