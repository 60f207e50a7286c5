//! View of a chain that blocks from elsewhere extend: nothing is executed, and the state of each block
//! comes with it. Serves the JSON-RPC of a follower.

use crate::{
    chain::Chain,
    config::Config,
    error::Error,
    metrics,
    queries::Queries,
    reads::ChainReads,
    rpc::{CallPools, Prices},
    state::layers::Layers,
};
use alloy_consensus::Header;
use alloy_rlp::Decodable;
use std::sync::{Arc, OnceLock};
use tandem_primitives::{B256, BlockId, BlockNumber, Bytes, StateDiff};
use tandem_proto::storage::{Forkchoice, PendingBlock, StorageApi};
use tracing::warn;

/// Number of state diffs requested in one call.
const DIFFS_PER_CALL: usize = 64;

/// Attempts to read blocks while the base moves.
const ATTEMPTS: usize = 8;

/// View of a chain that its owner extends. Changes come from one thread, after they are durable.
pub struct Replica {
    reads: ChainReads,
    storage: Arc<dyn StorageApi>,
}

impl Replica {
    /// Reads the chain from a storage-writer, and starts the threads for users. May wait for the
    /// database.
    ///
    /// # Errors
    /// [`Error`].
    pub fn open(config: &Config, storage: Arc<dyn StorageApi>) -> Result<Self, Error> {
        metrics::describe();
        crate::rpc::metrics::describe_metrics();
        let chain = Arc::new(Chain::open(config, storage.clone())?);
        let reads = ChainReads {
            queries: Arc::new(Queries::new(config, &chain)),
            pools: Arc::new(CallPools::start(config)?),
            prices: Arc::<Prices>::default(),
            transactions: Arc::<OnceLock<_>>::default(),
            chain,
        };
        let replica = Self { reads, storage };
        replica.reload()?;
        Ok(replica)
    }

    /// Returns what JSON-RPC reads.
    pub fn reads(&self) -> &ChainReads {
        &self.reads
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
        let header = decode(id, header)?;
        chain.recent.insert(id, parent, diff);
        chain.tree.write().insert(id, Arc::new(header));
        Ok(())
    }

    /// Takes over a forkchoice that is durable.
    ///
    /// # Errors
    /// [`Error`] when the chain had to be read anew, which failed.
    pub fn chosen(&self, forkchoice: Forkchoice) -> Result<(), Error> {
        self.follow_base()?;
        let chain = &self.reads.chain;
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
        let chain = &self.reads.chain;
        let (base, known) = (self.storage.checkpoint()?.base, chain.base());
        if base == known {
            return Ok(());
        }
        if base.number > known.number && chain.recent.advance(base) {
            chain.tree.write().prune(base);
            return Ok(());
        }
        self.reload()
    }

    /// Reads base, recent blocks and forkchoice from storage-writer.
    ///
    /// # Errors
    /// [`Error`].
    pub fn reload(&self) -> Result<(), Error> {
        let chain = &self.reads.chain;
        for _ in 0..ATTEMPTS {
            let base = self.storage.checkpoint()?.base;
            let pending = self.storage.pending()?;
            if self.storage.checkpoint()?.base != base {
                continue;
            }
            chain.recent.rebase(base);
            chain.load_below(base)?;
            for block in pending.iter().filter(|block| !block.kept) {
                let header = decode(block.id, &block.header)?;
                chain.tree.write().insert(block.id, Arc::new(header));
            }
            self.load_layers(&pending)?;
            let forkchoice = self.storage.checkpoint()?.forkchoice;
            chain.tree.write().set_forkchoice(forkchoice);
            return Ok(());
        }
        warn!("the base moved in every attempt to read the chain");
        Ok(())
    }

    /// Loads the changes of pending blocks that are not in memory.
    fn load_layers(&self, pending: &[PendingBlock]) -> Result<(), Error> {
        let recent = &self.reads.chain.recent;
        let lacks = |block: &&PendingBlock| {
            !block.kept && !recent.read(|layers: &Layers| layers.contains(&block.id.hash))
        };
        let lacking: Vec<&PendingBlock> = pending.iter().filter(lacks).collect();
        for blocks in lacking.chunks(DIFFS_PER_CALL) {
            let hashes: Vec<B256> = blocks.iter().map(|block| block.id.hash).collect();
            for (block, diff) in blocks.iter().zip(self.storage.state_diffs(&hashes)?) {
                // A block without a diff has entered the base, which is followed next.
                if let Some(diff) = diff {
                    recent.insert(block.id, block.parent, diff);
                }
            }
        }
        Ok(())
    }

    /// Cuts the calls of users. May block.
    pub fn stop(&self) {
        self.reads.pools.stop();
    }
}

fn decode(id: BlockId, header: &Bytes) -> Result<Header, Error> {
    Header::decode(&mut header.as_ref()).map_err(|error| {
        let error = error.to_string();
        Error::Record { what: "header", block: id.hash, error }
    })
}
