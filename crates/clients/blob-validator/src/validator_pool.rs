//! Several blob-validators that their callers see as one.

use super::client::{Client, ClientConfig};
use futures_util::future::join_all;
use parking_lot::RwLock;
use std::{
    collections::{BTreeMap, BTreeSet},
    future::ready,
    hash::{DefaultHasher, Hash, Hasher},
    io,
    net::IpAddr,
    sync::Arc,
    time::Duration,
};
use tandem_primitives::B256;
use tandem_proto::blob_validator::{
    BlobApi, Bundle, Content, Error, Pending, Result, Status, StoredBlob, Verdict,
};
use tandem_rpc::EndpointError;
use tokio::{
    net::lookup_host,
    runtime::Handle,
    time::{MissedTickBehavior, interval},
};
use tokio_util::task::AbortOnDropHandle;
use tonic::codegen::http::Uri;
use tracing::{debug, info};

/// Time between two lookups of the names.
const RESOLVE_INTERVAL: Duration = Duration::from_secs(2);

/// [`BlobApi`] over all pods that some names lead to, each with a connection of its own.
///
/// * A sidecar goes to one pod, chosen by rendezvous hashing of its first blob's versioned hash. So
///   the same content is verified by the same pod, once. A full or missing pod is skipped for the
///   next in the order of that hash.
/// * Blobs are requested from all pods, as the first blob of a sidecar decides where all its blobs
///   are.
/// * A name that leads to several addresses is looked up repeatedly, as pods come and go. A name
///   that leads to one address, or to none, is left to its connection, which looks it up whenever
///   it connects.
pub struct ValidatorPool {
    members: Arc<RwLock<Members>>,
    _follower: Option<AbortOnDropHandle<()>>,
}

/// Clients by their endpoints.
type Members = BTreeMap<String, Arc<Client>>;

impl ValidatorPool {
    /// Makes clients that connect in the background, on `runtime`, to endpoints such as
    /// `http://blob-validator:9603`, and to all addresses behind each of them.
    ///
    /// # Errors
    /// [`EndpointError`]. An unreachable server is an error of the calls, not of this function.
    pub fn connect(
        endpoints: &[String],
        config: ClientConfig,
        runtime: &Handle,
    ) -> std::result::Result<Arc<Self>, EndpointError> {
        let handle = runtime.clone();
        let connect = move |endpoint: &str| Client::connect(endpoint, config.clone(), &handle);
        let mut members = Members::new();
        for endpoint in endpoints {
            members.insert(endpoint.clone(), connect(endpoint)?);
        }
        let members = Arc::new(RwLock::new(members));
        let names =
            endpoints.iter().map(|endpoint| EndpointName::new(endpoint)).collect::<Vec<_>>();
        let follower = names.iter().any(|name| name.lookup.is_some()).then(|| {
            let task = runtime.spawn(follow_names(names, members.clone(), connect));
            AbortOnDropHandle::new(task)
        });
        Ok(Arc::new(Self { members, _follower: follower }))
    }

    /// Returns the number of connected servers.
    pub fn connected(&self) -> usize {
        self.members.read().values().filter(|client| client.is_connected()).count()
    }

    /// Returns all clients, in the order in which they are asked for this key.
    fn ranked(&self, key: B256) -> Vec<Arc<Client>> {
        let members = self.members.read();
        let mut ranked: Vec<_> = members.iter().collect();
        ranked.sort_by_cached_key(|(endpoint, client)| {
            (!client.is_connected(), score(endpoint, key))
        });
        ranked.into_iter().map(|(_, client)| client.clone()).collect()
    }

    /// Returns the clients that can be asked now; if there are none, one that may connect in time.
    fn reachable(&self) -> Vec<Arc<Client>> {
        let mut all = self.ranked(B256::ZERO);
        let connected = all.iter().filter(|client| client.is_connected()).count();
        all.truncate(connected.max(1));
        all
    }
}

/// Returns the rank of a member for a key; the lowest comes first. It is equal for all executors of
/// one build.
fn score(endpoint: &str, key: B256) -> u64 {
    let mut hasher = DefaultHasher::new();
    (endpoint, key.as_slice()).hash(&mut hasher);
    hasher.finish()
}

/// Endpoint with the name behind it.
struct EndpointName {
    endpoint: String,
    /// Scheme, host and port; `None` for an address, which leads to itself.
    lookup: Option<(String, String, u16)>,
    /// Endpoints of the last successful lookup.
    resolved: BTreeSet<String>,
}

impl EndpointName {
    fn new(endpoint: &str) -> Self {
        let lookup = endpoint.parse::<Uri>().ok().and_then(|uri| {
            let (scheme, host) = (uri.scheme_str()?, uri.host()?);
            let is_address = host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
            let port = uri.port_u16()?;
            (!is_address).then(|| (scheme.to_owned(), host.to_owned(), port))
        });
        Self { endpoint: endpoint.to_owned(), lookup, resolved: [endpoint.to_owned()].into() }
    }

    /// Looks the name up. After a failure the last result stays.
    async fn resolve(&mut self) {
        let Some((scheme, host, port)) = &self.lookup else { return };
        let found: io::Result<BTreeSet<String>> = lookup_host((host.as_str(), *port))
            .await
            .map(|addresses| addresses.map(|address| format!("{scheme}://{address}")).collect());
        match found {
            Ok(addresses) if addresses.len() > 1 => self.resolved = addresses,
            Ok(_) => self.resolved = [self.endpoint.clone()].into(),
            Err(error) => debug!(%error, host, "the name leads nowhere now"),
        }
    }
}

/// Keeps the members in line with the names; never ends.
async fn follow_names(
    mut names: Vec<EndpointName>,
    members: Arc<RwLock<Members>>,
    connect: impl Fn(&str) -> std::result::Result<Arc<Client>, EndpointError>,
) {
    let mut ticks = interval(RESOLVE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        for name in &mut names {
            name.resolve().await;
        }
        let wanted: BTreeSet<_> = names.iter().flat_map(|name| &name.resolved).collect();
        let mut members = members.write();
        let before = members.len();
        // Pending calls over a removed client are still answered.
        members.retain(|endpoint, _| wanted.contains(endpoint));
        let gone = before - members.len();
        let mut came = 0;
        for endpoint in wanted {
            if !members.contains_key(endpoint)
                && let Ok(client) = connect(endpoint)
            {
                members.insert(endpoint.clone(), client);
                came += 1;
            }
        }
        if gone + came > 0 {
            info!(came, gone, now = members.len(), "blob-validators");
        }
    }
}

/// Asks the first client, and the next if that one can take nothing.
async fn validate(
    ranked: Vec<Arc<Client>>,
    bundle: Arc<Bundle>,
    timeout: Duration,
) -> Result<Verdict> {
    let until = tokio::time::Instant::now() + timeout;
    let mut last = Err(Error::Unavailable("there is none".to_owned()));
    for client in ranked {
        let left = until.saturating_duration_since(tokio::time::Instant::now());
        last = client.validate(bundle.clone(), left).await;
        match &last {
            Err(Error::Unavailable(_) | Error::Overloaded { .. }) if !left.is_zero() => {}
            _ => return last,
        }
    }
    last
}

/// Combines the answers of all clients. An answer counts more than another client's failure.
async fn merge_answers<T>(asked: Vec<Pending<T>>, add: impl Fn(T, T) -> T) -> Result<T> {
    let mut all = Err(Error::Unavailable("there is none".to_owned()));
    for answer in join_all(asked).await {
        all = match (all, answer) {
            (Ok(all), Ok(more)) => Ok(add(all, more)),
            (Ok(all), Err(_)) => Ok(all),
            (Err(_), answer) => answer,
        };
    }
    all
}

impl BlobApi for ValidatorPool {
    fn validate(&self, bundle: Arc<Bundle>, timeout: Duration) -> Pending<Verdict> {
        let key = bundle.versioned_hashes.first().copied().unwrap_or_default();
        Box::pin(validate(self.ranked(key), bundle, timeout))
    }

    /// Never refuses: only the pod that is asked knows its load.
    fn refuse(&self, _blobs: usize) -> Option<Error> {
        None
    }

    /// Asks the client that a sidecar with these blobs goes to.
    fn recall(&self, content: Content) -> Pending<bool> {
        let key = content.versioned_hashes.first().copied().unwrap_or_default();
        match self.ranked(key).into_iter().next() {
            Some(client) => client.recall(content),
            None => Box::pin(ready(Ok(false))),
        }
    }

    fn get_blobs(&self, versioned_hashes: &[B256]) -> Pending<Vec<Option<Arc<StoredBlob>>>> {
        let asked: Vec<_> =
            self.reachable().iter().map(|client| client.get_blobs(versioned_hashes)).collect();
        Box::pin(merge_answers(asked, |mut found, more| {
            for (place, blob) in found.iter_mut().zip(more) {
                *place = place.take().or(blob);
            }
            found
        }))
    }

    fn forget(&self, versioned_hashes: &[B256]) {
        self.members.read().values().for_each(|client| client.forget(versioned_hashes));
    }

    /// Returns the sums over the clients that answer; ready if one of them is.
    fn status(&self) -> Pending<Status> {
        let asked: Vec<_> = self.reachable().iter().map(|client| client.status()).collect();
        Box::pin(merge_answers(asked, sum))
    }
}

fn sum(a: Status, b: Status) -> Status {
    Status {
        ready: a.ready || b.ready,
        verified: a.verified + b.verified,
        batches: a.batches + b.batches,
        shared: a.shared + b.shared,
        hits: a.hits + b.hits,
        overloaded: a.overloaded + b.overloaded,
        expired: a.expired + b.expired,
        abandoned: a.abandoned + b.abandoned,
        queued: a.queued + b.queued,
        verdicts: a.verdicts + b.verdicts,
        stored_blobs: a.stored_blobs + b.stored_blobs,
        stored_bytes: a.stored_bytes + b.stored_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_dealt_out_evenly_and_stay_when_others_come() {
        let endpoints: Vec<_> = (1..=5).map(|n| format!("http://10.0.0.{n}:9603")).collect();
        let first = |among: &[String], key: u16| {
            let key = B256::left_padding_from(&key.to_be_bytes());
            among.iter().min_by_key(|endpoint| score(endpoint, key)).unwrap().clone()
        };
        let mut counts = BTreeMap::<String, u32>::new();
        for key in 0..1000 {
            let (of_four, of_five) = (first(&endpoints[..4], key), first(&endpoints, key));
            assert!(
                of_five == of_four || of_five == endpoints[4],
                "it moves to the new one or stays"
            );
            *counts.entry(of_five).or_default() += 1;
        }
        assert!(
            counts.len() == 5 && counts.values().all(|count| (100..300).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn names_are_looked_up_and_addresses_are_not() {
        let lookup = |endpoint: &str| EndpointName::new(endpoint).lookup.is_some();
        assert!(lookup("http://blob-validator:9603") && lookup("https://a.b.svc:9603"));
        assert!(!lookup("http://10.0.0.7:9603") && !lookup("http://[::1]:9603"));
    }

    #[tokio::test]
    async fn a_name_that_leads_nowhere_is_left_to_its_connection() {
        let mut name = EndpointName::new("http://no-such-host.invalid:9603");
        name.resolve().await;
        assert_eq!(name.resolved, BTreeSet::from([name.endpoint]));
    }
}
