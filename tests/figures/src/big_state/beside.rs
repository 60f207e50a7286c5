//! Payloads on the same big state in Tandem and in geth, which has it by snap sync from Tandem: the same memory,
//! the same disk, one block after the other in turn. Once more on a disk with few reads a second.

use super::{
    GETH_SHARE, Work, folder_bytes,
    limit::{Group, disk_of},
    run::{ALONE, AMONG, Node, Tandem, command_of, forget_pages},
};
use crate::{
    corpus::{Corpus, ratio_of_medians},
    figure::{Figure, Limit},
    geth::GethData,
    seeing::run::report_of,
};
use anyhow::{Context as _, ensure};
use std::{fs, path::Path, time::Duration};
use tandem_overlap::{Distribution, stats::median};
use tandem_testkit::geth::is_installed;

/// Largest time of Tandem, as a share of geth's.
const RATIO_MAX: f64 = 0.5;
/// Reads a second that a volume of a cloud answers.
const DISK_READS: u64 = 6_000;
/// Blocks above the state when geth downloads it: it takes that of the block 64 below the head.
const HEAD: usize = 68;
/// Blocks that are left out of the times: caches of code and of the top of the tries fill up.
const WARMUP: usize = 3;
/// Pause before each block.
const GAP: Duration = Duration::from_millis(50);

/// Compares the times of payloads in so much memory, and the bytes on the disk.
pub fn compare(work: &Work<'_>, mib: u64) -> anyhow::Result<Vec<Figure>> {
    ensure!(is_installed(), "no geth on the PATH");
    let folder = work.folder.path();
    let (state, corpus) = (folder.join("block-1"), folder.join("beside"));
    let genesis = folder.join("block-1.json");
    work.tandem.state(&state, work.plan, Some(&genesis), &["--block-1"])?;
    let (usual, throttled) = if work.setting.quick { (30, 10) } else { (200, 60) };
    let blocks = HEAD + 2 * WARMUP + usual + throttled;
    work.tandem.payloads(&state, &corpus, work.plan.seed, &[("--blocks", blocks as u64)])?;
    fs::copy(&genesis, corpus.join("genesis.json"))?;
    let corpus = Corpus::load(&corpus, usize::MAX)?;
    let (below, above) = corpus.split_at(HEAD);
    let (plenty, few) = above.split_at(WARMUP + usual);

    let data = folder.join("served");
    work.tandem.copy(&state, &data)?;
    let geth = GethData::init_in(folder, &genesis)?;
    let server = Node::start(command_of(&work.tandem, None), &data, folder, &AMONG)?;
    below.replay_to(
        &mut server.engine()?,
        Duration::ZERO,
        |engine, body| engine.post(body),
        |_| Ok(()),
    )?;
    let seconds = geth.download(&server.enode()?, below.head().context("no blocks")?)?;
    server.stop()?;

    let ours = work.tandem.file_bytes(&data)?;
    let theirs = folder_bytes(&geth.database())? as f64;
    let sides = Sides { tandem: &work.tandem, data: &data, geth: &geth, folder, mib };
    let memory = || Group::with_memory(mib << 20);
    let Times { ours: our_times, theirs: their_times, .. } =
        sides.replay(&plenty, [memory()?, memory()?])?;
    let ratio = ratio_of_medians(&our_times, &their_times, work.setting.seed)?;
    let note = format!(
        "medians {:.1} and {:.1} ms, {} blocks in turn, {mib} MiB each; geth had the state in {seconds:.0} s",
        middle(&our_times),
        middle(&their_times),
        our_times.len()
    );
    let bytes = format!("{:.2} and {:.2} GB, {} slots", ours / 1e9, theirs / 1e9, work.plan.slots);
    let mut figures = vec![
        Figure::estimate(
            "newPayload / geth's on the same big state in little memory",
            ratio,
            Limit::AtMost(RATIO_MAX),
        )
        .note(note),
        Figure::new(
            "bytes on the disk / geth's, the big state after its download",
            ours / theirs,
            Limit::AtMost(GETH_SHARE),
        )
        .note(bytes),
    ];
    let disk = [disk_of(folder)?];
    let slow = || memory()?.and_reads(&disk, DISK_READS);
    figures.extend(throttled_figures(&sides.replay(&few, [slow()?, slow()?])?, work)?);
    Ok(figures)
}

/// Returns the figures on a disk that answers few reads a second.
fn throttled_figures(times: &Times, work: &Work<'_>) -> anyhow::Result<Vec<Figure>> {
    let Times { ours, theirs, traces } = times;
    let ratio = ratio_of_medians(ours, theirs, work.setting.seed)?;
    let note = format!(
        "medians {:.0} and {:.0} ms, {} blocks in turn, {DISK_READS} reads a second for each",
        middle(ours),
        middle(theirs),
        ours.len()
    );
    let report = report_of(std::slice::from_ref(traces), ours.len())?;
    let summary = report.summary;
    let busy = |side: Option<Distribution>| side.map_or(f64::NAN, |side| side.p50 / 1e6);
    let sides = format!(
        "execution busy for {:.0} ms, state root for {:.0} ms, at the median",
        busy(summary.a_ns),
        busy(summary.b_ns)
    );
    let part = |part: Option<Distribution>| part.context("no payload with both sides");
    Ok(vec![
        Figure::estimate("throttled disk: newPayload / geth's", ratio, Limit::AtMost(RATIO_MAX))
            .note(note),
        Figure::new("throttled disk: overlap", part(summary.overlap)?.p50, Limit::None).note(sides),
        Figure::new("throttled disk: part of the gain", part(summary.reached)?.p50, Limit::None),
    ])
}

fn middle(times: &[f64]) -> f64 {
    median(times.to_vec()).unwrap_or(f64::NAN)
}

/// The databases of both clients.
struct Sides<'a> {
    tandem: &'a Tandem,
    data: &'a Path,
    geth: &'a GethData,
    folder: &'a Path,
    mib: u64,
}

/// Milliseconds of newPayload after the first blocks, and the traces of the node.
struct Times {
    ours: Vec<f64>,
    theirs: Vec<f64>,
    traces: String,
}

impl Sides<'_> {
    /// Starts both clients with their limits, with nothing of their files in memory, and sends them the blocks in turn.
    fn replay(&self, blocks: &Corpus, limits: [Group; 2]) -> anyhow::Result<Times> {
        forget_pages(self.data)?;
        forget_pages(&self.geth.database())?;
        let command = command_of(self.tandem, Some(&limits[0]));
        let node = Node::start(command, self.data, self.folder, &ALONE)?;
        // geth was killed for its memory after 171 blocks on 80 million slots with twice the cache, which is its
        // default, and no limit of its heap. The cache is outside of the heap.
        let cache = (self.mib / 4).to_string();
        let flags = ["--syncmode", "full", "--maxpeers", "0", "--cache", &cache];
        let mut command = limits[1].command(Path::new("geth"));
        command.env("GOMEMLIMIT", format!("{}MiB", self.mib / 2));
        let mut geth = self.geth.start_by(command, &flags);
        let times = blocks.replay_in_turn(&mut [node.engine()?, self.geth.engine()?], GAP)?;
        let traces = node.traces()?;
        node.stop()?;
        geth.end();
        let [ours, theirs] = times.map(|times| times[WARMUP..].to_vec());
        Ok(Times { ours, theirs, traces })
    }
}
