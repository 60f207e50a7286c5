//! blob-validator between processes.
//!
//! ```text
//! Client ── Validate (a call each) ──► Server ──► BlobApi behind it
//!        ── Recall (is this content known?), GetBlobs, Forget, GetStatus
//!        ── health Watch: shows that the connection lives, ends with it
//! other clients ── ValidateStream (many sidecars, answers in any order)
//! ```
//!
//! `Client` of `tandem_blob_validator_client` is a [`BlobApi`](tandem_proto::blob_validator::BlobApi) over one connection, made in
//! the background and made again when it is lost. `ValidatorPool` is a `BlobApi` over all servers that
//! names lead to. [`Server`] offers any `BlobApi` to such clients, beside gRPC's own health
//! service.
//!
//! **Bytes.** A sidecar is sent directly from the memory of its blobs. On the other side its blobs
//! are slices of the received bytes, so there is one copy. If the service seems to know a sidecar,
//! the client first asks for it by content, and sends it only if it is not known.
//!
//! **Deadlines.** A caller's time travels as `grpc-timeout` and in the message; the shorter one
//! applies. A call that is given up is cancelled, and a blob without other waiters is not verified.
//!
//! **Overload.** A message that does not fit is refused at once with `RESOURCE_EXHAUSTED` and the
//! time until a retry. That time is in the encoded error and, for clients of any kind, in the
//! metadata as `grpc-retry-pushback-ms`. A `Validate` that the queue has no room for is refused
//! before it is read. A message counts against the limit on arriving bytes from the moment its
//! length is known.

mod incoming;
mod server;
mod timeout;

pub use server::Server;
