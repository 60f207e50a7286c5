//! newPayload beside callers of the public port: payloads of a corpus go through the Engine API of a
//! real `tandem node`, once alone and once while loops call `eth_call` with all the gas there is.
//!
//! The callers are threads of this process at the lowest priority: they stand for other machines, and
//! what they take of the processors is not the node's. A payload can be executed once only, so each
//! round starts a node of its own for each of the two.
//!
//! ```text
//! cargo bench -p tandem --bench calls -- [--loops 200] [--rounds 3] [--corpus DIR | --small] [--blocks N]
//!     [--code HEX]
//! ```
//!
//! The loops call code that runs until its gas is used up, of four kinds, or the one of `--code`: with
//! `0x00`, which ends at once, most of the work is that of HTTP and JSON.
//!
//! `--small` takes 80 blocks of a few transactions instead of a corpus: the time lost between threads
//! weighs more there.
//!
//! Exit status 1 where the ratio of the medians is above the limit.
#![allow(clippy::unwrap_used, missing_docs)]

use bytes::Bytes;
use serde_json::json;
use std::{
    io::Write,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};
use tandem_auth::Secret;
use tandem_chain::Fork;
use tandem_cluster_tests::{
    Builder, Client, Contents, Corpus, Forks, Recorded, Running, decode_status,
};
use tempfile::TempDir;
use tokio::runtime::{self, Runtime};

/// Highest allowed ratio of newPayload's time beside the loops to its time alone.
const RATIO_MAX: f64 = 1.5;
/// Blocks that warm up.
const WARMUP: usize = 10;
/// Rest before each block, in which a caller's answers come and the base moves.
const GAP: Duration = Duration::from_millis(20);

/// Blocks of `--small`, and what their contents are made from.
const SMALL_BLOCKS: usize = 80;
const SEED: u64 = 24_001;

/// Code that runs until its gas is used up, each loop with another kind of work.
const CODES: [&str; 4] = [
    // JUMP.
    "0x5b5f56",
    // KECCAK256 of 64 KiB.
    "0x5b61ffff5f20505f56",
    // BALANCE of ever new accounts.
    "0x5f5b803150600101600156",
    // STATICCALL of BLS12_G1ADD with two points at infinity.
    "0x5b60805f6101005f600b5afa505f56",
];

struct Args {
    loops: usize,
    rounds: usize,
    corpus: Option<PathBuf>,
    small: bool,
    blocks: usize,
    codes: Vec<String>,
}

impl Args {
    /// `None` where this is not run as a bench.
    fn parse() -> Option<Self> {
        let codes = CODES.map(str::to_owned).to_vec();
        let (corpus, small, blocks) = (None, false, usize::MAX);
        let mut parsed = Self { loops: 200, rounds: 3, corpus, small, blocks, codes };
        let (mut is_bench, mut args) = (false, std::env::args().skip(1));
        while let Some(name) = args.next() {
            let mut value = || args.next().unwrap_or_else(|| panic!("{name} needs a value"));
            match name.as_str() {
                "--bench" => is_bench = true,
                "--loops" => parsed.loops = value().parse().expect("a number of loops"),
                "--rounds" => parsed.rounds = value().parse().expect("a number of rounds"),
                "--blocks" => parsed.blocks = value().parse().expect("a number of blocks"),
                "--small" => parsed.small = true,
                "--code" => parsed.codes = vec![value()],
                "--corpus" => parsed.corpus = Some(value().into()),
                other => panic!("unknown argument {other}"),
            }
        }
        is_bench.then_some(parsed)
    }
}

fn say(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

fn main() -> ExitCode {
    let Some(args) = Args::parse() else { return ExitCode::SUCCESS };
    let folder = TempDir::new().unwrap();
    let (genesis, mut blocks) = chain(&args, folder.path());
    blocks.truncate(args.blocks);
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let (loops, measured) = (args.loops, blocks.len().saturating_sub(WARMUP));
    say(&format!("newPayload beside {loops} eth_call loops: {measured} blocks, {cores} cores"));
    let bodies: Vec<_> = args.codes.iter().cycle().take(loops).map(|code| body(code)).collect();
    let (mut alone, mut beside, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=args.rounds {
        let (quiet, _) = run(&genesis, &blocks, &[]);
        let (busy, calls) = run(&genesis, &blocks, &bodies);
        let (before, with) = (median(&quiet), median(&busy));
        ratios.push(with / before);
        let Calls { answered, refused } = calls;
        say(&format!(
            "round {round}: p50 {before:.2} ms without, {with:.2} ms with, ratio {:.2}; {answered} \
             calls answered, {refused} refused",
            with / before
        ));
        alone.extend(quiet);
        beside.extend(busy);
    }
    let (before, with) = (median(&alone), median(&beside));
    let ratio = with / before;
    ratios.sort_by(f64::total_cmp);
    let (low, high) = (ratios.first().unwrap(), ratios.last().unwrap());
    let verdict = if ratio <= RATIO_MAX { "ok" } else { "short" };
    say(&format!(
        "newPayload p50: {before:.2} ms without, {with:.2} ms with, ratio {ratio:.2} ({low:.2} to \
         {high:.2}), limit {RATIO_MAX} {verdict}"
    ));
    if ratio <= RATIO_MAX { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The file with the genesis, and the blocks on it.
fn chain(args: &Args, folder: &Path) -> (PathBuf, Vec<Recorded>) {
    if args.small {
        let genesis = folder.join("genesis.json");
        let mut builder = Builder::new(Forks::at_genesis(Fork::Osaka));
        std::fs::write(&genesis, builder.genesis_json()).unwrap();
        let blocks = builder.chain(builder.genesis(), SEED, SMALL_BLOCKS, Contents::Random(8));
        let recorded = blocks.iter().map(|built| {
            let (method, params) = built.new_payload();
            Recorded { method: method.to_owned(), params, hash: built.hash }
        });
        return (genesis, recorded.collect());
    }
    let corpus = match &args.corpus {
        Some(folder) => Corpus::open(folder.clone()).expect("a corpus"),
        None => Corpus::demo(),
    };
    (corpus.genesis(), corpus.payloads().collect())
}

fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

#[derive(Clone, Copy)]
struct Calls {
    answered: usize,
    refused: usize,
}

/// The request that a loop makes.
fn body(code: &str) -> Bytes {
    let params = json!([{"data": code}, "latest"]);
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "eth_call", "params": params});
    call.to_string().into()
}

/// The times of newPayload on a new node, in milliseconds, beside a loop for each of these requests.
fn run(genesis: &Path, blocks: &[Recorded], loops: &[Bytes]) -> (Vec<f64>, Calls) {
    let folder = TempDir::new().unwrap();
    let datadir = folder.path().join("data");
    let binary = Path::new(env!("CARGO_BIN_EXE_tandem"));
    let mut arguments: Vec<std::ffi::OsString> =
        ["node", "--disable-discovery", "--authrpc.port", "0", "--http.port", "0"]
            .map(Into::into)
            .to_vec();
    arguments.extend(["--datadir".into(), datadir.clone().into()]);
    arguments.extend(["--genesis".into(), genesis.to_owned().into()]);
    let mut node = Running::start(binary, folder.path(), "node", arguments);
    let engine: SocketAddr = node.says("listening port=\"engine\" address=").parse().unwrap();
    let http: SocketAddr = node.says("listening port=\"http\" address=").parse().unwrap();
    node.says("trusted setup loaded millis=");
    let secret = Secret::load(&datadir.join("jwt.hex")).unwrap();

    let callers = Callers::start(http, loops);
    let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let times = runtime.block_on(async {
        let mut client = Client::new(engine, Some(secret));
        let mut times = Vec::new();
        for (index, block) in blocks.iter().enumerate() {
            tokio::time::sleep(GAP).await;
            let took = send(&mut client, block).await;
            if index >= WARMUP {
                times.push(took);
            }
        }
        times
    });
    let calls = callers.end();
    let (status, _) = node.terminate();
    assert!(status.success(), "{status}\n{}", node.log());
    (times, calls)
}

/// Sends a payload and makes it the head: milliseconds of the first.
async fn send(client: &mut Client, block: &Recorded) -> f64 {
    let Recorded { method, params, hash } = block;
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    let (body, token) = (Bytes::from(body.to_string()), client.token());
    let started = Instant::now();
    let answer = client.post(body, token.as_deref()).await.unwrap();
    let took = started.elapsed().as_secs_f64() * 1e3;
    let status = decode_status(answer.result().unwrap());
    assert_eq!(status.verdict(), ("VALID", Some(*hash)), "{status:?}");
    let state = json!({
        "headBlockHash": hash, "safeBlockHash": alloy_primitives::B256::ZERO,
        "finalizedBlockHash": alloy_primitives::B256::ZERO,
    });
    let answer = client.call("engine_forkchoiceUpdatedV3", json!([state, null])).await.unwrap();
    let status = decode_status(answer["payloadStatus"].clone());
    assert_eq!(status.verdict(), ("VALID", Some(*hash)), "{status:?}");
    took
}

/// Loops on threads of the lowest priority.
struct Callers {
    runtime: Option<Runtime>,
    counts: Arc<[AtomicUsize; 2]>,
    ended: Arc<AtomicBool>,
}

impl Callers {
    fn start(address: SocketAddr, loops: &[Bytes]) -> Self {
        let counts: Arc<[AtomicUsize; 2]> = Arc::default();
        let ended = Arc::new(AtomicBool::new(false));
        let lower = || rustix::process::setpriority_process(None, 19).unwrap();
        let runtime = (!loops.is_empty()).then(|| {
            let mut builder = runtime::Builder::new_multi_thread();
            builder.worker_threads(1).on_thread_start(lower).enable_all().build().unwrap()
        });
        for body in loops {
            let (counts, ended) = (counts.clone(), ended.clone());
            runtime.as_ref().unwrap().spawn(one(address, body.clone(), counts, ended));
        }
        // The first answer shows that calls are executed.
        while !loops.is_empty() && counts[0].load(Relaxed) == 0 {
            thread::sleep(Duration::from_millis(10));
        }
        Self { runtime, counts, ended }
    }

    fn end(mut self) -> Calls {
        self.ended.store(true, Relaxed);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(1));
        }
        let [answered, refused] = &*self.counts;
        Calls { answered: answered.load(Relaxed), refused: refused.load(Relaxed) }
    }
}

async fn one(
    address: SocketAddr,
    body: Bytes,
    counts: Arc<[AtomicUsize; 2]>,
    ended: Arc<AtomicBool>,
) {
    let mut client = Client::new(address, None);
    while !ended.load(Relaxed) {
        let answer = client.post(body.clone(), None).await;
        let executed = answer.is_ok_and(|answer| {
            let code = || answer.json()["error"]["code"].clone();
            answer.status == 200 && code() != -32005
        });
        counts[usize::from(!executed)].fetch_add(1, Relaxed);
        if !executed {
            // An impatient caller that was told to retry later.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
