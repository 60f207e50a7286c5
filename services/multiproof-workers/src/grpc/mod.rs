//! Proof stream between processes.
//!
//! ```text
//! engine thread ─ update ─► bounded queue ─► one HTTP/2 stream ─► bounded queue ─► proof-stream thread
//!   Client                  (UpdateParts)      (flow control)                       ProofApi behind it
//!               ◄─ roots ─────────── one stream back ◄──────────────────────────────┘
//! ```
//!
//! `Client` of `tandem_multiproof_workers_client` is a [`ProofApi`](tandem_proto::multiproof::ProofApi) over one connection that
//! carries block after block. [`Server`] offers any `ProofApi` to such clients. One thread of the
//! server makes all calls, so the reactor never waits for a worker, and commands of several streams
//! never mix within a block. A block may ask for some shards only; only their part of its updates
//! is then sent.
//!
//! **Overload.** Both queues are bounded, the server's in bytes too. When the server's queue is
//! full, it stops reading, HTTP/2's window closes, the client's queue fills, and the executor
//! waits. In one process it also waits while a worker's mailbox is full, but here never longer than
//! the client's limit.
//!
//! **Loss.** A lost connection fails the open block with
//! [`Error::Unavailable`](tandem_proto::multiproof::Error::Unavailable) at once. The executor
//! begins it again, which waits a moment for the next connection. Lost advice and refusals do no
//! harm: a worker drops tries that do not fit the parent of the block that begins.

mod bridge;
mod server;

pub use server::Server;
