//! The pool of transactions over the executor of the same process, and the chain as it sees it.

use parking_lot::Mutex;
use std::{sync::Arc, time::Instant};
use tandem_admission::{Code, SenderAccount};
use tandem_bus::Bus;
use tandem_chain::{Block, ChainSpec};
use tandem_executor::{BlockTag, Chain, Handle};
use tandem_primitives::{Account, Address, B256, BlockId, EMPTY_CODE_HASH};
use tandem_proto::blob_validator::BlobApi;
use tandem_tx_pool::{
    ChainError, ChainReads, Config, Deps, Head, StartError, TxPool, grpc::SyncNote,
};
use tokio_util::sync::CancellationToken;

/// First bytes of the code of an account that delegates (EIP-7702).
const DELEGATION: [u8; 3] = [0xef, 0x01, 0x00];

/// Starts the pool on the executor's head, and has JSON-RPC use it. May wait for the database: not
/// for the async reactor.
///
/// # Errors
/// [`StartError`].
pub(crate) fn start_pool(
    config: Config,
    handle: &Handle,
    blobs: Arc<dyn BlobApi>,
    bus: Bus,
    fatal: CancellationToken,
) -> Result<Arc<TxPool>, StartError> {
    let chain = Arc::new(ChainOfPool(handle.chain().clone()));
    let pool = TxPool::start(config, Deps { chain, blobs, bus, fatal })?;
    handle.use_pool(pool.clone());
    Ok(pool)
}

/// A chain, as the pool needs it.
pub(crate) struct ChainOfPool(pub(crate) Arc<Chain>);

fn failed(error: tandem_executor::Error) -> ChainError {
    ChainError(error.to_string())
}

impl ChainReads for ChainOfPool {
    fn spec(&self) -> &ChainSpec {
        self.0.spec()
    }

    fn head(&self) -> Result<Head, ChainError> {
        let (id, header) = self
            .0
            .header(BlockTag::Latest)
            .map_err(failed)?
            .ok_or_else(|| ChainError("the head is not known".to_owned()))?;
        let finalized = self.0.resolve(BlockTag::Finalized).map_err(failed)?;
        let finalized = finalized.map(|block| block.number);
        Ok(Head { id, header: Arc::new(header), finalized })
    }

    fn accounts(
        &self,
        block: B256,
        addresses: &[Address],
    ) -> Result<Vec<SenderAccount>, ChainError> {
        let tag = BlockTag::Hash(block);
        let accounts = self.0.accounts(tag, addresses).map_err(failed)?;
        let sender = |(address, account): (&Address, Option<Account>)| {
            let Some(account) = account else { return Ok(SenderAccount::default()) };
            let code = match account.code_hash {
                EMPTY_CODE_HASH => Code::None,
                _ if self.0.code(tag, *address).map_err(failed)?.starts_with(&DELEGATION) => {
                    Code::Delegated
                }
                _ => Code::Contract,
            };
            Ok(SenderAccount { nonce: account.nonce, balance: account.balance, code })
        };
        addresses.iter().zip(accounts).map(sender).collect()
    }

    fn block(&self, hash: B256) -> Result<Option<Block>, ChainError> {
        self.0.block(BlockTag::Hash(hash)).map_err(failed)
    }

    fn is_syncing(&self) -> bool {
        self.0.is_syncing()
    }
}

/// Chain of a storage-writer to which another process writes.
pub(crate) struct FollowedChain {
    chain: ChainOfPool,
    /// Held by the thread that reads the chain anew.
    refreshing: Mutex<()>,
    sync: Arc<SyncNote>,
}

impl FollowedChain {
    /// Makes a chain that stands where it was read. `sync` says whether the head is behind.
    pub(crate) fn new(chain: ChainOfPool, sync: Arc<SyncNote>) -> Self {
        Self { chain, refreshing: Mutex::default(), sync }
    }

    /// Follows storage-writer, and returns the head. Blocks.
    ///
    /// # Errors
    /// Error of the read. The chain then stands where it did.
    pub(crate) fn refresh(&self) -> Result<BlockId, tandem_executor::Error> {
        let _one = self.refreshing.lock();
        self.chain.0.refresh()?;
        Ok(self.chain.0.head())
    }
}

impl ChainReads for FollowedChain {
    fn spec(&self) -> &ChainSpec {
        self.chain.spec()
    }

    fn head(&self) -> Result<Head, ChainError> {
        self.chain.head()
    }

    fn accounts(
        &self,
        block: B256,
        addresses: &[Address],
    ) -> Result<Vec<SenderAccount>, ChainError> {
        self.chain.accounts(block, addresses).or_else(|_| {
            // The base may have moved further than this process has followed.
            self.refresh().map_err(failed)?;
            self.chain.accounts(block, addresses)
        })
    }

    fn block(&self, hash: B256) -> Result<Option<Block>, ChainError> {
        self.chain.block(hash)
    }

    fn is_syncing(&self) -> bool {
        self.sync.is_syncing(Instant::now())
    }
}
