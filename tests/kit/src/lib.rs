//! Test kit of the crates below the services: a change in a service compiles none of their tests
//! again.
//!
//! * [`geth`] runs geth as a peer, where it is installed.
//! * [`network`] is a TCP proxy whose connections can be disturbed.
//! * [`world`] makes random states and blocks, with roots by alloy-trie.
//! * [`trie`] is a model that tries are compared with.
//! * [`hooked`] puts hooks and lies before workers.
//! * [`messages`] makes random values of the services' contracts.
//! * [`wire`] is a peer that breaks the protocol as it is told.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "an expectation that fails here is a test that fails")]
#![allow(missing_docs, reason = "helpers of tests")]

pub mod geth;
pub mod hooked;
pub mod messages;
pub mod network;
pub mod trie;
pub mod wire;
pub mod world;

/// Returns the last lines of a log that are not blank.
pub fn last_lines(log: &str, count: usize) -> Vec<&str> {
    let lines: Vec<_> = log.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(count)..].to_vec()
}
