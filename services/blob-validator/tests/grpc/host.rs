//! A real service behind a real server on loopback.

use crate::common::{TIMEOUT, samples, start, until};
use std::{net::SocketAddr, sync::Arc};
use tandem_blob_validator::{BlobValidator, Config, grpc::Server};
use tandem_blob_validator_client::{Client, ClientConfig};
use tandem_proto::wire::blob_validator::v1::blob_validator_client::BlobValidatorClient;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    runtime::{Handle, Runtime},
    sync::oneshot,
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

pub struct Host {
    pub service: Arc<BlobValidator>,
    pub address: SocketAddr,
    stop: CancellationToken,
    server: JoinHandle<std::io::Result<()>>,
    /// Runtime of the server, with which all its connections end.
    runtime: Option<Runtime>,
}

impl Host {
    /// Starts a host with the trusted setup loaded.
    pub async fn start(config: Config) -> Self {
        let service = tokio::task::spawn_blocking(move || {
            samples();
            start(config).0
        });
        Self::serve(service.await.unwrap(), "127.0.0.1:0".parse().unwrap()).await
    }

    pub async fn serve(service: Arc<BlobValidator>, address: SocketAddr) -> Self {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).thread_name("server").enable_all().build().unwrap();
        let (stop, api) = (CancellationToken::new(), service.clone());
        let (bound, address_bound) = oneshot::channel();
        let stopped = stop.clone();
        let server = runtime.spawn(async move {
            let listener = TcpListener::bind(address).await.unwrap();
            bound.send(listener.local_addr().unwrap()).unwrap();
            Server::new(api, 256 << 20).serve(listener, stopped).await
        });
        let address = address_bound.await.unwrap();
        Self { service, address, stop, server, runtime: Some(runtime) }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns a connected client.
    pub async fn client(&self) -> Arc<Client> {
        let client = self.client_of(ClientConfig::default());
        until(|| client.is_connected()).await;
        client
    }

    pub fn client_of(&self, config: ClientConfig) -> Arc<Client> {
        Client::connect(&self.endpoint(), config, &Handle::current()).unwrap()
    }

    /// Returns a client connected through a proxy that counts the bytes to the server. The count is
    /// available once the client is gone.
    pub async fn counted_client(&self) -> (Arc<Client>, JoinHandle<u64>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (between, server) = (listener.local_addr().unwrap(), self.address);
        let sent = tokio::spawn(async move {
            let mut near = listener.accept().await.unwrap().0;
            let mut far = TcpStream::connect(server).await.unwrap();
            copy_bidirectional(&mut near, &mut far).await.unwrap().0
        });
        let (endpoint, config) = (format!("http://{between}"), ClientConfig::default());
        let client = Client::connect(&endpoint, config, &Handle::current()).unwrap();
        until(|| client.is_connected()).await;
        (client, sent)
    }

    pub async fn channel(&self) -> Channel {
        Endpoint::from_shared(self.endpoint()).unwrap().connect().await.unwrap()
    }

    /// Returns a generated client, as any other program would use it.
    pub async fn raw(&self) -> BlobValidatorClient<Channel> {
        BlobValidatorClient::new(self.channel().await).max_encoding_message_size(1 << 30)
    }

    /// Stops the server gracefully; the service goes on.
    pub async fn stop(mut self) -> Arc<BlobValidator> {
        self.stop.cancel();
        (&mut self.server).await.unwrap().unwrap();
        self.service.clone()
    }

    /// Cuts all connections at once; the service goes on.
    pub async fn cut(mut self) -> Arc<BlobValidator> {
        let runtime = self.runtime.take().unwrap();
        let ended = tokio::task::spawn_blocking(move || runtime.shutdown_timeout(TIMEOUT));
        ended.await.unwrap();
        self.service.clone()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
