use tandem_primitives::{Address, B256, U256};

/// Reason why the pool refuses a transaction that is valid by itself. The text begins like
/// go-ethereum's, because senders' libraries match on it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PoolError {
    /// The transaction is in the pool, with its blobs if it has any.
    #[error("already known")]
    AlreadyKnown,
    /// Too many transactions would have to precede this one with blobs.
    #[error("nonce too high: next nonce {next}, tx nonce {nonce}")]
    NonceTooHigh {
        /// Sender's nonce.
        next: u64,
        /// Transaction's nonce.
        nonce: u64,
    },
    /// The pool holds a transaction of this sender and nonce that pays too much to be replaced.
    #[error("replacement transaction underpriced: not {percent} % above each fee of {known}")]
    ReplacementUnderpriced {
        /// Hash of the transaction in the pool.
        known: B256,
        /// Rise of each fee that is needed.
        percent: u32,
    },
    /// The sender cannot pay this transaction and those in the pool.
    #[error("insufficient funds for gas * price + value: balance {balance}, queued cost {queued}")]
    InsufficientFunds {
        /// Sender's balance, in wei.
        balance: U256,
        /// Cost of this transaction and the sender's executable others, in wei.
        queued: U256,
    },
    /// The pool is full of transactions that are worth as much or more.
    #[error(
        "transaction underpriced: the pool is full, and a tip of {tip} wei at the head's prices is \
         too low"
    )]
    Underpriced {
        /// Payment for gas besides the base fee at current prices, in wei.
        tip: u128,
    },
    /// The transaction is larger than all of the pool may be.
    #[error("oversized data: the pool holds at most {max} of its kind's units")]
    TooLarge {
        /// Slots or bytes of the pool.
        max: usize,
    },
    /// The sender has transactions of the other kind, with or without blobs.
    #[error("address already reserved: {sender} has pooled transactions {others} blobs")]
    AddressReserved {
        /// Sender.
        sender: Address,
        /// "with" or "without".
        others: &'static str,
    },
    /// The sender has too many transactions that wait for an earlier nonce.
    #[error("account limit exceeded: {max} transactions of the sender wait for an earlier one")]
    AccountLimit {
        /// Maximum number.
        max: usize,
    },
    /// A sender with a delegation skips a nonce (EIP-7702).
    #[error("gapped-nonce tx from delegated accounts: next nonce {next}, tx nonce {nonce}")]
    DelegatedGap {
        /// Sender's nonce.
        next: u64,
        /// Transaction's nonce.
        nonce: u64,
    },
    /// A sender with a delegation has a transaction in the pool already (EIP-7702).
    #[error("in-flight transaction limit reached for delegated accounts")]
    DelegatedLimit,
    /// The transaction sets the code of an account that has transactions in the pool (EIP-7702).
    #[error("authority already reserved: {authority} has pooled transactions")]
    AuthorityReserved {
        /// Account whose code is to be set.
        authority: Address,
    },
}

impl PoolError {
    /// Returns a constant name for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::AlreadyKnown => "already_known",
            Self::NonceTooHigh { .. } => "nonce_too_high",
            Self::ReplacementUnderpriced { .. } => "replacement_underpriced",
            Self::InsufficientFunds { .. } => "insufficient_funds",
            Self::Underpriced { .. } => "underpriced",
            Self::TooLarge { .. } => "oversized",
            Self::AddressReserved { .. } => "address_reserved",
            Self::AccountLimit { .. } => "account_limit",
            Self::DelegatedGap { .. } => "delegated_gap",
            Self::DelegatedLimit => "delegated_limit",
            Self::AuthorityReserved { .. } => "authority_reserved",
        }
    }

    /// Returns whether the transaction is refused for the sake of others in the pool, or for lack of
    /// those in front of it, which may change at any time.
    pub fn depends_on_others(&self) -> bool {
        matches!(
            self,
            Self::NonceTooHigh { .. }
                | Self::AccountLimit { .. }
                | Self::AddressReserved { .. }
                | Self::DelegatedGap { .. }
                | Self::DelegatedLimit
                | Self::AuthorityReserved { .. }
        )
    }

    /// Returns whether the transaction may be accepted later without a change of its own: the pool
    /// may have room, or the conflicting transactions may have left.
    pub fn is_temporary(&self) -> bool {
        matches!(
            self,
            Self::Underpriced { .. }
                | Self::DelegatedGap { .. }
                | Self::DelegatedLimit
                | Self::AuthorityReserved { .. }
        )
    }
}
