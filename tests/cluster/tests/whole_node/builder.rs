//! The oracle itself: its blocks pass the pure consensus rules, and its arithmetic agrees with
//! geth's where a corpus records it.

use alloy_primitives::U256;
use flate2::read::MultiGzDecoder;
use serde_json::{Value, json};
use std::{collections::BTreeSet, fs::File};
use tandem_chain::{Block, ChainSpec, Fork, recover_senders, validate_body, validate_header};
use tandem_cluster_tests::{Account, Builder, Contents, Corpus, FORKS, Forks, World};
use tandem_testkit::geth::{Geth, import, is_installed};

#[test]
fn its_state_root_of_a_genesis_is_geths() {
    let corpus = Corpus::demo();
    let file = File::open(corpus.genesis()).unwrap();
    let genesis: Value = serde_json::from_reader(MultiGzDecoder::new(file)).unwrap();
    let accounts = genesis["alloc"].as_object().unwrap().iter().map(|(address, account)| {
        let read = |key: &str| account.get(key).cloned().unwrap_or_else(|| "0x0".into());
        let number = |value: Value| value.as_str().unwrap().parse::<U256>().unwrap();
        let storage = account.get("storage").and_then(Value::as_object);
        let account = Account {
            nonce: number(read("nonce")).to(),
            balance: number(read("balance")),
            code: account.get("code").map_or_else(Default::default, |code| {
                serde_json::from_value(code.clone()).unwrap()
            }),
            storage: storage
                .into_iter()
                .flatten()
                .map(|(slot, value)| (slot.parse().unwrap(), number(value.clone())))
                .collect(),
        };
        (address.parse().unwrap(), account)
    });
    let root = World(accounts.collect()).state_root();
    let spec = ChainSpec::from_genesis_json(&genesis.to_string()).unwrap();
    assert_eq!(spec.genesis_header(root).hash_slow(), corpus.genesis_hash);
}

#[test]
fn its_blocks_pass_the_rules_of_every_fork() {
    let all = FORKS.into_iter();
    for forks in all.clone().map(Forks::at_genesis).chain(all.map(|fork| Forks::leaving(fork, 90)))
    {
        let mut builder = Builder::new(forks);
        let spec = ChainSpec::from_genesis_json(builder.genesis_json()).unwrap();
        let genesis = builder.get(builder.genesis()).clone();
        assert_eq!(spec.genesis_header(genesis.header.state_root), genesis.header, "{forks:?}");
        let mut parent = genesis.header.clone();
        for contents in [Contents::Random(8), Contents::Everything] {
            for built in builder.chain(parent.hash_slow(), 7, 8, contents) {
                let block = Block::from_payload(built.payload.clone(), &built.sidecar).unwrap();
                validate_header(&spec, &block.header, &parent).unwrap();
                validate_body(&spec, &block).unwrap();
                recover_senders(&block).unwrap();
                assert_eq!(block.header, built.header);
                parent = block.header;
            }
        }
    }
}

/// geth checks and executes the blocks, so neither a rule nor its numbers are this project's alone.
#[test]
fn its_blocks_are_valid_for_geth_in_every_fork() {
    if !is_installed() {
        return;
    }
    for (index, fork) in FORKS.into_iter().enumerate() {
        let mut builder = Builder::new(Forks::leaving(fork, 90));
        let mut blocks = builder.chain(builder.genesis(), 7, 8, Contents::Random(8));
        blocks.extend(builder.chain(blocks[7].hash, 8, 8, Contents::Everything));
        let (folder, name) = (tempfile::tempdir().unwrap(), format!("geth-{index}"));
        let bytes = blocks.iter().map(|built| {
            Block::from_payload(built.payload.clone(), &built.sidecar).unwrap().to_rlp()
        });
        import(folder.path(), &name, builder.genesis_json(), bytes);
        let geth = Geth::start(folder.path(), &name, &["--port", "0", "--cache", "64"]);
        let head = geth.eval("eth.getBlock('latest').hash");
        assert_eq!(head, json!(blocks[15].hash), "{fork:?}");
    }
}

/// A chain in which nothing happens would let every test pass.
#[test]
fn its_chains_touch_everything_that_is_to_be_tested() {
    let mut builder = Builder::new(Forks::at_genesis(Fork::Shanghai));
    let (mut wiped, mut cleared, mut created, mut failed) = (0, 0, 0, 0);
    let mut parent = builder.get(builder.genesis()).clone();
    for built in builder.chain(parent.hash, 3, 60, Contents::Random(12)) {
        let (before, after) = (&parent.world.0, &built.world.0);
        for (address, account) in before {
            match after.get(address) {
                None => wiped += usize::from(!account.storage.is_empty()),
                Some(now) => {
                    let slots = account.storage.keys();
                    cleared += slots.filter(|slot| !now.storage.contains_key(*slot)).count();
                }
            }
        }
        created += after.keys().filter(|address| !before.contains_key(*address)).count();
        failed += usize::from(built.header.gas_used > 1_000_000);
        parent = built;
    }
    assert!(wiped >= 5, "contracts with storage destroyed: {wiped}");
    assert!(cleared >= 50, "slots cleared: {cleared}");
    assert!(created >= 50, "accounts created: {created}");
    assert!(failed >= 5, "blocks with much gas burnt: {failed}");

    let mut builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let blocks = builder.chain(builder.genesis(), 4, 40, Contents::Random(12));
    let requests =
        blocks.iter().flat_map(|built| built.sidecar.execution_requests.iter().flatten());
    let types: BTreeSet<_> = requests.map(|request| request[0]).collect();
    assert_eq!(types, BTreeSet::from([0, 1, 2]), "types of requests");
    let transactions = blocks.iter().flat_map(|built| &built.payload.transactions);
    let types: BTreeSet<_> = transactions.map(|raw| raw[0].min(0xc0)).collect();
    assert_eq!(types, BTreeSet::from([1, 2, 3, 4, 0xc0]), "types of transactions");
    let delegated = delegations(&blocks.last().unwrap().world);
    assert!(delegated > 0, "accounts with delegated code");
    assert!(blocks.iter().any(|built| built.header.excess_blob_gas > Some(0)));
}

fn delegations(world: &World) -> usize {
    world.0.values().filter(|account| account.code.starts_with(&[0xef, 0x01, 0x00])).count()
}
