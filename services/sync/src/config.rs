use crate::state::Limits;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Way in which a node gets its first state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Downloads the state of a recent block from peers that serve states.
    Snap,
    /// Executes all blocks.
    Full,
}

/// Limits on what sync asks peers for, and on what it keeps in memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Way in which a node with nothing but genesis gets a state.
    pub mode: Mode,
    /// Number of blocks below the head that such a node executes rather than downloads a state.
    pub snap_blocks_min: u64,
    /// Distance from the head of the block whose state is downloaded, at most 255. Peers serve the
    /// states of 128 blocks, so with 64 half of that time is left.
    pub pivot_depth: u64,
    /// Number of headers in memory, at least 2048. Those of a longer chain are fetched twice.
    pub headers_max: usize,
    /// Number of blocks above the newest executed one whose bodies are fetched.
    pub blocks_ahead_max: usize,
    /// Bytes of bodies that wait or are under way.
    pub body_bytes_max: usize,
    /// Number of bodies of one request, at most 1024.
    pub bodies_per_request_max: usize,
    /// Number of requests for bodies to one peer under way.
    pub requests_per_peer_max: u32,
    /// Number of blocks that are prepared or executed at the same time.
    pub imports_max: usize,
    /// Milliseconds in which a peer has to answer. A peer that is late twice in a row loses its
    /// session.
    pub request_ms: u32,
    /// Milliseconds after which another peer is asked for the block that the executor waits for.
    pub hedge_ms: u32,
    /// Milliseconds without a header after which a head is given up if there is a newer one.
    pub stalled_ms: u32,
    /// Number of executed blocks after which the newest becomes the head.
    pub head_every: u32,
    /// Number of threads that check headers and bodies.
    pub check_threads: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mode: Mode::Snap,
            snap_blocks_min: 1024,
            pivot_depth: 64,
            headers_max: 16_384,
            blocks_ahead_max: 1024,
            body_bytes_max: 64 << 20,
            bodies_per_request_max: 128,
            requests_per_peer_max: 2,
            imports_max: 8,
            request_ms: 10_000,
            hedge_ms: 2_000,
            stalled_ms: 20_000,
            head_every: 64,
            check_threads: 2,
        }
    }
}

impl Config {
    /// Returns the limits of the decisions. Values that would stop sync are raised.
    pub(crate) fn limits(&self) -> Limits {
        let millis = |millis: u32| Duration::from_millis(millis.max(1).into());
        Limits {
            headers_max: self.headers_max.max(2048),
            blocks_ahead_max: self.blocks_ahead_max.max(1),
            body_bytes_max: self.body_bytes_max,
            bodies_per_request_max: self.bodies_per_request_max.clamp(1, 1024),
            requests_per_peer_max: self.requests_per_peer_max.max(1),
            imports_max: self.imports_max.max(1),
            request: millis(self.request_ms),
            hedge: millis(self.hedge_ms),
            stalled: millis(self.stalled_ms),
        }
    }
}
