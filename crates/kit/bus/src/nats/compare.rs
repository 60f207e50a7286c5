//! One key of a key-value bucket, changed by compare-and-set.

use super::ANSWER_MAX;
use async_nats::{
    Client,
    connection::State,
    jetstream::{
        self,
        kv::{self, Operation, Store, UpdateErrorKind},
    },
};
use std::{fmt::Display, time::Duration};
use tokio::{sync::watch, time::timeout};
use tracing::{info, warn};

/// Largest value in bytes.
const BYTES_MAX: usize = 1024;

/// Key that several processes change, each only if no other process has changed it meanwhile.
pub struct ComparedKey {
    client: watch::Receiver<Option<Client>>,
    bucket: &'static str,
    key: String,
    replicas: usize,
    /// Bucket, once it was found.
    store: Option<Store>,
}

fn text(error: &dyn Display) -> String {
    error.to_string()
}

impl ComparedKey {
    pub(super) fn new(
        client: watch::Receiver<Option<Client>>,
        bucket: &'static str,
        key: String,
        replicas: usize,
    ) -> Self {
        Self { client, bucket, key, replicas, store: None }
    }

    /// Returns the revision of the key and its text. The revision is 0 if the key was never set, and the
    /// text is `None` if it was never set or was deleted. A replica of the server may answer with an
    /// older revision.
    ///
    /// # Errors
    /// The reason why the key cannot be read within `wait`.
    pub async fn read(&mut self, wait: Duration) -> Result<(u64, Option<String>), String> {
        let read = timeout(wait.min(ANSWER_MAX), self.entry()).await;
        let entry = self.keep(read.unwrap_or_else(|_| Err(silent())))?;
        let Some(entry) = entry else { return Ok((0, None)) };
        if entry.operation != Operation::Put {
            return Ok((entry.revision, None));
        }
        if entry.value.len() > BYTES_MAX {
            let bytes = entry.value.len();
            return Err(format!("the key holds {bytes} bytes, more than {BYTES_MAX}"));
        }
        let value = String::from_utf8(entry.value.into());
        let value = value.map_err(|_| "the key does not hold text".to_owned())?;
        Ok((entry.revision, Some(value)))
    }

    async fn entry(&mut self) -> Result<Option<kv::Entry>, String> {
        let found = self.store().await?.entry(&self.key).await.map_err(|error| text(&error))?;
        if found.is_some() {
            return Ok(found);
        }
        // A server without JetStream gives the same answer, so the bucket is looked up again.
        self.store = None;
        self.store().await?.entry(&self.key).await.map_err(|error| text(&error))
    }

    /// Sets the key if it still has this revision, 0 if it was never set. Returns the new revision,
    /// `None` if the key has another revision.
    ///
    /// # Errors
    /// The reason why it is not known within `wait` whether the key was set.
    pub async fn replace(
        &mut self,
        revision: u64,
        value: String,
        wait: Duration,
    ) -> Result<Option<u64>, String> {
        let set = async {
            match self.store().await?.update(&self.key, value.into(), revision).await {
                Ok(revision) => Ok(Some(revision)),
                Err(error) if error.kind() == UpdateErrorKind::WrongLastRevision => Ok(None),
                Err(error) => Err(text(&error)),
            }
        };
        let set = timeout(wait.min(ANSWER_MAX), set).await;
        self.keep(set.unwrap_or_else(|_| Err(silent())))
    }

    async fn store(&mut self) -> Result<Store, String> {
        let client = self.client.borrow().clone();
        // Without this check the client would keep the request until there is a connection, and send it
        // long after the caller gave it up.
        let connected = client.filter(|client| client.connection_state() == State::Connected);
        let client = connected.ok_or_else(|| "no connection to NATS".to_owned())?;
        if let Some(store) = &self.store {
            return Ok(store.clone());
        }
        let store = open(&client, self.bucket, self.replicas).await?;
        Ok(self.store.insert(store).clone())
    }

    /// Forgets the bucket after an error, as it may be gone.
    fn keep<T>(&mut self, result: Result<T, String>) -> Result<T, String> {
        if result.is_err() {
            self.store = None;
        }
        result
    }
}

fn silent() -> String {
    "the server does not answer".to_owned()
}

/// Returns the bucket. Makes it if it is missing.
async fn open(client: &Client, bucket: &'static str, replicas: usize) -> Result<Store, String> {
    let jetstream = jetstream::new(client.clone());
    let store = match jetstream.get_key_value(bucket).await {
        Ok(store) => store,
        Err(_) => {
            info!(bucket, replicas, "making a bucket in NATS");
            let config = kv::Config {
                bucket: bucket.to_owned(),
                description: "Leases of Tandem".to_owned(),
                history: 1,
                max_value_size: BYTES_MAX as i32,
                num_replicas: replicas,
                ..kv::Config::default()
            };
            jetstream.create_key_value(config).await.map_err(|error| text(&error))?
        }
    };
    let found = store.stream.cached_info().config.num_replicas;
    if found != replicas {
        warn!(bucket, found, expected = replicas, "bucket has another number of copies");
    }
    Ok(store)
}
