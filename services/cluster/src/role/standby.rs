//! Stands by while another executor has the right to write: calls go there, and this executor asks
//! for the right until it gets it. An executor that stops and has a successor also forwards its
//! calls.

use super::Process;
use axum::Router;
use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tandem_executor::{Deps, Executor};
use tandem_http::{Gate, Target};
use tandem_proto::storage::{ExecutorAddress, Holder};
use tandem_storage_writer_client::Client;
use tokio::{
    net::lookup_host,
    task::spawn_blocking,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

/// Interval at which an executor on standby asks for the right to write.
const ASK_EVERY: Duration = Duration::from_millis(250);

/// Interval at which a stopping executor looks for its successor.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Interval at which the executor with the right to write is asked whether it serves.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// Longest wait for the name of a host to resolve, or for storage-writer to name the holder.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// Longest time for calls in progress before the right to write is given back.
const FINISH_MAX: Duration = Duration::from_millis(500);

/// Longest time from the signal for calls in progress if a successor can take them.
const CUT_MAX: Duration = Duration::from_millis(1500);

/// Longest time from the signal for calls in progress if there is no successor.
const CUT_ALONE_MAX: Duration = Duration::from_secs(4);

/// The two ports of an executor.
#[derive(Clone)]
pub struct Gates {
    pub engine: Gate,
    pub http: Gate,
}

impl Gates {
    fn close(&self, reason: &'static str) {
        self.engine.close(reason);
        self.http.close(reason);
    }
}

/// An executor on standby beside another one. Cheap to clone.
#[derive(Clone)]
pub struct Standby {
    gates: Gates,
    storage: Arc<Client>,
    /// Address at which this executor serves.
    own: ExecutorAddress,
    /// Whether the executor with the right to write is reachable.
    reaches: Arc<AtomicBool>,
}

impl Standby {
    pub fn new(gates: Gates, storage: Arc<Client>, own: ExecutorAddress) -> Self {
        Self { gates, storage, own, reaches: Arc::default() }
    }

    /// Returns a flag that tells whether the executor with the right to write is reachable.
    pub fn reaches(&self) -> Arc<AtomicBool> {
        self.reaches.clone()
    }

    /// Starts the executor as soon as storage-writer is reachable and grants the right. Returns
    /// `None` if it cannot start for another reason, which is fatal, or if the process ends.
    pub async fn take_over(
        &self,
        config: tandem_executor::Config,
        deps: Deps,
    ) -> Option<Arc<Executor>> {
        let leaving = self.gates.engine.leaving();
        leaving.run_until_cancelled(self.ask(config, deps)).await.flatten()
    }

    async fn ask(&self, config: tandem_executor::Config, deps: Deps) -> Option<Arc<Executor>> {
        let fatal = deps.fatal.clone();
        let mut told = String::new();
        loop {
            let (config, deps) = (config.clone(), deps.clone());
            match spawn_blocking(move || Executor::start(config, deps)).await {
                Ok(Ok(executor)) => return Some(executor),
                Ok(Err(tandem_executor::Error::Storage(error))) if error.is_retryable() => {
                    let reason = error.to_string();
                    if reason != told {
                        info!(reason, "standing by");
                        told = reason;
                    }
                }
                Ok(Err(error)) => {
                    error!(%error, "the executor cannot start");
                    fatal.cancel();
                    return None;
                }
                Err(error) => {
                    error!(%error, "the executor failed while it started");
                    fatal.cancel();
                    return None;
                }
            }
            self.look("no executor has the right to write").await;
            sleep(ASK_EVERY).await;
        }
    }

    /// Starts to answer calls in this executor.
    pub fn serve(&self, engine: Router, http: Router) {
        self.gates.engine.open(engine);
        self.gates.http.open(http);
    }

    /// Routes calls to the executor that storage-writer names as holder and returns true. Refuses
    /// calls with this reason and returns false if no other executor holds the right.
    async fn look(&self, alone: &'static str) -> bool {
        let holder = match timeout(ANSWER_MAX, self.storage.find_holder()).await {
            Ok(Ok(holder)) => holder,
            // The holder may well be reachable.
            Ok(Err(error)) => {
                debug!(%error, "it is not known which executor has the right to write");
                return false;
            }
            Err(_) => return false,
        };
        let Some(holder) = holder.filter(|holder| holder.address.as_ref() != Some(&self.own))
        else {
            self.gates.close(alone);
            return false;
        };
        let Some(address) = &holder.address else {
            let reason = "the executor that has the right to write does not say where it serves";
            self.gates.close(reason);
            return false;
        };
        let Some(ip) = resolve(address).await else {
            self.gates.close("the host of the executor that has the right to write is not found");
            return false;
        };
        self.pass_on(&holder, ip, address);
        true
    }

    fn pass_on(&self, holder: &Holder, ip: IpAddr, address: &ExecutorAddress) {
        let target =
            |port| Target { executor: holder.executor.clone(), address: SocketAddr::new(ip, port) };
        self.gates.engine.pass_on(target(address.engine_port));
        self.gates.http.pass_on(target(address.http_port));
    }

    /// Starts three background tasks. One asks the executor with the right to write whether it
    /// serves. One stops forwarding once this executor has the right. One ends the process once it has lost the
    /// right.
    pub fn follow(&self, process: &mut Process) {
        let (gate, reaches) = (self.gates.engine.clone(), self.reaches.clone());
        process.beside(async move {
            loop {
                reaches.store(gate.reaches().await, Relaxed);
                let _ = timeout(PROBE_EVERY, gate.moved()).await;
            }
        });
        let (gates, storage) = (self.gates.clone(), self.storage.clone());
        process.beside(async move {
            storage.granted().await;
            gates.close("this executor takes over and loads the chain");
        });
        let (standby, anew) = (self.clone(), process.anew().clone());
        let fatal = process.fatal().clone();
        process.beside(async move {
            standby.storage.fenced().await;
            if standby.has_successor().await {
                error!("another executor has taken over");
            } else {
                // A supervisor would start the process again, too, but after a pause that grows each time.
                warn!("another storage-writer leads: this executor asks it for the right to write");
                anew.cancel();
            }
            fatal.cancel();
        });
    }

    /// Returns whether another executor has the right to write that this one had; true if it is not known. The
    /// term of another storage-writer takes the right away without giving it to anyone.
    async fn has_successor(&self) -> bool {
        let holder = timeout(ANSWER_MAX, self.storage.find_holder()).await;
        let Ok(Ok(holder)) = holder else { return true };
        holder.is_some_and(|holder| holder.address.as_ref() != Some(&self.own))
    }

    /// Adds the farewell: the right to write is given back, and for this time the ports forward
    /// calls to the successor.
    pub fn linger(&self, process: &mut Process, time: Duration) {
        let (standby, anew) = (self.clone(), process.anew().clone());
        let most = time.max(FINISH_MAX + ANSWER_MAX) + Duration::from_millis(100);
        process.lingers(most, async move { standby.leave(time, &anew).await });
    }

    /// A process that begins anew is soon back, so it does not wait for a successor.
    async fn leave(&self, time: Duration, anew: &CancellationToken) {
        const ALONE: &str = "this executor is stopping, and no other one has the right to write";
        let begun = Instant::now();
        // An executor that has answered no call has none to forward.
        let was_of_use = !self.gates.engine.is_closed();
        self.gates.engine.leave(ALONE);
        self.gates.http.leave(ALONE);
        let _ = timeout(FINISH_MAX, self.gates.engine.drained()).await;
        let _ = timeout(ANSWER_MAX, self.storage.leave()).await;
        let mut succeeded = false;
        while was_of_use && begun.elapsed() < time && !anew.is_cancelled() {
            let found = self.look(ALONE).await;
            if found && !succeeded {
                info!("calls are passed on to the successor");
            }
            succeeded |= found;
            if begun.elapsed() >= if succeeded { CUT_MAX } else { CUT_ALONE_MAX } {
                self.gates.engine.cut();
                self.gates.http.cut();
            }
            sleep(LOOK_EVERY).await;
        }
    }
}

/// Returns the first address of a host.
async fn resolve(address: &ExecutorAddress) -> Option<IpAddr> {
    let host = address.host.as_str();
    if let Ok(ip) = host.parse() {
        return Some(ip);
    }
    let found = timeout(ANSWER_MAX, lookup_host((host, address.engine_port))).await;
    match found {
        Ok(Ok(mut addresses)) => addresses.next().map(|address| address.ip()),
        Ok(Err(error)) => {
            debug!(host, %error, "host not found");
            None
        }
        Err(_) => None,
    }
}
