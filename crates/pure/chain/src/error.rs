use crate::{AccessListFlaw, Fork, PreMergeRule, TransactionRule};
use alloy_primitives::{Address, B256, U256};
use std::fmt;

/// Header field that exists only from some fork on.
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
    /// Returns the name of the field in JSON-RPC.
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

/// Rule that a block breaks, with one variant per rule.
///
/// `got` is the value in the block, `want` the value that the rules demand. The two state roots are
/// named after their origin. Transactions are identified by their position in the block, from 0.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum BlockError {
    /// Header or body is invalid RLP, or further bytes follow it.
    #[error("malformed {part}: {reason}")]
    Rlp {
        /// `header`, `body` or `block`.
        part: &'static str,
        /// Error of the decoder.
        reason: alloy_rlp::Error,
    },
    /// A transaction cannot be decoded, for a reason without a variant of its own below (EIP-2718).
    #[error("transaction {index} cannot be decoded: {reason}")]
    TransactionEncoding {
        /// Position in the block.
        index: usize,
        /// Error of the decoder.
        reason: String,
    },
    /// A transaction has a fee of more than 128 bits, which no account can pay.
    #[error("transaction {index} has a fee of more than 128 bits: {rule}")]
    LargeFees {
        /// Position in the block.
        index: usize,
        /// Rule that the fee breaks.
        rule: TransactionRule,
    },
    /// The transaction type does not exist (EIP-2718).
    #[error("transaction {index} has the unknown type {ty:#04x}")]
    UnknownType {
        /// Position in the block.
        index: usize,
        /// First byte of the transaction.
        ty: u8,
    },
    /// A blob or set-code transaction has no recipient (EIP-4844, 7702).
    #[error("transaction {index} of type {ty} creates a contract, which its type cannot")]
    TypeCreates {
        /// Position in the block.
        index: usize,
        /// EIP-2718 type.
        ty: u8,
    },
    /// A blob transaction carries its blobs, as on the network (EIP-4844).
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
    /// The hash of the header is not the claimed block hash.
    #[error("block hash is {want}, not {got}")]
    BlockHash {
        /// Claimed hash.
        got: B256,
        /// Hash of the header.
        want: B256,
    },
    /// The root of the transactions is not the one in the header.
    #[error("transactions root is {want}, not {got}")]
    TransactionsRoot {
        /// Root in the header.
        got: B256,
        /// Computed root.
        want: B256,
    },
    /// The root of the withdrawals is not the one in the header (EIP-4895).
    #[error("withdrawals root is {want:?}, not {got:?}")]
    WithdrawalsRoot {
        /// Root in the header.
        got: Option<B256>,
        /// Computed root, `None` when the body has no list of withdrawals.
        want: Option<B256>,
    },
    /// The body names ommers, which do not exist since the merge (EIP-3675).
    #[error("body has ommers")]
    Ommers,
    /// `ommersHash` is not that of an empty list (EIP-3675).
    #[error("ommers hash {got} is not that of an empty list")]
    OmmersHash {
        /// Hash in the header.
        got: B256,
    },
    /// `difficulty` is not 0 (EIP-3675).
    #[error("difficulty is {got}, not 0")]
    Difficulty {
        /// Difficulty in the header.
        got: U256,
    },
    /// `nonce` is not 0 (EIP-3675).
    #[error("nonce is {got:#x}, not 0")]
    Nonce {
        /// Nonce in the header.
        got: u64,
    },
    /// The versioned hashes of the blob transactions, in order, are not those that the consensus
    /// layer expects (Engine API, `engine_newPayloadV3`).
    #[error("versioned hash {index} is {got:?}, expected {want:?}")]
    VersionedHashes {
        /// First position at which the two lists differ.
        index: usize,
        /// Hash in the transactions, `None` past their last one.
        got: Option<B256>,
        /// Expected hash, `None` past the last expected one.
        want: Option<B256>,
    },
    /// The types of the execution requests do not ascend strictly (EIP-7685).
    #[error("execution request {index} is out of order")]
    RequestsOrder {
        /// Position in the list.
        index: usize,
    },
    /// An execution request has no data (EIP-7685).
    #[error("execution request {index} is empty")]
    RequestEmpty {
        /// Position in the list.
        index: usize,
    },
    /// The block does not name this parent.
    #[error("parent hash is {want}, not {got}")]
    ParentHash {
        /// Hash in the header.
        got: B256,
        /// Hash of the parent.
        want: B256,
    },
    /// The block number is not that of the parent plus one.
    #[error("block number is {got}, not {want}")]
    Number {
        /// Number in the header.
        got: u64,
        /// Number of the parent plus one.
        want: u64,
    },
    /// The timestamp is not after that of the parent.
    #[error("timestamp {got} is not after the parent's {parent}")]
    Timestamp {
        /// Timestamp in the header, in seconds.
        got: u64,
        /// Timestamp of the parent.
        parent: u64,
    },
    /// An active fork has rules that this client does not know.
    #[error("fork {fork} (active since {time}) is not supported")]
    UnsupportedFork {
        /// Key in the genesis file, without `Time`.
        fork: String,
        /// Activation time, in seconds.
        time: u64,
    },
    /// The gas limit differs from the parent's by 1/1024 of it or more.
    #[error("gas limit {got} is too far from the parent's {parent}")]
    GasLimitChange {
        /// Gas limit in the header.
        got: u64,
        /// Gas limit of the parent.
        parent: u64,
    },
    /// The gas limit is under 5,000.
    #[error("gas limit {got} is under 5000")]
    GasLimitTooLow {
        /// Gas limit in the header.
        got: u64,
    },
    /// The gas limit is over 2^63 - 1 (EIP-1985).
    #[error("gas limit {got} is over 2^63-1")]
    GasLimitTooHigh {
        /// Gas limit in the header.
        got: u64,
    },
    /// The gas used exceeds the gas limit.
    #[error("gas used {got} is over the gas limit {limit}")]
    GasUsedOverLimit {
        /// Gas used in the header.
        got: u64,
        /// Gas limit in the header.
        limit: u64,
    },
    /// The extra data has more than 32 bytes.
    #[error("extra data has {got} bytes, more than 32")]
    ExtraDataTooLong {
        /// Number of bytes in the header.
        got: usize,
    },
    /// The base fee does not follow from the parent (EIP-1559).
    #[error("base fee is {want}, not {got}")]
    BaseFee {
        /// Base fee in the header, in wei.
        got: U256,
        /// Base fee computed from the parent.
        want: U256,
    },
    /// The base fee is over 2^64 - 1 wei, which no chain can reach.
    #[error("base fee {got} does not fit 64 bits")]
    BaseFeeTooHigh {
        /// Base fee in the payload, in wei.
        got: U256,
    },
    /// The fork demands a header field that is missing.
    #[error("{field} is missing, {fork} demands it")]
    MissingField {
        /// Missing field.
        field: HeaderField,
        /// Fork of the block.
        fork: Fork,
    },
    /// The fork does not know a header field that is present.
    #[error("{field} is unknown to {fork}")]
    UnexpectedField {
        /// Unexpected field.
        field: HeaderField,
        /// Fork of the block.
        fork: Fork,
    },
    /// The excess blob gas does not follow from the parent (EIP-4844, 7691, 7918).
    #[error("excess blob gas is {want}, not {got}")]
    ExcessBlobGas {
        /// Excess blob gas in the header.
        got: u64,
        /// Excess blob gas computed from the parent.
        want: u64,
    },
    /// The blob gas used exceeds the limit of the blob schedule (EIP-4844, 7840, 7892).
    #[error("blob gas used {got} is over the limit {limit}")]
    BlobGasOverLimit {
        /// Blob gas used in the header.
        got: u64,
        /// Allowed blobs times 131,072.
        limit: u64,
    },
    /// The blob gas used is not that of the block's blob transactions (EIP-4844).
    #[error("blob gas used is {want}, not {got}")]
    BlobGasUsed {
        /// Blob gas used in the header.
        got: u64,
        /// Blob gas of the transactions.
        want: u64,
    },
    /// The block's RLP is over 8 MiB (EIP-7934, Osaka).
    #[error("block has {got} bytes of RLP, more than {limit}")]
    BlockTooLarge {
        /// Size in bytes.
        got: usize,
        /// Allowed size in bytes.
        limit: usize,
    },
    /// The block-level access list cannot be decoded (EIP-7928).
    #[error("block access list cannot be decoded: {reason}")]
    AccessListEncoding {
        /// Error of the decoder.
        reason: alloy_rlp::Error,
    },
    /// The block-level access list is not in its canonical order (EIP-7928).
    #[error("block access list: {flaw}")]
    AccessListForm {
        /// First entry out of order.
        flaw: AccessListFlaw,
    },
    /// The block-level access list has an index above that of the block's end (EIP-7928).
    #[error("block access list has index {got}, more than {limit}")]
    AccessListIndex {
        /// Largest index.
        got: u32,
        /// Number of transactions and one.
        limit: u32,
    },
    /// The block-level access list has more items than the gas limit allows (EIP-7928).
    #[error("block access list has {got} accounts and slots, more than {limit}")]
    AccessListTooLong {
        /// Number of accounts and slots.
        got: u64,
        /// Gas limit divided by 2,000.
        limit: u64,
    },
    /// Execution touched other state than the block-level access list says (EIP-7928).
    #[error("block access list hash is {want}, not {got}{difference}")]
    AccessList {
        /// Hash in the header.
        got: B256,
        /// Hash after execution.
        want: B256,
        /// First difference in words, empty if the list of the block is not known.
        difference: String,
    },
    /// The fork does not know the type of a transaction (EIP-4844, 7702).
    #[error("transaction {index} has type {ty}, unknown to {fork}")]
    TransactionType {
        /// Position in the block.
        index: usize,
        /// EIP-2718 type.
        ty: u8,
        /// Fork of the block.
        fork: Fork,
    },
    /// A transaction is for another chain (EIP-155).
    #[error("transaction {index} is for chain {got}, not {want}")]
    ChainId {
        /// Position in the block.
        index: usize,
        /// Chain id in the transaction.
        got: u64,
        /// Id of this chain.
        want: u64,
    },
    /// The gas limit of a transaction is over 2^24 (EIP-7825, Osaka). Amsterdam bounds only the gas of
    /// execution (EIP-8037).
    #[error("transaction {index} has gas limit {got}, more than {limit}")]
    TransactionGasLimit {
        /// Position in the block.
        index: usize,
        /// Gas limit of the transaction.
        got: u64,
        /// Allowed gas limit.
        limit: u64,
    },
    /// A blob transaction has no blobs (EIP-4844).
    #[error("blob transaction {index} has no blobs")]
    NoBlobs {
        /// Position in the block.
        index: usize,
    },
    /// A blob transaction has too many blobs. The limit is 6 from Osaka on (EIP-7594), before that
    /// the limit of a block.
    #[error("blob transaction {index} has {got} blobs, more than {limit}")]
    TransactionBlobs {
        /// Position in the block.
        index: usize,
        /// Number of blobs in the transaction.
        got: usize,
        /// Allowed number.
        limit: u64,
    },
    /// A versioned hash has an unknown version (EIP-4844).
    #[error("blob transaction {index} has versioned hash {hash} of an unknown version")]
    BlobVersion {
        /// Position in the block.
        index: usize,
        /// Versioned hash.
        hash: B256,
    },
    /// A set-code transaction has no authorizations (EIP-7702).
    #[error("set-code transaction {index} has no authorizations")]
    NoAuthorizations {
        /// Position in the block.
        index: usize,
    },
    /// The block breaks a rule of proof of work or of the merge.
    #[error(transparent)]
    PreMerge(#[from] PreMergeRule),
    /// Execution used a different amount of gas.
    #[error("gas used is {want}, not {got}")]
    GasUsed {
        /// Gas used in the header.
        got: u64,
        /// Gas used by execution.
        want: u64,
    },
    /// Execution produced different receipts.
    #[error("receipts root is {want}, not {got}")]
    ReceiptsRoot {
        /// Root in the header.
        got: B256,
        /// Root after execution.
        want: B256,
    },
    /// Execution produced different logs.
    #[error("logs bloom differs from that of the receipts")]
    LogsBloom,
    /// Execution produced different requests (EIP-7685).
    #[error("requests hash is {want}, not {got}")]
    RequestsHash {
        /// Hash in the header.
        got: B256,
        /// Hash after execution.
        want: B256,
    },
    /// Execution produced a different state.
    #[error("state root after execution is {computed}, the header has {header}")]
    StateRoot {
        /// Root in the header.
        header: B256,
        /// Root after execution.
        computed: B256,
    },
    /// Execution refused a transaction (EIP-1559, 2681, 3607, 3860, 4844, 7623).
    #[error("transaction {index} of {sender} cannot be executed: {reason}")]
    Transaction {
        /// Position in the block.
        index: usize,
        /// Sender of the transaction.
        sender: Address,
        /// Broken rule.
        rule: TransactionRule,
        /// Message of the EVM.
        reason: String,
    },
    /// A system call before or after the transactions failed (EIP-2935, 4788, 7002, 7251).
    #[error("system call: {reason}")]
    SystemCall {
        /// Message of the EVM.
        reason: String,
    },
    /// A system contract called at the end of the block does not exist (EIP-7002, 7251).
    #[error("system contract {address} has no code")]
    SystemContractMissing {
        /// Expected address of the contract.
        address: Address,
    },
    /// A log of the deposit contract has an unexpected layout (EIP-6110).
    #[error("deposit log of transaction {index} has the wrong layout")]
    DepositLayout {
        /// Position in the block.
        index: usize,
    },
}
