use super::pool::PoolError;
use crate::error::Error;
use std::fmt;
use tandem_chain::{BlockError, NetworkFormError, TransactionRule};
use tandem_proto::blob_validator::{self, Reason, Refusal};

/// Why a transaction is not taken. Its text begins as geth's does where geth has one: that is what
/// senders' libraries look for.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// It is no blob transaction, and there is no pool for others.
    #[error(
        "transaction type not supported: this node takes blob transactions only, as it does not \
         pass transactions on"
    )]
    OtherType,
    /// It is no blob transaction with its blobs.
    #[error(transparent)]
    Malformed(#[from] NetworkFormError),
    /// Without its blobs it is longer than it may be.
    #[error("oversized data: transaction size {got}, limit {max}")]
    Oversized {
        /// Bytes of the transaction.
        got: usize,
        /// The limit.
        max: usize,
    },
    /// It breaks a rule that holds in any state.
    #[error("{}", fault(.0))]
    Rule(BlockError),
    /// The EVM would refuse it on the state at the head.
    #[error("{}: {reason}", execution_fault(*.rule))]
    Execution {
        /// The rule.
        rule: TransactionRule,
        /// What the EVM said.
        reason: String,
    },
    /// The pool does not take it.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// Its sidecar is not valid.
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
    /// A constant name for programs.
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

/// What is wrong with a sidecar, and where.
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

/// The rules that [`tandem_chain::validate_transaction`] checks, of a transaction that stands in
/// no block.
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
