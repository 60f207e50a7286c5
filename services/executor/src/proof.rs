//! Merkle proofs of accounts and slots (EIP-1186), of any block whose state can be read.
//!
//! A node on the way to a key is either the newest one that a block above the base wrote at its
//! path, or the base's. A path that nobody wrote since the base is reached in the base by the same
//! key, so one walk of the base serves all layers.

use crate::{chain::Chain, error::Error, layers::Branch, state::StateReader};
use alloy_primitives::map::{B256Set, HashMap};
use std::sync::Arc;
use tandem_primitives::{
    Account, Address, B256, BlockId, Bytes, EMPTY_TRIE_ROOT, Shard, SubtrieRoot, TrieDiff, U256,
    WalkTarget, keccak256,
};
use tandem_proto::storage::TrieNodes;
use tandem_trie::{child_depth, combine};

/// The base may move while a proof is put together; then it is done again, this often at most.
const ATTEMPTS_MAX: usize = 4;

/// An account and slots of it, with proofs against the block's state root.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccountProof {
    /// The account, `None` when the proof is one of absence.
    pub account: Option<Account>,
    /// The nodes from the root towards the account, each as RLP.
    pub account_proof: Vec<Bytes>,
    /// Root of the account's storage trie.
    pub storage_root: B256,
    /// One for each slot asked for.
    pub slots: Vec<SlotProof>,
}

/// A slot with its proof against the storage root.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SlotProof {
    /// Zero when the proof is one of absence.
    pub value: U256,
    /// The nodes from the storage root towards the slot, each as RLP.
    pub proof: Vec<Bytes>,
}

impl Chain {
    /// Proves an account and some of its slots in the state after a block.
    ///
    /// # Errors
    /// As [`Chain::account`].
    pub fn proof(
        &self,
        block: BlockId,
        address: Address,
        slots: &[U256],
    ) -> Result<AccountProof, Error> {
        let (_, header) = self.header_by_hash(block.hash)?.ok_or(Error::UnknownBlock)?;
        let owner = keccak256(address);
        let keys: Vec<B256> =
            slots.iter().map(|slot| keccak256(slot.to_be_bytes::<32>())).collect();
        let nodes = self.nodes_towards(block, owner, &keys)?;
        let (root, top) = nodes.account_root()?;
        if root != header.state_root {
            let want = header.state_root;
            return Err(Error::Execution(format!("nodes make root {root}, block has {want}")));
        }
        let (_, view) = self.view(crate::BlockTag::Hash(block.hash))?;
        let storage_top = nodes.get(Some(owner), &[]);
        let mut proofs = Vec::with_capacity(keys.len());
        for key in &keys {
            let proof = nodes.path(Some(owner), key, storage_top.cloned());
            proofs.push(SlotProof { value: view.slot(&owner, key)?, proof });
        }
        Ok(AccountProof {
            account: view.account(&owner)?,
            account_proof: nodes.path(None, &owner, top),
            storage_root: storage_top.map_or(EMPTY_TRIE_ROOT, keccak256),
            slots: proofs,
        })
    }

    /// Every node on the way to the account, to the slots and to the top of each shard.
    fn nodes_towards(&self, block: BlockId, owner: B256, keys: &[B256]) -> Result<Nodes, Error> {
        let account = |key| WalkTarget { owner: None, key, from_depth: 1 };
        let mut targets = vec![account(owner)];
        targets.extend((0..16).map(|nibble: u8| account(B256::right_padding_from(&[nibble << 4]))));
        let slot = |key: &B256| WalkTarget { owner: Some(owner), key: *key, from_depth: 0 };
        targets.extend(keys.iter().map(slot));
        // The storage root is asked for even without any slot.
        targets.push(slot(&B256::ZERO));
        for _ in 0..ATTEMPTS_MAX {
            let (_, view) = self.view(crate::BlockTag::Hash(block.hash))?;
            let branch = view.branch();
            // In this order: a block whose diff is gone is in the base that is read next.
            let diffs: Result<Vec<_>, _> =
                branch.hashes().iter().map(|hash| self.storage.trie_diff(*hash)).collect();
            let base = self.storage.walk_trie(&targets)?;
            if let Some(nodes) = Nodes::new(branch, &diffs?, base, &targets) {
                return Ok(nodes);
            }
        }
        Err(Error::StateUnavailable(block))
    }
}

/// Trie nodes by trie and path.
struct Nodes(HashMap<(Option<B256>, Vec<u8>), Bytes>);

impl Nodes {
    /// The base's nodes under those of the blocks above it. `None` when base and blocks do not fit
    /// together.
    fn new(
        branch: &Branch,
        diffs: &[Option<Arc<TrieDiff>>],
        base: TrieNodes,
        targets: &[WalkTarget],
    ) -> Option<Self> {
        if !branch.reaches(&base.base.hash) {
            return None;
        }
        let in_base = branch.hashes().iter().position(|hash| *hash == base.base.hash);
        let above = in_base.map_or(0, |position| position + 1);
        let nodes = base.nodes.into_iter().map(|node| ((node.owner, node.path.into()), node.rlp));
        let mut nodes = Self(nodes.collect());
        let wanted: Vec<(Option<B256>, [u8; 64])> =
            targets.iter().map(|target| (target.owner, nibbles(&target.key))).collect();
        for diff in diffs.get(above..)? {
            nodes.apply(diff.as_ref()?, &wanted);
        }
        Some(nodes)
    }

    /// Writes what a block changed on the way to the keys that are wanted.
    fn apply(&mut self, diff: &TrieDiff, wanted: &[(Option<B256>, [u8; 64])]) {
        let wiped: B256Set = diff.wiped.iter().copied().collect();
        if !wiped.is_empty() {
            self.0.retain(|(owner, _), _| owner.is_none_or(|owner| !wiped.contains(&owner)));
        }
        for change in diff.iter() {
            let on_the_way = |(owner, key): &(Option<B256>, [u8; 64])| {
                *owner == change.owner && key.starts_with(change.path)
            };
            if !wanted.iter().any(on_the_way) {
                continue;
            }
            let place = (change.owner, change.path.to_vec());
            match change.rlp {
                Some(rlp) => self.0.insert(place, Bytes::copy_from_slice(rlp)),
                None => self.0.remove(&place),
            };
        }
    }

    fn get(&self, owner: Option<B256>, path: &[u8]) -> Option<&Bytes> {
        self.0.get(&(owner, path.to_vec()))
    }

    /// The state root, and the root node of the account trie.
    fn account_root(&self) -> Result<(B256, Option<Bytes>), Error> {
        let tops: [SubtrieRoot; Shard::COUNT] =
            std::array::from_fn(|nibble| self.get(None, &[nibble as u8]).cloned());
        let (root, top) = combine(&tops).map_err(|error| Error::Execution(error.to_string()))?;
        Ok((root, top.map(Bytes::from)))
    }

    /// The nodes from the top of a trie towards a key. Embedded nodes are part of their parents.
    fn path(&self, owner: Option<B256>, key: &B256, top: Option<Bytes>) -> Vec<Bytes> {
        let nibbles = nibbles(key);
        let (mut proof, mut depth, mut node) = (Vec::new(), 0, top);
        while let Some(rlp) = node {
            let next = child_depth(&rlp, depth, &nibbles);
            proof.push(rlp);
            node = next.and_then(|next| self.get(owner, &nibbles[..next]).cloned());
            depth = next.unwrap_or(depth);
        }
        proof
    }
}

fn nibbles(key: &B256) -> [u8; 64] {
    let mut nibbles = [0; 64];
    for (pair, byte) in nibbles.chunks_exact_mut(2).zip(key) {
        pair.copy_from_slice(&[byte >> 4, byte & 0x0f]);
    }
    nibbles
}
