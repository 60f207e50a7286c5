//! What each worker last said of itself, for status calls: asking never waits for a worker.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};
use tandem_primitives::B256;

/// One worker's entry.
#[derive(Default)]
pub struct Board {
    trie_bytes: AtomicU64,
    tip: Mutex<Option<B256>>,
}

impl Board {
    /// The worker's tries occupy so many bytes and hold the state of this block, if of any.
    pub fn set(&self, trie_bytes: usize, tip: Option<B256>) {
        self.trie_bytes.store(trie_bytes as u64, Relaxed);
        *self.tip.lock().unwrap_or_else(PoisonError::into_inner) = tip;
    }

    pub fn trie_bytes(&self) -> u64 {
        self.trie_bytes.load(Relaxed)
    }

    pub fn tip(&self) -> Option<B256> {
        *self.tip.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The block that all of them hold, `None` when they hold different ones, or none.
pub fn common_tip<'a>(boards: impl IntoIterator<Item = &'a Board>) -> Option<B256> {
    let mut tips = boards.into_iter().map(Board::tip);
    let first = tips.next()??;
    tips.all(|tip| tip == Some(first)).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tip_is_common_when_all_hold_it() {
        let boards: [Board; 3] = Default::default();
        let (one, other) = (B256::repeat_byte(1), B256::repeat_byte(2));
        assert_eq!(common_tip(&boards), None);
        boards.iter().for_each(|board| board.set(7, Some(one)));
        assert_eq!(common_tip(&boards), Some(one));
        boards[2].set(7, Some(other));
        assert_eq!(common_tip(&boards), None);
        boards[2].set(0, None);
        assert_eq!(common_tip(&boards), None);
    }
}
