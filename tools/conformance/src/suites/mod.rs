//! The fixture formats, one module each.

mod chain;
mod execution_apis;
mod hivechain;
mod kzg;
mod mainnet_blocks;
mod rlp;
mod support;
#[cfg(test)]
mod tests;
mod transaction;
mod trie;
mod witness;

pub use execution_apis::ExecutionApis;

use crate::Suite;

/// All suites. A file belongs to the first suite that takes it.
pub const ALL: &[&dyn Suite] = &[
    &chain::Engine,
    &chain::Blocks,
    &trie::Tries,
    &rlp::Rlp,
    &transaction::Transactions,
    &mainnet_blocks::MainnetBlocks,
    &hivechain::Hivechain,
    &witness::Witnesses,
    &ExecutionApis,
    &kzg::Kzg,
];
