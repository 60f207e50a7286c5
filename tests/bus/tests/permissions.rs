//! deploy/nats.conf on a real server: the subjects that each user may publish and receive.
#![allow(clippy::unwrap_used)]

mod common;

use async_nats::{Client, ConnectOptions, Subscriber, jetstream::kv::Store};
use common::{connect_with, connected, login};
use futures_util::StreamExt;
use std::{collections::BTreeSet, time::Duration};
use tandem_bus::{Entry, MissingBucket};
use tandem_bus_tests::{DEADLINE, NatsServer};
use tandem_proto::event::{
    BLOBS_VALIDATED, CHAIN_EXECUTED, CHAIN_HEAD, CHAIN_PERSISTED, LEAD_BUCKET, PEERS_DISCOVERED,
    PEERS_TARGET, POLICIES_KEY, SETTINGS_BUCKET, TRACES_SLOW, WORKERS_ALIVE,
};
use tandem_proto::feed_log::FEED_ALIVE;
use tokio::{task::block_in_place, time::timeout};

/// Subject of one worker.
const W1_ALIVE: &str = "workers.alive.w1";
/// Subject of another worker.
const W2_ALIVE: &str = "workers.alive.w2";

/// Subject of the blocks of one chain.
const BLOCKS: &str = "feed.blocks.0123";

const SUBJECTS: [&str; 11] = [
    CHAIN_EXECUTED,
    CHAIN_HEAD,
    CHAIN_PERSISTED,
    PEERS_DISCOVERED,
    PEERS_TARGET,
    BLOBS_VALIDATED,
    W1_ALIVE,
    W2_ALIVE,
    TRACES_SLOW,
    FEED_ALIVE,
    BLOCKS,
];

/// Returns the subjects that the tests subscribe to, including the wildcard for all workers.
fn heard() -> impl Iterator<Item = &'static str> {
    SUBJECTS.into_iter().chain([WORKERS_ALIVE, "other", POLICIES])
}

/// Key of the policies, as the server names it.
const POLICIES: &str = "$KV.tandem.policies";

/// Subjects that reading needs: the bucket, and the key in it.
const READ: [&str; 2] =
    ["$JS.API.STREAM.INFO.KV_tandem", "$JS.API.DIRECT.GET.KV_tandem.$KV.tandem.policies"];

/// Subjects that creating the bucket needs.
const MAKE: [&str; 2] = ["$JS.API.INFO", "$JS.API.STREAM.CREATE.KV_tandem"];

/// Subjects that the publisher of blocks needs, and those that a reader needs.
const FEED: [&str; 4] = [
    "$JS.API.STREAM.INFO.tandem_feed",
    "$JS.API.DIRECT.GET.tandem_feed",
    "$JS.API.STREAM.CREATE.tandem_feed",
    "$JS.API.STREAM.MSG.GET.tandem_feed",
];

/// Subjects that the lease of the lead needs.
const LEAD: [&str; 4] = [
    "$JS.API.STREAM.INFO.KV_tandem_lead",
    "$JS.API.STREAM.CREATE.KV_tandem_lead",
    "$JS.API.DIRECT.GET.KV_tandem_lead.$KV.tandem_lead.0123",
    "$KV.tandem_lead.0123",
];

/// Users of the stream of blocks.
const FEED_USERS: [&str; 2] = ["storage-writer", "follower"];

/// Subjects that could do harm: they make the server publish events or delete stored values.
const HARM: [&str; 10] = [
    "$JS.API.CONSUMER.CREATE.KV_tandem.any.$KV.tandem.policies",
    "$JS.API.CONSUMER.DURABLE.CREATE.KV_tandem.any",
    "$JS.API.STREAM.DELETE.KV_tandem",
    "$JS.API.STREAM.PURGE.KV_tandem",
    "$JS.API.CONSUMER.CREATE.tandem_feed.any",
    "$JS.API.STREAM.DELETE.tandem_feed",
    "$JS.API.STREAM.PURGE.tandem_feed",
    "$JS.API.CONSUMER.CREATE.KV_tandem_lead.any",
    "$JS.API.STREAM.DELETE.KV_tandem_lead",
    "$JS.API.STREAM.PURGE.KV_tandem_lead",
];

/// User, subjects it publishes, subjects it receives: the table in docs/ARCHITECTURE.md.
const USERS: [(&str, &[&str], &[&str]); 10] = [
    (
        "executor",
        &[CHAIN_EXECUTED, CHAIN_HEAD, TRACES_SLOW, POLICIES, MAKE[0], MAKE[1], READ[0], READ[1]],
        &[CHAIN_PERSISTED, W1_ALIVE, W2_ALIVE, TRACES_SLOW, POLICIES],
    ),
    (
        "multiproof-workers",
        &[W1_ALIVE, W2_ALIVE, READ[0], READ[1]],
        &[CHAIN_PERSISTED, TRACES_SLOW, POLICIES],
    ),
    // From the example in the file.
    ("worker-w1", &[W1_ALIVE, READ[0], READ[1]], &[CHAIN_PERSISTED, TRACES_SLOW, POLICIES]),
    (
        "storage-writer",
        &[
            CHAIN_PERSISTED,
            FEED_ALIVE,
            BLOCKS,
            FEED[0],
            FEED[1],
            FEED[2],
            FEED[3],
            MAKE[0],
            LEAD[0],
            LEAD[1],
            LEAD[2],
            LEAD[3],
        ],
        &[FEED_ALIVE, TRACES_SLOW],
    ),
    // From the example in the file.
    ("follower", &[FEED[0], FEED[1]], &[FEED_ALIVE, TRACES_SLOW]),
    ("blob-validator", &[BLOBS_VALIDATED], &[TRACES_SLOW]),
    ("peer-table", &[PEERS_TARGET], &[PEERS_DISCOVERED, TRACES_SLOW]),
    ("peer-sessions", &[], &[CHAIN_HEAD, TRACES_SLOW]),
    ("tx-pool", &[], &[CHAIN_HEAD, TRACES_SLOW]),
    ("discovery", &[PEERS_DISCOVERED], &[PEERS_TARGET, CHAIN_HEAD, TRACES_SLOW]),
];

/// Starts a server with the users of the file; each user's password is the user's name.
fn start() -> Option<NatsServer> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/nats.conf");
    // Includes the example of a worker that has a user of its own.
    let conf = std::fs::read_to_string(file).unwrap().replace("#:", "");
    let (_, users) = conf.split_once("\nauthorization {").expect("the file lists users");
    let names = USERS.map(|(user, ..)| user).into_iter().chain(["operator"]);
    let passwords = names.map(|user| format!("{}_password: {user:?}\n", user.replace('-', "_")));
    NatsServer::start_with(&format!("{}authorization {{{users}", passwords.collect::<String>()))
}

async fn client(server: &NatsServer, user: &str) -> Client {
    let options = ConnectOptions::with_user_and_password(user.to_owned(), user.to_owned());
    options.connect(server.url()).await.unwrap()
}

fn set(subjects: &[&str]) -> BTreeSet<String> {
    subjects.iter().map(|&subject| subject.to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn everyone_publishes_what_is_his_to_say_and_nothing_else() {
    let Some(server) = start() else { return };
    let operator = client(&server, "operator").await;
    let mut all = operator.subscribe(">").await.unwrap();
    heard_until_last(&operator, "ready", &mut all).await;
    for (user, publishes, _) in USERS {
        let publisher = client(&server, user).await;
        let api = READ.into_iter().chain(HARM).chain(MAKE).chain(FEED).chain(LEAD);
        for subject in SUBJECTS.into_iter().chain(["other", POLICIES]).chain(api) {
            publisher.publish(subject, "said".into()).await.unwrap();
        }
        let (speaker, last) = last_word(&publisher, &operator, publishes).await;
        assert_eq!(heard_until_last(speaker, last, &mut all).await, set(publishes), "{user}");
    }
}

/// Returns who says the last word after a user, and on which subject. A user that may publish
/// nothing cannot: the operator speaks for it, a little later.
async fn last_word<'a>(
    user: &'a Client,
    operator: &'a Client,
    publishes: &[&'static str],
) -> (&'a Client, &'static str) {
    match publishes.first() {
        Some(own) => (user, own),
        None => {
            user.flush().await.unwrap();
            tokio::time::sleep(Duration::from_millis(300)).await;
            (operator, "ready")
        }
    }
}

/// Returns the subjects of the messages received until a last message on this subject. The server
/// has then processed everything that the publisher sent and asked before.
async fn heard_until_last(
    publisher: &Client,
    subject: &'static str,
    all: &mut Subscriber,
) -> BTreeSet<String> {
    publisher.publish(subject, "last".into()).await.unwrap();
    let mut heard = BTreeSet::new();
    loop {
        let message = timeout(DEADLINE, all.next()).await.expect("the last word").unwrap();
        if message.payload == "last" {
            return heard;
        }
        // JetStream publishes an event for each request.
        if !message.subject.starts_with("$JS.EVENT.") {
            heard.insert(message.subject.to_string());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn everyone_hears_what_he_needs_and_nothing_else() {
    let Some(server) = start() else { return };
    let operator = client(&server, "operator").await;
    for (user, publishes, hears) in USERS {
        // JetStream itself listens to its own subjects.
        let plain = publishes.iter().copied().filter(|subject| !subject.starts_with("$JS."));
        let plain: Vec<_> = plain.collect();
        let own = plain.first().copied().unwrap_or("ready");
        let mut all = operator.subscribe(own).await.unwrap();
        heard_until_last(&operator, own, &mut all).await;
        let listener = client(&server, user).await;
        let mut subscriptions = Vec::new();
        for subject in heard() {
            subscriptions.push(listener.subscribe(subject).await.unwrap());
        }
        let (speaker, last) = last_word(&listener, &operator, &plain).await;
        heard_until_last(speaker, last, &mut all).await;
        drop(all);
        let gone = || (server.subscriptions(own) == 0).then_some(());
        block_in_place(|| tandem_bus_tests::eventually("nobody hears what he says", gone));
        // A subscription to all workers covers each of them.
        let heard = heard().filter(|&subject| subject != WORKERS_ALIVE);
        let heard = heard.filter(|subject| block_in_place(|| server.subscriptions(subject) > 0));
        assert_eq!(heard.map(str::to_owned).collect::<BTreeSet<_>>(), set(hears), "{user}");
        drop(subscriptions);
        drop(listener);
        let gone = || {
            let mut left = SUBJECTS.iter().map(|subject| server.subscriptions(subject));
            left.all(|count| count == 0).then_some(())
        };
        block_in_place(|| tandem_bus_tests::eventually("he is gone", gone));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_to_one_user_are_heard_by_no_other() {
    let Some(server) = start() else { return };
    let operator = client(&server, "operator").await;
    for (user, publishes, _) in USERS {
        let own = publishes.first().copied().unwrap_or("ready");
        let mut all = operator.subscribe(own).await.unwrap();
        heard_until_last(&operator, own, &mut all).await;
        let listener = client(&server, user).await;
        let mut subscriptions = vec![listener.subscribe("_INBOX.>").await.unwrap()];
        for (other, ..) in USERS {
            let inbox = format!("_INBOX.{other}.>");
            subscriptions.push(listener.subscribe(inbox).await.unwrap());
        }
        let (speaker, last) = last_word(&listener, &operator, publishes).await;
        heard_until_last(speaker, last, &mut all).await;
        for (other, _, hears) in USERS {
            let asks = hears.contains(&POLICIES) || FEED_USERS.contains(&other);
            let heard = block_in_place(|| server.subscriptions(&format!("_INBOX.{other}.any")) > 0);
            assert_eq!(heard, other == user && asks, "{user} hears answers to {other}");
        }
        drop((subscriptions, listener));
        let gone = || (server.subscriptions(&format!("_INBOX.{user}.any")) == 0).then_some(());
        block_in_place(|| tandem_bus_tests::eventually("the user is gone", gone));
    }
}

/// Returns the bucket as the operator sees it, once it exists.
async fn bucket(server: &NatsServer) -> Store {
    let people = async_nats::jetstream::new(client(server, "operator").await);
    let there = async {
        loop {
            match people.get_key_value(SETTINGS_BUCKET).await {
                Ok(bucket) => return bucket,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    timeout(DEADLINE, there).await.expect("the bucket is made")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_executor_makes_the_bucket_of_live_settings_and_people_fill_it() {
    for user in ["executor", "multiproof-workers", "worker-w1"] {
        let Some(server) = start() else { return };
        let folder = tempfile::tempdir().unwrap();
        let bus = |user| connect_with(&server, &login(&folder, user, user));
        let (watcher, maker) = (bus(user), bus("executor"));
        connected(&watcher, true);
        let is_executor = user == "executor";
        let missing = if is_executor { MissingBucket::Make } else { MissingBucket::Await };
        let mut key = watcher.watch_key(SETTINGS_BUCKET, POLICIES_KEY, missing);
        let _made = maker.watch_key(SETTINGS_BUCKET, POLICIES_KEY, MissingBucket::Make);
        let bucket = bucket(&server).await;
        for text in ["chunking=never", "chunking=always"] {
            bucket.put(POLICIES_KEY, text.into()).await.unwrap();
            let entry = timeout(DEADLINE, key.changed()).await.expect("a change").unwrap();
            assert_eq!(entry, Entry::Value(text.into()), "{user}");
        }
        // Among the services, only the executor sets them: for `tandem_setPolicies`.
        let set = watcher.set_key(SETTINGS_BUCKET, POLICIES_KEY, "chunking=while-idle".into());
        let set = set.await;
        assert_eq!(set.is_ok(), is_executor, "{user}: {set:?}");
        let held = bucket.get(POLICIES_KEY).await.unwrap().unwrap();
        let want = if is_executor { "chunking=while-idle" } else { "chunking=always" };
        assert_eq!(held, want, "{user}");
        if is_executor {
            let entry = timeout(DEADLINE, key.changed()).await.expect("a change").unwrap();
            assert_eq!(entry, Entry::Value(want.into()), "it hears of what it set itself");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn storage_writers_share_a_lease_that_no_other_service_touches() {
    let Some(server) = start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let bus = |user| connect_with(&server, &login(&folder, user, user));
    let buses = ["storage-writer", "storage-writer", "executor"].map(bus);
    buses.iter().for_each(|bus| connected(bus, true));
    let mut keys = buses.map(|bus| bus.compared_key(LEAD_BUCKET, "0123".to_owned(), 1).unwrap());
    let [leader, follower, executor] = &mut keys;
    assert_eq!(leader.read(DEADLINE).await, Ok((0, None)));
    let revision = leader.replace(0, "leader".to_owned(), DEADLINE).await.unwrap().unwrap();
    assert_eq!(follower.replace(0, "follower".to_owned(), DEADLINE).await, Ok(None));
    assert_eq!(follower.read(DEADLINE).await, Ok((revision, Some("leader".to_owned()))));
    let short = Duration::from_millis(500);
    assert!(executor.read(short).await.is_err());
    assert!(executor.replace(revision, "executor".to_owned(), short).await.is_err());
    assert_eq!(leader.read(DEADLINE).await, Ok((revision, Some("leader".to_owned()))));
}
