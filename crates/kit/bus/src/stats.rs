use crate::metrics;
use ::metrics::{counter, gauge};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Counters of a bus since it was made. A bus of one process counts `dropped` (payloads) and
/// `lagged` only.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Messages handed to the connection.
    pub sent: u64,
    /// Messages that came from the server.
    pub received: u64,
    /// Messages not sent, or not accepted: no connection, too many, too large.
    pub dropped: u64,
    /// Messages that subscribers lost because they lagged.
    pub lagged: u64,
    /// Connections made.
    pub connections: u64,
    /// Whether the bus is connected, as far as is known.
    pub connected: bool,
}

#[derive(Default)]
pub(crate) struct Counts {
    sent: AtomicU64,
    received: AtomicU64,
    dropped: AtomicU64,
    lagged: AtomicU64,
    connections: AtomicU64,
    connected: AtomicBool,
}

impl Counts {
    pub fn sent(&self, bytes: usize) {
        self.sent.fetch_add(1, Relaxed);
        counter!(metrics::SENT).increment(1);
        counter!(metrics::SENT_BYTES).increment(bytes as u64);
    }

    pub fn received(&self, bytes: usize) {
        self.received.fetch_add(1, Relaxed);
        counter!(metrics::RECEIVED).increment(1);
        counter!(metrics::RECEIVED_BYTES).increment(bytes as u64);
    }

    /// Counts dropped messages; `reason` is a label of the metric.
    pub fn dropped(&self, reason: &'static str, messages: u64) {
        if messages > 0 {
            self.dropped.fetch_add(messages, Relaxed);
            counter!(metrics::DROPPED, "reason" => reason).increment(messages);
        }
    }

    pub fn lagged(&self, messages: u64) {
        self.lagged.fetch_add(messages, Relaxed);
        counter!(metrics::LAGGED).increment(messages);
    }

    pub fn connected(&self) {
        self.connections.fetch_add(1, Relaxed);
        self.connected.store(true, Relaxed);
        counter!(metrics::CONNECTIONS).increment(1);
        gauge!(metrics::CONNECTED).set(1.0);
    }

    pub fn disconnected(&self) {
        self.connected.store(false, Relaxed);
        gauge!(metrics::CONNECTED).set(0.0);
    }

    pub fn is_connected(&self) -> bool {
        self.connected.load(Relaxed)
    }

    pub fn stats(&self) -> Stats {
        Stats {
            sent: self.sent.load(Relaxed),
            received: self.received.load(Relaxed),
            dropped: self.dropped.load(Relaxed),
            lagged: self.lagged.load(Relaxed),
            connections: self.connections.load(Relaxed),
            connected: self.connected.load(Relaxed),
        }
    }
}
