//! Calls that a server admits, by the role of its storage-writer and by its lease.

use crate::lead::LeadLease;
use std::sync::Arc;
use tandem_proto::storage::{Error, Result, Standing};
use tokio::sync::watch;
use tonic::Status;

/// Right of a server's storage-writer to lead.
#[derive(Clone, Default)]
pub struct Admission {
    /// Role of the storage-writer, `None` if it always leads.
    pub standing: Option<watch::Receiver<Standing>>,
    /// Lease without which nothing is written, `None` if there is none.
    pub lease: Option<Arc<LeadLease>>,
    /// Whether nobody who calls may write: the executor is in the server's own process.
    pub is_read_only: bool,
}

impl Admission {
    /// Refuses followers where another storage-writer leads.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub fn admit_reader(&self) -> Result<()> {
        self.standing.as_ref().map_or(Ok(()), |standing| standing.borrow().admit())
    }

    /// Refuses writes and grants where nobody who calls may write, or another storage-writer leads or may
    /// lead.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Unavailable`].
    pub fn admit_writer(&self) -> Result<()> {
        if self.is_read_only {
            return Err(Error::Refused("the executor of this process alone writes".to_owned()));
        }
        self.admit_reader()?;
        self.confirm()
    }

    /// Makes an admitted write, which may have waited for its turn. Refuses the answer if the lease ended
    /// before it: another storage-writer may lead now.
    ///
    /// # Errors
    /// [`Error::Unavailable`], and the errors of the write.
    pub fn write<T>(&self, write: impl FnOnce() -> Result<T, Status>) -> Result<T, Status> {
        self.confirm()?;
        let answer = write()?;
        self.confirm()?;
        Ok(answer)
    }

    /// Refuses what needs the lease without it.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub fn confirm(&self) -> Result<()> {
        self.lease.as_ref().map_or(Ok(()), |lease| lease.admit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};
    use tandem_proto::storage::Term;

    #[test]
    fn a_leader_writes_under_its_lease_and_is_followed_without_it() {
        let (role, standing) = watch::channel(Standing::Leads(Term(1)));
        let lease = Arc::<LeadLease>::default();
        let (standing, held) = (Some(standing), Some(lease.clone()));
        let admission = Admission { standing, lease: held, is_read_only: false };
        assert!(admission.admit_writer().is_err() && admission.confirm().is_err());
        assert!(admission.admit_reader().is_ok());
        lease.hold_until(Instant::now() + Duration::from_secs(3600));
        assert!(admission.admit_writer().is_ok() && admission.confirm().is_ok());
        role.send_replace(Standing::Superseded(Term(2)));
        assert!(admission.admit_writer().is_err() && admission.admit_reader().is_err());
        assert_eq!(Admission::default().admit_writer(), Ok(()));
        let read_only = Admission { is_read_only: true, ..Admission::default() };
        assert!(matches!(read_only.admit_writer(), Err(Error::Refused(_))));
        assert!(read_only.admit_reader().is_ok());
    }

    #[test]
    fn a_write_is_not_made_without_the_lease_and_not_confirmed_when_it_ended_meanwhile() {
        let lease = Arc::<LeadLease>::default();
        let admission = Admission { lease: Some(lease.clone()), ..Admission::default() };
        let mut is_written = false;
        let written = admission.write(|| {
            is_written = true;
            Ok(())
        });
        assert!(written.is_err() && !is_written);
        lease.hold_until(Instant::now() + Duration::from_secs(3600));
        assert!(admission.write(|| Ok(())).is_ok());
        let written = admission.write(|| {
            lease.hold_until(Instant::now());
            Ok(())
        });
        assert!(written.is_err());
    }
}
