//! Heartbeats of workers in processes of their own.
#![allow(clippy::unwrap_used)]

mod common;

use common::{connect, connected};
use std::{sync::Arc, time::Duration};
use tandem_bus::{Bus, Options};
use tandem_bus_tests::{DEADLINE, NatsServer};
use tandem_multiproof_workers::membership::{Announcer, EndpointRules, Heartbeat, Identity};
use tandem_multiproof_workers_client::Listener;
use tokio::{
    runtime::{Handle, Runtime},
    sync::watch,
    time::timeout,
};

type Alive = watch::Receiver<Arc<[Heartbeat]>>;

/// An interval far longer than any delay on a slow machine, and one that expires soon.
const SLOW: Duration = Duration::from_secs(30);
const FAST: Duration = Duration::from_millis(50);

fn announce(bus: &Bus, name: &str, interval: Duration, runtime: &Handle) -> Announcer {
    let identity = Identity {
        id: name.parse().unwrap(),
        incarnation: 1,
        endpoint: format!("http://{name}:9601"),
        interval,
    };
    Announcer::start(bus.clone(), identity, runtime)
}

async fn until(alive: &mut Alive, names: &[&str]) {
    let same =
        |alive: &Arc<[Heartbeat]>| alive.iter().map(|it| it.id.as_str()).eq(names.iter().copied());
    let found = timeout(DEADLINE, alive.wait_for(same)).await;
    assert!(matches!(found, Ok(Ok(_))), "{names:?} within the deadline");
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_come_leave_and_die_and_the_loss_of_the_bus_is_no_death() {
    let Some(mut server) = NatsServer::start() else { return };
    let executor = connect(&server);
    let listener = Listener::start(executor.clone(), EndpointRules::default(), &Handle::current());
    let mut alive = listener.watch();
    let (first, second) = (connect(&server), connect(&server));
    let there = Runtime::new().unwrap();
    let third = Bus::connect(&[server.url()], &Options::default(), there.handle()).unwrap();
    connected(&third, true);
    let leaves = announce(&first, "a", SLOW, &Handle::current());
    let _stays = announce(&second, "b", SLOW, &Handle::current());
    until(&mut alive, &["a", "b"]).await;
    listener.prove(vec!["a".parse().unwrap(), "b".parse().unwrap()]);
    leaves.leave().await;
    until(&mut alive, &["b"]).await;

    // While no heartbeat can be received, no worker is given up: the next change is an arrival.
    alive.mark_unchanged();
    server.kill();
    connected(&executor, false);
    server.restart();
    for bus in [&executor, &first, &second, &third] {
        connected(bus, true);
    }
    let _heard = announce(&first, "c", FAST, &Handle::current());
    timeout(DEADLINE, alive.changed()).await.unwrap().unwrap();
    until(&mut alive, &["b", "c"]).await;

    let dies = announce(&third, "d", FAST, there.handle());
    until(&mut alive, &["b", "c", "d"]).await;
    // Its tasks end without a message.
    there.shutdown_background();
    until(&mut alive, &["b", "c"]).await;
    drop((dies, third));
}
