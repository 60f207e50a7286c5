//! `blockchain_test`: a chain as blocks in RLP.
//!
//! A block of Paris, Shanghai or Cancun is turned into a payload and goes through the handlers of
//! the Engine API. Some blocks cannot be expressed as a payload:
//!
//! * A block with execution requests holds only their hash.
//! * A header may be invalid in a field that payloads do not have.
//! * A block may be from before the merge.
//!
//! Such a block is imported as `tandem import` does it, without a payload but through the same
//! engine.

use super::{
    Driver, PayloadStatus, exceptions,
    fixture::{self, Chain, Text},
    state,
};
use crate::{Case, Outcome, Setting, Suite};
use alloy_primitives::{B256, Bytes};
use alloy_rlp::Decodable as _;
use anyhow::{Context as _, ensure};
use serde::Deserialize;
use serde_json::json;
use std::{collections::BTreeSet, path::Path};
use tandem_chain::{Block, BlockError, Fork, Header, Payload, is_merged};
use tandem_trie::list_root;

const NAME: &str = "block";

/// Suite of `blockchain_test` fixtures.
pub struct Blocks;

impl Suite for Blocks {
    fn name(&self) -> &'static str {
        NAME
    }

    fn takes(&self, path: &Path, start: &str) -> bool {
        super::is_json(path)
            && (super::has_folder(path, "blockchain_tests")
                || super::has_folder(path, "BlockchainTests")
                || start.contains("-blockchain_test_from_state_test")
                || start.contains("-blockchain_test-")
                || start.contains("-blockchain_test]"))
    }

    fn uses_node(&self) -> bool {
        true
    }

    fn load(&self, path: &Path) -> anyhow::Result<Vec<Case>> {
        fixture::load(path, NAME, run)
    }
}

#[derive(Deserialize)]
struct BlockCase {
    blocks: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    rlp: Bytes,
    #[serde(default)]
    expect_exception: Option<String>,
}

fn run(text: &Text, setting: &Setting) -> Outcome {
    super::outcome(text, setting, |driver, chain| {
        let case: BlockCase = serde_json::from_str(text.as_str()).context("the blocks")?;
        let mut refused = BTreeSet::new();
        for (index, block) in case.blocks.iter().enumerate() {
            block.send(driver, &mut refused).with_context(|| format!("block {index}"))?;
        }
        finish(driver, chain)
    })
}

/// Makes the fixture's last block the head if it is not yet, and compares the state. Before the
/// merge the head is the block with the highest total difficulty. After it, the consensus layer
/// names the head.
fn finish(driver: &Driver, chain: &Chain<'_>) -> anyhow::Result<()> {
    let want = chain.last_block_hash;
    if driver.latest_hash()? != want {
        driver.make_head(want)?;
    }
    let latest = driver.latest_hash()?;
    ensure!(latest == want, "head is {latest}, not {want}");
    state::compare(&driver.node.handle(), chain)
}

impl Entry {
    /// Sends the block and checks the verdict; `refused` are the blocks found invalid so far.
    fn send(&self, driver: &Driver, refused: &mut BTreeSet<B256>) -> anyhow::Result<()> {
        let block = match Block::from_rlp(&self.rlp) {
            Ok(block) => block,
            Err(error) => return self.check_malformed(driver, &error),
        };
        let (hash, merged) = (block.id.hash, is_merged(&block.header));
        let parent_refused = refused.contains(&block.header.parent_hash);
        let status = send(driver, block)?;
        if let Some(expected) = &self.expect_exception {
            refused.insert(hash);
            let error = match status.status.as_str() {
                // A refused block is remembered, and so are its children. Other clients do not know
                // the parent of such a child.
                "INVALID" if parent_refused => exceptions::UNKNOWN_PARENT.to_owned(),
                "INVALID" => status.validation_error.unwrap_or_default(),
                "SYNCING" => exceptions::UNKNOWN_PARENT.to_owned(),
                _ => anyhow::bail!("{status:?}, expected {expected}"),
            };
            return exceptions::check(expected, &error);
        }
        status.must_be_valid(hash)?;
        if merged { driver.forkchoice("3", hash) } else { driver.make_head(hash) }
    }
}

impl Entry {
    /// Checks the verdict on a block that its bytes alone make invalid.
    fn check_malformed(&self, driver: &Driver, error: &BlockError) -> anyhow::Result<()> {
        let expected = self.expect_exception.as_deref().with_context(|| error.describe())?;
        // Some headers are made for a block without the transaction under test, so they break two
        // rules. After the header is repaired, the other fault must show.
        if let BlockError::TransactionsRoot { .. } = error
            && expected.starts_with("TransactionException.")
        {
            let status = driver.import(with_right_root(&self.rlp)?)?;
            return exceptions::check(expected, &status.validation_error.unwrap_or_default());
        }
        exceptions::check(expected, &error.describe())
    }
}

/// Returns the block with the transactions root that matches its transactions.
fn with_right_root(mut rlp: &[u8]) -> anyhow::Result<Block> {
    let mut fields = alloy_rlp::Header::decode_bytes(&mut rlp, true)?;
    let mut header = Header::decode(&mut fields)?;
    let mut body = Vec::new();
    alloy_rlp::Header { list: true, payload_length: fields.len() }.encode(&mut body);
    body.extend_from_slice(fields);
    let body = Bytes::from(body);
    let decode = |header: &Header| Block::decode(alloy_rlp::encode(header).into(), body.clone());
    header.transactions_root = list_root(&decode(&header)?.raw_transactions);
    Ok(decode(&header)?)
}

fn send(driver: &Driver, block: Block) -> anyhow::Result<PayloadStatus> {
    let fork = driver.node.handle().spec().fork_of(&block.header);
    let version = match fork {
        Fork::Paris => "1",
        Fork::Shanghai => "2",
        Fork::Cancun => "3",
        _ => return driver.import(block),
    };
    if !has_fields_of_its_fork(&block.header, fork) {
        return driver.import(block);
    }
    let (payload, sidecar) = Payload::from_block(&block);
    let same = Block::from_payload(payload.clone(), &sidecar).map(|same| same.id.hash);
    if same != Ok(block.id.hash) {
        return driver.import(block);
    }
    let hashes: Option<Vec<B256>> = sidecar.versioned_hashes;
    let params = match version {
        "3" => json!([payload, hashes, sidecar.parent_beacon_block_root]),
        _ => json!([payload]),
    };
    Ok(driver.new_payload(version, &params.to_string())?)
}

/// Returns whether the header has exactly the fields that the Engine API's version for the fork
/// demands.
fn has_fields_of_its_fork(header: &Header, fork: Fork) -> bool {
    let cancun = [
        header.blob_gas_used.is_some(),
        header.excess_blob_gas.is_some(),
        header.parent_beacon_block_root.is_some(),
    ];
    header.withdrawals_root.is_some() == (fork >= Fork::Shanghai)
        && cancun == [fork >= Fork::Cancun; 3]
}
