//! Which executor has the right to write, and until when nobody else gets it.

use parking_lot::Mutex;
use std::time::{Duration, Instant};
use tandem_proto::{
    convert::EpochRequest,
    storage::{Epoch, Error, Result},
};

/// The lease of the executor that has the newest epoch. Nothing of it survives a restart: its holder
/// says within a fraction of it that it is there, and one that is slower is fenced off.
#[derive(Default)]
pub struct Lease(Mutex<Option<Held>>);

struct Held {
    epoch: Epoch,
    executor: String,
    until: Instant,
}

impl Lease {
    /// Whether an executor may be granted an epoch now.
    ///
    /// # Errors
    /// [`Error::Unavailable`] while another one's lease runs.
    pub fn admit(&self, request: &EpochRequest, now: Instant) -> Result<()> {
        let held = self.0.lock();
        match held.as_ref().filter(|held| held.until > now && request.held != Some(held.epoch)) {
            Some(Held { epoch: Epoch(epoch), executor, .. }) => {
                Err(Error::Unavailable(format!("{executor} has the right to write, epoch {epoch}")))
            }
            None => Ok(()),
        }
    }

    /// This epoch was granted.
    pub fn grant(&self, epoch: Epoch, request: EpochRequest, now: Instant) {
        let EpochRequest { executor, lease, .. } = request;
        *self.0.lock() = Some(Held { epoch, executor, until: now + lease });
    }

    /// The executor of this epoch, which is the newest, is there, or lets go by a lease of zero.
    pub fn keep(&self, epoch: Epoch, lease: Duration, now: Instant) {
        let mut held = self.0.lock();
        let executor = held.take().map_or_else(|| "an executor".to_owned(), |held| held.executor);
        *held = Some(Held { epoch, executor, until: now + lease });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(held: Option<u64>) -> EpochRequest {
        let lease = Duration::from_secs(2);
        EpochRequest { executor: "one".to_owned(), lease, held: held.map(Epoch) }
    }

    #[test]
    fn nobody_else_gets_in_while_a_lease_runs() {
        let (lease, start) = (Lease::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(lease.admit(&asks(None), at(0)), Ok(()), "nobody has it");
        lease.grant(Epoch(1), asks(None), at(0));
        let refused = Error::Unavailable("one has the right to write, epoch 1".to_owned());
        assert_eq!(lease.admit(&asks(None), at(1)), Err(refused.clone()));
        assert_eq!(lease.admit(&asks(Some(1)), at(1)), Ok(()), "it does not stand in its own way");
        lease.keep(Epoch(1), Duration::from_secs(2), at(1));
        assert_eq!(lease.admit(&asks(None), at(2)), Err(refused));
        assert_eq!(lease.admit(&asks(None), at(3)), Ok(()), "it fell silent");
        lease.keep(Epoch(1), Duration::from_secs(2), at(4));
        assert!(lease.admit(&asks(None), at(5)).is_err(), "it is back before anybody took over");
        lease.keep(Epoch(1), Duration::ZERO, at(5));
        assert_eq!(lease.admit(&asks(None), at(5)), Ok(()), "it let go");
    }
}
