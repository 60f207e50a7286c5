//! Client of a storage-writer in another process, for executor and workers.

use super::{
    diffs::{QueuedTrieDiff, send_all},
    lease_keeper::LeaseKeeper,
    parts,
    read_coalescer::ReadCoalescer,
    remote_storage::{CallOptions, Calls, RemoteStorage},
};
use crate::metrics as names;
use metrics::counter;
use prost::Message;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_actor::{TaskSender, task_queue};
use tandem_primitives::{
    B256, BlockId, BlockNumber, Bytes, ShardSet, StateDiff, TrieDiff, WalkTarget,
};
use tandem_proto::{
    access::STORAGE_WRITER,
    convert::ERROR_METADATA,
    snap::{StateItems, StateRequest},
    storage::{
        BaseReads, Block, BlockReads, BlockRecord, BlockRef, BlockWrites, Checkpoint, Claim, Epoch,
        Error, ExecutorAddress, Forkchoice, Holder, KeptBlock, PendingBlock, Promotion, ReadState,
        Result, StateRanges, StateValues, Term, TransactionPlace, TrieNodes, TrieStorage,
        WriteLease,
    },
    wire::storage_writer::v1::{self, storage_writer_server::SERVICE_NAME},
};
use tandem_rpc::{ClientConnection, ConnectionConfig, EndpointError, ServerDescription};
use tokio::runtime::Handle;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tonic::{Request, Response, Status, Streaming};

/// Connections for direct calls. A client reads by one call at a time, and by a few more with many keys.
const DIRECT_CONNECTIONS: usize = 4;

const SERVER: ServerDescription = ServerDescription {
    role: STORAGE_WRITER,
    service: SERVICE_NAME,
    error_metadata: ERROR_METADATA,
    connections: names::CLIENT_CONNECTIONS,
    lost: names::CLIENT_CONNECTIONS_LOST,
    stream_window: 8 << 20,
    direct_connections: DIRECT_CONNECTIONS,
};

/// Settings of a [`Client`]. All times are in milliseconds.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Settings of the connection.
    pub connection: ConnectionConfig,
    /// Time a call waits for a connection that is being made or remade, if its deadline permits.
    pub reconnect_wait_ms: u64,
    /// Longest wait for the answer to a read, a walk, or a look-up of a block.
    pub read_ms_max: u64,
    /// Longest wait for the answer to a write, a list of blocks or a trie diff. A write may have to
    /// wait for the base; the others may have to be computed.
    pub write_ms_max: u64,
    /// Number of trie diffs that may wait for the connection; further ones are dropped.
    pub diffs_capacity: usize,
    /// Time after this client's last sign of life during which no other executor can take over its
    /// right to write. The client renews its lease four times in that period. 0: no renewals, and
    /// others may take over at once.
    pub lease_ms: u64,
    /// Address at which the executor that asks for the right to write serves, for other executors.
    pub address: Option<ExecutorAddress>,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            connection: ConnectionConfig::default(),
            reconnect_wait_ms: 2_000,
            read_ms_max: 10_000,
            write_ms_max: 60_000,
            diffs_capacity: 64,
            lease_ms: 0,
            address: None,
        }
    }
}

/// Returns a function that makes the call of that name, whose answer is one message.
macro_rules! unary {
    ($call:ident, $request:ty) => {
        |mut calls: Calls, request: Request<$request>| async move {
            Ok(calls.$call(request).await?.into_inner())
        }
    };
}

/// Client of one storage-writer.
///
/// Calls wait for the answer (see [`ClientConfig`]), so they do not belong in async code, where
/// they panic. Only [`TrieStorage::put_trie_diff`] never waits and never fails.
pub struct Client {
    remote: Arc<RemoteStorage>,
    runtime: Handle,
    reads: ReadCoalescer,
    lease: Arc<LeaseKeeper>,
    diffs: TaskSender<QueuedTrieDiff>,
    /// Cancelled when calls must stop waiting.
    stopped: CancellationToken,
    _task: AbortOnDropHandle<()>,
}

impl Client {
    /// Creates a client that connects in the background, on `runtime`, to an endpoint. An example
    /// is `http://10.0.0.7:9600`, or `https://…` where the identity is proven.
    ///
    /// # Errors
    /// [`EndpointError`]. An unreachable server is not an error here; the calls fail instead.
    pub fn connect(
        endpoint: &str,
        config: ClientConfig,
        runtime: &Handle,
    ) -> Result<Arc<Self>, EndpointError> {
        Self::connect_to_one_of(&[endpoint], config, runtime)
    }

    /// Like [`Self::connect`], for several storage-writers of which one leads at a time.
    ///
    /// # Errors
    /// [`EndpointError`], also when there is no endpoint.
    pub fn connect_to_one_of(
        endpoints: &[impl AsRef<str>],
        config: ClientConfig,
        runtime: &Handle,
    ) -> Result<Arc<Self>, EndpointError> {
        names::describe_metrics();
        let connection = ClientConnection::to_one_of(endpoints, SERVER, &config.connection)?;
        let (diffs, queue) = task_queue("trie-diffs", config.diffs_capacity);
        let lease = Duration::from_millis(config.lease_ms);
        let lease = Arc::new(LeaseKeeper::new(lease, config.address.clone()));
        let remote = Arc::new(RemoteStorage { config, connection });
        let (kept, renewed) = (remote.clone(), lease.clone());
        let task = runtime.spawn(async move {
            tokio::select! {
                () = kept.connection.keep_serving() => {}
                () = send_all(kept.clone(), queue) => {}
                () = renewed.keep_renewing(&kept) => {}
            }
        });
        Ok(Arc::new(Self {
            remote,
            runtime: runtime.clone(),
            reads: ReadCoalescer::default(),
            lease,
            diffs,
            stopped: CancellationToken::new(),
            _task: AbortOnDropHandle::new(task),
        }))
    }

    /// Returns whether there is a connection now.
    pub fn is_connected(&self) -> bool {
        self.remote.connection.is_connected()
    }

    /// Waits until another executor has taken over the right to write that this client held under a
    /// lease.
    pub async fn fenced(&self) {
        self.lease.fenced().await;
    }

    /// Waits until this client has the right to write.
    pub async fn granted(&self) {
        self.lease.granted().await;
    }

    /// Returns the executor that has the right to write, `None` when no lease is running.
    ///
    /// # Errors
    /// As for every call; also from a server of version 0.1.0, which cannot tell.
    pub async fn find_holder(&self) -> Result<Option<Holder>> {
        let send = unary!(get_holder, v1::GetHolderRequest);
        let request = v1::GetHolderRequest {};
        let answer = self.remote.call(self.read("holder"), request, send).await?;
        Ok(Option::<Holder>::try_from(answer)?)
    }

    /// Makes storage-writer put a checkpoint of its database into a folder of its data directory. Returns
    /// the head of the chain.
    ///
    /// # Errors
    /// As for every call; [`Error::Refused`] when there is a checkpoint already.
    pub async fn checkpoint_database(&self) -> Result<BlockId> {
        let send = unary!(checkpoint_database, v1::CheckpointDatabaseRequest);
        let request = v1::CheckpointDatabaseRequest {};
        // A second one would find the checkpoint of the first.
        let options = self.write("checkpoint_database").once();
        Ok(self.remote.call(options, request, send).await?.try_into()?)
    }

    /// Makes the storage-writer lead, in a term above all that it has heard of. `force` promotes it
    /// although its leader may still lead.
    ///
    /// # Errors
    /// As for every call; [`Error::Refused`] with the reason why it must not lead.
    pub async fn promote(&self, force: bool) -> Result<Promotion> {
        let send = unary!(promote, v1::PromoteRequest);
        let request = v1::PromoteRequest { force };
        Ok(self.remote.call(self.write("promote"), request, send).await?.try_into()?)
    }

    /// Tells the storage-writer that another one leads in this term. Returns the highest term that it
    /// knows of.
    ///
    /// # Errors
    /// As for every call; [`Error::Refused`] when it leads in the same term.
    pub async fn supersede(&self, term: Term) -> Result<Term> {
        let send = unary!(supersede, v1::SupersedeRequest);
        let request = v1::SupersedeRequest { term: term.0 };
        let answer = self.remote.call(self.read("supersede"), request, send).await?;
        Ok(Term(answer.term))
    }

    /// Releases the right to write at once, and stops asking for it: all later claims are
    /// [`Error::Unavailable`].
    pub async fn leave(&self) {
        self.lease.leave(&self.remote).await;
    }

    /// Releases the right to write at once. Waits for the answer, like all calls.
    pub fn release_epoch(&self) {
        self.runtime.block_on(self.lease.release(&self.remote));
    }

    /// Ends the waiting calls, and refuses all later ones with [`Error::Unavailable`]. Releases the
    /// right to write at once. Must be called before the runtime ends, because a call that still
    /// waits then panics. Waits for an answer itself, for at most two seconds.
    pub fn stop(&self) {
        self.stopped.cancel();
        self.remote.connection.direct().close();
        self.release_epoch();
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    pub(crate) fn read(&self, name: &'static str) -> CallOptions {
        self.remote.config.read(name)
    }

    pub(crate) fn write(&self, name: &'static str) -> CallOptions {
        self.remote.config.write(name)
    }

    /// Returns the epoch in which this client may write.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if it has none.
    pub(crate) fn epoch(&self) -> Result<Epoch> {
        let no_epoch = || Error::Unavailable("no right to write".to_owned());
        self.lease.held().ok_or_else(no_epoch)
    }

    /// Makes a call that may be made twice, without HTTP/2 where a direct connection is free. Waits for
    /// its answer.
    fn call_directly<R: Message + Clone, A: Message + Default, F>(
        &self,
        options: CallOptions,
        method: &'static str,
        request: impl Into<R>,
        send: impl Fn(Calls, Request<R>) -> F,
    ) -> Result<A>
    where
        F: Future<Output = Result<A, Status>>,
    {
        let (started, request) = (Instant::now(), request.into());
        match self.remote.call_directly(options, method, &request) {
            Some(answer) => Ok(answer),
            None => self.call(options.after(started.elapsed()), request, send),
        }
    }

    /// Makes a call and waits for its answer.
    pub(crate) fn call<R: Message + Clone, A, F>(
        &self,
        options: CallOptions,
        request: impl Into<R>,
        send: impl Fn(Calls, Request<R>) -> F,
    ) -> Result<A>
    where
        F: Future<Output = Result<A, Status>>,
    {
        let answer = self.remote.call(options, request.into(), send);
        self.runtime.block_on(async {
            tokio::select! {
                // Checked first, so that no part of a call touches a runtime that is ending.
                biased;
                () = self.stopped.cancelled() => Err(Error::Unavailable("stopping".to_owned())),
                answer = answer => answer,
            }
        })
    }

    /// Fetches a block.
    fn record(&self, block: BlockRef, without_receipts: bool) -> Result<Option<BlockRecord>> {
        let request = v1::GetBlockRequest { without_receipts, ..block.into() };
        let send = unary!(get_block, v1::GetBlockRequest);
        Ok(self.call(self.read("block"), request, send)?.try_into()?)
    }

    /// Fetches the state diffs of pending blocks.
    fn diffs(
        &self,
        name: &'static str,
        blocks: &[B256],
        without_slots: bool,
    ) -> Result<Vec<Option<Arc<StateDiff>>>> {
        let request = v1::GetStateDiffsRequest { without_slots, ..blocks.into() };
        let send = |mut calls: Calls, request: Request<v1::GetStateDiffsRequest>| async move {
            collect(calls.get_state_diffs(request).await?).await
        };
        let diffs = self.call(self.write(name), request, send)?;
        if diffs.len() != blocks.len() {
            let text = format!("{} state diffs for {} blocks", diffs.len(), blocks.len());
            return Err(Error::Store(text));
        }
        diffs.into_iter().map(|wire| Ok(wire.try_into()?)).collect()
    }
}

/// Returns all messages of an answer.
async fn collect<M>(answer: Response<Streaming<M>>) -> Result<Vec<M>, Status> {
    let mut stream = answer.into_inner();
    let mut messages = Vec::new();
    while let Some(message) = stream.message().await? {
        messages.push(message);
    }
    Ok(messages)
}

impl BaseReads for Client {
    fn checkpoint(&self) -> Result<Checkpoint> {
        let request = v1::GetCheckpointRequest {};
        let send = unary!(get_checkpoint, v1::GetCheckpointRequest);
        Ok(self.call(self.read("checkpoint"), request, send)?.try_into()?)
    }

    fn read_state(&self, request: &ReadState) -> Result<StateValues> {
        let read = |part: &ReadState| {
            let send = unary!(read_state, v1::ReadStateRequest);
            let call = self.call_directly(self.read("read_state"), "ReadState", part, send);
            let answer: v1::ReadStateResponse = call?;
            Ok(answer.into_values(part)?)
        };
        self.reads.read(request, |all| parts::read_state(all, read))
    }

    fn walk_trie(&self, targets: &[WalkTarget]) -> Result<TrieNodes> {
        parts::walk_trie(targets, |part| {
            let send = unary!(walk_trie, v1::WalkTrieRequest);
            let options = self.read("walk_trie").traced();
            let answer: v1::WalkTrieResponse =
                self.call_directly(options, "WalkTrie", part, send)?;
            Ok(answer.try_into()?)
        })
    }
}

impl TrieStorage for Client {
    fn pending(&self) -> Result<Vec<PendingBlock>> {
        let request = v1::ListPendingRequest { headers_only: true };
        let send = |mut calls: Calls, request: Request<v1::ListPendingRequest>| async move {
            collect(calls.list_pending(request).await?).await
        };
        let blocks = self.call(self.write("pending"), request, send)?;
        blocks.into_iter().map(|wire| Ok(PendingBlock::try_from(wire)?)).collect()
    }

    fn trie_diff(&self, block: B256) -> Result<Option<Arc<TrieDiff>>> {
        let send = |mut calls: Calls, request: Request<v1::GetTrieDiffRequest>| async move {
            collect(calls.get_trie_diff(request).await?).await
        };
        let parts = self.call(self.write("trie_diff"), block, send)?;
        let mut whole: Option<TrieDiff> = None;
        for part in parts {
            let part = TrieDiff::try_from(part)?;
            match &mut whole {
                None => whole = Some(part),
                Some(whole) => whole.append(&part),
            }
        }
        Ok(whole.map(Arc::new))
    }

    /// Queues the diff without waiting. Drops and counts it when too many wait for the connection,
    /// or when it cannot be sent.
    fn put_trie_diff(&self, block: B256, shards: ShardSet, diff: Arc<TrieDiff>) -> Result<()> {
        let handed = QueuedTrieDiff { block, shards, diff };
        if self.diffs.try_send(handed).is_err() {
            counter!(names::CLIENT_DIFFS_DROPPED).increment(1);
        }
        Ok(())
    }
}

impl BlockReads for Client {
    fn block(&self, block: BlockRef) -> Result<Option<BlockRecord>> {
        self.record(block, false)
    }

    fn block_without_receipts(&self, block: BlockRef) -> Result<Option<BlockRecord>> {
        self.record(block, true)
    }

    fn header(&self, block: BlockRef) -> Result<Option<(BlockId, Bytes)>> {
        let send = unary!(get_header, v1::GetHeaderRequest);
        Ok(self.call(self.read("header"), block, send)?.try_into()?)
    }

    fn access_list(&self, block: BlockRef) -> Result<Option<Bytes>> {
        let send = unary!(get_access_list, v1::GetAccessListRequest);
        Ok(self.call(self.read("access_list"), block, send)?.try_into()?)
    }

    fn transaction(&self, hash: B256) -> Result<Option<TransactionPlace>> {
        let send = unary!(get_transaction, v1::GetTransactionRequest);
        Ok(self.call(self.read("transaction"), hash, send)?.try_into()?)
    }

    fn state_diffs(&self, blocks: &[B256]) -> Result<Vec<Option<Arc<StateDiff>>>> {
        self.diffs("state_diffs", blocks, false)
    }

    fn account_diffs(&self, blocks: &[B256]) -> Result<Vec<Option<Arc<StateDiff>>>> {
        self.diffs("account_diffs", blocks, true)
    }

    fn kept(&self, block: B256) -> Result<Option<KeptBlock>> {
        let send = unary!(get_kept, v1::GetKeptRequest);
        Ok(self.call(self.read("kept"), block, send)?.try_into()?)
    }
}

impl StateRanges for Client {
    fn state_items(&self, request: &StateRequest) -> Result<StateItems> {
        let send = unary!(get_state_items, v1::GetStateItemsRequest);
        Ok(self.call(self.write("state_items"), request.clone(), send)?.try_into()?)
    }
}

impl BlockWrites for Client {
    fn commit(&self, epoch: Epoch, block: Block) -> Result<()> {
        let send = unary!(commit, v1::CommitRequest);
        let committed = self.call_directly(self.write("commit"), "Commit", (epoch, block), send);
        committed.map(|v1::CommitResponse {}| ())
    }

    fn prove(&self, epoch: Epoch, block: B256) -> Result<()> {
        let send = unary!(prove, v1::ProveRequest);
        self.call(self.write("prove"), (epoch, block), send).map(|_| ())
    }

    fn discard(&self, epoch: Epoch, block: B256) -> Result<()> {
        let send = unary!(discard, v1::DiscardRequest);
        self.call(self.write("discard"), (epoch, block), send).map(|_| ())
    }

    fn keep(&self, epoch: Epoch, block: KeptBlock) -> Result<()> {
        let send = unary!(keep, v1::KeepRequest);
        self.call(self.write("keep"), (epoch, block), send).map(|_| ())
    }

    fn canonicalize(&self, epoch: Epoch, forkchoice: Forkchoice) -> Result<BlockNumber> {
        let send = unary!(canonicalize, v1::CanonicalizeRequest);
        let request = (epoch, forkchoice);
        let answer: v1::CanonicalizeResponse =
            self.call_directly(self.write("canonicalize"), "Canonicalize", request, send)?;
        Ok(answer.goal.unwrap_or(forkchoice.head.number))
    }

    fn rewind(&self, epoch: Epoch, to: BlockNumber) -> Result<()> {
        let send = unary!(rewind, v1::RewindRequest);
        self.call(self.write("rewind"), (epoch, to), send).map(|_| ())
    }
}

impl WriteLease for Client {
    fn claim_epoch(&self, claim: &Claim) -> Result<Epoch> {
        // Not retried: a retry would fence a grant whose answer was lost, which is harmless. But it
        // would also fence an executor that took over meanwhile.
        let stopping = || Error::Unavailable("stopping".to_owned());
        if self.lease.has_left() {
            return Err(stopping());
        }
        let options = self.write("acquire_epoch").once();
        let request = self.lease.request(&claim.executor);
        let answer = self.call(options, request, unary!(acquire_epoch, v1::AcquireEpochRequest))?;
        let epoch = Epoch::try_from(answer)?;
        if !self.lease.set_granted(epoch) {
            self.runtime.block_on(self.lease.release_epoch(&self.remote, epoch));
            return Err(stopping());
        }
        Ok(epoch)
    }

    fn keep_epoch(&self, epoch: Epoch) -> Result<()> {
        let request = (epoch, self.lease.duration());
        let send = unary!(keep_epoch, v1::KeepEpochRequest);
        self.call(self.read("keep_epoch"), request, send).map(|_| ())
    }

    fn release_epoch(&self, epoch: Epoch) -> Result<()> {
        let send = unary!(keep_epoch, v1::KeepEpochRequest);
        self.call(self.read("keep_epoch"), (epoch, Duration::ZERO), send).map(|_| ())
    }

    fn holder(&self) -> Result<Option<Holder>> {
        self.runtime.block_on(self.find_holder())
    }
}
