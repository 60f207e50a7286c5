//! Sync from geth: the time that Tandem needs for a chain, and the time of another geth.

use crate::{
    Setting,
    client::{Client, forkchoice},
    corpus::{Corpus, name_of, ratio_of_medians},
    figure::{Figure, Limit, Report},
    geth::GethData,
    node::Node,
};
use anyhow::{Context as _, ensure};
use flate2::read::MultiGzDecoder;
use serde_json::{Value, json};
use std::{
    any::Any,
    fs,
    io::Read as _,
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};
use tandem_chain::{Block, Payload, PayloadSidecar};
use tandem_testkit::geth::{Geth, import, is_installed};
use tempfile::TempDir;

/// Largest time that Tandem may need, as a share of geth's.
const RATIO_MAX: f64 = 0.5;

/// Longest sync of one chain.
const SYNC_TIME_MAX: Duration = Duration::from_secs(600);

/// Corpora whose chains are synced, besides the demo corpus.
const CORPORA: [&str; 2] = ["mixed-30m", "amsterdam-mixed-30m"];

/// Measures the figures.
pub fn measure(setting: &Setting, report: &mut Report) {
    let more = setting.corpora.iter().flat_map(|folder| CORPORA.map(|name| folder.join(name)));
    let folders = std::iter::once(setting.demo.clone()).chain(more.filter(|path| path.is_dir()));
    for folder in folders {
        let figure = format!("full sync from geth / geth's, {}", name_of(&folder));
        report.measure(&figure, || compare(setting, &figure, &folder));
    }
}

/// A chain, and a geth that serves it.
pub struct Served {
    genesis: PathBuf,
    head: String,
    /// Process, which ends before its folder goes.
    geth: Geth,
    /// Folders of its files.
    _folders: Box<dyn Any>,
}

impl Served {
    fn of_corpus(corpus: &Corpus) -> anyhow::Result<Self> {
        let blocks = corpus.bodies().map(block).collect::<anyhow::Result<Vec<_>>>()?;
        Self::start(&genesis_text(&corpus.genesis)?, &blocks)
    }

    /// Starts geth on these blocks.
    ///
    /// # Errors
    /// If geth refuses the chain or does not start.
    pub fn start(genesis: &str, blocks: &[Block]) -> anyhow::Result<Self> {
        let head = blocks.last().context("the chain has no blocks")?.id.hash.to_string();
        let folder = tempfile::Builder::new().prefix("tandem-figures-").tempdir()?;
        import(folder.path(), "server", genesis, blocks.iter().map(Block::to_rlp));
        let file = folder.path().join("genesis.json");
        fs::write(&file, genesis)?;
        let geth = Geth::start(folder.path(), "server", &["--port", "0", "--syncmode", "full"]);
        let served = geth.eval("eth.getBlock('latest').hash");
        ensure!(served == json!(head), "geth's head is {served}; expected {head}");
        Ok(Self { genesis: file, head, geth, _folders: Box::new(folder) })
    }

    /// Starts geth on data that has this head. `folder` is that of the genesis file.
    ///
    /// # Errors
    /// If it has another head.
    pub fn of_data(
        data: GethData,
        genesis: PathBuf,
        head: String,
        folder: TempDir,
    ) -> anyhow::Result<Self> {
        let geth = data.start("full");
        let served = geth.eval("eth.getBlock('latest').hash");
        ensure!(served == json!(head), "geth's head is {served}; expected {head}");
        Ok(Self { genesis, head, geth, _folders: Box::new((data, folder)) })
    }

    /// Returns the seconds that Tandem needs with these settings, and its largest memory in bytes.
    ///
    /// # Errors
    /// If it does not start or does not reach the head.
    pub fn tandem(&self, setting: &Setting, config: &str) -> anyhow::Result<(f64, u64)> {
        let flags = ["--disable-discovery", "--sessions.peers", &self.geth.enode()];
        let flags = flags.map(str::to_owned).to_vec();
        let node = Node::start_among(&setting.tandem, &self.genesis, config, flags)?;
        let seconds = self.follow(&mut node.engine()?)?;
        Ok((seconds, node.peak_bytes()?))
    }

    /// Returns the seconds that another geth needs in this mode.
    ///
    /// # Errors
    /// If it does not start or does not reach the head.
    pub fn geth(&self, mode: &str) -> anyhow::Result<f64> {
        let data = GethData::init(&self.genesis)?;
        let geth = data.start(mode);
        geth.eval(&format!("admin.addPeer('{}')", self.geth.enode()));
        self.follow(&mut data.engine()?)
    }

    /// Names the head until the node has it, as a consensus client does in each slot, but more
    /// often.
    fn follow(&self, engine: &mut Client) -> anyhow::Result<f64> {
        let head = json!(self.head);
        let begin = Instant::now();
        loop {
            let status = forkchoice(engine, &head)?;
            if status["status"] == "VALID" {
                return Ok(begin.elapsed().as_secs_f64());
            }
            ensure!(status["status"] == "SYNCING", "{status}");
            let passed = begin.elapsed();
            ensure!(passed < SYNC_TIME_MAX, "no sync in {passed:.0?}");
            sleep(Duration::from_millis(100));
        }
    }
}

/// Returns the text of a genesis file, which may be compressed.
///
/// # Errors
/// If the file cannot be read.
pub fn genesis_text(path: &Path) -> anyhow::Result<String> {
    let mut genesis = fs::read(path)?;
    if genesis.starts_with(&[0x1f, 0x8b]) {
        let packed = std::mem::take(&mut genesis);
        MultiGzDecoder::new(&packed[..]).read_to_end(&mut genesis)?;
    }
    Ok(String::from_utf8(genesis)?)
}

/// Returns the block of a newPayload request.
fn block(body: &str) -> anyhow::Result<Block> {
    let mut request: Value = serde_json::from_str(body)?;
    let mut field = |index: usize| request["params"][index].take();
    let payload: Payload = serde_json::from_value(field(0))?;
    let sidecar = PayloadSidecar {
        versioned_hashes: serde_json::from_value(field(1))?,
        parent_beacon_block_root: serde_json::from_value(field(2))?,
        execution_requests: serde_json::from_value(field(3))?,
    };
    Ok(Block::from_payload(payload, &sidecar)?)
}

fn compare(setting: &Setting, name: &str, folder: &Path) -> anyhow::Result<Vec<Figure>> {
    ensure!(is_installed(), "geth is not on the PATH");
    let corpus = Corpus::load(folder, usize::MAX)?;
    let served = Served::of_corpus(&corpus)?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..if setting.quick { 3 } else { 9 } {
        ours.push(served.tandem(setting, "")?.0);
        theirs.push(served.geth("full")?);
    }
    let median = |times: &[f64]| {
        let mut times = times.to_vec();
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let note = format!(
        "medians {:.1} and {:.1} s for {} blocks",
        median(&ours),
        median(&theirs),
        corpus.len()
    );
    let ratio = ratio_of_medians(&ours, &theirs, setting.seed)?;
    Ok(vec![Figure::estimate(name, ratio, Limit::AtMost(RATIO_MAX)).note(note)])
}
