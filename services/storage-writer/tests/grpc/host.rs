//! A server on a port of its own, which it keeps when it is restarted.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_proto::{
    limits::STORAGE_MESSAGE_BYTES_MAX, storage::StorageApi,
    wire::storage_writer::v1::storage_writer_client::StorageWriterClient,
};
use tandem_rpc::{ConnectionConfig, Identity, Listener};
use tandem_storage_writer::{StorageWriter, grpc::Server};
use tandem_storage_writer_client::{Client, ClientConfig};
use tokio::{net::TcpListener, runtime::Runtime, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

pub struct Host {
    pub runtime: Runtime,
    pub address: SocketAddr,
    identity: Identity,
    unread_max: Duration,
    /// Whether it listens on a Unix socket, too.
    has_socket: bool,
    running: Option<(CancellationToken, JoinHandle<std::io::Result<()>>)>,
}

impl Host {
    pub fn start(api: Arc<dyn StorageApi>) -> Self {
        Self::start_as(api, Identity::default())
    }

    pub fn start_as(api: Arc<dyn StorageApi>, identity: Identity) -> Self {
        Self::start_with(api, identity, Duration::from_secs(60))
    }

    /// Starts a server with a Unix socket, over which clients with a certificate call directly.
    pub fn start_with_socket(server: Server, identity: Identity) -> Self {
        let mut host = Self::new(identity, Duration::from_secs(60));
        host.has_socket = true;
        host.serve(server);
        host
    }

    /// Starts a server that takes downloaded states.
    pub fn start_downloading(writer: Arc<StorageWriter>) -> Self {
        let mut host = Self::start(writer.clone());
        host.stop();
        host.serve(Server::new(writer.clone()).downloading(writer));
        host
    }

    /// Starts a server that waits `unread_max` for a client to read something from a stream.
    pub fn start_patient(api: Arc<dyn StorageApi>, unread_max: Duration) -> Self {
        Self::start_with(api, Identity::default(), unread_max)
    }

    fn start_with(api: Arc<dyn StorageApi>, identity: Identity, unread_max: Duration) -> Self {
        let mut host = Self::new(identity, unread_max);
        host.start_again(api);
        host
    }

    fn new(identity: Identity, unread_max: Duration) -> Self {
        let runtime = Runtime::new().unwrap();
        let address = "127.0.0.1:0".parse().unwrap();
        Self { runtime, address, identity, unread_max, has_socket: false, running: None }
    }

    pub fn start_again(&mut self, api: Arc<dyn StorageApi>) {
        self.serve(Server::new(api));
    }

    fn serve(&mut self, server: Server) {
        let listener: Listener = match self.has_socket {
            true => self.runtime.block_on(Listener::bind(self.address)).unwrap(),
            false => self.runtime.block_on(TcpListener::bind(self.address)).unwrap().into(),
        };
        self.address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let server = server.offered_as(self.identity.clone()).unread_at_most(self.unread_max);
        let task = self.runtime.spawn(server.serve(listener, stop.clone()));
        self.running = Some((stop, task));
    }

    pub fn stop(&mut self) {
        let (stop, task) = self.running.take().unwrap();
        stop.cancel();
        self.runtime.block_on(task).unwrap().unwrap();
    }

    pub fn client(&self) -> Arc<Client> {
        self.client_at(self.address, patient())
    }

    pub fn client_at(&self, address: SocketAddr, config: ClientConfig) -> Arc<Client> {
        let scheme = if config.connection.identity.is_proven() { "https" } else { "http" };
        let endpoint = format!("{scheme}://{address}");
        Client::connect(&endpoint, config, self.runtime.handle()).unwrap()
    }

    pub fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).unwrap();
        self.runtime.block_on(endpoint.connect()).unwrap()
    }

    /// Returns a plain gRPC client, as any other program would use.
    pub fn raw(&self) -> StorageWriterClient<Channel> {
        StorageWriterClient::new(self.channel())
            .max_encoding_message_size(2 * STORAGE_MESSAGE_BYTES_MAX)
    }
}

/// Returns settings under which a busy machine causes no failure.
pub fn patient() -> ClientConfig {
    ClientConfig {
        connection: ConnectionConfig {
            connect_ms_max: 10_000,
            keep_alive_ms: 20_000,
            ..ConnectionConfig::default()
        },
        reconnect_wait_ms: 60_000,
        read_ms_max: 60_000,
        ..ClientConfig::default()
    }
}

/// Waits until a condition holds.
pub fn wait_until(mut so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !so() {
        assert!(Instant::now() < end, "it never came");
        std::thread::sleep(Duration::from_millis(1));
    }
}
