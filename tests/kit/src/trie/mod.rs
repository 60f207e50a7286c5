//! Model that tries are compared with: the whole state in sorted maps, a store of nodes by path,
//! and roots from alloy-trie.

pub mod one_shard;

use alloy_trie::{HashBuilder, Nibbles};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use std::{collections::BTreeMap, convert::Infallible};
use tandem_primitives::{
    Account, AccountUpdate, B256, EMPTY_TRIE_ROOT, Shard, SlotUpdate, TrieDiff, U256, WalkTarget,
};
use tandem_trie::{NodeSink, NodeSource, ShardTrie, TrieBuilder, account_leaf, child_depth};

/// Trie nodes by owner and path, as storage-writer keeps them.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Store {
    pub nodes: BTreeMap<(Option<B256>, Vec<u8>), Vec<u8>>,
    /// Number of targets walked to so far.
    pub walked: usize,
}

impl Store {
    /// Applies a diff as a database would. Every change must change something.
    pub fn apply(&mut self, diff: &TrieDiff) {
        for owner in &diff.wiped {
            let before = self.nodes.len();
            self.nodes.retain(|(other, _), _| other.as_ref() != Some(owner));
            assert!(self.nodes.len() < before, "a wipe of nothing");
        }
        let mut seen = std::collections::BTreeSet::new();
        for change in diff.iter() {
            let key = (change.owner, change.path.to_vec());
            assert!(seen.insert(key.clone()), "two changes at one path");
            match change.rlp {
                Some(rlp) => {
                    let old = self.nodes.insert(key, rlp.to_vec());
                    assert_ne!(old.as_deref(), Some(rlp), "a change that changes nothing");
                }
                None => assert!(self.nodes.remove(&key).is_some(), "a deletion of nothing"),
            }
        }
    }

    /// Passes the nodes on the way to one key to `node`.
    pub fn walk_one(&self, target: &WalkTarget, node: &mut NodeSink<'_>) {
        let path = unpack(&target.key);
        let mut depth = usize::from(target.from_depth);
        while let Some(rlp) = self.nodes.get(&(target.owner, path[..depth].to_vec())) {
            node(target.owner, &path[..depth], rlp);
            match child_depth(rlp, depth, &path) {
                Some(below) => depth = below,
                None => break,
            }
        }
    }
}

impl NodeSource for Store {
    type Error = Infallible;

    fn walk(&mut self, targets: &[WalkTarget], node: &mut NodeSink<'_>) -> Result<(), Infallible> {
        self.walked += targets.len();
        targets.iter().for_each(|target| self.walk_one(target, node));
        Ok(())
    }
}

pub fn unpack(key: &B256) -> [u8; 64] {
    std::array::from_fn(|at| if at % 2 == 0 { key[at / 2] >> 4 } else { key[at / 2] & 15 })
}

/// Computes the root over a sorted set, by alloy-trie.
pub fn oracle_root<'a>(leaves: impl Iterator<Item = (&'a B256, Vec<u8>)>) -> B256 {
    let mut builder = HashBuilder::default();
    for (key, value) in leaves {
        builder.add_leaf(Nibbles::unpack(key), &value);
    }
    builder.root()
}

/// Storage of one account.
pub type Slots = BTreeMap<B256, U256>;

/// Accounts with their storage, by hashed keys.
pub type Accounts = BTreeMap<B256, (Account, Slots)>;

/// Applies one account's changes to a state.
pub fn apply_update(accounts: &mut Accounts, update: &AccountUpdate) {
    let Some(account) = update.account else {
        accounts.remove(&update.address_hash);
        return;
    };
    let entry = accounts.entry(update.address_hash).or_default();
    entry.0 = account;
    if update.wiped {
        entry.1.clear();
    }
    for slot in &update.slots {
        if slot.value.is_zero() {
            entry.1.remove(&slot.key);
        } else {
            entry.1.insert(slot.key, slot.value);
        }
    }
}

/// Whole state.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub struct State(pub Accounts);

impl State {
    pub fn apply(&mut self, update: &AccountUpdate) {
        apply_update(&mut self.0, update);
    }

    /// Computes the root by alloy-trie, from nothing.
    pub fn root(&self) -> B256 {
        oracle_root(self.0.iter().map(|(key, (account, slots))| {
            let root =
                oracle_root(slots.iter().map(|(key, value)| (key, alloy_rlp::encode(value))));
            let mut leaf = Vec::new();
            account_leaf(account, root, &mut leaf);
            (key, leaf)
        }))
    }

    /// Builds all nodes from nothing, by the builder: subtries of the shards, and storage tries.
    pub fn store(&self) -> Store {
        let mut store = Store::default();
        let mut leaves = Vec::new();
        for (address_hash, (account, slots)) in &self.0 {
            let mut builder = TrieBuilder::new(|path: &[u8], rlp: &[u8]| {
                let key = (Some(*address_hash), path.to_vec());
                assert!(store.nodes.insert(key, rlp.to_vec()).is_none());
            });
            for (key, value) in slots {
                builder.push(key, &alloy_rlp::encode(value)).unwrap();
            }
            let top = builder.finish();
            let root = top.map_or(EMPTY_TRIE_ROOT, tandem_primitives::keccak256);
            let mut leaf = Vec::new();
            account_leaf(account, root, &mut leaf);
            leaves.push((*address_hash, leaf));
        }
        for shard in Shard::all() {
            let mut builder =
                TrieBuilder::with_prefix(&[shard.nibble()], |path: &[u8], rlp: &[u8]| {
                    assert!(store.nodes.insert((None, path.to_vec()), rlp.to_vec()).is_none());
                });
            for (key, leaf) in leaves.iter().filter(|(key, _)| Shard::of(key) == shard) {
                builder.push(key, leaf).unwrap();
            }
            builder.finish();
        }
        store
    }
}

/// Space of keys that are few, or share long prefixes, so that they meet in the same places.
#[derive(Clone, Debug)]
pub struct KeySpace {
    /// Number of nibbles that all keys share, cut short at random depths.
    pub common: usize,
    /// Number of distinct nibbles, 1 to 16.
    pub alphabet: u8,
    /// Depth from which keys no longer differ, 64 when they differ over the whole length.
    pub end: usize,
}

impl KeySpace {
    pub fn random(rng: &mut StdRng) -> Self {
        let common = *[0, 0, 0, 1, 5, 20, 55, 60].choose(rng).unwrap();
        let alphabet = *[2, 2, 3, 16].choose(rng).unwrap();
        let end = (common + *[2usize, 3, 5, 64].choose(rng).unwrap()).min(64);
        Self { common, alphabet, end }
    }

    pub fn key(&self, rng: &mut StdRng) -> B256 {
        let mut nibbles = [0u8; 64];
        // Occasionally a key leaves the common prefix, so that extensions are split.
        let common =
            if rng.random_ratio(1, 8) { rng.random_range(0..=self.common) } else { self.common };
        for nibble in &mut nibbles[common..self.end] {
            *nibble = rng.random_range(0..self.alphabet);
        }
        if rng.random_ratio(1, 8) {
            nibbles[63] = rng.random_range(0..self.alphabet);
        }
        B256::from_slice(&nibbles.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect::<Vec<_>>())
    }
}

/// Returns values from one byte on, so that leaves are embedded or stand alone.
pub fn value(rng: &mut StdRng) -> U256 {
    match rng.random_range(0..4) {
        0 | 1 => U256::from(rng.random_range(1..4u8)),
        2 => U256::from(rng.random::<u64>()),
        _ => U256::from_be_bytes(rng.random::<[u8; 32]>()),
    }
}

pub fn account(rng: &mut StdRng) -> Account {
    let code_hash = if rng.random() {
        Account::default().code_hash
    } else {
        B256::repeat_byte(rng.random_range(0..3))
    };
    Account {
        nonce: rng.random_range(0..3),
        balance: U256::from(rng.random_range(0..3u8)),
        code_hash,
    }
}

pub fn rng(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

pub fn all_shards() -> Vec<ShardTrie> {
    Shard::all().map(ShardTrie::new).collect()
}

/// Creates one transaction's update of a random account.
pub fn update(
    rng: &mut StdRng,
    state: &State,
    addresses: &KeySpace,
    slots: &KeySpace,
) -> AccountUpdate {
    let known: Vec<&B256> = state.0.keys().collect();
    let address_hash = match known.choose(rng) {
        Some(known) if rng.random_ratio(2, 3) => **known,
        _ => addresses.key(rng),
    };
    if rng.random_ratio(1, 6) {
        return AccountUpdate {
            address_hash,
            account: None,
            wiped: rng.random(),
            slots: Vec::new(),
        };
    }
    let old = state.0.get(&address_hash);
    let account = match old {
        Some((account, _)) if rng.random_ratio(1, 3) => *account,
        _ => account(rng),
    };
    let wiped = rng.random_ratio(1, 12);
    let mut changes = BTreeMap::new();
    for _ in 0..*[0, 1, 2, 6].choose(rng).unwrap() {
        let known: Vec<&B256> = old.map(|(_, slots)| slots.keys().collect()).unwrap_or_default();
        let key = match known.choose(rng) {
            Some(known) if rng.random_ratio(2, 3) => **known,
            _ => slots.key(rng),
        };
        let value = if rng.random_ratio(2, 5) { U256::ZERO } else { value(rng) };
        changes.insert(key, value);
    }
    let slots = changes.into_iter().map(|(key, value)| SlotUpdate { key, value }).collect();
    AccountUpdate { address_hash, account: Some(account), wiped, slots }
}
