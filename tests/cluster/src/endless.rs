//! An endless chain for soak tests: both the state and its record stay bounded.

use crate::{
    builder::{Contents, Done, Job, Sealed, genesis, seal},
    forks::{Forks, next_base_fee},
    payload::new_payload,
    world::{Account, Running, Touched, World},
};
use alloy_consensus::{EMPTY_OMMER_ROOT_HASH, Header};
use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, U256, keccak256};
use rand::{SeedableRng, rngs::StdRng};
use serde_json::Value;
use std::{collections::BTreeMap, convert::Infallible, mem};
use tandem_chain::Fork;
use tandem_primitives::{AccountUpdate, Shard, SlotUpdate, WalkTarget};
use tandem_trie::{NodeSink, NodeSource, ShardTrie, apply_block};

/// Number of ancestors that BLOCKHASH knows.
const ANCESTORS: u64 = 256;

/// Generator of blocks, each on the one before.
///
/// Unlike [`crate::Builder`] it is no oracle: its roots come from the project's own trie, which
/// takes only a block's changes. It serves to make very many blocks.
pub struct Endless {
    forks: Forks,
    tip: Header,
    world: World,
    shards: Vec<ShardTrie>,
    ancestors: BTreeMap<u64, B256>,
    rng: StdRng,
    genesis_json: String,
}

/// A block as the Engine API takes it.
#[derive(Clone, Debug)]
pub struct EndlessBlock {
    /// The newPayload method of its fork.
    pub method: &'static str,
    /// The method's parameters.
    pub params: Value,
    /// Hash of the block.
    pub hash: B256,
    /// Height above genesis.
    pub number: u64,
}

/// An empty source: all nodes are in memory from the beginning, so any requested node does not
/// exist.
struct Nothing;

impl NodeSource for Nothing {
    type Error = Infallible;

    fn walk(&mut self, _: &[WalkTarget], _: &mut NodeSink<'_>) -> Result<(), Infallible> {
        Ok(())
    }
}

impl Endless {
    /// Creates a chain; `seed` decides its choices. Its contracts can be destroyed, so its fork is
    /// one before Cancun (EIP-6780).
    pub fn new(seed: u64) -> Self {
        let forks = Forks::at_genesis(Fork::Shanghai);
        let (world, tip, genesis_json) = genesis(&forks);
        let all = |account: &Account| (false, account.storage.keys().copied().collect());
        let all: Touched = world.0.iter().map(|(key, account)| (*key, all(account))).collect();
        let mut shards: Vec<_> = Shard::all().map(ShardTrie::new).collect();
        let root = apply(&mut shards, &world, &all);
        assert_eq!(root, tip.state_root, "root of the genesis state");
        let ancestors = BTreeMap::from([(0, tip.hash_slow())]);
        let rng = StdRng::seed_from_u64(seed);
        Self { forks, tip, world, shards, ancestors, rng, genesis_json }
    }

    /// Returns the genesis file in geth's format.
    pub fn genesis_json(&self) -> &str {
        &self.genesis_json
    }

    /// Returns the numbers of current accounts and slots.
    pub fn size(&self) -> (usize, usize) {
        let accounts = &self.world.0;
        (accounts.len(), accounts.values().map(|account| account.storage.len()).sum())
    }

    /// Returns the next block, with `transactions` transactions or a few fewer.
    pub fn next_block(&mut self, transactions: usize) -> EndlessBlock {
        let parent = &self.tip;
        let base_fee = parent.base_fee_per_gas.unwrap_or(0);
        let header = Header {
            parent_hash: parent.hash_slow(),
            ommers_hash: EMPTY_OMMER_ROOT_HASH,
            beneficiary: Address::repeat_byte(0xfe),
            number: parent.number + 1,
            gas_limit: parent.gas_limit,
            timestamp: parent.timestamp + 12,
            extra_data: Bytes::from_static(b"endless"),
            mix_hash: keccak256(parent.number.to_be_bytes()),
            base_fee_per_gas: Some(next_base_fee(parent.gas_limit, parent.gas_used, base_fee)),
            ..Header::default()
        };
        let fork = self.forks.at(header.timestamp);
        let withdrawals = Some(Vec::new());
        let contents = Contents::Bounded(transactions);
        let running = Running::new(mem::take(&mut self.world), self.ancestors.clone());
        let mut done: Done = Job {
            forks: &self.forks,
            header: &header,
            withdrawals: &withdrawals,
            contents,
            given: &[],
        }
        .execute(running, &mut self.rng);
        self.world = mem::take(&mut done.world);
        let state_root = apply(&mut self.shards, &self.world, &done.touched);
        let Sealed { header, hash, payload, sidecar } =
            seal(fork, header, done, withdrawals, state_root);
        let number = header.number;
        self.ancestors.insert(number, hash);
        self.ancestors.remove(&number.wrapping_sub(ANCESTORS));
        self.tip = header;
        let (method, params) = new_payload(fork, &payload, &sidecar);
        EndlessBlock { method, params, hash, number }
    }
}

/// Writes the touched accounts and slots into the tries, and returns the root.
fn apply(shards: &mut [ShardTrie], world: &World, touched: &Touched) -> B256 {
    let updates: Vec<_> = touched
        .iter()
        .map(|(address, (wiped, slots))| {
            let account = world.0.get(address);
            let value = |slot: &U256| {
                account.and_then(|account| account.storage.get(slot)).copied().unwrap_or_default()
            };
            let slots = slots.iter().map(|slot| SlotUpdate {
                key: keccak256(slot.to_be_bytes::<32>()),
                value: value(slot),
            });
            AccountUpdate {
                address_hash: keccak256(address),
                account: account.map(flat),
                wiped: *wiped,
                slots: slots.collect(),
            }
        })
        .collect();
    let (root, _, _) = apply_block(shards, &updates, &mut Nothing).expect("all nodes are there");
    root
}

fn flat(account: &Account) -> tandem_primitives::Account {
    let code_hash =
        if account.code.is_empty() { KECCAK256_EMPTY } else { keccak256(&account.code) };
    tandem_primitives::Account { nonce: account.nonce, balance: account.balance, code_hash }
}
