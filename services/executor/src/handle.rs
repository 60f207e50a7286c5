//! The executor's interface for its callers.

use crate::{
    ahead::{listed::Listed, read_ahead::Prefetcher, senders::Senders},
    block::build::{BuiltPayload, PayloadAttributes, PayloadId},
    builder::{Builder, Order},
    chain::Chain,
    engine::Message,
    error::Error,
    metrics as names,
    queries::Queries,
    reads::ChainReads,
    rpc::{CallPools, Prices},
    status::{Condemned, ForkchoiceState, PayloadStatus, Status},
};
use metrics::histogram;
use std::{
    sync::{Arc, OnceLock},
    time::Instant,
};
use tandem_actor::Mailbox;
use tandem_bus::Bus;
use tandem_chain::{Block, BlockError, ChainSpec, Payload, PayloadSidecar};
use tandem_policy::{LivePolicies, Policies, StateReads};
use tandem_primitives::{B256, BlockId};
use tandem_proto::{blob_validator::BlobApi, tx_pool::TxPoolApi};
use tokio::sync::{oneshot, watch};
use tracing::{Instrument, Span, field::Empty, info_span};

/// Handle to the engine. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    engine: Mailbox<Message>,
    chain: Arc<Chain>,
    queries: Arc<Queries>,
    prefetcher: Arc<Prefetcher>,
    policies: LivePolicies,
    bus: Bus,
    blobs: Arc<dyn BlobApi>,
    transactions: Arc<OnceLock<Arc<dyn TxPoolApi>>>,
    pools: Arc<CallPools>,
    prices: Arc<Prices>,
    builder: Builder,
    testing: bool,
    has_tx_executors: bool,
}

/// Everything a [`Handle`] is made of.
pub struct Parts {
    /// The engine's mailbox.
    pub engine: Mailbox<Message>,
    /// The chain, for reading.
    pub chain: Arc<Chain>,
    /// Calls, proofs and their limits.
    pub queries: Arc<Queries>,
    /// Reads ahead for payloads.
    pub prefetcher: Arc<Prefetcher>,
    /// The policies of the blocks to come.
    pub policies: LivePolicies,
    /// The cluster's bus.
    pub bus: Bus,
    /// The blobs of transactions.
    pub blobs: Arc<dyn BlobApi>,
    /// The threads that serve users.
    pub pools: Arc<CallPools>,
    /// The builder of payloads.
    pub builder: Builder,
    /// Place of the pool of transactions.
    pub transactions: Arc<OnceLock<Arc<dyn TxPoolApi>>>,
    /// Whether methods for tests are served.
    pub testing: bool,
    /// Whether other machines may execute transactions of a block with a list.
    pub has_tx_executors: bool,
}

impl Handle {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { engine, chain, queries, prefetcher, policies, bus, blobs, pools, .. } = parts;
        Self {
            engine,
            chain,
            queries,
            prefetcher,
            policies,
            bus,
            blobs,
            transactions: parts.transactions,
            pools,
            prices: Arc::default(),
            builder: parts.builder,
            testing: parts.testing,
            has_tx_executors: parts.has_tx_executors,
        }
    }

    /// Returns the threads that serve users.
    pub(crate) fn pools(&self) -> &Arc<CallPools> {
        &self.pools
    }

    /// Returns what JSON-RPC reads.
    pub fn reads(&self) -> ChainReads {
        ChainReads {
            chain: self.chain.clone(),
            queries: self.queries.clone(),
            pools: self.pools.clone(),
            prices: self.prices.clone(),
            transactions: self.transactions.clone(),
        }
    }

    /// Returns blob-validator, which holds the blobs of transactions.
    pub fn blobs(&self) -> &Arc<dyn BlobApi> {
        &self.blobs
    }

    /// Has JSON-RPC send transactions to this pool and look for them there, and the builder take them
    /// from it. The pool reads the chain, so it starts after the executor. Only the first call has an effect.
    pub fn use_pool(&self, pool: Arc<dyn TxPoolApi>) {
        let _ = self.transactions.set(pool);
    }

    /// Returns the policies of future blocks, for reading and for changing.
    pub fn policies(&self) -> &LivePolicies {
        &self.policies
    }

    /// Returns the bus on which the cluster's other processes learn of changes made here.
    pub(crate) fn bus(&self) -> &Bus {
        &self.bus
    }

    /// Returns the chain, for reading.
    pub fn chain(&self) -> &Arc<Chain> {
        &self.chain
    }

    /// Returns the rules of this chain.
    pub fn spec(&self) -> &ChainSpec {
        self.chain.spec()
    }

    /// Validates and executes a payload of this version of `engine_newPayload`. The caller must
    /// have checked that the version fits the payload.
    ///
    /// # Errors
    /// [`Error`]: there is no verdict, and the payload may be sent again.
    pub async fn new_payload(
        &self,
        version: u8,
        payload: Payload,
        sidecar: PayloadSidecar,
    ) -> Result<PayloadStatus, Error> {
        let span = info_span!(
            "on_new_payload", rpc.method = format_args!("engine_newPayloadV{version}"),
            block.number = payload.block_number, block.hash = %payload.block_hash,
            status = Empty, otel.status_description = Empty,
            overlap.verdict = Empty,
            processors = Empty, overlap.percent = Empty, overlap.tail_us = Empty,
            overlap.a_us = Empty, overlap.b_us = Empty, overlap.saved_us = Empty,
            overlap.wasted_us = Empty,
        );
        let started = Instant::now();
        let result = self.validate(payload, sidecar).instrument(span.clone()).await;
        let status = result.as_ref().map_or("error", |status| status.status.as_str());
        record_answer(&span, version, &result);
        histogram!(names::NEW_PAYLOAD_SECONDS, "status" => status).record(started.elapsed());
        result
    }

    async fn validate(
        &self,
        payload: Payload,
        sidecar: PayloadSidecar,
    ) -> Result<PayloadStatus, Error> {
        let (prefetcher, engine) = (self.prefetcher.clone(), self.engine.clone());
        let Policies { reads, access_lists, .. } = self.policies.load();
        let has_tx_executors = self.has_tx_executors;
        let given = on_cpu("decode a payload", move || {
            let block =
                info_span!("decode_payload").in_scope(|| Block::from_payload(payload, &sidecar))?;
            let block = Arc::new(block);
            // The engine goes first. On few cores, the work begun here would take the free ones.
            let senders = Senders::new(block.clone());
            let (shared, given) = (senders.share(), block.clone());
            let ask = |reply| Message::NewPayload { block: given, senders, reply };
            let status = engine.ask(ask);
            let is_listed = Listed::is_wanted(&block, access_lists);
            // The engine begins the recovery if no other machine executes transactions.
            if !(is_listed && has_tx_executors) {
                shared.recover();
            }
            // The engine reads what a list names.
            if reads != StateReads::OneByOne && !is_listed {
                prefetcher.start(&block, shared);
            }
            Ok::<_, BlockError>(status)
        });
        match given.await? {
            Err(error @ BlockError::BlockHash { .. }) => {
                Ok(PayloadStatus::invalid_block_hash(error.describe()))
            }
            // The payload's actual hash is unknown, so its valid ancestor is unknown too
            // (cancun.md, `engine_newPayloadV3`: latestValidHash is null).
            Err(error) => Ok(PayloadStatus::invalid(None, error.describe())),
            Ok(status) => status.await?,
        }
    }

    /// Imports a block on top of a known one, from before or after the merge.
    ///
    /// The block is executed and validated in full, except for the seal of proof of work. It is
    /// durable when the answer is VALID. It does not become the head: see [`Handle::make_head`]. A
    /// known block is VALID; a block with an unknown parent is SYNCING.
    ///
    /// # Errors
    /// [`Error`]: there is no verdict, and the block may be sent again.
    pub async fn import(&self, block: Block) -> Result<PayloadStatus, Error> {
        let check = move || block.check_roots().map(|()| block);
        match on_cpu("check an imported block", check).await? {
            Ok(block) => self.import_prepared(self.prepare(block).await?).await,
            Err(error) => Ok(PayloadStatus::invalid(None, error.describe())),
        }
    }

    /// Recovers the senders of a block to import. The body must belong to the header
    /// ([`Block::check_roots`]). May run beside the import of the blocks before it.
    ///
    /// # Errors
    /// [`Error::WorkerDied`].
    pub async fn prepare(&self, block: Block) -> Result<PreparedBlock, Error> {
        let span = info_span!("import", block.number = block.id.number);
        let recover = move || {
            let block = Arc::new(block);
            (block.clone(), Senders::recover(block))
        };
        let (block, senders) =
            on_cpu("prepare an imported block", recover).instrument(span.clone()).await?;
        Ok(PreparedBlock { block, senders, span })
    }

    /// Imports a prepared block as [`Handle::import`] does. The engine gets blocks in the order of
    /// the calls, whether or not the futures are polled.
    ///
    /// # Errors
    /// [`Error`]: there is no verdict, and the block may be sent again.
    pub fn import_prepared(
        &self,
        block: PreparedBlock,
    ) -> impl Future<Output = Result<PayloadStatus, Error>> + Send + 'static {
        let PreparedBlock { block, senders, span } = block;
        let ask = |reply| Message::NewPayload { block, senders, reply };
        let answer = span.in_scope(|| self.engine.ask(ask));
        async move { answer.await? }
    }

    /// Returns the head that the consensus client chose last, while its block is not known; `None`
    /// while the chain follows the consensus client.
    pub fn wanted_head(&self) -> watch::Receiver<Option<B256>> {
        self.chain.wanted.subscribe()
    }

    /// Carries out the forkchoice that waits for this head, now that the head is known. If another
    /// one waits meanwhile, the block becomes the head, and safe and finalized block stay.
    ///
    /// # Errors
    /// Same as [`Handle::forkchoice_updated`].
    pub async fn reach(&self, head: B256) -> Result<PayloadStatus, Error> {
        let Some(state) = self.chain.wanted.state(head) else { return self.make_head(head).await };
        let status = self.engine.ask(|reply| Message::Forkchoice { state, reply }).await??;
        if status.status != Status::Syncing {
            self.chain.wanted.reached(head);
        }
        Ok(status)
    }

    /// Follows storage-writer to a downloaded state. Returns its block, which is the head now.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn adopt(&self) -> Result<BlockId, Error> {
        self.engine.ask(|reply| Message::Adopt { reply }).await?
    }

    /// Notes that blocks are invalid because an ancestor of theirs is. The consensus client then
    /// learns it when it names one of them.
    ///
    /// # Errors
    /// [`Error::Engine`].
    pub async fn condemn(&self, blocks: Condemned) -> Result<(), Error> {
        Ok(self.engine.ask(|reply| Message::Condemn { blocks, reply }).await?)
    }

    /// Makes an imported block the head; safe and finalized block stay unchanged. Answers SYNCING
    /// if the block is unknown. Unlike [`Handle::forkchoice_updated`] it accepts blocks from before
    /// the merge, because an imported chain need not reach the merge.
    ///
    /// # Errors
    /// [`Error::InvalidForkchoice`] if the block is not on the branch of the finalized block. After
    /// any other error the call may be retried.
    pub async fn make_head(&self, hash: B256) -> Result<PayloadStatus, Error> {
        self.engine.ask(|reply| Message::MakeHead { hash, reply }).await?
    }

    /// Sets head, safe and finalized block.
    ///
    /// # Errors
    /// [`Error::InvalidForkchoice`] (-38002). After any other error the call may be retried.
    pub async fn forkchoice_updated(&self, state: ForkchoiceState) -> Result<PayloadStatus, Error> {
        let started = Instant::now();
        let result = self.engine.ask(|reply| Message::Forkchoice { state, reply }).await?;
        let status = result.as_ref().map_or("error", |status| status.status.as_str());
        histogram!(names::FORKCHOICE_SECONDS, "status" => status).record(started.elapsed());
        match result.as_ref().map(|status| status.status) {
            Ok(Status::Syncing) => self.chain.wanted.set(Some(state)),
            Ok(_) => self.chain.wanted.set(None),
            // Nothing was decided.
            Err(_) => {}
        }
        result
    }

    /// Begins to build a payload on a block. The caller must have checked that the attributes fit
    /// the block and the method's version.
    pub fn start_build(&self, parent: B256, attributes: PayloadAttributes) -> PayloadId {
        self.builder.start(parent, attributes)
    }

    /// Returns a payload whose build has begun, or `None` if none has this id. Waits at most a
    /// second, and only if the first full payload is still being built.
    ///
    /// # Errors
    /// [`Error`]: the payload cannot be built now.
    pub async fn get_payload(&self, id: PayloadId) -> Result<Option<Arc<BuiltPayload>>, Error> {
        self.builder.get(id).await
    }

    /// Builds a block that is described in full, and keeps nothing of it. For tests of clients.
    ///
    /// # Errors
    /// [`Error::CannotInclude`] if one of the given transactions cannot be in it; others as
    /// [`Handle::get_payload`].
    pub(crate) async fn build_block(&self, order: Order) -> Result<BuiltPayload, Error> {
        self.builder.build(order).await
    }

    /// Returns whether methods for tests are served.
    pub(crate) fn serves_tests(&self) -> bool {
        self.testing
    }
}

/// Block whose senders are recovered. See [`Handle::prepare`].
pub struct PreparedBlock {
    block: Arc<Block>,
    senders: Senders,
    span: Span,
}

/// Runs CPU work on the rayon pool, in the caller's span. Errors call it `task`.
async fn on_cpu<R: Send + 'static>(
    task: &'static str,
    work: impl FnOnce() -> R + Send + 'static,
) -> Result<R, Error> {
    let (reply, answer) = oneshot::channel();
    let span = Span::current();
    rayon::spawn(move || {
        let _ = reply.send(span.in_scope(work));
    });
    answer.await.map_err(|_| Error::WorkerDied { task, reason: "it panicked".to_owned() })
}

/// Records on a payload's span what the caller of this version is told, and why a payload is
/// invalid or has no verdict.
fn record_answer(span: &Span, version: u8, result: &Result<PayloadStatus, Error>) {
    let (answered, reason) = match result {
        Ok(status) => {
            (status.status.answered_by(version).as_str(), status.validation_error.clone())
        }
        Err(error) => ("error", Some(error.to_string())),
    };
    span.record("status", answered);
    if let Some(reason) = reason {
        span.record("otel.status_description", reason);
    }
}
