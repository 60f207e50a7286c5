//! Trie nodes from untrusted sources.

use crate::{Reader, Target, heap, structures};
use alloy_primitives::keccak256;
use alloy_rlp::{Decodable, Encodable};
use alloy_trie::nodes::TrieNode;
use tandem_primitives::{
    Account, AccountUpdate, B256, EMPTY_CODE_HASH, Shard, SlotUpdate, TrieDiff, U256, WalkTarget,
};
use tandem_trie::{
    AccountTrie, Scratch, ShardTrie, StorageTrie, TrieBuilder, account_leaf, child_depth,
};

pub(super) const DICTIONARY: &[&[u8]] = &[
    b"\x80",
    b"\xc0",
    b"\xa0",
    b"\x20",
    b"\x00",
    b"\x10",
    b"\x3f",
    b"\xd1",
    b"\xf8\x51",
    b"\xf9\x02\x11",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\xc2\x20\x01",
    b"\xc2\x11\xc0",
];

/// Target for a single node.
pub const NODE: Target = Target {
    name: "trie_node",
    bytes_per_byte: 4,
    structures: structures::none,
    constant: 4 << 10,
    input_len_max: 4 << 10,
    mutations: 60_000,
    seeds: node_seeds,
    dictionary: DICTIONARY,
    run: read_node,
};

/// Target for a shard's block: updates, nodes at any path, answered walks, the end.
pub const SHARD: Target = Target {
    name: "trie_shard",
    bytes_per_byte: 4,
    structures: structures::none,
    constant: 40 << 10,
    input_len_max: 4 << 10,
    mutations: 30_000,
    seeds: shard_seeds,
    dictionary: DICTIONARY,
    run: run_shard,
};

/// Nodes with their paths, parents first.
pub(super) type Nodes = Vec<(Vec<u8>, Vec<u8>)>;

/// Returns the nodes of a small trie.
fn nodes(prefix: &[u8], keys: &[B256], value: &[u8]) -> Nodes {
    let mut nodes = Vec::new();
    let mut builder = TrieBuilder::with_prefix(prefix, |path: &[u8], rlp: &[u8]| {
        nodes.push((path.to_vec(), rlp.to_vec()));
    });
    for key in keys {
        builder.push(key, value).unwrap();
    }
    builder.finish();
    nodes.sort();
    nodes
}

fn keys(reader: &[u8]) -> Vec<B256> {
    let mut reader = Reader(reader);
    let mut keys = Vec::new();
    while !reader.is_empty() {
        keys.push(reader.near_hash());
    }
    keys.sort();
    keys.dedup();
    keys
}

fn account() -> Account {
    Account { nonce: 1, balance: U256::from(7), code_hash: EMPTY_CODE_HASH }
}

/// Returns storage tries, and the account tries over them: from the root, or of one shard.
pub(super) fn tries(prefix: &[u8]) -> Vec<(Nodes, Nodes)> {
    let own = keys(&[0x11, 1, 0x11, 2, 0x11, 62, 0x11, 63, 0x10, 0]);
    let few = [&own[..], &keys(&[0x31, 4, 0x51, 9])].concat();
    let mut tries = Vec::new();
    for value in [&[5][..], &[0x82, 1, 2]] {
        for keys in [&few[..], &own[..1]] {
            let storage = nodes(&[], keys, value);
            let mut leaf = Vec::new();
            account_leaf(&account(), keccak256(&storage[0].1), &mut leaf);
            for keys in [&own[..], &own[..1]] {
                tries.push((storage.clone(), nodes(prefix, keys, &leaf)));
            }
        }
    }
    tries
}

fn node_seeds() -> Vec<Vec<u8>> {
    let both = tries(&[1]).into_iter().flat_map(|(storage, accounts)| [storage, accounts].concat());
    let mut seeds: Vec<Vec<u8>> = both.map(|(_, rlp)| rlp).collect();
    seeds.sort();
    seeds.dedup();
    seeds
}

fn read_node(input: &[u8]) {
    let path = [1; 64];
    let _ = child_depth(input, 0, &path);
    let _ = child_depth(input, 63, &path);
    let _ = child_depth(input, 64, &path);
    read_storage_node(input);
    for (first, path) in [(None, &[][..]), (Some(1), &[1][..]), (None, &[1, 1][..])] {
        let mut trie = AccountTrie::unknown(first);
        if trie.reveal(path, input, true).is_ok() && !trie.is_unknown() {
            assert!(canonical(input), "we take it, alloy does not");
        }
    }
}

/// Checks that a node accepted as the top of a trie is canonical and one that alloy reads.
fn read_storage_node(input: &[u8]) {
    let mut trie = StorageTrie::unknown(None);
    if heap::measured(|| trie.reveal(&[], input, true)).is_err() {
        return;
    }
    assert!(canonical(input), "we take it, alloy does not");
    let (mut diff, mut scratch) = (TrieDiff::default(), Scratch::default());
    assert_eq!(trie.root(None, &mut diff, &mut scratch), Some(keccak256(input)));
    // The trie stays valid when any key is read or written.
    for key in keys(&[0x11, 1, 0x11, 2, 0x11, 63, 0x31, 4, 0xf1, 9]) {
        let _ = trie.check_removal(&key);
        let before = matches!(trie.find(&key), tandem_trie::Lookup::Value(_));
        if trie.update(&key, &[9]).is_ok() {
            assert_eq!(trie.find(&key), tandem_trie::Lookup::Value(&[9]));
            if !before {
                let _ = trie.remove(&key);
            }
        }
    }
    let _ = trie.root(None, &mut diff, &mut scratch);
}

fn canonical(rlp: &[u8]) -> bool {
    let mut rest = rlp;
    let Ok(node) = TrieNode::decode(&mut rest) else { return false };
    let mut encoded = Vec::new();
    node.encode(&mut encoded);
    rest.is_empty() && encoded == rlp
}

fn shard_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (storage, accounts) in tries(&[1]) {
        for verify in [0, 1] {
            let mut seed = vec![verify];
            // An update of an account with a slot, a removal, the nodes, the answers, the end.
            seed.extend([0, 0x11, 1, 1, 1, 0x11, 2, 1, 9]);
            seed.extend([0, 0x11, 62, 0, 0]);
            seed.extend([1, 0x11, 63, 1, 0x11, 5]);
            for (nodes, owner) in [(&accounts, &[0][..]), (&storage, &[1, 0x11, 1])] {
                for (path, rlp) in nodes {
                    seed.push(2);
                    seed.extend(owner);
                    for part in [path, rlp] {
                        seed.extend((part.len() as u16).to_le_bytes());
                        seed.extend(part);
                    }
                }
                seed.push(4);
            }
            seed.extend([4, 5, 4, 5, 4, 5]);
            seeds.push(seed);
        }
    }
    seeds
}

fn run_shard(input: &[u8]) {
    heap::measured(|| Script::new(input).run());
}

/// A script of calls to one shard.
struct Script<'a> {
    reader: Reader<'a>,
    shard: ShardTrie,
    targets: Vec<WalkTarget>,
}

impl<'a> Script<'a> {
    fn new(input: &'a [u8]) -> Self {
        let mut reader = Reader(input);
        let mut shard = ShardTrie::new(Shard::from_nibble(1).unwrap());
        shard.verify_nodes = reader.byte() & 1 != 0;
        Self { reader, shard, targets: Vec::new() }
    }

    fn run(mut self) {
        while !self.reader.is_empty() {
            if self.step().is_err() {
                self.shard.clear();
                self.targets.clear();
            }
        }
        let _ = self.shard.finish();
    }

    fn step(&mut self) -> Result<(), tandem_trie::Error> {
        match self.reader.byte() % 9 {
            0 => {
                let update = update(&mut self.reader);
                self.shard.update(&update);
            }
            1 => {
                let owner = self.reader.near_hash();
                let slots: Vec<_> =
                    (0..self.reader.byte() % 4).map(|_| self.reader.near_hash()).collect();
                self.shard.prefetch(&owner, &slots);
            }
            8 => {
                let (before, mut after) = (update(&mut self.reader), update(&mut self.reader));
                after.address_hash = before.address_hash;
                for (before, after) in before.slots.iter().zip(&mut after.slots) {
                    after.key = before.key;
                }
                self.shard.foresee(&before, &after);
            }
            2 | 3 => {
                let owner = (self.reader.byte() & 1 != 0).then(|| self.reader.near_hash());
                let path = self.reader.bytes();
                return self.shard.reveal(owner.as_ref(), path, self.reader.bytes());
            }
            4 => {
                self.shard.take_targets(&mut self.targets);
                for target in std::mem::take(&mut self.targets) {
                    self.shard.answered(&target);
                }
            }
            5 => return self.shard.finish().map(drop),
            6 => {
                let target = WalkTarget {
                    owner: (self.reader.byte() & 1 != 0).then(|| self.reader.near_hash()),
                    key: self.reader.near_hash(),
                    from_depth: self.reader.byte() % 65,
                };
                self.shard.answered(&target);
            }
            _ => self.shard.prune(usize::from(self.reader.byte()) * 16),
        }
        Ok(())
    }
}

/// Reads an update of one account, with up to seven slots.
pub(super) fn update(reader: &mut Reader<'_>) -> AccountUpdate {
    let address_hash = reader.near_hash();
    let flags = reader.byte();
    let slots = (0..reader.byte() % 8)
        .map(|_| SlotUpdate { key: reader.near_hash(), value: reader.word() })
        .collect();
    let account = (flags & 1 != 0).then(account);
    AccountUpdate { address_hash, account, wiped: flags & 2 != 0, slots }
}
