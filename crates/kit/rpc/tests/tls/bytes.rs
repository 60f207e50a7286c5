//! Bytes on the wire, as the client counts them.

use super::{
    echo::{Caller, Served, call},
    house::House,
};
use bytes::Bytes;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use tandem_rpc::Identity;
use tokio::net::TcpListener;

/// Counters by their names and labels.
#[derive(Default)]
struct Counters(Mutex<HashMap<String, Arc<AtomicU64>>>);

impl Counters {
    fn bytes(&self, from: &str, to: &str) -> u64 {
        let key = format!("tandem_rpc_bytes_total from={from} to={to}");
        self.0.lock().unwrap().get(&key).map_or(0, |counter| counter.load(Relaxed))
    }
}

impl Recorder for Counters {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let labels = key.labels().map(|label| format!(" {}={}", label.key(), label.value()));
        let name = format!("{}{}", key.name(), labels.collect::<String>());
        let counter = self.0.lock().unwrap().entry(name).or_default().clone();
        Counter::from_arc(counter)
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// Sends `bytes` bytes from a client with the role `from`, and gets as many back, over a Unix socket and
/// over TCP.
async fn exchange(server: Identity, client: Identity, from: &str, bytes: usize) {
    let served = Served::start(server.clone()).await;
    exchange_with(&served, &client, from, bytes).await;
    let only_tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let served = Served::at(only_tcp.into(), server);
    exchange_with(&served, &client, from, bytes).await;
}

async fn exchange_with(served: &Served, client: &Identity, from: &str, bytes: usize) {
    let counters = Counters::default();
    let _recorded = metrics::set_default_local_recorder(&counters);
    let caller = Caller::start(served.address, client);
    let channel = caller.connected().await;
    let count = || [counters.bytes(from, "storage-writer"), counters.bytes("storage-writer", from)];
    let before = count();
    assert!(before.iter().all(|&bytes| bytes > 0), "{before:?}");
    let sent = Bytes::from(vec![7; bytes]);
    assert_eq!(call(&channel, "Write", sent.clone()).await, Ok(sent));
    for (before, after) in before.into_iter().zip(count()) {
        let more = (after - before) as usize;
        // Frames, windows, pings and the records of TLS come on top.
        assert!(more >= bytes && more < bytes + bytes / 10 + 10_000, "{more} of {bytes}");
    }
}

#[tokio::test]
async fn bytes_of_each_direction_are_counted_with_and_without_tls() {
    let client = Identity::plain("executor");
    exchange(Identity::default(), client, "executor", 3_000_000).await;
    exchange(Identity::default(), Identity::default(), "other", 100_000).await;
    let house = House::new();
    let server = house.identity("storage-writer");
    exchange(server, house.identity("executor"), "executor", 3_000_000).await;
}
