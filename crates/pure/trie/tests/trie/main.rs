//! Tries against alloy-trie and against states kept in maps.
#![allow(clippy::unwrap_used)]

mod ahead;
mod blocks;
mod bulk;
mod foresee;
mod range;
mod revert;
mod shard;
mod sparse;
mod witness;
