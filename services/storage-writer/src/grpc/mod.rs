//! storage-writer between processes.
//!
//! ```text
//! executor, workers: threads that may wait          storage-writer
//!   Client ── a call each ─────────────► Server ──► lane ──► a thread ──► StorageApi behind it
//!     └─ trie diffs: bounded queue ────► (PutTrieDiff)
//!          ◄── pending blocks, a trie diff: streams of parts
//!   health Watch: says that the connection lives, ends with it
//! ```
//!
//! [`Client`] is a [`StorageApi`](tandem_proto::storage::StorageApi) over one connection, made in
//! the background and made again when it is lost; [`Server`] offers any `StorageApi` to such
//! clients, beside gRPC's own health service.
//!
//! **Few messages.** A read or a walk is one message there and one back, whatever the number of its
//! keys; only one beyond the limits of a message is made in parts, which are of the same base. Reads
//! of threads that wait at the same time are made together.
//!
//! **Order.** Writes are done in the order in which they came, one after the other, as in one process,
//! where the engine waits for each. So a write whose caller gave it up is over before a later one
//! begins, or is never begun. Reads pass writes, and so does the executor that takes over.
//!
//! **Overload.** So many calls run on threads, the others wait for their turn; the number of calls
//! on one connection is limited. The executor's reads and lists have lanes of their own. A call holds
//! its place while it is computed, not while it is sent; a stream of which the client takes nothing
//! for ten seconds ends. Trie diffs, which are advice, never keep their sender waiting: what
//! does not fit into the queue is dropped and counted.
//!
//! **The right to write.** A client with [`ClientConfig::lease_ms`] that was granted an epoch says again
//! and again that it is there; so long the server grants none to others, who ask until they get one.
//! Who falls silent is fenced off by the next one ([`Client::fenced`]). A restart of the server begins the
//! lease of the newest epoch anew, so its executor has the time of one lease to come back. An epoch is
//! proven by a random token, of which the database has the hash.
//!
//! **Loss.** A call that was under way when the connection went is made once more over the next one,
//! if there is time; what had been done already is not done twice. Only an epoch is never asked for
//! twice. Without a connection, or without an answer in time, a call fails with
//! [`Error::Unavailable`](tandem_proto::storage::Error::Unavailable).

mod client;
mod diffs;
mod lanes;
mod lease;
mod parts;
mod remote;
mod server;
mod streams;
mod tenure;
mod together;

pub use client::{Client, ClientConfig};
pub use server::Server;
pub use tandem_rpc::EndpointError;
