//! Lost connections and missing servers.

use crate::{
    common::{
        TIMEOUT, bundle,
        flood::{Flood, one_by_one},
        garbage, status, until,
    },
    host::Host,
};
use std::{sync::Arc, time::Duration};
use tandem_blob_validator::Config;
use tandem_blob_validator_client::{Client, ClientConfig};
use tandem_proto::blob_validator::{BlobApi, Error, Verdict};
use tokio::{net::TcpListener, runtime::Handle};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_comes_back_is_found_again() {
    let host = Host::start(Config::default()).await;
    let address = host.address;
    let client = host.client_of(ClientConfig { reconnect_wait_ms: 60_000, ..Default::default() });
    let sidecar = Arc::new(bundle(2));
    assert_eq!(client.validate(sidecar.clone(), TIMEOUT).await, Ok(Verdict::Valid));
    let service = host.stop().await;
    until(|| !client.is_connected()).await;
    // A request made without a server is answered once there is one.
    let (early, asked) = (client.clone(), sidecar.clone());
    let waiting = tokio::spawn(async move { early.validate(asked, TIMEOUT).await });
    tokio::task::yield_now().await;
    let host = Host::serve(service, address).await;
    assert_eq!(waiting.await.unwrap(), Ok(Verdict::Valid));
    assert_eq!(client.validate(sidecar, TIMEOUT).await, Ok(Verdict::Valid));
    assert_eq!(status(&host.service).verified, 2);
}

/// Loses the connection while a verdict is pending.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_lost_its_connection_is_made_again() {
    let host = Host::start(one_by_one()).await;
    let address = host.address;
    let client = host.client_of(ClientConfig { reconnect_wait_ms: 60_000, ..Default::default() });
    until(|| client.is_connected()).await;
    let flood = Flood::start(&host.service).await;
    let asking = client.clone();
    let waiting = tokio::spawn(async move { asking.validate(garbage(1000, 6), TIMEOUT).await });
    flood.until_behind(6).await;
    let service = host.cut().await;
    let host = Host::serve(service, address).await;
    assert!(matches!(waiting.await.unwrap(), Ok(Verdict::Invalid(_))));
    let others = flood.end().await;
    assert_eq!(status(&host.service).verified, others + 6);
}

#[tokio::test]
async fn nobody_there_is_said_in_time() {
    // The port was free a moment ago.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let config = ClientConfig { reconnect_wait_ms: 30, advice_capacity: 1, ..Default::default() };
    let client = Client::connect(&endpoint, config, &Handle::current()).unwrap();
    let sidecar = Arc::new(bundle(1));
    let unavailable = client.validate(sidecar.clone(), TIMEOUT).await;
    assert!(matches!(unavailable, Err(Error::Unavailable(_))), "{unavailable:?}");
    let short = client.validate(sidecar, Duration::from_millis(5)).await;
    assert_eq!(short, Err(Error::DeadlineExceeded));
    assert!(client.get_blobs(&[]).await.is_err() && client.status().await.is_err());
    // Advice is dropped rather than kept.
    for _ in 0..1000 {
        client.forget(&[]);
    }
    assert!(Client::connect("no endpoint", ClientConfig::default(), &Handle::current()).is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_has_stopped_says_so() {
    let host = Host::start(Config::default()).await;
    let client = host.client().await;
    let stopping = host.service.clone();
    tokio::task::spawn_blocking(move || stopping.stop()).await.unwrap();
    let answer = client.validate(Arc::new(bundle(1)), TIMEOUT).await;
    assert!(matches!(answer, Err(Error::Unavailable(_))), "{answer:?}");
}
