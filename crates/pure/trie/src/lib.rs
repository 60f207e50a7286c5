//! Merkle Patricia trie of Tandem: sparse tries that stay in memory from block to block, and a
//! bottom-up builder for whole tries. The state is split into sixteen shards.
//!
//! * [`SparseTrie`]: a trie with 32-byte hashed keys that holds only the paths needed so far. The
//!   rest is *blinded*: known by its reference alone.
//! * [`ShardTrie`]: one shard of the state: an account subtrie and the storage tries of its
//!   accounts. It requests the paths it lacks ([`ShardTrie::take_targets`]), takes their nodes
//!   ([`ShardTrie::reveal`]) and closes the block ([`ShardTrie::finish`]).
//! * [`combine`]: computes the state root from the sixteen subtries.
//! * [`apply_block`]: applies a whole block at once, over any [`NodeSource`].
//! * [`Witness`]: nodes of a state by hash, such as a block needs. [`PartialState`] applies that
//!   block to them.
//! * [`check_changes`]: checks that the changed nodes of a trie fit together and fit the nodes they
//!   replace.
//! * [`check_range`]: checks that a list of leaves is all of a range, on a proof of its ends.
//! * [`TrieBuilder`]: builds all nodes of a trie from its sorted keys.
//! * [`Lanes`]: Keccak-256 of many byte strings at a time.
//! * [`list_root`]: computes the root of a list, such as the receipts of a block. [`ListTrie`] does
//!   so while the list still grows.
//! * [`trie_root`]: computes the root of a trie whose keys have any length.
//!
//! Nodes, references and roots are those of the yellow paper, appendix D ("Modified Merkle Patricia
//! Tree"). A *path* is a sequence of nibbles, one per byte. A node *stands alone* (is stored under
//! its path) when it is the top of its trie or its RLP has at least 32 bytes. Any other node is
//! embedded in its parent.
//!
//! The crate performs no I/O and reads no clock. Hashing of many nodes runs on the rayon pool.
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
mod range;
mod shard;
mod sparse;
mod whole;
mod witness;

pub use account::{account_leaf, decode_account_leaf, storage_root};
pub use apply::{Applied, ApplyError, NodeSink, NodeSource, apply_block};
pub use builder::{OutOfOrder, TrieBuilder};
pub use changes::{ChangeFault, ChangedNode, LeafSide, LeafSink, TopHashes, check_changes};
pub use combine::combine;
pub use decode::{child_depth, leaf_value};
pub use error::{Error, Malformed};
pub use hashing::Scratch;
pub use keccak::{HashBatch, Lanes, hash_batch};
pub use list::{ListTrie, list_root};
pub use range::{
    RangeFault, check_range, differing_children, key_after, leaves_in, node_at, path_to,
};
pub use shard::{AheadLimits, Counts, ShardTrie};
pub use sparse::{AccountTrie, Blinded, Lookup, SparseTrie, StorageTrie};
pub use whole::trie_root;
pub use witness::{NodePlace, PartialState, Witness, WitnessError, keccak256_all};
