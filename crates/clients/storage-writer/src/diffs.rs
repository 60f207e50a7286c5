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
pub async fn send_all(remote: &RemoteStorage, mut queue: mpsc::Receiver<Queued<QueuedTrieDiff>>) {
    while let Some(queued) = queue.recv().await.map(Queued::take) {
        let block = queued.block;
        if let Err(error) = send(remote, queued).await {
            counter!(names::CLIENT_DIFFS_DROPPED).increment(1);
            debug!(%block, %error, "trie diff not handed over");
        }
    }
}

async fn send(remote: &RemoteStorage, queued: QueuedTrieDiff) -> Result<()> {
    let message = move || {
        let QueuedTrieDiff { block, shards, diff } = queued;
        v1::PutTrieDiffRequest::from((block, shards, &*diff))
    };
    // A diff may have megabytes, which are copied.
    let request = spawn_blocking(message).await;
    let request = request.map_err(|_| Error::Store("the diff cannot be encoded".to_owned()))?;
    let options = remote.config.read("put_trie_diff");
    let put = remote.call(options, request, |mut calls, request| async move {
        calls.put_trie_diff(request).await
    });
    put.await?;
    Ok(())
}
