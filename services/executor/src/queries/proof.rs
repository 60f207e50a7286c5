//! Merkle proofs of accounts and slots (EIP-1186), for any block whose state can be read.
//!
//! A node on the way to a key is the newest node that a block above the base wrote at its path.
//! Without such a write it is the base's node. In the base, each key also reaches every path
//! without a change since, so one walk of the base serves all layers. The blocks' changes are found
//! by path, in indices that later proofs reuse.

use crate::{
    chain::Chain,
    error::Error,
    state::{StateReader, layers::Branch, view::StateView},
};
use alloy_primitives::map::{B256Map, B256Set, DefaultHashBuilder, HashMap};
use parking_lot::Mutex;
use std::{collections::VecDeque, convert::Infallible, hash::BuildHasher, sync::Arc};
use tandem_primitives::{
    Account, Address, B256, BlockId, Bytes, EMPTY_TRIE_ROOT, Shard, SubtrieRoot, TrieDiff, U256,
    WalkTarget, keccak256,
};
use tandem_proto::storage::TrieNodes;
use tandem_trie::{combine, path_to};

/// Maximum number of attempts at a proof. An attempt fails if the base moves during it.
const ATTEMPTS_MAX: usize = 4;

/// Account and some of its slots, with proofs against the block's state root.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccountProof {
    /// The account, or `None` if the proof shows its absence.
    pub account: Option<Account>,
    /// Nodes from the root towards the account, each as RLP.
    pub account_proof: Vec<Bytes>,
    /// Root of the account's storage trie.
    pub storage_root: B256,
    /// One entry for each requested slot.
    pub slots: Vec<SlotProof>,
}

/// Slot with its proof against the storage root.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SlotProof {
    /// Value of the slot, zero if the proof shows its absence.
    pub value: U256,
    /// Nodes from the storage root towards the slot, each as RLP.
    pub proof: Vec<Bytes>,
}

/// Proofs of the chain's states.
pub struct Proofs {
    chain: Arc<Chain>,
    trie_diffs: Mutex<TrieDiffs>,
}

impl Proofs {
    /// Proofs of this chain.
    pub fn new(chain: Arc<Chain>) -> Self {
        Self { chain, trie_diffs: Mutex::default() }
    }

    /// Proves an account and some of its slots in the state after a block.
    ///
    /// # Errors
    /// Same as [`Chain::account`].
    pub fn account(
        &self,
        block: BlockId,
        address: Address,
        slots: &[U256],
    ) -> Result<AccountProof, Error> {
        let (_, header) = self.chain.header_by_hash(block.hash)?.ok_or(Error::UnknownBlock)?;
        let owner = keccak256(address);
        let keys: Vec<B256> =
            slots.iter().map(|slot| keccak256(slot.to_be_bytes::<32>())).collect();
        let nodes = self.nodes_towards(block, owner, &keys)?;
        let (number, header) = (block.number, header.state_root);
        let (computed, top) = nodes
            .account_root()
            .map_err(|error| Error::ProofNodes { block: number, error: Box::new(error) })?;
        if computed != header {
            return Err(Error::ProofMismatch { block: number, header, computed });
        }
        let view = self.view(block)?;
        let storage_top = nodes.get(Some(owner), &[]);
        let mut proofs = Vec::with_capacity(keys.len());
        for key in &keys {
            let proof = nodes.path(Some(owner), key, storage_top.clone());
            proofs.push(SlotProof { value: view.slot(&owner, key)?, proof });
        }
        Ok(AccountProof {
            account: view.account(&owner)?,
            account_proof: nodes.path(None, &owner, top),
            storage_root: storage_top.as_ref().map_or(EMPTY_TRIE_ROOT, keccak256),
            slots: proofs,
        })
    }

    /// Returns every node on the way to the account, to the slots and to the top of each shard.
    fn nodes_towards(&self, block: BlockId, owner: B256, keys: &[B256]) -> Result<Nodes, Error> {
        let account = |key| WalkTarget { owner: None, key, from_depth: 1 };
        let mut targets = vec![account(owner)];
        targets.extend((0..16).map(|nibble: u8| account(B256::right_padding_from(&[nibble << 4]))));
        let slot = |key: &B256| WalkTarget { owner: Some(owner), key: *key, from_depth: 0 };
        targets.extend(keys.iter().map(slot));
        // The storage root is needed even without any slot.
        targets.push(slot(&B256::ZERO));
        // storage-writer moves the base before this process hears of it.
        let mut oldest = self.chain.base().number;
        for _ in 0..ATTEMPTS_MAX {
            let view = self.view(block)?;
            let branch = view.branch();
            // This order matters: a block whose diff is gone is in the base that is read next.
            let diffs = self.trie_diffs(branch.hashes())?;
            let base = self.chain.storage.walk_trie(&targets)?;
            oldest = oldest.max(base.base.number);
            if let Some(nodes) = Nodes::new(branch, &diffs, base) {
                return Ok(nodes);
            }
        }
        Err(Error::ProofUnavailable { block, oldest })
    }

    /// Returns the state after a block whose trie nodes can be read.
    fn view(&self, block: BlockId) -> Result<StateView, Error> {
        let oldest = self.chain.base().number;
        self.chain.recent_view(block).ok_or(Error::ProofUnavailable { block, oldest })
    }

    /// Returns the trie diffs of these blocks, `None` for a block that is no longer pending. Each
    /// diff is fetched and indexed once.
    fn trie_diffs(&self, blocks: &[B256]) -> Result<Vec<Option<Arc<IndexedDiff>>>, Error> {
        let mut diffs = Vec::with_capacity(blocks.len());
        for block in blocks {
            let known = self.trie_diffs.lock().get(block);
            diffs.push(match known {
                Some(diff) => Some(diff),
                None => self.chain.storage.trie_diff(*block)?.map(|diff| {
                    let diff = Arc::new(IndexedDiff::new(diff));
                    self.trie_diffs.lock().insert(*block, diff.clone());
                    diff
                }),
            });
        }
        Ok(diffs)
    }
}

/// Trie diffs used by earlier proofs, by block. The oldest are evicted first.
#[derive(Default)]
struct TrieDiffs {
    diffs: B256Map<Arc<IndexedDiff>>,
    order: VecDeque<B256>,
    bytes: usize,
}

impl TrieDiffs {
    /// Maximum bytes of the diffs and their indices.
    const BYTES_MAX: usize = 256 << 20;

    fn get(&self, block: &B256) -> Option<Arc<IndexedDiff>> {
        self.diffs.get(block).cloned()
    }

    fn insert(&mut self, block: B256, diff: Arc<IndexedDiff>) {
        self.bytes += diff.bytes();
        if let Some(before) = self.diffs.insert(block, diff) {
            self.bytes -= before.bytes();
            return;
        }
        self.order.push_back(block);
        while self.bytes > Self::BYTES_MAX {
            let Some(oldest) = self.order.pop_front() else { return };
            let removed = self.diffs.remove(&oldest);
            self.bytes -= removed.map_or(0, |diff| diff.bytes());
        }
    }
}

/// Trie diff of a block, with its changes indexed by path.
struct IndexedDiff {
    diff: Arc<TrieDiff>,
    wiped: B256Set,
    /// Positions in the diff, by the hash of trie and path.
    places: HashMap<u64, u32>,
    /// Positions of changes whose hash equals that of another change.
    collided: Vec<u32>,
    hasher: DefaultHashBuilder,
}

impl IndexedDiff {
    fn new(diff: Arc<TrieDiff>) -> Self {
        let hasher = DefaultHashBuilder::default();
        let mut places = HashMap::default();
        places.reserve(diff.len());
        let mut collided = Vec::new();
        for (place, change) in (0..).zip(diff.iter()) {
            let key = hasher.hash_one((change.owner.as_ref(), change.path));
            collided.extend(places.insert(key, place));
        }
        let wiped = diff.wiped.iter().copied().collect();
        Self { diff, wiped, places, collided, hasher }
    }

    fn bytes(&self) -> usize {
        self.diff.byte_len() + self.places.len() * 16
    }

    /// Returns the node that the block left at a path. `None` means no change, `Some(None)` means
    /// that the node was removed.
    fn get(&self, owner: Option<&B256>, path: &[u8]) -> Option<Option<&[u8]>> {
        let place = self.places.get(&self.hasher.hash_one((owner, path)));
        for place in place.into_iter().chain(&self.collided) {
            let change = self.diff.get(*place as usize)?;
            if change.owner.as_ref() == owner && change.path == path {
                return Some(change.rlp);
            }
        }
        owner.is_some_and(|owner| self.wiped.contains(owner)).then_some(None)
    }
}

/// Trie nodes by trie and path: the base's nodes on the way to some keys, overlaid by the changes
/// of the blocks above the base.
struct Nodes {
    base: HashMap<(Option<B256>, Vec<u8>), Bytes>,
    /// Diffs, newest first.
    layers: Vec<Arc<IndexedDiff>>,
}

impl Nodes {
    /// Returns `None` if base and blocks do not fit together.
    fn new(branch: &Branch, diffs: &[Option<Arc<IndexedDiff>>], base: TrieNodes) -> Option<Self> {
        if !branch.reaches(&base.base.hash) {
            return None;
        }
        let in_base = branch.hashes().iter().position(|hash| *hash == base.base.hash);
        let above = in_base.map_or(0, |position| position + 1);
        let nodes = base.nodes.into_iter().map(|node| ((node.owner, node.path.into()), node.rlp));
        let layers = diffs.get(above..)?.iter().rev().cloned().collect::<Option<_>>()?;
        Some(Self { base: nodes.collect(), layers })
    }

    fn get(&self, owner: Option<B256>, path: &[u8]) -> Option<Bytes> {
        match self.layers.iter().find_map(|diff| diff.get(owner.as_ref(), path)) {
            Some(rlp) => rlp.map(Bytes::copy_from_slice),
            None => self.base.get(&(owner, path.to_vec())).cloned(),
        }
    }

    /// Returns the state root and the root node of the account trie.
    fn account_root(&self) -> Result<(B256, Option<Bytes>), tandem_trie::Error> {
        let tops: [SubtrieRoot; Shard::COUNT] =
            std::array::from_fn(|nibble| self.get(None, &[nibble as u8]));
        let (root, top) = combine(&tops)?;
        Ok((root, top.map(Bytes::from)))
    }

    /// Returns the nodes from the top of a trie towards a key. Embedded nodes are part of their
    /// parents.
    fn path(&self, owner: Option<B256>, key: &B256, top: Option<Bytes>) -> Vec<Bytes> {
        let read = |path: &[u8]| Ok(self.get(owner, path));
        let nodes: Result<_, Infallible> = path_to(key, top, read);
        let Ok(nodes) = nodes;
        nodes
    }
}
