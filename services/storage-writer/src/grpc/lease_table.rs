//! LeaseTable of the right to write: which executor holds it, and until when no other executor gets it.

use parking_lot::Mutex;
use std::time::{Duration, Instant};
use tandem_proto::storage::{Claim, Error, Holder, Result};

/// LeaseTable of the executor that has the newest epoch. A restart of storage-writer begins it anew, so
/// the executor has the time of one lease to renew it before others are admitted.
#[derive(Default)]
pub struct LeaseTable(Mutex<Option<Held>>);

struct Held {
    holder: Holder,
    until: Instant,
}

impl LeaseTable {
    /// Creates the lease for a server that starts now. Its holder is the executor to which the
    /// newest epoch was granted, according to the database.
    pub fn open(holder: Option<Holder>, now: Instant) -> Self {
        let held = holder.map(|holder| Held { until: now + holder.lease, holder });
        Self(Mutex::new(held))
    }

    /// Checks whether an executor may be granted an epoch now. `held` is the epoch that it has
    /// proven to hold, if any.
    ///
    /// # Errors
    /// [`Error::Unavailable`] while the lease of another executor runs.
    pub fn admit(&self, held: Option<u64>, now: Instant) -> Result<()> {
        match self.holder(now) {
            Some(Holder { epoch, executor, .. }) if held != Some(epoch) => {
                Err(Error::Unavailable(format!("{executor} has the right to write, epoch {epoch}")))
            }
            _ => Ok(()),
        }
    }

    /// Returns the executor whose lease is running.
    pub fn holder(&self, now: Instant) -> Option<Holder> {
        let held = self.0.lock();
        held.as_ref().filter(|held| held.until > now).map(|held| held.holder.clone())
    }

    /// Notes that this epoch was granted.
    pub fn grant(&self, epoch: u64, claim: Claim, now: Instant) {
        let Claim { executor, lease, address, .. } = claim;
        let holder = Holder { epoch, executor, lease, address };
        *self.0.lock() = Some(Held { until: now + lease, holder });
    }

    /// Renews the lease of the executor of this epoch, which is the newest. A lease of zero
    /// releases it.
    pub fn keep(&self, epoch: u64, lease: Duration, now: Instant) {
        let mut held = self.0.lock();
        let known = held.take().map(|held| held.holder).filter(|holder| holder.epoch == epoch);
        let holder = match known {
            Some(holder) => Holder { lease, ..holder },
            None => Holder { epoch, executor: "an executor".to_owned(), lease, address: None },
        };
        *held = Some(Held { until: now + lease, holder });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(2);

    fn claim() -> Claim {
        Claim { lease: LEASE, ..Claim::of("one") }
    }

    #[test]
    fn no_other_executor_is_admitted_while_a_lease_runs() {
        let (lease, start) = (LeaseTable::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(lease.admit(None, at(0)), Ok(()), "there is no holder");
        lease.grant(1, claim(), at(0));
        let refused = Error::Unavailable("one has the right to write, epoch 1".to_owned());
        assert_eq!(lease.admit(None, at(1)), Err(refused.clone()));
        assert_eq!(lease.admit(Some(1), at(1)), Ok(()), "not in its own way");
        lease.keep(1, LEASE, at(1));
        assert_eq!(lease.admit(None, at(2)), Err(refused));
        assert_eq!(lease.admit(None, at(3)), Ok(()), "it fell silent");
        lease.keep(1, LEASE, at(4));
        assert!(lease.admit(None, at(5)).is_err(), "it is back before another one took over");
        lease.keep(1, Duration::ZERO, at(5));
        assert_eq!(lease.admit(None, at(5)), Ok(()), "it let go");
    }

    #[test]
    fn after_a_restart_the_executor_of_the_newest_epoch_has_one_lease_to_come_back() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let holder = Holder { epoch: 7, executor: "one".to_owned(), lease: LEASE, address: None };
        let lease = LeaseTable::open(Some(holder), at(0));
        let refused = Error::Unavailable("one has the right to write, epoch 7".to_owned());
        assert_eq!(lease.admit(None, at(1)), Err(refused.clone()));
        assert_eq!(lease.admit(Some(6), at(1)), Err(refused.clone()), "an older one");
        assert_eq!(lease.admit(Some(7), at(1)), Ok(()));
        lease.keep(7, LEASE, at(1));
        assert_eq!(lease.admit(None, at(2)), Err(refused), "it is back, under its name");
        assert_eq!(lease.admit(None, at(3)), Ok(()), "then any executor");
        assert_eq!(
            LeaseTable::open(None, at(0)).admit(None, at(0)),
            Ok(()),
            "a lease was given back"
        );
    }
}
