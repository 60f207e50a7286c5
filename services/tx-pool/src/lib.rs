//! Transactions that are in no block yet: which are worth keeping, and who else should have them.
//!
//! ```text
//!  eth_sendRawTransaction ──┐                                        ┌─► txpool_…, pending nonces
//!  peers: in full, fetched ─┼─► intake: decode, rules, ─► actor ─► Pool
//!  journal, evicted ones ───┘   signature, KZG verdict     ▲ │       └─► hashes and transactions
//!                                     │                    │ │            for peers
//!                                     ▼                    │ └─► journal
//!                              blob-validator         chain.head, state of the head
//! ```
//!
//! * **Role.** Holds valid transactions, with the blobs of those that have any in blob-validator.
//!   Follows the head: what a block includes leaves, what a reorg takes out of blocks returns.
//! * **Inputs.** Transactions of users ([`TxPoolApi`](tandem_proto::tx_pool::TxPoolApi)) and of peers
//!   ([`TransactionExchange`](tandem_proto::peer_sessions::TransactionExchange)), `chain.head`, reads
//!   of the chain ([`ChainReads`]).
//! * **Outputs.** Announcements and transactions for peers; answers to look-ups; the transactions that
//!   became pending lately.
//! * **Limits** ([`Config`]). Transactions without blobs by slots of 32 KiB, those with blobs by bytes,
//!   each sender by number; see [`pool`]. Transactions of this node's users are remembered in a
//!   journal, and added again when they were evicted.
//! * **Overload.** Queues are bounded in number and bytes. A user whose transaction finds the queue
//!   full is told so; a peer's transactions are dropped. A peer that sends wrong blobs, or something
//!   else than it announced, loses its session.
//! * **Threads.** `tx-pool` alone changes the pool and writes the journal; `tx-intake-N` check;
//!   `tx-pool-peers` talks with peers. All have the class idle.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod accounts;
mod actor;
mod arrived;
mod blobs;
mod chain;
mod config;
mod error;
pub mod grpc;
mod included;
mod intake;
mod journal;
mod locals;
mod metrics;
mod peers;
pub mod pool;
mod service;

pub use chain::{ChainError, ChainReads, Head};
pub use config::Config;
pub use error::Error;
pub use metrics::describe as describe_metrics;
pub use service::{Deps, StartError, TxPool};
