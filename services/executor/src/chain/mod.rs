//! The chain as it can be read: blocks, receipts and state, from memory where they are recent, from
//! storage-writer where not. Shared by the engine, which alone writes, and the RPC.
//!
//! Everything here may wait for the database: never call it on the async reactor.

mod block_hashes;
pub mod tree;

use crate::{
    chain::{
        block_hashes::BlockHashes,
        tree::{BELOW_BASE, Tree},
    },
    config::Config,
    error::Error,
    state::{StateReader, cache::BaseCache, layers::Layers, recent::Recent, view::StateView},
};
use alloy_consensus::Header;
use alloy_rlp::Decodable;
use parking_lot::RwLock;
use std::{collections::VecDeque, sync::Arc};
use tandem_chain::{Block, ChainSpec, Receipt, decode_receipts};
use tandem_discv4::{ForkId, fork_id};
use tandem_primitives::{
    Account, Address, B256, BlockId, BlockNumber, Bytes, EMPTY_CODE_HASH, U256, keccak256,
};
use tandem_proto::storage::{BlockRef, Forkchoice, StorageApi, TransactionPlace};

/// Refused blocks that stay hidden should storage-writer fail to drop them.
const WITHHELD_MAX: usize = 64;

/// Which block a call means (execution-apis, `BlockNumberOrTagOrHash`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockTag {
    /// The canonical block at this height.
    Number(BlockNumber),
    /// The block with this hash.
    Hash(B256),
    /// The head.
    Latest,
    /// The newest block that the consensus layer calls safe.
    Safe,
    /// The newest finalized block.
    Finalized,
    /// Genesis.
    Earliest,
    /// No pending block is built: the head.
    Pending,
}

/// The chain, for reading.
pub struct Chain {
    pub(crate) spec: ChainSpec,
    pub(crate) tree: RwLock<Tree>,
    pub(crate) recent: Arc<Recent>,
    block_hashes: BlockHashes,
    pub(crate) storage: Arc<dyn StorageApi>,
    genesis: BlockId,
    /// See [`Config`].
    pub(crate) state_blocks: u64,
    /// The highest block that is waited for, while the newest payload or head was one whose
    /// ancestors are not all executed.
    sync_target: RwLock<Option<BlockNumber>>,
    /// Blocks that were handed to storage-writer before they were found valid: not to be shown.
    withheld: RwLock<VecDeque<B256>>,
}

impl Chain {
    pub(crate) fn open(config: &Config, storage: Arc<dyn StorageApi>) -> Result<Self, Error> {
        let checkpoint = storage.checkpoint()?;
        let spec = ChainSpec::from_genesis_json(&checkpoint.genesis_json).map_err(|error| {
            let (what, block) = ("genesis", checkpoint.genesis.hash);
            Error::Record { what, block, error: error.to_string() }
        })?;
        if let Some(fork) = spec.unsupported_fork() {
            tracing::warn!(?fork, "the chain has a fork that is not supported");
        }
        let cache = BaseCache::new(config.cache_accounts, config.cache_slots, config.cache_codes);
        let chain = Self {
            spec,
            tree: RwLock::default(),
            recent: Arc::new(Recent::new(cache)),
            block_hashes: BlockHashes::default(),
            storage,
            genesis: checkpoint.genesis,
            state_blocks: config.unfinalized_blocks_max.max(config.persist_depth) + 1,
            sync_target: RwLock::default(),
            withheld: RwLock::default(),
        };
        let (base, header) = chain
            .stored_header(BlockRef::Hash(checkpoint.base.hash))?
            .ok_or_else(|| Error::Record {
                what: "header",
                block: checkpoint.base.hash,
                error: "the base's header is missing".into(),
            })?;
        chain.tree.write().insert(base, Arc::new(header));
        chain.recent.rebase(base);
        Ok(chain)
    }

    /// The rules of this chain.
    pub fn spec(&self) -> &ChainSpec {
        &self.spec
    }

    /// The canonical head.
    pub fn head(&self) -> BlockId {
        self.tree.read().forkchoice().head
    }

    /// The highest block that is waited for, `None` when the head is followed.
    pub fn sync_target(&self) -> Option<BlockNumber> {
        *self.sync_target.read()
    }

    /// Notes that a block was chosen or sent whose ancestors are not all executed, or that the head
    /// is followed.
    pub(crate) fn set_sync_target(&self, target: Option<BlockNumber>) {
        let mut held = self.sync_target.write();
        *held = target.map(|target| held.map_or(target, |before| before.max(target)));
    }

    /// The first block.
    pub fn genesis(&self) -> BlockId {
        self.genesis
    }

    /// Which chain this is and which forks its head has passed, as other nodes are told (EIP-2124).
    ///
    /// # Errors
    /// [`Error::Storage`], [`Error::UnknownBlock`] when there is no head.
    pub fn fork_id(&self) -> Result<ForkId, Error> {
        let (head, header) = self.header_by_hash(self.head().hash)?.ok_or(Error::UnknownBlock)?;
        let points = self.spec.fork_points();
        let genesis = (self.genesis.hash, self.spec.genesis_header(B256::ZERO).timestamp);
        Ok(fork_id(genesis, &points.blocks, &points.times, (head.number, header.timestamp)))
    }

    /// The oldest canonical block whose state can be read.
    pub fn base(&self) -> BlockId {
        self.recent.read(Layers::base)
    }

    /// Number and hash of the block that is meant, `None` when there is none.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub fn resolve(&self, tag: BlockTag) -> Result<Option<BlockId>, Error> {
        let Forkchoice { head, safe, finalized } = self.tree.read().forkchoice();
        match tag {
            BlockTag::Latest | BlockTag::Pending => Ok(Some(head)),
            BlockTag::Safe => Ok(safe),
            BlockTag::Finalized => Ok(finalized),
            BlockTag::Earliest => Ok(Some(self.genesis)),
            BlockTag::Hash(hash) => Ok(self.header_by_hash(hash)?.map(|(id, _)| id)),
            BlockTag::Number(number) => self.canonical(number),
        }
    }

    /// A block's header, `None` when there is no such block.
    ///
    /// # Errors
    /// [`Error::Storage`], [`Error::Record`].
    pub fn header(&self, tag: BlockTag) -> Result<Option<(BlockId, Header)>, Error> {
        let Some(id) = self.resolve(tag)? else { return Ok(None) };
        Ok(self.header_by_hash(id.hash)?.map(|(id, header)| (id, Header::clone(&header))))
    }

    /// A block with its body, `None` when there is no such block.
    ///
    /// # Errors
    /// [`Error::Storage`], [`Error::Record`].
    pub fn block(&self, tag: BlockTag) -> Result<Option<Block>, Error> {
        let Some(id) = self.resolve(tag)? else { return Ok(None) };
        let Some(record) = self.storage.block(BlockRef::Hash(id.hash))? else { return Ok(None) };
        let block = Block::decode(record.header, record.body)
            .map_err(|error| record_error("block", id.hash, error))?;
        Ok(Some(block))
    }

    /// A block with its body and its receipts, one for each transaction, `None` when there is no
    /// such block.
    ///
    /// # Errors
    /// [`Error::Storage`], [`Error::Record`].
    pub fn block_and_receipts(
        &self,
        tag: BlockTag,
    ) -> Result<Option<(Block, Vec<Receipt>)>, Error> {
        let Some(id) = self.resolve(tag)? else { return Ok(None) };
        let Some(record) = self.storage.block(BlockRef::Hash(id.hash))? else { return Ok(None) };
        let block = Block::decode(record.header, record.body)
            .map_err(|error| record_error("block", id.hash, error))?;
        let receipts = decode_receipts(&record.receipts)
            .map_err(|error| record_error("receipts", id.hash, error))?;
        let (got, want) = (receipts.len(), block.transactions.len());
        if got != want {
            let error = format!("{got} receipts for {want} transactions");
            return Err(record_error("receipts", id.hash, error));
        }
        Ok(Some((block, receipts)))
    }

    /// A block's receipts, `None` when there is no such block.
    ///
    /// # Errors
    /// [`Error::Storage`], [`Error::Record`].
    pub fn receipts(&self, hash: B256) -> Result<Option<Vec<Receipt>>, Error> {
        let Some(record) = self.storage.block(BlockRef::Hash(hash))? else { return Ok(None) };
        if self.is_withheld(&hash) {
            return Ok(None);
        }
        let receipts = decode_receipts(&record.receipts)
            .map_err(|error| record_error("receipts", hash, error))?;
        Ok(Some(receipts))
    }

    /// Where a canonical transaction stands, `None` when there is no such transaction.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub fn transaction(&self, hash: B256) -> Result<Option<TransactionPlace>, Error> {
        Ok(self.storage.transaction(hash)?)
    }

    /// An account, `None` when it does not exist in that block's state.
    ///
    /// # Errors
    /// [`Error::StateUnavailable`], [`Error::UnknownBlock`], [`Error::Storage`].
    pub fn account(&self, tag: BlockTag, address: Address) -> Result<Option<Account>, Error> {
        self.view(tag)?.1.account(&keccak256(address))
    }

    /// The code of an account, empty without any.
    ///
    /// # Errors
    /// As [`Chain::account`].
    pub fn code(&self, tag: BlockTag, address: Address) -> Result<Bytes, Error> {
        let view = self.view(tag)?.1;
        match view.account(&keccak256(address))? {
            Some(account) if account.code_hash != EMPTY_CODE_HASH => {
                Ok(view.code(&account.code_hash)?.original_bytes())
            }
            _ => Ok(Bytes::new()),
        }
    }

    /// A storage slot, zero when it is not set.
    ///
    /// # Errors
    /// As [`Chain::account`].
    pub fn storage(&self, tag: BlockTag, address: Address, slot: U256) -> Result<U256, Error> {
        let view = self.view(tag)?.1;
        view.slot(&keccak256(address), &keccak256(slot.to_be_bytes::<32>()))
    }

    /// The state after a block: of the blocks from the base to the head of each branch.
    pub(crate) fn view(&self, tag: BlockTag) -> Result<(BlockId, StateView), Error> {
        let id = self.resolve(tag)?.ok_or(Error::UnknownBlock)?;
        let (known, base) = self.recent.read(|layers| (layers.contains(&id.hash), layers.base()));
        if !known && id != base {
            return Err(Error::StateUnavailable(id));
        }
        Ok((id, StateView::passing(id.hash, self.recent.clone(), self.storage.clone())))
    }

    /// A header by hash, from the tree or the database.
    pub(crate) fn header_by_hash(
        &self,
        hash: B256,
    ) -> Result<Option<(BlockId, Arc<Header>)>, Error> {
        if let Some(recent) = self.tree.read().header(&hash) {
            return Ok(Some(recent));
        }
        let stored = self.stored_header(BlockRef::Hash(hash))?;
        if self.is_withheld(&hash) {
            return Ok(None);
        }
        Ok(stored.map(|(id, header)| (id, Arc::new(header))))
    }

    /// The canonical block at a height.
    pub(crate) fn canonical(&self, number: BlockNumber) -> Result<Option<BlockId>, Error> {
        {
            let tree = self.tree.read();
            if number > tree.forkchoice().head.number {
                return Ok(None);
            }
            if let Some(hash) = tree.canonical(number) {
                return Ok(Some(BlockId::new(number, hash)));
            }
        }
        Ok(self.stored_header(BlockRef::Number(number))?.map(|(id, _)| id))
    }

    /// Whether a block is on the canonical chain.
    pub(crate) fn is_canonical(&self, id: BlockId) -> Result<bool, Error> {
        Ok(self.canonical(id.number)? == Some(id))
    }

    /// Whether a block is a canonical ancestor of the finalized one.
    pub(crate) fn precedes_finalized(&self, id: BlockId) -> Result<bool, Error> {
        let finalized = self.tree.read().forkchoice().finalized;
        Ok(finalized.is_some_and(|finalized| id.number < finalized.number)
            && self.is_canonical(id)?)
    }

    /// Hides a block that storage-writer is about to hold although it may be invalid: no interface
    /// shows an invalid payload (Engine API, paris.md, "Payload validation", point 3).
    pub(crate) fn withhold(&self, hash: B256) {
        let mut withheld = self.withheld.write();
        withheld.retain(|other| *other != hash);
        withheld.push_back(hash);
        // Refused ones stay, as their records may; but those are rare, and dropped at once.
        while withheld.len() > WITHHELD_MAX {
            withheld.pop_front();
        }
    }

    /// The block is valid after all.
    pub(crate) fn release(&self, hash: B256) {
        self.withheld.write().retain(|other| *other != hash);
    }

    fn is_withheld(&self, hash: &B256) -> bool {
        self.withheld.read().contains(hash)
    }

    /// The block at a height on the way down from `from`.
    pub(crate) fn ancestor(
        &self,
        from: BlockId,
        number: BlockNumber,
    ) -> Result<Option<B256>, Error> {
        let reached = self.tree.read().ancestor(from, number);
        match reached {
            Ok(hash) => Ok(Some(hash)),
            // The tree ends at a block of the base, so what lies below is canonical.
            Err(lowest) if self.stored_canonical(lowest)? => {
                Ok(self.stored_header(BlockRef::Number(number))?.map(|(id, _)| id.hash))
            }
            Err(_) => Ok(None),
        }
    }

    pub(crate) fn stored_canonical(&self, id: BlockId) -> Result<bool, Error> {
        let stored = self.stored_header(BlockRef::Number(id.number))?;
        Ok(stored.is_some_and(|(found, _)| found == id))
    }

    /// A header by number or hash, from storage-writer.
    pub(crate) fn stored_header(
        &self,
        block: BlockRef,
    ) -> Result<Option<(BlockId, Header)>, Error> {
        let Some((id, rlp)) = self.storage.header(block)? else { return Ok(None) };
        let header = Header::decode(&mut rlp.as_ref())
            .map_err(|error| record_error("header", id.hash, error))?;
        Ok(Some((id, header)))
    }

    /// Hash of the block at a height below `parent`'s child (BLOCKHASH), zero when there is none.
    ///
    /// # Errors
    /// [`Error::Storage`], [`Error::Record`].
    pub(crate) fn block_hash(&self, parent: BlockId, number: BlockNumber) -> Result<B256, Error> {
        let parent_of = |hash: &B256| {
            let recent = self.tree.read().get(hash).map(|node| node.parent);
            if recent.is_some() {
                return Ok(recent);
            }
            let stored = self.stored_header(BlockRef::Hash(*hash))?;
            Ok(stored.map(|(_, header)| header.parent_hash))
        };
        self.block_hashes.get(parent, number, parent_of)
    }

    /// Whether a block was executed, without asking storage-writer where that is not needed: above
    /// the base every executed block is in the tree.
    ///
    /// # Errors
    /// As [`Chain::block_hash`].
    pub(crate) fn knows(&self, block: BlockId) -> Result<bool, Error> {
        if self.tree.read().get(&block.hash).is_some() {
            return Ok(true);
        }
        Ok(block.number <= self.base().number && self.header_by_hash(block.hash)?.is_some())
    }

    /// Reads the base's header and those below it into the tree, as far as it keeps them and lacks
    /// them.
    ///
    /// # Errors
    /// As [`Chain::block_hash`].
    pub(crate) fn load_below(&self, base: BlockId) -> Result<(), Error> {
        let oldest = base.number.saturating_sub(BELOW_BASE);
        let mut id = base;
        loop {
            let known = self.tree.read().header(&id.hash);
            let header = match known {
                Some((_, header)) => header,
                None => match self.stored_header(BlockRef::Hash(id.hash))? {
                    Some((_, header)) => Arc::new(header),
                    None => return Ok(()),
                },
            };
            let parent = header.parent_hash;
            self.tree.write().insert_canonical(id, header);
            if id.number <= oldest {
                return Ok(());
            }
            id = BlockId::new(id.number - 1, parent);
        }
    }
}

fn record_error(what: &'static str, block: B256, error: impl ToString) -> Error {
    Error::Record { what, block, error: error.to_string() }
}
