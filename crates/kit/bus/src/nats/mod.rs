//! The bus over NATS: one connection, kept for ever by the client library, and the tasks around it.
//! It wraps `async-nats`.

mod compare;
mod credentials;
mod error;
mod events;
mod log;
mod outbox;
mod publish;
mod receive;
mod watch;

use crate::{Message, fanout::Topic, stats::Counts, subject_token};
use async_nats::{Client, ConnectOptions, ServerAddr};
use bytes::Bytes;
use events::Events;
use outbox::{Item, Outbox};
use serde::Deserialize;
use std::{
    borrow::Cow,
    collections::HashSet,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    runtime::Handle,
    sync::{oneshot, watch as channel},
    time::timeout,
};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{error, info};

pub use compare::ComparedKey;
pub use error::Error;
pub use log::{Log, LogBounds, LogError, LogMessage, LogOptions};
pub use watch::{Entry, MissingBucket, NotSet, VALUE_BYTES_MAX, WatchedKey};

/// Number of messages that may wait to be sent before the oldest are dropped.
pub const OUTBOX_MESSAGES: usize = 1024;
/// Bytes of payload that may wait to be sent before the oldest are dropped.
pub const OUTBOX_BYTES: usize = 16 << 20;

/// First wait before a retry to connect; it doubles with each retry.
const BACKOFF_MIN: Duration = Duration::from_millis(10);
/// Longest wait before a retry: short, as a server is usually back in a moment.
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// Longest time that one attempt to connect may take.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// Time between two pings. A server that leaves three of them unanswered counts as gone.
const PING_INTERVAL: Duration = Duration::from_secs(2);
/// Longest wait for an answer of JetStream.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Commands on their way to the connection, which may be sent late, after a reconnect.
const COMMANDS: usize = 64;
/// Number of messages that may wait between the connection and the fan-out of a subject.
const ARRIVALS: usize = 1024;

/// Options of a connection. All files are read once, when the bus is made, except those of TLS,
/// which are read for each connection.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Name of the connection in the server's lists.
    pub name: Option<String>,
    /// User name; requires `password_file`. Answers to the user come on `_INBOX.USER.>`.
    pub user: Option<String>,
    /// File that holds only the user's password; white space around it is ignored.
    pub password_file: Option<PathBuf>,
    /// File with the seed of a user's nkey (`SU…`), instead of user and password.
    pub nkey_seed_file: Option<PathBuf>,
    /// Certificates (PEM) of the authorities that may sign for the server, instead of the system's.
    /// If set, the connection is encrypted, as with an address `tls://…`.
    pub tls_ca_file: Option<PathBuf>,
    /// Own certificates (PEM), for servers that ask for one; requires `tls_key_file`.
    pub tls_cert_file: Option<PathBuf>,
    /// Private key (PEM) of the own certificates.
    pub tls_key_file: Option<PathBuf>,
}

/// NATS part of a bus.
pub(crate) struct Nats {
    outbox: Arc<Outbox>,
    counts: Arc<Counts>,
    /// Handle of the connection, set soon after the start.
    client: channel::Receiver<Option<Client>>,
    /// Counter that rises with each connection.
    generation: channel::Receiver<u64>,
    /// Counter that rises when a key was set here.
    sets: channel::Sender<u64>,
    /// Subjects that have a listening task.
    heard: Mutex<HashSet<&'static str>>,
    runtime: Handle,
    stop: CancellationToken,
    _stop: DropGuard,
}

impl Nats {
    pub fn connect(
        servers: &[String],
        options: &Options,
        counts: Arc<Counts>,
        runtime: &Handle,
    ) -> Result<Self, Error> {
        let addresses = addresses(servers)?;
        let (events, generation) = Events::new(counts.clone());
        let (ready, client) = channel::channel(None);
        let outbox = Arc::<Outbox>::default();
        let stop = CancellationToken::new();
        let mut connect = credentials::apply(options, ConnectOptions::new())?
            .retry_on_initial_connect()
            .max_reconnects(None)
            .reconnect_delay_callback(backoff)
            .connection_timeout(CONNECT_MAX)
            .ping_interval(PING_INTERVAL)
            .request_timeout(Some(ANSWER_MAX))
            .client_capacity(COMMANDS)
            .subscription_capacity(ARRIVALS)
            // Subscribers in this process have received the message already.
            .no_echo()
            .event_callback(move |event| {
                let events = events.clone();
                async move { events.hear(&event) }
            });
        if let Some(name) = &options.name {
            connect = connect.name(name);
        }
        if let Some(user) = &options.user {
            // Answers come on a subject that other users cannot subscribe to.
            connect = connect.custom_inbox_prefix(format!("_INBOX.{}", subject_token(user)));
        }
        let nats = Self {
            outbox: outbox.clone(),
            counts: counts.clone(),
            client,
            generation,
            sets: channel::channel(0).0,
            heard: Mutex::default(),
            runtime: runtime.clone(),
            stop: stop.clone(),
            _stop: stop.drop_guard(),
        };
        info!(?servers, "connecting to NATS");
        nats.spawn(async move {
            match connect.connect(addresses).await {
                Ok(client) => {
                    ready.send_replace(Some(client.clone()));
                    publish::run(&client, &outbox, &counts).await;
                }
                // Only options that can never work lead here: a failed attempt to connect is no
                // error.
                Err(error) => error!(%error, "NATS cannot be connected to"),
            }
        });
        Ok(nats)
    }

    /// Runs a task for as long as the bus exists.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.runtime.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = task => {}
            }
        });
    }

    pub fn publish(&self, subject: Cow<'static, str>, message: Message) {
        let dropped = self.outbox.push(Item::Message(subject, message));
        self.counts.dropped("outbox", dropped);
    }

    /// From now on sends messages of other processes to the topic's subscribers.
    pub fn hear(&self, topic: Arc<Topic>) {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        if heard.insert(topic.subject) {
            let (client, counts) = (self.client.clone(), self.counts.clone());
            self.spawn(receive::run(client, topic, counts));
        }
    }

    pub fn watch_key(
        &self,
        bucket: &'static str,
        key: &'static str,
        missing: MissingBucket,
    ) -> WatchedKey {
        let signals = watch::Signals {
            client: self.client.clone(),
            generation: self.generation.clone(),
            sets: self.sets.subscribe(),
        };
        let (task, watched) = watch::key(signals, bucket, key, missing);
        self.spawn(task);
        watched
    }

    pub async fn set_key(
        &self,
        bucket: &'static str,
        key: &'static str,
        value: Bytes,
    ) -> Result<(), NotSet> {
        watch::set(&self.client, bucket, key, value).await?;
        self.sets.send_modify(|sets| *sets += 1);
        Ok(())
    }

    pub async fn open_log(&self, options: &LogOptions) -> Result<Log, LogError> {
        log::open(&self.client, options).await
    }

    pub async fn find_log(&self, name: &'static str, subject: String) -> Result<Log, LogError> {
        log::find(&self.client, name, subject).await
    }

    pub fn compared_key(&self, bucket: &'static str, key: String, replicas: usize) -> ComparedKey {
        ComparedKey::new(self.client.clone(), bucket, key, replicas)
    }

    pub fn is_connected(&self) -> bool {
        self.counts.is_connected()
    }

    pub async fn flush(&self, wait: Duration) -> bool {
        let (done, answer) = oneshot::channel();
        let dropped = self.outbox.push(Item::Flush(done));
        self.counts.dropped("outbox", dropped);
        matches!(timeout(wait, answer).await, Ok(Ok(())))
    }
}

/// Waits for the handle of the connection. Never returns if there will be none.
async fn client(mut client: channel::Receiver<Option<Client>>) -> Client {
    let there = client.wait_for(Option::is_some).await.ok().and_then(|client| client.clone());
    match there {
        Some(client) => client,
        None => std::future::pending().await,
    }
}

/// Returns the wait before the attempt with this number. It is random, so that clients that lost
/// the same server do not come back at the same moment.
fn backoff(attempts: usize) -> Duration {
    let doublings = u32::try_from(attempts.saturating_sub(1)).unwrap_or(u32::MAX).min(16);
    (BACKOFF_MIN * (1 << doublings)).min(BACKOFF_MAX).mul_f64(rand::random_range(0.5..1.0))
}

/// Returns the addresses of these servers.
pub fn addresses(servers: &[String]) -> Result<Vec<ServerAddr>, Error> {
    if servers.is_empty() {
        return Err(Error::NoServer);
    }
    let parse = |server: &String| {
        let refuse = |reason: String| Error::Server { server: server.clone(), reason };
        let address: ServerAddr = match server.parse() {
            Ok(address) => address,
            // Text before an @ may be a password, which no error may repeat.
            Err(_) if server.contains('@') => return Err(Error::PasswordInAddress),
            Err(error) => return Err(refuse(std::io::Error::to_string(&error))),
        };
        if address.has_user_pass() || address.password().is_some() {
            return Err(Error::PasswordInAddress);
        }
        match address.scheme() {
            "nats" | "tls" if address.host().is_empty() => Err(refuse("it names no host".into())),
            "nats" | "tls" => Ok(address),
            scheme => Err(refuse(format!("unknown scheme `{scheme}`; expected `nats` or `tls`"))),
        }
    };
    servers.iter().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(servers: &[&str]) -> String {
        let servers: Vec<_> = servers.iter().map(|&server| server.to_owned()).collect();
        addresses(&servers).unwrap_err().to_string()
    }

    #[test]
    fn addresses_are_read_and_wrong_ones_named() {
        let good =
            ["nats://10.0.0.7:4222", "tls://nats.example", "127.0.0.1:4222", "nats://[::1]:1"];
        assert_eq!(addresses(&good.map(str::to_owned)).unwrap().len(), 4);
        assert_eq!(error(&[]), "no address of a NATS server is given");
        let wrong = error(&["nats://a:1", "ws://a:1"]);
        assert_eq!(
            wrong,
            "invalid address `ws://a:1` of a NATS server: unknown scheme `ws`; expected `nats` or `tls`"
        );
        assert!(error(&["nats://a:port"]).starts_with("invalid address `nats://a:port` of"));
    }

    #[test]
    fn passwords_in_addresses_are_refused_and_not_repeated() {
        for server in ["nats://me:secret@a:1", "me:secret@a", "nats://me:secret@a:port"] {
            let error = error(&[server]);
            assert!(error.contains("password_file") && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn waits_grow_to_a_bound_and_differ() {
        for (attempts, most) in [(0, 10), (1, 10), (2, 20), (5, 160), (8, 1000), (usize::MAX, 1000)]
        {
            let waits: Vec<_> = (0..50).map(|_| backoff(attempts)).collect();
            let most = Duration::from_millis(most);
            assert!(waits.iter().all(|&wait| wait <= most && wait >= most / 2), "{waits:?}");
            assert!(waits.iter().any(|wait| *wait != waits[0]), "{waits:?}");
        }
    }
}
