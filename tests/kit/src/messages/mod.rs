//! All messages with the code that receives them.

pub mod values;

use bytes::Bytes;
use prost::Message;
use std::{sync::Arc, time::Duration};
use tandem_primitives::{
    Address, B256, BlockId, Bytes as Rlp, ShardSet, StateDiff, TrieDiff, WalkTarget,
};
use tandem_proto::{
    blob_validator::{Content, StoredBlob, Verdict},
    convert::{
        BlobRequest, BlobStreamAnswer, BlobStreamRequest, EpochRequest, SessionAnswer,
        SessionCommand, TxAnswer, TxRequest,
    },
    event::{
        BlobsValidated, ChainEvent, Contact, PeersDiscovered, PeersTarget, TracesSlow, WorkerAlive,
    },
    exchange,
    feed::FollowRequest,
    multiproof,
    peer_sessions::{self, Fetch, Fetched, Misconduct, PeerId, Session},
    peer_table,
    snap::{DownloadAnswer, DownloadStep, StateItems, StateRequest},
    storage::{
        self, Block, BlockRecord, BlockRef, Checkpoint, Epoch, Forkchoice, KeptBlock, PendingBlock,
        ReadState, TransactionPlace, TrieNodes,
    },
    tx_pool::{self, PooledTransaction},
    wire::{
        blob_validator::v1 as blobs, event::v1 as event, multiproof_workers::v1 as workers,
        peer_sessions::v1 as sessions, peer_table::v1 as peers, storage_writer::v1 as writer,
        tx_executor::v1 as transactions, tx_pool::v1 as pool,
    },
};

/// Function that receives the bytes of a message and returns whether it accepts them.
pub type Receiver = fn(Bytes) -> bool;

fn receive<M: Message + Default, T: TryFrom<M>>(bytes: Bytes) -> bool {
    M::decode(bytes).is_ok_and(|message| T::try_from(message).is_ok())
}

/// Returns the read that the answers in [`RECEIVERS`] belong to.
pub fn small_read() -> ReadState {
    ReadState {
        accounts: vec![B256::ZERO; 3],
        slots: vec![(B256::ZERO, B256::ZERO); 3],
        codes: vec![B256::ZERO; 3],
    }
}

fn receive_values(bytes: Bytes) -> bool {
    let message = writer::ReadStateResponse::decode(bytes);
    message.is_ok_and(|message| message.into_values(&small_read()).is_ok())
}

/// All messages that have content.
pub const RECEIVERS: [(&str, Receiver); 82] = [
    ("ChainEvent", receive::<event::ChainEvent, ChainEvent>),
    ("PeersDiscovered", receive::<event::PeersDiscovered, PeersDiscovered>),
    ("PeersTarget", receive::<event::PeersTarget, PeersTarget>),
    ("WorkerAlive", receive::<event::WorkerAlive, WorkerAlive>),
    ("TracesSlow", receive::<event::TracesSlow, TracesSlow>),
    ("AcquireEpochRequest", receive::<writer::AcquireEpochRequest, EpochRequest>),
    ("KeepEpochRequest", receive::<writer::KeepEpochRequest, (Epoch, Duration)>),
    ("AcquireEpochResponse", receive::<writer::AcquireEpochResponse, Epoch>),
    ("GetCheckpointResponse", receive::<writer::GetCheckpointResponse, Checkpoint>),
    ("ListPendingResponse", receive::<writer::ListPendingResponse, Block>),
    ("ListPendingResponse, headers", receive::<writer::ListPendingResponse, PendingBlock>),
    ("GetStateDiffsRequest", receive::<writer::GetStateDiffsRequest, Vec<B256>>),
    ("GetStateDiffsResponse", receive::<writer::GetStateDiffsResponse, Option<Arc<StateDiff>>>),
    ("ProveRequest", receive::<writer::ProveRequest, (Epoch, B256)>),
    ("KeepRequest", receive::<writer::KeepRequest, (Epoch, KeptBlock)>),
    ("GetKeptRequest", receive::<writer::GetKeptRequest, B256>),
    ("GetKeptResponse", receive::<writer::GetKeptResponse, Option<KeptBlock>>),
    ("GetTrieDiffRequest", receive::<writer::GetTrieDiffRequest, B256>),
    ("GetTrieDiffResponse", receive::<writer::GetTrieDiffResponse, TrieDiff>),
    ("ReadStateRequest", receive::<writer::ReadStateRequest, ReadState>),
    ("ReadStateResponse", receive_values),
    ("WalkTrieRequest", receive::<writer::WalkTrieRequest, Vec<WalkTarget>>),
    ("WalkTrieResponse", receive::<writer::WalkTrieResponse, TrieNodes>),
    ("CommitRequest", receive::<writer::CommitRequest, (Epoch, Block)>),
    ("DiscardRequest", receive::<writer::DiscardRequest, (Epoch, B256)>),
    ("PutTrieDiffRequest", receive::<writer::PutTrieDiffRequest, (B256, ShardSet, TrieDiff)>),
    ("CanonicalizeRequest", receive::<writer::CanonicalizeRequest, (Epoch, Forkchoice)>),
    ("RewindRequest", receive::<writer::RewindRequest, (Epoch, u64)>),
    ("GetBlockRequest", receive::<writer::GetBlockRequest, BlockRef>),
    ("GetBlockResponse", receive::<writer::GetBlockResponse, Option<BlockRecord>>),
    ("GetHeaderRequest", receive::<writer::GetHeaderRequest, BlockRef>),
    ("GetHeaderResponse", receive::<writer::GetHeaderResponse, Option<(BlockId, Rlp)>>),
    ("GetAccessListRequest", receive::<writer::GetAccessListRequest, BlockRef>),
    ("GetAccessListResponse", receive::<writer::GetAccessListResponse, Option<Rlp>>),
    ("GetTransactionRequest", receive::<writer::GetTransactionRequest, B256>),
    ("GetTransactionResponse", receive::<writer::GetTransactionResponse, Option<TransactionPlace>>),
    ("GetStateItemsRequest", receive::<writer::GetStateItemsRequest, StateRequest>),
    ("GetStateItemsResponse", receive::<writer::GetStateItemsResponse, StateItems>),
    ("DownloadRequest", receive::<writer::DownloadRequest, (Epoch, DownloadStep)>),
    ("DownloadResponse", receive::<writer::DownloadResponse, DownloadAnswer>),
    ("FollowRequest", receive::<writer::FollowRequest, FollowRequest>),
    ("storage Error", receive::<writer::Error, storage::Error>),
    ("ProcessBlockRequest", receive::<workers::ProcessBlockRequest, SessionCommand>),
    ("ProcessBlockResponse", receive::<workers::ProcessBlockResponse, SessionAnswer>),
    ("workers DiscardRequest", receive::<workers::DiscardRequest, B256>),
    ("GetStatusResponse", receive::<workers::GetStatusResponse, multiproof::Status>),
    ("multiproof Error", receive::<workers::Error, multiproof::Error>),
    ("ValidateRequest", receive::<blobs::ValidateRequest, BlobRequest>),
    ("ValidateResponse", receive::<blobs::ValidateResponse, Verdict>),
    ("ValidateStreamRequest", receive::<blobs::ValidateStreamRequest, BlobStreamRequest>),
    ("ValidateStreamResponse", receive::<blobs::ValidateStreamResponse, BlobStreamAnswer>),
    ("GetBlobsRequest", receive::<blobs::GetBlobsRequest, Vec<B256>>),
    ("GetBlobsResponse", receive::<blobs::GetBlobsResponse, Option<StoredBlob>>),
    ("ForgetRequest", receive::<blobs::ForgetRequest, Vec<B256>>),
    ("BlobsValidated", receive::<event::BlobsValidated, BlobsValidated>),
    ("ApplyBatchRequest", receive::<peers::ApplyBatchRequest, Vec<Contact>>),
    ("SampleForLookupResponse", receive::<peers::SampleForLookupResponse, Option<Contact>>),
    ("SampleForEnrResponse", receive::<peers::SampleForEnrResponse, Option<Contact>>),
    ("ClosestRequest", receive::<peers::ClosestRequest, (B256, usize)>),
    ("ClosestResponse", receive::<peers::ClosestResponse, Vec<Contact>>),
    ("peer-table Error", receive::<peers::Error, peer_table::Error>),
    ("ListSessionsResponse", receive::<sessions::ListSessionsResponse, Vec<Session>>),
    ("FetchRequest", receive::<sessions::FetchRequest, (PeerId, Fetch)>),
    ("FetchResponse", receive::<sessions::FetchResponse, Fetched>),
    ("ReportRequest", receive::<sessions::ReportRequest, (PeerId, Misconduct)>),
    ("peer-sessions Error", receive::<sessions::Error, peer_sessions::Error>),
    ("RecallRequest", receive::<blobs::RecallRequest, Content>),
    (
        "ExchangeTransactionsRequest",
        receive::<sessions::ExchangeTransactionsRequest, exchange::PoolMessage>,
    ),
    (
        "ExchangeTransactionsResponse",
        receive::<sessions::ExchangeTransactionsResponse, exchange::SessionsMessage>,
    ),
    ("AddRequest", receive::<pool::AddRequest, Vec<Rlp>>),
    ("AddResponse", receive::<pool::AddResponse, Vec<Result<B256, tx_pool::Error>>>),
    ("GetRequest", receive::<pool::GetRequest, B256>),
    ("GetResponse", receive::<pool::GetResponse, Option<PooledTransaction>>),
    ("GetNextNonceRequest", receive::<pool::GetNextNonceRequest, Address>),
    ("ListBestRequest", receive::<pool::ListBestRequest, tx_pool::BestQuery>),
    ("ListBestResponse", receive::<pool::ListBestResponse, tx_pool::BestPage>),
    ("ListArrivalsResponse", receive::<pool::ListArrivalsResponse, tx_pool::Arrivals>),
    ("ListContentRequest", receive::<pool::ListContentRequest, Option<Address>>),
    ("ListContentResponse", receive::<pool::ListContentResponse, tx_pool::Content>),
    ("ExecuteBlocksRequest", receive::<transactions::ExecuteBlocksRequest, TxRequest>),
    ("ExecuteBlocksResponse", receive::<transactions::ExecuteBlocksResponse, TxAnswer>),
    ("tx-pool Error", receive::<pool::Error, tx_pool::Error>),
];
