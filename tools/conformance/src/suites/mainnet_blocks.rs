//! Real blocks of mainnet without their state: hashes, roots, senders, and the conversion to and
//! from payloads. Blocks from before the merge are included.

use super::support::{bytes, case, is_json, lies_in, read_json, same};
use crate::{Case, Suite};
use alloy_rlp::Encodable;
use anyhow::{Context as _, bail};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use std::{collections::BTreeMap, path::Path};
use tandem_chain::{Block, ChainSpec, Payload, PayloadSidecar, recover_senders, validate_body};
use tandem_primitives::{Address, B256, Bytes, keccak256};
use tandem_trie::list_root;

const NAME: &str = "mainnet_blocks";

/// Suite of folders named `mainnet-blocks`.
pub struct MainnetBlocks;

impl Suite for MainnetBlocks {
    fn name(&self) -> &'static str {
        NAME
    }

    fn takes(&self, path: &Path, _: &str) -> bool {
        lies_in(path, "mainnet-blocks") && is_json(path)
    }

    fn load(&self, path: &Path) -> anyhow::Result<Vec<Case>> {
        let fixture: Fixture = read_json(path)?;
        let name = format!("{} {}", fixture.network, fixture.block_number);
        Ok(vec![case(NAME, fixture.fork.clone(), name, move || check(&fixture))])
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fixture {
    network: String,
    chain_id: u64,
    fork: String,
    block_number: u64,
    expected: Expected,
    /// RLP of the block.
    block: String,
    /// Call of the Engine API, present since the merge.
    engine: Option<Engine>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Expected {
    block_hash: B256,
    parent_hash: B256,
    state_root: B256,
    transactions_root: B256,
    receipts_root: B256,
    gas_used: u64,
    tx_count: usize,
    /// Number of transactions of each type.
    tx_types: BTreeMap<u8, usize>,
    tx_hashes: Vec<B256>,
    senders: Vec<Address>,
}

/// Call that delivers the block.
#[derive(Deserialize)]
struct Engine {
    params: Vec<Value>,
}

fn check(fixture: &Fixture) -> anyhow::Result<()> {
    let rlp = bytes(&fixture.block)?;
    let block = Block::from_rlp(&rlp).context("decode the block")?;
    same("number", block.id.number, fixture.block_number)?;
    same("length", block.rlp_len(), rlp.len())?;
    let want = &fixture.expected;
    let header = &block.header;
    same("block hash", block.id.hash, want.block_hash)?;
    same(
        "hash of the header encoded again",
        keccak256(alloy_rlp::encode(header)),
        want.block_hash,
    )?;
    same("parent hash", header.parent_hash, want.parent_hash)?;
    same("state root", header.state_root, want.state_root)?;
    same("receipts root", header.receipts_root, want.receipts_root)?;
    same("gas used", header.gas_used, want.gas_used)?;
    same("transactions root", list_root(&block.raw_transactions), want.transactions_root)?;
    same("transactions root of the header", header.transactions_root, want.transactions_root)?;
    same("transactions", block.transactions.len(), want.tx_count)?;
    let mut types = BTreeMap::new();
    for transaction in &block.transactions {
        *types.entry(transaction.tx_type() as u8).or_default() += 1;
    }
    same("types", types, want.tx_types.clone())?;
    same("hashes", &block.transaction_hashes[..], &want.tx_hashes[..])?;
    same("senders", recover_senders(&block)?, want.senders.clone())?;
    encoded_again(&block)?;
    match ChainSpec::for_chain_id(fixture.chain_id) {
        Some(spec) => validate_body(&spec, &block).context("rules of the body")?,
        None => bail!("no chain has the id {}", fixture.chain_id),
    }
    match &fixture.engine {
        Some(engine) => check_payload(&block, &engine.params).context("as a payload"),
        None => Ok(()),
    }
}

/// Checks that the stored bytes of transactions equal the encoding of the decoded ones.
fn encoded_again(block: &Block) -> anyhow::Result<()> {
    let mut again = Vec::new();
    for (transaction, raw) in block.transactions.iter().zip(&block.raw_transactions) {
        again.clear();
        match raw.first() {
            Some(0..0x80) => Encodable::encode(&raw[..], &mut again),
            _ => again.extend_from_slice(raw),
        }
        same("encoded again", &alloy_rlp::encode(transaction), &again)?;
    }
    Ok(())
}

/// Checks that block and payload convert into each other.
fn check_payload(block: &Block, params: &[Value]) -> anyhow::Result<()> {
    let payload: Payload = param(params, 0)?.context("no payload")?;
    let requests: Option<Vec<Bytes>> = param(params, 3)?;
    let sidecar = PayloadSidecar {
        versioned_hashes: param(params, 1)?,
        parent_beacon_block_root: param(params, 2)?,
        execution_requests: None,
    };
    let (own_payload, own_sidecar) = Payload::from_block(block);
    same("payload", &own_payload, &payload)?;
    same("other parameters", &own_sidecar, &sidecar)?;
    // Without requests in the source, their hash cannot be computed.
    if block.header.requests_hash.is_some() && requests.is_none() {
        return Ok(());
    }
    let sidecar = PayloadSidecar { execution_requests: requests, ..sidecar };
    same("block", &Block::from_payload(payload, &sidecar)?, block)
}

/// Returns a parameter, `None` if it is missing or null.
fn param<T: DeserializeOwned>(params: &[Value], at: usize) -> anyhow::Result<Option<T>> {
    let Some(value) = params.get(at) else { return Ok(None) };
    Option::deserialize(value).with_context(|| format!("parameter {at}"))
}
