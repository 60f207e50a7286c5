//! Contract of tx-pool, which holds the transactions that are in no block yet.
//!
//! A transaction of the pool is **pending** if it could be in the next block together with those of
//! its sender in front of it, and else **queued**.

use std::{borrow::Cow, pin::Pin, time::Duration};
use tandem_primitives::{Address, B256, Bytes};

/// Transaction of the pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PooledTransaction {
    /// Hash.
    pub hash: B256,
    /// Sender.
    pub sender: Address,
    /// EIP-2718 bytes, as blocks hold them: without blobs.
    pub raw: Bytes,
}

/// Transactions of the pool, by sender and nonce.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Content {
    /// Pending transactions.
    pub pending: Vec<PooledTransaction>,
    /// Queued transactions.
    pub queued: Vec<PooledTransaction>,
}

/// Question for the transactions that pay a block best.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BestQuery {
    /// Base fee of the block, in wei. Transactions that do not pay it are left out.
    pub base_fee: u128,
    /// Price of blob gas in the block, in wei. `None` leaves out transactions with blobs.
    pub blob_fee: Option<u128>,
    /// Number of transactions with blobs after which further ones are left out.
    pub blob_transactions_max: usize,
    /// Number of transactions to leave out, as they came with an earlier page.
    pub skip: usize,
    /// Maximum number of transactions in the answer.
    pub transactions_max: usize,
    /// Version of the pool that the caller knows. If it is still the same, the answer is empty.
    pub unless: Option<u64>,
}

/// One page of the transactions that pay a block best.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct BestPage {
    /// Transactions in the order in which a block should take them: by tip, then by arrival, and
    /// each behind those of its sender with a lower nonce.
    pub transactions: Vec<PooledTransaction>,
    /// Version of the pool, which changes with every transaction that comes or goes.
    pub version: u64,
    /// Whether no further page follows.
    pub is_last: bool,
}

/// One page of the transactions that became pending, in this order.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Arrivals {
    /// Transactions. Some may have left the pool since.
    pub transactions: Vec<PooledTransaction>,
    /// Number of transactions that became pending up to the last of the page. The next question is
    /// for those after it.
    pub upto: u64,
}

/// Numbers of transactions in the pool.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Pending transactions.
    pub pending: usize,
    /// Queued transactions.
    pub queued: usize,
}

/// Reason why a call failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// The transaction is refused. The text begins like go-ethereum's, if it has one.
    #[error("{reason}")]
    Refused {
        /// Name of the reason, for programs: lower case and underscores.
        kind: Cow<'static, str>,
        /// Text for people.
        reason: String,
    },
    /// Too many transactions are waiting, and this one was not looked at.
    #[error("too many transactions or blobs are being checked, retry later")]
    Overloaded {
        /// Minimum time to wait before a retry.
        retry_after: Duration,
    },
    /// The service is stopping or unreachable, or cannot read the chain.
    #[error("tx-pool is not available: {0}")]
    Unavailable(String),
}

/// Answer to every call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Future answer to a call.
pub type Pending<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

/// Future answer for each of the transactions to add.
pub type Added = Pin<Box<dyn Future<Output = Vec<Result<B256>>> + Send>>;

/// Calls of tx-pool. They belong in async code.
pub trait TxPoolApi: Send + Sync + 'static {
    /// Adds transactions of users of this node, in their network form: with blobs, if they have any. Returns the
    /// hash of each, or why it is not in the pool, in the order of the transactions.
    fn add(&self, raw: Vec<Bytes>) -> Added;

    /// Returns a transaction, `None` if the pool does not hold it.
    fn get(&self, hash: B256) -> Pending<Option<PooledTransaction>>;

    /// Returns the nonce after a sender's pending transactions, `None` if the pool holds none of
    /// that sender.
    fn next_nonce(&self, sender: Address) -> Pending<Option<u64>>;

    /// Returns the numbers of transactions.
    fn counts(&self) -> Pending<Counts>;

    /// Returns a page of the pending transactions that pay a block best. It ends after about
    /// [`POOL_PAGE_BYTES`](crate::limits::POOL_PAGE_BYTES) bytes.
    fn best(&self, query: BestQuery) -> Pending<BestPage>;

    /// Returns a page of the transactions that became pending after the first `after` ones, and for
    /// `None` only their number. The pool remembers the newest
    /// [`ARRIVALS_MAX`](crate::limits::ARRIVALS_MAX); a caller that is further behind misses the
    /// older ones. The page ends after about [`POOL_PAGE_BYTES`](crate::limits::POOL_PAGE_BYTES).
    fn arrivals(&self, after: Option<u64>) -> Pending<Arrivals>;

    /// Returns the transactions of all senders, or of one.
    fn content(&self, sender: Option<Address>) -> Pending<Content>;
}
