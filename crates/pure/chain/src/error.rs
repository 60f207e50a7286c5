use crate::{Fork, PreMergeRule, TransactionRule};
use alloy_primitives::{Address, B256, U256};
use std::fmt;

/// A header field that exists only from some fork on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeaderField {
    /// `baseFeePerGas` (EIP-1559).
    BaseFeePerGas,
    /// `withdrawalsRoot` (EIP-4895, Shanghai).
    WithdrawalsRoot,
    /// `blobGasUsed` (EIP-4844, Cancun).
    BlobGasUsed,
    /// `excessBlobGas` (EIP-4844, Cancun).
    ExcessBlobGas,
    /// `parentBeaconBlockRoot` (EIP-4788, Cancun).
    ParentBeaconBlockRoot,
    /// `requestsHash` (EIP-7685, Prague).
    RequestsHash,
    /// `blockAccessListHash` (EIP-7928, Amsterdam).
    BlockAccessListHash,
    /// `slotNumber` (EIP-7843, Amsterdam).
    SlotNumber,
}

impl HeaderField {
    /// The name that JSON-RPC gives the field.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BaseFeePerGas => "baseFeePerGas",
            Self::WithdrawalsRoot => "withdrawalsRoot",
            Self::BlobGasUsed => "blobGasUsed",
            Self::ExcessBlobGas => "excessBlobGas",
            Self::ParentBeaconBlockRoot => "parentBeaconBlockRoot",
            Self::RequestsHash => "requestsHash",
            Self::BlockAccessListHash => "blockAccessListHash",
            Self::SlotNumber => "slotNumber",
        }
    }
}

impl fmt::Display for HeaderField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The rule that a block breaks, one variant a rule.
///
/// `got` is what the block says, `want` what the rules demand. Transactions are named by their
/// position in the block, from 0.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum BlockError {
    /// Header or body is no valid RLP, or is followed by further bytes.
    #[error("malformed {part}: {reason}")]
    Rlp {
        /// `header`, `body` or `block`.
        part: &'static str,
        /// What the decoder met.
        reason: alloy_rlp::Error,
    },
    /// A transaction cannot be decoded, for one of the reasons that the following ones do not
    /// name (EIP-2718).
    #[error("transaction {index} cannot be decoded: {reason}")]
    TransactionEncoding {
        /// Position in the block.
        index: usize,
        /// What the decoder met.
        reason: String,
    },
    /// A transaction has a fee of more than 128 bits, which no account can pay.
    #[error("transaction {index} has a fee of more than 128 bits: {rule}")]
    LargeFees {
        /// Position in the block.
        index: usize,
        /// The rule that it breaks by that.
        rule: TransactionRule,
    },
    /// No transactions of this type exist (EIP-2718).
    #[error("transaction {index} has the unknown type {ty:#04x}")]
    UnknownType {
        /// Position in the block.
        index: usize,
        /// Its first byte.
        ty: u8,
    },
    /// A blob or set-code transaction without a receiver (EIP-4844, 7702).
    #[error("transaction {index} of type {ty} creates a contract, which its type cannot")]
    TypeCreates {
        /// Position in the block.
        index: usize,
        /// The EIP-2718 type.
        ty: u8,
    },
    /// A blob transaction together with its blobs, as the network passes it on (EIP-4844).
    #[error("transaction {index} carries its blobs, which blocks do not")]
    BlobsAttached {
        /// Position in the block.
        index: usize,
    },
    /// A transaction's signature is invalid or has a high `s` (EIP-2).
    #[error("transaction {index} has an invalid signature")]
    Signature {
        /// Position in the block.
        index: usize,
    },
    /// The header does not hash to the block hash claimed.
    #[error("block hash is {want}, not {got}")]
    BlockHash {
        /// The hash claimed.
        got: B256,
        /// The hash of the header.
        want: B256,
    },
    /// The transactions do not have the root that the header names.
    #[error("transactions root is {want}, not {got}")]
    TransactionsRoot {
        /// In the header.
        got: B256,
        /// Computed.
        want: B256,
    },
    /// The withdrawals do not have the root that the header names (EIP-4895).
    #[error("withdrawals root is {want:?}, not {got:?}")]
    WithdrawalsRoot {
        /// In the header.
        got: Option<B256>,
        /// Computed, `None` when the body has no list of withdrawals.
        want: Option<B256>,
    },
    /// The body names ommers; none exist since the merge (EIP-3675).
    #[error("body has ommers")]
    Ommers,
    /// `ommersHash` is not that of an empty list (EIP-3675).
    #[error("ommers hash {got} is not that of an empty list")]
    OmmersHash {
        /// In the header.
        got: B256,
    },
    /// `difficulty` is not 0 (EIP-3675).
    #[error("difficulty is {got}, not 0")]
    Difficulty {
        /// In the header.
        got: U256,
    },
    /// `nonce` is not 0 (EIP-3675).
    #[error("nonce is {got:#x}, not 0")]
    Nonce {
        /// In the header.
        got: u64,
    },
    /// The versioned hashes of the blob transactions are not those that the consensus layer
    /// expects, in its order (Engine API, `engine_newPayloadV3`).
    #[error("versioned hash {index} is {got:?}, expected {want:?}")]
    VersionedHashes {
        /// First position at which the two lists differ.
        index: usize,
        /// In the transactions, `None` past their last.
        got: Option<B256>,
        /// Expected, `None` past the last expected.
        want: Option<B256>,
    },
    /// Types of the execution requests do not ascend strictly (EIP-7685).
    #[error("execution request {index} is out of order")]
    RequestsOrder {
        /// Position in the list.
        index: usize,
    },
    /// An execution request without data (EIP-7685).
    #[error("execution request {index} is empty")]
    RequestEmpty {
        /// Position in the list.
        index: usize,
    },
    /// The block does not name this parent.
    #[error("parent hash is {want}, not {got}")]
    ParentHash {
        /// In the header.
        got: B256,
        /// The parent's.
        want: B256,
    },
    /// The number is not the parent's plus one.
    #[error("block number is {got}, not {want}")]
    Number {
        /// In the header.
        got: u64,
        /// The parent's plus one.
        want: u64,
    },
    /// The timestamp is not after the parent's.
    #[error("timestamp {got} is not after the parent's {parent}")]
    Timestamp {
        /// In the header, in seconds.
        got: u64,
        /// The parent's.
        parent: u64,
    },
    /// A fork is active whose rules this client does not know.
    #[error("fork {fork} (active since {time}) is not supported")]
    UnsupportedFork {
        /// Its key in the genesis file, without `Time`.
        fork: String,
        /// Its activation, in seconds.
        time: u64,
    },
    /// The gas limit moves by 1/1024 of the parent's or more.
    #[error("gas limit {got} is too far from the parent's {parent}")]
    GasLimitChange {
        /// In the header.
        got: u64,
        /// The parent's.
        parent: u64,
    },
    /// The gas limit is under 5,000.
    #[error("gas limit {got} is under 5000")]
    GasLimitTooLow {
        /// In the header.
        got: u64,
    },
    /// The gas limit is over 2^63 - 1 (EIP-1985).
    #[error("gas limit {got} is over 2^63-1")]
    GasLimitTooHigh {
        /// In the header.
        got: u64,
    },
    /// More gas used than the limit allows.
    #[error("gas used {got} is over the gas limit {limit}")]
    GasUsedOverLimit {
        /// In the header.
        got: u64,
        /// The header's gas limit.
        limit: u64,
    },
    /// More than 32 bytes of extra data.
    #[error("extra data has {got} bytes, more than 32")]
    ExtraDataTooLong {
        /// Bytes in the header.
        got: usize,
    },
    /// The base fee does not follow from the parent (EIP-1559).
    #[error("base fee is {want}, not {got}")]
    BaseFee {
        /// In the header, in wei.
        got: U256,
        /// Computed from the parent.
        want: U256,
    },
    /// The base fee is over 2^64 - 1 wei, which none can reach.
    #[error("base fee {got} does not fit 64 bits")]
    BaseFeeTooHigh {
        /// In the payload, in wei.
        got: U256,
    },
    /// The fork demands a header field that is missing.
    #[error("{field} is missing, {fork} demands it")]
    MissingField {
        /// The field.
        field: HeaderField,
        /// The fork of the block.
        fork: Fork,
    },
    /// A header field that the fork does not know.
    #[error("{field} is unknown to {fork}")]
    UnexpectedField {
        /// The field.
        field: HeaderField,
        /// The fork of the block.
        fork: Fork,
    },
    /// The excess blob gas does not follow from the parent (EIP-4844, 7691, 7918).
    #[error("excess blob gas is {want}, not {got}")]
    ExcessBlobGas {
        /// In the header.
        got: u64,
        /// Computed from the parent.
        want: u64,
    },
    /// More blob gas than the blob schedule allows a block (EIP-4844, 7840, 7892).
    #[error("blob gas used {got} is over the limit {limit}")]
    BlobGasOverLimit {
        /// In the header.
        got: u64,
        /// Blobs allowed times 131,072.
        limit: u64,
    },
    /// The blob gas used is not that of the block's blob transactions (EIP-4844).
    #[error("blob gas used is {want}, not {got}")]
    BlobGasUsed {
        /// In the header.
        got: u64,
        /// Counted.
        want: u64,
    },
    /// The block's RLP is over 8 MiB (EIP-7934, Osaka).
    #[error("block has {got} bytes of RLP, more than {limit}")]
    BlockTooLarge {
        /// Bytes.
        got: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// A transaction type that the fork does not know (EIP-4844, 7702).
    #[error("transaction {index} has type {ty}, unknown to {fork}")]
    TransactionType {
        /// Position in the block.
        index: usize,
        /// The EIP-2718 type.
        ty: u8,
        /// The fork of the block.
        fork: Fork,
    },
    /// A transaction for another chain (EIP-155).
    #[error("transaction {index} is for chain {got}, not {want}")]
    ChainId {
        /// Position in the block.
        index: usize,
        /// In the transaction.
        got: u64,
        /// This chain.
        want: u64,
    },
    /// A transaction with a gas limit over 2^24 (EIP-7825, Osaka).
    #[error("transaction {index} has gas limit {got}, more than {limit}")]
    TransactionGasLimit {
        /// Position in the block.
        index: usize,
        /// In the transaction.
        got: u64,
        /// Allowed.
        limit: u64,
    },
    /// A blob transaction without blobs (EIP-4844).
    #[error("blob transaction {index} has no blobs")]
    NoBlobs {
        /// Position in the block.
        index: usize,
    },
    /// A blob transaction with too many blobs: over 6 from Osaka (EIP-7594), over what a block
    /// may hold before.
    #[error("blob transaction {index} has {got} blobs, more than {limit}")]
    TransactionBlobs {
        /// Position in the block.
        index: usize,
        /// Blobs in the transaction.
        got: usize,
        /// Allowed.
        limit: u64,
    },
    /// A versioned hash of an unknown version (EIP-4844).
    #[error("blob transaction {index} has versioned hash {hash} of an unknown version")]
    BlobVersion {
        /// Position in the block.
        index: usize,
        /// The hash.
        hash: B256,
    },
    /// A set-code transaction without authorizations (EIP-7702).
    #[error("set-code transaction {index} has no authorizations")]
    NoAuthorizations {
        /// Position in the block.
        index: usize,
    },
    /// A rule of blocks from before the merge, or of its beginning.
    #[error(transparent)]
    PreMerge(#[from] PreMergeRule),
    /// Execution used another amount of gas.
    #[error("gas used is {want}, not {got}")]
    GasUsed {
        /// In the header.
        got: u64,
        /// By execution.
        want: u64,
    },
    /// Execution gave other receipts.
    #[error("receipts root is {want}, not {got}")]
    ReceiptsRoot {
        /// In the header.
        got: B256,
        /// By execution.
        want: B256,
    },
    /// Execution gave other logs.
    #[error("logs bloom differs from that of the receipts")]
    LogsBloom,
    /// Execution gave other requests (EIP-7685).
    #[error("requests hash is {want}, not {got}")]
    RequestsHash {
        /// In the header.
        got: B256,
        /// By execution.
        want: B256,
    },
    /// Execution gave another state.
    #[error("state root is {want}, not {got}")]
    StateRoot {
        /// In the header.
        got: B256,
        /// By execution.
        want: B256,
    },
    /// Execution refused a transaction (EIP-1559, 2681, 3607, 3860, 4844, 7623).
    #[error("transaction {index} of {sender} cannot be executed: {reason}")]
    Transaction {
        /// Position in the block.
        index: usize,
        /// Its sender.
        sender: Address,
        /// The rule broken.
        rule: TransactionRule,
        /// What the EVM says.
        reason: String,
    },
    /// A system call before or after the transactions failed (EIP-2935, 4788, 7002, 7251).
    #[error("system call: {reason}")]
    SystemCall {
        /// What the EVM says.
        reason: String,
    },
    /// A contract that the end of the block calls is not there (EIP-7002, 7251).
    #[error("system contract {address} has no code")]
    SystemContractMissing {
        /// Where it should be.
        address: Address,
    },
    /// A log of the deposit contract has another layout than the deposit contract's (EIP-6110).
    #[error("deposit log of transaction {index} has the wrong layout")]
    DepositLayout {
        /// Position in the block.
        index: usize,
    },
}
