//! Helpers shared by the tests of the cluster.
//!
//! * [`Builder`] makes valid blocks for every fork from Paris to Osaka. It is an oracle: it runs
//!   the EVM over its own map of accounts and computes every root from the whole sorted state. It
//!   shares neither tries nor layers nor storage with the code under test.
//! * [`Node`] is a cluster on a temporary directory, driven over HTTP like a consensus client
//!   would.
//! * [`Corpus`] reads recorded payloads.
//! * [`Process`] and [`Running`] run the `tandem` binary, and [`Six`] runs `tandem cluster`.
//! * [`Wired`] runs processes with a network between them that can be disturbed.
//! * [`Geth`] runs geth's discovery.
//! * [`Mixed`] makes transactions for pools, and [`driver`] plays the consensus client of any
//!   execution client.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "an expectation that fails here is a test that fails")]

mod blobs;
mod builder;
mod client;
pub mod contracts;
mod corpus;
pub mod driver;
mod endless;
mod endpoints;
mod forks;
mod gated;
mod geth;
mod mixed;
mod node;
mod payload;
mod process;
mod running;
mod single;
mod six;
mod transactions;
mod wait;
mod wired;
mod world;

pub use blobs::{BlobTransaction, Network, TestBlob, blob_transaction};
pub use builder::{Builder, Built, Contents};
pub use client::{Answer, Client, PayloadStatus, RpcError, decode_status};
pub use corpus::{Corpus, Recorded, repository};
pub use endless::{Endless, EndlessBlock};
pub use endpoints::{Endpoints, send_forkchoice, send_head, send_payload};
pub use forks::{FORKS, Forks, GENESIS_TIME};
pub use gated::GatedNode;
pub use geth::Geth;
pub use mixed::Mixed;
pub use node::Node;
pub use payload::{block_hash, new_payload, reseal};
pub use process::Process;
pub use running::{Running, signal};
pub use single::{Service, SingleExecutor, init};
pub use six::Six;
pub use tandem_testkit::hooked::{Hooked, Hooks, Liar};
pub use transactions::{Transfer, signed_call};
pub use wait::wait;
pub use wired::{Wired, Wiring, ends_of_logs};
pub use world::{Account, World};

/// Returns whether `TANDEM_FULL=1` asks for the full run, however long it takes.
pub fn is_full_run() -> bool {
    std::env::var("TANDEM_FULL").is_ok_and(|value| value == "1")
}
