//! Verdicts by content, bounded. Valid and invalid ones are kept separately, so that a flood of
//! garbage evicts no valuable verdict.

use lru::LruCache;
use std::{
    collections::HashSet,
    hash::RandomState,
    mem,
    time::{Duration, Instant},
};
use tandem_primitives::B256;
use tandem_proto::blob_validator::Reason;

/// Largest number of bytes that one valid verdict takes: a table of 33-byte places is at least 7/16
/// full after it has grown.
const VERDICT_BYTES: usize = 76;

/// Verdicts by content key.
pub struct Verdicts {
    /// Keys seen since the generations last changed.
    young: HashSet<B256>,
    /// Keys seen during the generation before. A key that is requested again moves to the young
    /// ones.
    old: HashSet<B256>,
    generation_max: usize,
    /// Refusals in the order in which they expire, which is that of their insertion.
    refused: LruCache<B256, Refused, RandomState>,
    refusals_max: usize,
    refusal_time: Duration,
}

struct Refused {
    reason: Reason,
    until: Instant,
}

impl Verdicts {
    /// Keeps at most `valid_max` valid verdicts, in at most `valid_bytes_max` bytes, and
    /// `refusals_max` others for `refusal_time`.
    pub fn new(
        valid_max: usize,
        valid_bytes_max: usize,
        refusals_max: usize,
        refusal_time: Duration,
    ) -> Self {
        let valid_max = valid_max.min(valid_bytes_max / VERDICT_BYTES);
        Self {
            young: HashSet::new(),
            old: HashSet::new(),
            generation_max: valid_max / 2,
            refused: LruCache::unbounded_with_hasher(RandomState::new()),
            refusals_max,
            refusal_time,
        }
    }

    /// Returns the verdict; `None` if it is unknown or forgotten.
    pub fn get(&mut self, now: Instant, key: &B256) -> Option<Result<(), Reason>> {
        if self.young.contains(key) {
            return Some(Ok(()));
        }
        if self.old.remove(key) {
            self.insert_valid(*key);
            return Some(Ok(()));
        }
        self.expire(now);
        self.refused.peek(key).map(|refused| Err(refused.reason))
    }

    /// Remembers a verdict.
    pub fn insert(&mut self, now: Instant, key: B256, verdict: Result<(), Reason>) {
        match verdict {
            Ok(()) => self.insert_valid(key),
            Err(reason) => self.insert_refused(now, key, reason),
        }
    }

    fn insert_valid(&mut self, key: B256) {
        if self.generation_max == 0 {
            return;
        }
        if self.young.len() >= self.generation_max {
            self.old = mem::take(&mut self.young);
        }
        self.young.insert(key);
    }

    fn insert_refused(&mut self, now: Instant, key: B256, reason: Reason) {
        self.expire(now);
        if self.refusals_max == 0 || self.refused.contains(&key) {
            return;
        }
        if self.refused.len() >= self.refusals_max {
            self.refused.pop_lru();
        }
        self.refused.put(key, Refused { reason, until: now + self.refusal_time });
    }

    fn expire(&mut self, now: Instant) {
        while let Some((_, oldest)) = self.refused.peek_lru()
            && oldest.until <= now
        {
            self.refused.pop_lru();
        }
    }

    /// Returns the number of verdicts held.
    pub fn count(&self) -> usize {
        self.young.len() + self.old.len() + self.refused.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_primitives::U256;

    fn key(number: u64) -> B256 {
        B256::from(U256::from(number))
    }

    fn verdicts() -> Verdicts {
        Verdicts::new(8, 1 << 20, 4, Duration::from_secs(30))
    }

    #[test]
    fn what_is_asked_for_stays_and_the_rest_leaves() {
        let (mut verdicts, now) = (verdicts(), Instant::now());
        verdicts.insert(now, key(0), Ok(()));
        for number in 1..100 {
            verdicts.insert(now, key(number), Ok(()));
            assert_eq!(verdicts.get(now, &key(0)), Some(Ok(())), "after {number}");
            assert!(verdicts.count() <= 8);
        }
        assert_eq!(verdicts.get(now, &key(50)), None);
    }

    #[test]
    fn a_refusal_is_forgotten_after_its_time() {
        let (mut verdicts, now) = (verdicts(), Instant::now());
        verdicts.insert(now, key(1), Err(Reason::ProofInvalid));
        let later = now + Duration::from_secs(29);
        assert_eq!(verdicts.get(later, &key(1)), Some(Err(Reason::ProofInvalid)));
        assert_eq!(verdicts.get(now + Duration::from_secs(30), &key(1)), None);
        assert_eq!(verdicts.count(), 0);
    }

    #[test]
    fn garbage_pushes_out_garbage_alone() {
        let (mut verdicts, now) = (verdicts(), Instant::now());
        verdicts.insert(now, key(0), Ok(()));
        for number in 1..100 {
            verdicts.insert(now, key(number), Err(Reason::ProofInvalid));
        }
        assert_eq!(verdicts.count(), 1 + 4);
        assert_eq!(verdicts.get(now, &key(0)), Some(Ok(())));
        assert_eq!(verdicts.get(now, &key(95)), None);
        assert!(verdicts.get(now, &key(96)).is_some());
    }

    #[test]
    fn nothing_is_kept_where_nothing_may_be() {
        let (mut verdicts, now) = (Verdicts::new(0, 0, 0, Duration::ZERO), Instant::now());
        verdicts.insert(now, key(1), Ok(()));
        verdicts.insert(now, key(2), Err(Reason::ProofInvalid));
        assert_eq!((verdicts.get(now, &key(1)), verdicts.get(now, &key(2))), (None, None));
    }
}
