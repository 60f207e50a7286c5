//! Blocks with access lists (EIP-7928): what it brings to follow the list, geth beside it, and lists
//! that are wrong.
//!
//! The corpora are folders whose name begins with `amsterdam`, and `mixed-30m` of an earlier fork
//! (docs/figures.md).

use crate::{
    Setting,
    client::request,
    corpus::{Corpus, name_of},
    figure::{Figure, Limit, Report},
    node::{Kind, Node},
    sides::{Side, WARMUP, compare},
};
use alloy_eips::eip7928::{AccountChanges, BalanceChange, BlockAccessIndex};
use alloy_primitives::{Address, U256};
use alloy_rlp::Decodable as _;
use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use tandem_chain::{Block, BlockError, Payload, PayloadSidecar};
use tandem_overlap::stats::median;

/// Corpus of an earlier fork, whose speed stays.
const EARLIER: &str = "mixed-30m";
/// Blocks whose wrong variants are sent.
const WRONG_BLOCKS: usize = 20;
/// Gas of a block for each item of its list.
const ITEM_GAS: u64 = 2_000;

const NO_SYNC: &str = "[storage_writer]\nsync = false\n";
const CHECKED: &str = "[policies]\naccess_lists = \"checked\"\n";

/// Change of a list that makes it wrong.
type Spoil = fn(&mut Vec<AccountChanges>, &Payload);

/// Wrong lists, by name.
const WRONG: [(&str, Spoil); 3] = [
    ("untouched slots up to the limit", |list, payload| {
        let room = room(list, payload).saturating_sub(1);
        let storage_reads = (0..room).map(|n| U256::from(n + 1)).collect();
        let address = Address::repeat_byte(0xfe);
        list.push(AccountChanges { address, storage_reads, ..AccountChanges::default() });
    }),
    ("changed accounts up to the limit", |list, payload| {
        for n in 0..room(list, payload) {
            let change = BalanceChange::new(BlockAccessIndex::new(1), U256::from(1));
            let address = Address::left_padding_from(&(n + (1 << 48)).to_be_bytes());
            let balance_changes = vec![change];
            list.push(AccountChanges { address, balance_changes, ..AccountChanges::default() });
        }
    }),
    ("a balance wrong at the last index", |list, payload| {
        let recipient = list.iter_mut().find(|entry| entry.address == payload.fee_recipient);
        if let Some(change) = recipient.and_then(|entry| entry.balance_changes.last_mut()) {
            change.post_balance += U256::from(1);
        }
    }),
];

/// Returns the number of items that the block's list may have besides its own.
fn room(list: &[AccountChanges], payload: &Payload) -> u64 {
    let slots = |entry: &AccountChanges| entry.storage_changes.len() + entry.storage_reads.len();
    let items: usize = list.iter().map(|entry| 1 + slots(entry)).sum();
    (payload.gas_limit / ITEM_GAS).saturating_sub(items as u64)
}

/// Measures all figures on the available corpora.
pub fn measure(setting: &Setting, geth: Option<&Path>, report: &mut Report) {
    let folders = corpora(setting);
    let names: Vec<_> = folders.iter().map(|folder| name_of(folder)).collect();
    report.say(&format!("corpora: {}", names.join(", ")));
    let tandem = setting.tandem.as_path();
    let side = |config: &str| -> Side<'_> { (Kind::One, tandem, config.to_owned()) };
    for folder in folders.iter().filter(|folder| name_of(folder).starts_with("amsterdam")) {
        let name = name_of(folder);
        let figure = format!("newPayload with the list / without, {name}");
        report.measure(&figure, || {
            let limit = Limit::AtMost(0.85);
            compare(setting, &figure, folder, side(""), side(CHECKED), limit)
        });
        let figure = format!("newPayload / geth, {name}");
        report.measure(&figure, || {
            let geth = geth.context("no --geth: the client to compare with")?;
            let geth = (Kind::Geth, geth, String::new());
            compare(setting, &figure, folder, side(""), geth, Limit::AtMost(0.55))
        });
        let figure = format!("tail after the last transaction, {name}");
        report.measure(&figure, || Ok(vec![tail(setting, &figure, folder)?]));
        for (what, spoil) in WRONG {
            let figure = format!("{what}, {name}");
            report.measure(&figure, || wrong(setting, &figure, folder, spoil));
        }
    }
    for folder in folders.iter().filter(|folder| name_of(folder) == EARLIER) {
        let figure = format!("this / before, {EARLIER}");
        report.measure(&figure, || {
            let before = setting.before.as_ref().context("no --before: the version before")?;
            let before = (Kind::One, before.as_path(), NO_SYNC.to_owned());
            let limit = Limit::Between(0.97, 1.03);
            compare(setting, &figure, folder, side(NO_SYNC), before, limit)
        });
    }
}

/// Returns the folders of the corpora with lists, and of the earlier one.
fn corpora(setting: &Setting) -> Vec<PathBuf> {
    let entries = setting.corpora.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten();
    let mut found: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.join("payloads.jsonl.gz").is_file())
        .filter(|path| name_of(path).starts_with("amsterdam") || name_of(path) == EARLIER)
        .collect();
    found.sort();
    found
}

/// Measures the state root's time after the last transaction as a share of the payload, from traces.
fn tail(setting: &Setting, name: &str, folder: &Path) -> anyhow::Result<Figure> {
    let corpus = Corpus::load(folder, usize::MAX)?;
    let node = Node::start(&setting.tandem, &corpus.genesis, "")?;
    corpus.replay(&node, Duration::from_millis(20))?;
    let mut command = Command::new(&setting.tandem);
    let first = (WARMUP + 1).to_string();
    command.args(["overlap", "--node", &format!("http://{}", node.ports()[2])]);
    command.args(["--blocks", &format!("{first}.."), "--json", "-"]);
    let output = command.output().context("start tandem overlap")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).context("read the report")?;
    let share = &report["summary"]["tail_share"];
    let value = share["p50"].as_f64().with_context(|| format!("no tail: {share}"))?;
    let note = format!("median of {} blocks", share["n"]);
    Ok(Figure::new(name, value, Limit::AtMost(0.05)).note(note))
}

/// Sends a wrong variant of each block before the block itself, and compares with a node that gets
/// no wrong ones.
fn wrong(
    setting: &Setting,
    name: &str,
    folder: &Path,
    spoil: Spoil,
) -> anyhow::Result<Vec<Figure>> {
    let count = WARMUP + if setting.quick { WRONG_BLOCKS / 2 } else { WRONG_BLOCKS };
    let corpus = Corpus::load(folder, count)?;
    ensure!(corpus.len() > WARMUP, "the corpus has too few blocks");
    let gap = Duration::from_millis(20);
    let checked = Node::start(&setting.tandem, &corpus.genesis, CHECKED)?;
    let without_list = corpus.replay(&checked, gap)?.split_off(WARMUP);
    drop(checked);
    let usual = Node::start(&setting.tandem, &corpus.genesis, "")?;
    let alone = corpus.replay(&usual, gap)?.split_off(WARMUP);
    drop(usual);
    let node = Node::start(&setting.tandem, &corpus.genesis, "")?;
    let variants: Vec<_> =
        corpus.bodies().map(|body| variant(body, spoil)).collect::<anyhow::Result<_>>()?;
    let mut engine = node.engine()?;
    let (mut refused, mut accepted, mut memory) = (Vec::new(), 0, 0);
    let mut send = |at: usize| -> anyhow::Result<()> {
        let Some(body) = variants.get(at).filter(|_| at >= WARMUP) else { return Ok(()) };
        if at == WARMUP {
            memory = node.resident_bytes()?;
        }
        let answer = engine.post(body)?;
        accepted += u32::from(answer.value["result"]["status"] != "INVALID");
        refused.push(answer.elapsed.as_secs_f64() * 1e3);
        Ok(())
    };
    let valid = corpus.replay_with(&node, gap, |block| send(block.index + 1))?.split_off(WARMUP);
    let grown = node.resident_bytes()?.saturating_sub(memory) as f64 / f64::from(1 << 20);
    let middle = |times: &[f64]| median(times.to_vec()).context("no block");
    let note = format!("{} wrong blocks", refused.len());
    Ok(vec![
        Figure::new(format!("{name}: not INVALID"), accepted.into(), Limit::Exactly(0.0))
            .note(note),
        Figure::new(
            format!("{name}: time / valid without a list"),
            middle(&refused)? / middle(&without_list)?,
            Limit::AtMost(1.1),
        ),
        Figure::new(
            format!("{name}: next valid / usual"),
            middle(&valid)? / middle(&alone)?,
            Limit::AtMost(1.1),
        ),
        Figure::new(format!("{name}: growth of memory, MiB"), grown, Limit::AtMost(256.0)),
    ])
}

/// Returns the request with a changed list, under the hash of the changed block.
fn variant(body: &str, spoil: Spoil) -> anyhow::Result<String> {
    let mut call: Value = serde_json::from_str(body)?;
    let params = call["params"].as_array_mut().context("no parameters")?;
    let [payload, hashes, root, requests] = &mut params[..] else {
        anyhow::bail!("not a payload with an access list");
    };
    let mut changed: Payload = serde_json::from_value(payload.take())?;
    let sidecar = PayloadSidecar {
        versioned_hashes: serde_json::from_value(hashes.clone())?,
        parent_beacon_block_root: serde_json::from_value(root.clone())?,
        execution_requests: serde_json::from_value(requests.clone())?,
    };
    let list = changed.block_access_list.take().context("no access list")?;
    let mut entries = Vec::<AccountChanges>::decode(&mut &list[..])?;
    spoil(&mut entries, &changed);
    entries.sort_by_key(|entry| entry.address);
    let mut rlp = Vec::new();
    alloy_rlp::encode_list::<_, AccountChanges>(&entries, &mut rlp);
    changed.block_access_list = Some(rlp.into());
    match Block::from_payload(changed.clone(), &sidecar) {
        Err(BlockError::BlockHash { want, .. }) => changed.block_hash = want,
        Err(error) => return Err(error).context("change a payload"),
        Ok(_) => anyhow::bail!("the list is the same"),
    }
    let params = json!([changed, sidecar.versioned_hashes, root, requests]);
    Ok(request("engine_newPayloadV5", &params))
}
