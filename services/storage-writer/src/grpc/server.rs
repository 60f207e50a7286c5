//! gRPC server of storage-writer.

use super::{
    admission::Admission,
    call_scheduler::{CallScheduler, Lane, caller},
    direct,
    download::download,
    feed::{ServedFeed, follow},
    lease_table::LeaseTable,
    streams::{Asked, Parts, parts},
};
use crate::{body::transaction_hashes, lead::LeadLease, metrics as names};
use std::{
    future::ready,
    io,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};
use tandem_primitives::{B256, BlockNumber};
use tandem_proto::{
    access::permits,
    convert::{EpochRequest, TrieDiffParts},
    feed::{FeedReads, FollowRequest},
    limits::STORAGE_MESSAGE_BYTES_MAX,
    snap::StateRequest,
    storage::{
        self, Block, BlockRecord, BlockRef, DatabaseCheckpoints, Epoch, KeptBlock, Leadership,
        PendingBlock, StateDownloads, StorageApi, Term,
    },
    wire::{
        DESCRIPTORS,
        storage_writer::v1::{
            self,
            storage_writer_server::{self as generated, StorageWriterServer},
        },
    },
};
use tandem_rpc::{Host, Identity, Limits, Listener};
use tokio::{sync::Semaphore, task::spawn_blocking};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

/// Windows large enough for a block to arrive without waiting for one to open again.
const LIMITS: Limits =
    Limits { calls_max: 256, stream_window: 4 << 20, connection_window: 16 << 20 };

/// Longest time for which a client may read nothing from a stream.
const UNREAD_MAX: Duration = Duration::from_secs(10);

/// Server of a [`StorageApi`] for clients in other processes.
pub struct Server {
    api: Arc<dyn StorageApi>,
    feed: Option<Arc<dyn FeedReads>>,
    downloads: Option<Arc<dyn StateDownloads>>,
    checkpoints: Option<Arc<dyn DatabaseCheckpoints>>,
    leadership: Option<Arc<dyn Leadership>>,
    lead_lease: Option<Arc<LeadLease>>,
    is_read_only: bool,
    identity: Identity,
    unread_max: Duration,
}

impl Server {
    /// Creates a server of this API. It holds the handle until it ends, and drops it on a thread.
    pub fn new(api: Arc<dyn StorageApi>) -> Self {
        names::describe_server();
        let identity = Identity::default();
        Self {
            api,
            feed: None,
            downloads: None,
            checkpoints: None,
            leadership: None,
            lead_lease: None,
            is_read_only: false,
            identity,
            unread_max: UNREAD_MAX,
        }
    }

    /// Sets the longest time for which a client may read nothing from a stream, instead of ten
    /// seconds.
    #[must_use]
    pub fn unread_at_most(self, unread_max: Duration) -> Self {
        Self { unread_max, ..self }
    }

    /// Offers the feed to followers too.
    #[must_use]
    pub fn feeding(self, feed: Arc<dyn FeedReads>) -> Self {
        Self { feed: Some(feed), ..self }
    }

    /// Takes states in that an executor downloads.
    #[must_use]
    pub fn downloading(self, downloads: Arc<dyn StateDownloads>) -> Self {
        Self { downloads: Some(downloads), ..self }
    }

    /// Offers checkpoints of the database to operators too.
    #[must_use]
    pub fn checkpointing(self, checkpoints: Arc<dyn DatabaseCheckpoints>) -> Self {
        Self { checkpoints: Some(checkpoints), ..self }
    }

    /// Serves only while the storage-writer leads, and lets operators promote it. Without this call the
    /// server always serves.
    #[must_use]
    pub fn led_by(self, leadership: Arc<dyn Leadership>) -> Self {
        Self { leadership: Some(leadership), ..self }
    }

    /// Serves and takes writes only under this lease.
    #[must_use]
    pub fn leased(self, lease: Arc<LeadLease>) -> Self {
        Self { lead_lease: Some(lease), ..self }
    }

    /// Refuses all writes and grants: the executor is in the server's own process.
    #[must_use]
    pub fn without_writes(self) -> Self {
        Self { is_read_only: true, ..self }
    }

    /// Sets the identity of the server. If it is proven, callers must prove theirs.
    #[must_use]
    pub fn offered_as(self, identity: Identity) -> Self {
        Self { identity, ..self }
    }

    /// Answers calls until `stop` is cancelled, then those under way for two seconds at most.
    ///
    /// # Errors
    /// When the listener or the look-up of the current lease fails.
    pub async fn serve(
        self,
        listener: impl Into<Listener>,
        stop: CancellationToken,
    ) -> io::Result<()> {
        let holder = self.api.holder().map_err(io::Error::other)?;
        let lease = LeaseTable::open(holder, Instant::now());
        let readers_max = self.feed.as_ref().map_or(0, |feed| feed.feed_readers_max());
        let feed = self.feed.as_ref().filter(|_| readers_max > 0);
        let feed = feed.map(|feed| ServedFeed { feed: Arc::downgrade(feed), stop: stop.clone() });
        let admission = Admission {
            standing: self.leadership.as_ref().map(|leadership| leadership.standing()),
            lease: self.lead_lease.clone(),
            is_read_only: self.is_read_only,
        };
        let lanes = Arc::new(CallScheduler::new(&self.api, self.unread_max));
        let service = StorageWriterServer::new(Service {
            lanes: lanes.clone(),
            lease: Arc::new(lease),
            feed,
            downloads: self.downloads.as_ref().map(Arc::downgrade),
            checkpoints: self.checkpoints.as_ref().map(Arc::downgrade),
            leadership: self.leadership.as_ref().map(Arc::downgrade),
            admission: admission.clone(),
            readers: Arc::new(Semaphore::new(readers_max)),
        })
        .max_decoding_message_size(STORAGE_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(STORAGE_MESSAGE_BYTES_MAX);
        let host = Host {
            service,
            descriptors: DESCRIPTORS,
            limits: LIMITS,
            identity: self.identity,
            access: permits,
            direct: Some(direct::calls(lanes, admission.clone())),
            ready: ready(()),
            ended: CancellationToken::new(),
        };
        let result = match (admission.lease, admission.standing) {
            (Some(lease), _) => host.serve_while(listener, stop, lease.held(), |held| *held).await,
            (None, Some(standing)) => {
                host.serve_while(listener, stop, standing, |standing| standing.leads()).await
            }
            (None, None) => host.serve(listener, stop).await,
        };
        // The last handle of a storage-writer waits for its thread.
        let handles = (self.api, self.feed, self.downloads, self.checkpoints, self.leadership);
        let _ = spawn_blocking(move || drop(handles)).await;
        result
    }
}

#[derive(Clone)]
struct Service {
    lanes: Arc<CallScheduler>,
    lease: Arc<LeaseTable>,
    /// Feed, `None` if it is given to nobody.
    feed: Option<ServedFeed>,
    /// Receiver of a downloaded state, `None` if it takes none.
    downloads: Option<Weak<dyn StateDownloads>>,
    /// Checkpoints, `None` if none are made.
    checkpoints: Option<Weak<dyn DatabaseCheckpoints>>,
    /// Calls about who leads, `None` if the server always serves.
    leadership: Option<Weak<dyn Leadership>>,
    admission: Admission,
    /// Places of the feed's readers.
    readers: Arc<Semaphore>,
}

type Answer<T> = Result<Response<T>, Status>;

impl Service {
    async fn answer<R: Send + 'static, A: Send + 'static>(
        &self,
        lane: Lane,
        request: Request<R>,
        call: impl FnOnce(&dyn StorageApi, R) -> Result<A, Status> + Send + 'static,
    ) -> Answer<A> {
        if !matches!(lane, Lane::Write | Lane::Grant) {
            return Ok(Response::new(self.lanes.run(lane, request, call).await?));
        }
        self.admission.admit_writer()?;
        let admission = self.admission.clone();
        let call = move |api: &dyn StorageApi, wire| admission.write(|| call(api, wire));
        Ok(Response::new(self.lanes.run(lane, request, call).await?))
    }

    /// Makes a call about who leads.
    async fn decide<R: Send + 'static, A: Send + 'static>(
        &self,
        request: Request<R>,
        call: impl FnOnce(&dyn Leadership, R) -> Result<A, Status> + Send + 'static,
    ) -> Answer<A> {
        let Some(leadership) = self.leadership.clone() else {
            let text = "this server knows no other storage-writers".to_owned();
            return Err(storage::Error::Refused(text).into());
        };
        let call = move |_: &dyn StorageApi, wire| {
            let leadership = leadership.upgrade();
            let leadership =
                leadership.ok_or_else(|| storage::Error::Unavailable("stopping".to_owned()))?;
            call(&*leadership, wire)
        };
        // The lane of grants has one place, so decisions are made one after the other.
        Ok(Response::new(self.lanes.run(Lane::Grant, request, call).await?))
    }

    /// Answers with the items of an iterator, part by part.
    async fn answer_in_parts<R, I>(
        &self,
        name: &'static str,
        request: Request<R>,
        call: impl FnOnce(&dyn StorageApi, R) -> Result<I, Status> + Send + 'static,
    ) -> Answer<Parts<I::Item>>
    where
        R: Send + 'static,
        I: Iterator<Item: Send + 'static> + Send + 'static,
    {
        let (lane, caller) = (Lane::Long, caller(&request));
        let items = self.lanes.run(lane, request, call).await?;
        let asked = Asked { lanes: self.lanes.clone(), lane, caller, call: name };
        Ok(Response::new(parts(items, asked)))
    }
}

/// Block of a list, in the form that the caller asked for.
enum Listed {
    Header(PendingBlock),
    Whole(Block),
}

impl From<Listed> for v1::ListPendingResponse {
    fn from(listed: Listed) -> Self {
        match listed {
            Listed::Header(block) => block.into(),
            Listed::Whole(block) => block.into(),
        }
    }
}

/// Returns a pending block with all its contents, `None` when it is not pending any more. Clients
/// of version 0.1.0 ask for this form.
fn whole_block(api: &dyn StorageApi, block: PendingBlock) -> Result<Option<Block>, Status> {
    let PendingBlock { id, parent, header, .. } = block;
    let diff = api.state_diffs(&[id.hash])?.into_iter().next().flatten();
    let (Some(diff), Some(record)) = (diff, api.block(BlockRef::Hash(id.hash))?) else {
        return Ok(None);
    };
    let transaction_hashes = transaction_hashes(&record.body).map_err(storage::Error::from)?;
    let BlockRecord { body, receipts, .. } = record;
    let access_list = None;
    Ok(Some(Block { id, parent, header, body, receipts, transaction_hashes, diff, access_list }))
}

#[tonic::async_trait]
impl generated::StorageWriter for Service {
    type ListPendingStream = Parts<v1::ListPendingResponse>;
    type GetStateDiffsStream = Parts<v1::GetStateDiffsResponse>;
    type GetTrieDiffStream = Parts<v1::GetTrieDiffResponse>;
    type FollowStream = Parts<v1::FollowResponse>;

    async fn acquire_epoch(
        &self,
        request: Request<v1::AcquireEpochRequest>,
    ) -> Answer<v1::AcquireEpochResponse> {
        let lease = self.lease.clone();
        let call = move |api: &dyn StorageApi, wire| {
            let EpochRequest { claim, held } = EpochRequest::try_from(wire)?;
            // A caller that does not prove its epoch holds none.
            let held = held.filter(|held| api.keep_epoch(*held).is_ok());
            lease.admit(held.map(|held| held.number), Instant::now())?;
            let epoch = api.claim_epoch(&claim)?;
            lease.grant(epoch.number, claim, Instant::now());
            Ok(epoch.into())
        };
        let caller = caller(&request);
        let answer = self.answer(Lane::Grant, request, call).await?;
        self.lanes.has_epoch(&caller);
        Ok(answer)
    }

    async fn keep_epoch(
        &self,
        request: Request<v1::KeepEpochRequest>,
    ) -> Answer<v1::KeepEpochResponse> {
        let held = self.lease.clone();
        let call = move |api: &dyn StorageApi, wire| {
            let (epoch, lease) = <(Epoch, Duration)>::try_from(wire)?;
            match lease.is_zero() {
                true => api.release_epoch(epoch),
                false => api.keep_epoch(epoch),
            }?;
            held.keep(epoch.number, lease, Instant::now());
            Ok(v1::KeepEpochResponse {})
        };
        let caller = caller(&request);
        // Runs in the lane of grants, so that nothing comes between question and answer.
        let answer = self.answer(Lane::Grant, request, call).await?;
        self.lanes.has_epoch(&caller);
        Ok(answer)
    }

    async fn get_holder(&self, _: Request<v1::GetHolderRequest>) -> Answer<v1::GetHolderResponse> {
        Ok(Response::new(self.lease.holder(Instant::now()).into()))
    }

    async fn get_checkpoint(
        &self,
        request: Request<v1::GetCheckpointRequest>,
    ) -> Answer<v1::GetCheckpointResponse> {
        self.answer(Lane::Short, request, |api, _| Ok(api.checkpoint()?.into())).await
    }

    async fn list_pending(
        &self,
        request: Request<v1::ListPendingRequest>,
    ) -> Answer<Self::ListPendingStream> {
        let call = |api: &dyn StorageApi, wire: v1::ListPendingRequest| {
            let blocks = api.pending()?;
            let listed = if wire.headers_only {
                blocks.into_iter().map(Listed::Header).collect()
            } else {
                let executed = blocks.into_iter().filter(|block| !block.kept);
                let whole = executed.filter_map(|block| whole_block(api, block).transpose());
                whole.map(|block| block.map(Listed::Whole)).collect::<Result<Vec<_>, Status>>()?
            };
            Ok(listed.into_iter().map(Into::into))
        };
        self.answer_in_parts("ListPending", request, call).await
    }

    async fn get_state_diffs(
        &self,
        request: Request<v1::GetStateDiffsRequest>,
    ) -> Answer<Self::GetStateDiffsStream> {
        let call = |api: &dyn StorageApi, wire: v1::GetStateDiffsRequest| {
            let accounts_only = wire.without_slots;
            let of = Vec::<B256>::try_from(wire)?;
            let diffs = if accounts_only { api.account_diffs(&of) } else { api.state_diffs(&of) };
            Ok(diffs?.into_iter().map(Into::into))
        };
        self.answer_in_parts("GetStateDiffs", request, call).await
    }

    async fn get_trie_diff(
        &self,
        request: Request<v1::GetTrieDiffRequest>,
    ) -> Answer<Self::GetTrieDiffStream> {
        let call = |api: &dyn StorageApi, wire| {
            let diff = api.trie_diff(B256::try_from(wire)?)?;
            Ok(diff.into_iter().flat_map(TrieDiffParts::new))
        };
        self.answer_in_parts("GetTrieDiff", request, call).await
    }

    async fn read_state(
        &self,
        request: Request<v1::ReadStateRequest>,
    ) -> Answer<v1::ReadStateResponse> {
        self.answer(Lane::Short, request, direct::read_state).await
    }

    async fn walk_trie(
        &self,
        request: Request<v1::WalkTrieRequest>,
    ) -> Answer<v1::WalkTrieResponse> {
        self.answer(Lane::Short, request, direct::walk_trie).await
    }

    async fn commit(&self, request: Request<v1::CommitRequest>) -> Answer<v1::CommitResponse> {
        self.answer(Lane::Write, request, direct::commit).await
    }

    async fn discard(&self, request: Request<v1::DiscardRequest>) -> Answer<v1::DiscardResponse> {
        let call = |api: &dyn StorageApi, wire| {
            let (epoch, block) = <(Epoch, B256)>::try_from(wire)?;
            api.discard(epoch, block)?;
            Ok(v1::DiscardResponse {})
        };
        self.answer(Lane::Write, request, call).await
    }

    async fn prove(&self, request: Request<v1::ProveRequest>) -> Answer<v1::ProveResponse> {
        let call = |api: &dyn StorageApi, wire| {
            let (epoch, block) = <(Epoch, B256)>::try_from(wire)?;
            api.prove(epoch, block)?;
            Ok(v1::ProveResponse {})
        };
        self.answer(Lane::Write, request, call).await
    }

    async fn keep(&self, request: Request<v1::KeepRequest>) -> Answer<v1::KeepResponse> {
        let call = |api: &dyn StorageApi, wire| {
            let (epoch, block) = <(Epoch, KeptBlock)>::try_from(wire)?;
            api.keep(epoch, block)?;
            Ok(v1::KeepResponse {})
        };
        self.answer(Lane::Write, request, call).await
    }

    async fn get_kept(&self, request: Request<v1::GetKeptRequest>) -> Answer<v1::GetKeptResponse> {
        let call = |api: &dyn StorageApi, wire| Ok(api.kept(B256::try_from(wire)?)?.into());
        self.answer(Lane::Short, request, call).await
    }

    async fn put_trie_diff(
        &self,
        request: Request<v1::PutTrieDiffRequest>,
    ) -> Answer<v1::PutTrieDiffResponse> {
        self.answer(Lane::Short, request, direct::put_trie_diff).await
    }

    async fn canonicalize(
        &self,
        request: Request<v1::CanonicalizeRequest>,
    ) -> Answer<v1::CanonicalizeResponse> {
        self.answer(Lane::Write, request, direct::canonicalize).await
    }

    async fn rewind(&self, request: Request<v1::RewindRequest>) -> Answer<v1::RewindResponse> {
        let call = |api: &dyn StorageApi, wire| {
            let (epoch, to) = <(Epoch, BlockNumber)>::try_from(wire)?;
            api.rewind(epoch, to)?;
            Ok(v1::RewindResponse {})
        };
        self.answer(Lane::Write, request, call).await
    }

    async fn get_block(
        &self,
        request: Request<v1::GetBlockRequest>,
    ) -> Answer<v1::GetBlockResponse> {
        let call = |api: &dyn StorageApi, wire: v1::GetBlockRequest| {
            let without_receipts = wire.without_receipts;
            let block = BlockRef::try_from(wire)?;
            let record = match without_receipts {
                true => api.block_without_receipts(block),
                false => api.block(block),
            };
            Ok(record?.into())
        };
        self.answer(Lane::Short, request, call).await
    }

    async fn get_header(
        &self,
        request: Request<v1::GetHeaderRequest>,
    ) -> Answer<v1::GetHeaderResponse> {
        let call = |api: &dyn StorageApi, wire| Ok(api.header(BlockRef::try_from(wire)?)?.into());
        self.answer(Lane::Short, request, call).await
    }

    async fn get_access_list(
        &self,
        request: Request<v1::GetAccessListRequest>,
    ) -> Answer<v1::GetAccessListResponse> {
        let call =
            |api: &dyn StorageApi, wire| Ok(api.access_list(BlockRef::try_from(wire)?)?.into());
        self.answer(Lane::Short, request, call).await
    }

    async fn get_state_items(
        &self,
        request: Request<v1::GetStateItemsRequest>,
    ) -> Answer<v1::GetStateItemsResponse> {
        let call = |api: &dyn StorageApi, wire| {
            Ok(api.state_items(&StateRequest::try_from(wire)?)?.into())
        };
        // Long answers for strangers, so not in the lane of short reads.
        self.answer(Lane::Long, request, call).await
    }

    async fn download(
        &self,
        request: Request<v1::DownloadRequest>,
    ) -> Answer<v1::DownloadResponse> {
        let Some(downloads) = self.downloads.clone() else {
            let text = "this storage-writer takes no downloaded state".to_owned();
            return Err(storage::Error::Refused(text).into());
        };
        self.admission.confirm()?;
        download(downloads, &self.lanes, request).await
    }

    async fn get_transaction(
        &self,
        request: Request<v1::GetTransactionRequest>,
    ) -> Answer<v1::GetTransactionResponse> {
        let call = |api: &dyn StorageApi, wire| Ok(api.transaction(B256::try_from(wire)?)?.into());
        self.answer(Lane::Short, request, call).await
    }

    async fn checkpoint_database(
        &self,
        request: Request<v1::CheckpointDatabaseRequest>,
    ) -> Answer<v1::CheckpointDatabaseResponse> {
        let checkpoints = self.checkpoints.clone();
        let call = move |_: &dyn StorageApi, _| {
            let Some(checkpoints) = checkpoints else {
                let text = "this server makes no checkpoints".to_owned();
                return Err(storage::Error::Refused(text).into());
            };
            let checkpoints = checkpoints.upgrade();
            let checkpoints =
                checkpoints.ok_or_else(|| storage::Error::Unavailable("stopping".to_owned()))?;
            Ok(checkpoints.checkpoint_database()?.into())
        };
        self.answer(Lane::Long, request, call).await
    }

    async fn promote(&self, request: Request<v1::PromoteRequest>) -> Answer<v1::PromoteResponse> {
        let call = |leadership: &dyn Leadership, wire: v1::PromoteRequest| {
            Ok(leadership.promote(wire.force)?.into())
        };
        self.decide(request, call).await
    }

    async fn supersede(
        &self,
        request: Request<v1::SupersedeRequest>,
    ) -> Answer<v1::SupersedeResponse> {
        let call = |leadership: &dyn Leadership, wire: v1::SupersedeRequest| {
            let Term(term) = leadership.hear_term(Term(wire.term))?;
            Ok(v1::SupersedeResponse { term })
        };
        self.decide(request, call).await
    }

    async fn follow(&self, request: Request<v1::FollowRequest>) -> Answer<Self::FollowStream> {
        self.admission.admit_reader()?;
        let Some(feed) = self.feed.clone() else {
            let text = "the feed is off (`storage_writer.feed_readers_max`)".to_owned();
            return Err(storage::Error::Refused(text).into());
        };
        let caller = caller(&request);
        let request = FollowRequest::try_from(request.into_inner())?;
        let Ok(place) = self.readers.clone().try_acquire_owned() else {
            let text = "all places of followers are taken (`storage_writer.feed_readers_max`)";
            return Err(storage::Error::Unavailable(text.to_owned()).into());
        };
        let (lanes, lane) = (self.lanes.clone(), Lane::Long);
        let asked = Asked { lanes, lane, caller, call: "Follow" };
        Ok(Response::new(follow(feed, request, place, asked)))
    }
}
