//! discovery and peer-table alone, in a process of their own.

use crate::{Config, Error, http::operations_router};
use std::{io, net::SocketAddr, sync::Arc};
use tandem_bus::Bus;
use tandem_discovery::Discovery;
use tandem_discv4::ForkId;
use tandem_executor::rpc;
use tandem_peer_table::{
    PeerTable,
    grpc::{Client, ClientConfig},
};
use tandem_proto::{
    discovery::{DiscoveryApi, Status},
    peer_table::PeerTableApi,
};
use tandem_telemetry::Telemetry;
use tokio::{net::TcpListener, runtime::Handle, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

/// The services that find peers, running in this process.
pub struct Peers {
    table: Arc<dyn PeerTableApi>,
    /// The table, when it runs here.
    own: Option<Arc<PeerTable>>,
    discovery: Arc<Discovery>,
    metrics: Option<JoinHandle<io::Result<()>>>,
    stopping: CancellationToken,
    fatal: CancellationToken,
}

impl Peers {
    /// Starts peer-table and discovery; of the configuration their parts count, nothing else.
    /// `fork_id` is announced to others (EIP-2124).
    ///
    /// # Errors
    /// [`Error::Discovery`], [`Error::Threads`].
    pub fn start(config: Config, fork_id: Option<ForkId>) -> Result<Self, Error> {
        let (bus, fatal) = (Bus::default(), CancellationToken::new());
        let deps = tandem_peer_table::Deps { bus: bus.clone(), fatal: fatal.clone() };
        let own = PeerTable::start(config.peer_table, deps)?;
        let started = Self::over(own.clone(), &config.discovery, fork_id, bus, fatal);
        match started {
            Ok(peers) => Ok(Self { own: Some(own), ..peers }),
            Err(error) => {
                own.stop();
                Err(error)
            }
        }
    }

    /// Starts discovery over a peer-table in another process, such as `http://10.0.0.7:9602`. That
    /// it is not there is no error: it may come, and come back.
    ///
    /// # Errors
    /// [`Error::Endpoint`], [`Error::Discovery`], [`Error::Threads`].
    pub fn start_over(
        endpoint: &str,
        config: &tandem_discovery::Config,
        fork_id: Option<ForkId>,
        runtime: &Handle,
    ) -> Result<Self, Error> {
        let (bus, fatal) = (Bus::default(), CancellationToken::new());
        let table = Client::connect(endpoint, ClientConfig::default(), bus.clone(), runtime)?;
        Self::over(table, config, fork_id, bus, fatal)
    }

    fn over(
        table: Arc<dyn PeerTableApi>,
        config: &tandem_discovery::Config,
        fork_id: Option<ForkId>,
        bus: Bus,
        fatal: CancellationToken,
    ) -> Result<Self, Error> {
        let deps =
            tandem_discovery::Deps { table: table.clone(), bus, fork_id, fatal: fatal.clone() };
        let discovery = Discovery::start(config, deps)?;
        let stopping = CancellationToken::new();
        Ok(Self { table, own: None, discovery, metrics: None, stopping, fatal })
    }

    /// Offers `/metrics`, `/livez` and `/readyz`.
    ///
    /// # Errors
    /// [`Error::Listen`].
    pub async fn serve_metrics(
        &mut self,
        address: SocketAddr,
        telemetry: &Telemetry,
    ) -> Result<(), Error> {
        let taken = |error| Error::Listen { address, error };
        let listener = TcpListener::bind(address).await.map_err(taken)?;
        info!(port = "metrics", address = ?listener.local_addr().ok(), "listening");
        let router = operations_router(telemetry.clone());
        self.metrics = Some(tokio::spawn(rpc::serve(listener, router, self.stopping.clone())));
        Ok(())
    }

    /// What discovery is doing.
    pub fn status(&self) -> Status {
        self.discovery.status()
    }

    /// The table. Its calls wait for an answer: not for the async reactor.
    pub fn table(&self) -> Arc<dyn PeerTableApi> {
        self.table.clone()
    }

    /// Waits until a service dies; healthy ones never return from here.
    pub async fn failed(&mut self) {
        let metrics_gone = async {
            match &mut self.metrics {
                Some(served) => error!(result = ?served.await, "a listener ended"),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.fatal.cancelled() => error!("a service has failed"),
            () = metrics_gone => {}
        }
    }

    /// Stops: discovery first, then the table, if it runs here, which writes its snapshot. May block.
    pub fn stop(self) {
        self.stopping.cancel();
        self.discovery.stop();
        if let Some(table) = self.own {
            table.stop();
        }
    }
}
