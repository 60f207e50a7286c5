//! Snap sync from geth: the time that Tandem needs for a large state, its memory, and the time of
//! another geth.

use crate::{
    Setting,
    big_state::{
        Plan,
        run::{AMONG, Node, Tandem, command_of},
    },
    client::{Client, forkchoice, quantity},
    figure::{Figure, Limit, Report},
    geth::GethData,
    sync::Served,
};
use alloy_primitives::{Address, B256};
use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tandem_testkit::geth::is_installed;

/// Largest time that Tandem may need, as a share of geth's.
const RATIO_MAX: f64 = 0.5;
/// Largest memory of Tandem, in GiB.
const MEMORY_MAX: f64 = 1.0;
/// Blocks above the state: geth downloads the state of the one 64 below the head.
const BLOCKS: u64 = 130;
/// Settings with which so few blocks are enough for a download.
const CONFIG: &str = "[sync]\nsnap_blocks_min = 100\n";

/// Measures the figures.
pub fn measure(setting: &Setting, report: &mut Report) {
    let (accounts, slots) = if setting.quick { (200_000, 500_000) } else { (2_000_000, 5_000_000) };
    let figure = format!("snap sync from geth / geth's, {accounts} accounts, {slots} slots");
    report.measure(&figure, || compare(setting, &figure, accounts, slots));
}

fn compare(
    setting: &Setting,
    name: &str,
    accounts: u64,
    slots: u64,
) -> anyhow::Result<Vec<Figure>> {
    ensure!(is_installed(), "geth is not on the PATH");
    let served = served(setting, accounts, slots)?;
    let (ours, bytes) = served.tandem(setting, CONFIG)?;
    let theirs = served.geth("snap")?;
    let note = format!("one run each: {ours:.1} and {theirs:.1} s");
    let gib = bytes as f64 / f64::from(1 << 30);
    Ok(vec![
        Figure::new(name, ours / theirs, Limit::AtMost(RATIO_MAX)).note(note),
        Figure::new("memory of Tandem meanwhile, GiB", gib, Limit::AtMost(MEMORY_MAX))
            .note("largest resident memory"),
    ])
}

/// Starts a geth with a state of this size. It has downloaded it from Tandem, because it could not read a
/// genesis file of the larger one.
fn served(setting: &Setting, accounts: u64, slots: u64) -> anyhow::Result<Served> {
    let folder = tempfile::Builder::new().prefix("tandem-figures-").tempdir()?;
    let [state, genesis] = ["state", "genesis.json"].map(|name| folder.path().join(name));
    let tandem = Tandem(setting.tandem.clone());
    let plan = Plan { accounts, slots, seed: setting.seed };
    tandem.state(&state, plan, Some(&genesis), &["--block-1"])?;
    let node = Node::start(command_of(&tandem, None), &state, folder.path(), &AMONG)?;
    let head = grow(&mut node.engine()?)?;
    let data = GethData::init_in(folder.path(), &genesis)?;
    data.download(&node.enode()?, &head)?;
    node.stop()?;
    Served::of_data(data, genesis, head, folder)
}

/// Has Tandem build blocks without transactions. Returns the hash of the last one.
fn grow(engine: &mut Client) -> anyhow::Result<String> {
    let latest = engine.call("eth_getBlockByNumber", &json!(["latest", false]))?;
    let mut parent = latest["hash"].clone();
    let begin = quantity(&latest["timestamp"])?;
    for number in 1..=BLOCKS {
        let payload = build(engine, &parent, begin + 12 * number)?;
        let params = json!([payload, [], B256::ZERO, []]);
        engine.call("engine_newPayloadV4", &params)?;
        parent = payload["blockHash"].clone();
    }
    let status = forkchoice(engine, &parent)?;
    ensure!(status["status"] == "VALID", "the last block is not the head: {status}");
    Ok(parent.as_str().context("no hash")?.to_owned())
}

/// Chooses a head, and returns a payload upon it.
fn build(engine: &mut Client, parent: &Value, timestamp: u64) -> anyhow::Result<Value> {
    let zero = B256::ZERO;
    let state = json!({"headBlockHash": parent, "safeBlockHash": zero, "finalizedBlockHash": zero});
    let attributes = json!({
        "timestamp": format!("{timestamp:#x}"), "prevRandao": zero,
        "suggestedFeeRecipient": Address::ZERO, "withdrawals": [], "parentBeaconBlockRoot": zero,
    });
    let answer = engine.call("engine_forkchoiceUpdatedV3", &json!([state, attributes]))?;
    let mut built = engine.call("engine_getPayloadV5", &json!([answer["payloadId"]]))?;
    Ok(built["executionPayload"].take())
}
