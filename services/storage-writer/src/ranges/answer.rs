//! Answers to questions about a state, each bounded in items and bytes.

use super::{pending_codes, tries::StateTries};
use crate::{Error, shared::Shared};
use std::{collections::HashSet, ops::ControlFlow};
use tandem_primitives::{B256, Bytes, EMPTY_CODE_HASH, EMPTY_TRIE_ROOT};
use tandem_proto::{
    limits::{
        CODES_MAX, STATE_ANSWER_BYTES_MAX, STATE_LEAVES_MAX, STORAGE_TRIES_MAX, TRIE_NODES_MAX,
    },
    snap::{Leaf, NodePaths, StateItems, StateRequest},
};
use tandem_store::tables::Code;

/// Answers a question about a state.
///
/// # Errors
/// When the database fails or is damaged.
pub fn answer(tries: &StateTries<'_>, request: &StateRequest) -> Result<StateItems, Error> {
    match request {
        StateRequest::Accounts { start, limit, bytes, .. } => {
            let mut size = Size::new(*bytes);
            let Range { leaves, .. } = range(tries, None, start, limit, &mut size)?;
            let proof = proof(tries, None, start, leaves.last().map(|leaf| &leaf.key))?;
            Ok(StateItems::Accounts { leaves, proof })
        }
        StateRequest::Slots { accounts, start, limit, bytes, .. } => {
            slots(tries, accounts, (start, limit), *bytes)
        }
        StateRequest::Nodes { paths, bytes, .. } => nodes(tries, paths, *bytes),
        StateRequest::Codes { .. } => Ok(StateItems::none(request)),
    }
}

/// Size of an answer.
struct Size {
    bytes: u64,
    wanted: u64,
    leaves: usize,
}

impl Size {
    fn new(wanted: u64) -> Self {
        Self { bytes: 0, wanted: wanted.min(STATE_ANSWER_BYTES_MAX), leaves: 0 }
    }

    fn add(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        self.leaves += 1;
    }

    fn is_reached(&self) -> bool {
        self.bytes >= self.wanted || self.leaves >= STATE_LEAVES_MAX
    }
}

struct Range {
    leaves: Vec<Leaf>,
    /// Whether the trie may have further leaves.
    cut: bool,
}

/// Collects leaves up to the first at `limit` or behind it, or until the answer has its size.
fn range(
    tries: &StateTries<'_>,
    owner: Option<&B256>,
    start: &B256,
    limit: &B256,
    size: &mut Size,
) -> Result<Range, Error> {
    let (mut leaves, mut cut) = (Vec::new(), false);
    tries.leaves(owner, start, &mut |key, value| {
        if size.is_reached() && !leaves.is_empty() {
            cut = true;
            return ControlFlow::Break(());
        }
        let length = if owner.is_some() { value.len() } else { slim_length(value) };
        size.add(32 + length);
        leaves.push(Leaf { key, value: Bytes::copy_from_slice(value) });
        if key >= *limit {
            cut = true;
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })?;
    Ok(Range { leaves, cut })
}

/// Returns the length of an account in the form in which peers exchange it: an empty storage root and
/// the hash of no code take one byte instead of 33. The limits of requests are meant for that form.
///
/// Source: devp2p, `caps/snap.md`, "slim" data format.
fn slim_length(account: &[u8]) -> usize {
    let hash = |from_end: usize| {
        let start = account.len().checked_sub(from_end)?;
        account.get(start..start + 32)
    };
    let no_code = hash(32) == Some(EMPTY_CODE_HASH.as_slice());
    let no_storage = hash(65) == Some(EMPTY_TRIE_ROOT.as_slice());
    let length = account.len() - 32 * (usize::from(no_code) + usize::from(no_storage));
    // A list of at most 55 bytes has a header of one byte, not two.
    if length <= 2 + 55 && length < account.len() { length - 1 } else { length }
}

/// Returns the nodes towards both keys, each once.
fn proof(
    tries: &StateTries<'_>,
    owner: Option<&B256>,
    start: &B256,
    last: Option<&B256>,
) -> Result<Vec<Bytes>, Error> {
    let mut nodes = tries.way(owner, start)?;
    if let Some(last) = last {
        let others = tries.way(owner, last)?;
        let shared = nodes.iter().zip(&others).take_while(|(a, b)| a == b).count();
        nodes.extend_from_slice(&others[shared..]);
    }
    Ok(nodes)
}

fn slots(
    tries: &StateTries<'_>,
    accounts: &[B256],
    (start, limit): (&B256, &B256),
    bytes: u64,
) -> Result<StateItems, Error> {
    let mut size = Size::new(bytes);
    let (mut ranges, mut nodes) = (Vec::new(), Vec::new());
    for (at, owner) in accounts.iter().take(STORAGE_TRIES_MAX).enumerate() {
        if size.is_reached() && at > 0 {
            break;
        }
        let whole = (&B256::ZERO, &B256::repeat_byte(0xff));
        let (start, limit) = if at == 0 { (start, limit) } else { whole };
        let Range { leaves, cut } = range(tries, Some(owner), start, limit, &mut size)?;
        let last = leaves.last().map(|leaf| leaf.key);
        if !leaves.is_empty() {
            ranges.push(leaves);
        }
        // All of an account's storage needs no proof. A proof ends the answer.
        if !start.is_zero() || cut {
            nodes = proof(tries, Some(owner), start, last.as_ref())?;
            break;
        }
    }
    Ok(StateItems::Slots { tries: ranges, proof: nodes })
}

fn nodes(tries: &StateTries<'_>, paths: &[NodePaths], bytes: u64) -> Result<StateItems, Error> {
    let mut size = Size::new(bytes);
    let mut nodes = Vec::new();
    for NodePaths { owner, paths } in paths {
        let owner = owner.as_ref();
        // An account without storage has no nodes, and takes no place in the answer.
        if owner.is_some() && tries.top(owner)?.is_none() {
            continue;
        }
        for path in paths {
            if size.is_reached() || nodes.len() == TRIE_NODES_MAX {
                return Ok(StateItems::Nodes(nodes));
            }
            let node = tries.node(owner, path)?.unwrap_or_default();
            size.add(node.len());
            nodes.push(node);
        }
    }
    Ok(StateItems::Nodes(nodes))
}

/// Returns codes of the base and of pending blocks.
///
/// # Errors
/// When the database fails.
pub fn codes(shared: &Shared, request: &StateRequest) -> Result<StateItems, Error> {
    let StateRequest::Codes { hashes, bytes } = request else {
        return Ok(StateItems::none(request));
    };
    let hashes = &hashes[..hashes.len().min(CODES_MAX)];
    let mut size = Size::new(*bytes);
    let mut codes = Vec::new();
    let view = shared.store.view();
    // Few codes at a time, as most requests end by their size.
    for some in hashes.chunks(32) {
        let found = view.multi_get::<Code>(some.iter().copied())?;
        let absent = some.iter().zip(&found).filter(|(_, code)| code.is_none());
        let absent: HashSet<B256> = absent.map(|(hash, _)| *hash).collect();
        let pending = match absent.is_empty() {
            true => Default::default(),
            false => pending_codes(shared, &absent)?,
        };
        for (hash, code) in some.iter().zip(found) {
            let code = match code {
                _ if *hash == EMPTY_CODE_HASH => Some(Bytes::new()),
                None => pending.get(hash).cloned(),
                found => found,
            };
            let Some(code) = code else { continue };
            size.add(code.len());
            codes.push(code);
            if size.is_reached() {
                return Ok(StateItems::Codes(codes));
            }
        }
    }
    Ok(StateItems::Codes(codes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_eth_wire::snap::{full_account, slim_account};

    #[test]
    fn an_account_counts_as_long_as_peers_get_it() {
        let hash = [0x11; 32];
        let numbers: [&[u8]; 4] = [&[], &[7], &[0x80; 8], &[0xff; 20]];
        for nonce in &numbers[..3] {
            for balance in numbers {
                for (root, code) in [(&[][..], &[][..]), (&hash, &[]), (&[], &hash), (&hash, &hash)]
                {
                    let mut slim = Vec::new();
                    alloy_rlp::encode_list::<&[u8], [u8]>(&[nonce, balance, root, code], &mut slim);
                    let full = full_account(&slim).unwrap();
                    assert_eq!(slim_account(&full).unwrap(), slim);
                    assert_eq!(slim_length(&full), slim.len(), "{slim:02x?}");
                }
            }
        }
        for short in [&[][..], &[0xc0], &[0; 40]] {
            assert_eq!(slim_length(short), short.len());
        }
    }
}
