//! Sessions with a real geth: it serves blocks that are checked, and syncs a whole chain from here.
//! Skipped, visibly, where geth is not installed.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

mod common;

use alloy_primitives::{B256, Bytes, keccak256};
use alloy_rlp::{Decodable, Encodable, Header};
use common::{Blocks, Node, block_on, config, key, wait};
use serde_json::Value;
use std::sync::Arc;
use tandem_discv4::PublicKey;
use tandem_peer_sessions::PeerAddress;
use tandem_proto::{
    peer_sessions::{Direction, Fetch, Fetched},
    storage::BlockRef,
};
use tandem_testkit::geth::{Geth, is_installed, run};

/// Network of geth's development chain.
const NETWORK: u64 = 1337;

/// Transactions, each of which makes a block.
const BLOCKS: u64 = 20;

fn hash(value: &Value) -> B256 {
    value.as_str().unwrap().parse().unwrap()
}

fn node_url(geth: &Geth) -> PeerAddress {
    let url = geth.enode();
    let (id, address) = url.strip_prefix("enode://").unwrap().split_once('@').unwrap();
    PeerAddress { id: id.parse::<PublicKey>().unwrap(), address: address.parse().unwrap() }
}

/// Returns the items of a list.
fn items(list: &[u8]) -> Vec<Bytes> {
    let mut rest = Header::decode_bytes(&mut &list[..], true).unwrap();
    let mut items = Vec::new();
    while !rest.is_empty() {
        let begin = rest;
        let header = Header::decode(&mut rest).unwrap();
        rest = &rest[header.payload_length..];
        items.push(Bytes::copy_from_slice(&begin[..begin.len() - rest.len()]));
    }
    items
}

fn number(header: &[Bytes]) -> u64 {
    u64::decode(&mut &header[8][..]).unwrap()
}

fn field(header: &[Bytes], index: usize) -> B256 {
    B256::decode(&mut &header[index][..]).unwrap()
}

/// Returns the root of a list of values, as headers have it.
fn root(values: impl Iterator<Item = Vec<u8>>) -> B256 {
    let values: Vec<_> = values.collect();
    alloy_trie::root::ordered_trie_root_encoded(&values)
}

/// Returns the bytes of a transaction as the trie has them: without the wrapping of a typed one.
fn consensus_form(item: &Bytes) -> Vec<u8> {
    let mut rest = &item[..];
    let header = Header::decode(&mut rest).unwrap();
    if header.list { item.to_vec() } else { rest.to_vec() }
}

/// Returns a receipt of eth/69 as the trie has it: with its bloom filter, and its type in front.
fn receipt_with_bloom(receipt: &Bytes) -> Vec<u8> {
    let fields = items(receipt);
    let kind = u64::decode(&mut &fields[0][..]).unwrap() as u8;
    let logs = Vec::<alloy_primitives::Log>::decode(&mut &fields[3][..]).unwrap();
    let bloom = alloy_primitives::logs_bloom(&logs);
    let payload_length = fields[1].len() + fields[2].len() + bloom.length() + fields[3].len();
    let mut out = Vec::new();
    if kind != 0 {
        out.push(kind);
    }
    Header { list: true, payload_length }.encode(&mut out);
    out.extend_from_slice(&fields[1]);
    out.extend_from_slice(&fields[2]);
    bloom.encode(&mut out);
    out.extend_from_slice(&fields[3]);
    out
}

/// Fetches the whole chain of a geth, and checks it against its newest hash.
fn fetch(node: &Node, newest: B256) -> Blocks {
    let peer = node.peer();
    let ask = |request| block_on(peer.fetch(request)).unwrap();
    let request =
        Fetch::Headers { start: BlockRef::Hash(newest), limit: 1000, skip: 0, reverse: true };
    let Fetched::Headers(mut headers) = ask(request) else { panic!() };
    headers.reverse();
    let hashes: Vec<_> = headers.iter().map(keccak256).collect();
    assert_eq!((headers.len() as u64, hashes.last()), (BLOCKS + 1, Some(&newest)));
    let Fetched::Bodies(bodies) = ask(Fetch::Bodies(hashes.clone())) else { panic!() };
    let request = Fetch::Receipts { first: 0, hashes: hashes.clone() };
    let Fetched::Receipts { incomplete: false, blocks: receipts } = ask(request) else { panic!() };
    assert_eq!((bodies.len(), receipts.len()), (headers.len(), headers.len()));
    let mut blocks = Blocks::default();
    let mut transactions = 0;
    for (index, header) in headers.into_iter().enumerate() {
        let fields = items(&header);
        assert_eq!(number(&fields), index as u64);
        if index > 0 {
            assert_eq!(field(&fields, 0), hashes[index - 1], "the parent");
        }
        let body = items(&bodies[index]);
        let included = items(&body[0]);
        transactions += included.len();
        assert_eq!(field(&fields, 4), root(included.iter().map(consensus_form)), "transactions");
        let receipts_of = items(&receipts[index]);
        assert_eq!(receipts_of.len(), included.len());
        assert_eq!(field(&fields, 5), root(receipts_of.iter().map(receipt_with_bloom)), "receipts");
        blocks.push(header, bodies[index].clone(), receipts[index].clone(), None);
    }
    assert_eq!(transactions as u64, BLOCKS);
    blocks
}

#[test]
fn geth_serves_a_chain_and_another_geth_syncs_it_from_here() {
    if !is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    // A development chain is made without networking, and served by a second process.
    let mut maker = Geth::start(folder, "a", &["--dev"]);
    for _ in 0..BLOCKS / 5 {
        let send = "[1, 2, 3, 4, 5].map(function() { var before = eth.blockNumber; var sent = \
                    eth.sendTransaction({from: eth.accounts[0], to: \
                    \"0x00000000000000000000000000000000000000aa\", value: 7}); while \
                    (eth.blockNumber == before) { admin.sleep(0.05); } return sent; })";
        assert_eq!(maker.eval(send).as_array().unwrap().len(), 5);
    }
    let newest = hash(&maker.eval("eth.getBlock(\"latest\").hash"));
    let root = maker.eval("eth.getBlock(\"latest\").stateRoot");
    assert_eq!(maker.eval("eth.blockNumber"), BLOCKS);
    maker.end();
    let network = NETWORK.to_string();
    let listening = ["--networkid", &network, "--port", "0"];
    let server = Geth::start(folder, "a", &listening);

    // This node has genesis alone, and fetches the rest.
    let genesis = hash(&server.eval("eth.getBlock(0).hash"));
    let mut known = Blocks::made_up(1, 1);
    known.numbers.insert(genesis, 0);
    let node = Node::start(config(), key(1), Arc::new(known), NETWORK);
    node.chain.send_modify(|chain| {
        chain.genesis = genesis;
        chain.range.latest_hash = genesis;
    });
    node.sessions.dial(node_url(&server));
    let peer = node.peer();
    assert!(peer.info().client.starts_with("Geth/v"), "{}", peer.info().client);
    assert_eq!((peer.range().latest, peer.range().latest_hash), (BLOCKS, newest));
    let peers = server.eval("admin.peers");
    assert_eq!(peers[0]["name"], "tandem/test", "{peers}");
    let blocks = fetch(&node, newest);
    drop(node);
    drop(server);

    // Another geth with the same genesis syncs to the newest block, from this node alone.
    let genesis_file = folder.join("genesis.json");
    std::fs::write(&genesis_file, run(folder, "a", "dumpgenesis", &[])).unwrap();
    run(folder, "b", "init", &[&genesis_file]);
    let node = Node::start(config(), key(2), Arc::new(blocks), NETWORK);
    let newest_text = newest.to_string();
    let mut args = listening.to_vec();
    args.extend(["--syncmode", "full", "--synctarget", &newest_text]);
    let client = Geth::start(folder, "b", &args);
    assert_eq!(hash(&client.eval("eth.getBlock(0).hash")), genesis);
    node.sessions.dial(node_url(&client));
    wait("geth's sync", || {
        let latest = client.eval("eth.getBlock(\"latest\")");
        (hash(&latest["hash"]) == newest && latest["stateRoot"] == root).then_some(())
    });
    assert_eq!(node.sessions.peers().len(), 1, "geth keeps the session");
}

#[test]
fn geth_dials_and_refuses_another_chain() {
    if !is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut maker = Geth::start(folder.path(), "a", &["--dev"]);
    maker.end();
    let network = NETWORK.to_string();
    let geth = Geth::start(folder.path(), "a", &["--networkid", &network, "--port", "0"]);
    let node = |own: u8, network| {
        let node = Node::start(config(), key(own), Arc::new(Blocks::made_up(1, 1)), network);
        let genesis = hash(&geth.eval("eth.getBlock(0).hash"));
        node.chain.send_modify(|chain| {
            chain.genesis = genesis;
            chain.range.latest_hash = genesis;
        });
        let id = alloy_primitives::hex::encode(node.key.public());
        let url = format!("enode://{id}@{}", node.address());
        assert_eq!(geth.eval(&format!("admin.addPeer(\"{url}\")")), true);
        node
    };
    let wrong = node(3, NETWORK + 1);
    let right = node(4, NETWORK);
    let peer = right.peer();
    assert_eq!(peer.info().direction, Direction::Inbound);
    assert!(wrong.sessions.peers().is_empty());
}
