//! Shared budget of bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Size up to which a reservation is always granted, so that another caller's large one blocks no
/// small call. The number of requests is bounded separately.
const SMALL_BYTES: u64 = 32 << 10;

/// Bound on the bytes that are held at once.
#[derive(Debug)]
pub(crate) struct Budget {
    bytes_max: u64,
    taken: AtomicU64,
}

impl Budget {
    pub(crate) fn new(bytes_max: u64) -> Arc<Self> {
        Arc::new(Self { bytes_max, taken: AtomicU64::new(0) })
    }

    /// Returns an empty reservation.
    pub(crate) fn reserve(self: &Arc<Self>) -> Reservation {
        Reservation { budget: self.clone(), bytes: 0 }
    }
}

/// Bytes of a budget, released on drop.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Reservation {
    /// Grows the reservation to at least `bytes`. Returns false if the budget has no room.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> bool {
        let bytes = bytes as u64;
        let more = bytes.saturating_sub(self.bytes);
        let taken = self.budget.taken.fetch_add(more, Relaxed) + more;
        if taken > self.budget.bytes_max && bytes > SMALL_BYTES {
            self.budget.taken.fetch_sub(more, Relaxed);
            return false;
        }
        self.bytes += more;
        true
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.taken.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_budget_grants_small_reservations_only_until_room_is_given_back() {
        let budget = Budget::new(1 << 20);
        let (mut first, mut second) = (budget.reserve(), budget.reserve());
        assert!(first.grow_to(600 << 10) && first.grow_to(100));
        assert!(!second.grow_to(600 << 10));
        assert!(second.grow_to(400 << 10) && !second.grow_to(500 << 10));
        let mut small = budget.reserve();
        assert!(small.grow_to(SMALL_BYTES as usize) && !small.grow_to(SMALL_BYTES as usize + 1));
        drop(first);
        assert!(second.grow_to(600 << 10));
        drop((second, small));
        assert_eq!(budget.taken.load(Relaxed), 0);
    }
}
