//! The executor's two HTTP ports: the Engine API, where every request carries a token, and the
//! public one with the `eth` methods and the recent traces.
//!
//! ```text
//! server     limits, token, body in one piece
//!   │
//! envelope   calls of the body; parameters stay slices of it
//!   │
//! methods    table by name ── engine_api ── Handle
//!                          └─ eth ───────── Chain, rendered by json
//! ```
//!
//! **Overload rule:** a request over a limit of [`Limits`] is refused with an HTTP status, and the
//! connection goes on; the engine's mailbox, when full, turns into a JSON-RPC error.

mod engine_api;
mod engine_types;
mod envelope;
mod error;
mod eth;
mod get_blobs;
mod get_payload;
mod hex;
mod json;
mod listener;
mod methods;
pub mod metrics;
mod pieces;
mod policies;
mod revert;
mod server;
mod strict;

pub use engine_api::engine_methods;
pub use error::{RpcError, code};
pub use eth::eth_methods;
pub use methods::{Answer, Methods, Output, Params, Streamed};
pub use pieces::Pieces;
pub use server::{Limits, Traces, engine_router, public_router, serve, traces_router};

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
