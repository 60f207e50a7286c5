use crate::common::{check, gunzip, spec};
use alloy_primitives::{Address, B256, Bytes};
use serde::Deserialize;
use std::path::Path;
use tandem_chain::*;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MainnetBlock {
    block_hash: B256,
    state_root: B256,
    transaction_hashes: Vec<B256>,
    senders: Vec<Address>,
    block: Bytes,
}

fn read(number: u64) -> MainnetBlock {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    serde_json::from_str(&gunzip(&folder.join(format!("mainnet-{number}.json.gz")))).unwrap()
}

#[test]
fn blocks_of_mainnet_decode_to_what_the_network_knows_them_by() {
    for number in [15537394, 19426587, 22431082, 22431084] {
        let want = read(number);
        let block = Block::from_rlp(&want.block).unwrap();
        assert_eq!((block.id.number, block.id.hash), (number, want.block_hash));
        assert_eq!(block.header.state_root, want.state_root);
        assert_eq!(*block.transaction_hashes, want.transaction_hashes);
        assert_eq!(recover_senders(&block).unwrap(), want.senders);
        assert_eq!(block.rlp_len(), want.block.len());
        let parts = Block::decode(block.header_rlp.clone(), block.body_rlp.clone());
        assert_eq!(parts.as_ref(), Ok(&block));
    }
}

#[test]
fn blocks_of_mainnet_survive_the_way_through_a_payload() {
    for number in [15537394, 19426587, 22431082, 22431084] {
        let block = Block::from_rlp(&read(number).block).unwrap();
        let (payload, mut sidecar) = Payload::from_block(&block);
        // The three blocks from Cancun on contain no requests.
        sidecar.execution_requests = block.header.requests_hash.map(|_| Vec::new());
        assert_eq!(Block::from_payload(payload, &sidecar), Ok(block));
    }
}

#[test]
fn bodies_of_mainnet_follow_the_rules_of_their_fork() {
    let spec = spec(
        r#""terminalTotalDifficultyPassed": true, "shanghaiTime": 1681338455,
        "cancunTime": 1710338135, "pragueTime": 1746612311"#,
    );
    let forks = [Fork::Paris, Fork::Cancun, Fork::Cancun, Fork::Prague];
    for (number, fork) in [15537394, 19426587, 22431082, 22431084].into_iter().zip(forks) {
        let block = Block::from_rlp(&read(number).block).unwrap();
        assert_eq!(spec.fork_at(block.header.timestamp), fork);
        assert_eq!(validate_body(&spec, &block), Ok(()));
        let (payload, sidecar) = Payload::from_block(&block);
        let error = check(&spec, &spec.genesis_header(B256::ZERO), payload, &sidecar).unwrap_err();
        assert_eq!(error.kind(), "parent_hash");
    }
}

#[test]
fn a_body_that_is_not_the_headers_is_refused() {
    let one = Block::from_rlp(&read(19426587).block).unwrap();
    let other = Block::from_rlp(&read(22431082).block).unwrap();
    let merge = Block::from_rlp(&read(15537394).block).unwrap();
    let join = |header: &Block, body: &Block| {
        let fields = alloy_rlp::Header::decode_bytes(&mut &body.body_rlp[..], true).unwrap();
        let payload_length = header.header_rlp.len() + fields.len();
        let mut rlp = Vec::new();
        alloy_rlp::Header { list: true, payload_length }.encode(&mut rlp);
        rlp.extend_from_slice(&header.header_rlp);
        rlp.extend_from_slice(fields);
        Block::from_rlp(&rlp)
    };
    assert_eq!(join(&one, &one), Ok(one.clone()));
    assert_eq!(join(&one, &other).unwrap_err().kind(), "transactions_root");
    assert_eq!(join(&one, &merge).unwrap_err().kind(), "withdrawals_root");
    let mut trailing = read(19426587).block.to_vec();
    trailing.push(0);
    assert_eq!(Block::from_rlp(&trailing).unwrap_err().kind(), "rlp");
}
