//! What all roles have in common: ports first, then the service, then its end in the reverse order.

use crate::{
    Error,
    http::{Readiness, operations_router},
    start::listen,
};
use std::{
    future::Future,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tandem_bus::Bus;
use tandem_executor::rpc;
use tandem_rpc::{Identity, TlsConfig};
use tandem_telemetry::Telemetry;
use tokio::{
    net::TcpListener,
    task::{JoinHandle, JoinSet, spawn_blocking},
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

/// Longest time that requests under way may take once the process is to stop.
const DRAIN_MAX: Duration = Duration::from_secs(4);

/// Longest time that a last word may take.
const FAREWELL_MAX: Duration = Duration::from_secs(1);

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A process that runs one service.
pub struct Process {
    bus: Bus,
    readiness: Readiness,
    started: Arc<AtomicBool>,
    servers: JoinSet<io::Result<()>>,
    /// Cancelled when nothing new is to be taken.
    stopping: CancellationToken,
    fatal: CancellationToken,
    /// What is said before the listeners end.
    farewells: Vec<Task>,
    /// What is stopped after them, in this order.
    services: Vec<Box<dyn FnOnce() + Send>>,
    /// `/metrics` and its like, the last that ends.
    operations: Option<(JoinHandle<io::Result<()>>, CancellationToken)>,
}

impl Process {
    /// A process without a service yet, that offers `/livez`, `/readyz` and `/metrics` at `metrics`.
    ///
    /// # Errors
    /// [`Error::Listen`].
    pub async fn new(
        bus: Bus,
        metrics: Option<SocketAddr>,
        telemetry: &Telemetry,
    ) -> Result<Self, Error> {
        let (readiness, started) = (Readiness::default(), Arc::<AtomicBool>::default());
        let stopping = CancellationToken::new();
        let (is_started, is_stopping) = (started.clone(), stopping.clone());
        readiness.require("the start", move || is_started.load(Relaxed));
        readiness.require("the end", move || !is_stopping.is_cancelled());
        let mut process = Self {
            bus,
            readiness: readiness.clone(),
            started,
            servers: JoinSet::new(),
            stopping,
            fatal: CancellationToken::new(),
            farewells: Vec::new(),
            services: Vec::new(),
            operations: None,
        };
        if let Some(address) = metrics {
            let listener = process.listen("metrics", address).await?;
            let router = operations_router(telemetry.clone(), readiness);
            let stop = CancellationToken::new();
            let served = tokio::spawn(rpc::serve(listener, router, stop.clone()));
            process.operations = Some((served, stop));
        }
        Ok(process)
    }

    /// The bus that the services of this process share.
    pub fn bus(&self) -> &Bus {
        &self.bus
    }

    /// Cancelled when the process is to take nothing new.
    pub(super) fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }

    /// To be cancelled when a service cannot go on.
    pub(super) fn fatal(&self) -> &CancellationToken {
        &self.fatal
    }

    /// What must hold besides for the process to be ready.
    pub(super) fn readiness(&self) -> &Readiness {
        &self.readiness
    }

    /// Who this process is to those that it calls and that call it, by the certificate that these
    /// settings name, if they do. It is read again as its file changes.
    pub(super) fn identify(
        &mut self,
        role: &'static str,
        tls: &TlsConfig,
    ) -> Result<Identity, Error> {
        let identity = Identity::load(role, tls)?;
        let followed = identity.clone();
        self.beside(async move { followed.follow().await });
        Ok(identity)
    }

    /// Binds a port. Ports come before threads: what is taken is known at once.
    pub(super) async fn listen(
        &self,
        port: &'static str,
        address: SocketAddr,
    ) -> Result<TcpListener, Error> {
        let listener = listen(address).await?;
        let address = listener.local_addr().unwrap_or(address);
        info!(port, %address, "listening");
        Ok(listener)
    }

    /// A server that runs until [`Self::stopping`]; its end before that is the end of the process.
    pub(super) fn serve(&mut self, server: impl Future<Output = io::Result<()>> + Send + 'static) {
        self.servers.spawn(server);
    }

    /// Something that goes on beside the service, until the process stops.
    pub(super) fn beside(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        let stopping = self.stopping.clone();
        self.servers.spawn(async move {
            tokio::select! {
                () = stopping.cancelled() => {}
                () = task => stopping.cancelled().await,
            }
            Ok(())
        });
    }

    /// To be said when the process stops, before the listeners end. A second at most.
    pub(super) fn at_farewell(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.farewells.push(Box::pin(task));
    }

    /// To be done when the listeners have ended. May block.
    pub(super) fn at_end(&mut self, stop: impl FnOnce() + Send + 'static) {
        self.services.push(Box::new(stop));
    }

    /// The service runs.
    pub(super) fn started(&self) {
        self.started.store(true, Relaxed);
    }

    /// Waits until a service or a listener fails; a healthy process never returns from here.
    pub async fn failed(&mut self) {
        let ended = async {
            match self.servers.join_next().await {
                Some(result) => error!(?result, "a listener ended"),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.fatal.cancelled() => error!("the service has failed"),
            () = ended => {}
        }
    }

    /// Stops: not ready any more, nothing new is taken, what is under way is answered, the service
    /// ends and writes what it has to write.
    pub async fn stop(mut self) {
        for farewell in self.farewells {
            let _ = timeout(FAREWELL_MAX, farewell).await;
        }
        self.stopping.cancel();
        let drained =
            timeout(DRAIN_MAX, async { while self.servers.join_next().await.is_some() {} });
        if drained.await.is_err() {
            warn!("requests are given up that are still under way");
            self.servers.shutdown().await;
        }
        let services = self.services;
        let end = move || services.into_iter().for_each(|stop| stop());
        if let Err(error) = spawn_blocking(end).await {
            error!(%error, "the service failed while it stopped");
        }
        if let Some((served, stop)) = self.operations {
            stop.cancel();
            let _ = timeout(FAREWELL_MAX, served).await;
        }
    }
}
