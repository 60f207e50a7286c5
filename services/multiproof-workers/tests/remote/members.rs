//! Workers that are announced on the bus.

use crate::{
    pods::{Pod, as_executor},
    scripted::wait_until,
    support::{Chain, Random},
};
use std::{thread::sleep, time::Duration};
use tandem_membership::PROBATION;
use tandem_multiproof_workers::membership::{Announcer, EndpointRules, Heartbeat, Identity};
use tandem_multiproof_workers_client::{
    Listener,
    fleet::{Config, Deps, Fleet},
};
use tandem_proto::event::{WORKERS_ALIVE, WorkerAlive};
use tokio::runtime::Runtime;

#[test]
fn workers_are_used_while_the_bus_says_that_they_are_there() {
    let mut chain = Chain::new();
    let mut random = Random(3);
    let pods = [Pod::start(&chain), Pod::start(&chain)];
    let runtime = Runtime::new().unwrap();
    let local = chain.workers(1, chain.storage.clone());
    let deps = Deps {
        runtime: runtime.handle().clone(),
        listener: Some(Listener::start(
            chain.bus.clone(),
            EndpointRules::default(),
            runtime.handle(),
        )),
        local: local.clone(),
        identity: Default::default(),
    };
    // One of them is also configured, which makes no difference.
    let config = Config { endpoints: vec![pods[0].endpoint()], ..Config::default() };
    let fleet = Fleet::start(&config, deps).unwrap();
    let announce = |at: usize| {
        let identity = Identity {
            id: format!("worker-{at}").parse().unwrap(),
            incarnation: 1,
            endpoint: pods[at].endpoint(),
            interval: Duration::from_millis(20),
        };
        Announcer::start(chain.bus.clone(), identity, runtime.handle())
    };
    let announcers = [announce(0), announce(1)];
    wait_until(|| fleet.connected() == 2);
    let made = chain.make(chain.genesis, 8, &mut random);
    assert_eq!(as_executor(&*fleet, &made).unwrap(), (made.root, false));
    chain.commit(&made);
    let [first, second] = announcers;
    runtime.block_on(second.leave());
    wait_until(|| fleet.connected() == 1);
    let made = chain.make(made.block.id, 8, &mut random);
    assert_eq!(as_executor(&*fleet, &made).unwrap(), (made.root, false));
    runtime.block_on(first.leave());
    assert_eq!(fleet.connected(), 1, "the configured one stays");
    local.stop();
}

#[test]
fn a_worker_that_was_connected_to_keeps_its_place_among_invented_names() {
    let chain = Chain::new();
    let pod = Pod::start(&chain);
    let runtime = Runtime::new().unwrap();
    let local = chain.workers(1, chain.storage.clone());
    let rules = EndpointRules::default();
    let deps = Deps {
        runtime: runtime.handle().clone(),
        listener: Some(Listener::start(chain.bus.clone(), rules, runtime.handle())),
        local: local.clone(),
        identity: Default::default(),
    };
    let fleet = Fleet::start(&Config::default(), deps).unwrap();
    let identity = Identity {
        id: "worker".parse().unwrap(),
        incarnation: 1,
        endpoint: pod.endpoint(),
        interval: Duration::from_millis(20),
    };
    let announcer = Announcer::start(chain.bus.clone(), identity, runtime.handle());
    wait_until(|| fleet.connected() == 1);
    // Until the places of workers without a connection may be given to others.
    sleep(PROBATION + Duration::from_secs(1));
    for n in 0..200 {
        let invented = Heartbeat {
            id: format!("invented-{n}").parse().unwrap(),
            incarnation: 1,
            sequence: 0,
            endpoint: format!("http://127.0.0.1:{}", 2000 + n),
            interval: Duration::from_secs(60),
            leaving: false,
        };
        let name = invented.id.to_string();
        chain.bus.publish_as(WORKERS_ALIVE, &name, WorkerAlive(invented).encode());
    }
    // After several of its heartbeats, it is still there.
    for _ in 0..50 {
        sleep(Duration::from_millis(20));
        assert_eq!(fleet.connected(), 1);
    }
    runtime.block_on(announcer.leave());
    local.stop();
}

#[test]
fn what_is_no_endpoint_is_refused_at_the_start() {
    let chain = Chain::new();
    let runtime = Runtime::new().unwrap();
    let local = chain.workers(1, chain.storage.clone());
    let deps = Deps {
        runtime: runtime.handle().clone(),
        listener: None,
        local: local.clone(),
        identity: Default::default(),
    };
    let config = Config { endpoints: vec!["not an address".into()], ..Config::default() };
    let error = Fleet::start(&config, deps).err().unwrap().to_string();
    assert!(error.contains("not an address"), "{error}");
    local.stop();
}
