//! Snap sync from geth: the time that Tandem needs for a large state, its memory, and the time of
//! another geth.

use crate::{
    Setting,
    client::Client,
    figure::{Figure, Limit, Report},
    node::Node,
    sync::{Served, genesis_text},
};
use alloy_primitives::{Address, B256, U256, hex, keccak256};
use anyhow::Context as _;
use serde_json::{Value, json};
use std::{fmt::Write as _, fs};
use tandem_chain::{Block, Payload, PayloadSidecar};

/// Largest time that Tandem may need, as a share of geth's.
const RATIO_MAX: f64 = 0.5;
/// Largest memory of Tandem, in GiB.
const MEMORY_MAX: f64 = 1.0;
/// Blocks above the large genesis: geth downloads the state of the one 64 below the head.
const BLOCKS: u64 = 130;
/// Slots of each contract but the first, which has a fifth of all slots.
const SLOTS_EACH: usize = 20;
/// Settings with which so few blocks are enough for a download.
const CONFIG: &str = "[sync]\nsnap_blocks_min = 100\n";

/// Measures the figures.
pub fn measure(setting: &Setting, report: &mut Report) {
    // geth takes 15 GB of memory to read the larger genesis file.
    let (accounts, slots) = if setting.quick { (200_000, 500_000) } else { (800_000, 2_000_000) };
    let figure = format!("snap sync from geth / geth's, {accounts} accounts, {slots} slots");
    report.measure(&figure, || compare(setting, &figure, accounts, slots));
}

fn compare(
    setting: &Setting,
    name: &str,
    accounts: usize,
    slots: usize,
) -> anyhow::Result<Vec<Figure>> {
    let genesis = genesis(setting, accounts, slots)?;
    let blocks = blocks(setting, &genesis)?;
    let served = Served::start(&genesis, &blocks)?;
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

/// Returns the genesis of the demo corpus with so many more accounts, of which some are contracts.
fn genesis(setting: &Setting, accounts: usize, slots: usize) -> anyhow::Result<String> {
    let mut genesis: Value =
        serde_json::from_str(&genesis_text(&setting.demo.join("genesis.json.gz"))?)?;
    let alloc = genesis.as_object_mut().and_then(|genesis| genesis.remove("alloc"));
    let mut text = serde_json::to_string(&alloc.context("the demo's genesis has no accounts")?)?;
    text.pop();
    text.reserve(accounts * 100 + slots * 140);
    let large = slots / 5;
    let contracts = (slots - large).div_ceil(SLOTS_EACH);
    for at in 0..accounts {
        let number = U256::from(setting.seed) << 64 | U256::from(at);
        let address = Address::from_word(keccak256(B256::from(number)));
        write!(text, r#","{address:#x}":{{"balance":"{:#x}","nonce":"{:#x}""#, at + 1, at % 300)?;
        let slots = match at {
            0 => large,
            _ if at <= contracts => SLOTS_EACH.min(slots - large - (at - 1) * SLOTS_EACH),
            _ => 0,
        };
        if slots > 0 {
            // A hundred contracts share a code.
            let code = keccak256(B256::from(U256::from(at / 100)));
            write!(text, r#","code":"0x{}","storage":{{"#, hex::encode(code.repeat(30)))?;
            for slot in 0..slots {
                let comma = if slot == 0 { "" } else { "," };
                let [key, value] = [slot, at + slot + 1].map(|it| B256::from(U256::from(it)));
                write!(text, r#"{comma}"{key:#x}":"{value:#x}""#)?;
            }
            text.push('}');
        }
        text.push('}');
    }
    text.push('}');
    let rest = serde_json::to_string(&genesis)?;
    let rest = rest.strip_suffix('}').context("the genesis is no object")?;
    Ok(format!("{rest},\"alloc\":{text}}}"))
}

/// Has Tandem build blocks without transactions.
fn blocks(setting: &Setting, genesis: &str) -> anyhow::Result<Vec<Block>> {
    let folder = tempfile::Builder::new().prefix("tandem-figures-").tempdir()?;
    let file = folder.path().join("genesis.json");
    fs::write(&file, genesis)?;
    let node = Node::start(&setting.tandem, &file, "")?;
    let mut engine = node.engine()?;
    let latest = node
        .public(crate::node::CALL_TIME_MAX)
        .call("eth_getBlockByNumber", &json!(["latest", false]))?;
    let mut parent = latest["hash"].clone();
    let begin = latest["timestamp"].as_str().context("no timestamp")?;
    let begin = u64::from_str_radix(begin.trim_start_matches("0x"), 16)?;
    let mut blocks = Vec::new();
    for number in 1..=BLOCKS {
        let (payload, sidecar) = build(&mut engine, &parent, begin + 12 * number)?;
        let root = sidecar.parent_beacon_block_root;
        let params = json!([payload, [], root, []]);
        engine.call("engine_newPayloadV4", &params)?;
        parent = payload["blockHash"].clone();
        let payload: Payload = serde_json::from_value(payload)?;
        blocks.push(Block::from_payload(payload, &sidecar)?);
    }
    Ok(blocks)
}

/// Chooses a head, and returns a payload upon it.
fn build(
    engine: &mut Client,
    parent: &Value,
    timestamp: u64,
) -> anyhow::Result<(Value, PayloadSidecar)> {
    let zero = B256::ZERO;
    let state = json!({"headBlockHash": parent, "safeBlockHash": zero, "finalizedBlockHash": zero});
    let attributes = json!({
        "timestamp": format!("{timestamp:#x}"), "prevRandao": zero,
        "suggestedFeeRecipient": Address::ZERO, "withdrawals": [], "parentBeaconBlockRoot": zero,
    });
    let answer = engine.call("engine_forkchoiceUpdatedV3", &json!([state, attributes]))?;
    let mut built = engine.call("engine_getPayloadV5", &json!([answer["payloadId"]]))?;
    let sidecar = PayloadSidecar {
        versioned_hashes: Some(Vec::new()),
        parent_beacon_block_root: Some(zero),
        execution_requests: Some(Vec::new()),
    };
    Ok((built["executionPayload"].take(), sidecar))
}
