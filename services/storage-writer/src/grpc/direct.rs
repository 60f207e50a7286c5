//! Reads and trie diffs, which clients of the same machine send without HTTP/2. Writes of an executor are not
//! among them: they need their order, and are admitted one by one.

use prost::Message;
use std::sync::{Arc, Weak};
use tandem_primitives::{B256, ShardSet, TrieDiff, WalkTarget};
use tandem_proto::{
    storage::{ReadState, StorageApi},
    wire::storage_writer::v1,
};
use tandem_rpc::{DirectCall, DirectCalls, span_within};
use tonic::Status;
use tracing::info_span;

/// Returns the function that answers direct calls while the service is there.
pub fn calls(api: &Arc<dyn StorageApi>) -> DirectCalls {
    let api: Weak<dyn StorageApi> = Arc::downgrade(api);
    Arc::new(move |call, buffer| {
        let Some(api) = api.upgrade() else { return false };
        let span = || info_span!("storage_call", otel.kind = "server");
        span_within(call.context, span).in_scope(|| match call.method {
            "ReadState" => answer(call, buffer, |wire| read_state(&*api, wire)),
            "WalkTrie" => answer(call, buffer, |wire| walk_trie(&*api, wire)),
            "PutTrieDiff" => answer(call, buffer, |wire| put_trie_diff(&*api, wire)),
            _ => false,
        })
    })
}

/// Answers a call, and returns whether there is an answer.
fn answer<R: Message + Default, A: Message>(
    call: &DirectCall<'_>,
    buffer: &mut Vec<u8>,
    run: impl FnOnce(R) -> Result<A, Status>,
) -> bool {
    let Some(answer) = R::decode(call.request).ok().and_then(|request| run(request).ok()) else {
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
