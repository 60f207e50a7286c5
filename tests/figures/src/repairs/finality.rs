//! Long times without finality: live branches side by side, a head that switches between them, and
//! a node that is stopped and killed on the way.

use crate::{
    Setting,
    blocks::{Tip, child, forkchoice, write_genesis},
    client::Client,
    corpus::ratio_of_medians,
    figure::{Figure, Limit, Report},
    node::Node,
};
use alloy_primitives::B256;
use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use std::{
    fmt,
    path::PathBuf,
    time::{Duration, Instant},
};
use tandem_overlap::stats::SplitMix;

/// Number of slots of a chain with finality, for the usual time of newPayload.
const USUAL_SLOTS: u64 = 200;
/// Slot from which memory is counted.
const SETTLED_SLOTS: u64 = 500;
const MIB: f64 = (1 << 20) as f64;
/// Most memory for a block without transactions while finality does not move. All branches stay, as each
/// may win; bytes on disk and in memory bound their number.
const BLOCK_BYTES_MAX: f64 = 1024.0;
/// Growth that says nothing: caches and buffers fill in the first blocks, or come and go.
const NOISE_BYTES: f64 = 16.0 * MIB;
/// Mean distances in slots: the head changes to another branch, the node is stopped, and the node
/// is killed once in this many slots.
const SWITCH_EVERY: usize = 8;
const STOP_EVERY: usize = 400;
const KILL_EVERY: usize = 400;
/// Longest time until a chosen head is executed.
const SYNC_TIME_MAX: Duration = Duration::from_secs(60);
/// Time a node needs to measure its database after a request.
const MEASURE_TIME: Duration = Duration::from_secs(2);
/// Longest wait for a stop.
const STOP_TIME_MAX: Duration = Duration::from_secs(60);

/// Measures the figures of each number of branches.
pub fn measure(setting: &Setting, report: &mut Report) {
    let (slots, branches): (u64, &[u16]) =
        if setting.quick { (400, &[1, 3]) } else { (3_000, &[1, 3, 20]) };
    let mut usual = None;
    for &branches in branches {
        let name = format!("finality: {slots} slots without it, {branches} branches");
        report.measure(&name, || {
            let usual = match &mut usual {
                Some(usual) => usual,
                none => none.insert(usual_times(setting)?),
            };
            figures(setting, &name, slots, branches, usual)
        });
    }
}

/// Returns the slot after which memory is counted.
fn settled_slots(slots: u64) -> u64 {
    SETTLED_SLOTS.min(slots / 4)
}

/// Returns the milliseconds of newPayload on a chain with regular finality.
fn usual_times(setting: &Setting) -> anyhow::Result<Vec<f64>> {
    let mut chain = Chain::start(setting)?;
    let mut hashes = vec![chain.genesis.hash];
    let mut tip = chain.genesis;
    let mut times = Vec::new();
    for slot in 1..=USUAL_SLOTS {
        let (next, body) = child(tip, chain.state_root, slot, 0);
        let (status, elapsed) = chain.new_payload(&body)?;
        ensure!(status == "VALID", "newPayload: {status}");
        times.push(elapsed);
        tip = next;
        hashes.push(tip.hash);
        let behind = |blocks: usize| hashes[hashes.len().saturating_sub(1 + blocks)];
        let status = chain.forkchoice(tip.hash, behind(32), behind(64))?;
        ensure!(status == "VALID", "forkchoice: {status}");
    }
    Ok(times)
}

/// A node on a chain of empty blocks.
struct Chain {
    node: Node,
    engine: Client,
    genesis: Tip,
    state_root: B256,
    /// Folder of the genesis file, kept until the end.
    _folder: tempfile::TempDir,
}

impl Chain {
    fn start(setting: &Setting) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let genesis: PathBuf = folder.path().join("genesis.json");
        write_genesis(&genesis)?;
        let node = Node::start(&setting.tandem, &genesis, "")?;
        let mut engine = node.engine()?;
        let block = engine.call("eth_getBlockByNumber", &json!(["0x0", false]))?;
        let hash = |field: &str| -> anyhow::Result<B256> {
            Ok(block[field].as_str().context("no genesis block")?.parse()?)
        };
        let (genesis, state_root) = (Tip { number: 0, hash: hash("hash")? }, hash("stateRoot")?);
        Ok(Self { node, engine, genesis, state_root, _folder: folder })
    }

    /// Sends a block. Returns the status or the error, and the milliseconds.
    fn new_payload(&mut self, body: &str) -> anyhow::Result<(String, f64)> {
        let answer = self.engine.post(body)?;
        Ok((status(&answer.value["result"], &answer.value), answer.elapsed.as_secs_f64() * 1e3))
    }

    fn forkchoice(&mut self, head: B256, safe: B256, finalized: B256) -> anyhow::Result<String> {
        let answer = self.engine.post(&forkchoice(head, safe, finalized))?.value;
        Ok(status(&answer["result"]["payloadStatus"], &answer))
    }

    /// Makes a block the head without finality, and retries while the node executes the blocks it
    /// kept.
    fn make_head(&mut self, head: B256) -> anyhow::Result<String> {
        let until = Instant::now() + SYNC_TIME_MAX;
        loop {
            let status = self.forkchoice(head, B256::ZERO, B256::ZERO)?;
            if status != "SYNCING" || Instant::now() >= until {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn restart(&mut self) -> anyhow::Result<()> {
        self.node.restart()?;
        self.engine = self.node.engine()?;
        Ok(())
    }
}

/// Returns whether a block stays: a block off the canonical chain may be kept for later.
fn is_taken(status: &str) -> bool {
    matches!(status, "VALID" | "ACCEPTED" | "SYNCING")
}

fn status(of: &Value, answer: &Value) -> String {
    of["status"].as_str().map_or_else(|| answer["error"].to_string(), str::to_owned)
}

/// Memory of a node, in bytes.
#[derive(Clone, Copy, Default)]
struct Memory {
    /// Resident memory of the process, with pages that the allocator returns later.
    resident: f64,
    /// Memory that the node has allocated and not freed.
    allocated: f64,
    /// The database's memtables and block cache, whose size is a setting, independent of the chain.
    database: f64,
    /// Records and trie diffs of pending blocks.
    pending: f64,
}

impl Memory {
    /// Reads the metrics twice: the node measures its database on request, and reports the result
    /// next time.
    fn of(node: &Node) -> anyhow::Result<Self> {
        Self::read(node)?;
        std::thread::sleep(MEASURE_TIME);
        Self::read(node)
    }

    fn read(node: &Node) -> anyhow::Result<Self> {
        let metric = |name: &str| node.metric(&format!("tandem_storage_writer_{name}"));
        Ok(Self {
            resident: node.resident_bytes()? as f64,
            allocated: node.metric("tandem_process_allocator_bytes{kind=\"allocated\"}")?,
            database: metric("database_memtable_bytes")? + metric("database_cache_bytes")?,
            pending: metric("pending_bytes{place=\"memory\"}")?,
        })
    }

    /// Returns the memory allocated besides the database's buffers.
    fn other(&self) -> f64 {
        self.allocated - self.database
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [resident, allocated, database, pending] =
            [self.resident, self.allocated, self.database, self.pending].map(|bytes| bytes / MIB);
        write!(
            f,
            "{allocated:.0} MiB with {database:.0} of the database and {pending:.0} of blocks \
             ({resident:.0} resident)"
        )
    }
}

/// Results of a run.
#[derive(Default)]
struct Run {
    /// Milliseconds of newPayload on the head's branch.
    head_times: Vec<f64>,
    /// Number of blocks answered VALID or ACCEPTED that the node no longer has, and its answer to
    /// the first.
    lost: u64,
    first_loss: Option<String>,
    settled: Memory,
    last: Memory,
    switches: u64,
    stops: u64,
    kills: u64,
}

impl Run {
    fn lose(&mut self, branch: usize, blocks: u64, slot: u64, said: &str) {
        self.lost += blocks;
        let first = format!("first in slot {slot}, branch {branch}: {said:.160}");
        self.first_loss.get_or_insert(first);
    }
}

fn figures(
    setting: &Setting,
    name: &str,
    slots: u64,
    branches: u16,
    usual: &[f64],
) -> anyhow::Result<Vec<Figure>> {
    let run = run(setting, slots, branches)?;
    let note = format!("{} switches, {} stops, {} kills", run.switches, run.stops, run.kills);
    let note = run.first_loss.as_ref().map_or(note.clone(), |loss| format!("{note}; {loss}"));
    let memory = format!("{}; then {}", run.settled, run.last);
    let kept = (slots - settled_slots(slots)) * u64::from(branches);
    let allowed = NOISE_BYTES + kept as f64 * BLOCK_BYTES_MAX;
    let growth = run.last.other() - run.settled.other();
    let time = ratio_of_medians(&run.head_times, usual, setting.seed)?;
    Ok(vec![
        Figure::new(format!("{name}: blocks lost"), run.lost as f64, Limit::Exactly(0.0))
            .note(note),
        Figure::new(
            format!("{name}: memory, growth in MiB"),
            growth / MIB,
            Limit::AtMost(allowed / MIB),
        )
        .note(memory),
        Figure::estimate(format!("{name}: newPayload, ratio"), time, Limit::AtMost(1.5)),
    ])
}

/// Grows all branches by one block per slot. A branch whose block is gone is counted and ends.
fn run(setting: &Setting, slots: u64, branches: u16) -> anyhow::Result<Run> {
    let mut chain = Chain::start(setting)?;
    let mut random = SplitMix(setting.seed ^ (u64::from(branches) << 32));
    let mut run = Run::default();
    let mut tips = vec![Some(chain.genesis); branches.into()];
    let settled = settled_slots(slots);
    let mut head = 0;
    for slot in 1..=slots {
        if branches > 1 && random.below(SWITCH_EVERY) == 0 {
            head = random.below(tips.len());
            run.switches += 1;
        }
        for branch in 0..branches {
            let place = usize::from(branch);
            let Some(tip) = tips[place] else { continue };
            let (next, body) = child(tip, chain.state_root, slot, branch);
            let (status, elapsed) = chain.new_payload(&body)?;
            if is_taken(&status) {
                tips[place] = Some(next);
            } else {
                run.lose(place, tip.number, slot, &status);
                tips[place] = None;
            }
            if status == "VALID" && place == head {
                run.head_times.push(elapsed);
            }
        }
        if let Some(tip) = tips[head] {
            let status = chain.make_head(tip.hash)?;
            if status != "VALID" {
                run.lose(head, tip.number, slot, &status);
                tips[head] = None;
            }
        }
        if slot == settled {
            run.settled = Memory::of(&chain.node)?;
        }
        interrupt(&mut chain, &mut run, &mut random)?;
    }
    run.last = Memory::of(&chain.node)?;
    for crash in [false, true] {
        if crash {
            chain.node.kill();
            chain.restart()?;
        }
        check_all(&mut chain, &mut run, &mut tips, slots)?;
    }
    Ok(run)
}

/// Stops or kills the node at random, and starts it again.
fn interrupt(chain: &mut Chain, run: &mut Run, random: &mut SplitMix) -> anyhow::Result<()> {
    if random.below(STOP_EVERY) == 0 {
        chain.node.stop(STOP_TIME_MAX)?;
        chain.restart()?;
        run.stops += 1;
    }
    if random.below(KILL_EVERY) == 0 {
        chain.node.kill();
        chain.restart()?;
        run.kills += 1;
    }
    Ok(())
}

/// Checks that every tip can become the head, and that every block can get a child.
fn check_all(
    chain: &mut Chain,
    run: &mut Run,
    tips: &mut [Option<Tip>],
    slots: u64,
) -> anyhow::Result<()> {
    for (branch, place) in tips.iter_mut().enumerate() {
        let Some(tip) = *place else { continue };
        let status = chain.make_head(tip.hash)?;
        let (next, body) = child(tip, chain.state_root, slots + tip.number + 1, branch as u16);
        let (child_status, _) = chain.new_payload(&body)?;
        if status == "VALID" && is_taken(&child_status) {
            *place = Some(next);
        } else {
            run.lose(branch, tip.number, slots, &format!("{status}, child {child_status}"));
            *place = None;
        }
    }
    Ok(())
}
