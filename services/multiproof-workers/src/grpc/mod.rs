//! The proof stream between processes.
//!
//! ```text
//! engine thread ─ update ─► bounded queue ─► one HTTP/2 stream ─► bounded queue ─► proof-stream thread
//!   Client                  (UpdateParts)      (flow control)                       ProofApi behind it
//!               ◄─ roots ─────────── one stream back ◄──────────────────────────────┘
//! ```
//!
//! [`Client`] is a [`ProofApi`](tandem_proto::multiproof::ProofApi) over one connection that carries
//! block after block; [`Server`] offers any `ProofApi` to such clients. One thread of the server's
//! own does all calls, so the reactor never waits for a worker, and commands of several streams
//! never mix within a block. A block may ask for some shards alone; of its updates only what those
//! need is sent.
//!
//! **Overload.** Both queues are bounded, the server's in bytes too. When it is full, the server
//! stops reading, HTTP/2's window closes, the client's queue fills, and the executor waits: as it
//! does in one process when a worker's mailbox is full, but never longer than the client's limit.
//!
//! **Loss.** A lost connection fails the open block with
//! [`Error::Unavailable`](tandem_proto::multiproof::Error::Unavailable) at once; the executor begins it
//! again, which waits a moment for the next connection. Advice and refusals that are lost with a
//! connection do no harm: a worker drops tries that do not fit the parent of the block that begins.

mod bridge;
mod client;
mod connection;
mod server;
mod session;

pub use client::{Client, ClientConfig};
pub(crate) use connection::Answered;
pub use server::Server;
pub(crate) use session::RemoteSession;
pub use tandem_rpc::EndpointError;
