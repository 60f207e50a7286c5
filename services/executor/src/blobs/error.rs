use super::pool::PoolError;
use crate::error::Error;
use std::fmt;
use tandem_chain::{BlockError, NetworkFormError, TransactionRule};
use tandem_proto::blob_validator::{self, Reason, Refusal};

/// Reason for refusing a transaction. The text begins like geth's, if geth has one, because
/// senders' libraries match on it.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The transaction is not a blob transaction, and there is no pool for other types.
    #[error(
        "transaction type not supported: this node takes blob transactions only, as it does not \
         pass transactions on"
    )]
    OtherType,
    /// The input is not a blob transaction with its blobs.
    #[error(transparent)]
    Malformed(#[from] NetworkFormError),
    /// The transaction exceeds the maximum length without blobs.
    #[error("oversized data: transaction size {got}, limit {max}")]
    Oversized {
        /// Bytes of the transaction.
        got: usize,
        /// Maximum bytes.
        max: usize,
    },
    /// The transaction breaks a rule that holds in any state.
    #[error("{}", fault(.0))]
    Rule(BlockError),
    /// The EVM would refuse the transaction on the head's state.
    #[error("{}: {reason}", execution_fault(*.rule))]
    Execution {
        /// The broken rule.
        rule: TransactionRule,
        /// The EVM's reason.
        reason: String,
    },
    /// The pool refuses the transaction.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The sidecar is invalid.
    #[error("{}", Sidecar(*.0))]
    Sidecar(Refusal),
    /// blob-validator has no verdict.
    #[error(transparent)]
    NoVerdict(#[from] blob_validator::Error),
    /// The state could not be read.
    #[error(transparent)]
    Chain(#[from] Error),
}

impl SendError {
    /// Returns a constant name for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::OtherType => "type_not_supported",
            Self::Malformed(NetworkFormError::NoSidecar) => "no_sidecar",
            Self::Malformed(NetworkFormError::UnknownVersion) => "sidecar_version",
            Self::Malformed(NetworkFormError::ItemLength { .. }) => "sidecar_item_length",
            Self::Malformed(_) => "malformed",
            Self::Oversized { .. } => "oversized",
            Self::Rule(error) => error.kind(),
            Self::Execution { rule, .. } => rule.kind(),
            Self::Pool(error) => error.kind(),
            Self::Sidecar(refusal) => reason_kind(&refusal.reason),
            Self::NoVerdict(blob_validator::Error::Overloaded { .. }) => "overloaded",
            Self::NoVerdict(blob_validator::Error::DeadlineExceeded) => "deadline_exceeded",
            Self::NoVerdict(_) | Self::Chain(_) => "unavailable",
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
struct Sidecar(Refusal);

impl fmt::Display for Sidecar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refusal { blob, reason } = self.0;
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

/// Describes the broken rule of [`tandem_chain::validate_transaction`] for a transaction outside a
/// block.
fn fault(error: &BlockError) -> String {
    match error {
        BlockError::TransactionType { ty, fork, .. } => {
            format!("transaction type not supported: type {ty} in {fork}")
        }
        BlockError::ChainId { got, want, .. } => {
            format!("invalid chain id for signer: have {got} want {want}")
        }
        BlockError::TransactionGasLimit { got, limit, .. } => {
            format!("transaction gas limit too high (cap: {limit}, tx: {got})")
        }
        BlockError::NoBlobs { .. } => "blob transaction missing blob hashes".to_owned(),
        BlockError::TransactionBlobs { got, limit, .. } => {
            format!("transaction blob limit exceeded: blob count {got}, limit {limit}")
        }
        BlockError::BlobVersion { hash, .. } => {
            format!("versioned hash {hash} is of an unknown version")
        }
        BlockError::Signature { .. } => "invalid sender: invalid signature".to_owned(),
        other => other.to_string(),
    }
}

fn execution_fault(rule: TransactionRule) -> &'static str {
    match rule {
        TransactionRule::NonceTooLow => "nonce too low",
        TransactionRule::NonceTooHigh => "nonce too high",
        TransactionRule::NonceMax => "nonce has max value",
        TransactionRule::SenderHasCode => "sender not an eoa",
        TransactionRule::InsufficientFunds | TransactionRule::CostOverflow => {
            "insufficient funds for gas * price + value"
        }
        TransactionRule::FeeCapBelowBaseFee => "max fee per gas less than block base fee",
        TransactionRule::TipAboveFeeCap => "max priority fee per gas higher than max fee per gas",
        TransactionRule::BlobFeeCapTooLow => "transaction gas price below minimum",
        TransactionRule::IntrinsicGas => "intrinsic gas too low",
        TransactionRule::FloorGas => "insufficient gas for floor data gas cost",
        TransactionRule::InitcodeSize => "max initcode size exceeded",
        TransactionRule::BlockGasLeft => "exceeds block gas limit",
        TransactionRule::Other => "invalid transaction",
    }
}
