//! tx-pool between processes.
//!
//! ```text
//!  eth_sendRawTransaction, builder, txpool_…      process of tx-pool
//!  Client ── Add, Get, GetNextNonce, GetCounts ──► Server ──► TxPoolApi ──► TxPool
//!         ── ListBest (a page), ListContent (parts)
//!         ── NoteSync: whether the head is behind ──────────► SyncNote
//! ```
//!
//! `Client` of `tandem_tx_pool_client` is a [`TxPoolApi`](tandem_proto::tx_pool::TxPoolApi) over one
//! connection. [`Server`] offers any such API, beside gRPC's own health service.
//!
//! **Overload.** A connection carries a bounded number of calls; further ones wait at the caller. The
//! pool bounds the transactions that wait for a verdict, and refuses the next with
//! `RESOURCE_EXHAUSTED`.
//!
//! **Loss.** A transaction whose caller gives up, or loses its connection, is judged nevertheless.

mod server;
mod sync_note;

pub use server::Server;
pub use sync_note::SyncNote;
