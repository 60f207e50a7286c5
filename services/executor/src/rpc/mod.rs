//! The executor's two HTTP ports. The Engine API requires a token with every request; the public
//! port has the `eth` methods. The operator's ports of all roles use the same server.
//!
//! ```text
//! listener   connections: few, watched, the idle ones make room (table, connection, socket)
//!   │
//! server     token, host, body in one piece, a place (access, body, places)
//!   │
//! envelope   calls of the body; parameters stay slices of it
//!   │
//! methods    table by name ── engine_api ── Handle
//!                          └─ eth ───────── Chain, rendered by json
//! ```
//!
//! **Overload rule:** a request over a limit of [`Limits`] is refused with an HTTP status. The
//! connection goes on, unless the head alone shows the violation. A connection over a limit of
//! [`ConnectionLimits`] ends. If there are too many connections, the oldest without a running
//! request ends. A full engine mailbox or call queue causes a JSON-RPC error.

mod access;
mod body;
mod budget;
mod connection;
mod engine_api;
mod engine_types;
mod entry;
mod envelope;
mod error;
mod eth;
mod forward;
mod gate;
mod get_blobs;
mod get_payload;
mod hex;
mod json;
mod limits;
mod listener;
mod methods;
pub mod metrics;
mod pieces;
mod places;
mod policies;
mod pool;
mod prices;
mod refusals;
mod reports;
mod revert;
mod server;
mod socket;
mod strict;
mod table;

pub use access::{Hosts, Origins};
pub use engine_api::engine_methods;
pub use error::{RpcError, code};
pub use eth::eth_methods;
pub use forward::Target;
pub use gate::Gate;
pub use limits::{ConnectionLimits, Limits};
pub use listener::{serve, serve_lingering, serve_within};
pub use methods::{Answer, Methods, Output, Params, Streamed};
pub use pieces::Pieces;
pub(crate) use pool::CallPools;
pub(crate) use prices::Prices;
pub use reports::{Text, Traces, reports_router};
pub use server::{engine_router, public_router};

/// Name of this client for other programs.
#[derive(Debug, Clone)]
pub struct ClientInfo {
    /// The version, such as `0.1.0`.
    pub version: String,
    /// First four bytes of the build's commit, zeros if unknown.
    pub commit: [u8; 4],
}

impl ClientInfo {
    /// Two letters for statistics, unused by other clients (execution-apis,
    /// `src/engine/identification.md`).
    pub const CODE: &'static str = "TD";
    /// The name for people.
    pub const NAME: &'static str = "Tandem";

    /// Returns the version in the form of `web3_clientVersion`.
    pub fn version_line(&self) -> String {
        format!(
            "{}/v{}-{}/{}-{}",
            Self::NAME,
            self.version,
            const_hex::encode(self.commit),
            std::env::consts::OS,
            std::env::consts::ARCH,
        )
    }
}
