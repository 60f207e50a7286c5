//! Whole chains of hivechain, from a genesis to the last of some hundred blocks. Each runs once as
//! Engine API calls and once as the blocks of a file. Head and state have to be the same, account
//! by account.
//!
//! * A chain may begin under proof of work. Its first blocks, which no payload can describe, come
//!   from the file in both cases.
//! * The lists of calls of some chains begin with genesis itself, whose difficulty is not 0: that
//!   call is left out.
//! * Some lists have execution requests in base64, geth's JSON for byte strings, where the Engine
//!   API has hexadecimal digits: they are converted.

mod state;
mod transactions;

use super::support::{is_json, read_json, same};
use crate::{Case, CaseNode, Outcome, Setting, Suite};
use anyhow::{Context as _, bail, ensure};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::Deserialize;
use serde_json::{Value, json};
use state::HeadState;
use std::{
    fs,
    path::{Path, PathBuf},
};
use tandem_chain::{Block, ChainSpec, take_item};
use tandem_primitives::B256;

const NAME: &str = "hivechain";

/// The file that stands for its folder.
const CALLS: &str = "newpayload.json";

/// Suite of folders with a chain, its calls and its last state.
pub struct Hivechain;

impl Suite for Hivechain {
    fn name(&self) -> &'static str {
        NAME
    }

    fn takes(&self, path: &Path, _: &str) -> bool {
        let Some(folder) = path.parent().filter(|_| is_json(path)) else { return false };
        ["genesis.json", "chain.rlp", CALLS, "headfcu.json", "headstate.json"]
            .iter()
            .all(|name| folder.join(name).is_file())
    }

    fn load(&self, path: &Path) -> anyhow::Result<Vec<Case>> {
        // The other files are parts of the same cases.
        if path.file_name() != Some(CALLS.as_ref()) {
            return Ok(Vec::new());
        }
        let folder = path.parent().unwrap_or(Path::new("")).to_path_buf();
        Ok(vec![one("engine calls", folder.clone(), by_calls), one("import", folder, by_import)])
    }
}

fn one(way: &str, folder: PathBuf, feed: fn(&Chain, &CaseNode) -> anyhow::Result<()>) -> Case {
    let chain = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let fork = chain.split_once('-').map_or(&*chain, |(fork, _)| fork).to_owned();
    let run = Box::new(move |setting: &Setting| {
        run(&folder, *setting, feed).unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")))
    });
    Case { suite: NAME, fork, name: format!("{chain} by {way}"), run }
}

/// A JSON-RPC request.
#[derive(Deserialize)]
struct Call {
    method: String,
    params: Vec<Value>,
}

/// Content of the folder.
struct Chain {
    blocks: Vec<Block>,
    calls: Vec<Call>,
    forkchoice: Call,
}

fn run(
    folder: &Path,
    setting: Setting,
    feed: fn(&Chain, &CaseNode) -> anyhow::Result<()>,
) -> anyhow::Result<Outcome> {
    let genesis = fs::read_to_string(folder.join("genesis.json"))?;
    if let Some(fork) = ChainSpec::from_genesis_json(&genesis)?.unsupported_fork() {
        return Ok(Outcome::Skipped(format!(
            "the chain reaches {}, a fork that Tandem does not have",
            fork.name
        )));
    }
    let chain = Chain {
        blocks: blocks(&fs::read(folder.join("chain.rlp"))?)?,
        calls: read_json(&folder.join(CALLS))?,
        forkchoice: read_json(&folder.join("headfcu.json"))?,
    };
    let state: HeadState = read_json(&folder.join("headstate.json"))?;
    state.check_root().context("the fixture's own state")?;
    let node = CaseNode::start(&genesis, setting)?;
    let checked = feed(&chain, &node)
        .and_then(|()| check_head(&chain, &state, &node))
        .and_then(|()| check_bodies(&chain, &node))
        .and_then(|()| state.check(&node))
        .and_then(|()| match folder.join("txinfo.json") {
            path if path.is_file() => transactions::check(&read_json(&path)?, &node),
            _ => Ok(()),
        });
    node.stop();
    checked.map(|()| Outcome::Passed)
}

/// Decodes the blocks of a file, in order. They may begin with genesis, which has number 0.
fn blocks(mut rlp: &[u8]) -> anyhow::Result<Vec<Block>> {
    let mut blocks = Vec::new();
    while !rlp.is_empty() {
        let start = rlp;
        take_item(&mut rlp).context("cut the file into blocks")?;
        let block = Block::from_rlp(&start[..start.len() - rlp.len()])
            .with_context(|| format!("block at position {}", blocks.len()))?;
        if block.id.number > 0 {
            blocks.push(block);
        }
    }
    Ok(blocks)
}

fn by_import(chain: &Chain, node: &CaseNode) -> anyhow::Result<()> {
    chain.blocks.iter().try_for_each(|block| import(node, block))?;
    let last = chain.blocks.last().context("no blocks")?;
    node.make_head(last.id.hash).context("make the last block the head")
}

fn import(node: &CaseNode, block: &Block) -> anyhow::Result<()> {
    node.import(block.clone()).with_context(|| format!("import block {}", block.id.number))
}

fn by_calls(chain: &Chain, node: &CaseNode) -> anyhow::Result<()> {
    let genesis = hash_of(node, "0x0")?;
    let calls = match chain.calls.first() {
        Some(call) if hash(call)? == genesis => &chain.calls[1..],
        _ => &chain.calls[..],
    };
    let first = calls.first().context("no calls")?;
    let first = chain.blocks.iter().position(|block| Some(block.id.hash) == hash(first).ok());
    let before = &chain.blocks[..first.context("the first call is of no block of the file")?];
    before.iter().try_for_each(|block| import(node, block))?;
    for call in calls {
        let number = &call.params[0]["blockNumber"];
        new_payload(node, call).with_context(|| format!("block {number}"))?;
    }
    let params = serde_json::to_string(&chain.forkchoice.params)?;
    let answer = node.call(&chain.forkchoice.method, &params)?;
    same("status of the forkchoice", answer["payloadStatus"]["status"].as_str(), Some("VALID"))
}

fn new_payload(node: &CaseNode, call: &Call) -> anyhow::Result<()> {
    let mut params = call.params.clone();
    if let Some(Value::Array(requests)) = params.get_mut(3) {
        requests.iter_mut().try_for_each(to_hexadecimal)?;
    }
    let answer = node.call(&call.method, &serde_json::to_string(&params)?)?;
    ensure!(answer["status"] == "VALID", "{answer}");
    same("latest valid hash", answer["latestValidHash"].as_str(), params[0]["blockHash"].as_str())
}

fn to_hexadecimal(bytes: &mut Value) -> anyhow::Result<()> {
    let Some(text) = bytes.as_str() else { bail!("{bytes} is no string") };
    if !text.starts_with("0x") {
        *bytes = json!(const_hex::encode_prefixed(BASE64_STANDARD.decode(text)?));
    }
    Ok(())
}

fn hash(call: &Call) -> anyhow::Result<B256> {
    let text = call.params.first().map(|payload| &payload["blockHash"]);
    B256::deserialize(text.context("no parameters")?).context("block hash of a call")
}

fn hash_of(node: &CaseNode, tag: &str) -> anyhow::Result<B256> {
    let block = node.call("eth_getBlockByNumber", &json!([tag, false]).to_string())?;
    B256::deserialize(&block["hash"]).with_context(|| format!("hash of block {tag}"))
}

/// Bodies asked for in one call.
const BODIES: usize = 100;

/// Checks that the bodies are those of the calls. A block that was imported came without its access
/// list, which is then that of its execution.
fn check_bodies(chain: &Chain, node: &CaseNode) -> anyhow::Result<()> {
    let genesis = json!(hash_of(node, "0x0")?);
    let payloads: Vec<&Value> = chain.calls.iter().map(|call| &call.params[0]).collect();
    for payloads in payloads.chunks(BODIES) {
        let hashes: Vec<&Value> = payloads.iter().map(|payload| &payload["blockHash"]).collect();
        let params = json!([hashes]).to_string();
        let bodies = node.call("engine_getPayloadBodiesByHashV2", &params)?;
        for (payload, at) in payloads.iter().zip(0..) {
            if payload["blockHash"] == genesis {
                continue;
            }
            for part in ["transactions", "withdrawals", "blockAccessList"] {
                let what = format!("{part} of the body of block {}", payload["blockNumber"]);
                same(&what, &bodies[at][part], &payload[part])?;
            }
        }
    }
    Ok(())
}

/// Checks that the head is the forkchoice's, and that the chain below it is the file's.
fn check_head(chain: &Chain, state: &HeadState, node: &CaseNode) -> anyhow::Result<()> {
    let want = B256::deserialize(&chain.forkchoice.params[0]["headBlockHash"])?;
    same("head", hash_of(node, "latest")?, want)?;
    for block in &chain.blocks {
        let tag = format!("{:#x}", block.id.number);
        same("canonical hash", hash_of(node, &tag)?, block.id.hash)?;
    }
    let head = node.call("eth_getBlockByNumber", r#"["latest",false]"#)?;
    same("state root", B256::deserialize(&head["stateRoot"])?, state.root)
}
