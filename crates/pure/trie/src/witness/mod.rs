//! Witness: nodes of a state, found by their hashes, and lookups through them.

mod error;
mod partial;

pub use error::{NodePlace, WitnessError};
pub use partial::PartialState;

use crate::{
    Malformed,
    account::decode_account_leaf,
    decode::{Child, Decoded, branch_child, decode},
    keccak::hash_batch,
    nibbles::{DEPTH_MAX, nibble, prefix},
};
use alloy_primitives::map::B256Map;
use alloy_rlp::Decodable;
use rayon::prelude::*;
use std::fmt;
use tandem_primitives::{Account, B256, Bytes, EMPTY_TRIE_ROOT, U256, keccak256};

/// Number of byte strings that one thread hashes at a time.
const CHUNK: usize = 512;

/// Trie nodes by hash: a part of one or more tries, as chosen by the witness's author.
///
/// Nothing in it is trusted. A node is found by the hash that was computed from its bytes, and is
/// decoded when it is used. Nodes that no path leads to are never read.
pub struct Witness {
    nodes: Vec<Bytes>,
    by_hash: B256Map<u32>,
}

/// Reference to a node: its entry in the parent, or the state root.
#[derive(Clone, Copy)]
enum Reference<'a> {
    Hash(B256),
    /// Node itself, embedded in the node with this hash.
    Node(&'a [u8], B256),
}

/// Callback that takes the nodes that stand alone, on the way down: depth and RLP.
type Visit<'a> = &'a mut dyn FnMut(usize, &[u8]);

impl fmt::Debug for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Witness").field("nodes", &self.nodes.len()).finish_non_exhaustive()
    }
}

impl Witness {
    /// Creates a witness from the RLP of nodes in any order. Hashes all of them, on the rayon pool.
    pub fn new(nodes: Vec<Bytes>) -> Self {
        let hashes = keccak256_all(&nodes);
        let mut by_hash = B256Map::with_capacity_and_hasher(nodes.len(), Default::default());
        by_hash.extend(hashes.into_iter().zip(0..));
        Self { nodes, by_hash }
    }

    /// Returns the number of different nodes.
    pub fn len(&self) -> usize {
        self.by_hash.len()
    }

    /// Returns whether there is no node.
    pub fn is_empty(&self) -> bool {
        self.by_hash.is_empty()
    }

    /// Returns the node with this hash.
    pub fn node(&self, hash: &B256) -> Option<&Bytes> {
        self.nodes.get(*self.by_hash.get(hash)? as usize)
    }

    /// Returns an account by its hashed address, with its storage root, from the state with this
    /// root. Returns `None` when the state has no such account.
    ///
    /// # Errors
    /// Returns [`WitnessError::Missing`] or [`WitnessError::Malformed`] for nodes on the way to it,
    /// and [`WitnessError::Leaf`] for an invalid account.
    pub fn account(
        &self,
        state_root: B256,
        address_hash: &B256,
    ) -> Result<Option<(Account, B256)>, WitnessError> {
        let leaf = self.value(None, state_root, address_hash, &mut |_, _| {})?;
        let account = leaf.map(|leaf| decode_account_leaf(leaf).ok_or(Malformed::Value));
        account.transpose().map_err(|what| WitnessError::Leaf {
            owner: None,
            key: *address_hash,
            what,
        })
    }

    /// Returns a slot by its hashed number from the storage trie with this root, or zero when it is
    /// not set. The account is used for errors only.
    ///
    /// # Errors
    /// Returns the errors of [`Witness::account`], with [`WitnessError::Leaf`] for an invalid slot.
    pub fn slot(
        &self,
        address_hash: &B256,
        storage_root: B256,
        slot: &B256,
    ) -> Result<U256, WitnessError> {
        let Some(mut leaf) = self.value(Some(address_hash), storage_root, slot, &mut |_, _| {})?
        else {
            return Ok(U256::ZERO);
        };
        let value =
            U256::decode(&mut leaf).ok().filter(|value| leaf.is_empty() && !value.is_zero());
        value.ok_or(WitnessError::Leaf {
            owner: Some(*address_hash),
            key: *slot,
            what: Malformed::Value,
        })
    }

    /// Returns a key's value in the trie with this root.
    fn value<'a>(
        &'a self,
        owner: Option<&B256>,
        root: B256,
        key: &B256,
        visit: Visit<'_>,
    ) -> Result<Option<&'a [u8]>, WitnessError> {
        match root {
            EMPTY_TRIE_ROOT => Ok(None),
            _ => self.follow(owner, Reference::Hash(root), 0, key, visit),
        }
    }

    /// Follows the key from a node at `depth` down to the key's value. Returns `None` when the way
    /// ends elsewhere. Every step leads at least one nibble down, so there are at most 64.
    fn follow<'a>(
        &'a self,
        owner: Option<&B256>,
        mut reference: Reference<'a>,
        mut depth: usize,
        key: &B256,
        visit: Visit<'_>,
    ) -> Result<Option<&'a [u8]>, WitnessError> {
        loop {
            let place = |hash| NodePlace::new(owner.copied(), key, depth, hash);
            let (rlp, hash) = match reference {
                Reference::Node(rlp, hash) => (rlp, hash),
                Reference::Hash(hash) => {
                    let node =
                        self.node(&hash).ok_or_else(|| WitnessError::Missing(place(hash)))?;
                    visit(depth, node);
                    (node.as_ref(), hash)
                }
            };
            let (child, end) = match step(rlp, depth, key) {
                Ok(Step::Value(value)) => return Ok(Some(value)),
                Ok(Step::Absent) => return Ok(None),
                Ok(Step::Child(child, end)) => (child, end),
                Err(what) => return Err(WitnessError::Malformed(what, place(hash))),
            };
            (reference, depth) = match child {
                Child::None => return Ok(None),
                Child::Hash(child) => (Reference::Hash(child.into()), end),
                Child::Embedded(child) => (Reference::Node(child, hash), end),
            };
        }
    }
}

/// Result of one step from a node towards a key.
enum Step<'a> {
    Value(&'a [u8]),
    Absent,
    /// Child and its depth.
    Child(Child<'a>, usize),
}

fn step<'a>(rlp: &'a [u8], depth: usize, key: &B256) -> Result<Step<'a>, Malformed> {
    if depth < DEPTH_MAX
        && let Some(child) = branch_child(rlp, nibble(key, depth))
    {
        return Ok(Step::Child(child, depth + 1));
    }
    match decode(rlp)? {
        Decoded::Branch(_) if depth == DEPTH_MAX => Err(Malformed::Path),
        Decoded::Branch(children) => {
            Ok(Step::Child(children[usize::from(nibble(key, depth))], depth + 1))
        }
        Decoded::Extension(hex_prefix, child) => {
            let mut path = prefix(key, depth);
            let end = hex_prefix.write(&mut path, depth).filter(|&end| end < DEPTH_MAX);
            let end = end.ok_or(Malformed::Path)?;
            let ours = path == prefix(key, end);
            Ok(if ours { Step::Child(child, end) } else { Step::Absent })
        }
        Decoded::Leaf(hex_prefix, value) => {
            let mut path = prefix(key, depth);
            if hex_prefix.write(&mut path, depth) != Some(DEPTH_MAX) {
                return Err(Malformed::Path);
            }
            Ok(if path == *key { Step::Value(value) } else { Step::Absent })
        }
    }
}

/// Returns Keccak-256 of each of the byte strings, computed several at a time and on the rayon
/// pool.
pub fn keccak256_all(strings: &[Bytes]) -> Vec<B256> {
    strings.par_chunks(CHUNK).flat_map_iter(hash_chunk).collect()
}

fn hash_chunk(strings: &[Bytes]) -> Vec<B256> {
    let len: usize = strings.iter().map(|string| string.len()).sum();
    if u32::try_from(len).is_err() {
        return strings.iter().map(keccak256).collect();
    }
    let (mut bytes, mut ends) = (Vec::with_capacity(len), Vec::with_capacity(strings.len()));
    for string in strings {
        bytes.extend_from_slice(string);
        ends.push(bytes.len() as u32);
    }
    let mut hashes = Vec::new();
    hash_batch(&bytes, &ends, &mut hashes);
    hashes
}
