//! Events of the connection, each logged once.

use crate::stats::Counts;
use async_nats::Event;
use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::watch;
use tracing::{debug, info, warn};

/// Largest number of different complaints that are logged between two connections.
const COMPLAINTS_MAX: usize = 32;

/// Handler of the client library's events. Clones share the record of logged complaints.
#[derive(Clone)]
pub struct Events(Arc<Inner>);

struct Inner {
    counts: Arc<Counts>,
    generation: watch::Sender<u64>,
    /// Complaints since the last connection, so that none is repeated with each attempt or message.
    said: Mutex<HashSet<String>>,
}

impl Events {
    /// Makes a handler; the value of the returned receiver rises with each connection.
    pub fn new(counts: Arc<Counts>) -> (Self, watch::Receiver<u64>) {
        let (generation, receiver) = watch::channel(0);
        (Self(Arc::new(Inner { counts, generation, said: Mutex::default() })), receiver)
    }

    /// Handles an event.
    pub fn hear(&self, event: &Event) {
        let counts = &self.0.counts;
        match event {
            Event::Connected => {
                counts.connected();
                self.0.generation.send_modify(|generation| *generation += 1);
                self.said().clear();
                info!("connected to NATS");
            }
            Event::Disconnected => {
                counts.disconnected();
                warn!("connection to NATS lost");
            }
            Event::SlowConsumer(_) => counts.dropped("slow_consumer", 1),
            Event::ServerError(error) if self.is_new(error.to_string()) => {
                warn!(%error, "NATS refuses something");
            }
            Event::ClientError(error) if self.is_new(error.to_string()) => {
                warn!(%error, "no connection to NATS, trying again until there is one");
            }
            event => debug!(%event, "NATS"),
        }
    }

    fn is_new(&self, complaint: String) -> bool {
        let mut said = self.said();
        said.len() < COMPLAINTS_MAX && said.insert(complaint)
    }

    fn said(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_is_said_once_between_two_connections() {
        let (events, mut generation) = Events::new(Arc::default());
        let new = |text: &str| events.is_new(text.to_owned());
        assert!(new("refused") && new("timed out") && !new("refused"));
        events.hear(&Event::Connected);
        assert!(generation.has_changed().unwrap());
        assert_eq!(*generation.borrow_and_update(), 1);
        assert!(new("refused"));
        let said = (0..1000).filter(|n| new(&n.to_string())).count();
        assert_eq!(said, COMPLAINTS_MAX - 1);
    }
}
