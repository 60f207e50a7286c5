//! The service as gRPC.

use super::{
    lanes::{Lane, Lanes, failed},
    lease::Lease,
};
use crate::metrics as names;
use futures_util::stream::unfold;
use std::{
    future::ready,
    io,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_primitives::{B256, BlockNumber, Shard, TrieDiff, WalkTarget};
use tandem_proto::{
    access::permits,
    convert::{EpochRequest, TrieDiffParts},
    limits::STORAGE_MESSAGE_BYTES_MAX,
    storage::{Block, BlockRef, Epoch, Forkchoice, ReadState, StorageApi},
    wire::{
        DESCRIPTORS,
        storage_writer::v1::{
            self,
            storage_writer_server::{self as generated, StorageWriterServer},
        },
    },
};
use tandem_rpc::{Host, Identity, Limits};
use tokio::{net::TcpListener, sync::OwnedSemaphorePermit, task::spawn_blocking};
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

/// A block comes without waiting for the window to open again.
const LIMITS: Limits =
    Limits { calls_max: 256, stream_window: 4 << 20, connection_window: 16 << 20 };

/// Offers a [`StorageApi`] to clients in other processes.
pub struct Server {
    api: Arc<dyn StorageApi>,
    identity: Identity,
}

impl Server {
    /// A server of this service. It holds the handle until it ends, and drops it on a thread.
    pub fn new(api: Arc<dyn StorageApi>) -> Self {
        names::describe_server();
        Self { api, identity: Identity::default() }
    }

    /// The same, offered as this one. Where it is proven, callers must prove who they are.
    #[must_use]
    pub fn offered_as(self, identity: Identity) -> Self {
        Self { identity, ..self }
    }

    /// Answers calls until `stop` is cancelled, then those under way for two seconds at most.
    ///
    /// # Errors
    /// The listener's.
    pub async fn serve(self, listener: TcpListener, stop: CancellationToken) -> io::Result<()> {
        let service = StorageWriterServer::new(Service {
            lanes: Arc::new(Lanes::new(&self.api)),
            lease: Arc::default(),
        })
        .max_decoding_message_size(STORAGE_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(STORAGE_MESSAGE_BYTES_MAX);
        let host = Host {
            service,
            descriptors: DESCRIPTORS,
            limits: LIMITS,
            identity: self.identity,
            access: permits,
            ready: ready(()),
            ended: CancellationToken::new(),
        };
        let result = host.serve(listener, stop).await;
        // The last handle of a storage-writer waits for its thread.
        let _ = spawn_blocking(move || drop(self.api)).await;
        result
    }
}

#[derive(Clone)]
struct Service {
    lanes: Arc<Lanes>,
    lease: Arc<Lease>,
}

type Answer<T> = Result<Response<T>, Status>;
type Parts<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Service {
    async fn answer<R: Send + 'static, A: Send + 'static>(
        &self,
        lane: Lane,
        request: Request<R>,
        call: impl FnOnce(&dyn StorageApi, R) -> Result<A, Status> + Send + 'static,
    ) -> Answer<A> {
        let (answer, _place) = self.lanes.run(lane, request, call).await?;
        Ok(Response::new(answer))
    }
}

/// A stream of parts, each made on a thread when the client has room for it. The place in the lane
/// is held as long as they are.
fn parts<I>(items: I, place: OwnedSemaphorePermit) -> Parts<I::Item>
where
    I: Iterator<Item: Send + 'static> + Send + 'static,
{
    let next = |state: Option<(I, OwnedSemaphorePermit)>| async move {
        let (mut items, place) = state?;
        match spawn_blocking(move || (items.next(), items)).await {
            Ok((item, items)) => Some((Ok(item?), Some((items, place)))),
            Err(_) => Some((Err(failed()), None)),
        }
    };
    Box::pin(unfold(Some((items, place)), next))
}

#[tonic::async_trait]
impl generated::StorageWriter for Service {
    type ListPendingStream = Parts<v1::ListPendingResponse>;
    type GetTrieDiffStream = Parts<v1::GetTrieDiffResponse>;

    async fn acquire_epoch(
        &self,
        request: Request<v1::AcquireEpochRequest>,
    ) -> Answer<v1::AcquireEpochResponse> {
        let lease = self.lease.clone();
        let call = move |api: &dyn StorageApi, wire| {
            let request = EpochRequest::try_from(wire)?;
            lease.admit(&request, Instant::now())?;
            let epoch = api.acquire_epoch(&request.executor)?;
            lease.grant(epoch, request, Instant::now());
            Ok(epoch.into())
        };
        self.answer(Lane::Grant, request, call).await
    }

    async fn keep_epoch(
        &self,
        request: Request<v1::KeepEpochRequest>,
    ) -> Answer<v1::KeepEpochResponse> {
        let held = self.lease.clone();
        let call = move |api: &dyn StorageApi, wire| {
            let (epoch, lease) = <(Epoch, Duration)>::try_from(wire)?;
            api.keep_epoch(epoch)?;
            held.keep(epoch, lease, Instant::now());
            Ok(v1::KeepEpochResponse {})
        };
        // In the lane of grants, so that nothing comes between question and answer.
        self.answer(Lane::Grant, request, call).await
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
        let call = |api: &dyn StorageApi, _| Ok(api.pending()?);
        let (blocks, place) = self.lanes.run(Lane::Long, request, call).await?;
        Ok(Response::new(parts(blocks.into_iter().map(Into::into), place)))
    }

    async fn get_trie_diff(
        &self,
        request: Request<v1::GetTrieDiffRequest>,
    ) -> Answer<Self::GetTrieDiffStream> {
        let call = |api: &dyn StorageApi, wire| Ok(api.trie_diff(B256::try_from(wire)?)?);
        let (diff, place) = self.lanes.run(Lane::Long, request, call).await?;
        Ok(Response::new(parts(diff.into_iter().flat_map(TrieDiffParts::new), place)))
    }

    async fn read_state(
        &self,
        request: Request<v1::ReadStateRequest>,
    ) -> Answer<v1::ReadStateResponse> {
        let call =
            |api: &dyn StorageApi, wire| Ok(api.read_state(&ReadState::try_from(wire)?)?.into());
        self.answer(Lane::Short, request, call).await
    }

    async fn walk_trie(
        &self,
        request: Request<v1::WalkTrieRequest>,
    ) -> Answer<v1::WalkTrieResponse> {
        let call = |api: &dyn StorageApi, wire| {
            Ok(api.walk_trie(&Vec::<WalkTarget>::try_from(wire)?)?.into())
        };
        self.answer(Lane::Short, request, call).await
    }

    async fn commit(&self, request: Request<v1::CommitRequest>) -> Answer<v1::CommitResponse> {
        let call = |api: &dyn StorageApi, wire| {
            let (epoch, block) = <(Epoch, Block)>::try_from(wire)?;
            api.commit(epoch, block)?;
            Ok(v1::CommitResponse {})
        };
        self.answer(Lane::Write, request, call).await
    }

    async fn discard(&self, request: Request<v1::DiscardRequest>) -> Answer<v1::DiscardResponse> {
        let call = |api: &dyn StorageApi, wire| {
            let (epoch, block) = <(Epoch, B256)>::try_from(wire)?;
            api.discard(epoch, block)?;
            Ok(v1::DiscardResponse {})
        };
        self.answer(Lane::Write, request, call).await
    }

    async fn put_trie_diff(
        &self,
        request: Request<v1::PutTrieDiffRequest>,
    ) -> Answer<v1::PutTrieDiffResponse> {
        let call = |api: &dyn StorageApi, wire| {
            let (block, shards, diff) = <(B256, Vec<Shard>, TrieDiff)>::try_from(wire)?;
            api.put_trie_diff(block, &shards, Arc::new(diff))?;
            Ok(v1::PutTrieDiffResponse {})
        };
        self.answer(Lane::Short, request, call).await
    }

    async fn canonicalize(
        &self,
        request: Request<v1::CanonicalizeRequest>,
    ) -> Answer<v1::CanonicalizeResponse> {
        let call = |api: &dyn StorageApi, wire| {
            let (epoch, forkchoice) = <(Epoch, Forkchoice)>::try_from(wire)?;
            api.canonicalize(epoch, forkchoice)?;
            Ok(v1::CanonicalizeResponse {})
        };
        self.answer(Lane::Write, request, call).await
    }

    async fn rewind(&self, request: Request<v1::RewindRequest>) -> Answer<v1::RewindResponse> {
        let call = |api: &dyn StorageApi, wire| {
            let (epoch, to) = <(Epoch, BlockNumber)>::from(wire);
            api.rewind(epoch, to)?;
            Ok(v1::RewindResponse {})
        };
        self.answer(Lane::Write, request, call).await
    }

    async fn get_block(
        &self,
        request: Request<v1::GetBlockRequest>,
    ) -> Answer<v1::GetBlockResponse> {
        let call = |api: &dyn StorageApi, wire| Ok(api.block(BlockRef::try_from(wire)?)?.into());
        self.answer(Lane::Short, request, call).await
    }

    async fn get_header(
        &self,
        request: Request<v1::GetHeaderRequest>,
    ) -> Answer<v1::GetHeaderResponse> {
        let call = |api: &dyn StorageApi, wire| Ok(api.header(BlockRef::try_from(wire)?)?.into());
        self.answer(Lane::Short, request, call).await
    }

    async fn get_transaction(
        &self,
        request: Request<v1::GetTransactionRequest>,
    ) -> Answer<v1::GetTransactionResponse> {
        let call = |api: &dyn StorageApi, wire| Ok(api.transaction(B256::try_from(wire)?)?.into());
        self.answer(Lane::Short, request, call).await
    }
}
