//! Direct calls, and the calls over HTTP/2 that stand in for them.

use super::{
    echo::{Caller, SERVER, SLOW, SLOW_CALLS, Served, UNANSWERED, call},
    house::House,
    logs::PATIENCE,
};
use bytes::Bytes;
use std::{
    sync::atomic::Ordering::Relaxed,
    thread,
    time::{Duration, Instant},
};
use tandem_rpc::{ClientConnection, Identity, ServerDescription};
use tokio::{net::TcpListener, task::spawn_blocking, time::sleep};
use tonic::transport::Channel;

/// Server to which a client has two direct connections.
const DIRECT: ServerDescription = ServerDescription { direct_connections: 2, ..SERVER };

/// Makes a direct call on a thread that may wait.
async fn directly(caller: &Caller, method: &'static str, bytes: &[u8]) -> Option<Vec<u8>> {
    let (connection, bytes) = (caller.connection.clone(), bytes.to_vec());
    let make = move || make(&connection, method, &bytes);
    spawn_blocking(make).await.unwrap()
}

fn make(
    connection: &ClientConnection<Channel>,
    method: &'static str,
    bytes: &[u8],
) -> Option<Vec<u8>> {
    connection.direct().call(method, None, PATIENCE, |buffer| buffer.extend_from_slice(bytes))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_direct_call_is_answered_or_left_to_http2() {
    let house = House::new();
    let served = Served::start(house.identity("storage-writer")).await;
    let worker = Caller::start_to(DIRECT, served.address, &house.identity("multiproof-worker"));
    let channel = worker.connected().await;
    // More calls than connections: each is free again after its answer, or without one.
    for length in [0, 1, 5, 70_000, 4 << 20] {
        let bytes = vec![length as u8; length];
        assert_eq!(directly(&worker, "Read", &bytes).await, Some(bytes));
        assert_eq!(directly(&worker, "Read", UNANSWERED).await, None);
        assert_eq!(directly(&worker, "Read", &vec![0; (4 << 20) + 1]).await, None, "too long");
        assert_eq!(directly(&worker, "Write", b"no").await, None, "another role's");
        assert_eq!(directly(&worker, "Other", b"no").await, None, "no method");
    }
    let connection = worker.connection.clone();
    let with_context = move || {
        let write = |buffer: &mut Vec<u8>| buffer.extend_from_slice(b" and bytes");
        connection.direct().call("Read", Some("context"), PATIENCE, write)
    };
    let answer = spawn_blocking(with_context).await.unwrap();
    assert_eq!(answer.as_deref(), Some(&b"context and bytes"[..]));
    // Both protocols go over the same socket.
    let bytes = Bytes::from_static(b"bytes");
    assert_eq!(call(&channel, "Read", bytes.clone()).await, Ok(bytes));
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_beyond_the_connections_do_not_wait() {
    let house = House::new();
    let served = Served::start(house.identity("storage-writer")).await;
    let caller = Caller::start_to(DIRECT, served.address, &house.identity("executor"));
    caller.connected().await;
    let slow: Vec<_> = (0..2)
        .map(|_| {
            let connection = caller.connection.clone();
            thread::spawn(move || make(&connection, "Read", SLOW))
        })
        .collect();
    let started = Instant::now();
    while SLOW_CALLS.load(Relaxed) < slow.len() {
        assert!(started.elapsed() < PATIENCE, "the slow calls never began");
        sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(directly(&caller, "Read", b"quick").await, None);
    // Whoever ends the calls sets their callers free.
    let ended = Instant::now();
    caller.connection.direct().close();
    for call in slow {
        assert_eq!(spawn_blocking(|| call.join().unwrap()).await.unwrap(), None);
    }
    assert!(ended.elapsed() < PATIENCE);
    assert_eq!(directly(&caller, "Read", b"quick").await, None, "they stay closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn direct_calls_end_with_the_server_and_come_back_with_the_next() {
    let house = House::new();
    let served = Served::start(house.identity("storage-writer")).await;
    let address = served.address;
    let caller = Caller::start_to(DIRECT, address, &house.identity("executor"));
    caller.connected().await;
    assert!(directly(&caller, "Read", b"bytes").await.is_some());
    let before = caller.connection.generation();
    drop(served);
    let started = Instant::now();
    while directly(&caller, "Read", b"bytes").await.is_some() {
        assert!(started.elapsed() < PATIENCE, "the connections stayed open");
    }
    let listener = loop {
        match tandem_rpc::Listener::bind(address).await {
            Ok(listener) => break listener,
            Err(error) => assert!(started.elapsed() < PATIENCE, "{error}"),
        }
        sleep(Duration::from_millis(20)).await;
    };
    let _served = Served::at(listener, house.identity("storage-writer"));
    caller.connection.newer_than(before).await;
    assert!(directly(&caller, "Read", b"bytes").await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_unix_socket_or_a_proof_there_are_no_direct_calls() {
    let house = House::new();
    let only_tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let served = Served::at(only_tcp.into(), house.identity("storage-writer"));
    let caller = Caller::start_to(DIRECT, served.address, &house.identity("executor"));
    caller.connected().await;
    assert_eq!(directly(&caller, "Read", b"bytes").await, None);
    let served = Served::start(Identity::plain("storage-writer")).await;
    let caller = Caller::start_to(DIRECT, served.address, &Identity::plain("executor"));
    let channel = caller.connected().await;
    assert_eq!(directly(&caller, "Read", b"bytes").await, None);
    let bytes = Bytes::from_static(b"bytes");
    assert_eq!(call(&channel, "Read", bytes.clone()).await, Ok(bytes));
}
