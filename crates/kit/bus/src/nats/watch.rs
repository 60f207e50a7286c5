//! Live settings: one key of a key-value bucket, watched and set.
//!
//! A process subscribes to the subject of a key. It reads the key when it is set, and every 30 to
//! 60 s. So its user needs no permission to make consumers, which could deliver to any subject.

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

/// Largest value in bytes; a larger one is ignored.
pub const VALUE_BYTES_MAX: usize = 64 * 1024;

/// Wait before a retry to find the bucket; random, up to twice as long.
const RETRY: Duration = Duration::from_secs(3);

/// Time between two reads of a key without news; random, up to twice as long.
const READ_EVERY: Duration = Duration::from_secs(30);

/// Waits before each read after a message on the subject, in ms. Subscribers get the message before
/// it is stored.
const STORED_AFTER_MS: [u64; 8] = [0, 5, 10, 20, 50, 100, 300, 500];

/// Policy for a missing bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MissingBucket {
    /// Make it.
    Make,
    /// Wait until another process has made it.
    Await,
}

/// Content of a key.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Entry {
    /// Nothing: it was never set, or it was deleted.
    #[default]
    Missing,
    /// These bytes.
    Value(Bytes),
}

/// Receiver of [`crate::Bus::watch_key`]. Without JetStream, or without NATS, nothing ever changes.
/// While the server cannot be asked, the last value stays valid.
pub struct WatchedKey {
    receiver: watch::Receiver<Entry>,
}

impl WatchedKey {
    /// Makes a key that never changes.
    pub(crate) fn never() -> Self {
        Self { receiver: watch::channel(Entry::Missing).1 }
    }

    /// Waits until the key holds something other than the last value seen ([`Entry::Missing`] at
    /// the beginning), and returns it. Intermediate values are skipped. Returns `None` once nothing
    /// can change any more: the bus is gone, or was only ever that of one process.
    pub async fn changed(&mut self) -> Option<Entry> {
        self.receiver.changed().await.ok()?;
        Some(self.receiver.borrow_and_update().clone())
    }
}

/// Sources of news for a watch.
pub struct Signals {
    /// Handle of the connection.
    pub client: watch::Receiver<Option<Client>>,
    /// Counter that rises with each connection.
    pub generation: watch::Receiver<u64>,
    /// Counter that rises when this process sets a key; the server does not send it its own
    /// messages.
    pub sets: watch::Receiver<u64>,
}

/// Returns a watch, and the task that drives it.
pub fn key(
    signals: Signals,
    bucket: &'static str,
    key: &'static str,
    missing: MissingBucket,
) -> (impl Future<Output = ()> + Send + 'static, WatchedKey) {
    let (sender, receiver) = watch::channel(Entry::Missing);
    let task = async move {
        let Signals { client, mut generation, mut sets } = signals;
        let client = super::client(client).await;
        let subject = format!("$KV.{bucket}.{key}");
        let Ok(mut told) = client.subscribe(subject).await else { return };
        let mut reader = Reader {
            client,
            bucket,
            key,
            missing,
            store: None,
            revision: None,
            sender,
            said: String::new(),
        };
        loop {
            if generation.wait_for(|&generation| generation > 0).await.is_err() {
                return;
            }
            generation.mark_unchanged();
            let pause = if reader.read().await.is_some() { READ_EVERY } else { RETRY };
            let ended = tokio::select! {
                () = sleep(pause.mul_f64(rand::random_range(1.0..2.0))) => false,
                changed = generation.changed() => changed.is_err(),
                changed = sets.changed() => changed.is_err(),
                message = told.next() => match message {
                    Some(_) => {
                        reader.read_new().await;
                        false
                    }
                    None => true,
                },
            };
            if ended {
                return;
            }
        }
    };
    (task, WatchedKey { receiver })
}

/// Reader of one key, which passes on its changes.
struct Reader {
    client: Client,
    bucket: &'static str,
    key: &'static str,
    missing: MissingBucket,
    /// Bucket, once it was found.
    store: Option<Store>,
    /// Revision of the last read.
    revision: Option<u64>,
    sender: watch::Sender<Entry>,
    /// Reason of the last failure that was logged.
    said: String,
}

impl Reader {
    /// Reads the key until it holds something new, for about a second.
    async fn read_new(&mut self) {
        for wait in STORED_AFTER_MS.map(Duration::from_millis) {
            sleep(wait).await;
            if self.read().await.is_none_or(|is_new| is_new) {
                return;
            }
        }
    }

    /// Reads the key. Returns whether its revision is new, and `None` if it cannot be read.
    async fn read(&mut self) -> Option<bool> {
        match self.entry().await {
            Ok(entry) => {
                self.said.clear();
                let revision = entry.as_ref().map(|entry| entry.revision);
                let is_new = self.revision != revision;
                self.revision = revision;
                if is_new {
                    self.pass_on(entry);
                }
                Some(is_new)
            }
            Err(reason) => {
                self.store = None;
                if reason != self.said {
                    let (bucket, key) = (self.bucket, self.key);
                    info!(bucket, key, %reason, "key is not watched, trying again");
                    self.said = reason;
                }
                None
            }
        }
    }

    async fn entry(&mut self) -> Result<Option<kv::Entry>, String> {
        let store = match &self.store {
            Some(store) => store,
            None => self.store.insert(open(&self.client, self.bucket, self.missing).await?),
        };
        let found = store.entry(self.key).await.map_err(|error| error.to_string())?;
        if found.is_some() {
            return Ok(found);
        }
        // A server without JetStream gives the same answer, so the bucket is looked up again.
        let store = self.store.insert(open(&self.client, self.bucket, self.missing).await?);
        store.entry(self.key).await.map_err(|error| error.to_string())
    }

    fn pass_on(&self, entry: Option<kv::Entry>) {
        let entry = match entry {
            Some(entry) if entry.operation == Operation::Put => Entry::Value(entry.value),
            _ => Entry::Missing,
        };
        if let Entry::Value(value) = &entry
            && value.len() > VALUE_BYTES_MAX
        {
            let (bucket, key, bytes) = (self.bucket, self.key, value.len());
            warn!(bucket, key, bytes, "value is too long, the one before stays");
            return;
        }
        self.sender.send_if_modified(|held| {
            let changed = *held != entry;
            *held = entry;
            changed
        });
    }
}

/// Reason why a key is not set. If only the answer was lost, the key may be set after all.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("key `{key}` of bucket `{bucket}` is not set: {reason}")]
pub struct NotSet {
    /// The bucket.
    pub bucket: &'static str,
    /// The key in it.
    pub key: &'static str,
    /// Cause of the failure.
    pub reason: String,
}

/// Sets a key to these bytes, and waits until the server has stored them.
pub async fn set(
    client: &watch::Receiver<Option<Client>>,
    bucket: &'static str,
    key: &'static str,
    value: Bytes,
) -> Result<(), NotSet> {
    let not_set = |reason: String| NotSet { bucket, key, reason };
    let client = client.borrow().clone();
    // Without this check the client would keep the value until there is a connection. It would set
    // it long after the caller was told that it is not set.
    let connected = client.filter(|client| client.connection_state() == State::Connected);
    let client = connected.ok_or_else(|| not_set("no connection to NATS".to_owned()))?;
    let put = async {
        let store = open(&client, bucket, MissingBucket::Make).await?;
        store.put(key, value).await.map_err(|error| error.to_string())
    };
    match timeout(super::ANSWER_MAX, put).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(reason)) => Err(not_set(reason)),
        Err(_) => Err(not_set("the server does not answer".to_owned())),
    }
}

/// Returns the bucket. Creates it first if it is missing and `missing` says so.
async fn open(
    client: &Client,
    bucket: &'static str,
    missing: MissingBucket,
) -> Result<Store, String> {
    let jetstream = jetstream::new(client.clone());
    match (jetstream.get_key_value(bucket).await, missing) {
        (Ok(store), _) => return Ok(store),
        (Err(error), MissingBucket::Await) => return Err(error.to_string()),
        (Err(_), MissingBucket::Make) => {}
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
