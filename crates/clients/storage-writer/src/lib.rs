//! Client of storage-writer: a [`StorageApi`](tandem_proto::storage::StorageApi) over one
//! connection, which is made in the background and remade when it is lost.
//!
//! Reads of threads that wait at the same time are made together (`read_coalescer`). The right to
//! write is renewed in the background (`lease_keeper`). Trie diffs, which are advice, never delay
//! their sender: a diff that does not fit into the queue is dropped and counted. The other end is
//! `tandem_storage_writer::grpc`, which says how calls are ordered and what a loss means.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod client;
mod diffs;
mod download;
mod feed;
mod feed_log;
mod lease_keeper;
mod metrics;
mod parts;
mod read_coalescer;
mod remote_storage;

pub use client::{Client, ClientConfig};
pub use feed_log::{LoggedFeed, StreamEnd};
pub use metrics::describe_metrics;
pub use tandem_rpc::EndpointError;
