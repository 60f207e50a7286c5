//! `eth_getProof` of every state that a node can read, checked with alloy-trie against the state
//! roots and values of the oracle.

use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, U256, keccak256};
use alloy_trie::{EMPTY_ROOT_HASH, Nibbles, TrieAccount, proof::verify_proof, root};
use serde_json::{Value, json};
use tandem_chain::Fork;
use tandem_cluster::Config;
use tandem_cluster_tests::{Account, Builder, Built, Contents, Forks, Node};

fn nodes(value: &Value) -> Vec<Bytes> {
    serde_json::from_value(value.clone()).unwrap()
}

fn leaf(account: &Account) -> TrieAccount {
    let slots = account.storage.iter().map(|(slot, value)| (B256::from(*slot), *value));
    TrieAccount {
        nonce: account.nonce,
        balance: account.balance,
        storage_root: root::storage_root_unhashed(slots),
        code_hash: match account.code.is_empty() {
            true => KECCAK256_EMPTY,
            false => keccak256(&account.code),
        },
    }
}

/// Checks the proof of an account, of its first slots, and of a slot that is not set.
async fn check(node: &mut Node, built: &Built, address: Address) {
    let account = built.world.0.get(&address);
    let storage = account.map(|account| account.storage.clone()).unwrap_or_default();
    let absent = U256::from(0xdead_u64);
    let slots: Vec<_> = storage.keys().copied().take(6).chain([absent]).collect();
    let keys: Vec<_> = slots.iter().map(|slot| B256::from(*slot)).collect();
    let params = json!([address, keys, built.hash]);
    let answer = node.http.call("eth_getProof", params).await.unwrap();

    let expected = account.map(|account| alloy_rlp::encode(leaf(account)));
    let path = Nibbles::unpack(keccak256(address));
    let proof = nodes(&answer["accountProof"]);
    verify_proof(built.header.state_root, path, expected, &proof)
        .unwrap_or_else(|error| panic!("{address} at {}: {error}", built.header.number));
    let storage_hash = account.map_or(B256::ZERO, |account| leaf(account).storage_root);
    assert_eq!(answer["storageHash"], json!(storage_hash), "{address}");
    let nonce = account.map_or(0, |account| account.nonce);
    assert_eq!(answer["nonce"], json!(format!("{nonce:#x}")));

    let storage_root = if account.is_some() { storage_hash } else { EMPTY_ROOT_HASH };
    for (position, slot) in slots.iter().enumerate() {
        let entry = &answer["storageProof"][position];
        let value = storage.get(slot).copied().unwrap_or_default();
        assert_eq!(entry["key"], json!(keys[position]));
        assert_eq!(entry["value"], json!(format!("{value:#x}")), "{address} {slot}");
        let path = Nibbles::unpack(keccak256(keys[position]));
        let expected = (!value.is_zero()).then(|| alloy_rlp::encode(value));
        verify_proof(storage_root, path, expected, &nodes(&entry["proof"]))
            .unwrap_or_else(|error| panic!("{address} slot {slot}: {error}"));
    }
}

async fn check_all(node: &mut Node, built: &Built) {
    let strangers = [Address::repeat_byte(0x77), Address::with_last_byte(0xfe)];
    for address in built.world.0.keys().copied().chain(strangers) {
        check(node, built, address).await;
    }
}

/// More blocks than the base stays behind the head: proofs join the base's nodes with those of the
/// blocks above it. Every block is proven while it is the head, and the older ones again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proofs_hold_in_the_base_and_above_it() {
    let mut builder = Builder::new(Forks::at_genesis(Fork::Prague));
    let mut config = Config::default();
    config.storage_writer.unfinalized_blocks_max = 16;
    let mut node = Node::start_with(builder.genesis_json(), config).await;
    let genesis = builder.get(builder.genesis()).clone();
    check_all(&mut node, &genesis).await;
    let chain = builder.chain(genesis.hash, 31, 24, Contents::Everything);
    for built in &chain {
        node.extend(built).await;
        check(&mut node, built, built.header.beneficiary).await;
    }
    for built in [&chain[23], &chain[16], &chain[10]] {
        check_all(&mut node, built).await;
    }
    // The base has left this block behind.
    let old = json!([Address::ZERO, [], genesis.hash]);
    let error = node.http.call("eth_getProof", old).await.unwrap_err();
    assert_eq!(error.code, 4444, "{error:?}");
    assert!(error.message.contains("oldest"), "{error:?}");
    node.stop_and_verify().await;
}

/// A block beside the canonical chain has its own state, and its own proofs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proofs_follow_the_branch_of_their_block() {
    let mut builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let mut node = Node::start(builder.genesis_json()).await;
    let one = builder.chain(builder.genesis(), 41, 5, Contents::Everything);
    let other = builder.chain(one[1].hash, 42, 4, Contents::Everything);
    for built in &one {
        node.extend(built).await;
    }
    for built in &other {
        node.import(built).await;
    }
    for built in [&one[4], &other[3], &other[0], &one[1]] {
        check_all(&mut node, built).await;
    }
    node.set_head(other[3].hash).await;
    for built in [&one[4], &other[3]] {
        check_all(&mut node, built).await;
    }
    node.stop_and_verify().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_come_back_as_they_were_written_and_are_bounded() {
    let builder = Builder::new(Forks::at_genesis(Fork::Prague));
    let mut node = Node::start(builder.genesis_json()).await;
    let full = B256::with_last_byte(1);
    let params = json!([Address::ZERO, ["0x00", "0x1", "1", full], "latest"]);
    let answer = node.http.call("eth_getProof", params).await.unwrap();
    let keys: Vec<_> = (0..4).map(|slot| answer["storageProof"][slot]["key"].clone()).collect();
    assert_eq!(json!(keys), json!(["0x0", "0x1", "0x1", full]));
    for (keys, code) in [(json!(["0xzz"]), -32602), (json!(vec!["0x0"; 1025]), -32602)] {
        let error = node.http.call("eth_getProof", json!([Address::ZERO, keys, "latest"])).await;
        assert_eq!(error.unwrap_err().code, code);
    }
    node.stop_and_verify().await;
}
