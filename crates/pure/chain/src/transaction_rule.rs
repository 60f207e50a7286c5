use std::fmt;

/// Rule by which execution refuses a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TransactionRule {
    /// The nonce is below that of the sender.
    NonceTooLow,
    /// The nonce is above that of the sender.
    NonceTooHigh,
    /// The nonce is 2^64 - 1 (EIP-2681).
    NonceMax,
    /// The sender has code that is not a delegation (EIP-3607, 7702).
    SenderHasCode,
    /// The sender cannot pay gas limit, blobs and value.
    InsufficientFunds,
    /// Gas limit, blobs and value cost 2^256 wei or more.
    CostOverflow,
    /// The maximum price of gas is below the block's base fee (EIP-1559).
    FeeCapBelowBaseFee,
    /// The priority fee is above the maximum price of gas (EIP-1559).
    TipAboveFeeCap,
    /// The maximum price of blob gas is below the block's price (EIP-4844).
    BlobFeeCapTooLow,
    /// The gas limit is below the intrinsic gas.
    IntrinsicGas,
    /// The gas limit is below the floor of its calldata (EIP-7623).
    FloorGas,
    /// The initcode is longer than allowed (EIP-3860).
    InitcodeSize,
    /// The gas limit is more than the block has left.
    BlockGasLeft,
    /// Another rule, which should have been checked before execution.
    Other,
}

impl TransactionRule {
    /// Returns the name that [`crate::BlockError::kind`] uses.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::NonceTooLow => "nonce_too_low",
            Self::NonceTooHigh => "nonce_too_high",
            Self::NonceMax => "nonce_max",
            Self::SenderHasCode => "sender_has_code",
            Self::InsufficientFunds => "insufficient_funds",
            Self::CostOverflow => "cost_overflow",
            Self::FeeCapBelowBaseFee => "fee_cap_below_base_fee",
            Self::TipAboveFeeCap => "tip_above_fee_cap",
            Self::BlobFeeCapTooLow => "blob_fee_cap_too_low",
            Self::IntrinsicGas => "intrinsic_gas",
            Self::FloorGas => "floor_gas",
            Self::InitcodeSize => "initcode_size",
            Self::BlockGasLeft => "block_gas_left",
            Self::Other => "transaction",
        }
    }
}

impl fmt::Display for TransactionRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())
    }
}
