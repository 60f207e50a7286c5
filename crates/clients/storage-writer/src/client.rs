//! Client of a storage-writer in another process, for executor and workers.

use super::{
    diffs::{QueuedTrieDiff, send_all},
    lease_keeper::LeaseKeeper,
    parts,
    read_coalescer::ReadCoalescer,
    remote::{CallOptions, Calls, Remote},
};
use crate::metrics as names;
use metrics::counter;
use prost::Message;
use serde::Deserialize;
use std::{sync::Arc, time::Duration};
use tandem_actor::{TaskSender, task_queue};
use tandem_primitives::{
    B256, BlockId, BlockNumber, Bytes, ShardSet, StateDiff, TrieDiff, WalkTarget,
};
use tandem_proto::{
    access::STORAGE_WRITER,
    convert::ERROR_METADATA,
    storage::{
        BaseReads, Block, BlockReads, BlockRecord, BlockRef, BlockWrites, Checkpoint, Claim, Epoch,
        Error, ExecutorAddress, Forkchoice, Holder, KeptBlock, PendingBlock, ReadState, Result,
        StateValues, TransactionPlace, TrieNodes, TrieStorage, WriteLease,
    },
    wire::storage_writer::v1::{self, storage_writer_server::SERVICE_NAME},
};
use tandem_rpc::{EndpointError, Identity, Links, Peer, Server};
use tokio::runtime::Handle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::{Request, Status};

const SERVER: Server = Server {
    name: STORAGE_WRITER,
    connections: names::CLIENT_CONNECTIONS,
    lost: names::CLIENT_CONNECTIONS_LOST,
    stream_window: 8 << 20,
};

/// Settings of a [`Client`]. All times are in milliseconds.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientConfig {
    /// Longest time that opening a connection may take.
    pub connect_ms_max: u64,
    /// Time a call waits for a connection that is being made or remade, if its deadline permits.
    pub reconnect_wait_ms: u64,
    /// Longest wait for the answer to a read, a walk, or a look-up of a block.
    pub read_ms_max: u64,
    /// Longest wait for the answer to a write, a list of blocks or a trie diff. A write may have to
    /// wait for the base; the others may have to be computed.
    pub write_ms_max: u64,
    /// Interval between two HTTP/2 pings, and the longest wait for the answer to one.
    pub keep_alive_ms: u64,
    /// Number of trie diffs that may wait for the connection; further ones are dropped.
    pub diffs_capacity: usize,
    /// Time after this client's last sign of life during which no other executor can take over its
    /// right to write. The client renews its lease four times in that period. 0: no renewals, and
    /// others may take over at once.
    pub lease_ms: u64,
    /// Identity with which to connect.
    #[serde(skip)]
    pub identity: Identity,
    /// Address at which the executor that asks for the right to write serves, for other executors.
    #[serde(skip)]
    pub address: Option<ExecutorAddress>,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            connect_ms_max: 1_000,
            reconnect_wait_ms: 2_000,
            read_ms_max: 10_000,
            write_ms_max: 60_000,
            keep_alive_ms: 2_000,
            diffs_capacity: 64,
            lease_ms: 0,
            identity: Identity::default(),
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

/// Client of one [`Server`].
///
/// Calls wait for the answer (see [`ClientConfig`]), so they do not belong in async code, where
/// they panic. Only [`TrieStorage::put_trie_diff`] never waits and never fails.
pub struct Client {
    remote: Arc<Remote>,
    runtime: Handle,
    reads: ReadCoalescer,
    tenure: Arc<LeaseKeeper>,
    diffs: TaskSender<QueuedTrieDiff>,
    /// Cancelled when calls must stop waiting.
    stopped: CancellationToken,
    _stop: DropGuard,
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
        names::describe_client();
        let (connect, alive) = (config.connect_ms_max, config.keep_alive_ms);
        let peer = Peer::new(endpoint, SERVER, &config.identity, connect, alive)?;
        let (diffs, queue) = task_queue("trie-diffs", config.diffs_capacity);
        let lease = Duration::from_millis(config.lease_ms);
        let tenure = Arc::new(LeaseKeeper::new(lease, config.address.clone()));
        let remote = Arc::new(Remote { config, links: Links::new(ERROR_METADATA) });
        let held = tenure.clone();
        let stop = CancellationToken::new();
        let (keeper, stopped) = (remote.clone(), stop.clone());
        runtime.spawn(async move {
            tokio::select! {
                () = stopped.cancelled() => {}
                () = keeper.links.keep(&peer, SERVICE_NAME) => {}
                () = send_all(&keeper, queue) => {}
                () = held.keep(&keeper) => {}
            }
        });
        let (runtime, stopped) = (runtime.clone(), CancellationToken::new());
        let (reads, _stop) = (ReadCoalescer::default(), stop.drop_guard());
        Ok(Arc::new(Self { remote, runtime, reads, tenure, diffs, stopped, _stop }))
    }

    /// Returns whether there is a connection now.
    pub fn is_connected(&self) -> bool {
        self.remote.links.is_connected()
    }

    /// Waits until another executor has taken over the right to write that this client held under a
    /// lease.
    pub async fn fenced(&self) {
        self.tenure.fenced().await;
    }

    /// Waits until this client has the right to write.
    pub async fn granted(&self) {
        self.tenure.granted().await;
    }

    /// Returns the executor that has the right to write, `None` when no lease is running.
    ///
    /// # Errors
    /// As for every call; also from a server of version 0.1.0, which cannot tell.
    pub async fn find_holder(&self) -> Result<Option<Holder>> {
        let send = unary!(get_holder, v1::GetHolderRequest);
        let request = v1::GetHolderRequest {};
        let answer = self.remote.ask(self.read("holder"), request, send).await?;
        Ok(Option::<Holder>::try_from(answer)?)
    }

    /// Releases the right to write at once, and stops asking for it: all later claims are
    /// [`Error::Unavailable`].
    pub async fn leave(&self) {
        self.tenure.leave(&self.remote).await;
    }

    /// Releases the right to write at once. Waits for the answer, like all calls.
    pub fn release_epoch(&self) {
        self.runtime.block_on(self.tenure.release(&self.remote));
    }

    /// Ends the waiting calls, and refuses all later ones with [`Error::Unavailable`]. Releases the
    /// right to write at once. Must be called before the runtime ends, because a call that still
    /// waits then panics. Waits for an answer itself, for at most two seconds.
    pub fn stop(&self) {
        self.stopped.cancel();
        self.release_epoch();
    }

    fn read(&self, name: &'static str) -> CallOptions {
        self.remote.config.read(name)
    }

    fn write(&self, name: &'static str) -> CallOptions {
        self.remote.config.write(name)
    }

    /// Makes a call and waits for its answer.
    fn ask<R: Message + Clone, A, F>(
        &self,
        options: CallOptions,
        request: impl Into<R>,
        send: impl Fn(Calls, Request<R>) -> F,
    ) -> Result<A>
    where
        F: Future<Output = Result<A, Status>>,
    {
        let answer = self.remote.ask(options, request.into(), send);
        self.runtime.block_on(async {
            tokio::select! {
                // Checked first, so that no part of a call touches a runtime that is ending.
                biased;
                () = self.stopped.cancelled() => Err(Error::Unavailable("stopping".to_owned())),
                answer = answer => answer,
            }
        })
    }
}

impl BaseReads for Client {
    fn checkpoint(&self) -> Result<Checkpoint> {
        let request = v1::GetCheckpointRequest {};
        let send = unary!(get_checkpoint, v1::GetCheckpointRequest);
        Ok(self.ask(self.read("checkpoint"), request, send)?.try_into()?)
    }

    fn read_state(&self, request: &ReadState) -> Result<StateValues> {
        let read = |part: &ReadState| {
            let send = unary!(read_state, v1::ReadStateRequest);
            let answer = self.ask(self.read("read_state"), part, send)?;
            Ok(answer.into_values(part)?)
        };
        self.reads.read(request, |all| parts::read_state(all, read))
    }

    fn walk_trie(&self, targets: &[WalkTarget]) -> Result<TrieNodes> {
        parts::walk_trie(targets, |part| {
            let send = unary!(walk_trie, v1::WalkTrieRequest);
            Ok(self.ask(self.read("walk_trie"), part, send)?.try_into()?)
        })
    }
}

impl TrieStorage for Client {
    fn pending(&self) -> Result<Vec<PendingBlock>> {
        let request = v1::ListPendingRequest { headers_only: true };
        let send = |mut calls: Calls, request: Request<v1::ListPendingRequest>| async move {
            let mut stream = calls.list_pending(request).await?.into_inner();
            let mut blocks = Vec::new();
            while let Some(message) = stream.message().await? {
                blocks.push(message);
            }
            Ok(blocks)
        };
        let blocks = self.ask(self.write("pending"), request, send)?;
        blocks.into_iter().map(|wire| Ok(PendingBlock::try_from(wire)?)).collect()
    }

    fn trie_diff(&self, block: B256) -> Result<Option<Arc<TrieDiff>>> {
        let send = |mut calls: Calls, request: Request<v1::GetTrieDiffRequest>| async move {
            let mut stream = calls.get_trie_diff(request).await?.into_inner();
            let mut parts = Vec::new();
            while let Some(part) = stream.message().await? {
                parts.push(part);
            }
            Ok(parts)
        };
        let parts = self.ask(self.write("trie_diff"), block, send)?;
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
        let send = unary!(get_block, v1::GetBlockRequest);
        Ok(self.ask(self.read("block"), block, send)?.try_into()?)
    }

    fn header(&self, block: BlockRef) -> Result<Option<(BlockId, Bytes)>> {
        let send = unary!(get_header, v1::GetHeaderRequest);
        Ok(self.ask(self.read("header"), block, send)?.try_into()?)
    }

    fn transaction(&self, hash: B256) -> Result<Option<TransactionPlace>> {
        let send = unary!(get_transaction, v1::GetTransactionRequest);
        Ok(self.ask(self.read("transaction"), hash, send)?.try_into()?)
    }

    fn state_diffs(&self, blocks: &[B256]) -> Result<Vec<Option<Arc<StateDiff>>>> {
        let send = |mut calls: Calls, request: Request<v1::GetStateDiffsRequest>| async move {
            let mut stream = calls.get_state_diffs(request).await?.into_inner();
            let mut diffs = Vec::new();
            while let Some(message) = stream.message().await? {
                diffs.push(message);
            }
            Ok(diffs)
        };
        let diffs = self.ask(self.write("state_diffs"), blocks, send)?;
        if diffs.len() != blocks.len() {
            let text = format!("{} state diffs for {} blocks", diffs.len(), blocks.len());
            return Err(Error::Store(text));
        }
        diffs.into_iter().map(|wire| Ok(wire.try_into()?)).collect()
    }

    fn kept(&self, block: B256) -> Result<Option<KeptBlock>> {
        let send = unary!(get_kept, v1::GetKeptRequest);
        Ok(self.ask(self.read("kept"), block, send)?.try_into()?)
    }
}

impl BlockWrites for Client {
    fn commit(&self, epoch: Epoch, block: Block) -> Result<()> {
        let send = unary!(commit, v1::CommitRequest);
        self.ask(self.write("commit"), (epoch, block), send).map(|_| ())
    }

    fn prove(&self, epoch: Epoch, block: B256) -> Result<()> {
        let send = unary!(prove, v1::ProveRequest);
        self.ask(self.write("prove"), (epoch, block), send).map(|_| ())
    }

    fn discard(&self, epoch: Epoch, block: B256) -> Result<()> {
        let send = unary!(discard, v1::DiscardRequest);
        self.ask(self.write("discard"), (epoch, block), send).map(|_| ())
    }

    fn keep(&self, epoch: Epoch, block: KeptBlock) -> Result<()> {
        let send = unary!(keep, v1::KeepRequest);
        self.ask(self.write("keep"), (epoch, block), send).map(|_| ())
    }

    fn canonicalize(&self, epoch: Epoch, forkchoice: Forkchoice) -> Result<BlockNumber> {
        let send = unary!(canonicalize, v1::CanonicalizeRequest);
        let answer = self.ask(self.write("canonicalize"), (epoch, forkchoice), send)?;
        Ok(answer.goal.unwrap_or(forkchoice.head.number))
    }

    fn rewind(&self, epoch: Epoch, to: BlockNumber) -> Result<()> {
        let send = unary!(rewind, v1::RewindRequest);
        self.ask(self.write("rewind"), (epoch, to), send).map(|_| ())
    }
}

impl WriteLease for Client {
    fn claim_epoch(&self, claim: &Claim) -> Result<Epoch> {
        // Not retried: a retry would fence a grant whose answer was lost, which is harmless. But it
        // would also fence an executor that took over meanwhile.
        let stopping = || Error::Unavailable("stopping".to_owned());
        if self.tenure.has_left() {
            return Err(stopping());
        }
        let options = self.write("acquire_epoch").once();
        let request = self.tenure.request(&claim.executor);
        let answer = self.ask(options, request, unary!(acquire_epoch, v1::AcquireEpochRequest))?;
        let epoch = Epoch::try_from(answer)?;
        if !self.tenure.begin(epoch) {
            self.runtime.block_on(self.tenure.give_back(&self.remote, epoch));
            return Err(stopping());
        }
        Ok(epoch)
    }

    fn keep_epoch(&self, epoch: Epoch) -> Result<()> {
        let request = (epoch, self.tenure.lease());
        let send = unary!(keep_epoch, v1::KeepEpochRequest);
        self.ask(self.read("keep_epoch"), request, send).map(|_| ())
    }

    fn release_epoch(&self, epoch: Epoch) -> Result<()> {
        let send = unary!(keep_epoch, v1::KeepEpochRequest);
        self.ask(self.read("keep_epoch"), (epoch, Duration::ZERO), send).map(|_| ())
    }

    fn holder(&self) -> Result<Option<Holder>> {
        self.runtime.block_on(self.find_holder())
    }
}
