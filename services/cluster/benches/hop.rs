//! Measures the cost of one hop: a message of a few dozen bytes there and back between two threads.
//! One message is sent at a time, in each of the ways that services communicate. Both ends are in
//! this process, each on its own thread.
//!
//! * `mailbox`: an actor's mailbox, its answer over a channel.
//! * `bus` and `NATS`: a subject there and another back.
//! * `gRPC unary` and `gRPC stream`: a call of its own each time, and messages of one stream, of
//!   blob-validator, which refuses an empty sidecar without any work; over a Unix socket, as between
//!   processes of one machine, and over TCP on loopback.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{is_bench, quantile, say};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_actor::{mailbox, spawn};
use tandem_blob_validator::{BlobValidator, Config, grpc::Server};
use tandem_bus::{Bus, Options};
use tandem_bus_tests::NatsServer;
use tandem_proto::{
    blob_validator::{Bundle, Form, Rule},
    convert::{BlobRequest, BlobStreamRequest},
    wire::blob_validator::v1::blob_validator_client::BlobValidatorClient,
};
use tandem_rpc::{ClientConnection, ConnectionConfig, Listener, ServerDescription};
use tokio::{
    net::TcpListener,
    runtime::{Builder, Runtime},
    sync::{mpsc, oneshot},
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

const WARM_UP: usize = 500;
const ROUNDS: usize = 5_000;
const THERE: &str = "bench.there";
const BACK: &str = "bench.back";
const SERVER: ServerDescription = ServerDescription {
    role: "blob-validator",
    service: "tandem.blob_validator.v1.BlobValidator",
    error_metadata: "tandem-error-bin",
    connections: "tandem_bench_connections_total",
    lost: "tandem_bench_connections_lost_total",
    stream_window: 1 << 20,
    direct_connections: 0,
};

fn main() {
    if !is_bench() {
        return;
    }
    say("a message there and back, one at a time        p50      p99   microseconds");
    through_mailbox();
    let (near, far) = (reactor(), reactor());
    let bus = Bus::default();
    report("in-process bus", over_bus(&near, &far, bus.clone(), bus));
    match NatsServer::start() {
        Some(nats) => {
            let [here, there] = [&near, &far].map(|runtime| {
                Bus::connect(&[nats.url()], &Options::default(), runtime.handle()).unwrap()
            });
            report("NATS, two messages", over_bus(&near, &far, here, there));
        }
        None => say("NATS: skipped, there is no nats-server"),
    }
    let local = far.block_on(Listener::bind("127.0.0.1:0".parse().unwrap())).unwrap();
    over_grpc(&near, &far, "Unix socket", local);
    let tcp = far.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    over_grpc(&near, &far, "TCP", tcp.into());
}

/// Returns a reactor with one thread: one end of the hop.
fn reactor() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn report(name: &str, mut times: Vec<Duration>) {
    times.drain(..WARM_UP);
    times.sort_unstable();
    let [p50, p99] = [0.5, 0.99].map(|share| quantile(&times, share).as_secs_f64() * 1e6);
    say(&format!("  {name:40} {p50:8.1} {p99:8.1}"));
}

/// Times each hop of a caller that may await.
async fn times<F: Future<Output = ()>>(mut hop: impl FnMut() -> F) -> Vec<Duration> {
    let mut times = Vec::with_capacity(WARM_UP + ROUNDS);
    for _ in 0..WARM_UP + ROUNDS {
        let started = Instant::now();
        hop().await;
        times.push(started.elapsed());
    }
    times
}

fn through_mailbox() {
    let (mailbox, inbox) = mailbox::<oneshot::Sender<u64>>("hop", 16);
    let actor = spawn("hop", CancellationToken::new(), move || {
        while let Some(envelope) = inbox.wait() {
            let _ = envelope.message.send(1);
        }
    });
    let mut times = Vec::new();
    for _ in 0..WARM_UP + ROUNDS {
        let (reply, answer) = oneshot::channel();
        let started = Instant::now();
        mailbox.send(reply).unwrap();
        answer.blocking_recv().unwrap();
        times.push(started.elapsed());
    }
    drop(mailbox);
    actor.unwrap().join().unwrap();
    report("mailbox of a thread", times);
}

/// Measures a bus: `here` asks, `there` answers.
fn over_bus(near: &Runtime, far: &Runtime, here: Bus, there: Bus) -> Vec<Duration> {
    let (mut asked, mut answered) = (there.subscribe(THERE), here.subscribe(BACK));
    far.spawn(async move {
        while let Some(payload) = asked.next().await {
            there.publish(BACK, payload);
        }
    });
    near.block_on(async move {
        near.spawn(async move {
            // A server learns of a subscription a moment later than the subscriber.
            let heard = async |answered: &mut tandem_bus::Subscription| {
                here.publish(THERE, vec![0; 32].into());
                timeout(Duration::from_millis(100), answered.next()).await.is_ok()
            };
            while !heard(&mut answered).await {}
            let mut times = Vec::new();
            for round in 0..(WARM_UP + ROUNDS) as u64 {
                let payload = [1 + round; 4].map(u64::to_le_bytes).concat();
                let started = Instant::now();
                here.publish(THERE, payload.clone().into());
                // Messages sent before the subscription was known may arrive late.
                while answered.next().await.unwrap() != payload {}
                times.push(started.elapsed());
            }
            times
        })
        .await
        .unwrap()
    })
}

fn empty_sidecar() -> BlobRequest {
    let form = Form::BlobProofs;
    let bundle = Bundle {
        form,
        blobs: Vec::new(),
        commitments: Vec::new(),
        proofs: Vec::new(),
        versioned_hashes: Vec::new(),
        rule: Rule { form, blobs_max: 6 },
    };
    BlobRequest { bundle: bundle.into(), timeout: Duration::from_secs(10) }
}

fn over_grpc(near: &Runtime, far: &Runtime, socket: &str, listener: Listener) {
    let deps = tandem_blob_validator::Deps { bus: Bus::default(), fatal: CancellationToken::new() };
    let service = BlobValidator::start(Config::default(), deps).unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let server = far.spawn(Server::new(service.clone(), 0).serve(listener, stop.clone()));
    let url = format!("http://{address}");
    let connection = ClientConnection::new(&url, SERVER, &ConnectionConfig::default()).unwrap();
    let connection = Arc::new(connection);
    let kept = connection.clone();
    let connecting = near.spawn(async move { kept.keep_serving().await });
    let client = BlobValidatorClient::new(near.block_on(connection.newer_than(0)).client);
    let unary = near.spawn(unary(client.clone()));
    report(&format!("gRPC unary, {socket}"), near.block_on(unary).unwrap());
    let stream = near.spawn(stream(client));
    report(&format!("gRPC stream, {socket}"), near.block_on(stream).unwrap());
    connecting.abort();
    stop.cancel();
    far.block_on(server).unwrap().unwrap();
    service.stop();
}

async fn unary(client: BlobValidatorClient<Channel>) -> Vec<Duration> {
    times(|| {
        let (mut client, request) = (client.clone(), (&empty_sidecar()).into());
        async move {
            let _: tonic::Response<_> =
                client.validate(tonic::Request::new(request)).await.unwrap();
        }
    })
    .await
}

async fn stream(mut client: BlobValidatorClient<Channel>) -> Vec<Duration> {
    let (requests, queue) = mpsc::channel(1);
    let answers = client.validate_stream(ReceiverStream::new(queue)).await.unwrap().into_inner();
    let answers = tokio::sync::Mutex::new(answers);
    times(|| async {
        let request = BlobStreamRequest { id: 1, request: empty_sidecar() };
        requests.send((&request).into()).await.unwrap();
        answers.lock().await.message().await.unwrap().unwrap();
    })
    .await
}
