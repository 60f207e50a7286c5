//! Known workers, each with its connection and its record.

use super::{
    config::Config,
    health::{Backoff, Health, WorkerRole},
};
use crate::{Client, ClientConfig, EndpointError, metrics as names};
use metrics::gauge;
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};
use tandem_membership::{Heartbeat, MEMBERS_MAX, WorkerId};
use tandem_primitives::keccak256;
use tandem_rpc::Identity;
use tokio::runtime::Handle;
use tracing::{info, warn};

/// One worker.
pub struct Worker {
    pub id: WorkerId,
    endpoint: String,
    pub client: Arc<Client>,
    health: Mutex<Health>,
    backoff: Backoff,
}

impl Worker {
    /// Notes that the worker was in time, or must answer because no other worker can.
    pub fn record_in_time(&self) {
        self.health.lock().record_in_time(self.client.connections());
    }

    /// Notes that the worker was late or lost, or had no roots.
    pub fn record_failure(&self) {
        self.health.lock().record_failure(Instant::now(), &self.backoff);
    }

    /// Notes that the worker gave wrong roots.
    pub fn quarantine(&self, until: Instant) {
        self.health.lock().quarantine(until);
    }
}

/// Workers that can be used now. Workers without a connection are in neither list.
#[derive(Default)]
pub struct AvailableWorkers {
    /// Workers that answer.
    pub active: Vec<Arc<Worker>>,
    /// Workers that get blocks beside those that answer.
    pub trial: Vec<Arc<Worker>>,
}

/// All workers.
pub struct Roster {
    configured: Vec<(WorkerId, String)>,
    client: ClientConfig,
    backoff: Backoff,
    runtime: Handle,
    workers: BTreeMap<WorkerId, Arc<Worker>>,
    /// Records of workers that are gone.
    gone: BTreeMap<WorkerId, Health>,
}

impl Roster {
    /// Creates a roster of the configured workers.
    ///
    /// # Errors
    /// When one of them is not a valid endpoint.
    pub fn new(
        config: &Config,
        identity: Identity,
        runtime: &Handle,
    ) -> Result<Self, EndpointError> {
        let configured = config.endpoints.iter();
        let configured =
            configured.filter_map(|endpoint| Some((name(endpoint)?, endpoint.clone())));
        let mut roster = Self {
            configured: configured.collect(),
            client: config.client(identity),
            backoff: config.backoff(),
            runtime: runtime.clone(),
            workers: BTreeMap::new(),
            gone: BTreeMap::new(),
        };
        for (id, endpoint) in roster.configured.clone() {
            let worker = roster.connect(id.clone(), endpoint, Health::default())?;
            roster.workers.insert(id, worker);
        }
        Ok(roster)
    }

    /// Sets the workers that are alive on the bus, beside the configured ones. Connects to each new
    /// worker in the background. Connections to workers that are gone end.
    pub fn set_heard(&mut self, heard: &[Heartbeat], now: Instant) {
        let heard = heard.iter().map(|heartbeat| (&heartbeat.id, &heartbeat.endpoint));
        // Known workers come first: a newcomer that claims the endpoint of another does not take
        // its place.
        let is_known = |(id, endpoint): &(&WorkerId, &String)| {
            self.workers.get(*id).is_some_and(|worker| worker.endpoint == **endpoint)
        };
        let (known, new): (Vec<_>, Vec<_>) = heard.partition(is_known);
        let configured = self.configured.iter().map(|(id, endpoint)| (id, endpoint));
        let most = self.configured.len() + MEMBERS_MAX;
        let (mut members, mut endpoints) = (BTreeMap::new(), BTreeSet::new());
        for (id, endpoint) in configured.chain(known).chain(new) {
            // A configured worker may also be heard by another name.
            if members.len() < most && endpoints.insert(endpoint.clone()) {
                members.entry(id.clone()).or_insert_with(|| endpoint.clone());
            }
        }
        self.gone.retain(|_, health| health.must_be_remembered(now));
        let mut before = std::mem::take(&mut self.workers);
        for (id, endpoint) in members {
            let known = before.remove(&id);
            let worker = match known {
                Some(worker) if worker.endpoint == endpoint => Ok(worker),
                known => {
                    let health = known.map(|worker| worker.health.lock().clone());
                    let health = health.or_else(|| self.gone.remove(&id)).unwrap_or_default();
                    self.connect(id.clone(), endpoint, health)
                }
            };
            match worker {
                Ok(worker) => drop(self.workers.insert(id, worker)),
                Err(error) => warn!(worker = %id, %error, "worker cannot be used"),
            }
        }
        for (id, worker) in before {
            info!(worker = %id, "worker is gone");
            let health = worker.health.lock().clone();
            if health.must_be_remembered(now) && self.gone.len() < MEMBERS_MAX {
                self.gone.insert(id, health);
            }
        }
    }

    fn connect(
        &self,
        id: WorkerId,
        endpoint: String,
        health: Health,
    ) -> Result<Arc<Worker>, EndpointError> {
        let client = Client::connect(&endpoint, self.client.clone(), &self.runtime)?;
        info!(worker = %id, endpoint, "worker is there");
        let (health, backoff) = (Mutex::new(health), self.backoff);
        Ok(Arc::new(Worker { id, endpoint, client, health, backoff }))
    }

    /// Returns the names of all workers to which a connection was made.
    pub fn proven(&self) -> Vec<WorkerId> {
        let proven = self.workers.values().filter(|worker| worker.client.connections() > 0);
        proven.map(|worker| worker.id.clone()).collect()
    }

    /// Returns all workers that have a connection.
    pub fn connected(&self) -> Vec<Arc<Worker>> {
        self.workers.values().filter(|worker| worker.client.is_connected()).cloned().collect()
    }

    /// Returns the workers that can be used now, ordered by name. While no worker has shown that it
    /// is in time, workers that have never failed are trusted.
    pub fn available(&self, now: Instant) -> AvailableWorkers {
        let mut available = AvailableWorkers::default();
        let (mut suspended, mut quarantined) = (0, 0);
        for worker in self.workers.values() {
            let role = worker.health.lock().role(now, worker.client.connections());
            match role {
                WorkerRole::Suspended => suspended += 1,
                WorkerRole::Quarantined => quarantined += 1,
                _ if !worker.client.is_connected() => {}
                WorkerRole::Active => available.active.push(worker.clone()),
                WorkerRole::Trial => available.trial.push(worker.clone()),
            }
        }
        if available.active.is_empty() {
            let trial = std::mem::take(&mut available.trial);
            let has_no_failures = |worker: &Arc<Worker>| worker.health.lock().has_no_failures();
            (available.active, available.trial) = trial.into_iter().partition(has_no_failures);
            available.active.iter().for_each(|worker| worker.record_in_time());
        }
        let counts = [
            ("active", available.active.len()),
            ("trial", available.trial.len()),
            ("suspended", suspended),
            ("quarantined", quarantined),
        ];
        for (state, count) in counts {
            gauge!(names::FLEET_WORKERS, "state" => state).set(count as f64);
        }
        available
    }
}

/// Returns the name of a configured worker: its address, so that it keeps its shards across
/// restarts.
fn name(endpoint: &str) -> Option<WorkerId> {
    let address = endpoint.rsplit("://").next().unwrap_or(endpoint);
    let short = || format!("{:x}", keccak256(endpoint));
    address.parse().or_else(|_| short().parse()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn heard(name: &str, endpoint: &str) -> Heartbeat {
        Heartbeat {
            id: name.parse().unwrap(),
            incarnation: 1,
            sequence: 1,
            endpoint: endpoint.into(),
            interval: Duration::from_secs(1),
            leaving: false,
        }
    }

    #[test]
    fn workers_are_those_configured_and_those_heard_each_once() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let endpoints = vec!["http://127.0.0.1:1".into(), "http://127.0.0.1:2".into()];
        let config = Config { endpoints, ..Config::default() };
        let mut roster = Roster::new(&config, Identity::default(), runtime.handle()).unwrap();
        let names = |roster: &Roster| {
            roster.workers.keys().map(|id| id.as_str().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(&roster), ["127.0.0.1:1", "127.0.0.1:2"]);
        let now = Instant::now();
        let [a, b] = [heard("a", "http://127.0.0.1:2"), heard("b", "http://127.0.0.1:3")];
        roster.set_heard(&[a, b.clone()], now);
        assert_eq!(names(&roster), ["127.0.0.1:1", "127.0.0.1:2", "b"]);
        let client = roster.workers[&b.id].client.clone();
        roster.set_heard(std::slice::from_ref(&b), now);
        assert!(Arc::ptr_eq(&client, &roster.workers[&b.id].client), "the connection stays");
        roster.workers[&b.id].quarantine(now + Duration::from_secs(60));
        roster.set_heard(&[], now);
        assert_eq!(names(&roster), ["127.0.0.1:1", "127.0.0.1:2"]);
        roster.set_heard(&[heard("b", "http://127.0.0.1:4")], now);
        let role = roster.workers[&b.id].health.lock().role(now, 0);
        assert_eq!(role, WorkerRole::Quarantined, "going away does not help");
        assert!(roster.available(now).active.is_empty(), "no worker is connected");
        // Another name for the endpoint of a known worker does not displace it.
        let client = roster.workers[&b.id].client.clone();
        let claims = heard("a", "http://127.0.0.1:4");
        roster.set_heard(&[claims, heard("b", "http://127.0.0.1:4")], now);
        assert_eq!(names(&roster), ["127.0.0.1:1", "127.0.0.1:2", "b"]);
        assert!(Arc::ptr_eq(&client, &roster.workers[&b.id].client), "the connection stays");
        assert!(roster.proven().is_empty(), "no connection was made");
    }

    #[test]
    fn a_long_address_has_a_name_too() {
        assert_eq!(name("https://worker:9601").unwrap().as_str(), "worker:9601");
        let long = format!("http://{}:9601", "x".repeat(80));
        assert_eq!(name(&long).unwrap().as_str().len(), 64);
    }
}
