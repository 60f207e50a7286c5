//! Finds the shards in which a refused block differs. The leader's root node, which the root in the
//! header proves, has the hash of each shard.

use alloy_rlp::{Header, PayloadView};
use tandem_primitives::{B256, Bytes, keccak256};
use tandem_proto::{
    feed::{LeaderApi, WrongRoot},
    snap::{NodePaths, StateItems, StateRequest},
};

/// Size of the answer that is asked for: a root node has 532 bytes at most.
const ANSWER_BYTES: u64 = 1 << 10;

/// Describes a wrong root, with the shards that differ if the leader has the root node.
pub fn describe(leader: Option<&dyn LeaderApi>, wrong: &WrongRoot) -> String {
    let WrongRoot { header, computed, shards, .. } = wrong;
    let text = format!("state root {computed}, its header has {header}");
    match leader.and_then(|leader| root_children(leader, *header)) {
        None => text,
        Some(children) => {
            let differ = (0..16).filter(|shard| children[*shard] != shards[*shard]);
            let differ: Vec<String> = differ.map(|shard| format!("{shard:x}")).collect();
            format!(
                "{text}; shards that differ (first nibble of the hashed address): {}",
                differ.join(", ")
            )
        }
    }
}

/// Returns the hashes in the root node of a state, `None` if the node is not to be had or is no
/// branch.
fn root_children(leader: &dyn LeaderApi, root: B256) -> Option<[Option<B256>; 16]> {
    let paths = vec![NodePaths { owner: None, paths: vec![Bytes::new()] }];
    let request = StateRequest::Nodes { root, paths, bytes: ANSWER_BYTES };
    let Ok(StateItems::Nodes(nodes)) = leader.state_items(&request) else { return None };
    let node = nodes.into_iter().next().filter(|node| keccak256(node) == root)?;
    children(&node)
}

/// Returns the hashes of the children of a branch.
fn children(node: &[u8]) -> Option<[Option<B256>; 16]> {
    let PayloadView::List(items) = Header::decode_raw(&mut &*node).ok()? else { return None };
    if items.len() != 17 {
        return None;
    }
    let mut children = [None; 16];
    for (child, item) in children.iter_mut().zip(items) {
        let mut rest = item;
        *child = match Header::decode_bytes(&mut rest, false) {
            Ok(hash) if hash.len() == 32 => Some(B256::from_slice(hash)),
            Ok(_) => None,
            // A node shorter than a hash stands in its parent itself.
            Err(_) => Some(keccak256(item)),
        };
    }
    Some(children)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_branch_names_its_children() {
        let mut items = Vec::new();
        for nibble in 0..16u8 {
            match nibble % 2 {
                0 => items.extend_from_slice(&alloy_rlp::encode(B256::repeat_byte(nibble + 1))),
                _ => items.push(0x80),
            }
        }
        items.push(0x80);
        let mut node = Vec::new();
        Header { list: true, payload_length: items.len() }.encode(&mut node);
        node.extend_from_slice(&items);
        let found = children(&node).unwrap();
        assert_eq!((found[0], found[1]), (Some(B256::repeat_byte(1)), None));
        assert_eq!(children(&[0xc2, 0x80, 0x80]), None, "a short node is no branch");
        assert_eq!(children(&[0xff]), None);
    }
}
