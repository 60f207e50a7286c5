//! What the loop tells others about itself, each time before it sleeps. There is no timer for it, so
//! a node at rest stays at rest.

use crate::{metrics::Handles, state::State};
use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};
use tandem_proto::discovery::Status;

/// Keeps status and metrics as the state is.
pub struct Reporter {
    status: Arc<Mutex<Status>>,
    metrics: Handles,
    /// Number of the record that the status shows.
    enr_seq: u64,
}

impl Reporter {
    /// A reporter that has reported once. `bound` is where the socket is.
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
        Self { status, metrics: Handles::new(), enr_seq: state.enr().seq() }
    }

    /// Where the status can be read.
    pub fn status(&self) -> Arc<Mutex<Status>> {
        self.status.clone()
    }

    pub fn report(&mut self, state: &State) {
        let counters = state.counters();
        let bonded = u32::try_from(state.bonded()).unwrap_or(u32::MAX);
        self.metrics.record(counters, bonded);
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        if self.enr_seq != state.enr().seq() {
            self.enr_seq = state.enr().seq();
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
