//! Executes the demo corpus in this process and records what its blocks sent to the workers.

use super::common::Engine;
use std::{
    fs::File,
    sync::{Arc, Mutex},
};
use tandem_blob_validator::BlobValidator;
use tandem_bus::Bus;
use tandem_cluster_tests::{Corpus, Hooked, Hooks, Recorded};
use tandem_executor::Executor;
use tandem_multiproof_workers::{Config, Deps, MultiproofWorkers};
use tandem_policy::LivePolicies;
use tandem_proto::{
    multiproof::{Begin, StateUpdate},
    storage::StorageApi,
};
use tandem_storage_writer::StorageWriter;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

/// A block as the workers saw it.
#[derive(Clone)]
pub struct Seen {
    pub begin: Begin,
    pub updates: Vec<Arc<StateUpdate>>,
}

/// Messages that the workers received.
#[derive(Default)]
struct Notes(Mutex<Vec<Seen>>);

impl Hooks for Notes {
    fn begun(&self, begin: Begin) {
        self.0.lock().unwrap().push(Seen { begin, updates: Vec::new() });
    }

    fn updates(&self, update: &Arc<StateUpdate>) {
        self.0.lock().unwrap().last_mut().unwrap().updates.push(update.clone());
    }
}

/// Returns workers over this storage.
pub fn workers(storage: &Arc<StorageWriter>) -> Arc<MultiproofWorkers> {
    let storage: Arc<dyn StorageApi> = storage.clone();
    let (bus, fatal) = (Bus::default(), CancellationToken::new());
    let policies = LivePolicies::default();
    let deps = Deps { storage, bus, policies, fatal };
    MultiproofWorkers::start(Config::default(), deps).unwrap()
}

/// Executes the demo corpus. None of its blocks moves into the base.
pub fn capture(runtime: &Runtime) -> (Arc<StorageWriter>, Vec<Seen>) {
    let corpus = Corpus::demo();
    let genesis = File::open(corpus.genesis()).unwrap();
    let config = tandem_storage_writer::Config::default();
    let deps = tandem_storage_writer::Deps::default();
    let storage = StorageWriter::create_in_memory(genesis, config, deps).unwrap();
    let notes = Arc::<Notes>::default();
    let inner = workers(&storage);
    let (bus, fatal) = (Bus::default(), CancellationToken::new());
    let deps = tandem_blob_validator::Deps { bus: bus.clone(), fatal: fatal.clone() };
    let blobs = BlobValidator::start(tandem_blob_validator::Config::default(), deps).unwrap();
    let deps = tandem_executor::Deps {
        storage: storage.clone(),
        proof: Arc::new(Hooked::new(inner.clone(), notes.clone())),
        own_proof: inner.clone(),
        tx_executors: Vec::new(),
        blobs,
        bus,
        policies: LivePolicies::default(),
        fatal,
    };
    let executor = Executor::start(tandem_executor::Config::default(), deps).unwrap();
    let engine = Engine::new(runtime, &executor.handle());
    for Recorded { method, params, hash } in corpus.payloads() {
        engine.new_payload(&method, &params, hash);
    }
    executor.stop();
    inner.stop();
    let seen = std::mem::take(&mut *notes.0.lock().unwrap());
    (storage, seen)
}
