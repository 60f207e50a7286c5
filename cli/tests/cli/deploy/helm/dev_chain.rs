//! Tests of the chain that the chart starts with, and of the payloads that `helm test` sends. The
//! tests' own builder of blocks makes both; it shares nothing with the code that executes them.

use super::{chart, is_up_to_date};
use crate::deploy::{succeeds, tandem};
use serde_json::json;
use std::{fs, path::PathBuf};
use tandem_chain::Fork;
use tandem_cluster_tests::{Builder, Contents, Forks};

/// Number of blocks in the test.
const BLOCKS: usize = 4;

fn folder() -> PathBuf {
    chart().join("files/dev")
}

#[test]
fn the_chain_of_the_chart_is_one_of_the_builder() {
    let mut builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let genesis = builder.genesis();
    let blocks = builder.chain(genesis, 9, BLOCKS, Contents::Random(12));
    let lines = blocks.iter().map(|block| {
        let (method, params) = block.new_payload();
        let line = json!({
            "method": method,
            "executionPayload": params[0],
            "versionedHashes": params[1],
            "parentBeaconBlockRoot": params[2],
            "executionRequests": params[3],
        });
        format!("{line}\n")
    });
    fs::create_dir_all(folder()).unwrap();
    is_up_to_date(&folder().join("genesis.json"), builder.genesis_json());
    is_up_to_date(&folder().join("payloads.jsonl"), &lines.collect::<String>());
}

#[test]
fn a_node_finds_the_payloads_of_the_chart_valid() {
    let files = tempfile::tempdir().unwrap();
    let mut command = tandem();
    command
        .args(["demo", "--log.filter", "warn", "--html"])
        .arg(files.path().join("timeline.html"));
    command.arg("--datadir").arg(files.path().join("data")).arg("--corpus").arg(folder());
    let said = succeeds(&mut command);
    assert!(said.contains(&format!("{BLOCKS} blocks VALID")), "{said}");
}
