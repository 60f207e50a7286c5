//! Reasons for refusing a transaction, and their only mapping to the contract's error.

use crate::{chain::ChainError, pool::PoolError};
use std::{fmt, time::Duration};
use tandem_admission::{MalformedError, Refused};
use tandem_proto::{
    blob_validator::{self, Reason, Refusal as SidecarRefusal},
    tx_pool,
};

/// Time after which a caller may retry when a queue is full.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Reason why a transaction is not in the pool.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// The transaction breaks a rule.
    #[error(transparent)]
    Rule(#[from] Refused),
    /// The pool refuses the transaction.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The sidecar is invalid.
    #[error("{}", Sidecar(*.0))]
    Sidecar(SidecarRefusal),
    /// blob-validator has no verdict.
    #[error(transparent)]
    NoVerdict(#[from] blob_validator::Error),
    /// The chain cannot be read.
    #[error("read the chain: {0}")]
    Chain(#[from] ChainError),
    /// Too many transactions wait.
    #[error("too many transactions wait to be checked")]
    Overloaded,
    /// The service is stopping.
    #[error("tx-pool is stopping")]
    Stopping,
}

impl Error {
    /// Returns a constant name for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Rule(refused) => refused.kind(),
            Self::Pool(error) => error.kind(),
            Self::Sidecar(refusal) => reason_kind(&refusal.reason),
            Self::NoVerdict(blob_validator::Error::Overloaded { .. }) | Self::Overloaded => {
                "overloaded"
            }
            Self::NoVerdict(blob_validator::Error::DeadlineExceeded) => "deadline_exceeded",
            Self::NoVerdict(_) | Self::Chain(_) | Self::Stopping => "unavailable",
        }
    }

    /// Returns whether only the blobs are at fault, which another peer may have right.
    pub(crate) fn is_of_blobs(&self) -> bool {
        let malformed = |error: &MalformedError| {
            !matches!(error, MalformedError::Transaction(_) | MalformedError::OtherType)
        };
        match self {
            Self::Sidecar(_) => true,
            Self::Rule(Refused::Malformed(error)) => malformed(error),
            Self::Rule(Refused::Commitments { .. } | Refused::VersionedHash { .. }) => true,
            _ => false,
        }
    }

    /// Returns whether the same transaction may be accepted later: the node could not judge it, or
    /// refused it for the sake of its sender's account or of other transactions.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::NoVerdict(_) | Self::Chain(_) | Self::Overloaded => true,
            Self::Rule(refused) => matches!(refused, Refused::InsufficientFunds { .. }),
            Self::Pool(PoolError::InsufficientFunds { .. }) => true,
            Self::Pool(error) => error.is_temporary() || error.depends_on_others(),
            Self::Sidecar(_) | Self::Stopping => false,
        }
    }

    /// Returns whether the same transaction would be refused again for long.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::Rule(_) => !self.is_of_blobs(),
            Self::Pool(error) => !error.depends_on_others(),
            _ => false,
        }
    }
}

impl From<Error> for tx_pool::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::NoVerdict(blob_validator::Error::Overloaded { retry_after }) => {
                Self::Overloaded { retry_after }
            }
            Error::Overloaded => Self::Overloaded { retry_after: RETRY_AFTER },
            Error::NoVerdict(blob_validator::Error::DeadlineExceeded)
            | Error::Rule(_)
            | Error::Pool(_)
            | Error::Sidecar(_) => {
                Self::Refused { kind: error.kind().into(), reason: error.to_string() }
            }
            Error::NoVerdict(_) | Error::Chain(_) | Error::Stopping => {
                Self::Unavailable(error.to_string())
            }
        }
    }
}

fn reason_kind(reason: &Reason) -> &'static str {
    match reason {
        Reason::NoBlobs => "no_blobs",
        Reason::TooManyBlobs { .. } => "transaction_blobs",
        Reason::Count { .. } => "sidecar_count",
        Reason::WrongForm { .. } => "sidecar_version",
        Reason::BlobLength { .. } => "sidecar_item_length",
        Reason::VersionedHash => "versioned_hash",
        Reason::NotCanonical { .. } => "blob_not_canonical",
        Reason::Commitment(_) => "commitment_point",
        Reason::Proof { .. } => "proof_point",
        Reason::ProofInvalid => "proof_invalid",
    }
}

/// Fault of a sidecar, and its position.
struct Sidecar(SidecarRefusal);

impl fmt::Display for Sidecar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SidecarRefusal { blob, reason } = self.0;
        f.write_str(match reason {
            Reason::NotCanonical { .. }
            | Reason::Commitment(_)
            | Reason::Proof { .. }
            | Reason::ProofInvalid => "KZG verification error: ",
            _ => "invalid sidecar: ",
        })?;
        match blob {
            Some(index) => write!(f, "blob {index}: {reason}"),
            None => write!(f, "{reason}"),
        }
    }
}
