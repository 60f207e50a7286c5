//! Frame that all roles and the eight services in one process share: it opens ports first, then
//! starts the service, and stops both in the reverse order.

use crate::{
    Error,
    http::{Readiness, operations_router},
    traces::share_slow_traces,
};
use parking_lot::Mutex;
use std::{
    future::Future,
    io::{self, ErrorKind::AddrInUse},
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tandem_bus::Bus;
use tandem_rpc::{Identity, Listener, TlsConfig};
use tandem_telemetry::Telemetry;
use tokio::{
    net::TcpListener,
    task::{JoinHandle, JoinSet, spawn_blocking},
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

/// Longest time for requests in progress once the process is to stop.
const DRAIN_MAX: Duration = Duration::from_secs(4);

/// Longest time for a farewell.
const FAREWELL_MAX: Duration = Duration::from_secs(1);

/// Longest time from the signal until requests in progress are abandoned, unless a farewell takes
/// longer.
const GIVE_UP_MAX: Duration = Duration::from_secs(8);

/// Shortest time that requests in progress get.
const DRAIN_MIN: Duration = Duration::from_secs(1);

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A process that runs one or several services.
pub struct Process {
    bus: Bus,
    readiness: Readiness,
    started: Arc<AtomicBool>,
    servers: JoinSet<io::Result<()>>,
    /// Cancelled when the process is told to end; it is no longer ready then.
    leaving: CancellationToken,
    /// Cancelled when the process accepts no new work.
    stopping: CancellationToken,
    fatal: CancellationToken,
    /// Cancelled, with `fatal`, when the process is to begin anew after its stop.
    anew: CancellationToken,
    /// Tasks to run before the listeners end, with their longest times. Behind a lock, like the
    /// next field, so that threads can share the owner of a process. No thread ever waits for the
    /// lock.
    farewells: Mutex<Vec<(Task, Duration)>>,
    /// Services to stop after the listeners, in this order.
    services: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
    /// Server of `/metrics`, `/livez` and `/readyz`, the last to end.
    operations: Option<(JoinHandle<io::Result<()>>, CancellationToken)>,
}

impl Process {
    /// Returns a process without a service, which offers `/livez`, `/readyz` and `/metrics` at
    /// `metrics`.
    ///
    /// # Errors
    /// [`Error::Listen`].
    pub async fn new(
        bus: Bus,
        metrics: Option<SocketAddr>,
        telemetry: &Telemetry,
    ) -> Result<Self, Error> {
        let mut process = Self::unwatched(bus.clone());
        process.beside(share_slow_traces(bus, telemetry.clone()));
        if let Some(address) = metrics {
            process.watch(address, false, telemetry).await?;
        }
        Ok(process)
    }

    /// Returns a process without a port of its own.
    pub(crate) fn unwatched(bus: Bus) -> Self {
        let (readiness, started) = (Readiness::default(), Arc::<AtomicBool>::default());
        let (leaving, stopping) = (CancellationToken::new(), CancellationToken::new());
        let (is_started, is_leaving) = (started.clone(), leaving.clone());
        readiness.require("the start", move || is_started.load(Relaxed));
        readiness.require("the end", move || !is_leaving.is_cancelled());
        Self {
            bus,
            readiness,
            started,
            servers: JoinSet::new(),
            leaving,
            stopping,
            fatal: CancellationToken::new(),
            anew: CancellationToken::new(),
            farewells: Mutex::default(),
            services: Mutex::default(),
            operations: None,
        }
    }

    /// Offers `/livez`, `/readyz` and `/metrics`. If `moves` is set and the port is in use, takes a
    /// free one.
    ///
    /// # Errors
    /// [`Error::Listen`].
    pub(crate) async fn watch(
        &mut self,
        address: SocketAddr,
        moves: bool,
        telemetry: &Telemetry,
    ) -> Result<(), Error> {
        let listener = match self.listen("metrics", address).await {
            Err(Error::Listen { error, .. }) if moves && error.kind() == AddrInUse => {
                self.listen("metrics", SocketAddr::new(address.ip(), 0)).await?
            }
            bound => bound?,
        };
        let router = operations_router(telemetry.clone(), self.readiness.clone());
        let stop = CancellationToken::new();
        let served = tokio::spawn(tandem_http::serve(listener, router, stop.clone()));
        self.operations = Some((served, stop));
        Ok(())
    }

    /// Returns the bus that the services of this process share.
    pub fn bus(&self) -> &Bus {
        &self.bus
    }

    /// Returns the token that is cancelled when the process is told to end.
    pub(crate) fn leaving(&self) -> &CancellationToken {
        &self.leaving
    }

    /// Returns the token that is cancelled when the process is to accept no new work.
    pub(crate) fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }

    /// Returns the token for a service to cancel when it cannot go on.
    pub(crate) fn fatal(&self) -> &CancellationToken {
        &self.fatal
    }

    /// Returns the token that a service cancels before it ends the process, if the process is to begin anew
    /// after its stop: nothing failed, but its knowledge is stale.
    pub fn anew(&self) -> &CancellationToken {
        &self.anew
    }

    /// Returns the conditions of readiness, to which services add their own.
    pub(crate) fn readiness(&self) -> &Readiness {
        &self.readiness
    }

    /// Returns the identity of this process towards its peers, from the certificate in these
    /// settings, if any. The certificate is read again when its file changes.
    pub(crate) fn identify(
        &mut self,
        role: &'static str,
        tls: &TlsConfig,
    ) -> Result<Identity, Error> {
        let identity = Identity::load(role, tls)?;
        let followed = identity.clone();
        self.beside(async move { followed.follow().await });
        Ok(identity)
    }

    /// Binds a port. Ports come before threads, so that a port in use is reported at once.
    pub(crate) async fn listen(
        &self,
        port: &'static str,
        address: SocketAddr,
    ) -> Result<TcpListener, Error> {
        bound(port, address, TcpListener::bind(address).await, TcpListener::local_addr)
    }

    /// Binds a gRPC port with the Unix socket beside it, and returns it with the identity that its server has in
    /// this role. Logs a warning if the port asks callers for no certificate.
    pub(crate) async fn listen_grpc(
        &mut self,
        port: &'static str,
        address: SocketAddr,
        role: &'static str,
        tls: &TlsConfig,
    ) -> Result<(Listener, Identity), Error> {
        let identity = self.identify(role, tls)?;
        let listener = bound(port, address, Listener::bind(address).await, Listener::local_addr)?;
        if !identity.is_proven() {
            warn!(port, "no certificates (`tls.ca`, `tls.cert`, `tls.key`): every caller may call");
        }
        Ok((listener, identity))
    }

    /// Runs a server until [`Self::stopping`]. The process ends if the server ends earlier.
    pub(crate) fn serve(&mut self, server: impl Future<Output = io::Result<()>> + Send + 'static) {
        self.servers.spawn(server);
    }

    /// Runs a task beside the service until the process stops.
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

    /// Adds a task to run when the process stops, before the listeners end. It gets at most a
    /// second.
    pub(super) fn at_farewell(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.lingers(FAREWELL_MAX, task);
    }

    /// Adds a task to run when the process stops, before the listeners end. It gets at most `max`.
    pub(super) fn lingers(
        &mut self,
        max: Duration,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        self.farewells.get_mut().push((Box::pin(task), max));
    }

    /// Returns the bound of [`Self::stop`] for all services together. A service that has not ended
    /// by then ends with the process.
    pub fn stop_time_max(&mut self) -> Duration {
        let longest = self.farewells.get_mut().iter().map(|(_, max)| *max).max();
        GIVE_UP_MAX.max(longest.unwrap_or_default() + DRAIN_MIN) + Duration::from_secs(1)
    }

    /// Adds work to do when the listeners have ended. May block.
    pub(crate) fn at_end(&mut self, stop: impl FnOnce() + Send + 'static) {
        self.services.get_mut().push(Box::new(stop));
    }

    /// Marks the service as started.
    pub(crate) fn started(&self) {
        self.started.store(true, Relaxed);
    }

    /// Waits until a service or a listener fails. Never returns while the process is healthy.
    pub async fn failed(&mut self) {
        let ended = async {
            match self.servers.join_next().await {
                Some(result) => error!(?result, "a listener ended"),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.fatal.cancelled() => match self.anew.is_cancelled() {
                true => info!("the process begins anew"),
                false => error!("a service has failed"),
            },
            () = ended => {}
        }
    }

    /// Stops the process. It is no longer ready, accepts no new work and answers the requests in
    /// progress. Then the service ends and writes what it has to write.
    pub async fn stop(mut self) {
        let begun = Instant::now();
        self.leaving.cancel();
        for (farewell, max) in self.farewells.into_inner() {
            let _ = timeout(max, farewell).await;
        }
        self.stopping.cancel();
        let left = GIVE_UP_MAX.saturating_sub(begun.elapsed()).clamp(DRAIN_MIN, DRAIN_MAX);
        let drained = timeout(left, async { while self.servers.join_next().await.is_some() {} });
        if drained.await.is_err() {
            warn!("requests are given up that are still under way");
            self.servers.shutdown().await;
        }
        let services = self.services.into_inner();
        let end = move || services.into_iter().for_each(|stop| stop());
        if let Err(error) = spawn_blocking(end).await {
            error!(%error, "a service failed while it stopped");
        }
        if let Some((served, stop)) = self.operations {
            stop.cancel();
            let _ = timeout(FAREWELL_MAX, served).await;
        }
    }
}

/// Logs the address at which a port was bound.
fn bound<L>(
    port: &'static str,
    address: SocketAddr,
    listener: io::Result<L>,
    local_addr: impl FnOnce(&L) -> io::Result<SocketAddr>,
) -> Result<L, Error> {
    let listener = listener.map_err(|error| Error::Listen { address, error })?;
    info!(port, address = %local_addr(&listener).unwrap_or(address), "listening");
    Ok(listener)
}
