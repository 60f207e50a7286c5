//! Vocabulary that every service shares: shards of the state key space, accounts of the flat state,
//! and the changes a block makes to state and tries. No I/O, no clock.
//!
//! All state is addressed by **hashed** keys (`keccak256(address)`, `keccak256(slot)`), from the
//! executor's layers down to the database. A key is therefore hashed once, where the EVM asks for
//! it.

#![forbid(unsafe_code)]

mod account;
mod block;
mod shard;
mod shard_set;
mod state_diff;
mod trie_diff;
mod walk;

pub use account::{Account, AccountDecodeError};
pub use block::{BlockId, BlockNumber};
pub use shard::Shard;
pub use shard_set::ShardSet;
pub use state_diff::{AccountUpdate, SlotUpdate, StateDiff};
pub use trie_diff::{NodeChange, SubtrieRoot, TrieDiff};
pub use walk::WalkTarget;

pub use alloy_primitives::{Address, B128, B256, B512, Bytes, U256, keccak256};

/// Code hash of an account without code, `keccak256("")` (yellow paper, section 4.1).
pub const EMPTY_CODE_HASH: B256 = alloy_primitives::KECCAK256_EMPTY;

/// Root of an empty trie, `keccak256(rlp(""))` (yellow paper, appendix D).
pub const EMPTY_TRIE_ROOT: B256 =
    alloy_primitives::b256!("0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421");
