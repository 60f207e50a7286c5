//! Payloads on the same big state in Tandem and in geth, which has it by snap sync from Tandem: the same memory,
//! the same disk, one block after the other in turn.

use super::{
    GETH_SHARE, Work, folder_bytes,
    limit::Group,
    run::{ALONE, AMONG, Node, command_of, forget_pages},
};
use crate::{
    corpus::{Corpus, ratio_of_medians},
    figure::{Figure, Limit},
    geth::GethData,
};
use anyhow::{Context as _, ensure};
use std::{fs, path::Path, time::Duration};
use tandem_overlap::stats::median;
use tandem_testkit::geth::is_installed;

/// Largest time of Tandem, as a share of geth's.
const RATIO_MAX: f64 = 0.5;
/// Blocks above the state when geth downloads it: it takes that of the block 64 below the head.
const HEAD: usize = 68;
/// Least memory, in MiB: with less, the blocks that a node has in memory after its start leave it none.
const MIB_MIN: u64 = 1_024;
/// Blocks that are left out of the times: caches of code and of the top of the tries fill up.
const WARMUP: usize = 3;
/// Pause before each block.
const GAP: Duration = Duration::from_millis(50);

/// Compares the times of payloads in so much memory, and the bytes on the disk.
pub fn compare(work: &Work<'_>, mib: u64) -> anyhow::Result<Vec<Figure>> {
    ensure!(is_installed(), "no geth on the PATH");
    let mib = mib.max(MIB_MIN);
    let folder = work.folder.path();
    let (state, corpus) = (folder.join("block-1"), folder.join("beside"));
    let genesis = folder.join("block-1.json");
    work.tandem.state(&state, work.plan, Some(&genesis), &["--block-1"])?;
    let blocks = HEAD + WARMUP + if work.setting.quick { 30 } else { 200 };
    work.tandem.payloads(&state, &corpus, work.plan.seed, &[("--blocks", blocks as u64)])?;
    fs::copy(&genesis, corpus.join("genesis.json"))?;
    let corpus = Corpus::load(&corpus, usize::MAX)?;
    let (below, above) = corpus.split_at(HEAD);

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
    let limits = [Group::with_memory(mib << 20)?, Group::with_memory(mib << 20)?];
    forget_pages(&data)?;
    forget_pages(&geth.database())?;
    let node = Node::start(command_of(&work.tandem, Some(&limits[0])), &data, folder, &ALONE)?;
    // geth's default is half of 2 GiB.
    let cache = (mib / 2).to_string();
    let flags = ["--syncmode", "full", "--maxpeers", "0", "--cache", &cache];
    let process = geth.start_by(limits[1].command(Path::new("geth")), &flags);
    let times = above.replay_in_turn(&mut [node.engine()?, geth.engine()?], GAP)?;
    drop((process, node));
    let [our_times, their_times] = times.map(|times| times[WARMUP..].to_vec());
    let ratio = ratio_of_medians(&our_times, &their_times, work.setting.seed)?;
    let of = |times: &[f64]| median(times.to_vec()).unwrap_or(f64::NAN);
    let note = format!(
        "medians {:.1} and {:.1} ms, {} blocks in turn, {mib} MiB each; geth had the state in {seconds:.0} s",
        of(&our_times),
        of(&their_times),
        our_times.len()
    );
    let bytes = format!("{:.2} and {:.2} GB, {} slots", ours / 1e9, theirs / 1e9, work.plan.slots);
    Ok(vec![
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
    ])
}
