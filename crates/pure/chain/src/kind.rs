//! Name of a broken rule, and the Engine API's answer to it.

use crate::BlockError;

impl BlockError {
    /// Returns the message for the Engine API: `kind: sentence`.
    pub fn describe(&self) -> String {
        format!("{}: {self}", self.kind())
    }

    /// Returns a short constant name of the rule, for metrics, logs and the Engine API.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Rlp { .. } => "rlp",
            Self::TransactionEncoding { .. } => "transaction_encoding",
            Self::UnknownType { .. } => "unknown_type",
            Self::TypeCreates { .. } => "type_creates",
            Self::BlobsAttached { .. } => "blobs_attached",
            Self::Signature { .. } => "signature",
            Self::BlockHash { .. } => "block_hash",
            Self::TransactionsRoot { .. } => "transactions_root",
            Self::WithdrawalsRoot { .. } => "withdrawals_root",
            Self::Ommers => "ommers",
            Self::OmmersHash { .. } => "ommers_hash",
            Self::Difficulty { .. } => "difficulty",
            Self::Nonce { .. } => "nonce",
            Self::VersionedHashes { .. } => "versioned_hashes",
            Self::RequestsOrder { .. } => "requests_order",
            Self::RequestEmpty { .. } => "request_empty",
            Self::ParentHash { .. } => "parent_hash",
            Self::Number { .. } => "number",
            Self::Timestamp { .. } => "timestamp",
            Self::UnsupportedFork { .. } => "unsupported_fork",
            Self::GasLimitChange { .. } => "gas_limit_change",
            Self::GasLimitTooLow { .. } => "gas_limit_too_low",
            Self::GasLimitTooHigh { .. } => "gas_limit_too_high",
            Self::GasUsedOverLimit { .. } => "gas_used_over_limit",
            Self::ExtraDataTooLong { .. } => "extra_data_too_long",
            Self::BaseFee { .. } => "base_fee",
            Self::BaseFeeTooHigh { .. } => "base_fee_too_high",
            Self::MissingField { .. } => "missing_field",
            Self::UnexpectedField { .. } => "unexpected_field",
            Self::ExcessBlobGas { .. } => "excess_blob_gas",
            Self::BlobGasOverLimit { .. } => "blob_gas_over_limit",
            Self::BlobGasUsed { .. } => "blob_gas_used",
            Self::BlockTooLarge { .. } => "block_too_large",
            Self::AccessListEncoding { .. } => "access_list_encoding",
            Self::AccessListForm { .. } => "access_list_form",
            Self::AccessListIndex { .. } => "access_list_index",
            Self::AccessListTooLong { .. } => "access_list_too_long",
            Self::AccessList { .. } => "access_list",
            Self::TransactionType { .. } => "transaction_type",
            Self::ChainId { .. } => "chain_id",
            Self::TransactionGasLimit { .. } => "transaction_gas_limit",
            Self::NoBlobs { .. } => "no_blobs",
            Self::TransactionBlobs { .. } => "transaction_blobs",
            Self::BlobVersion { .. } => "blob_version",
            Self::NoAuthorizations { .. } => "no_authorizations",
            Self::PreMerge(rule) => rule.kind(),
            Self::GasUsed { .. } => "gas_used",
            Self::ReceiptsRoot { .. } => "receipts_root",
            Self::LogsBloom => "logs_bloom",
            Self::RequestsHash { .. } => "requests_hash",
            Self::StateRoot { .. } => "state_root",
            Self::LargeFees { rule, .. } | Self::Transaction { rule, .. } => rule.kind(),
            Self::SystemCall { .. } => "system_call",
            Self::SystemContractMissing { .. } => "system_contract_missing",
            Self::DepositLayout { .. } => "deposit_layout",
        }
    }

    /// Returns how the Engine API answers a payload that breaks this rule.
    pub const fn fault(&self) -> Fault {
        match self {
            Self::RequestsOrder { .. } | Self::RequestEmpty { .. } => Fault::Parameters,
            Self::Rlp { .. }
            | Self::TransactionEncoding { .. }
            | Self::AccessListEncoding { .. }
            | Self::LargeFees { .. }
            | Self::UnknownType { .. }
            | Self::TypeCreates { .. }
            | Self::BlobsAttached { .. }
            | Self::BlockHash { .. }
            | Self::BaseFeeTooHigh { .. }
            | Self::VersionedHashes { .. } => Fault::Payload,
            _ => Fault::Block,
        }
    }
}

/// Answer of the Engine API to a payload that breaks a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Error -32602: the parameters violate the contract of the call (Prague,
    /// `engine_newPayloadV4`).
    Parameters,
    /// INVALID with `latestValidHash` null. The payload is not the block that its hash names, so
    /// nothing can be said about its ancestors (Paris, "Payload validation").
    Payload,
    /// INVALID with the hash of the newest valid ancestor.
    Block,
}
