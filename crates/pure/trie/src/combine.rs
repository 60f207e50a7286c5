//! State root from the sixteen subtries.

use crate::{
    Error, Malformed,
    decode::{Child, Decoded, decode},
    encode::{HASH_LEN, encode_branch, encode_extension, encode_leaf},
    nibbles::{DEPTH_MAX, put_nibble},
};
use tandem_primitives::{B256, Bytes, EMPTY_TRIE_ROOT, Shard, SubtrieRoot, keccak256};

/// Known part of a subtrie's top node, which stands at the path of the shard's one nibble.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Top {
    /// No top node: the shard holds no account.
    Empty,
    /// RLP of the top node.
    Node(Bytes),
    /// Hash of the top node alone.
    Hash(B256),
}

/// Combines the top nodes of the sixteen subtries, each of which stands at the path of its one
/// nibble. Returns the state root and the RLP of the root node at the empty path, `None` when the
/// trie is empty.
///
/// With a single subtrie there is no branch. The root is then the subtrie's top with the nibble
/// before its path, or an extension to it.
///
/// # Errors
/// Returns [`Error::Malformed`] when the only top node cannot be decoded.
pub fn combine(roots: &[SubtrieRoot; Shard::COUNT]) -> Result<(B256, Option<Vec<u8>>), Error> {
    combine_tops(&roots.each_ref().map(|root| root.clone().map_or(Top::Empty, Top::Node)))
}

/// Combines top nodes as [`combine`] does, where some may be known by their hash alone.
///
/// # Errors
/// Returns [`Error::Malformed`] when the only top node cannot be decoded, and [`Error::Missing`]
/// when it is known by its hash alone.
pub fn combine_tops(tops: &[Top; Shard::COUNT]) -> Result<(B256, Option<Vec<u8>>), Error> {
    let mut present = (0u8..).zip(tops).filter(|(_, top)| **top != Top::Empty);
    let Some((nibble, top)) = present.next() else {
        return Ok((EMPTY_TRIE_ROOT, None));
    };
    let mut rlp = Vec::new();
    if present.next().is_none() {
        let mut path = B256::ZERO;
        put_nibble(&mut path, 0, nibble);
        let Top::Node(top) = top else {
            return Err(Error::Missing { owner: None, key: path, depth: 1 });
        };
        lift(path, top, &mut rlp).map_err(|what| Error::Malformed(what, path, 1))?;
    } else {
        let (mut lens, mut references) = ([0; 16], [[0; 32]; 16]);
        let mut count = 0;
        for (len, top) in lens.iter_mut().zip(tops) {
            *len = match top {
                Top::Empty => continue,
                Top::Node(top) => write_reference(top, &mut references[count]),
                Top::Hash(hash) => {
                    references[count] = hash.0;
                    HASH_LEN
                }
            };
            count += 1;
        }
        encode_branch(&lens, &references[..count], &mut rlp);
    }
    Ok((keccak256(&rlp), Some(rlp)))
}

/// Builds the root from the only node at depth 1.
fn lift(path: B256, top: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
    let mut key = path;
    match decode(top)? {
        Decoded::Leaf(hex_prefix, value) => {
            if hex_prefix.write(&mut key, 1) != Some(DEPTH_MAX) || value.len() > 255 {
                return Err(Malformed::Path);
            }
            encode_leaf(&key, 0, value, out);
        }
        Decoded::Extension(hex_prefix, child) => {
            let end = hex_prefix.write(&mut key, 1).ok_or(Malformed::Path)?;
            match child {
                Child::None => return Err(Malformed::Child),
                Child::Hash(hash) => encode_extension(&key, 0, end, hash, out),
                Child::Embedded(rlp) => encode_extension(&key, 0, end, rlp, out),
            }
        }
        Decoded::Branch(_) => {
            let mut reference = [0; 32];
            let len = write_reference(top, &mut reference);
            encode_extension(&key, 0, 1, &reference[..usize::from(len)], out);
        }
    }
    Ok(())
}

/// Writes the reference that a parent holds to a node, and returns its length.
pub fn write_reference(rlp: &[u8], reference: &mut [u8; 32]) -> u8 {
    if rlp.len() < 32 {
        reference[..rlp.len()].copy_from_slice(rlp);
        return rlp.len() as u8;
    }
    *reference = keccak256(rlp).0;
    HASH_LEN
}
