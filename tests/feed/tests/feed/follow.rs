//! Followers that read the stream.

use crate::{
    leader::{Copy, Leader, bus, new_database, pass, published, stream},
    stored::{Stored, wait_for},
};
use std::{net::SocketAddr, sync::Arc};
use tandem_bus_tests::{NatsServer, eventually};
use tandem_follower::Leader as Source;
use tandem_storage_writer::{StorageWriter, grpc::Server};
use tandem_storage_writer_client::{Client, ClientConfig};
use tokio::{net::TcpListener, runtime::Runtime, task::JoinHandle};
use tokio_util::sync::CancellationToken;

/// Server of a leader over gRPC.
struct Host {
    address: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<std::io::Result<()>>,
}

impl Host {
    fn start(writer: &Arc<StorageWriter>, runtime: &Runtime) -> Self {
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
        let server = Server::new(writer.clone()).feeding(writer.clone());
        let task = runtime.spawn(server.serve(listener, stop.clone()));
        Self { address, stop, task }
    }

    fn source(&self, runtime: &Runtime) -> Source {
        let url = format!("http://{}", self.address);
        Source::new(
            "leader",
            Client::connect(&url, ClientConfig::default(), runtime.handle()).unwrap(),
        )
    }

    fn stop(self, runtime: &Runtime) {
        self.stop.cancel();
        runtime.block_on(self.task).unwrap().unwrap();
    }
}

#[test]
fn a_follower_of_the_stream_alone_has_the_head_through_reorgs_and_restarts() {
    let Some(mut server) = NatsServer::start() else { return };
    let (runtime, directory) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
    let (theirs, own) = (directory.path().join("leader"), directory.path().join("copy"));
    let config = published(&theirs, 1);
    let leaders_bus = bus(&[&server], &runtime);
    let mut leader = Leader::start(config.clone(), 6, &leaders_bus, &runtime);
    wait_for(&server, leader.head(), &runtime);
    leader.grow(40);
    new_database(&own);
    let copys_bus = bus(&[&server], &runtime);
    let start = || Copy::start(&own, vec![stream(&copys_bus, &runtime)]);
    let copy = start();
    copy.wait_for(&leader);
    for depth in [1, 3, 5] {
        leader.reorg(depth);
        copy.wait_for(&leader);
        leader.grow(2);
        copy.wait_for(&leader);
    }
    // Each block came once: the follower resumes where it stands.
    copy.end();
    leader.grow(5);
    let copy = start();
    copy.wait_for(&leader);
    assert!(copy.heard.0.lock().len() <= 6, "{:?}", copy.heard.0.lock());
    // The leader's process ends and comes back.
    let mut leader = leader.restart(config, &leaders_bus, &runtime);
    leader.grow(3);
    copy.wait_for(&leader);
    // The server ends and comes back.
    server.kill();
    leader.grow(3);
    server.restart();
    leader.grow(1);
    copy.wait_for(&leader);
    copy.end();
}

#[test]
fn a_follower_has_the_record_of_a_leader_that_is_gone() {
    let Some(server) = NatsServer::start() else { return };
    let (runtime, directory) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
    let (theirs, own) = (directory.path().join("leader"), directory.path().join("copy"));
    let leaders_bus = bus(&[&server], &runtime);
    let mut leader = Leader::start(published(&theirs, 1), 7, &leaders_bus, &runtime);
    wait_for(&server, leader.head(), &runtime);
    leader.grow(30);
    let head = leader.head();
    wait_for(&server, head, &runtime);
    drop(leader);
    drop(leaders_bus);
    std::fs::remove_dir_all(&theirs).unwrap();
    new_database(&own);
    let copy = Copy::start(&own, vec![stream(&bus(&[&server], &runtime), &runtime)]);
    eventually("the head of the leader that is gone", || (copy.head() == head).then_some(()));
    copy.end();
}

#[test]
fn the_stream_and_the_leader_stand_in_for_each_other() {
    let Some(server) = NatsServer::start() else { return };
    let (runtime, directory) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
    let (theirs, own) = (directory.path().join("leader"), directory.path().join("copy"));
    let leaders_bus = bus(&[&server], &runtime);
    let mut leader = Leader::start(published(&theirs, 1), 8, &leaders_bus, &runtime);
    let host = Host::start(&leader.writer, &runtime);
    wait_for(&server, leader.head(), &runtime);
    leader.grow(5);
    new_database(&own);
    let copys_bus = bus(&[&server], &runtime);
    let sources = vec![host.source(&runtime), stream(&copys_bus, &runtime)];
    let copy = Copy::start(&own, sources);
    copy.wait_for(&leader);
    // Without the leader's calls, the stream leads on.
    host.stop(&runtime);
    leader.grow(5);
    copy.wait_for(&leader);
    copy.stop();
    // A hole, which only the leader can fill: the stream has lost what the follower needs next.
    leader.grow(4);
    wait_for(&server, leader.head(), &runtime);
    runtime.block_on(async { Stored::find(&server).await.purge().await });
    leader.grow(3);
    let host = Host::start(&leader.writer, &runtime);
    let sources = vec![stream(&copys_bus, &runtime), host.source(&runtime)];
    let copy = Copy::start(&own, sources);
    copy.wait_for(&leader);
    host.stop(&runtime);
    copy.end();
}

#[test]
fn a_follower_without_the_blocks_in_between_waits_and_says_so() {
    let Some(server) = NatsServer::start() else { return };
    let (runtime, directory) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
    let (theirs, own) = (directory.path().join("leader"), directory.path().join("copy"));
    let leaders_bus = bus(&[&server], &runtime);
    let mut leader = Leader::start(published(&theirs, 1), 9, &leaders_bus, &runtime);
    leader.grow(5);
    let (genesis, _) = new_database(&own);
    wait_for(&server, leader.head(), &runtime);
    runtime.block_on(async { Stored::find(&server).await.purge().await });
    leader.grow(2);
    let copy = Copy::start(&own, vec![stream(&bus(&[&server], &runtime), &runtime)]);
    pass(700);
    assert_eq!(copy.head(), genesis, "nothing leads there");
    assert_eq!(copy.follower.status().refused(), None, "it is no lie");
    copy.stop();
}
