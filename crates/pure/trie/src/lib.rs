//! The Merkle Patricia trie of Tandem: sparse tries that live in memory from block to block, cut
//! into sixteen shards, and a bottom-up builder for whole tries.
//!
//! * [`SparseTrie`]: one trie with 32-byte hashed keys of which only the paths that were needed
//!   are in memory; everything else is *blinded*, known by its reference alone.
//! * [`ShardTrie`]: one shard of the state, which is an account subtrie and the storage tries of
//!   its accounts. It asks for the paths it lacks ([`ShardTrie::take_targets`]), takes the nodes
//!   ([`ShardTrie::reveal`]) and closes the block ([`ShardTrie::finish`]).
//! * [`combine`]: the state root from the sixteen subtries.
//! * [`apply_block`]: a whole block at once, over any [`NodeSource`].
//! * [`Witness`]: some nodes of a state by hash, such as a block needs, and [`PartialState`]: that
//!   block applied to them.
//! * [`check_changes`]: whether the changed nodes of a trie fit together and with what they replace.
//! * [`TrieBuilder`]: all nodes of a trie from its sorted keys.
//! * [`Lanes`]: Keccak-256 of many byte strings at a time.
//! * [`list_root`]: the root of a list, such as a block's receipts; [`ListTrie`]: while it still grows.
//! * [`trie_root`]: the root of a trie whose keys have any length.
//!
//! Nodes, references and roots are those of the yellow paper, appendix D ("Modified Merkle
//! Patricia Tree"). A *path* is a sequence of nibbles, one a byte. A node *stands alone* (is
//! stored under its path) when its RLP has at least 32 bytes or when it is the top of its trie;
//! any other is embedded in its parent.
//!
//! No I/O, no clock. Hashing of many nodes runs on the rayon pool.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod account;
mod apply;
mod arena;
mod builder;
mod changes;
mod combine;
mod decode;
mod encode;
mod error;
mod hashing;
mod keccak;
mod list;
mod nibbles;
mod node;
mod order;
mod shard;
mod sparse;
mod whole;
mod witness;

pub use account::{account_leaf, storage_root};
pub use apply::{Applied, ApplyError, NodeSink, NodeSource, apply_block};
pub use builder::{OutOfOrder, TrieBuilder};
pub use changes::{ChangeFault, ChangedNode, LeafSide, LeafSink, TopHashes, check_changes};
pub use combine::combine;
pub use decode::{child_depth, leaf_value};
pub use error::{Error, Malformed};
pub use hashing::Scratch;
pub use keccak::{Lanes, hash_batch};
pub use list::{ListTrie, list_root};
pub use shard::{AheadLimits, Counts, ShardTrie};
pub use sparse::{AccountTrie, Blinded, Lookup, SparseTrie, StorageTrie};
pub use whole::trie_root;
pub use witness::{NodePlace, PartialState, Witness, WitnessError, keccak256_all};
