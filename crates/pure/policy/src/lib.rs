//! Policies of the proof pipeline, where there is more than one way worth choosing.
//!
//! A policy changes how soon and in what portions work is handed on, but never the result. State
//! root, receipts and verdict are the same under every policy. Each policy is a value with a pure
//! decision. Its text form is the same in the configuration, on the command line, in calls and in
//! traces:
//!
//! | policy | decides | values |
//! |---|---|---|
//! | [`Batching`] | state updates whose keys are asked for together | `none`, `fixed{16,500}`, `pressure{4,10}`, `window{100}`, `drain` |
//! | [`Chunking`] | whether a dispatch is cut into portions for several workers | `always`, `while-idle`, `never` |
//! | [`Dispatching`] | whether a worker takes messages while a batch is read | `streaming`, `blocking` |
//! | [`TransitionFlush`] | transactions whose changes travel as one update | `every-tx`, `fixed{8}`, `while-empty{5}`, `adaptive{500000,5,2}` |
//! | [`ReceiptsRoot`] | when and where the receipts root is computed | `incremental`, `at-end`, `background` |
//! | [`StateReads`] | how values that are not in memory are read | `one-by-one`, `foretold`, `rounds` |
//! | [`AccessLists`] | whether a block's access list drives its execution | `checked`, `followed` |
//!
//! [`Policies`] holds all of them, [`LivePolicies`] those of a running node. In addition,
//! [`Lookups`] is the way discovery looks for nodes. It is part of discovery's configuration and
//! chosen at its start.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod access_lists;
mod batching;
mod chunking;
mod dispatching;
mod error;
mod flush;
mod live;
mod lookups;
mod policies;
mod reads;
mod receipts;
mod text;

pub use access_lists::AccessLists;
pub use batching::{Batch, Batching, Next};
pub use chunking::{ChunkPlan, Chunking};
pub use dispatching::Dispatching;
pub use error::Error;
pub use flush::TransitionFlush;
pub use live::LivePolicies;
pub use lookups::{LookupPauses, Lookups};
pub use policies::Policies;
pub use reads::StateReads;
pub use receipts::ReceiptsRoot;
