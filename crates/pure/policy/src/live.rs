use crate::Policies;
use arc_swap::ArcSwap;
use std::sync::Arc;

/// Policies of a running node. Work on a block loads them once, at its start, so a change applies
/// from the next block on. Clones share the policies.
#[derive(Clone, Debug, Default)]
pub struct LivePolicies(Arc<ArcSwap<Policies>>);

impl LivePolicies {
    /// Creates live policies with these values.
    pub fn new(policies: Policies) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(policies)))
    }

    /// Returns the current policies. Takes no lock and allocates nothing.
    pub fn load(&self) -> Policies {
        **self.0.load()
    }

    /// Sets all policies for blocks that begin from now on.
    pub fn store(&self, policies: Policies) {
        self.0.store(Arc::new(policies));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Batching;

    #[test]
    fn clones_share_what_is_stored() {
        let live = LivePolicies::default();
        let clone = live.clone();
        let block = clone.load();
        live.store(Policies { batching: Batching::None, ..block });
        assert_eq!(block.batching, Batching::Drain, "a block keeps what it loaded");
        assert_eq!(clone.load().batching, Batching::None);
    }
}
