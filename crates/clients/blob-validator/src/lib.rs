//! Clients of blob-validator, and what both ends compute the same way.
//!
//! * [`Client`] is a [`BlobApi`](tandem_proto::blob_validator::BlobApi) over one connection, made in
//!   the background and made again when it is lost. If the service seems to know a sidecar, the
//!   client first asks for it by content, and sends it only if it is not known.
//! * [`ValidatorPool`] is a `BlobApi` over all servers that names lead to.
//! * [`bundle`] checks the form of a sidecar and computes its content keys; [`verdicts`] remembers
//!   verdicts by these keys.
//!
//! The other end is `tandem_blob_validator::grpc`.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod bundle;
mod client;
mod metrics;
mod validator_pool;
pub mod verdicts;
mod zero_copy;

/// Longest time that a caller may wait for a verdict.
pub const TIMEOUT_MAX: std::time::Duration = std::time::Duration::from_secs(600);

/// Path of the call whose message is a sidecar.
pub const VALIDATE: &str = "/tandem.blob_validator.v1.BlobValidator/Validate";

pub use client::{Client, ClientConfig};
pub use metrics::describe_metrics;
pub use tandem_rpc::EndpointError;
pub use validator_pool::ValidatorPool;
