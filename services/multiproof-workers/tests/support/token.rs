//! A state with one token, and workers over it.

use crate::fake::Fake;
use std::sync::Arc;
use tandem_multiproof_workers::{Config, Deps, MultiproofWorkers};
use tandem_policy::{LivePolicies, Policies};
use tandem_primitives::{Account, AccountUpdate, B256, BlockId, SlotUpdate, U256, keccak256};
use tandem_proto::multiproof::StateUpdate;
use tandem_testkit::trie::State;
use tokio_util::sync::CancellationToken;

/// Returns these policies.
pub fn policies(batching: &str, chunking: &str, chunk_targets: u32) -> Policies {
    let mut policies = Policies::default();
    policies.set("batching", batching).unwrap();
    policies.set("chunking", chunking).unwrap();
    policies.set("chunk_targets", &chunk_targets.to_string()).unwrap();
    policies
}

/// Starts workers over this storage.
pub fn start(fake: &Arc<Fake>, config: &Config, live: &LivePolicies) -> Arc<MultiproofWorkers> {
    let (storage, bus, policies) = (fake.clone(), fake.bus.clone(), live.clone());
    let deps = Deps { storage, bus, policies, fatal: CancellationToken::new() };
    MultiproofWorkers::start(config.clone(), deps).unwrap()
}

/// Returns the id of a block of this height; the salt distinguishes blocks.
pub fn id(number: u64, salt: u64) -> BlockId {
    BlockId::new(number, keccak256([number.to_be_bytes(), salt.to_be_bytes()].concat()))
}

/// Returns an account with `slots` slots, all of which are in one storage trie.
pub fn token(slots: u64) -> AccountUpdate {
    let slot = |n: u64| SlotUpdate { key: keccak256(n.to_be_bytes()), value: U256::from(n + 1) };
    let account = Some(Account { nonce: 1, ..Account::default() });
    let address_hash = B256::repeat_byte(0x35);
    AccountUpdate { address_hash, account, wiped: false, slots: (0..slots).map(slot).collect() }
}

/// Returns the state that has only the token.
pub fn token_state(slots: u64) -> State {
    let mut state = State::default();
    state.apply(&token(slots));
    state
}

/// Returns an update that writes one slot of the token.
pub fn write(slot: u64, value: u64) -> Arc<StateUpdate> {
    let mut update = token(0);
    let key = keccak256(slot.to_be_bytes());
    update.slots = vec![SlotUpdate { key, value: U256::from(value) }];
    Arc::new(StateUpdate { accounts: vec![update] })
}

/// Returns the state after these updates.
pub fn after(state: &State, updates: &[Arc<StateUpdate>]) -> State {
    let mut after = state.clone();
    updates.iter().flat_map(|update| &update.accounts).for_each(|account| after.apply(account));
    after
}

/// Returns the settings for one worker.
pub fn small(proof_threads: usize) -> Config {
    // How long jobs wait does not matter to what is asked for.
    Config { threads: 1, proof_threads, chunk_targets_min: Some(1), ..Config::default() }
}
