use super::*;
use crate::{
    certificates::Authority, connector::Connector, identity::Identity, tls::TlsConfig,
    unread::UnreadWatch,
};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tonic::{
    codegen::{Bytes, http},
    transport::{Channel, Endpoint},
};
use tonic_health::{
    ServingStatus,
    pb::{
        HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus as Seen,
        health_client::HealthClient,
    },
    server::HealthReporter,
};

const LONGEST: Duration = Duration::from_secs(60);

/// Returns limits that no test reaches by chance.
fn wide() -> ListenerLimits {
    ListenerLimits {
        connections_max: 1000,
        address_connections_max: 1000,
        silent_max: LONGEST,
        unread_max: LONGEST,
    }
}

/// Server of gRPC's health service.
struct Serving {
    address: SocketAddr,
    health: HealthReporter,
    task: JoinHandle<()>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(limits: ListenerLimits) -> Serving {
    serve_with(limits, None).await
}

async fn serve_with(limits: ListenerLimits, tls: Option<Arc<Tls>>) -> Serving {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let incoming = Incoming::new(Listener::from(listener), "test", limits, tls);
    let (health, service) = tonic_health::server::health_reporter();
    let task = tokio::spawn(async move {
        let server = tonic::transport::Server::builder().add_service(UnreadWatch(service));
        server.serve_with_incoming(incoming).await.unwrap();
    });
    Serving { address, health, task }
}

impl Serving {
    async fn client(&self) -> HealthClient<Channel> {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).unwrap();
        HealthClient::new(endpoint.connect().await.unwrap())
    }

    async fn answers(&self) -> bool {
        check(&mut self.client().await).await
    }

    async fn silent(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }
}

async fn check(client: &mut HealthClient<Channel>) -> bool {
    let answer = timeout(LONGEST, client.check(HealthCheckRequest::default())).await;
    answer.expect("an answer or a refusal").is_ok()
}

/// Waits until the server has ended the connection.
async fn ended(stream: &mut TcpStream) {
    let end = async { while stream.read(&mut [0; 1024]).await.is_ok_and(|bytes| bytes > 0) {} };
    timeout(LONGEST, end).await.expect("the server ends it");
}

#[tokio::test]
async fn silent_connections_give_way_to_those_that_speak() {
    let serving = serve(ListenerLimits { connections_max: 8, ..wide() }).await;
    let mut silent = Vec::new();
    for _ in 0..3 {
        for _ in 0..100 {
            silent.push(serving.silent().await);
        }
        assert!(serving.answers().await);
    }
    // At most eight have a slot, and the oldest have lost theirs.
    for stream in &mut silent[..250] {
        ended(stream).await;
    }
}

#[tokio::test]
async fn a_connection_without_a_preface_is_ended() {
    let serving = serve(ListenerLimits { silent_max: Duration::from_millis(1), ..wide() }).await;
    for _ in 0..3 {
        ended(&mut serving.silent().await).await;
    }
    // A connection that began its preface and did not go on ends too.
    let mut half = serving.silent().await;
    tokio::io::AsyncWriteExt::write_all(&mut half, b"PRI * HTTP/2.0\r\n").await.unwrap();
    ended(&mut half).await;
}

#[tokio::test]
async fn a_connection_that_says_nothing_after_its_handshake_is_ended() {
    let now = std::time::SystemTime::now();
    let authority = Authority::make(now, 2).unwrap();
    let own = Authority::of_key(&authority.key).unwrap().issue(&["test"], now, 1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).unwrap();
        Some(folder.path().join(name))
    };
    let config = TlsConfig {
        ca: file("ca.crt", &authority.certificate),
        cert: file("tls.crt", &own.certificate),
        key: file("tls.key", &own.key),
        reload_seconds: 0,
    };
    let identity = Identity::load("test", &config).unwrap();
    let limits = ListenerLimits { silent_max: Duration::from_millis(1), ..wide() };
    let serving = serve_with(limits, identity.tls().cloned()).await;
    let target = format!("https://{}", serving.address).parse().unwrap();
    let connection = Connector::new(target, "test", identity, LONGEST).connect().await.unwrap();
    let mut connection = connection.into_inner();
    let end = async { while connection.read(&mut [0; 1024]).await.is_ok_and(|bytes| bytes > 0) {} };
    timeout(LONGEST, end).await.expect("the server ends it");
}

#[tokio::test]
async fn a_full_listener_keeps_the_connections_that_are_used() {
    for limits in [
        ListenerLimits { connections_max: 4, ..wide() },
        ListenerLimits { address_connections_max: 4, ..wide() },
    ] {
        let serving = serve(limits).await;
        let mut clients = Vec::new();
        for _ in 0..4 {
            let mut client = serving.client().await;
            assert!(check(&mut client).await);
            clients.push(client);
        }
        for _ in 0..20 {
            ended(&mut serving.silent().await).await;
        }
        for client in &mut clients {
            assert!(check(client).await, "it is still connected");
        }
        drop(clients.pop());
        // Its slot is free as soon as the server has noticed.
        let end = Instant::now() + LONGEST;
        let mut stream = serving.silent().await;
        while timeout(Duration::from_millis(50), ended(&mut stream)).await.is_ok() {
            assert!(Instant::now() < end, "the slot is never free");
            stream = serving.silent().await;
        }
    }
}

/// Listener of a process whose descriptors are used up for a while.
struct Exhausted {
    listener: Listener,
    failures: usize,
    asked: Arc<AtomicUsize>,
}

impl Accept for Exhausted {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(ByteStream, SocketAddr)>> {
        const EMFILE: i32 = 24;
        if self.asked.fetch_add(1, Relaxed) < self.failures {
            return Poll::Ready(Err(io::Error::from_raw_os_error(EMFILE)));
        }
        self.listener.poll_accept(cx)
    }
}

#[tokio::test]
async fn without_descriptors_the_listener_pauses_and_then_goes_on() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::<AtomicUsize>::default();
    let exhausted = Exhausted { listener: listener.into(), failures: 3, asked: asked.clone() };
    let mut incoming = Incoming::new(exhausted, "test", wide(), None);
    let silent = incoming.connections.admit(address).unwrap();
    let _client = TcpStream::connect(address).await.unwrap();
    let began = Instant::now();
    let next = std::future::poll_fn(|cx| Pin::new(&mut incoming).poll_next(cx));
    assert!(timeout(LONGEST, next).await.unwrap().unwrap().is_ok());
    // The pauses are 100, 200 and 400 milliseconds.
    assert!(began.elapsed() >= Duration::from_millis(700), "it paused");
    assert_eq!(asked.load(Relaxed), 4, "it asked once after each pause");
    let context = Context::from_waker(std::task::Waker::noop());
    assert!(silent.connection().poll_end(&context).is_ready(), "a descriptor is given up");
}

#[tokio::test]
async fn a_client_that_takes_nothing_loses_its_connection_and_others_stay() {
    let serving = serve(ListenerLimits { unread_max: Duration::from_millis(300), ..wide() }).await;
    // This client takes all there is, which is nothing for a while.
    let request = HealthCheckRequest::default();
    let watching = serving.client().await.watch(request).await.unwrap();
    let mut watching = watching.into_inner();
    assert_eq!(seen(&mut watching).await, Seen::Serving);

    let stream = serving.silent().await;
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(0);
    let (mut client, connection) = builder.handshake::<_, Bytes>(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let uri = format!("http://{}/grpc.health.v1.Health/Check", serving.address);
    let request = http::Request::post(uri).header("content-type", "application/grpc");
    let (answer, mut body) = client.send_request(request.body(()).unwrap(), false).unwrap();
    // An empty message.
    body.send_data(Bytes::from_static(&[0; 5]), true).unwrap();
    let answer = timeout(LONGEST, answer).await.unwrap().unwrap();
    assert_eq!(answer.status(), 200);
    let ended = timeout(LONGEST, connection).await.expect("the server ends it").unwrap();
    drop((ended, answer, client));

    serving.health.set_service_status("", ServingStatus::NotServing).await;
    assert_eq!(seen(&mut watching).await, Seen::NotServing);
}

async fn seen(watching: &mut tonic::Streaming<HealthCheckResponse>) -> Seen {
    timeout(LONGEST, watching.message()).await.unwrap().unwrap().unwrap().status()
}

#[tokio::test]
async fn a_socket_that_takes_nothing_ends_its_connection() {
    let limits = ListenerLimits::default();
    let connections = Connections::new("test", limits);
    let address = "127.0.0.1:1".parse().unwrap();
    let [blocked, moving] = [(); 2].map(|()| connections.admit(address).unwrap());
    for slot in [&blocked, &moving] {
        slot.connection().record_received(24);
        slot.connection().record_write(true);
    }
    moving.connection().record_write(false);
    let is_ended = |slot: &crate::connections::ConnectionSlot| {
        slot.connection().poll_end(&Context::from_waker(std::task::Waker::noop())).is_ready()
    };
    let start = Instant::now();
    connections.sweep(start + limits.unread_max / 2);
    assert!(!is_ended(&blocked) && !is_ended(&moving));
    connections.sweep(start + limits.unread_max + Duration::from_secs(1));
    assert!(is_ended(&blocked) && !is_ended(&moving));
}
