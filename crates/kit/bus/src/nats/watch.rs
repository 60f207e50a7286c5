//! One key of a key-value bucket, watched and set: live settings.

use async_nats::{
    Client,
    connection::State,
    jetstream::{
        self,
        kv::{self, Operation, Store},
    },
};
use bytes::Bytes;
use futures_util::StreamExt;
use std::{fmt::Display, time::Duration};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tracing::{info, warn};

/// Bytes of a value at most; a larger one is not taken in.
pub const VALUE_BYTES_MAX: usize = 64 * 1024;

/// Wait before the bucket is asked for again, up to twice as long.
const RETRY: Duration = Duration::from_secs(3);

/// What a key holds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Entry {
    /// Nothing: it was never set, or it was deleted.
    #[default]
    Missing,
    /// These bytes.
    Value(Bytes),
}

/// The end of [`crate::Bus::watch_key`]. Without JetStream, or without NATS, nothing ever changes.
/// What the key held last counts for as long as the server cannot be asked.
pub struct WatchedKey {
    receiver: watch::Receiver<Entry>,
}

impl WatchedKey {
    /// A key that nobody can change.
    pub(crate) fn never() -> Self {
        Self { receiver: watch::channel(Entry::Missing).1 }
    }

    /// Waits until the key holds something else than what was seen last ([`Entry::Missing`] at the
    /// beginning), and gives that. Changes in between are left out. `None` once nothing can change
    /// any more: the bus is gone, or was never more than that of one process.
    pub async fn changed(&mut self) -> Option<Entry> {
        self.receiver.changed().await.ok()?;
        Some(self.receiver.borrow_and_update().clone())
    }
}

/// A watch, and the task that it needs.
pub fn key(
    client: watch::Receiver<Option<Client>>,
    mut generation: watch::Receiver<u64>,
    bucket: &'static str,
    key: &'static str,
) -> (impl Future<Output = ()> + Send + 'static, WatchedKey) {
    let (sender, receiver) = watch::channel(Entry::Missing);
    let task = async move {
        let client = super::client(client).await;
        let mut said = String::new();
        loop {
            if generation.wait_for(|&generation| generation > 0).await.is_err() {
                return;
            }
            generation.mark_unchanged();
            let reason = tokio::select! {
                reason = follow(&client, bucket, key, &sender) => reason,
                // The watch would come back by itself some time; made anew it is there at once.
                _ = generation.changed() => continue,
            };
            if reason != said {
                info!(bucket, key, %reason, "key is not watched, trying again");
                said = reason;
            }
            let pause = RETRY.mul_f64(rand::random_range(1.0..2.0));
            tokio::select! {
                () = sleep(pause) => {}
                _ = generation.changed() => {}
            }
        }
    };
    (task, WatchedKey { receiver })
}

/// Passes on what the key holds, until that is no longer possible: why.
async fn follow(
    client: &Client,
    bucket: &'static str,
    key: &'static str,
    sender: &watch::Sender<Entry>,
) -> String {
    let store = match open(client, bucket).await {
        Ok(store) => store,
        Err(reason) => return reason,
    };
    let mut changes = match store.watch_with_history(key).await {
        Ok(changes) => changes,
        Err(error) => return error.to_string(),
    };
    while let Some(change) = changes.next().await {
        let entry = match change {
            Ok(change) if change.operation == Operation::Put => Entry::Value(change.value),
            Ok(_) => Entry::Missing,
            Err(error) => return error.to_string(),
        };
        if let Entry::Value(value) = &entry
            && value.len() > VALUE_BYTES_MAX
        {
            warn!(bucket, key, bytes = value.len(), "value is too long, the one before stays");
            continue;
        }
        sender.send_if_modified(|held| {
            let changed = *held != entry;
            *held = entry;
            changed
        });
    }
    "the watch ended".to_owned()
}

/// Why a key is not set. Where the answer alone was lost, it may be set after all.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("key `{key}` of bucket `{bucket}` is not set: {reason}")]
pub struct NotSet {
    /// The bucket.
    pub bucket: &'static str,
    /// The key in it.
    pub key: &'static str,
    /// What went wrong.
    pub reason: String,
}

/// Has a key hold these bytes, and waits until the server has them.
pub async fn set(
    client: &watch::Receiver<Option<Client>>,
    bucket: &'static str,
    key: &'static str,
    value: Bytes,
) -> Result<(), NotSet> {
    let not_set = |reason: String| NotSet { bucket, key, reason };
    let client = client.borrow().clone();
    // The client would keep it until there is a connection, and set it then, long after the caller
    // was told that it is not.
    let connected = client.filter(|client| client.connection_state() == State::Connected);
    let client = connected.ok_or_else(|| not_set("no connection to NATS".to_owned()))?;
    let put = async {
        let store = open(&client, bucket).await?;
        store.put(key, value).await.map_err(|error| error.to_string())
    };
    match timeout(super::ANSWER_MAX, put).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(reason)) => Err(not_set(reason)),
        Err(_) => Err(not_set("the server does not answer".to_owned())),
    }
}

/// The bucket; made when it is not there, so that people can put something into it.
async fn open(client: &Client, bucket: &'static str) -> Result<Store, String> {
    let jetstream = jetstream::new(client.clone());
    if let Ok(store) = jetstream.get_key_value(bucket).await {
        return Ok(store);
    }
    let config = kv::Config {
        bucket: bucket.to_owned(),
        description: "Live settings of Tandem".to_owned(),
        history: 1,
        max_value_size: VALUE_BYTES_MAX as i32,
        num_replicas: 1,
        ..kv::Config::default()
    };
    let text = |error: &dyn Display| error.to_string();
    jetstream.create_key_value(config).await.map_err(|error| text(&error))
}
