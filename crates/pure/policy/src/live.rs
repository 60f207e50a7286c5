use crate::Policies;
use arc_swap::ArcSwap;
use std::sync::Arc;

/// The policies of a running node: whoever works on a block loads them once, when it begins, so a
/// change holds from the next block on. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct LivePolicies(Arc<ArcSwap<Policies>>);

impl LivePolicies {
    /// Begins with these.
    pub fn new(policies: Policies) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(policies)))
    }

    /// Those that hold now. Takes no lock and allocates nothing.
    pub fn load(&self) -> Policies {
        **self.0.load()
    }

    /// Sets all of them for the blocks that begin from now on.
    pub fn store(&self, policies: Policies) {
        self.0.store(Arc::new(policies));
    }

    /// Changes some of them, for the blocks that begin from now on, and returns all. Of changes at
    /// the same time none is lost; `change` may run more than once.
    ///
    /// # Errors
    /// Those of the change, which is dropped as a whole then.
    pub fn update<E>(
        &self,
        change: impl Fn(&mut Policies) -> Result<(), E>,
    ) -> Result<Policies, E> {
        loop {
            let before = self.0.load();
            let mut after = **before;
            change(&mut after)?;
            let seen = self.0.compare_and_swap(&*before, Arc::new(after));
            if Arc::ptr_eq(&seen, &before) {
                return Ok(after);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Batching, Error};
    use std::{num::NonZeroU32, thread};

    #[test]
    fn clones_share_what_is_stored() {
        let live = LivePolicies::default();
        let clone = live.clone();
        let block = clone.load();
        live.store(Policies { batching: Batching::None, ..block });
        assert_eq!(block.batching, Batching::Drain, "a block keeps what it loaded");
        assert_eq!(clone.load().batching, Batching::None);
    }

    #[test]
    fn a_change_that_fails_is_dropped_as_a_whole() {
        let live = LivePolicies::default();
        let failed = live.update(|policies| {
            policies.set("batching", "none")?;
            policies.set("chunking", "sometimes")
        });
        assert!(matches!(failed, Err(Error::Value { key: "chunking", .. })));
        assert_eq!(live.load(), Policies::default());
    }

    #[test]
    fn changes_at_the_same_time_are_all_kept() {
        let live = LivePolicies::default();
        let before = live.load().chunk_targets.get();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let more = live.update(|policies| {
                            let more = policies.chunk_targets.get() + 1;
                            policies.chunk_targets = NonZeroU32::new(more).ok_or(())?;
                            Ok::<_, ()>(())
                        });
                        more.unwrap();
                    }
                });
            }
        });
        assert_eq!(live.load().chunk_targets.get(), before + 2000);
    }
}
