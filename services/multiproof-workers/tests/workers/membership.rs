//! Heartbeats over a bus: workers that are heard, leave, or fall silent.

use std::{sync::Arc, time::Duration};
use tandem_bus::Bus;
use tandem_multiproof_workers::membership::{Announcer, EndpointRules, Heartbeat, Identity};
use tandem_multiproof_workers_client::Listener;
use tandem_proto::event::{WORKERS_ALIVE, WorkerAlive};
use tokio::{
    runtime::{Handle, Runtime},
    sync::watch,
    time::timeout,
};

fn identity(name: &str, interval: u64) -> Identity {
    Identity {
        id: name.parse().unwrap(),
        incarnation: 1,
        endpoint: format!("http://{name}:9601"),
        interval: Duration::from_millis(interval),
    }
}

async fn until(workers: &mut watch::Receiver<Arc<[Heartbeat]>>, names: &[&str]) {
    let same =
        |alive: &Arc<[Heartbeat]>| alive.iter().map(|it| it.id.as_str()).eq(names.iter().copied());
    let found = timeout(Duration::from_secs(60), workers.wait_for(same)).await;
    assert!(matches!(found, Ok(Ok(_))), "{names:?} within 60 s");
}

#[tokio::test]
async fn workers_come_and_leave() {
    let bus = Bus::default();
    let listener = Listener::start(bus.clone(), EndpointRules::default(), &Handle::current());
    assert!(listener.alive().is_empty());
    let mut alive = listener.watch();
    let first = Announcer::start(bus.clone(), identity("a", 10_000), &Handle::current());
    until(&mut alive, &["a"]).await;
    bus.publish(WORKERS_ALIVE, vec![0xff; 9].into());
    // In the name of another: `a` can announce only its own leaving.
    let goodbye = Heartbeat { sequence: 9, leaving: true, ..listener.alive()[0].clone() };
    bus.publish_as(WORKERS_ALIVE, "b", WorkerAlive(goodbye.clone()).encode());
    bus.publish(WORKERS_ALIVE, WorkerAlive(goodbye).encode());
    let second = Announcer::start(bus.clone(), identity("b", 10_000), &Handle::current());
    until(&mut alive, &["a", "b"]).await;
    assert_eq!(listener.alive()[1].endpoint, "http://b:9601");
    first.leave().await;
    until(&mut alive, &["b"]).await;
    drop(second);
    until(&mut alive, &[]).await;
}

#[test]
fn a_worker_that_dies_is_given_up_while_another_is_heard() {
    let (here, there) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let bus = Bus::default();
    let listener = Listener::start(bus.clone(), EndpointRules::default(), here.handle());
    let mut alive = listener.watch();
    let _stays = Announcer::start(bus.clone(), identity("a", 20), here.handle());
    let dies = Announcer::start(bus, identity("b", 20), there.handle());
    here.block_on(until(&mut alive, &["a", "b"]));
    // The task of the worker ends without a last heartbeat.
    there.shutdown_background();
    here.block_on(until(&mut alive, &["a"]));
    drop(dies);
}
