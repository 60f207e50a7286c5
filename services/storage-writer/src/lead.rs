//! Lease of the lead: its settings, and the time until which this storage-writer may write under it.

use crate::metrics as names;
use metrics::{counter, gauge};
use serde::{Deserialize, Serialize};
use std::{
    sync::atomic::{
        AtomicU64,
        Ordering::{Acquire, Release},
    },
    time::Instant,
};
use tandem_proto::storage::{Error, Result};
use tokio::sync::watch;

/// Settings of the lease of the lead.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LeadConfig {
    /// Milliseconds of the lease in NATS, 0 for none. The storage-writer that holds it leads, and a
    /// follower that may lead takes it when the holder falls silent. Not for a node in one process.
    pub lease_ms: u64,
    /// Milliseconds by which the holder stops before the end of the lease, and others wait longer.
    pub margin_ms: u64,
    /// Number of NATS servers that have a copy of the lease: 1, 3 or 5.
    pub replicas: usize,
}

impl Default for LeadConfig {
    fn default() -> Self {
        Self { lease_ms: 0, margin_ms: 300, replicas: 1 }
    }
}

impl LeadConfig {
    /// Returns whether a lease decides which storage-writer leads.
    pub fn is_leased(&self) -> bool {
        self.lease_ms > 0
    }
}

/// Time until which a storage-writer may write under a lease. The task that holds the lease sets it, and
/// each write reads it. It ends by itself if that task does nothing more.
#[derive(Debug)]
pub struct LeadLease {
    /// Moment from which `until` counts.
    begun: Instant,
    /// Nanoseconds from `begun` until which writes are admitted, 0 without a lease.
    until: AtomicU64,
    held: watch::Sender<bool>,
}

impl Default for LeadLease {
    fn default() -> Self {
        names::describe_lease();
        Self { begun: Instant::now(), until: AtomicU64::new(0), held: watch::Sender::new(false) }
    }
}

impl LeadLease {
    /// Admits writes until this moment. Returns whether none were admitted before.
    pub fn hold_until(&self, until: Instant) -> bool {
        let until = until.saturating_duration_since(self.begun).as_nanos();
        self.until.store(u64::try_from(until).unwrap_or(u64::MAX), Release);
        let is_new = self.held.send_if_modified(|held| !std::mem::replace(held, true));
        if is_new {
            gauge!(names::LEASE_HELD).set(1.0);
            counter!(names::LEASE_TAKEN).increment(1);
        }
        is_new
    }

    /// Admits no more writes. Returns whether some were admitted before.
    pub fn release(&self) -> bool {
        self.until.store(0, Release);
        let was_held = self.held.send_if_modified(|held| std::mem::replace(held, false));
        if was_held {
            gauge!(names::LEASE_HELD).set(0.0);
        }
        was_held
    }

    /// Counts a request for the lease that was not answered.
    pub fn count_failure(&self) {
        counter!(names::LEASE_FAILURES).increment(1);
    }

    /// Returns a channel that says whether the lease is held.
    pub fn held(&self) -> watch::Receiver<bool> {
        self.held.subscribe()
    }

    /// Refuses a write after the end of the lease.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub fn admit(&self) -> Result<()> {
        let now = self.begun.elapsed().as_nanos();
        if now < u128::from(self.until.load(Acquire)) {
            return Ok(());
        }
        Err(Error::Unavailable("it does not hold the lease of the lead".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn writes_are_admitted_until_the_end_of_the_lease_and_no_longer() {
        let lease = LeadLease::default();
        let held = lease.held();
        assert!(lease.admit().is_err() && !lease.release());
        assert!(lease.hold_until(Instant::now() + Duration::from_secs(3600)));
        assert!(!lease.hold_until(Instant::now() + Duration::from_secs(3600)), "it was held");
        assert!(lease.admit().is_ok() && *held.borrow());
        lease.hold_until(Instant::now());
        assert!(lease.admit().is_err() && *held.borrow(), "no task had to end it");
        lease.hold_until(Instant::now() + Duration::from_secs(3600));
        assert!(lease.release());
        assert!(lease.admit().is_err() && !*held.borrow());
    }
}
