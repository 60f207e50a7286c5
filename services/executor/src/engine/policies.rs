//! The policies of a block.

use super::Engine;
use crate::metrics as names;
use metrics::{Label, gauge};
use tandem_policy::Policies;
use tracing::info;

impl Engine {
    /// The policies for the block that begins. When they are others than those of the last one,
    /// the metrics and the log say so.
    pub(super) fn load_policies(&mut self) -> Policies {
        let policies = self.policies.load();
        if self.shown != Some(policies) {
            if let Some(last) = self.shown.replace(policies) {
                show(&last, 0.0);
                info!(?policies, "policies changed");
            }
            show(&policies, 1.0);
        }
        policies
    }
}

/// The set of policies is a series of its own, 1 while it holds.
fn show(policies: &Policies, value: f64) {
    let labels = policies.entries().map(|(key, policy)| Label::new(key, policy.to_string()));
    gauge!(names::POLICIES, Vec::from(labels)).set(value);
}
