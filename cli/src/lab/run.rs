//! The measurement: sends every block to all nodes in turn, in a new order each time.

use super::child::{self, Genesis, Node};
use super::experiment::{Experiment, Setup};
use super::load;
use super::progress::Progress;
use super::record::Record;
use crate::replay::{CallTimes, Corpus, Entry};
use crate::scrape::Scrape;
use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use tandem_overlap::stats::SplitMix;
use tandem_overlap::{PayloadReport, Preset, Selection};
use tokio::time::sleep;

/// Blocks between two collections of traces, and traces requested each time. A block makes two or
/// three traces, and a node keeps 256.
const COLLECT_BLOCKS: usize = 32;
const COLLECT_TRACES: usize = 128;
/// Time for the last spans of a block to end after its answer, and number of times that it is given.
/// On a busy machine one is not enough.
const SETTLE: Duration = Duration::from_millis(200);
const SETTLES_MAX: usize = 25;

/// Limits from the command line.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Longest time of one call.
    pub call_time_max: Duration,
    /// Time by which everything has to be over.
    pub deadline: Instant,
}

/// Figures of one block from its trace, times in milliseconds.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct TraceFigures {
    /// Overlap on busy time; none if a side had no work.
    pub overlap: Option<f64>,
    /// Serialization; none if a side had no work.
    pub serialization: Option<f64>,
    /// Time from the last transaction to the root.
    pub tail_ms: Option<f64>,
    /// Busy time of the payload side.
    pub a_ms: f64,
    /// Busy time of the proof side.
    pub b_ms: f64,
    /// Part of the possible gain of overlapping that is reached; none if a side had no work.
    pub reached: Option<f64>,
    /// The smaller side's work as a part of the payload's; none if a side had no work.
    pub weight: Option<f64>,
    /// Tail as a part of the payload; none without transactions.
    pub tail_share: Option<f64>,
}

impl From<&PayloadReport> for TraceFigures {
    fn from(payload: &PayloadReport) -> Self {
        let milliseconds = |ns: u64| ns as f64 / 1e6;
        Self {
            overlap: payload.overlap,
            serialization: payload.serialization,
            tail_ms: payload.tail_ns.map(milliseconds),
            a_ms: milliseconds(payload.a_ns),
            b_ms: milliseconds(payload.b_ns),
            reached: payload.worth.reached,
            weight: payload.worth.weight,
            tail_share: payload.tail_share,
        }
    }
}

/// Figures of one block on one node.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Cell {
    /// `engine_newPayload`, in milliseconds.
    pub new_payload_ms: f64,
    /// `engine_forkchoiceUpdated`, in milliseconds.
    pub forkchoice_updated_ms: f64,
    /// Figures from the node's trace, if it was still there.
    pub trace: Option<TraceFigures>,
}

/// Figures of one block on all nodes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    /// Number of the round, from 0.
    pub round: u32,
    /// Height of the block.
    pub number: u64,
    /// Gas of the block.
    pub gas: u64,
    /// Number of transactions in the block.
    pub transactions: usize,
    /// Figures of the nodes, in the order of [`Experiment::setups`].
    pub nodes: Vec<Cell>,
}

/// A node over the measured blocks of all rounds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct NodeUsage {
    /// Name and version that it gives itself.
    pub version: Option<String>,
    /// Usage of its process; none if the system does not report it, or another started it.
    pub usage: Option<load::Usage>,
    /// Metrics before and after the measured blocks, one pair per round.
    pub scrapes: Vec<(Scrape, Scrape)>,
}

/// All measurements on one corpus.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub struct Measured {
    /// Number of complete rounds.
    pub rounds: u32,
    /// Measured blocks, round by round.
    pub rows: Vec<Row>,
    /// Usage of the nodes, in the order of [`Experiment::setups`].
    pub usage: Vec<NodeUsage>,
    /// CPU seconds that other processes took during the measured time; none if the system does not
    /// report them.
    pub others_cpu_seconds: Option<f64>,
    /// Measured time, in seconds.
    pub seconds: f64,
    /// Reason why the measurement ended early.
    pub failure: Option<String>,
}

/// Runs an experiment on one corpus, in `folder`, which must be empty. Goes on after the rounds in
/// `record`, and adds each round to it.
///
/// # Errors
/// Returns an error if it cannot begin: the genesis or a node does not start. Later failures are in
/// [`Measured::failure`].
pub async fn measure(
    experiment: &Experiment,
    corpus: &Corpus,
    folder: &Path,
    limits: &Limits,
    record: &mut Record,
) -> anyhow::Result<Measured> {
    let setups = experiment.setups();
    let name = corpus.path().display().to_string();
    let mut measured = record.measured(&name).unwrap_or_else(|| Measured {
        usage: vec![NodeUsage::default(); setups.len()],
        ..Measured::default()
    });
    if measured.rounds >= experiment.rounds {
        return Ok(measured);
    }
    let (file, datadir) = match corpus.datadir() {
        Some(datadir) => (corpus.genesis().ok(), datadir),
        None => {
            let (file, datadir) = (corpus.genesis()?, folder.join("genesis"));
            child::init(&file, &datadir, folder.join("init.log")).await?;
            (Some(file), datadir)
        }
    };
    let genesis = Genesis { file: file.as_deref(), datadir: &datadir };
    let mut progress = Progress::new(experiment, corpus.len(), measured.rounds);
    for number in measured.rounds..experiment.rounds {
        let folder = folder.join(format!("round-{number}"));
        let nodes = start(&setups, genesis, &folder, limits).await?;
        let mut round = Round {
            number,
            experiment,
            limits,
            nodes,
            traces: vec![HashMap::new(); setups.len()],
            random: SplitMix(u64::from(number)),
            backwards: None,
        };
        if let Err(error) = round.run(corpus, &mut measured, &mut progress).await {
            measured.failure = Some(format!("{error:#}"));
        }
        drop(round);
        fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
        if measured.failure.is_some() {
            break;
        }
        measured.rounds = number + 1;
        record.add(&name, &measured)?;
    }
    progress.finish();
    Ok(measured)
}

async fn start(
    setups: &[Setup],
    genesis: Genesis<'_>,
    folder: &Path,
    limits: &Limits,
) -> anyhow::Result<Vec<Node>> {
    let mut nodes = Vec::with_capacity(setups.len());
    for (index, setup) in setups.iter().enumerate() {
        let folder = folder.join(index.to_string());
        let node = Node::start(setup, genesis, &folder, limits.call_time_max).await;
        nodes.push(node.with_context(|| format!("start node {:?}", setup.name))?);
    }
    Ok(nodes)
}

/// One pass over the corpus, from the genesis.
struct Round<'a> {
    number: u32,
    experiment: &'a Experiment,
    limits: &'a Limits,
    nodes: Vec<Node>,
    /// Figures of each node, by height of the block.
    traces: Vec<HashMap<u64, TraceFigures>>,
    random: SplitMix,
    /// Reverse of the last block's order, for every second block.
    backwards: Option<Vec<usize>>,
}

/// Usage when the measured blocks began.
struct Before {
    time: Instant,
    machine: Option<f64>,
    own: Option<f64>,
    nodes: Vec<Option<load::Usage>>,
    scrapes: Vec<Scrape>,
}

impl Round<'_> {
    async fn run(
        &mut self,
        corpus: &Corpus,
        measured: &mut Measured,
        progress: &mut Progress,
    ) -> anyhow::Result<()> {
        let warmup = usize::try_from(self.experiment.warmup)?;
        let blocks = self.experiment.blocks.map_or(Ok(usize::MAX), usize::try_from)?;
        let last = warmup.saturating_add(blocks);
        let first_row = measured.rows.len();
        let (mut before, mut outcome) = (None, Ok(()));
        let mut entries = corpus.read(0..=u64::MAX);
        let mut turn = 0;
        while turn < last {
            let Some(entry) = entries.recv().await else { break };
            if turn == warmup {
                before = Some(self.before().await?);
            }
            let row = match self.block(&entry?).await {
                Ok(row) => row,
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            };
            if turn >= warmup {
                measured.rows.push(row);
            }
            turn += 1;
            if turn % COLLECT_BLOCKS == 0 {
                self.collect().await?;
            }
            progress.block();
        }
        outcome?;
        ensure!(turn > warmup, "the corpus has {turn} blocks, and {warmup} are the warm-up");
        self.settle(&measured.rows[first_row..]).await?;
        for row in &mut measured.rows[first_row..] {
            for (cell, traces) in row.nodes.iter_mut().zip(&self.traces) {
                cell.trace = traces.get(&row.number).copied();
            }
        }
        if let Some(before) = before {
            self.account(before, measured).await?;
        }
        Ok(())
    }

    /// Sends one block to all nodes.
    async fn block(&mut self, entry: &Entry) -> anyhow::Result<Row> {
        ensure!(Instant::now() < self.limits.deadline, "the time is up (see --time-limit)");
        let mut times = vec![None; self.nodes.len()];
        for index in self.order() {
            // Before the call, not after it, because the next line of the corpus is read meanwhile.
            sleep(Duration::from_millis(self.experiment.gap_ms)).await;
            let node = &mut self.nodes[index];
            let answer = match node.session.block(entry).await {
                Ok(answer) => answer,
                Err(error) => return Err(node.explain(error).await),
            };
            times[index] = Some(answer.map_err(|wrong| {
                let name = &node.name;
                anyhow::anyhow!(
                    "node {name:?}, block {} ({}): {}: expected {}, got {}",
                    wrong.number,
                    wrong.hash,
                    wrong.method,
                    wrong.expected,
                    wrong.got
                )
            })?);
        }
        let cell = |CallTimes { new_payload_ms, forkchoice_updated_ms, .. }| Cell {
            new_payload_ms,
            forkchoice_updated_ms: forkchoice_updated_ms.unwrap_or_default(),
            trace: None,
        };
        Ok(Row {
            round: self.number,
            number: entry.number,
            gas: entry.gas,
            transactions: entry.transactions,
            nodes: times.into_iter().flatten().map(cell).collect(),
        })
    }

    /// Returns a random order, and its reverse for the next block: over two blocks, no node comes
    /// earlier than another.
    fn order(&mut self) -> Vec<usize> {
        match self.backwards.take() {
            Some(order) => order,
            None => {
                let order = self.random.order(self.nodes.len());
                self.backwards = Some(order.iter().rev().copied().collect());
                order
            }
        }
    }

    /// Reads the newest traces until those of these blocks are there, or will not come any more.
    async fn settle(&mut self, rows: &[Row]) -> anyhow::Result<()> {
        for _ in 0..SETTLES_MAX {
            sleep(SETTLE).await;
            let tracing = self.collect().await?;
            let mut traced = self.traces.iter().zip(tracing).filter(|(_, tracing)| *tracing);
            if traced.all(|(traces, _)| rows.iter().all(|row| traces.contains_key(&row.number))) {
                break;
            }
        }
        Ok(())
    }

    /// Reads the newest traces of all nodes before they are evicted. Returns which nodes have any.
    async fn collect(&mut self) -> anyhow::Result<Vec<bool>> {
        let selection = Selection::from(Preset::Tandem);
        let mut tracing = Vec::with_capacity(self.nodes.len());
        for (node, traces) in self.nodes.iter_mut().zip(&mut self.traces) {
            let bytes = match node.traces(COLLECT_TRACES).await {
                Ok(Some(bytes)) => bytes,
                Ok(None) => {
                    tracing.push(false);
                    continue;
                }
                Err(error) => return Err(node.explain(error).await),
            };
            tracing.push(true);
            let input = tandem_overlap::read(&node.name, &bytes);
            let report = tandem_overlap::analyze(input, &selection, usize::MAX);
            // A trace that was incomplete the last time comes again.
            traces.extend(
                report.payloads.iter().filter_map(|payload| {
                    Some((payload.block_number?, TraceFigures::from(payload)))
                }),
            );
        }
        Ok(tracing)
    }

    async fn before(&mut self) -> anyhow::Result<Before> {
        Ok(Before {
            scrapes: self.scrapes().await?,
            nodes: self.nodes.iter().map(Node::usage).collect(),
            time: Instant::now(),
            machine: load::machine_cpu_seconds(),
            own: load::process_cpu_seconds(std::process::id()),
        })
    }

    async fn scrapes(&mut self) -> anyhow::Result<Vec<Scrape>> {
        let mut scrapes = Vec::with_capacity(self.nodes.len());
        for node in &mut self.nodes {
            match node.metrics().await {
                Ok(text) => scrapes.push(Scrape::parse(&text)),
                Err(error) => return Err(node.explain(error).await),
            }
        }
        Ok(scrapes)
    }

    /// Adds the usage since `before`.
    async fn account(&mut self, before: Before, measured: &mut Measured) -> anyhow::Result<()> {
        let since = |now: Option<f64>, then: Option<f64>| Some(now? - then?);
        let machine = since(load::machine_cpu_seconds(), before.machine);
        let own = since(load::process_cpu_seconds(std::process::id()), before.own);
        let seconds = before.time.elapsed().as_secs_f64();
        let mut known = own;
        for ((node, usage), then) in self.nodes.iter().zip(&mut measured.usage).zip(before.nodes) {
            let used = node.usage().zip(then).map(|(now, then)| now.since(then));
            known = known.zip(used).map(|(known, used)| known + used.cpu_seconds);
            usage.usage = used.map(|used| used.add(usage.usage.unwrap_or_default()));
            usage.version.clone_from(&node.version);
        }
        let others = since(machine, known).map(|others| others.max(0.0));
        measured.others_cpu_seconds =
            others.map(|others| measured.others_cpu_seconds.unwrap_or(0.0) + others);
        measured.seconds += seconds;
        let after = self.scrapes().await?;
        for ((usage, before), after) in measured.usage.iter_mut().zip(before.scrapes).zip(after) {
            usage.scrapes.push((before, after));
        }
        Ok(())
    }
}
