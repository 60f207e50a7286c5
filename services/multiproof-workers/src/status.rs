//! Last status that each worker published, so that status calls never wait for a worker.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};
use tandem_primitives::{B256, ShardSet};

/// Entry of one worker.
#[derive(Default)]
pub struct WorkerStatus {
    trie_bytes: AtomicU64,
    held: Mutex<HeldTries>,
}

/// Block whose state a worker's tries hold, and the shards of these tries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HeldTries {
    /// `None` when the worker holds no tries.
    pub tip: Option<B256>,
    pub shards: ShardSet,
}

impl WorkerStatus {
    /// Publishes the bytes that the worker's tries take, and the state that they hold.
    pub fn set(&self, trie_bytes: usize, held: HeldTries) {
        self.trie_bytes.store(trie_bytes as u64, Relaxed);
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = held;
    }

    pub fn trie_bytes(&self) -> u64 {
        self.trie_bytes.load(Relaxed)
    }

    pub fn held(&self) -> HeldTries {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the block that all workers with tries hold, and the union of their shards. Returns
/// nothing when they hold different blocks.
pub fn held_by_all<'a>(statuses: impl IntoIterator<Item = &'a WorkerStatus>) -> HeldTries {
    let mut all = HeldTries::default();
    for held in statuses.into_iter().map(WorkerStatus::held).filter(|held| held.tip.is_some()) {
        if all.tip.is_some() && all.tip != held.tip {
            return HeldTries::default();
        }
        all = HeldTries { tip: held.tip, shards: all.shards.union(held.shards) };
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_workers_hold_together_is_of_one_block() {
        let statuses: [WorkerStatus; 3] = Default::default();
        let (one, other) = (B256::repeat_byte(1), B256::repeat_byte(2));
        let held = |tip, bits| HeldTries { tip: Some(tip), shards: ShardSet::from_bits(bits) };
        assert_eq!(held_by_all(&statuses), HeldTries::default());
        statuses[0].set(7, held(one, 1));
        statuses[1].set(7, held(one, 2));
        assert_eq!(held_by_all(&statuses), held(one, 3));
        statuses[2].set(7, held(other, 4));
        assert_eq!(held_by_all(&statuses), HeldTries::default());
        statuses[2].set(0, HeldTries::default());
        assert_eq!(held_by_all(&statuses), held(one, 3));
    }
}
