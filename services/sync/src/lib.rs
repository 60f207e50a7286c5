//! sync: brings the chain to the head that the consensus client chose, with blocks from peers.
//!
//! ```text
//!  consensus client ── forkchoiceUpdated ─► executor ── wanted head ─┐      ┌─► report
//!                                             ▲                      ▼      │
//!        import in order, make_head, condemn ─┴── actor ◄─► state (pure) ───┤
//!                                                   ▲                       └─► fetch ─► peers
//!                                                   └── check (threads) ◄──────────┘
//! ```
//!
//! * **Role.** Fetches the headers from the wanted head down to what is executed, then the bodies
//!   from several peers at the same time, and has the blocks executed in order. Hashes prove
//!   headers, and headers prove bodies, so no peer is believed.
//! * **Inputs.** The wanted head; sessions and answers of [`PeerSessionsApi`]; the executor's
//!   verdicts.
//! * **Outputs.** Blocks for the [`BlockSink`]; reports of peers that lie, are useless or slow;
//!   blocks that are invalid because an ancestor is; the progress.
//! * **Overload.** Headers in memory, bodies that wait or are under way, requests to a peer and
//!   blocks in the engine's mailbox are bounded ([`Config`]). A longer chain is kept as the hash of
//!   each 1024th header, and its headers are fetched once more. A peer that is late makes
//!   another one be asked.
//! * **Durable.** Nothing: a restart continues from the blocks that storage-writer has.
//! * **Threads.** `sync` decides and waits; few threads of the lowest priority check answers.
//!
//! [`PeerSessionsApi`]: tandem_proto::peer_sessions::PeerSessionsApi

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod actor;
mod check;
mod config;
mod fetch;
mod metrics;
mod pace;
mod service;
mod sink;
mod snap;
mod snap_run;
mod state;

pub use config::{Config, Mode};
pub use metrics::describe as describe_metrics;
pub use service::{BlockSync, Deps};
pub use sink::{BlockSink, Chosen, Pending, Prepared};
pub use state::{Import, Invalid, Verdict};
