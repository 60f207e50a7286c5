//! Contract of tx-executor: transactions of one block, executed on another machine (EIP-7928).
//!
//! Accounts and slots are named by their place in the block's access list. See
//! `tandem/tx_executor/v1/tx_executor.proto` for the numbering.

use std::{sync::Arc, time::Duration};
use tandem_primitives::{Account, Address, B256, Bytes, U256};

/// Rules of the EVM that a tx-executor knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TxFork {
    /// Amsterdam, the first fork with access lists of blocks.
    Amsterdam,
}

/// Environment of a block's transactions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Environment {
    /// Rules of the EVM.
    pub fork: TxFork,
    /// Id of the chain (EIP-155).
    pub chain_id: u64,
    /// Height of the block.
    pub number: u64,
    /// Account that gets the fees.
    pub beneficiary: Address,
    /// Time of the block in seconds since the Unix epoch.
    pub timestamp: u64,
    /// Maximum gas of the block.
    pub gas_limit: u64,
    /// Base fee in wei (EIP-1559).
    pub base_fee: u64,
    /// Random value of the beacon chain (EIP-4399).
    pub prev_randao: B256,
    /// Excess blob gas (EIP-4844).
    pub excess_blob_gas: u64,
    /// Price of blob gas in wei.
    pub blob_gas_price: u128,
    /// Number of the slot (EIP-7843).
    pub slot_number: u64,
    /// Maximum number of blobs of a transaction (EIP-7594).
    pub blobs_per_tx_max: Option<u64>,
}

/// Opening of a block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BeginTransactions {
    /// Height of the block.
    pub block_number: u64,
    /// W3C trace context of the executor's span; empty without one.
    pub traceparent: String,
    /// Environment of the transactions.
    pub environment: Environment,
    /// Length in bytes of the RLP of the block's access list.
    pub list_bytes: usize,
}

/// Next values of the parent's state, in the order of the list. All accounts and codes come before the
/// first slot.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ParentValues {
    /// Next accounts.
    pub accounts: Vec<Option<Account>>,
    /// Next slots.
    pub slots: Vec<U256>,
    /// Codes that the receiver may lack.
    pub codes: Vec<Bytes>,
    /// Whether these are the last accounts and codes.
    pub slots_follow: bool,
    /// Whether these are the last values of the block.
    pub last: bool,
}

/// Transaction to execute. Who executes it recovers its signers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangeTransaction {
    /// Position in the block.
    pub index: u32,
    /// EIP-2718 form.
    pub bytes: Bytes,
}

/// Command to a tx-executor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TxCommand {
    /// Opens a block.
    Begin(Box<BeginTransactions>),
    /// Next part of the access list's RLP.
    List(Bytes),
    /// Next values of the parent's state.
    Values(ParentValues),
    /// Transactions to execute.
    Range(Vec<RangeTransaction>),
    /// Ends the block.
    End,
    /// Asks for a sign of life; the number comes back.
    Ping(u64),
}

/// Gas of a transaction, as revm counts it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TxGas {
    /// Gas before refunds, with state gas.
    pub spent: u64,
    /// State gas (EIP-8037).
    pub state: u64,
    /// Refund.
    pub refunded: u64,
    /// Floor (EIP-7623).
    pub floor: u64,
}

/// Account that a transaction loaded.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct LoadedAccount {
    /// Place of the account in the list.
    pub place: u32,
    /// Status bits, as `Outcome.statuses` of the contract defines them.
    pub status: u8,
    /// Nonce and balance after the transaction, if one of them changed.
    pub changed: Option<(u64, U256)>,
    /// Code that the transaction set.
    pub code: Option<Bytes>,
    /// Loaded slots.
    pub slots: Vec<LoadedSlot>,
}

/// Slot that a transaction loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoadedSlot {
    /// Place of the slot in its account.
    pub place: u32,
    /// Value after the transaction, if it changed.
    pub changed: Option<U256>,
}

/// Log of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TxLog {
    /// Contract that wrote the log.
    pub address: Address,
    /// Topics, at most 4.
    pub topics: Vec<B256>,
    /// Data.
    pub data: Bytes,
}

/// Outcome of a transaction.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct TxOutcome {
    /// Whether the transaction succeeded.
    pub success: bool,
    /// Its gas.
    pub gas: TxGas,
    /// Fee of the beneficiary in wei; `None` if the balances include it.
    pub reward: Option<U256>,
    /// Loaded accounts.
    pub accounts: Vec<LoadedAccount>,
    /// Logs.
    pub logs: Vec<TxLog>,
}

/// Result of a leased transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TxResult {
    /// Position in the block.
    pub index: u32,
    /// Time that the execution took, with the recovery of the signers.
    pub took: Duration,
    /// Outcome, `None` if the transaction was not executed.
    pub outcome: Option<TxOutcome>,
    /// Whether it was not executed because a code is missing that was not sent again.
    pub code_missing: bool,
}

/// Answer of a tx-executor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TxReply {
    /// Results of some transactions, in any order.
    Results(Vec<TxResult>),
    /// The block cannot be executed there.
    Refused(String),
    /// Answer to a ping, with its number and the number of threads that execute.
    Pong(u64, u32),
}

/// Reason why a command was not sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the connection to the tx-executor is lost or does not take the command")]
pub struct NotSent;

/// One tx-executor, as an executor reaches it. Calls may wait, so they do not belong in async code.
pub trait TxExecutorApi: Send + Sync {
    /// Returns the address, for logs and metrics.
    fn endpoint(&self) -> String;

    /// Returns the number of the current connection, `None` without one. Another connection may
    /// lead to another process, which knows nothing of earlier blocks.
    fn connection(&self) -> Option<u64>;

    /// Puts a command into the queue of this connection. Waits a moment while the queue is full.
    ///
    /// # Errors
    /// [`NotSent`].
    fn send(&self, connection: u64, session: u64, command: TxCommand) -> Result<(), NotSent>;

    /// Waits at most this long for the next answer, and returns it with its session.
    fn receive(&self, wait: Duration) -> Option<(u64, TxReply)>;
}

/// EVM of a tx-executor, for any number of blocks.
pub trait TxExecution: Send + Sync {
    /// Opens a block, whose values come later.
    ///
    /// # Errors
    /// Returns the reason why the block cannot be executed, for the executor's log.
    fn open(&self, block: ListedBlock) -> Result<Arc<dyn OpenBlock>, String>;
}

/// Part of a block that comes before the values.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListedBlock {
    /// Environment of the transactions.
    pub environment: Environment,
    /// RLP of the access list.
    pub list: Bytes,
}

/// Block that a tx-executor executes once its values are there.
pub trait OpenBlock: Send + Sync {
    /// Does what the execution of a transaction needs besides the values: recovers its signers.
    fn prepare(&self, transaction: &RangeTransaction);

    /// Takes all accounts of the parent's state, and codes.
    ///
    /// # Errors
    /// Returns the reason why the block cannot be executed, for the executor's log.
    fn fill(
        &self,
        accounts: Vec<Option<Account>>,
        codes: Vec<Bytes>,
    ) -> Result<Arc<dyn FilledBlock>, String>;
}

/// Block whose transactions are executed. Those that read slots of the parent's state wait for them.
pub trait FilledBlock: Send + Sync {
    /// Takes all slots of the parent's state.
    ///
    /// # Errors
    /// Returns the reason why the block cannot be executed, for the executor's log.
    fn set_slots(&self, slots: Vec<U256>) -> Result<(), String>;

    /// Lets nothing wait for slots any more: transactions that need them are not executed.
    fn give_up_slots(&self);

    /// Returns an EVM for one thread.
    fn worker(&self) -> Box<dyn BlockWorker>;
}

/// EVM of one thread for one block.
pub trait BlockWorker {
    /// Executes a transaction on the parent's state and the list's values before it.
    fn execute(&mut self, transaction: &RangeTransaction) -> TxResult;
}
