//! The protocol snap: requests of peers as parts of a state, and the own requests as messages.

use crate::{answer::fill, chain::BlockSource, error::SessionError};
use tandem_eth_wire::snap::{Leaf as WireLeaf, Message, full_account, slim_account};
use tandem_primitives::{B256, Bytes};
use tandem_proto::{
    peer_sessions::Fetched,
    snap::{Leaf, NodePaths, StateItems, StateRequest},
};

/// Highest key.
const LAST: B256 = B256::repeat_byte(0xff);

/// Returns the answer to a request.
///
/// # Errors
/// The message is no request, or one that the protocol forbids.
pub(crate) fn answer(source: &dyn BlockSource, request: Message) -> Result<Message, SessionError> {
    match request {
        Message::GetAccountRange { id, root, start, limit, bytes } => {
            let request = StateRequest::Accounts { root, start, limit, bytes };
            let StateItems::Accounts { leaves, proof } = source.state_items(&request) else {
                return Ok(Message::AccountRange { id, accounts: Vec::new(), proof: Vec::new() });
            };
            let slim = |Leaf { key, value }: Leaf| {
                Some(WireLeaf { hash: key, value: slim_account(&value)? })
            };
            // An account that is malformed here would make the whole range wrong.
            let accounts = leaves.into_iter().map(slim).collect::<Option<Vec<_>>>();
            let proof = if accounts.is_some() { proof } else { Vec::new() };
            Ok(Message::AccountRange { id, accounts: accounts.unwrap_or_default(), proof })
        }
        Message::GetStorageRanges { id, root, accounts, start, limit, bytes } => {
            let start = padded(&start).unwrap_or_default();
            let limit = padded(&limit).unwrap_or(LAST);
            let request = StateRequest::Slots { root, accounts, start, limit, bytes };
            let StateItems::Slots { tries, proof } = source.state_items(&request) else {
                return Ok(Message::StorageRanges { id, slots: Vec::new(), proof: Vec::new() });
            };
            let leaf = |Leaf { key, value }: Leaf| WireLeaf { hash: key, value };
            let slots = tries.into_iter().map(|leaves| leaves.into_iter().map(leaf).collect());
            Ok(Message::StorageRanges { id, slots: slots.collect(), proof })
        }
        Message::GetByteCodes { id, hashes, bytes } => {
            let codes = match source.state_items(&StateRequest::Codes { hashes, bytes }) {
                StateItems::Codes(codes) => codes,
                _ => Vec::new(),
            };
            Ok(Message::ByteCodes { id, codes })
        }
        Message::GetTrieNodes { id, root, paths, bytes } => {
            let paths = paths.iter().map(|set| node_paths(set)).collect::<Option<Vec<_>>>();
            let paths = paths.ok_or(SessionError::Unexpected("set of paths without a path"))?;
            let nodes = match source.state_items(&StateRequest::Nodes { root, paths, bytes }) {
                StateItems::Nodes(nodes) => nodes,
                _ => Vec::new(),
            };
            Ok(Message::TrieNodes { id, nodes })
        }
        Message::GetBlockAccessLists { id, hashes, bytes } => {
            let lists = fill(&hashes, bytes, |hash| Some(source.access_list(hash)));
            Ok(Message::BlockAccessLists { id, lists })
        }
        _ => Err(SessionError::Unexpected("answer that was not asked for")),
    }
}

/// Reads an end of a range: empty, or a key with leading zeros left out.
fn padded(bytes: &Bytes) -> Option<B256> {
    (!bytes.is_empty()).then(|| B256::left_padding_from(bytes))
}

/// Reads a set of paths: one of the accounts' trie, or an account and paths in its storage. Returns
/// `None` if it is empty.
fn node_paths(set: &[Bytes]) -> Option<NodePaths> {
    match set {
        [] => None,
        [path] => Some(NodePaths { owner: None, paths: vec![nibbles(path)] }),
        [owner, paths @ ..] => {
            let owner = B256::left_padding_from(&owner[owner.len().saturating_sub(32)..]);
            let paths = paths.iter().map(nibbles).collect();
            Some(NodePaths { owner: Some(owner), paths })
        }
    }
}

/// Reads a path in hex-prefix form (yellow paper, appendix C), one nibble per byte. A path to a value
/// is longer than any path to a node.
fn nibbles(compact: &Bytes) -> Bytes {
    let Some((first, rest)) = compact.split_first() else { return Bytes::new() };
    let odd = (first & 0x10 != 0).then_some(first & 0x0f);
    let rest = rest.iter().flat_map(|byte| [byte >> 4, byte & 0x0f]);
    let mut path: Vec<u8> = odd.into_iter().chain(rest).collect();
    if first & 0xe0 != 0 {
        path.resize(path.len().max(65), 0);
    }
    path.into()
}

/// Writes a path in hex-prefix form.
fn compact(nibbles: &[u8]) -> Bytes {
    let (pairs, odd) = match nibbles {
        [first, rest @ ..] if nibbles.len() % 2 == 1 => (rest, 0x10 | first),
        _ => (nibbles, 0),
    };
    let pairs = pairs.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]);
    [odd].into_iter().chain(pairs).collect()
}

/// Returns the message that asks a peer for a part of a state.
pub(crate) fn request(id: u64, request: StateRequest) -> Message {
    match request {
        StateRequest::Accounts { root, start, limit, bytes } => {
            Message::GetAccountRange { id, root, start, limit, bytes }
        }
        StateRequest::Slots { root, accounts, start, limit, bytes } => {
            let key = |key: B256, absent| match key == absent {
                true => Bytes::new(),
                false => Bytes::copy_from_slice(key.as_slice()),
            };
            let (start, limit) = (key(start, B256::ZERO), key(limit, LAST));
            Message::GetStorageRanges { id, root, accounts, start, limit, bytes }
        }
        StateRequest::Codes { hashes, bytes } => Message::GetByteCodes { id, hashes, bytes },
        StateRequest::Nodes { root, paths, bytes } => {
            let mut sets = Vec::new();
            for NodePaths { owner, paths } in paths {
                let paths = paths.iter().map(|path| compact(path));
                match owner {
                    None => sets.extend(paths.map(|path| vec![path])),
                    Some(owner) => {
                        let owner = Bytes::copy_from_slice(owner.as_slice());
                        sets.push([owner].into_iter().chain(paths).collect());
                    }
                }
            }
            Message::GetTrieNodes { id, root, paths: sets, bytes }
        }
    }
}

/// Answer of a peer, with the number of its request.
///
/// # Errors
/// The message is no answer to a request for a part of a state, or an account is malformed.
pub(crate) fn fetched(message: Message) -> Result<(u64, Fetched), SessionError> {
    let (id, items) = match message {
        Message::AccountRange { id, accounts, proof } => {
            let full = |WireLeaf { hash, value }: WireLeaf| {
                Some(Leaf { key: hash, value: full_account(&value)? })
            };
            let leaves = accounts.into_iter().map(full).collect::<Option<_>>();
            let leaves = leaves.ok_or(SessionError::Unexpected("malformed account"))?;
            (id, StateItems::Accounts { leaves, proof })
        }
        Message::StorageRanges { id, slots, proof } => {
            let leaf = |WireLeaf { hash, value }: WireLeaf| Leaf { key: hash, value };
            let tries = slots.into_iter().map(|leaves| leaves.into_iter().map(leaf).collect());
            (id, StateItems::Slots { tries: tries.collect(), proof })
        }
        Message::ByteCodes { id, codes } => (id, StateItems::Codes(codes)),
        Message::TrieNodes { id, nodes } => (id, StateItems::Nodes(nodes)),
        _ => return Err(SessionError::Unexpected("answer that was not asked for")),
    };
    Ok((id, Fetched::State(items)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_as_they_are_written() {
        for length in [0, 1, 2, 5, 63, 64] {
            let path: Bytes = (0..length).map(|at| at as u8 % 16).collect();
            assert_eq!(nibbles(&compact(&path)), path);
        }
        assert_eq!(compact(&[]), Bytes::from_static(&[0]));
        assert_eq!(compact(&[11]), Bytes::from_static(&[0x1b]));
        assert_eq!(nibbles(&Bytes::new()), Bytes::new());
        // A path to a value leads to no node.
        assert_eq!(nibbles(&Bytes::from_static(&[0x20])).len(), 65);
    }

    #[test]
    fn sets_of_paths_name_a_trie() {
        let set = |set: &[&[u8]]| {
            let set: Vec<_> = set.iter().map(|path| Bytes::copy_from_slice(path)).collect();
            node_paths(&set)
        };
        assert_eq!(set(&[]), None);
        let accounts = NodePaths { owner: None, paths: vec![Bytes::new()] };
        assert_eq!(set(&[&[0]]), Some(accounts));
        let owner = Some(B256::left_padding_from(&[1]));
        let storage = NodePaths { owner, paths: vec![Bytes::new(), Bytes::from_static(&[11])] };
        assert_eq!(set(&[&[1], &[0], &[0x1b]]), Some(storage));
    }
}
