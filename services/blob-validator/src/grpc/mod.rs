//! blob-validator between processes.
//!
//! ```text
//! Client ── Validate (a call each) ──► Server ──► BlobApi behind it
//!        ── Recall (is this content known?), GetBlobs, Forget, GetStatus
//!        ── health Watch: says that the connection lives, ends with it
//! others ── ValidateStream (many sidecars, answers in any order)
//! ```
//!
//! [`Client`] is a [`BlobApi`](tandem_proto::blob_validator::BlobApi) over one connection, made in
//! the background and made again when it is lost; [`Several`] is one over as many servers as names
//! lead to; [`Server`] offers any `BlobApi` to such clients, beside gRPC's own health service.
//!
//! **Bytes.** A sidecar is sent from the blobs where they lie, and its blobs are slices of what the
//! other side received: one copy, there. One that the service seems to know is first asked for by
//! its content, and sent only where it is not known.
//!
//! **Deadlines.** A caller's time travels as `grpc-timeout` and in the message; the shorter one
//! holds. A call that is given up is cancelled, and what nobody else waits for is not verified.
//!
//! **Overload.** What does not fit is refused at once with `RESOURCE_EXHAUSTED` and the time after
//! which to try again, in the encoded error and, for clients of any kind, as
//! `grpc-retry-pushback-ms` in the metadata; a `Validate` for which the queue has no room before it is
//! read. A message counts against the bytes that may be on their
//! way in from the moment its length is known.

mod client;
mod gathered;
mod incoming;
mod server;
mod several;
mod timeout;

/// The call whose message is a sidecar.
const VALIDATE: &str = "/tandem.blob_validator.v1.BlobValidator/Validate";

pub use client::{Client, ClientConfig};
pub use server::Server;
pub use several::Several;
pub use tandem_rpc::EndpointError;
