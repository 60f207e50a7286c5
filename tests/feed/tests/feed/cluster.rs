//! Three servers with three copies.

use crate::{
    leader::{Copy, Leader, acknowledged, bus, new_database, stream},
    stored::{Stored, contents},
};
use tandem_bus_tests::{NatsServer, eventually};
use tokio::runtime::Runtime;

#[test]
fn the_loss_of_one_of_three_servers_loses_nothing_that_was_acknowledged() {
    let Some(mut servers) = NatsServer::start_cluster(3) else { return };
    let (runtime, directory) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
    let (theirs, own) = (directory.path().join("leader"), directory.path().join("copy"));
    let all: Vec<&NatsServer> = servers.iter().collect();
    let leaders_bus = bus(&all, &runtime);
    let mut leader = Leader::start(acknowledged(&theirs, 3, 2_000), 15, &leaders_bus, &runtime);
    eventually("an acknowledgement of the cluster", || leader.choose().ok());
    for _ in 0..20 {
        leader.try_grow().unwrap();
    }
    // The server that leads the stream goes, with its machine.
    let info = || runtime.block_on(async { Stored::find(&servers[0]).await.info().await });
    assert_eq!(info().config.num_replicas, 3);
    let first = eventually("a server that leads the stream", || info().cluster?.leader);
    let index = servers.iter().position(|server| server.name() == Some(first.as_str())).unwrap();
    drop(servers.remove(index));
    eventually("what the others have", || {
        runtime.block_on(Stored::open(&servers[0]))?;
        (contents(&servers[0], &runtime).blocks.len() == 20).then_some(())
    });
    assert_eq!(contents(&servers[0], &runtime).at, leader.head());
    leader.extend();
    eventually("an acknowledgement of two servers", || leader.choose().ok());
    for _ in 0..5 {
        leader.try_grow().unwrap();
    }
    let found = contents(&servers[1], &runtime);
    assert_eq!((found.at, found.blocks.len()), (leader.head(), 26));
    assert!(found.blocks.values().all(|times| *times == 1), "{found:?}");
    // A follower reads from those that are left.
    new_database(&own);
    let left: Vec<&NatsServer> = servers.iter().collect();
    let copy = Copy::start(&own, vec![stream(&bus(&left, &runtime), &runtime)]);
    copy.wait_for(&leader);
    copy.end();
}
