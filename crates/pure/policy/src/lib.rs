//! How the proof pipeline goes about its work, where more than one way is worth choosing.
//!
//! A policy changes how soon and in what portions work is handed on, never what comes out: state
//! root, receipts and verdict are the same under every one. Each is a value with a pure decision,
//! written as text the same way in the configuration, on the command line, in calls and in traces:
//!
//! | policy | decides | values |
//! |---|---|---|
//! | [`Batching`] | state updates whose keys are asked for together | `none`, `fixed{16,500}`, `pressure{4,10}`, `window{100}`, `drain` |
//! | [`Chunking`] | whether a dispatch is cut into portions for several workers | `always`, `while-idle`, `never` |
//! | [`TransitionFlush`] | transactions whose changes travel as one update | `every-tx`, `fixed{8}`, `adaptive{500000,5,2}` |
//! | [`ReceiptsRoot`] | when and where the receipts root is computed | `incremental`, `at-end`, `background` |
//!
//! [`Policies`] are all of them, [`LivePolicies`] those of a running node. Beside them stands
//! [`Lookups`], how discovery looks for nodes: part of discovery's configuration, chosen at its start.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod batching;
mod chunking;
mod error;
mod flush;
mod live;
mod lookups;
mod policies;
mod receipts;
mod text;

pub use batching::{Batch, Batching, Next};
pub use chunking::{ChunkPlan, Chunking};
pub use error::Error;
pub use flush::TransitionFlush;
pub use live::LivePolicies;
pub use lookups::{LookupPauses, Lookups};
pub use policies::Policies;
pub use receipts::ReceiptsRoot;
