//! Queue of trie diffs on their way to storage-writer.

use super::remote_storage::RemoteStorage;
use crate::metrics as names;
use metrics::counter;
use std::sync::Arc;
use tandem_actor::Queued;
use tandem_primitives::{B256, ShardSet, TrieDiff};
use tandem_proto::{
    storage::{Error, Result},
    wire::storage_writer::v1,
};
use tokio::{sync::mpsc, task::spawn_blocking};
use tracing::debug;

/// Changed trie nodes of a block, for some shards.
pub struct QueuedTrieDiff {
    pub block: B256,
    pub shards: ShardSet,
    pub diff: Arc<TrieDiff>,
}

/// Sends the queued diffs one after the other. A diff that storage-writer does not accept is
/// dropped, because storage-writer recomputes it.
pub async fn send_all(
    remote: Arc<RemoteStorage>,
    mut queue: mpsc::Receiver<Queued<QueuedTrieDiff>>,
) {
    while let Some(queued) = queue.recv().await.map(Queued::take) {
        let block = queued.block;
        if let Err(error) = send(&remote, queued).await {
            counter!(names::CLIENT_DIFFS_DROPPED).increment(1);
            debug!(%block, %error, "trie diff not handed over");
        }
    }
}

async fn send(remote: &Arc<RemoteStorage>, queued: QueuedTrieDiff) -> Result<()> {
    let options = remote.config.read("put_trie_diff");
    let direct = remote.clone();
    let put = move || {
        let QueuedTrieDiff { block, shards, diff } = queued;
        let request = v1::PutTrieDiffRequest::from((block, shards, &*diff));
        let put = direct.call_directly(options, "PutTrieDiff", &request);
        match put {
            Some(v1::PutTrieDiffResponse {}) => None,
            None => Some(request),
        }
    };
    // A diff may have megabytes, which are copied.
    let rest = spawn_blocking(put).await;
    let rest = rest.map_err(|_| Error::Store("the diff cannot be encoded".to_owned()))?;
    let Some(request) = rest else { return Ok(()) };
    let put = remote.call(options, request, |mut calls, request| async move {
        calls.put_trie_diff(request).await
    });
    put.await?;
    Ok(())
}
