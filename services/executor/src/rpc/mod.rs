//! The methods of the executor's two HTTP ports: the Engine API, and the `eth` methods of the public
//! port. The server of both is [`tandem_http`]. A full engine mailbox or call queue causes a JSON-RPC
//! error.

mod engine_api;
mod engine_types;
mod eth;
mod get_blob_cells;
mod get_blobs;
mod get_payload;
mod hex;
mod json;
pub mod metrics;
mod policies;
mod pool;
mod prices;
mod revert;
mod strict;
mod subscriptions;
mod testing;

pub use engine_api::engine_methods;
pub use eth::eth_methods;
pub(crate) use pool::CallPools;
pub(crate) use prices::Prices;
pub use subscriptions::subscriptions;
pub use testing::testing_methods;

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
