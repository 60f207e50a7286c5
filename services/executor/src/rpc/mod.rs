//! The executor's two HTTP ports: the Engine API, where every request carries a token, and the
//! public one with the `eth` methods. The operator's ports of all roles are served in the same way.
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
//! **Overload rule:** a request over a limit of [`Limits`] is refused with an HTTP status, and the
//! connection goes on, except where the head alone shows it. A connection over a limit of
//! [`ConnectionLimits`] ends; where there are too many, the oldest without a request under way does.
//! The engine's mailbox and the queue of calls, when full, turn into a JSON-RPC error.

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

/// How this client names itself to others.
#[derive(Debug, Clone)]
pub struct ClientInfo {
    /// The version, such as `0.1.0`.
    pub version: String,
    /// First four bytes of the commit that the build was made from, zeros when unknown.
    pub commit: [u8; 4],
}

impl ClientInfo {
    /// Two letters for statistics, not taken by another client (execution-apis,
    /// `src/engine/identification.md`).
    pub const CODE: &'static str = "TD";
    /// The name for people.
    pub const NAME: &'static str = "Tandem";

    /// The version as `web3_clientVersion` gives it.
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
