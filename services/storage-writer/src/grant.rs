//! Newest grant of the right to write, as the database keeps it, so that a restart admits its executor
//! first.

use crate::Error;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tandem_proto::storage::{Claim, Epoch, Holder};

/// Grant of one epoch. Fields that another version of storage-writer wrote are skipped.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Grant {
    /// Number of the epoch, 0 before the first.
    pub epoch: u64,
    executor: String,
    lease_ms: u64,
}

impl Grant {
    /// Grant of an epoch of which nothing else is known.
    pub fn bare(epoch: u64) -> Self {
        Self { epoch, ..Self::default() }
    }

    /// Grant that follows this one.
    pub fn next(&self, claim: &Claim) -> Self {
        let lease_ms = claim.lease.as_millis() as u64;
        Self { epoch: self.epoch + 1, executor: claim.executor.clone(), lease_ms }
    }

    /// Returns the same grant without a lease.
    pub fn released(&self) -> Self {
        Self { lease_ms: 0, ..self.clone() }
    }

    /// Returns the epoch as its executor has it.
    pub fn epoch(&self) -> Epoch {
        Epoch(self.epoch)
    }

    /// Returns the executor, if it has a lease.
    pub fn holder(&self) -> Option<Holder> {
        let Self { epoch, ref executor, lease_ms } = *self;
        let lease = Duration::from_millis(lease_ms);
        (lease_ms > 0).then(|| Holder { epoch, executor: executor.clone(), lease })
    }

    /// Returns the bytes of the record.
    ///
    /// # Errors
    /// None that this type can have.
    pub fn encode(&self) -> Result<Vec<u8>, Error> {
        serde_json::to_vec(self).map_err(|error| Error::Damaged(format!("record grant: {error}")))
    }

    /// Reads what [`Grant::encode`] wrote.
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let read = serde_json::from_slice(bytes);
        read.map_err(|error| Error::Damaged(format!("malformed record grant: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_reads_as_it_was_written_and_skips_what_it_does_not_know() {
        let claim = Claim { executor: "one".to_owned(), lease: Duration::from_secs(2) };
        let grant = Grant::bare(6).next(&claim);
        assert_eq!(Grant::decode(&grant.encode().unwrap()).unwrap(), grant);
        let newer = br#"{"epoch":7,"executor":"one","lease_ms":2000,"zone":"a"}"#;
        assert_eq!(Grant::decode(newer).unwrap(), grant);
        let holder = Holder { epoch: 7, executor: "one".to_owned(), lease: claim.lease };
        assert_eq!(grant.holder(), Some(holder));
        assert_eq!(grant.released().holder(), None);
        assert!(Grant::decode(b"{").is_err());
    }
}
