//! Collection of single contacts into larger events.

use std::{mem, time::Duration};
use tandem_bus::Bus;
use tandem_proto::{
    event::{Contact, PEERS_DISCOVERED, PeersDiscovered},
    limits::DISCOVERED_CONTACTS_MAX,
};

/// Number of contacts that make an event at once.
const BATCH: usize = 256;
const _: () = assert!(BATCH <= DISCOVERED_CONTACTS_MAX);
/// Longest wait of the first contact of a batch.
const WAIT: Duration = Duration::from_millis(20);

/// Collector that publishes contacts, by number or by time.
pub struct Publisher {
    bus: Bus,
    contacts: Vec<Contact>,
    due: Duration,
}

impl Publisher {
    pub fn new(bus: Bus) -> Self {
        Self { bus, contacts: Vec::with_capacity(BATCH), due: Duration::MAX }
    }

    pub fn push(&mut self, now: Duration, contact: Contact) {
        if self.contacts.is_empty() {
            self.due = now + WAIT;
        }
        self.contacts.push(contact);
        if self.contacts.len() >= BATCH {
            self.flush();
        }
    }

    /// Returns when [`Self::publish_due`] has something to do.
    pub fn due(&self) -> Duration {
        self.due
    }

    pub fn publish_due(&mut self, now: Duration) {
        if self.due <= now {
            self.flush();
        }
    }

    pub fn flush(&mut self) {
        self.due = Duration::MAX;
        if !self.contacts.is_empty() {
            metrics::counter!(crate::metrics::PUBLISHED).increment(self.contacts.len() as u64);
            let contacts = mem::replace(&mut self.contacts, Vec::with_capacity(BATCH));
            self.bus.publish(PEERS_DISCOVERED, PeersDiscovered { contacts }.encode());
        }
    }
}
