//! Failures that only NATS can bring to a bus: it dies, comes back, stalls, or refuses.
#![allow(clippy::unwrap_used)]

mod common;

use bytes::Bytes;
use common::{connect, connect_with, connected, hears, listening, login, next};
use std::{fs, thread, time::Duration};
use tandem_bus::{Bus, MissingBucket, OUTBOX_BYTES, Options};
use tandem_bus_tests::{NatsServer, eventually};
use tokio::{runtime::Handle, task::block_in_place};

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_dies_and_comes_back_is_found_again() {
    let Some(mut server) = NatsServer::start() else { return };
    let (publisher, listener) = (connect(&server), connect(&server));
    let mut heard = listening(&publisher, &listener, "test.back").await;
    for round in 1..=3 {
        server.kill();
        connected(&publisher, false);
        connected(&listener, false);
        let dropped = publisher.stats().dropped;
        for _ in 0..100 {
            publisher.publish("test.back", Bytes::from_static(b"while it was gone"));
        }
        // In its own process the message is received at once.
        let mut own = publisher.subscribe("test.back");
        publisher.publish("test.back", Bytes::from_static(b"at home"));
        assert_eq!(own.try_next().as_deref(), Some(&b"at home"[..]));
        block_in_place(|| {
            eventually("all are counted as dropped", || {
                (publisher.stats().dropped == dropped + 101).then_some(())
            });
        });
        server.restart();
        connected(&publisher, true);
        connected(&listener, true);
        // No message published in between arrives late.
        hears(&publisher, &mut heard, "test.back").await;
        assert_eq!(publisher.stats().connections, 1 + round);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_server_nothing_waits_or_fails_and_one_that_comes_late_is_found() {
    let Some(mut server) = NatsServer::stopped() else { return };
    let bus = connect_with(&server, &Options::default());
    let mut heard = bus.subscribe("test.never");
    let settings = bus.watch_key("tandem", "never", MissingBucket::Make);
    thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..20_000u32 {
                bus.publish("test.never", Bytes::copy_from_slice(&n.to_be_bytes()));
            }
        });
    });
    assert!(!bus.flush(Duration::from_secs(60)).await, "nothing is on its way");
    assert!(!bus.is_connected());
    assert_eq!((bus.stats().sent, bus.stats().dropped), (0, 20_000));
    assert_eq!(bus.stats().connections, 0);
    assert!(heard.try_next().is_some(), "in its own process it is heard");
    server.restart();
    connected(&bus, true);
    let other = connect(&server);
    hears(&other, &mut bus.subscribe("test.late"), "test.late").await;
    assert!(bus.flush(Duration::from_secs(60)).await);
    drop(settings);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_sleeps_costs_messages_and_nobody_waits_for_it() {
    let Some(server) = NatsServer::start() else { return };
    let (publisher, listener) = (connect(&server), connect(&server));
    let mut heard = listening(&publisher, &listener, "test.sleep").await;
    server.pause();
    let payload = Bytes::from(vec![1; 64 * 1024]);
    // More than outbox, client and sockets hold together.
    block_in_place(|| {
        eventually("more than all queues hold", || {
            for _ in 0..OUTBOX_BYTES / payload.len() {
                publisher.publish("test.sleep", payload.clone());
            }
            (publisher.stats().dropped > 0).then_some(())
        });
    });
    drop(publisher.subscribe("test.sleep.other"));
    server.resume();
    // Some of the waiting messages arrive late, which is no more than an old hint.
    block_in_place(|| {
        eventually("it is awake", || {
            publisher.publish("test.sleep", Bytes::from_static(b"awake"));
            while let Some(payload) = heard.try_next() {
                if payload == "awake" {
                    return Some(());
                }
            }
            None
        });
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_sleeps_for_long_is_taken_to_be_gone_and_found_again() {
    let Some(server) = NatsServer::start() else { return };
    let (publisher, listener) = (connect(&server), connect(&server));
    let mut heard = listening(&publisher, &listener, "test.long").await;
    server.pause();
    connected(&publisher, false);
    connected(&listener, false);
    server.resume();
    connected(&publisher, true);
    connected(&listener, true);
    hears(&publisher, &mut heard, "test.long").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_hears_of_a_subject_only_while_somebody_is_subscribed() {
    let Some(server) = NatsServer::start() else { return };
    let (publisher, listener) = (connect(&server), connect(&server));
    let subscriptions = |wanted| {
        block_in_place(|| {
            eventually("the server's list", || {
                (server.subscriptions("test.interest") == wanted).then_some(())
            });
        });
    };
    for _ in 0..3 {
        subscriptions(0);
        let first = listening(&publisher, &listener, "test.interest").await;
        let second = listener.subscribe("test.interest");
        subscriptions(1);
        drop(first);
        drop(second);
    }
    subscriptions(0);
}

const USERS: &str = r#"authorization { users: [
    { user: executor, password: "right", permissions: { publish: ["test.allowed"], subscribe: [">"] } }
    { user: reader, password: "other" }
] }"#;

#[tokio::test(flavor = "multi_thread")]
async fn users_may_do_what_the_server_permits() {
    let Some(server) = NatsServer::start_with(USERS) else { return };
    let folder = tempfile::tempdir().unwrap();
    let publisher = connect_with(&server, &login(&folder, "executor", "right\n"));
    let listener = connect_with(&server, &login(&folder, "reader", "other"));
    connected(&publisher, true);
    connected(&listener, true);
    let mut forbidden = listening(&listener, &listener, "test.forbidden").await;
    let mut allowed = listening(&publisher, &listener, "test.allowed").await;
    publisher.publish("test.forbidden", Bytes::from_static(b"refused"));
    publisher.publish("test.allowed", Bytes::from_static(b"taken"));
    assert_eq!(next(&mut allowed).await, "taken");
    assert_eq!(forbidden.try_next(), None);
    assert!(publisher.is_connected(), "a refusal costs no connection");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_tried_again_until_it_is_right() {
    let Some(mut server) = NatsServer::start_with(USERS) else { return };
    let folder = tempfile::tempdir().unwrap();
    let bus = connect_with(&server, &login(&folder, "reader", "changed"));
    let reader = connect_with(&server, &login(&folder, "executor", "right"));
    connected(&reader, true);
    bus.publish("test.wrong", Bytes::from_static(b"lost"));
    assert!(!bus.flush(Duration::from_secs(60)).await);
    assert_eq!((bus.stats().connections, bus.stats().dropped), (0, 1));
    server.config = USERS.replace("other", "changed");
    server.restart();
    connected(&bus, true);
    assert_eq!(bus.stats().connections, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_nkey_is_a_login() {
    let (right, wrong) = (nkeys::KeyPair::new_user(), nkeys::KeyPair::new_user());
    let users = format!("authorization {{ users: [ {{ nkey: {} }} ] }}", right.public_key());
    let Some(server) = NatsServer::start_with(&users) else { return };
    let folder = tempfile::tempdir().unwrap();
    let with = |name: &str, pair: &nkeys::KeyPair| {
        let file = folder.path().join(name);
        fs::write(&file, pair.seed().unwrap()).unwrap();
        connect_with(&server, &Options { nkey_seed_file: Some(file), ..Options::default() })
    };
    let (bus, stranger) = (with("right", &right), with("wrong", &wrong));
    connected(&bus, true);
    assert!(!stranger.flush(Duration::from_secs(60)).await);
    assert_eq!(stranger.stats().connections, 0);
}

/// The certificates under `data` were made for this test: an authority, a server for localhost, a
/// client, and an authority that vouches for none of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_is_encrypted_and_both_ends_are_known() {
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");
    let tls = format!(
        "tls {{ cert_file: \"{data}/server.pem\", key_file: \"{data}/server.key\", \
         ca_file: \"{data}/ca.pem\", verify: true }}"
    );
    let Some(server) = NatsServer::start_with(&tls) else { return };
    let file = |name: &str| Some(format!("{data}/{name}").into());
    let right = Options {
        tls_ca_file: file("ca.pem"),
        tls_cert_file: file("client.pem"),
        tls_key_file: file("client.key"),
        ..Options::default()
    };
    let strange_server = Options { tls_ca_file: file("other-ca.pem"), ..right.clone() };
    let strange_client = Options { tls_cert_file: None, tls_key_file: None, ..right.clone() };
    let bus = |options: &Options| connect_with(&server, options);
    let (refusing, refused) = (bus(&strange_server), bus(&strange_client));
    let (publisher, listener) = (bus(&right), bus(&right));
    connected(&publisher, true);
    connected(&listener, true);
    drop(listening(&publisher, &listener, "test.tls").await);
    for bus in [refusing, refused] {
        assert!(!bus.flush(Duration::from_secs(60)).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_several_servers_is_enough() {
    let Some(server) = NatsServer::start() else { return };
    let Some(nobody) = NatsServer::stopped() else { return };
    let servers = [nobody.url(), server.url(), nobody.url()];
    let bus = Bus::connect(&servers, &Options::default(), &Handle::current()).unwrap();
    connected(&bus, true);
    drop(listening(&connect(&server), &bus, "test.several").await);
}
