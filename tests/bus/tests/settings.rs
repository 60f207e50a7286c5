//! Live settings: a key of a bucket, watched.
#![allow(clippy::unwrap_used)]

mod common;

use async_nats::jetstream::{self, kv::Store};
use bytes::Bytes;
use common::{connect, connect_with, connected, login};
use std::{num::NonZeroU32, time::Duration};
use tandem_bus::{
    Bus, Entry,
    MissingBucket::{Await, Make},
    VALUE_BYTES_MAX, WatchedKey,
};
use tandem_bus_tests::{DEADLINE, NatsServer, eventually};
use tandem_cluster::follow_policies;
use tandem_policy::{Batching, Chunking, LivePolicies, Policies};
use tandem_proto::event::POLICIES_KEY;
use tokio::{
    task::block_in_place,
    time::{sleep, timeout},
};

/// Returns the bucket as people see it, once it exists.
async fn bucket(server: &NatsServer) -> Store {
    bucket_of(async_nats::connect(server.url()).await.unwrap()).await
}

async fn bucket_of(client: async_nats::Client) -> Store {
    let jetstream = jetstream::new(client);
    let there = async {
        loop {
            match jetstream.get_key_value("tandem").await {
                Ok(bucket) => return bucket,
                Err(_) => sleep(Duration::from_millis(20)).await,
            }
        }
    };
    timeout(DEADLINE, there).await.expect("the bucket is made")
}

async fn changed(key: &mut WatchedKey) -> Entry {
    timeout(DEADLINE, key.changed()).await.expect("a change within the deadline").unwrap()
}

fn value(text: &'static str) -> Entry {
    Entry::Value(Bytes::from_static(text.as_bytes()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_followed_through_changes_deletion_and_restarts() {
    let Some(mut server) = NatsServer::start() else { return };
    let bus = connect(&server);
    let (mut key, _other) =
        (bus.watch_key("tandem", "policies", Make), bus.watch_key("tandem", "other", Make));
    let people = bucket(&server).await;
    people.put("other", "no concern of it".into()).await.unwrap();
    people.put("policies", "one".into()).await.unwrap();
    assert_eq!(changed(&mut key).await, value("one"));
    people.put("policies", "two".into()).await.unwrap();
    assert_eq!(changed(&mut key).await, value("two"));
    assert!(people.put("policies", vec![b'x'; VALUE_BYTES_MAX + 1].into()).await.is_err());
    people.delete("policies").await.unwrap();
    assert_eq!(changed(&mut key).await, Entry::Missing);
    people.put("policies", "three".into()).await.unwrap();
    assert_eq!(changed(&mut key).await, value("three"));
    let mut late = bus.watch_key("tandem", "policies", Make);
    assert_eq!(changed(&mut late).await, value("three"), "who comes late learns what holds");
    // The current value is not a change, even when the server sends it again after a restart.
    server.kill();
    connected(&bus, false);
    server.restart();
    let people = bucket(&server).await;
    people.put("policies", "four".into()).await.unwrap();
    assert_eq!(changed(&mut key).await, value("four"));
    people.put("policies", "five".into()).await.unwrap();
    assert_eq!(changed(&mut key).await, value("five"));
    drop(bus);
    assert_eq!(timeout(DEADLINE, key.changed()).await, Ok(None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_set_here_changes_for_all_who_watch_it() {
    let Some(mut server) = NatsServer::start() else { return };
    let (here, there) = (connect(&server), connect(&server));
    let mut keys = [&here, &there].map(|bus| bus.watch_key("tandem", "policies", Make));
    let set = async |text: &'static str| here.set_key("tandem", "policies", text.into()).await;
    for text in ["one", "two"] {
        set(text).await.unwrap();
        for key in &mut keys {
            assert_eq!(changed(key).await, value(text));
        }
    }
    let error = here.set_key("tandem", "policies", vec![b'x'; VALUE_BYTES_MAX + 1].into()).await;
    let error = error.unwrap_err().to_string();
    assert!(error.starts_with("key `policies` of bucket `tandem` is not set: "), "{error}");
    // Without a server the call fails at once and is not retried later.
    server.kill();
    connected(&here, false);
    let error = set("lost").await.unwrap_err();
    assert_eq!(error.reason, "no connection to NATS");
    server.jetstream = false;
    server.restart();
    connected(&here, true);
    assert!(set("lost too").await.is_err(), "nobody keeps it");
    server.jetstream = true;
    server.restart();
    connected(&here, true);
    let people = bucket(&server).await;
    assert_eq!(people.get("policies").await.unwrap().unwrap(), "two");
    set("three").await.unwrap();
    for key in &mut keys {
        assert_eq!(changed(key).await, value("three"));
    }
}

/// The permissions that docs/ARCHITECTURE.md names are enough, also to create the bucket.
#[tokio::test(flavor = "multi_thread")]
async fn few_permissions_are_enough_to_follow_a_key() {
    let users = r#"authorization { users: [
        { user: executor, password: "right", permissions: {
            publish: ["$JS.API.>"], subscribe: ["_INBOX.>", "$KV.tandem.policies"] } }
        { user: people, password: "any" }
    ] }"#;
    let Some(server) = NatsServer::start_with(users) else { return };
    let folder = tempfile::tempdir().unwrap();
    let bus = connect_with(&server, &login(&folder, "executor", "right"));
    let mut key = bus.watch_key("tandem", "policies", Make);
    let people = async_nats::ConnectOptions::with_user_and_password("people".into(), "any".into());
    let people = bucket_of(people.connect(server.url()).await.unwrap()).await;
    people.put("policies", "one".into()).await.unwrap();
    assert_eq!(changed(&mut key).await, value("one"));
    people.put("policies", "two".into()).await.unwrap();
    assert_eq!(changed(&mut key).await, value("two"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_makes_no_bucket_waits_for_one() {
    let Some(server) = NatsServer::start() else { return };
    let (bus, maker) = (connect(&server), connect(&server));
    let mut key = bus.watch_key("tandem", "policies", Await);
    let people = jetstream::new(async_nats::connect(server.url()).await.unwrap());
    // The watch has asked, and learnt that there is no bucket.
    let asked = || (server.subscriptions("$KV.tandem.policies") > 0).then_some(());
    block_in_place(|| eventually("the watch is there", asked));
    assert!(people.get_key_value("tandem").await.is_err(), "nobody made a bucket");
    maker.set_key("tandem", "policies", "one".into()).await.unwrap();
    assert_eq!(changed(&mut key).await, value("one"));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_jetstream_nothing_changes_until_there_is_some() {
    let Some(mut server) = NatsServer::start() else { return };
    server.jetstream = false;
    server.restart();
    let bus = connect(&server);
    let mut key = bus.watch_key("tandem", "policies", Make);
    // The bus itself works.
    let other = connect(&server);
    drop(common::listening(&other, &bus, "test.plain").await);
    server.jetstream = true;
    server.restart();
    bucket(&server).await.put("policies", "at last".into()).await.unwrap();
    assert_eq!(changed(&mut key).await, value("at last"));
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_follow_the_key_and_a_wrong_value_changes_nothing() {
    let Some(server) = NatsServer::start() else { return };
    let bus = connect(&server);
    let configured = Policies { chunk_targets: NonZeroU32::MAX, ..Policies::default() };
    let live = LivePolicies::new(configured);
    let following = {
        let (bus, live) = (bus.clone(), live.clone());
        tokio::spawn(async move { follow_policies(&bus, &live, Make).await })
    };
    let people = bucket(&server).await;
    let set = async |text: &'static str, want: Policies| {
        people.put(POLICIES_KEY, text.into()).await.unwrap();
        holds(&live, want);
    };
    set("batching=none", Policies { batching: Batching::None, ..configured }).await;
    set("chunking=never", Policies { chunking: Chunking::Never, ..configured }).await;
    // The invalid value is seen before the valid one after it.
    people.put(POLICIES_KEY, "batching=none chunking=often".into()).await.unwrap();
    sleep(Duration::from_millis(50)).await;
    assert_eq!(live.load(), Policies { chunking: Chunking::Never, ..configured });
    set("batching=none\nchunking=while-idle", {
        let (batching, chunking) = (Batching::None, Chunking::WhileIdle);
        Policies { batching, chunking, ..configured }
    })
    .await;
    people.delete(POLICIES_KEY).await.unwrap();
    holds(&live, configured);
    following.abort();
}

fn holds(live: &LivePolicies, want: Policies) {
    block_in_place(|| eventually("the policies hold", || (live.load() == want).then_some(())));
}

#[tokio::test]
async fn a_bus_of_one_process_has_no_settings() {
    let bus = Bus::default();
    assert_eq!(bus.watch_key("tandem", "policies", Make).changed().await, None);
    assert_eq!(bus.set_key("tandem", "policies", "none".into()).await, Ok(()), "nobody is told");
}
