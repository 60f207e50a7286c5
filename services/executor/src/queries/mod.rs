//! Answers about a state for callers of JSON-RPC: calls and proofs, within a budget.

pub mod call;
pub mod proof;

use crate::{chain::Chain, config::Config};
use call::Calls;
use proof::Proofs;
use std::sync::Arc;

/// Queries of users, with their limits.
pub struct Queries {
    /// Messages that are executed.
    pub calls: Calls,
    /// Merkle proofs.
    pub proofs: Proofs,
    /// Blocks that a query for logs spans at most.
    pub log_blocks_max: u64,
    /// Logs that an answer holds at most.
    pub log_results_max: usize,
}

impl Queries {
    /// Queries of a chain.
    pub fn new(config: &Config, chain: &Arc<Chain>) -> Self {
        Self {
            calls: Calls::new(chain.clone(), config.call_gas_max),
            proofs: Proofs::new(chain.clone()),
            log_blocks_max: config.log_blocks_max,
            log_results_max: config.log_results_max,
        }
    }
}
