//! Chains of blocks: the state before, the blocks, the state after.

mod block;
mod engine;
mod exceptions;
mod fixture;
mod genesis;
mod network;
mod state;
#[cfg(test)]
mod tests;

pub use block::Blocks;
pub use engine::Engine;

use crate::{CaseNode, Outcome, RpcFault, Setting, case::note_payload_time};
use alloy_primitives::B256;
use anyhow::{Context as _, ensure};
use fixture::{Chain, Text};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{path::Path, time::Instant};
use tandem_chain::Block;

fn is_json(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json")
}

fn has_folder(path: &Path, name: &str) -> bool {
    path.parent().is_some_and(|folder| folder.components().any(|part| part.as_os_str() == name))
}

/// Runs a case on a node made from its genesis.
fn outcome(
    text: &Text,
    setting: &Setting,
    run: impl FnOnce(&Driver, &Chain<'_>) -> anyhow::Result<()>,
) -> Outcome {
    let chain: Chain<'_> = match serde_json::from_str(text.as_str()) {
        Ok(chain) => chain,
        Err(error) => return Outcome::Failed(format!("the fixture cannot be read: {error}")),
    };
    let genesis = match genesis::genesis_json(&chain) {
        Ok(genesis) => genesis,
        Err(reason) => return Outcome::Skipped(reason),
    };
    let result = Driver::start(&genesis, &chain, *setting).and_then(|driver| {
        let result = run(&driver, &chain);
        driver.node.stop();
        result
    });
    match result {
        Ok(()) => Outcome::Passed,
        Err(error) => Outcome::Failed(format!("{error:#}")),
    }
}

/// A node and the calls that cases make.
struct Driver {
    node: CaseNode,
}

/// `PayloadStatusV1`.
#[derive(Deserialize, Debug)]
#[serde(rename_all = "camelCase")]
struct PayloadStatus {
    status: String,
    latest_valid_hash: Option<B256>,
    validation_error: Option<String>,
}

/// Error for a block that should be valid but is not found so.
#[derive(thiserror::Error, Debug)]
#[error("{0:?}, expected VALID")]
struct NotValid(PayloadStatus);

impl PayloadStatus {
    /// Fails with [`NotValid`] unless the block with this hash is valid.
    fn must_be_valid(self, hash: B256) -> Result<(), NotValid> {
        if self.status == "VALID" && self.latest_valid_hash == Some(hash) {
            return Ok(());
        }
        Err(NotValid(self))
    }
}

impl From<tandem_executor::PayloadStatus> for PayloadStatus {
    fn from(status: tandem_executor::PayloadStatus) -> Self {
        Self {
            status: status.status.as_str().to_owned(),
            latest_valid_hash: status.latest_valid_hash,
            validation_error: status.validation_error,
        }
    }
}

impl Driver {
    fn start(genesis: &str, chain: &Chain<'_>, setting: Setting) -> anyhow::Result<Self> {
        let driver = Self { node: CaseNode::start(genesis, setting)? };
        let (got, want) = (driver.latest_hash()?, chain.genesis_block_header.hash);
        ensure!(got == want, "the genesis hash is {got}, not {want}");
        Ok(driver)
    }

    fn new_payload(&self, version: &str, params: &str) -> Result<PayloadStatus, RpcFault> {
        let started = Instant::now();
        let answer = self.node.call(&format!("engine_newPayloadV{version}"), params);
        note_payload_time(started.elapsed());
        status(answer?)
    }

    /// Makes a block the head.
    fn forkchoice(&self, version: &str, head: B256) -> anyhow::Result<()> {
        let state = json!({
            "headBlockHash": head, "safeBlockHash": B256::ZERO, "finalizedBlockHash": B256::ZERO,
        });
        let params = json!([state, null]).to_string();
        let mut answer = self.node.call(&format!("engine_forkchoiceUpdatedV{version}"), &params)?;
        let status = status(answer["payloadStatus"].take())?;
        ensure!(
            status.status == "VALID" && status.latest_valid_hash == Some(head),
            "forkchoice to {head}: {status:?}"
        );
        Ok(())
    }

    /// Imports a block as `tandem import` does.
    fn import(&self, block: Block) -> anyhow::Result<PayloadStatus> {
        let handle = self.node.handle();
        Ok(self.node.wait(handle.import(block))?.into())
    }

    /// Makes a block the head, from before or after the merge.
    fn make_head(&self, head: B256) -> anyhow::Result<()> {
        let handle = self.node.handle();
        let status = PayloadStatus::from(self.node.wait(handle.make_head(head))?);
        ensure!(status.status == "VALID", "head {head}: {status:?}");
        Ok(())
    }

    fn latest_hash(&self) -> anyhow::Result<B256> {
        let block = self.node.call("eth_getBlockByNumber", r#"["latest",false]"#)?;
        serde_json::from_value(block["hash"].clone()).context("the head's hash")
    }
}

fn status(answer: Value) -> Result<PayloadStatus, RpcFault> {
    let text = answer.to_string();
    serde_json::from_value(answer).map_err(|error| RpcFault {
        code: 0,
        message: format!("{text} is no payload status: {error}"),
        data: None,
    })
}
