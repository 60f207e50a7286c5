//! Calls that clients of the same machine make without HTTP/2: those of which a block has many, and those
//! with much in them.

use super::{
    admission::Admission,
    call_scheduler::{CallScheduler, Lane},
};
use prost::Message;
use std::sync::Arc;
use tandem_primitives::{B256, ShardSet, TrieDiff, WalkTarget};
use tandem_proto::{
    storage::{Block, Epoch, Error, Forkchoice, ReadState, StorageApi},
    wire::storage_writer::v1,
};
use tandem_rpc::{Caller, DirectCall, DirectCalls, span_within};
use tonic::Status;
use tracing::info_span;

/// Returns the function that answers direct calls while the service is there.
pub fn calls(lanes: Arc<CallScheduler>, admission: Admission) -> DirectCalls {
    let writes = Writes { lanes: lanes.clone(), admission };
    Arc::new(move |call, buffer| {
        let Some(api) = lanes.api() else { return false };
        let api = &*api;
        let span = || info_span!("storage_call", otel.kind = "server");
        span_within(call.context, span).in_scope(|| match call.method {
            "ReadState" => answer(call, buffer, |wire| read_state(api, wire)),
            "WalkTrie" => answer(call, buffer, |wire| walk_trie(api, wire)),
            "PutTrieDiff" => answer(call, buffer, |wire| put_trie_diff(api, wire)),
            "Commit" => answer(call, buffer, |wire| writes.run(call.caller, || commit(api, wire))),
            "Canonicalize" => {
                answer(call, buffer, |wire| writes.run(call.caller, || canonicalize(api, wire)))
            }
            _ => false,
        })
    })
}

/// Direct writes of an executor. They share lane and admission with those over HTTP/2.
struct Writes {
    lanes: Arc<CallScheduler>,
    admission: Admission,
}

impl Writes {
    /// Makes a write if no other one runs or waits. Otherwise it has to be made over HTTP/2, where it waits for
    /// its turn. One whose caller gave up has its place until it ends, so it runs beside no other.
    fn run<A>(
        &self,
        caller: &Caller,
        write: impl FnOnce() -> Result<A, Status>,
    ) -> Result<A, Status> {
        self.admission.admit_writer()?;
        let is_taken = || Error::Unavailable("another write runs".to_owned());
        let _turn = self.lanes.free_place(Lane::Write, caller).ok_or_else(is_taken)?;
        self.admission.write(write)
    }
}

/// Answers a call, and returns whether there is an answer.
fn answer<R: Message + Default, A: Message>(
    call: &DirectCall<'_>,
    buffer: &mut Vec<u8>,
    run: impl FnOnce(R) -> Result<A, Status>,
) -> bool {
    let Some(answer) = R::decode(call.request.clone()).ok().and_then(|request| run(request).ok())
    else {
        return false;
    };
    answer.encode(buffer).is_ok()
}

/// Reads accounts, slots and codes.
///
/// # Errors
/// Errors of the request and of the read.
pub fn read_state(
    api: &dyn StorageApi,
    wire: v1::ReadStateRequest,
) -> Result<v1::ReadStateResponse, Status> {
    Ok(api.read_state(&ReadState::try_from(wire)?)?.into())
}

/// Reads the paths to keys.
///
/// # Errors
/// Errors of the request and of the read.
pub fn walk_trie(
    api: &dyn StorageApi,
    wire: v1::WalkTrieRequest,
) -> Result<v1::WalkTrieResponse, Status> {
    Ok(api.walk_trie(&Vec::<WalkTarget>::try_from(wire)?)?.into())
}

/// Takes changed trie nodes of a block.
///
/// # Errors
/// Errors of the request and of the service.
pub fn put_trie_diff(
    api: &dyn StorageApi,
    wire: v1::PutTrieDiffRequest,
) -> Result<v1::PutTrieDiffResponse, Status> {
    let (block, shards, diff) = <(B256, ShardSet, TrieDiff)>::try_from(wire)?;
    api.put_trie_diff(block, shards, Arc::new(diff))?;
    Ok(v1::PutTrieDiffResponse {})
}

/// Makes a block durable.
///
/// # Errors
/// Errors of the request and of the commit.
pub fn commit(api: &dyn StorageApi, wire: v1::CommitRequest) -> Result<v1::CommitResponse, Status> {
    let (epoch, block) = <(Epoch, Block)>::try_from(wire)?;
    api.commit(epoch, block)?;
    Ok(v1::CommitResponse {})
}

/// Makes the chain end in another head.
///
/// # Errors
/// Errors of the request and of the service.
pub fn canonicalize(
    api: &dyn StorageApi,
    wire: v1::CanonicalizeRequest,
) -> Result<v1::CanonicalizeResponse, Status> {
    let (epoch, forkchoice) = <(Epoch, Forkchoice)>::try_from(wire)?;
    Ok(v1::CanonicalizeResponse { goal: Some(api.canonicalize(epoch, forkchoice)?) })
}
