//! `blockchain_test_engine`: a chain as calls of the Engine API.

use super::{
    Driver,
    exceptions::{self, Reasons},
    fixture::{self, Chain, Text},
    state,
};
use crate::{Case, Outcome, RpcFault, Setting, Suite};
use alloy_primitives::B256;
use anyhow::{Context as _, bail, ensure};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::path::Path;

const NAME: &str = "engine";

/// Suite of `blockchain_test_engine` fixtures.
pub struct Engine;

impl Suite for Engine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn takes(&self, path: &Path, start: &str) -> bool {
        super::is_json(path)
            && (super::has_folder(path, "blockchain_tests_engine")
                || start.contains("-blockchain_test_engine"))
    }

    fn uses_node(&self) -> bool {
        true
    }

    fn load(&self, path: &Path) -> anyhow::Result<Vec<Case>> {
        fixture::load(path, NAME, run)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EngineCase<'a> {
    #[serde(default, borrow, rename = "_info")]
    info: Info<'a>,
    #[serde(borrow)]
    engine_new_payloads: Vec<NewPayload<'a>>,
}

/// Origin of a case.
#[derive(Deserialize, Default)]
struct Info<'a> {
    /// Changes that were made to valid payloads. What a case of them expects is that the payload is
    /// refused: several rules may be broken at once, and clients check in different orders.
    #[serde(default, borrow)]
    mutations: Option<&'a RawValue>,
    /// Note on gas limits that were raised to fill the case at other prices.
    #[serde(default, borrow)]
    gas: Option<&'a RawValue>,
}

impl Info<'_> {
    fn reasons(&self) -> Reasons {
        match (self.mutations, self.gas) {
            (Some(_), _) => Reasons::Any,
            (None, Some(_)) => Reasons::Repriced,
            (None, None) => Reasons::Exact,
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NewPayload<'a> {
    #[serde(borrow)]
    params: &'a RawValue,
    new_payload_version: String,
    forkchoice_updated_version: String,
    #[serde(default)]
    validation_error: Option<String>,
    #[serde(default)]
    error_code: Option<String>,
}

/// Fields of a payload that every version has.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PayloadHead {
    block_hash: B256,
    parent_hash: B256,
}

fn run(text: &Text, setting: &Setting) -> Outcome {
    super::outcome(text, setting, |driver, chain| {
        let case: EngineCase<'_> = serde_json::from_str(text.as_str()).context("the payloads")?;
        let payloads = &case.engine_new_payloads;
        let first = payloads.first().context("the fixture has no payloads")?;
        driver.forkchoice(&first.forkchoice_updated_version, chain.genesis_block_header.hash)?;
        for (index, payload) in payloads.iter().enumerate() {
            payload
                .send(driver, case.info.reasons())
                .with_context(|| format!("payload {index}"))?;
        }
        finish(driver, chain, case.info.mutations.is_some())
    })
}

/// Compares head and state. The hash of the head commits to the state, so a case of mutations has no
/// state of its own.
fn finish(driver: &Driver, chain: &Chain<'_>, mutated: bool) -> anyhow::Result<()> {
    let latest = driver.latest_hash()?;
    ensure!(latest == chain.last_block_hash, "head is {latest}, not {}", chain.last_block_hash);
    match chain.post_state {
        None if mutated => Ok(()),
        _ => state::compare(&driver.node.handle(), chain),
    }
}

impl NewPayload<'_> {
    /// Sends the payload and checks the answer.
    fn send(&self, driver: &Driver, reasons: Reasons) -> anyhow::Result<()> {
        let answer = driver.new_payload(&self.new_payload_version, self.params.get());
        if let Some(code) = &self.error_code {
            return self.check_fault(code, answer.map(|status| format!("{status:?}")));
        }
        let status = answer?;
        let params: Vec<&RawValue> = serde_json::from_str(self.params.get())?;
        let payload = params.first().context("a payload without parameters")?;
        let head: PayloadHead = serde_json::from_str(payload.get())?;
        if let Some(expected) = &self.validation_error {
            // V1 of the method has a separate name for a wrong block hash.
            let is_invalid = matches!(status.status.as_str(), "INVALID" | "INVALID_BLOCK_HASH");
            ensure!(is_invalid, "{status:?}, expected {expected}");
            let latest = status.latest_valid_hash;
            ensure!(
                latest.is_none_or(|hash| hash == head.parent_hash),
                "latestValidHash {latest:?} is neither null nor the parent"
            );
            let error = status.validation_error.unwrap_or_default();
            return exceptions::check_by(reasons, expected, &error);
        }
        status.must_be_valid(head.block_hash)?;
        driver.forkchoice(&self.forkchoice_updated_version, head.block_hash)
    }

    fn check_fault(&self, code: &str, answer: Result<String, RpcFault>) -> anyhow::Result<()> {
        match answer {
            Ok(status) => bail!("{status}, expected error {code}"),
            Err(fault) => {
                ensure!(fault.code.to_string() == code, "{fault}, expected error {code}");
                Ok(())
            }
        }
    }
}
