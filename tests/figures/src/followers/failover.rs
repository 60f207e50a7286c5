//! Failover by lease: the leading storage-writer is killed with its database while blocks are sent.

use super::forkchoice;
use crate::{
    Setting,
    client::Client,
    figure::{Figure, Limit},
    node::{Kind, Node},
};
use anyhow::{Context as _, bail, ensure};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::Value;
use std::{
    fs,
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};
use tandem_chain::Fork;
use tandem_cluster_tests::{Builder, Built, Contents, Forks};
use tandem_overlap::stats::quantile;

/// Deaths of a leader, of a full run and of a quick one.
const DEATHS: [usize; 2] = [50, 3];
/// Small blocks of each run, and transactions of each block.
const BLOCKS: usize = 240;
const TRANSACTIONS: usize = 6;
/// Blocks before the leader may die, and the longest time of the replay until it does.
const BEFORE: usize = 60;
const DIES_WITHIN: Duration = Duration::from_millis(400);
/// Longest wait for a block to be VALID.
const VALID_MAX: Duration = Duration::from_secs(60);
/// Settings with which a lease moves the lead, and answers wait for the stream.
const SETTINGS: &str = "[storage_writer.lead]\nlease_ms = 1500\nmargin_ms = 200\n\
    [storage_writer.feed]\nstream = \"jetstream\"\nacks = \"stream\"\nack_wait_ms = 20000\n";

/// Measures the time from the death of a leader to the next VALID, and counts the blocks that are lost.
pub fn measure(setting: &Setting) -> anyhow::Result<Vec<Figure>> {
    let mut random = StdRng::seed_from_u64(setting.seed);
    let (mut seconds, mut lost, mut answered) = (Vec::new(), 0, 0);
    let deaths = DEATHS[usize::from(setting.quick)];
    for number in 0..deaths {
        let death = die(setting, &mut random).with_context(|| format!("death {number}"))?;
        seconds.push(death.gap.as_secs_f64());
        lost += death.lost;
        answered += death.answered;
    }
    seconds.sort_by(f64::total_cmp);
    let part = |q| quantile(&seconds, q).context("no death");
    let note = format!("{deaths} deaths, a lease of 1.5 s, one server of NATS");
    Ok(vec![
        Figure::new("failover: seconds to VALID, p50", part(0.5)?, Limit::None).note(note),
        Figure::new("failover: seconds to VALID, latest", part(1.0)?, Limit::AtMost(5.0)),
        Figure::new("blocks lost under stream", lost as f64, Limit::Exactly(0.0))
            .note(format!("of {answered} that were answered VALID before the deaths")),
    ])
}

/// Effects of a death.
struct Death {
    /// Time from SIGKILL to the end of the first forkchoice that began after it and was VALID.
    gap: Duration,
    /// Blocks that were answered VALID before, and those that the new leader did not have.
    answered: usize,
    lost: usize,
}

fn die(setting: &Setting, random: &mut StdRng) -> anyhow::Result<Death> {
    let mut builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let folder = tempfile::Builder::new().prefix("tandem-figures-").tempdir()?;
    let genesis = folder.path().join("genesis.json");
    fs::write(&genesis, builder.genesis_json())?;
    let seed = random.random();
    let blocks = builder.chain(builder.genesis(), seed, BLOCKS, Contents::Bounded(TRANSACTIONS));
    let flags = ["--followers", "2"].map(str::to_owned).to_vec();
    let node = Node::start_configured(Kind::Six, &setting.tandem, &genesis, SETTINGS, flags)?;
    let mut engine = node.engine()?;
    for index in 0..BEFORE {
        extend(&mut engine, &blocks, index)?;
    }
    let last = blocks[BEFORE - 1].hash.to_string();
    for follower in ["follower-1", "follower-2"] {
        let port = node.port_of(follower, "http")?;
        await_head(port, &last)?;
    }
    let (_, pid) = node
        .processes()?
        .into_iter()
        .find(|(name, _)| name == "storage-writer")
        .context("no storage-writer")?;
    let (database, wait) =
        (node.data().join("db"), random.random_range(Duration::ZERO..DIES_WITHIN));
    let killer = thread::spawn(move || {
        thread::sleep(wait);
        let sent = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
        let died = Instant::now();
        remove(&database)?;
        ensure!(sent?.success(), "SIGKILL was not sent");
        anyhow::Ok(died)
    });
    let (mut next, mut answered) = (BEFORE, BEFORE);
    while !killer.is_finished() {
        extend(&mut engine, &blocks, next)?;
        next += 1;
        if !killer.is_finished() {
            answered = next;
        }
    }
    let died = killer.join().ok().context("the killer panicked")??;
    extend(&mut engine, &blocks, next)?;
    let gap = died.elapsed();
    let head = head_of_new_leader(&node.data())?;
    for index in next + 1..(next + 20).min(BLOCKS) {
        extend(&mut engine, &blocks, index)?;
    }
    Ok(Death { gap, answered, lost: answered.saturating_sub(head) })
}

/// Removes the database of a process that was killed, and may still be on its way out.
fn remove(database: &Path) -> anyhow::Result<()> {
    let end = Instant::now() + VALID_MAX;
    while database.exists() {
        ensure!(Instant::now() < end, "{} cannot be removed", database.display());
        // The process may make a file meanwhile.
        let _ = fs::remove_dir_all(database);
    }
    Ok(())
}

/// Sends a block and makes it the head. Goes back to earlier ones, as a consensus client does, while the
/// answer is SYNCING.
fn extend(engine: &mut Client, blocks: &[Built], index: usize) -> anyhow::Result<()> {
    let (mut at, end) = (index, Instant::now() + VALID_MAX);
    while at <= index {
        let block = blocks.get(at).context("the leader outlives the replay")?;
        let (method, params) = block.new_payload();
        let sent =
            engine.call(method, &params).and_then(|answer| match answer["status"].as_str() {
                Some("VALID") => forkchoice(engine, &block.hash.to_string(), &Value::Null),
                _ => bail!("newPayload {at}: {answer}"),
            });
        match sent {
            Ok(()) => at += 1,
            Err(error) => {
                ensure!(Instant::now() < end, "{error:#}");
                if format!("{error:#}").contains("SYNCING") {
                    at = at.saturating_sub(1);
                } else {
                    thread::sleep(Duration::from_millis(10));
                }
            }
        }
    }
    Ok(())
}

/// Waits until JSON-RPC on this port shows a block as the head.
fn await_head(port: u16, hash: &str) -> anyhow::Result<()> {
    let end = Instant::now() + VALID_MAX;
    loop {
        let mut client = Client::public(([127, 0, 0, 1], port).into(), VALID_MAX);
        if super::copy::hash_of_head(&mut client).is_ok_and(|head| head == hash) {
            return Ok(());
        }
        ensure!(Instant::now() < end, "a follower does not reach {hash}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the head that the follower which leads had when it began to, from its log.
fn head_of_new_leader(data: &Path) -> anyhow::Result<usize> {
    for follower in ["follower-1", "follower-2"] {
        let log = fs::read_to_string(data.join("logs").join(format!("{follower}.log")))?;
        let line = log.lines().find(|line| line.contains("this storage-writer leads"));
        if let Some((_, head)) = line.and_then(|line| line.split_once("head=")) {
            let digits: String = head.chars().take_while(char::is_ascii_digit).collect();
            return Ok(digits.parse()?);
        }
    }
    bail!("no follower leads")
}
