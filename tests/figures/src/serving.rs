//! newPayload while others download the state from the node: the time with four geths that do so, as
//! a ratio to the time without, beside a geth that serves the same.

use crate::{
    Setting,
    client::{Client, forkchoice},
    corpus::{Corpus, in_turn, ratio},
    figure::{Figure, Limit, Report},
    geth::{GethData, follows, wait},
    node::Node,
    sync::genesis_text,
};
use anyhow::{Context as _, ensure};
use serde_json::Value;
use std::{
    any::Any,
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};
use tandem_overlap::stats::Estimate;
use tandem_testkit::geth::is_installed;

/// Largest time of newPayload meanwhile, as a ratio to the time without.
const RATIO_MAX: f64 = 1.15;
/// Corpus whose second half is executed while the state of its first half is downloaded.
const CORPUS: &str = "mixed-30m";
/// Number of geths that download.
const GETHS: usize = 4;
/// Number of replays with downloads, and without, of a full run.
const ROUNDS: usize = 5;
/// Pause before each block.
const GAP: Duration = Duration::from_millis(100);
/// Fewest blocks that must have been executed meanwhile.
const BLOCKS_MIN: usize = 20;
/// Longest download.
const SYNC_TIME_MAX: Duration = Duration::from_secs(300);

/// Measures the figures.
pub fn measure(setting: &Setting, report: &mut Report) {
    let name = "newPayload while four geths snap-sync from here / without";
    report.measure(name, || compare(setting, name));
}

fn compare(setting: &Setting, name: &str) -> anyhow::Result<Vec<Figure>> {
    ensure!(is_installed(), "geth is not on the PATH");
    let corpora = setting.corpora.as_ref().context("needs --corpora")?;
    let corpus = Corpus::load(&corpora.join(CORPUS), usize::MAX)?;
    let folder = tempfile::Builder::new().prefix("tandem-figures-").tempdir()?;
    let genesis = folder.path().join("genesis.json");
    fs::write(&genesis, genesis_text(&corpus.genesis)?)?;
    let ours = compared(setting, || Server::tandem(setting, &genesis), &corpus, &genesis)?;
    let theirs = compared(setting, || Server::geth(&genesis), &corpus, &genesis)?;
    let note = format!("geth that serves the same: {:.2}", theirs.median);
    Ok(vec![Figure::estimate(name, ours, Limit::AtMost(RATIO_MAX)).note(note)])
}

/// Returns the time of newPayload with geths that download, as a ratio to the time without.
fn compared(
    setting: &Setting,
    start: impl Fn() -> anyhow::Result<Server>,
    corpus: &Corpus,
    genesis: &Path,
) -> anyhow::Result<Estimate> {
    let rounds = if setting.quick { 1 } else { ROUNDS };
    let (with, mut without) =
        in_turn(rounds, || start()?.times(corpus, Some(genesis)), || start()?.times(corpus, None))?;
    let got = with.iter().map(Vec::len).min().unwrap_or(0);
    ensure!(got >= BLOCKS_MIN, "the downloads ended after {got} blocks; expected {BLOCKS_MIN}");
    // Every round executed these meanwhile.
    without.iter_mut().for_each(|times| times.truncate(got));
    ratio(&with, &without, setting.seed)
}

/// A node under measurement.
struct Server {
    engine: Client,
    enode: String,
    /// Process and data, which end with the server.
    _process: Box<dyn Any>,
}

impl Server {
    fn tandem(setting: &Setting, genesis: &Path) -> anyhow::Result<Self> {
        let node = Node::start_among(&setting.tandem, genesis, "", Vec::new())?;
        let (engine, enode) = (node.engine()?, node.enode()?);
        Ok(Self { engine, enode, _process: Box::new(node) })
    }

    fn geth(genesis: &Path) -> anyhow::Result<Self> {
        let data = GethData::init(genesis)?;
        let geth = data.start("full");
        let (engine, enode) = (data.engine()?, geth.enode());
        Ok(Self { engine, enode, _process: Box::new((geth, data)) })
    }

    /// Executes the corpus. Returns the milliseconds of newPayload of the blocks in its second half,
    /// with a genesis file only of those that were executed while geths downloaded the state.
    fn times(mut self, corpus: &Corpus, genesis: Option<&Path>) -> anyhow::Result<Vec<f64>> {
        let bodies: Vec<&str> = corpus.bodies().collect();
        let (first, second) = bodies.split_at(bodies.len() / 2);
        let mut head = Value::Null;
        for body in first {
            head = self.execute(body)?.0;
        }
        let Some(genesis) = genesis else {
            return second.iter().map(|body| Ok(self.execute(body)?.1)).collect();
        };
        let started = Arc::new(AtomicUsize::new(0));
        let (ended, failed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let mut downloads = Vec::new();
        for _ in 0..GETHS {
            let (enode, head) = (self.enode.clone(), head.clone());
            let (started, ended, failed) = (started.clone(), ended.clone(), failed.clone());
            let genesis = genesis.to_owned();
            downloads.push(thread::spawn(move || {
                let result = download(&genesis, &enode, &head, &started);
                failed.fetch_or(result.is_err(), Relaxed);
                ended.fetch_add(1, Relaxed);
                result
            }));
        }
        while started.load(Relaxed) < GETHS && !failed.load(Relaxed) {
            thread::sleep(Duration::from_millis(20));
        }
        let mut times = Vec::new();
        for body in second {
            if ended.load(Relaxed) > 0 {
                break;
            }
            times.push(self.execute(body)?.1);
        }
        // All of them, because each ends its geth.
        let ends: Vec<_> = downloads.into_iter().map(thread::JoinHandle::join).collect();
        for end in ends {
            end.map_err(|_| anyhow::anyhow!("the thread of a download panicked"))??;
        }
        Ok(times)
    }

    /// Makes a block the head. Returns its hash, and the milliseconds of newPayload.
    fn execute(&mut self, body: &str) -> anyhow::Result<(Value, f64)> {
        thread::sleep(GAP);
        let answer = self.engine.post(body)?;
        let status = &answer.value["result"]["status"];
        ensure!(status == "VALID", "newPayload: {}", answer.value);
        let request: Value = serde_json::from_str(body)?;
        let hash = request["params"][0]["blockHash"].clone();
        forkchoice(&mut self.engine, &hash)?;
        Ok((hash, answer.elapsed.as_secs_f64() * 1e3))
    }
}

/// Downloads the state of a chain with a new geth in the class idle. `started` counts
/// those that have begun.
fn download(
    genesis: &Path,
    server: &str,
    head: &Value,
    started: &AtomicUsize,
) -> anyhow::Result<()> {
    let data = GethData::init(genesis)?;
    // A process has the priority of the thread that starts it.
    tandem_actor::take_idle_priority();
    let geth = data.start("snap");
    geth.eval(&format!("admin.addPeer('{server}')"));
    let mut engine = data.engine()?;
    follows(&mut engine, head)?;
    started.fetch_add(1, Relaxed);
    wait("geth's download", SYNC_TIME_MAX, || follows(&mut engine, head))
}
