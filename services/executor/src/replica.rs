//! View of a chain that blocks from elsewhere extend: nothing is executed, and the state of each block
//! comes with it. Serves the JSON-RPC of a follower.

use crate::{
    chain::{Chain, decode_header},
    config::Config,
    error::Error,
    metrics,
    queries::Queries,
    reads::ChainReads,
    rpc::{CallPools, Prices},
};
use std::sync::{Arc, OnceLock};
use tandem_primitives::{B256, BlockId, BlockNumber, Bytes, StateDiff};
use tandem_proto::{
    storage::{Forkchoice, HistoryReads, StorageApi},
    tx_pool::TxPoolApi,
};

/// View of a chain that its owner extends. Changes come from one thread, after they are durable.
pub struct Replica {
    reads: ChainReads,
}

impl Replica {
    /// Reads the chain from a storage-writer, and starts the threads for users. States of blocks below
    /// its base come from `history`. May wait for the database.
    ///
    /// # Errors
    /// [`Error`].
    pub fn open(
        config: &Config,
        storage: Arc<dyn StorageApi>,
        history: Option<Arc<dyn HistoryReads>>,
    ) -> Result<Self, Error> {
        crate::rpc::metrics::describe_metrics();
        let chain = Arc::new(Chain::attach(config, storage, history)?);
        let reads = ChainReads {
            queries: Arc::new(Queries::new(config, &chain)),
            pools: Arc::new(CallPools::start(config)?),
            prices: Arc::<Prices>::default(),
            transactions: Arc::<OnceLock<_>>::default(),
            chain,
        };
        Ok(Self { reads })
    }

    /// Returns what JSON-RPC reads.
    pub fn reads(&self) -> &ChainReads {
        &self.reads
    }

    /// Has JSON-RPC send transactions to this pool and look for them there. Only the first call has an effect.
    pub fn use_pool(&self, pool: Arc<dyn TxPoolApi>) {
        let _ = self.reads.transactions.set(pool);
    }

    /// Adds a block that is stored, with its changes of the state.
    ///
    /// # Errors
    /// [`Error::Record`] when the header cannot be decoded.
    pub fn stored(
        &self,
        id: BlockId,
        parent: B256,
        header: &Bytes,
        diff: Arc<StateDiff>,
    ) -> Result<(), Error> {
        let chain = &self.reads.chain;
        let header = decode_header(id, header)?;
        chain.recent.insert(id, parent, diff);
        chain.tree.write().insert(id, Arc::new(header));
        Ok(())
    }

    /// Takes over a forkchoice that is durable.
    ///
    /// # Errors
    /// [`Error`] when the chain had to be read anew, which failed.
    pub fn chosen(&self, forkchoice: Forkchoice) -> Result<(), Error> {
        let chain = &self.reads.chain;
        chain.follow_base()?;
        chain.tree.write().set_forkchoice(forkchoice);
        ::metrics::gauge!(metrics::HEAD).set(forkchoice.head.number as f64);
        Ok(())
    }

    /// Shows `eth_syncing` how far the chain is going to be, `None` at its end.
    pub fn set_target(&self, target: Option<BlockNumber>) {
        self.reads.chain.set_sync_target(target);
    }

    /// Follows the base of storage-writer. Blocks that are below it leave memory.
    ///
    /// # Errors
    /// Same as [`Self::chosen`].
    pub fn follow_base(&self) -> Result<(), Error> {
        self.reads.chain.follow_base()
    }

    /// Reads base, recent blocks and forkchoice from storage-writer.
    ///
    /// # Errors
    /// [`Error`].
    pub fn reload(&self) -> Result<(), Error> {
        self.reads.chain.reload()
    }

    /// Cuts the calls of users. May block.
    pub fn stop(&self) {
        self.reads.pools.stop();
    }
}
