//! A key that several processes change by compare-and-set.
#![allow(clippy::unwrap_used)]

mod common;

use async_nats::jetstream;
use common::{connect, connected};
use std::time::{Duration, Instant};
use tandem_bus::ComparedKey;
use tandem_bus_tests::{DEADLINE, NatsServer};

const BUCKET: &str = "tandem_lead";

async fn replace(key: &mut ComparedKey, revision: u64, text: &str) -> Result<Option<u64>, String> {
    key.replace(revision, text.to_owned(), DEADLINE).await
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_changes_of_one_revision_one_succeeds() {
    let Some(server) = NatsServer::start() else { return };
    let buses = [connect(&server), connect(&server)];
    let [mut one, mut two] =
        buses.each_ref().map(|bus| bus.compared_key(BUCKET, "chain".to_owned(), 1).unwrap());
    let mut other_chain = buses[0].compared_key(BUCKET, "other".to_owned(), 1).unwrap();
    assert_eq!(one.read(DEADLINE).await, Ok((0, None)));
    let first = replace(&mut one, 0, "one").await.unwrap().unwrap();
    assert_eq!(replace(&mut two, 0, "two").await, Ok(None));
    assert_eq!(two.read(DEADLINE).await, Ok((first, Some("one".to_owned()))));
    for round in 0..20 {
        let (revision, _) = one.read(DEADLINE).await.unwrap();
        let (left, right) =
            tokio::join!(replace(&mut one, revision, "one"), replace(&mut two, revision, "two"));
        let (left, right) = (left.unwrap(), right.unwrap());
        assert!(left.is_some() != right.is_some(), "round {round}: {left:?} {right:?}");
        let text = if left.is_some() { "one" } else { "two" };
        assert_eq!(one.read(DEADLINE).await.unwrap().1.as_deref(), Some(text));
    }
    // Another key changes no revision of this one.
    let (revision, _) = one.read(DEADLINE).await.unwrap();
    replace(&mut other_chain, 0, "other").await.unwrap().unwrap();
    assert!(replace(&mut one, revision, "one").await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_an_operator_deleted_is_missing_and_keeps_its_revision() {
    let Some(server) = NatsServer::start() else { return };
    let bus = connect(&server);
    let mut key = bus.compared_key(BUCKET, "chain".to_owned(), 1).unwrap();
    let first = replace(&mut key, 0, "one").await.unwrap().unwrap();
    let people = jetstream::new(async_nats::connect(server.url()).await.unwrap());
    let bucket = people.get_key_value(BUCKET).await.unwrap();
    bucket.delete("chain").await.unwrap();
    let (revision, text) = key.read(DEADLINE).await.unwrap();
    assert!(revision > first && text.is_none(), "{revision} {text:?}");
    assert_eq!(replace(&mut key, 0, "two").await, Ok(None), "it has a revision");
    assert!(replace(&mut key, revision, "two").await.unwrap().is_some());
    bucket.put("chain", vec![b'x'; 1025].into()).await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_or_silent_is_an_error_within_the_given_time() {
    let Some(mut server) = NatsServer::start() else { return };
    let bus = connect(&server);
    let mut key = bus.compared_key(BUCKET, "chain".to_owned(), 1).unwrap();
    let first = replace(&mut key, 0, "one").await.unwrap().unwrap();
    let short = Duration::from_millis(200);
    server.pause();
    let begun = Instant::now();
    assert_eq!(key.read(short).await, Err("the server does not answer".to_owned()));
    assert!(key.replace(first, "two".to_owned(), short).await.is_err());
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    server.resume();
    // The write whose answer was not awaited may have come later.
    let (revision, _) = key.read(DEADLINE).await.unwrap();
    assert!(replace(&mut key, revision, "three").await.unwrap().is_some());
    server.kill();
    connected(&bus, false);
    assert_eq!(key.read(short).await, Err("no connection to NATS".to_owned()));
    server.restart();
    connected(&bus, true);
    let (_, text) = key.read(DEADLINE).await.unwrap();
    assert_eq!(text.as_deref(), Some("three"), "the store outlives the server");
}
