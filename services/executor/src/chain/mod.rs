//! Read access to the chain: blocks, receipts and state. Recent data comes from memory, older data
//! from storage-writer. The engine and the RPC share it; only the engine writes.
//!
//! Every function here may wait for the database: never call one on the async reactor.

mod attach;
mod block_hashes;
pub mod tree;

pub(crate) use attach::decode_header;

use crate::{
    chain::{
        block_hashes::BlockHashes,
        tree::{BELOW_BASE, Tree},
    },
    config::Config,
    error::Error,
    state::{
        StateReader,
        cache::BaseCache,
        layers::Layers,
        past::{BlockView, PastView},
        recent::Recent,
        view::StateView,
    },
    wanted::Wanted,
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
use tandem_proto::{
    storage::{
        self, BlockRecord, BlockRef, Forkchoice, HistoryReads, KeptStates, ReadState, StorageApi,
        TransactionPlace,
    },
    sync::SyncProgress,
};
use tokio::sync::watch;

/// Number of refused blocks that stay hidden if storage-writer fails to drop them.
const WITHHELD_MAX: usize = 64;

/// Number of accounts that one call of storage-writer reads, so that no call takes long.
const ACCOUNTS_TOGETHER: usize = 1024;

/// Block that a call refers to (execution-apis, `BlockNumberOrTagOrHash`).
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
    /// The head, because no pending block is built.
    Pending,
}

/// Returns the chain, for reading.
pub struct Chain {
    pub(crate) spec: ChainSpec,
    pub(crate) tree: RwLock<Tree>,
    pub(crate) recent: Arc<Recent>,
    block_hashes: BlockHashes,
    pub(crate) storage: Arc<dyn StorageApi>,
    /// States below the base, if this process keeps them.
    pub(crate) history: Option<Arc<dyn HistoryReads>>,
    /// Whether the layers of recent blocks have no slots.
    accounts_only: bool,
    genesis: BlockId,
    /// Number of newest blocks whose state can be read.
    pub(crate) state_blocks: u64,
    /// Highest block that the chain waits for. Set while the newest payload or head has ancestors
    /// that are not executed.
    sync_target: RwLock<Option<BlockNumber>>,
    /// Head that sync fetches blocks for.
    pub(crate) wanted: Wanted,
    /// Blocks that storage-writer received before they were found valid; they must not be shown.
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
            history: None,
            accounts_only: false,
            genesis: checkpoint.genesis,
            state_blocks: config.unfinalized_blocks_max.max(config.persist_depth) + 1,
            sync_target: RwLock::default(),
            wanted: Wanted::default(),
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
        let one = ReadState { accounts: vec![B256::ZERO], ..ReadState::default() };
        match chain.recent.read_times().measure(|| chain.storage.read_state(&one).map(drop)) {
            // The state is being downloaded.
            Err(storage::Error::Unavailable(_)) => {}
            measured => measured?,
        }
        Ok(chain)
    }

    /// Returns the rules of this chain.
    pub fn spec(&self) -> &ChainSpec {
        &self.spec
    }

    /// Returns the canonical head.
    pub fn head(&self) -> BlockId {
        self.tree.read().forkchoice().head
    }

    /// Returns the head, and each later one.
    pub(crate) fn heads(&self) -> watch::Receiver<BlockId> {
        self.tree.read().heads()
    }

    /// Returns the highest block that the chain waits for, or `None` while it follows the head.
    pub fn sync_target(&self) -> Option<BlockNumber> {
        *self.sync_target.read()
    }

    /// Returns whether the head is behind the consensus client's: its block waits for ancestors, or
    /// blocks come from peers.
    pub fn is_syncing(&self) -> bool {
        self.sync_target().is_some() || self.sync_progress().is_some()
    }

    /// Notes that a chosen or received block has ancestors that are not executed. `None` notes that
    /// the chain follows the head.
    pub(crate) fn set_sync_target(&self, target: Option<BlockNumber>) {
        let mut held = self.sync_target.write();
        *held = target.map(|target| held.map_or(target, |before| before.max(target)));
    }

    /// Returns the progress of the synchronisation from peers, or `None` if there is none.
    pub fn sync_progress(&self) -> Option<SyncProgress> {
        self.wanted.progress()
    }

    /// Sets the progress of the synchronisation from peers. It ends once the wanted head is decided.
    pub fn set_sync_progress(&self, progress: Option<SyncProgress>) {
        self.wanted.show(progress);
    }

    /// Returns the first block.
    pub fn genesis(&self) -> BlockId {
        self.genesis
    }

    /// Returns the identity of this chain and of the forks its head has passed, in the form sent to
    /// peers (EIP-2124).
    ///
    /// # Errors
    /// [`Error::Storage`]; [`Error::UnknownBlock`] if there is no head.
    pub fn fork_id(&self) -> Result<ForkId, Error> {
        let (head, header) = self.header_by_hash(self.head().hash)?.ok_or(Error::UnknownBlock)?;
        let points = self.spec.fork_points();
        let genesis = (self.genesis.hash, self.spec.genesis_header(B256::ZERO).timestamp);
        Ok(fork_id(genesis, &points.blocks, &points.times, (head.number, header.timestamp)))
    }

    /// Returns the oldest canonical block whose state can be read.
    pub fn base(&self) -> BlockId {
        self.recent.read(Layers::base)
    }

    /// Returns number and hash of the block that the tag refers to, or `None` if there is none.
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

    /// Returns a block's header, or `None` if there is no such block.
    ///
    /// # Errors
    /// [`Error::Storage`], [`Error::Record`].
    pub fn header(&self, tag: BlockTag) -> Result<Option<(BlockId, Header)>, Error> {
        let Some(id) = self.resolve(tag)? else { return Ok(None) };
        Ok(self.header_by_hash(id.hash)?.map(|(id, header)| (id, Header::clone(&header))))
    }

    /// Returns a block as it is stored, or `None` if there is no such block.
    ///
    /// # Errors
    /// [`Error::Storage`], [`Error::Record`].
    pub fn record(&self, tag: BlockTag) -> Result<Option<BlockRecord>, Error> {
        let Some(id) = self.resolve(tag)? else { return Ok(None) };
        Ok(self.storage.block(BlockRef::Hash(id.hash))?)
    }

    /// Returns a block with its body, or `None` if there is no such block.
    ///
    /// # Errors
    /// [`Error::Storage`], [`Error::Record`].
    pub fn block(&self, tag: BlockTag) -> Result<Option<Block>, Error> {
        let Some(id) = self.resolve(tag)? else { return Ok(None) };
        let record = self.storage.block_without_receipts(BlockRef::Hash(id.hash))?;
        let Some(record) = record else { return Ok(None) };
        let block = Block::decode(record.header, record.body)
            .map_err(|error| record_error("block", record.id.hash, error))?;
        Ok(Some(block))
    }

    /// Returns the RLP of a block's access list (EIP-7928). Returns `None` if there is no such block,
    /// if it is from before Amsterdam, or if the list is pruned.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub fn access_list(&self, tag: BlockTag) -> Result<Option<Bytes>, Error> {
        let Some(id) = self.resolve(tag)? else { return Ok(None) };
        Ok(self.storage.access_list(BlockRef::Hash(id.hash))?)
    }

    /// Returns a block with its body and its receipts, one for each transaction, or `None` if there
    /// is no such block.
    ///
    /// # Errors
    /// [`Error::Storage`], [`Error::Record`].
    pub fn block_and_receipts(
        &self,
        tag: BlockTag,
    ) -> Result<Option<(Block, Vec<Receipt>)>, Error> {
        self.record(tag)?.map(decode_record).transpose()
    }

    /// Returns a block's receipts, or `None` if there is no such block.
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

    /// Returns the place of a canonical transaction, or `None` if there is no such transaction.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub fn transaction(&self, hash: B256) -> Result<Option<TransactionPlace>, Error> {
        Ok(self.storage.transaction(hash)?)
    }

    /// Returns an account, or `None` if it does not exist in that block's state.
    ///
    /// # Errors
    /// [`Error::StateUnavailable`], [`Error::UnknownBlock`], [`Error::Storage`].
    pub fn account(&self, tag: BlockTag, address: Address) -> Result<Option<Account>, Error> {
        self.view(tag)?.1.account(&keccak256(address))
    }

    /// Returns accounts in the same order, `None` for each that does not exist in that block's
    /// state. Those that are not in memory are read in calls for many.
    ///
    /// # Errors
    /// Same as [`Chain::account`].
    pub fn accounts(
        &self,
        tag: BlockTag,
        addresses: &[Address],
    ) -> Result<Vec<Option<Account>>, Error> {
        let view = self.view(tag)?.1;
        let mut accounts = Vec::with_capacity(addresses.len());
        for some in addresses.chunks(ACCOUNTS_TOGETHER) {
            let hashes: Vec<_> = some.iter().map(keccak256).collect();
            accounts.extend(view.accounts(&hashes)?);
        }
        Ok(accounts)
    }

    /// Returns the code of an account, empty if it has none.
    ///
    /// # Errors
    /// Same as [`Chain::account`].
    pub fn code(&self, tag: BlockTag, address: Address) -> Result<Bytes, Error> {
        let view = self.view(tag)?.1;
        match view.account(&keccak256(address))? {
            Some(account) if account.code_hash != EMPTY_CODE_HASH => {
                Ok(view.code(&account.code_hash)?.original_bytes())
            }
            _ => Ok(Bytes::new()),
        }
    }

    /// Returns a storage slot, zero if it is not set.
    ///
    /// # Errors
    /// Same as [`Chain::account`].
    pub fn storage(&self, tag: BlockTag, address: Address, slot: U256) -> Result<U256, Error> {
        debug_assert!(!self.accounts_only, "slots of recent blocks are not here");
        let view = self.view(tag)?.1;
        view.slot(&keccak256(address), &keccak256(slot.to_be_bytes::<32>()))
    }

    /// Returns the blocks whose states history has, `None` if none is kept.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub(crate) fn kept_states(&self) -> Result<Option<KeptStates>, Error> {
        let kept = self.history.as_ref().map(|history| history.kept_states()).transpose();
        Ok(kept?.flatten())
    }

    /// Returns the state after a block. Available for the blocks from the base to the head of each
    /// branch, and for blocks below the base that history leads to.
    pub(crate) fn view(&self, tag: BlockTag) -> Result<(BlockId, BlockView), Error> {
        let id = self.resolve(tag)?.ok_or(Error::UnknownBlock)?;
        let past = self.history.as_ref().map(|history| PastView {
            block: id,
            history: history.clone(),
            cached: self.recent.clone(),
        });
        if let Some(view) = self.recent_view(id) {
            return Ok((id, BlockView::Recent(Box::new(view), past)));
        }
        let kept = self.kept_states()?;
        match past.zip(kept) {
            // Reading finds out whether the block is in the chain of the base.
            Some((past, kept)) if (kept.oldest..=kept.newest).contains(&id.number) => {
                Ok((id, BlockView::Past(past)))
            }
            _ => {
                let oldest = kept.map_or(self.base().number, |kept| kept.oldest);
                Err(Error::StateUnavailable { block: id, oldest })
            }
        }
    }

    /// Returns the state after a block from the base to the head of a branch, `None` for others.
    pub(crate) fn recent_view(&self, id: BlockId) -> Option<StateView> {
        let known = |layers: &Layers| layers.contains(&id.hash) || layers.base() == id;
        let is_known = self.recent.read(known);
        is_known.then(|| StateView::passing(id.hash, self.recent.clone(), self.storage.clone()))
    }

    /// Returns the state after a block, for building a block on it.
    pub(crate) fn view_for_building(&self, parent: BlockId) -> Result<StateView, Error> {
        let (id, _) = self.header_by_hash(parent.hash)?.ok_or(Error::UnknownBlock)?;
        if self.recent_view(id).is_none() {
            let oldest = self.base().number;
            return Err(Error::StateUnavailable { block: id, oldest });
        }
        Ok(StateView::building(parent.hash, self.recent.clone(), self.storage.clone()))
    }

    /// Returns a header by hash, from the tree or the database.
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

    /// Returns the canonical block at a height.
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

    /// Returns whether a block is on the canonical chain.
    pub(crate) fn is_canonical(&self, id: BlockId) -> Result<bool, Error> {
        Ok(self.canonical(id.number)? == Some(id))
    }

    /// Returns whether a block is a canonical ancestor of the finalized block.
    pub(crate) fn precedes_finalized(&self, id: BlockId) -> Result<bool, Error> {
        let finalized = self.tree.read().forkchoice().finalized;
        Ok(finalized.is_some_and(|finalized| id.number < finalized.number)
            && self.is_canonical(id)?)
    }

    /// Hides a block that storage-writer is about to hold although it may be invalid. No interface
    /// may show an invalid payload (Engine API, paris.md, "Payload validation", point 3).
    pub(crate) fn withhold(&self, hash: B256) {
        let mut withheld = self.withheld.write();
        withheld.retain(|other| *other != hash);
        withheld.push_back(hash);
        // Refused blocks stay hidden, because storage-writer may keep their records. They are rare
        // and dropped at once.
        while withheld.len() > WITHHELD_MAX {
            withheld.pop_front();
        }
    }

    /// Shows a hidden block, because it proved valid.
    pub(crate) fn release(&self, hash: B256) {
        self.withheld.write().retain(|other| *other != hash);
    }

    fn is_withheld(&self, hash: &B256) -> bool {
        self.withheld.read().contains(hash)
    }

    /// Returns the ancestor of `from` at a height.
    pub(crate) fn ancestor(
        &self,
        from: BlockId,
        number: BlockNumber,
    ) -> Result<Option<B256>, Error> {
        let reached = self.tree.read().ancestor(from, number);
        match reached {
            Ok(hash) => Ok(Some(hash)),
            // The lowest block reached is canonical in the database, so the blocks below it are
            // too.
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

    /// Returns a header by number or hash, from storage-writer.
    pub(crate) fn stored_header(
        &self,
        block: BlockRef,
    ) -> Result<Option<(BlockId, Header)>, Error> {
        let Some((id, rlp)) = self.storage.header(block)? else { return Ok(None) };
        let header = Header::decode(&mut rlp.as_ref())
            .map_err(|error| record_error("header", id.hash, error))?;
        Ok(Some((id, header)))
    }

    /// Returns the hash of an ancestor (BLOCKHASH) of a child of `parent`, or zero if there is
    /// none.
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

    /// Returns whether a block was executed. Above the base every executed block is in the tree, so
    /// storage-writer is asked only about lower blocks.
    ///
    /// # Errors
    /// Same as [`Chain::block_hash`].
    pub(crate) fn knows(&self, block: BlockId) -> Result<bool, Error> {
        if self.tree.read().get(&block.hash).is_some() {
            return Ok(true);
        }
        Ok(block.number <= self.base().number && self.header_by_hash(block.hash)?.is_some())
    }

    /// Reads the headers of the base and the blocks below it into the tree, as far down as the tree
    /// keeps them. Skips headers that the tree already has.
    ///
    /// # Errors
    /// Same as [`Chain::block_hash`].
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

/// Decodes a stored block with its body and its receipts, one for each transaction.
///
/// # Errors
/// [`Error::Record`].
pub fn decode_record(record: BlockRecord) -> Result<(Block, Vec<Receipt>), Error> {
    let hash = record.id.hash;
    let block = Block::decode(record.header, record.body)
        .map_err(|error| record_error("block", hash, error))?;
    let receipts =
        decode_receipts(&record.receipts).map_err(|error| record_error("receipts", hash, error))?;
    let (got, want) = (receipts.len(), block.transactions.len());
    if got != want {
        let error = format!("{got} receipts for {want} transactions");
        return Err(record_error("receipts", hash, error));
    }
    Ok((block, receipts))
}

fn record_error(what: &'static str, block: B256, error: impl ToString) -> Error {
    Error::Record { what, block, error: error.to_string() }
}
