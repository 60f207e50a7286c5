//! Tests blocks from before the merge on a whole cluster. The chain of the fixture begins in
//! Homestead and ends under proof of stake; block 71 is the last of proof of work.
#![allow(clippy::unwrap_used)]

use flate2::{Compression, write::GzEncoder};
use serde_json::Value;
use std::{
    fs,
    io::{Cursor, Write},
    path::{Path, PathBuf},
};
use tandem_chain::{Block, Header, Payload, PayloadSidecar};
use tandem_cluster::{BlockFile, Cluster, Config, Handle, ImportError, Imported, import};
use tandem_executor::{BlockTag, ForkchoiceState, PayloadStatus, Status};
use tandem_primitives::{B256, U256};

/// Last block of proof of work.
const TERMINAL: u64 = 71;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tools/conformance/fixtures/hivechain/cancun-577be37e0e")
}

fn read(name: &str) -> Vec<u8> {
    fs::read(folder().join(name)).unwrap()
}

fn start() -> Cluster {
    Cluster::start_in_memory(Config::small(), &read("genesis.json")[..]).unwrap()
}

/// Returns the blocks of the chain from block 1 up to this one.
fn blocks(last: u64) -> Vec<Block> {
    let mut file = BlockFile::open(&folder().join("chain.rlp")).unwrap();
    let mut blocks = Vec::new();
    while let Some(block) = file.next_block().unwrap() {
        if block.id.number > last {
            break;
        }
        blocks.push(block);
    }
    blocks
}

/// Returns a block as RLP with another header.
fn with_header(block: &Block, header: &Header) -> Vec<u8> {
    let body = alloy_rlp::Header::decode_bytes(&mut &block.body_rlp[..], true).unwrap();
    let header = alloy_rlp::encode(header);
    let mut rlp = Vec::new();
    let payload_length = header.len() + body.len();
    alloy_rlp::Header { list: true, payload_length }.encode(&mut rlp);
    rlp.extend_from_slice(&header);
    rlp.extend_from_slice(body);
    rlp
}

fn rlp(block: &Block) -> Vec<u8> {
    with_header(block, &block.header)
}

async fn import_bytes(handle: &Handle, bytes: Vec<u8>) -> Result<Imported, ImportError> {
    let mut file = BlockFile::new(Cursor::new(bytes)).unwrap();
    import(handle, &mut file, |_, _| ()).await
}

/// Returns a cluster with the chain up to this block.
async fn cluster_at(last: u64) -> Cluster {
    let cluster = start();
    let bytes = blocks(last).iter().flat_map(rlp).collect();
    import_bytes(&cluster.handle(), bytes).await.unwrap();
    assert_eq!(cluster.handle().chain().head().number, last);
    cluster
}

/// Returns the payload of a block of the chain.
fn payload(number: u64) -> (Payload, PayloadSidecar) {
    Payload::from_block(&blocks(number).pop().unwrap())
}

/// Sends a payload after a change, with its hash recomputed.
async fn send(
    handle: &Handle,
    (mut payload, sidecar): (Payload, PayloadSidecar),
    change: impl FnOnce(&mut Payload),
) -> PayloadStatus {
    change(&mut payload);
    let sealed = Block::from_payload(payload.clone(), &sidecar);
    if let Err(tandem_chain::BlockError::BlockHash { want, .. }) = sealed {
        payload.block_hash = want;
    }
    handle.new_payload(4, payload, sidecar).await.unwrap()
}

fn refused(status: &PayloadStatus, rule: &str) -> Option<B256> {
    assert_eq!(status.status, Status::Invalid, "{status:?}");
    let error = status.validation_error.as_deref().unwrap();
    assert!(error.starts_with(rule), "{error}");
    status.latest_valid_hash
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_from_before_the_merge_is_imported() {
    let cluster = start();
    let handle = cluster.handle();
    let want: Value = serde_json::from_slice(&read("headfcu.json")).unwrap();
    let want: B256 = serde_json::from_value(want["params"][0]["headBlockHash"].clone()).unwrap();
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(&read("chain.rlp")).unwrap();
    let packed = packed.finish().unwrap();
    let mut heard = 0;
    let mut file = BlockFile::new(Cursor::new(packed.clone())).unwrap();
    let done = import(&handle, &mut file, |_, _| heard += 1).await.unwrap();
    assert_eq!((done.new, done.known, heard), (500, 0, 500));
    assert_eq!((handle.chain().head().hash, handle.chain().head().number), (want, 500));
    assert_eq!(file.offset(), read("chain.rlp").len() as u64);
    // A second import changes nothing, nor do blocks below the head.
    let again = import_bytes(&handle, packed).await.unwrap();
    assert_eq!((again.new, again.known), (0, 500));
    let first = rlp(&blocks(1)[0]);
    assert_eq!(import_bytes(&handle, first).await.unwrap().known, 1);
    assert_eq!(handle.chain().head().hash, want);
    assert!(cluster.verify().unwrap().is_clean());
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn receipts_hold_the_state_root_until_byzantium() {
    let cluster = cluster_at(30).await;
    let chain = cluster.handle().chain().clone();
    let mut seen = [0; 2];
    for block in blocks(30) {
        let receipts = chain.receipts(block.id.hash).unwrap().unwrap();
        let byzantium = block.id.number >= 18;
        assert!(receipts.iter().all(|receipt| receipt.post_state.is_none() == byzantium));
        // The reward comes after the last transaction, so its root is not the block's.
        assert!(receipts.iter().all(|r| r.post_state != Some(block.header.state_root)));
        seen[usize::from(byzantium)] += receipts.len();
    }
    assert!(seen[0] > 0 && seen[1] > 0);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_stops_at_the_first_bad_block() {
    let cluster = start();
    let handle = cluster.handle();
    let chain = blocks(10);
    let import_last = async |header: Header| {
        let mut bytes: Vec<u8> = chain[..9].iter().flat_map(rlp).collect();
        bytes.extend(with_header(&chain[9], &header));
        import_bytes(&handle, bytes).await.unwrap_err().to_string()
    };
    let good = &chain[9].header;
    for (header, rule) in [
        (Header { state_root: B256::ZERO, ..good.clone() }, "state_root"),
        (Header { receipts_root: B256::ZERO, ..good.clone() }, "receipts_root"),
        (Header { difficulty: good.difficulty + U256::ONE, ..good.clone() }, "difficulty"),
    ] {
        let error = import_last(header.clone()).await;
        let want = format!("block 10 ({}): {rule}: ", header.hash_slow());
        assert!(error.starts_with(&want), "{error}");
        assert_eq!(handle.chain().head(), chain[8].id);
    }
    let error = import_last(Header { transactions_root: B256::ZERO, ..good.clone() }).await;
    assert!(error.contains("transactions root"), "{error}");
    let orphan = Header { parent_hash: B256::ZERO, ..good.clone() };
    assert!(import_last(orphan).await.ends_with("is not known"));
    let genesis = import_last(Header { number: 0, ..good.clone() }).await;
    assert!(genesis.contains("is not the genesis"), "{genesis}");
    // The refused block does not prevent the right one.
    assert_eq!(import_bytes(&handle, rlp(&chain[9])).await.unwrap().new, 1);
    assert_eq!(handle.chain().head(), chain[9].id);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_on_proof_of_work_needs_the_terminal_block_below_it() {
    let cluster = cluster_at(TERMINAL).await;
    let handle = cluster.handle();
    let chain = blocks(TERMINAL);
    let (early, terminal) = (chain[69].id, chain[70].id);
    let status = send(&handle, payload(72), |payload| {
        (payload.parent_hash, payload.block_number) = (early.hash, TERMINAL);
    })
    .await;
    assert_eq!(refused(&status, "terminal_not_reached"), Some(B256::ZERO));
    // For any fault right above proof of work, there is no valid payload to name.
    let status = send(&handle, payload(72), |payload| payload.state_root = B256::ZERO).await;
    assert_eq!(refused(&status, "state_root"), Some(B256::ZERO));
    // A child of the invalid block names none either.
    let wrong = send_hash(payload(72), |payload| payload.state_root = B256::ZERO);
    let status = send(&handle, payload(73), |payload| payload.parent_hash = wrong).await;
    assert_eq!(refused(&status, "state_root"), Some(B256::ZERO));
    let status = send(&handle, payload(72), |_| ()).await;
    assert_eq!(status.status, Status::Valid);
    assert_eq!(status.latest_valid_hash, Some(payload(72).0.block_hash));
    let status = send(&handle, payload(73), |payload| payload.state_root = B256::ZERO).await;
    assert_eq!(refused(&status, "state_root"), Some(payload(72).0.block_hash));
    // Proof of work ended with block 71.
    let late = Header {
        parent_hash: terminal.hash,
        number: 72,
        timestamp: chain[70].header.timestamp + 10,
        ..chain[70].header.clone()
    };
    let late = Block::from_rlp(&with_header(&chain[70], &late)).unwrap();
    let status = handle.import(late).await.unwrap();
    refused(&status, "terminal_passed");
    cluster.stop().await;
}

/// Returns the hash that [`send`] gives a payload.
fn send_hash(
    (mut payload, sidecar): (Payload, PayloadSidecar),
    change: impl FnOnce(&mut Payload),
) -> B256 {
    change(&mut payload);
    match Block::from_payload(payload, &sidecar) {
        Err(tandem_chain::BlockError::BlockHash { want, .. }) => want,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_proof_of_work_only_the_terminal_block_may_be_the_head() {
    let cluster = start();
    let handle = cluster.handle();
    let chain = blocks(TERMINAL);
    for block in &chain {
        assert_eq!(handle.import(block.clone()).await.unwrap().status, Status::Valid);
    }
    let (early, terminal) = (chain[69].id, chain[70].id);
    let choose = async |head| {
        let state = ForkchoiceState { head, safe: B256::ZERO, finalized: B256::ZERO };
        handle.forkchoice_updated(state).await.unwrap()
    };
    let status = choose(early.hash).await;
    assert_eq!(refused(&status, "terminal_not_reached"), Some(B256::ZERO));
    assert_eq!(handle.chain().head().number, 0);
    let status = choose(terminal.hash).await;
    assert_eq!((status.status, status.latest_valid_hash), (Status::Valid, Some(terminal.hash)));
    assert_eq!(handle.chain().resolve(BlockTag::Number(70)).unwrap(), Some(early));
    // The user of the machine may choose a head that the consensus layer may not.
    assert_eq!(handle.make_head(early.hash).await.unwrap().status, Status::Valid);
    assert_eq!(handle.chain().head(), early);
    assert_eq!(handle.make_head(B256::ZERO).await.unwrap().status, Status::Syncing);
    cluster.stop().await;
}
