//! tx-executor: executes transactions of a block for an executor on another machine (EIP-7928).
//!
//! **Role.** Stateless. **In:** one gRPC stream of an executor, with block after block: environment,
//! access list, transactions, and the parent's values of what the list names. **Out:** the result of
//! each transaction, as it ends. **Keeps:** codes, so that each is sent once.
//!
//! The executor reads the values while it sends the rest. Meanwhile the list is decoded and the signers
//! of the transactions are recovered. Transactions begin once all accounts are there, and wait for the
//! slots where they read some.
//!
//! ```text
//! executor ══ stream ══► Service ── Assembly ──► bounded queue ──► worker threads ── EVM
//!      ▲                    ▲                                            │
//!      └════ results ═══════╧═ several ══ bounded queue ◄────────────────┘
//! ```
//!
//! The EVM is not here: it comes with [`TxExecution`](tandem_proto::tx_executor::TxExecution), and is
//! that of the executor's own threads.
//!
//! **Overload.** When the queue of transactions is full, the stream is not read, HTTP/2's window
//! closes, and the executor leases no more. A client that does not take its results loses its stream.
//!
//! **Trust.** An executor believes no result: see `tandem_executor::machines`. What it sends is
//! bounded: the list, the values, and the transactions that wait.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod answers;
mod assembly;
mod config;
mod grpc;
mod metrics;
mod service;
mod utilization;
mod worker;

pub use config::Config;
pub use grpc::Server;
pub use metrics::describe_metrics;
pub use service::{Deps, TxExecutor};
