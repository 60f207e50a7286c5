//! Parts of states.

use super::{
    Reason,
    error::{At, ConvertError},
    field::{
        at_most, count, hash, hash_bytes, hash_list, items, nested, range, required, size, split,
        total,
    },
};
use crate::{
    limits::{
        CODES_MAX, NODE_PATH_NIBBLES_MAX, STATE_LEAVES_MAX, STATE_PROOF_NODES_MAX,
        STORAGE_TRIES_MAX, TRIE_NODES_MAX,
    },
    snap::{Leaf, NodePaths, StateItems, StateRequest},
    wire::{
        storage_writer::v1 as storage_wire,
        types::v1::{self, state_request as wire},
    },
};
use tandem_primitives::{B256, Bytes as Rlp};

impl From<StateRequest> for v1::StateRequest {
    fn from(request: StateRequest) -> Self {
        use wire::What;
        let (bytes, what) = match request {
            StateRequest::Accounts { root, start, limit, bytes } => {
                let [root, start, limit] = [root, start, limit].map(hash_bytes);
                (bytes, What::Accounts(wire::Accounts { root, start, limit }))
            }
            StateRequest::Slots { root, accounts, start, limit, bytes } => {
                let [root, start, limit] = [root, start, limit].map(hash_bytes);
                let accounts = hash_list(accounts.iter());
                (bytes, What::Slots(wire::Slots { root, accounts, start, limit }))
            }
            StateRequest::Codes { hashes, bytes } => (bytes, What::Codes(hash_list(hashes.iter()))),
            StateRequest::Nodes { root, paths, bytes } => (bytes, What::Nodes(nodes(root, &paths))),
        };
        Self { bytes, what: Some(what) }
    }
}

fn nodes(root: B256, sets: &[NodePaths]) -> wire::Nodes {
    let paths = || sets.iter().flat_map(|set| &set.paths);
    wire::Nodes {
        root: hash_bytes(root),
        kinds: sets.iter().map(|set| u8::from(set.owner.is_some())).collect(),
        owners: sets.iter().flat_map(|set| set.owner.unwrap_or_default().0).collect(),
        counts: sets.iter().map(|set| size(set.paths.len())).collect(),
        path_sizes: paths().map(|path| size(path.len())).collect(),
        paths: paths().flatten().copied().collect(),
    }
}

/// Reads a list of hashes that is not empty.
fn hashes(max: usize, bytes: &[u8]) -> Result<Vec<B256>, Reason> {
    let hashes = items::<32>(bytes)?;
    range(1, max as u64, hashes.len() as u64)?;
    Ok(hashes.iter().map(B256::from).collect())
}

impl TryFrom<v1::StateRequest> for StateRequest {
    type Error = ConvertError;

    fn try_from(wire: v1::StateRequest) -> Result<Self, ConvertError> {
        use wire::What;
        let bytes = wire.bytes;
        Ok(match required(wire.what).at("what")? {
            What::Accounts(accounts) => Self::Accounts {
                root: hash(&accounts.root).at("accounts.root")?,
                start: hash(&accounts.start).at("accounts.start")?,
                limit: hash(&accounts.limit).at("accounts.limit")?,
                bytes,
            },
            What::Slots(slots) => Self::Slots {
                root: hash(&slots.root).at("slots.root")?,
                accounts: hashes(STORAGE_TRIES_MAX, &slots.accounts).at("slots.accounts")?,
                start: hash(&slots.start).at("slots.start")?,
                limit: hash(&slots.limit).at("slots.limit")?,
                bytes,
            },
            What::Codes(codes) => {
                Self::Codes { hashes: hashes(CODES_MAX, &codes).at("codes")?, bytes }
            }
            What::Nodes(nodes) => Self::Nodes {
                root: hash(&nodes.root).at("nodes.root")?,
                paths: node_paths(nodes).at("nodes")?,
                bytes,
            },
        })
    }
}

fn node_paths(wire: wire::Nodes) -> Result<Vec<NodePaths>, ConvertError> {
    let owners = items::<32>(&wire.owners).at("owners")?;
    count(owners.len() as u64, wire.kinds.len()).at("kinds")?;
    count(owners.len() as u64, wire.counts.len()).at("counts")?;
    range(1, TRIE_NODES_MAX as u64, total(&wire.counts)).at("counts")?;
    at_most(TRIE_NODES_MAX, wire.counts.len()).at("counts")?;
    count(total(&wire.counts), wire.path_sizes.len()).at("path_sizes")?;
    if let Some(nibble) = wire.paths.iter().find(|nibble| **nibble > 15) {
        range(0, 15, *nibble).at("paths")?;
    }
    if let Some(at) = wire.path_sizes.iter().position(|&size| size > NODE_PATH_NIBBLES_MAX) {
        range(0, NODE_PATH_NIBBLES_MAX.into(), wire.path_sizes[at])
            .at_index(at)
            .at("path_sizes")?;
    }
    let mut all = split(&wire.path_sizes, wire.paths).at("paths")?;
    let mut sets = Vec::with_capacity(owners.len());
    for (index, owner) in owners.iter().enumerate() {
        range(0, 1, wire.kinds[index]).at_index(index).at("kinds")?;
        let paths = all.by_ref().take(wire.counts[index] as usize).collect();
        let owner = (wire.kinds[index] == 1).then(|| owner.into());
        sets.push(NodePaths { owner, paths });
    }
    Ok(sets)
}

const ACCOUNTS: u32 = 1;
const SLOTS: u32 = 2;
const CODES: u32 = 3;
const NODES: u32 = 4;

fn sizes(items: &[Rlp]) -> Vec<u32> {
    items.iter().map(|item| size(item.len())).collect()
}

impl From<StateItems> for v1::StateItems {
    fn from(items: StateItems) -> Self {
        let ranges = |kind, tries: &[Vec<Leaf>], proof: &[Rlp]| {
            let leaves = || tries.iter().flatten();
            Self {
                kind,
                leaves: tries.iter().map(|leaves| size(leaves.len())).collect(),
                keys: leaves().flat_map(|leaf| leaf.key.0).collect(),
                sizes: leaves().map(|leaf| size(leaf.value.len())).collect(),
                items: leaves().flat_map(|leaf| &leaf.value).copied().collect(),
                proof_sizes: sizes(proof),
                proof: proof.concat().into(),
            }
        };
        let single = |kind, items: &[Rlp]| Self {
            kind,
            sizes: sizes(items),
            items: items.concat().into(),
            ..Self::default()
        };
        match items {
            StateItems::Accounts { leaves, proof } => ranges(ACCOUNTS, &[leaves], &proof),
            StateItems::Slots { tries, proof } => ranges(SLOTS, &tries, &proof),
            StateItems::Codes(codes) => single(CODES, &codes),
            StateItems::Nodes(nodes) => single(NODES, &nodes),
        }
    }
}

impl TryFrom<v1::StateItems> for StateItems {
    type Error = ConvertError;

    fn try_from(wire: v1::StateItems) -> Result<Self, ConvertError> {
        range(ACCOUNTS.into(), NODES.into(), wire.kind).at("kind")?;
        let is_range = matches!(wire.kind, ACCOUNTS | SLOTS);
        let max = if is_range { STATE_LEAVES_MAX } else { CODES_MAX.max(TRIE_NODES_MAX) };
        at_most(max, wire.sizes.len()).at("sizes")?;
        let items: Vec<_> = split(&wire.sizes, wire.items).at("items")?.collect();
        match wire.kind {
            CODES => return Ok(Self::Codes(items)),
            NODES => return Ok(Self::Nodes(items)),
            _ => {}
        }
        let keys = super::field::items::<32>(&wire.keys).at("keys")?;
        count(keys.len() as u64, items.len()).at("sizes")?;
        at_most(STORAGE_TRIES_MAX, wire.leaves.len()).at("leaves")?;
        count(total(&wire.leaves), keys.len()).at("keys")?;
        at_most(STATE_PROOF_NODES_MAX, wire.proof_sizes.len()).at("proof_sizes")?;
        let proof = split(&wire.proof_sizes, wire.proof).at("proof")?.collect();
        let mut leaves = keys.iter().zip(items).map(|(key, value)| Leaf { key: key.into(), value });
        let mut tries: Vec<Vec<Leaf>> = wire
            .leaves
            .iter()
            .map(|count| leaves.by_ref().take(*count as usize).collect())
            .collect();
        if wire.kind == SLOTS {
            return Ok(Self::Slots { tries, proof });
        }
        count(1, tries.len()).at("leaves")?;
        Ok(Self::Accounts { leaves: tries.pop().unwrap_or_default(), proof })
    }
}

impl From<StateRequest> for storage_wire::GetStateItemsRequest {
    fn from(request: StateRequest) -> Self {
        Self { request: Some(request.into()) }
    }
}

impl TryFrom<storage_wire::GetStateItemsRequest> for StateRequest {
    type Error = ConvertError;

    fn try_from(wire: storage_wire::GetStateItemsRequest) -> Result<Self, ConvertError> {
        nested(wire.request).at("get_state_items.request")
    }
}

impl From<StateItems> for storage_wire::GetStateItemsResponse {
    fn from(items: StateItems) -> Self {
        Self { items: Some(items.into()) }
    }
}

impl TryFrom<storage_wire::GetStateItemsResponse> for StateItems {
    type Error = ConvertError;

    fn try_from(wire: storage_wire::GetStateItemsResponse) -> Result<Self, ConvertError> {
        nested(wire.items).at("get_state_items.items")
    }
}
