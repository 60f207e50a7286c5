use crate::MalformedError;
use alloy_primitives::U256;
use tandem_chain::{BlockError, TransactionRule};

/// Reason for refusing a transaction that no pool changes. The text begins like go-ethereum's, if
/// it has one, because senders' libraries match on it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// The bytes are no transaction, or a blob transaction without its blobs.
    #[error(transparent)]
    Malformed(#[from] MalformedError),
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
    /// The EVM would refuse the transaction in any state.
    #[error("{}: {reason}", execution_fault(*.rule))]
    Execution {
        /// The broken rule.
        rule: TransactionRule,
        /// The EVM's reason.
        reason: String,
    },
    /// The sidecar has not one commitment for each versioned hash.
    #[error("invalid sidecar: expected {want} commitments, got {got}")]
    Commitments {
        /// Number of commitments.
        got: usize,
        /// Number of versioned hashes.
        want: usize,
    },
    /// A commitment does not hash to its versioned hash.
    #[error("invalid sidecar: blob {blob}: the commitment does not belong to the versioned hash")]
    VersionedHash {
        /// Position of the blob.
        blob: usize,
    },
    /// The transaction pays less than this node asks for.
    #[error("transaction gas price below minimum: gas tip cap {tip}, minimum needed {min}")]
    TipTooLow {
        /// Payment besides the base fee, in wei.
        tip: u128,
        /// Least payment, in wei.
        min: u128,
    },
    /// A transaction with this nonce is in a block already.
    #[error("nonce too low: next nonce {next}, tx nonce {nonce}")]
    NonceTooLow {
        /// Sender's nonce.
        next: u64,
        /// Transaction's nonce.
        nonce: u64,
    },
    /// The sender's account is a contract (EIP-3607).
    #[error("sender not an eoa: the sender has code that is not a delegation")]
    SenderHasCode,
    /// The sender cannot pay the transaction.
    #[error("insufficient funds for gas * price + value: balance {balance}, tx cost {cost}")]
    InsufficientFunds {
        /// Sender's balance, in wei.
        balance: U256,
        /// Maximum cost of the transaction, in wei.
        cost: U256,
    },
}

impl Refused {
    /// Returns a constant name for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Malformed(MalformedError::NoSidecar) => "no_sidecar",
            Self::Malformed(MalformedError::UnknownVersion) => "sidecar_version",
            Self::Malformed(MalformedError::ItemLength { .. }) => "sidecar_item_length",
            Self::Malformed(_) => "malformed",
            Self::Oversized { .. } => "oversized",
            Self::Rule(error) => error.kind(),
            Self::Execution { rule, .. } => rule.kind(),
            Self::Commitments { .. } => "sidecar_count",
            Self::VersionedHash { .. } => "versioned_hash",
            Self::TipTooLow { .. } => "tip_too_low",
            Self::NonceTooLow { .. } => TransactionRule::NonceTooLow.kind(),
            Self::SenderHasCode => TransactionRule::SenderHasCode.kind(),
            Self::InsufficientFunds { .. } => TransactionRule::InsufficientFunds.kind(),
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
        BlockError::NoAuthorizations { .. } => {
            "set code tx must have at least one authorization tuple".to_owned()
        }
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
        TransactionRule::NonceMax => "nonce has max value",
        TransactionRule::TipAboveFeeCap => "max priority fee per gas higher than max fee per gas",
        TransactionRule::BlobFeeCapTooLow => "transaction gas price below minimum",
        TransactionRule::IntrinsicGas => "intrinsic gas too low",
        TransactionRule::FloorGas => "insufficient gas for floor data gas cost",
        TransactionRule::InitcodeSize => "max initcode size exceeded",
        TransactionRule::BlockGasLeft => "exceeds block gas limit",
        _ => "invalid transaction",
    }
}
