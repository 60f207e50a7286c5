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
//! `Client` of `tandem_storage_writer_client` is a [`StorageApi`](tandem_proto::storage::StorageApi) over one connection, which is
//! made in the background and remade when it is lost. [`Server`] offers any `StorageApi` to such
//! clients, beside gRPC's own health service.
//!
//! **Few messages.** A read or a walk is one message in each direction, whatever the number of its
//! keys. Only a request beyond the limits of a message is made in parts, which are all of the same
//! base. Reads of threads that wait at the same time are made together.
//!
//! **Order.** Writes run one after the other in order of arrival, as in one process, where the
//! engine waits for each. So a write that its caller gave up is over before a later one begins, or
//! never begins. Reads overtake writes, and so does an executor that takes over.
//!
//! **Overload.** A limited number of calls run on threads; the others wait for their turn. The
//! number of calls on one connection is limited. The executor's reads and lists have lanes of their
//! own. A call holds its place while it is computed, not while its answer is sent. A stream from
//! which the client reads nothing for ten seconds ends. Trie diffs, which are advice, never delay
//! their sender: a diff that does not fit into the queue is dropped and counted.
//!
//! **Feed.** A follower has a stream of the canonical chain, with one block under way at a time
//! (`feed.rs`). Threads of the lowest priority read the blocks. The number of readers is limited.
//!
//! **The right to write.** A client with `lease_ms` that was granted an epoch
//! renews its lease periodically. Until the lease ends, the server grants no epoch to other
//! clients, which ask until they get one. A client that stops renewing is fenced by the next grant
//! (`Client::fenced`). A restart of the server begins the lease of the newest epoch anew, so its
//! executor has the time of one lease to come back. An epoch is proven by a random token, of which
//! the database has the hash.
//!
//! **Loss.** A call that was under way when the connection was lost is retried once over the next
//! one, if there is time. Work that was already done is not done twice. Only a request for an epoch
//! is never retried. Without a connection, or without an answer in time, a call fails with
//! [`Error::Unavailable`](tandem_proto::storage::Error::Unavailable).

mod admission;
mod call_scheduler;
mod direct;
mod download;
mod feed;
mod lease_table;
mod server;
mod streams;

pub use server::Server;
