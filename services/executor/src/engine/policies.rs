//! Policies of a block.

use super::Engine;
use crate::{
    block::receipts::{ReceiptsRooter, ReceiptsThread},
    metrics as names,
};
use alloy_consensus::Header;
use metrics::{Label, gauge};
use tandem_chain::Fork;
use tandem_policy::{Policies, ReceiptsRoot};
use tracing::{info, warn};

impl Engine {
    /// Returns the policies for the new block. If they differ from the previous block's, updates
    /// the metrics and the log.
    pub(super) fn load_policies(&mut self) -> Policies {
        let policies = self.policies.load();
        if self.shown != Some(policies) {
            if let Some(last) = self.shown.replace(policies) {
                show(&last, 0.0);
                info!(?policies, "policies changed");
            }
            show(&policies, 1.0);
        }
        if policies.receipts_root == ReceiptsRoot::Background && self.receipts_thread.is_none() {
            match ReceiptsThread::start(self.fatal.clone()) {
                Ok(thread) => self.receipts_thread = Some(thread),
                Err(error) => warn!(%error, "no thread for the receipts root"),
            }
        }
        policies
    }

    /// Returns the rooter for the receipts of a block. Before Byzantium receipts hold state roots,
    /// which are only known at the end.
    pub(super) fn receipts_rooter(&self, header: &Header, policy: ReceiptsRoot) -> ReceiptsRooter {
        match (policy, &self.receipts_thread) {
            _ if self.chain.spec.fork_of(header) < Fork::Byzantium => ReceiptsRooter::AtEnd,
            (ReceiptsRoot::Incremental, _) => ReceiptsRooter::Incremental(Box::default()),
            (ReceiptsRoot::Background, Some(thread)) => ReceiptsRooter::Background(thread.job()),
            (ReceiptsRoot::Background, None) | (ReceiptsRoot::AtEnd, _) => ReceiptsRooter::AtEnd,
        }
    }
}

/// Sets the series of these policies, 1 while they are in force.
fn show(policies: &Policies, value: f64) {
    let labels = policies.entries().map(|(key, policy)| Label::new(key, policy.to_string()));
    gauge!(names::POLICIES, Vec::from(labels)).set(value);
}
