//! Lost connections, absent servers, and answers that do not come.

use crate::{
    host::{Host, patient, wait_until},
    scripted::{Scripted, base, block, unexecuted},
};
use std::{sync::Arc, thread, time::Duration};
use tandem_primitives::{B256, ShardSet};
use tandem_proto::storage::{
    BaseReads, BlockRef, Epoch, Error, Forkchoice, ReadState, Result, StorageApi, TrieStorage,
    WriteLease,
};
use tandem_storage_writer_client::{Client, ClientConfig};
use tandem_testkit::network::{Network, Proxy};
use tokio::{net::TcpListener, runtime::Runtime};

/// Makes the call of this name; each may be made twice.
fn call(api: &dyn StorageApi, name: &str) -> Result<()> {
    let hash = B256::repeat_byte(1);
    match name {
        "checkpoint" => api.checkpoint().map(|_| ()),
        "pending" => api.pending().map(|_| ()),
        "trie_diff" => api.trie_diff(hash).map(|_| ()),
        "read_state" => api.read_state(&ReadState::default()).map(|_| ()),
        "walk_trie" => api.walk_trie(&[]).map(|_| ()),
        "commit" => api.commit(Epoch::numbered(1), block(9)),
        "state_diffs" => api.state_diffs(&[]).map(|_| ()),
        "prove" => api.prove(Epoch::numbered(1), hash),
        "keep" => api.keep(Epoch::numbered(1), unexecuted()),
        "kept" => api.kept(hash).map(|_| ()),
        "discard" => api.discard(Epoch::numbered(1), hash),
        "canonicalize" => api.canonicalize(Epoch::numbered(1), Forkchoice::default()).map(|_| ()),
        "rewind" => api.rewind(Epoch::numbered(1), 1),
        "block" => api.block(BlockRef::Number(1)).map(|_| ()),
        "header" => api.header(BlockRef::Number(1)).map(|_| ()),
        "transaction" => api.transaction(hash).map(|_| ()),
        _ => api.acquire_epoch(name).map(|_| ()),
    }
}

const REPEATED: [&str; 16] = [
    "checkpoint",
    "pending",
    "trie_diff",
    "read_state",
    "walk_trie",
    "commit",
    "discard",
    "state_diffs",
    "prove",
    "keep",
    "kept",
    "canonicalize",
    "rewind",
    "block",
    "header",
    "transaction",
];

/// Loses the connection while a call is under way. Returns the call's answer and how often it was
/// made.
fn lose(storage: &Scripted, network: &Proxy, client: &Arc<Client>, name: &'static str) -> Lost {
    storage.hold(Some(name));
    let before = storage.count(name);
    let asking = client.clone();
    let waiting = thread::spawn(move || call(&*asking, name));
    wait_until(|| storage.count(name) == before + 1);
    network.set(Network::Cut);
    wait_until(|| !client.is_connected());
    storage.hold(None);
    network.set(Network::Works);
    Lost { answer: waiting.join().unwrap(), made: storage.count(name) - before }
}

struct Lost {
    answer: Result<()>,
    made: usize,
}

#[test]
fn a_call_that_lost_its_connection_is_made_once_more() {
    let storage = Arc::new(Scripted::default());
    let host = Host::start(storage.clone());
    let network = Proxy::start(host.address, host.runtime.handle());
    let client = host.client_at(network.address, patient());
    for name in REPEATED {
        let lost = lose(&storage, &network, &client, name);
        assert_eq!((lost.answer, lost.made), (Ok(()), 2), "{name}");
    }
}

#[test]
fn an_epoch_is_never_asked_for_twice() {
    let storage = Arc::new(Scripted::default());
    let host = Host::start(storage.clone());
    let network = Proxy::start(host.address, host.runtime.handle());
    let client = host.client_at(network.address, patient());
    let lost = lose(&storage, &network, &client, "acquire_epoch");
    assert!(matches!(lost.answer, Err(Error::Unavailable(_))));
    assert_eq!(lost.made, 1);
    assert_eq!(client.acquire_epoch("again"), Ok(Epoch::numbered(2)));
}

#[test]
fn a_server_that_comes_back_is_found_again() {
    let storage = Arc::new(Scripted::default());
    let mut host = Host::start(storage.clone());
    let client = host.client();
    for _ in 0..3 {
        assert_eq!(client.checkpoint().unwrap().base, base());
        host.stop();
        assert_eq!(Arc::strong_count(&storage), 1, "the server lets go of the storage");
        wait_until(|| !client.is_connected());
        // Asked while no server is there: answered once there is one.
        let asking = client.clone();
        let waiting = thread::spawn(move || asking.read_state(&ReadState::default()));
        host.start_again(storage.clone());
        assert_eq!(waiting.join().unwrap().unwrap().base, base());
    }
}

#[test]
fn nobody_there_is_said() {
    let runtime = Runtime::new().unwrap();
    // A port that was free a moment ago.
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let config = ClientConfig { reconnect_wait_ms: 30, ..ClientConfig::default() };
    let client = Client::connect(&endpoint, config, runtime.handle()).unwrap();
    for name in REPEATED.into_iter().chain(["acquire_epoch"]) {
        let nobody = Error::Unavailable("no connection".to_owned());
        assert_eq!(call(&*client, name), Err(nobody), "{name}");
    }
    assert_eq!(client.put_trie_diff(B256::ZERO, ShardSet::EMPTY, Arc::default()), Ok(()));
    let error = Client::connect("no endpoint", ClientConfig::default(), runtime.handle());
    assert!(error.err().unwrap().to_string().contains("no endpoint"));
}

#[test]
fn a_host_that_vanished_is_noticed_by_its_silence() {
    let storage = Arc::new(Scripted::default());
    let host = Host::start(storage.clone());
    let network = Proxy::start(host.address, host.runtime.handle());
    let mut config = ClientConfig { reconnect_wait_ms: 300, ..patient() };
    config.connection.keep_alive_ms = 200;
    let client = host.client_at(network.address, config);
    wait_until(|| client.is_connected());
    network.set(Network::Silent);
    // The client gives up before the time limit of a read.
    assert!(matches!(client.checkpoint(), Err(Error::Unavailable(_))));
    network.set(Network::Works);
    wait_until(|| client.checkpoint().is_ok());
}

#[test]
fn an_answer_that_does_not_come_is_given_up_and_reads_pass_the_writes() {
    let storage = Arc::new(Scripted::default());
    let host = Host::start(storage.clone());
    let hasty = ClientConfig { write_ms_max: 50, ..patient() };
    let (hasty, client) = (host.client_at(host.address, hasty), host.client());
    wait_until(|| hasty.is_connected());
    storage.hold(Some("canonicalize"));
    let asking = client.clone();
    let held = thread::spawn(move || call(&*asking, "canonicalize"));
    wait_until(|| storage.count("canonicalize") == 1);
    for name in ["commit", "discard", "canonicalize", "rewind"] {
        assert!(matches!(call(&*hasty, name), Err(Error::Unavailable(_))), "{name}");
    }
    for name in ["checkpoint", "pending", "read_state", "walk_trie", "block", "take over"] {
        assert_eq!(call(&*client, name), Ok(()), "{name}");
    }
    storage.hold(None);
    assert_eq!(held.join().unwrap(), Ok(()));
    assert_eq!(call(&*client, "rewind"), Ok(()));
}

#[test]
fn trie_diffs_keep_nobody_waiting_whatever_becomes_of_them() {
    let storage = Arc::new(Scripted::default());
    let host = Host::start(storage.clone());
    let client = host.client_at(host.address, ClientConfig { diffs_capacity: 4, ..patient() });
    storage.hold(Some("put_trie_diff"));
    let put =
        || assert_eq!(client.put_trie_diff(B256::ZERO, ShardSet::EMPTY, Arc::default()), Ok(()));
    put();
    wait_until(|| storage.count("put_trie_diff") == 1);
    (0..1000).for_each(|_| put());
    storage.hold(None);
    // The queued diffs arrive, and none of those that had no room.
    wait_until(|| storage.count("put_trie_diff") == 5);
    put();
    wait_until(|| storage.count("put_trie_diff") >= 6);
    assert_eq!(storage.count("put_trie_diff"), 6);
}

#[test]
fn a_client_that_is_stopped_has_no_call_that_outlives_its_runtime() {
    let storage = Arc::new(Scripted::default());
    let host = Host::start(storage.clone());
    let runtime = Runtime::new().unwrap();
    let endpoint = format!("http://{}", host.address);
    let client = Client::connect(&endpoint, patient(), runtime.handle()).unwrap();
    storage.hold(Some("checkpoint"));
    let asking = client.clone();
    let held = thread::spawn(move || call(&*asking, "checkpoint"));
    wait_until(|| storage.count("checkpoint") == 1);
    client.stop();
    runtime.shutdown_timeout(Duration::from_millis(100));
    let stopping = Error::Unavailable("stopping".to_owned());
    assert_eq!(held.join().expect("it does not panic"), Err(stopping.clone()));
    for name in REPEATED.into_iter().chain(["acquire_epoch"]) {
        assert_eq!(call(&*client, name), Err(stopping.clone()), "{name}");
    }
    storage.hold(None);
}

#[test]
fn a_dropped_client_leaves_no_connection() {
    let storage = Arc::new(Scripted::default());
    let mut host = Host::start(storage.clone());
    let client = host.client();
    wait_until(|| client.is_connected());
    drop(client);
    host.stop();
    assert_eq!(Arc::strong_count(&storage), 1);
}
