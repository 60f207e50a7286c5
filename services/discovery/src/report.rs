//! Status and metrics, which the loop reports each time before it sleeps. There is no timer for it,
//! so a node at rest stays at rest.

use crate::{metrics::Handles, state::State};
use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};
use tandem_discv4::Enr;
use tandem_proto::discovery::Status;
use tokio::sync::watch;

/// Reporter that keeps status and metrics in line with the state.
pub struct Reporter {
    status: Arc<Mutex<Status>>,
    metrics: Handles,
    /// Record that the status shows.
    record: watch::Sender<Enr>,
}

impl Reporter {
    /// Makes a reporter that has reported once. `bound` is the socket's address.
    pub fn new(state: &State, bound: SocketAddr) -> Self {
        let status = Status {
            id: *state.enr().key(),
            bound,
            external: state.external(),
            enode: state.url(),
            enr: state.enr().to_string(),
            bonded: 0,
            completion_permille: 0,
            packets_received: 0,
            packets_sent: 0,
            packets_dropped: 0,
        };
        let status = Arc::new(Mutex::new(status));
        let (record, _) = watch::channel(state.enr().clone());
        Self { status, metrics: Handles::new(), record }
    }

    /// Returns the current record, and later ones as they replace it.
    #[cfg(feature = "discv5")]
    pub fn records(&self) -> watch::Receiver<Enr> {
        self.record.subscribe()
    }

    /// Returns a handle for reading the status.
    pub fn status(&self) -> Arc<Mutex<Status>> {
        self.status.clone()
    }

    pub fn report(&mut self, state: &State) {
        let counters = state.counters();
        let bonded = u32::try_from(state.bonded()).unwrap_or(u32::MAX);
        self.metrics.record(counters, bonded);
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        if self.record.borrow().seq() != state.enr().seq() {
            self.record.send_replace(state.enr().clone());
            status.external = state.external();
            status.enode = state.url();
            status.enr = state.enr().to_string();
        }
        status.bonded = bonded;
        status.completion_permille = (state.completion() * 1000.0) as u16;
        status.packets_received = counters.received;
        status.packets_sent = counters.sent;
        status.packets_dropped = counters.dropped.iter().sum();
    }
}
