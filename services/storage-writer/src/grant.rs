//! Newest grant of the right to write, as the database stores it, so that a restart admits its
//! executor first.

use crate::Error;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tandem_primitives::keccak256;
use tandem_proto::storage::{Claim, Epoch, EpochToken, ExecutorAddress, Holder, Term};

/// Grant of one epoch. Fields that another version of storage-writer wrote are skipped.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Grant {
    /// Number of the epoch; the floor of the term before its first.
    pub epoch: u64,
    executor: String,
    lease_ms: u64,
    /// Keccak of the token, so that a reader of the database does not learn it. `None` where the
    /// executor takes no token, or version 0.1.0 granted the epoch.
    token_hash: Option<[u8; 32]>,
    address: Option<Address>,
}

/// Address at which the executor serves.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Address {
    host: String,
    engine_port: u16,
    http_port: u16,
}

impl Grant {
    /// Returns the grant of an epoch of which nothing else is known.
    pub fn bare(epoch: u64) -> Self {
        Self { epoch, ..Self::default() }
    }

    /// Returns whether no executor was granted an epoch in this term.
    pub fn is_vacant(&self) -> bool {
        self.epoch == Term::of_epoch(self.epoch).floor()
    }

    /// Returns the grant that follows this one, and the epoch as its executor gets it.
    pub fn next(&self, claim: &Claim) -> (Self, Epoch) {
        let number = self.epoch + 1;
        let token = claim.takes_token.then(|| EpochToken(rand::random()));
        let grant = Self {
            epoch: number,
            executor: claim.executor.clone(),
            lease_ms: claim.lease.as_millis() as u64,
            token_hash: token.map(hash),
            address: claim.address.clone().map(|address| {
                let ExecutorAddress { host, engine_port, http_port } = address;
                Address { host, engine_port, http_port }
            }),
        };
        (grant, Epoch { number, token })
    }

    /// Returns whether a caller with this token is the executor to which the epoch was granted.
    pub fn is_proven_by(&self, token: Option<EpochToken>) -> bool {
        self.token_hash.is_none_or(|wanted| token.map(hash) == Some(wanted))
    }

    /// Returns the same grant without a lease.
    pub fn released(&self) -> Self {
        Self { lease_ms: 0, ..self.clone() }
    }

    /// Returns the executor, if it has a lease.
    pub fn holder(&self) -> Option<Holder> {
        if self.lease_ms == 0 {
            return None;
        }
        let address = self.address.clone().map(|address| {
            let Address { host, engine_port, http_port } = address;
            ExecutorAddress { host, engine_port, http_port }
        });
        let (epoch, executor) = (self.epoch, self.executor.clone());
        Some(Holder { epoch, executor, lease: Duration::from_millis(self.lease_ms), address })
    }

    /// Returns the bytes of the record.
    ///
    /// # Errors
    /// [`Error::Damaged`], which this type never causes.
    pub fn encode(&self) -> Result<Vec<u8>, Error> {
        serde_json::to_vec(self).map_err(|error| Error::Damaged(format!("record grant: {error}")))
    }

    /// Decodes the output of [`Grant::encode`].
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let read = serde_json::from_slice(bytes);
        read.map_err(|error| Error::Damaged(format!("malformed record grant: {error}")))
    }
}

fn hash(EpochToken(bytes): EpochToken) -> [u8; 32] {
    keccak256(bytes).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_reads_as_it_was_written_and_skips_what_it_does_not_know() {
        let lease = Duration::from_secs(2);
        let address =
            ExecutorAddress { host: "one".to_owned(), engine_port: 8551, http_port: 8545 };
        let address = Some(address);
        let claim = Claim { lease, address: address.clone(), ..Claim::of("one") };
        let (grant, _) = Grant::bare(6).next(&claim);
        assert_eq!(Grant::decode(&grant.encode().unwrap()).unwrap(), grant);
        let newer = br#"{"epoch":7,"executor":"one","lease_ms":2000,"zone":"a","address":
            {"host":"one","engine_port":8551,"http_port":8545}}"#;
        let newer = Grant::decode(newer).unwrap();
        assert_eq!(newer.holder(), grant.holder());
        let holder = Holder { epoch: 7, executor: "one".to_owned(), lease, address };
        assert_eq!(grant.holder(), Some(holder));
        assert_eq!(grant.released().holder(), None);
        assert!(Grant::decode(b"{").is_err());
    }

    #[test]
    fn a_token_proves_its_own_epoch_alone() {
        let (first, one) = Grant::bare(0).next(&Claim::of("one"));
        let (second, two) = first.next(&Claim::of("two"));
        assert!(first.is_proven_by(one.token) && second.is_proven_by(two.token));
        let restarted = Grant::decode(&second.encode().unwrap()).unwrap();
        for wrong in [None, one.token, Some(EpochToken([0; 16]))] {
            assert!(!second.is_proven_by(wrong) && !restarted.is_proven_by(wrong), "{wrong:?}");
        }
        assert!(restarted.is_proven_by(two.token));
        let EpochToken(secret) = two.token.unwrap();
        let record = second.encode().unwrap();
        assert!(!record.windows(16).any(|bytes| bytes == secret), "no reader learns the token");
    }

    #[test]
    fn an_executor_of_an_older_version_needs_no_token() {
        let (grant, epoch) = Grant::bare(0).next(&Claim { takes_token: false, ..Claim::of("old") });
        assert_eq!(epoch, Epoch::numbered(1));
        assert!(grant.is_proven_by(None));
    }
}
