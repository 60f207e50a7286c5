//! Real blocks with witnesses of their state: executed without a node, on a partial trie.

use super::support::{case, is_json, lies_in, same};
use crate::{Case, Suite};
use anyhow::Context as _;
use serde::Deserialize;
use std::{fs, path::Path, sync::Arc};
use tandem_chain::ChainSpec;
use tandem_executor::stateless::{Gaps, Input, execute_on_witness};
use tandem_primitives::B256;

const NAME: &str = "witness";

/// Suite of folders named `mainnet-witness`.
pub struct Witnesses;

impl Suite for Witnesses {
    fn name(&self) -> &'static str {
        NAME
    }

    fn takes(&self, path: &Path, _: &str) -> bool {
        lies_in(path, "mainnet-witness") && is_json(path)
    }

    fn load(&self, path: &Path) -> anyhow::Result<Vec<Case>> {
        let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        let fixture: Fixture = serde_json::from_str(&text)?;
        let name = format!("{} {}", fixture.network, fixture.block_number);
        Ok(vec![case(NAME, fixture.fork.clone(), name, move || check(&fixture, &text))])
    }
}

/// Fields of the file besides block and witness.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fixture {
    network: String,
    fork: String,
    block_number: u64,
    expected: Expected,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Expected {
    block_hash: B256,
    parent_hash: B256,
    state_root: B256,
    receipts_root: B256,
    gas_used: u64,
    tx_count: usize,
}

fn check(fixture: &Fixture, text: &str) -> anyhow::Result<()> {
    let Input { chain_id, block, witness } = Input::parse(text)?;
    let block = Arc::new(block.context("no block")?);
    let chain_id = chain_id.context("no chain id")?;
    let spec = ChainSpec::for_chain_id(chain_id).context("the chain is not known")?;
    let want = &fixture.expected;
    same("number", block.id.number, fixture.block_number)?;
    same("block hash", block.id.hash, want.block_hash)?;
    same("parent hash", block.header.parent_hash, want.parent_hash)?;
    same("transactions", block.transactions.len(), want.tx_count)?;
    // Some witnesses lack the proofs of accounts that do not exist.
    let report = execute_on_witness(&spec, &block, &witness, Gaps::AssumeAbsent)?;
    let computed = report.computed.as_ref();
    if let Some(computed) = computed {
        same("gas", computed.gas_used, want.gas_used)?;
        same("receipts root", computed.receipts_root, want.receipts_root)?;
        same("state root", computed.state_root, want.state_root)?;
        same("requests hash", computed.requests_hash, block.header.requests_hash)?;
    }
    if let Some(fault) = report.fault {
        anyhow::bail!("{fault}");
    }
    computed.map(|_| ()).context("execution did not come to an end")
}
