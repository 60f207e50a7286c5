//! View of the chain that JSON-RPC reads, without the engine that changes it.

use crate::{
    chain::Chain,
    queries::Queries,
    rpc::{CallPools, Prices},
};
use std::sync::{Arc, OnceLock};
use tandem_chain::ChainSpec;
use tandem_proto::tx_pool::TxPoolApi;

/// View of a chain with the threads that serve its users. Cheap to clone.
#[derive(Clone)]
pub struct ChainReads {
    /// The chain, for reading.
    pub(crate) chain: Arc<Chain>,
    /// Calls and proofs.
    pub(crate) queries: Arc<Queries>,
    /// Threads that serve users.
    pub(crate) pools: Arc<CallPools>,
    /// Gas prices of the newest blocks.
    pub(crate) prices: Arc<Prices>,
    /// Pool of transactions, empty without one.
    pub(crate) transactions: Arc<OnceLock<Arc<dyn TxPoolApi>>>,
}

impl ChainReads {
    /// Returns the chain.
    pub fn chain(&self) -> &Arc<Chain> {
        &self.chain
    }

    /// Returns the rules of the chain.
    pub fn spec(&self) -> &ChainSpec {
        self.chain.spec()
    }
}
