//! Witnesses: the files that contain them, and the partial tries in them.

use super::trie;
use crate::{Reader, Target, heap, seeds::OSAKA, structures};
use alloy_primitives::{B256, Bytes, hex, keccak256};
use serde_json::json;
use std::sync::{Arc, LazyLock};
use tandem_chain::ChainSpec;
use tandem_executor::stateless::{Gaps, Input, InputError, decode_block, execute_on_witness};
use tandem_trie::{PartialState, Witness};

/// Target for a partial trie, followed by reads and updates.
pub const TRIE: Target = Target {
    name: "witness_trie",
    bytes_per_byte: 4,
    structures: structures::none,
    constant: 144 << 10,
    input_len_max: 4 << 10,
    mutations: 10_000,
    seeds: trie_seeds,
    dictionary: trie::DICTIONARY,
    run: run_trie,
};

/// Target for files of `tandem execute-witness`.
pub const FILE: Target = Target {
    name: "witness_file",
    bytes_per_byte: 4,
    structures: structures::witness_file,
    constant: 16 << 10,
    input_len_max: 16 << 10,
    mutations: 10_000,
    seeds: file_seeds,
    dictionary: &[
        b"null",
        b"\"0x\"",
        b"[]",
        b"{}",
        b"\"state\":",
        b"\"codes\":",
        b"\"headers\":",
        b"\"witness\":",
        b"\"result\":",
        b"\"block\":",
        b"\"engine\":",
        b"\"syntheticParent\":true",
        b"\"blockHashes\":",
        b"\"chainId\":",
    ],
    run: read_file,
};

/// Start of a link in a node: these bytes and a number stand for the hash of the node with that
/// number. Changes to a node then keep the link to it.
const LINK: [u8; 31] = [0xee; 31];

fn linked(nodes: &[Bytes], node: &[u8]) -> Bytes {
    let mut node = node.to_vec();
    let mut at = 0;
    while at + 32 <= node.len() {
        let named = nodes.get(usize::from(node[at + 31]));
        if let (true, Some(named)) = (node[at..].starts_with(&LINK), named) {
            node[at..at + 32].copy_from_slice(keccak256(named).as_slice());
            at += 31;
        }
        at += 1;
    }
    node.into()
}

/// Returns each trie of accounts with the storage trie of its accounts, and a walk over it.
fn trie_seeds() -> Vec<Vec<u8>> {
    let seed = |(storage, accounts): (trie::Nodes, trie::Nodes)| {
        // Children before the nodes that link to them.
        let all: Vec<_> = storage.iter().rev().chain(accounts.iter().rev()).collect();
        let hashes: Vec<B256> = all.iter().map(|(_, rlp)| keccak256(rlp)).collect();
        let mut seed = vec![all.len() as u8];
        for (_, rlp) in &all {
            let mut rlp = rlp.clone();
            for (index, hash) in (0..).zip(&hashes) {
                if let Some(at) = rlp.windows(32).position(|part| part == hash) {
                    rlp[at..at + 31].copy_from_slice(&LINK);
                    rlp[at + 31] = index;
                }
            }
            seed.extend((rlp.len() as u16).to_le_bytes());
            seed.extend(rlp);
        }
        seed.extend([0, 0x11, 1, 1, 0x11, 1, 0x11, 2]);
        // A new slot, a removed slot, a removed account, a new account.
        seed.extend([2, 0x11, 1, 1, 2, 0x11, 5, 1, 9, 0x11, 2, 0]);
        seed.extend([2, 0x11, 2, 0, 0, 2, 0x21, 7, 1, 0]);
        seed
    };
    trie::tries(&[]).into_iter().map(seed).collect()
}

fn run_trie(input: &[u8]) {
    let mut reader = Reader(input);
    let mut nodes = Vec::new();
    for _ in 0..reader.byte() % 32 {
        nodes.push(linked(&nodes, reader.bytes()));
    }
    let root = nodes.last().map(keccak256).unwrap_or_default();
    heap::measured(|| {
        let witness = Witness::new(nodes);
        let Ok(mut state) = PartialState::new(&witness, root) else { return };
        while !reader.is_empty() {
            match reader.byte() % 4 {
                0 => drop(witness.account(root, &reader.near_hash())),
                1 => {
                    let owner = reader.near_hash();
                    let Ok(Some((_, storage))) = witness.account(root, &owner) else { continue };
                    let _ = witness.slot(&owner, storage, &reader.near_hash());
                }
                _ => {
                    let Ok(root) = state.apply(&[trie::update(&mut reader)]) else { return };
                    assert_eq!(state.apply(&[]), Ok(root), "nothing changes nothing");
                }
            }
        }
    });
}

fn file_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for pair in OSAKA.blocks.windows(2) {
        let parent = alloy_rlp::encode(&pair[0].header);
        let block = super::block::built(&pair[1]);
        let rlp = block.to_rlp();
        let (method, params) = pair[1].new_payload();
        let state = ["0x80", "0xc22001"];
        let witness = json!({"state": state, "codes": ["0x6001"], "headers": [hex::encode_prefixed(&parent)]});
        let as_object = json!({"state": state, "codes": [], "headers": [pair[0].header]});
        let engine = json!({"method": method, "params": params});
        for file in [
            json!({"chainId": 1, "block": rlp, "witness": witness}),
            json!({"chainId": "0x1", "engine": engine, "witness": as_object, "syntheticParent": true,
                "blockHashes": [pair[0].hash]}),
            json!({"jsonrpc": "2.0", "id": 1, "result": witness}),
            json!({"block": rlp, "state": state, "headers": [hex::encode_prefixed(&parent)], "keys": []}),
            json!({"result": rlp}),
            json!(rlp),
        ] {
            seeds.push(file.to_string().into_bytes());
        }
        seeds.push(rlp.to_vec());
    }
    seeds.retain(|seed| seed.len() <= FILE.input_len_max);
    seeds
}

fn read_file(input: &[u8]) {
    static SPEC: LazyLock<ChainSpec> =
        LazyLock::new(|| ChainSpec::from_genesis_json(&OSAKA.genesis).unwrap());
    if let Ok(block) = heap::measured(|| decode_block(input)) {
        assert_eq!(decode_block(&block.to_rlp()).map(|block| block.id).ok(), Some(block.id));
    }
    let Ok(text) = std::str::from_utf8(input) else { return };
    let parsed = heap::measured(|| Input::parse(text));
    let Ok(Input { block: Some(block), witness, .. }) = parsed else {
        assert!(!matches!(parsed, Err(InputError::NoClaim)) || text.contains("syntheticParent"));
        return;
    };
    // The block's work is bounded by its gas, which any author may set.
    if block.header.gas_limit <= 1 << 25 {
        let _ = execute_on_witness(&SPEC, &Arc::new(block), &witness, Gaps::AssumeAbsent);
    }
}
