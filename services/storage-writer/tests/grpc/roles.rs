//! Calls that the certificate of a service allows at storage-writer.

use crate::{
    host::{Host, patient, wait_until},
    scripted::{Scripted, block},
};
use std::{
    fs,
    sync::Arc,
    thread,
    time::{Duration, SystemTime},
};
use tandem_primitives::{B256, ShardSet};
use tandem_proto::{
    access::{EXECUTOR, MULTIPROOF_WORKER, STORAGE_WRITER},
    storage::{
        BaseReads, BlockWrites, Epoch, Error, Forkchoice, ReadState, Result, TrieStorage,
        WriteLease,
    },
};
use tandem_rpc::{
    Identity, TlsConfig,
    certificates::{Authority, Pem},
};
use tandem_storage_writer::grpc::Server;
use tandem_storage_writer_client::{Client, ClientConfig};

/// Certificate authority of a test.
pub struct House {
    certificate: String,
    authority: Authority,
}

impl House {
    pub fn new() -> Self {
        let Pem { certificate, key } = Authority::make(SystemTime::now(), 2).unwrap();
        Self { certificate, authority: Authority::of_key(&key).unwrap() }
    }

    pub fn identity(&self, role: &'static str) -> Identity {
        let folder = tempfile::tempdir().unwrap();
        let pem = self.authority.issue(&[role], SystemTime::now(), 1).unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            Some(path)
        };
        let config = TlsConfig {
            ca: file("ca.crt", &self.certificate),
            cert: file("tls.crt", &pem.certificate),
            key: file("tls.key", &pem.key),
            reload_seconds: 0,
        };
        Identity::load(role, &config).unwrap()
    }
}

fn client(host: &Host, identity: Identity) -> Arc<Client> {
    let mut config = patient();
    config.connection.identity = identity;
    host.client_at(host.address, config)
}

#[test]
fn a_workers_certificate_cannot_commit_a_block() {
    let house = House::new();
    let storage = Arc::new(Scripted::default());
    let host = Host::start_as(storage.clone(), house.identity(STORAGE_WRITER));
    let executor = client(&host, house.identity(EXECUTOR));
    let worker = client(&host, house.identity(MULTIPROOF_WORKER));
    let epoch = executor.acquire_epoch("executor").unwrap();

    // The worker reads, and hands over trie diffs.
    assert!(worker.checkpoint().is_ok());
    assert!(worker.pending().is_ok());
    assert!(worker.walk_trie(&[]).is_ok());
    assert!(worker.trie_diff(B256::ZERO).is_ok());
    worker.put_trie_diff(B256::ZERO, ShardSet::EMPTY, Arc::default()).unwrap();
    wait_until(|| storage.count("put_trie_diff") == 1);

    // The worker knows even the epoch.
    let writes: [(&str, &str, Result<()>); 6] = [
        ("commit", "Commit", worker.commit(epoch, block(9))),
        ("discard", "Discard", worker.discard(epoch, B256::ZERO)),
        (
            "canonicalize",
            "Canonicalize",
            worker.canonicalize(epoch, Forkchoice::default()).map(|_| ()),
        ),
        ("rewind", "Rewind", worker.rewind(epoch, 1)),
        ("keep_epoch", "KeepEpoch", worker.keep_epoch(epoch)),
        ("acquire_epoch", "AcquireEpoch", worker.acquire_epoch("worker").map(|_: Epoch| ())),
    ];
    for (name, method, answer) in writes {
        let service = "tandem.storage_writer.v1.StorageWriter";
        let text =
            format!("PermissionDenied: multiproof-worker may not call {method} of {service}");
        assert_eq!(answer, Err(Error::Refused(text)), "{name}");
        let asked = usize::from(name == "acquire_epoch");
        assert_eq!(storage.count(name), asked, "{name} has reached the service");
    }
    assert_eq!(executor.commit(epoch, block(9)), Ok(()));
    assert_eq!(storage.count("commit"), 1);
}

#[test]
fn an_executor_of_another_authority_has_no_connection() {
    let (house, other) = (House::new(), House::new());
    let storage = Arc::new(Scripted::default());
    let host = Host::start_as(storage.clone(), house.identity(STORAGE_WRITER));
    let mut config = ClientConfig { reconnect_wait_ms: 300, ..patient() };
    config.connection.identity = other.identity(EXECUTOR);
    let stranger = host.client_at(host.address, config);
    let refused = Err(Error::Unavailable("no connection".to_owned()));
    assert_eq!(stranger.checkpoint().map(|_| ()), refused);
    assert!(client(&host, house.identity(EXECUTOR)).checkpoint().is_ok());
    assert_eq!(storage.count("checkpoint"), 1);
}

/// Waits until a client calls directly: a direct call that fails is made once more, for the error.
fn wait_for_direct_calls(storage: &Scripted, client: &Client) {
    *storage.error.lock().unwrap() = Some(Error::Refused("no".to_owned()));
    wait_until(|| {
        let before = storage.count("read_state");
        assert!(client.read_state(&ReadState::default()).is_err());
        storage.count("read_state") == before + 2
    });
    *storage.error.lock().unwrap() = None;
}

#[test]
fn a_direct_write_runs_beside_no_other_write() {
    let house = House::new();
    let storage = Arc::new(Scripted::default());
    let server = Server::new(storage.clone());
    let host = Host::start_with_socket(server, house.identity(STORAGE_WRITER));
    let executor = client(&host, house.identity(EXECUTOR));
    let epoch = executor.acquire_epoch("executor").unwrap();
    wait_for_direct_calls(&storage, &executor);

    storage.hold(Some("commit"));
    thread::scope(|scope| {
        let commit = scope.spawn(|| executor.commit(epoch, block(9)));
        wait_until(|| storage.count("commit") == 1);
        let canonicalize = scope.spawn(|| executor.canonicalize(epoch, Forkchoice::default()));
        thread::sleep(Duration::from_millis(300));
        let overtook = storage.count("canonicalize");
        storage.hold(None);
        assert_eq!(overtook, 0, "writes ran at the same time");
        assert_eq!(commit.join().unwrap(), Ok(()));
        assert!(canonicalize.join().unwrap().is_ok());
    });
    assert_eq!((storage.count("commit"), storage.count("canonicalize")), (1, 1));
}

#[test]
fn a_server_without_writes_refuses_direct_ones_too() {
    let house = House::new();
    let storage = Arc::new(Scripted::default());
    let server = Server::new(storage.clone()).without_writes();
    let host = Host::start_with_socket(server, house.identity(STORAGE_WRITER));
    let executor = client(&host, house.identity(EXECUTOR));
    wait_for_direct_calls(&storage, &executor);

    // The storage grants what its server refuses.
    let epoch = storage.acquire_epoch("executor").unwrap();
    let refused = Error::Refused("the executor of this process alone writes".to_owned());
    assert_eq!(executor.commit(epoch, block(9)), Err(refused.clone()));
    assert_eq!(executor.canonicalize(epoch, Forkchoice::default()), Err(refused));
    assert_eq!((storage.count("commit"), storage.count("canonicalize")), (0, 0));
}
