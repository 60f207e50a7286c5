//! Processes of a cluster are killed and paused while payloads flow: the chain goes on by itself, no
//! block that was answered VALID is lost, and no verdict is wrong.

#![allow(clippy::unwrap_used)]

use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};
use serde_json::json;
use std::{
    path::Path,
    time::{Duration, Instant},
};
use tandem_bus_tests::NatsServer;
use tandem_cluster_tests::{Client, Corpus, Process, Recorded, Six, send_head, send_payload};
use tempfile::TempDir;

const SERVICES: [&str; 6] = [
    "storage-writer",
    "blob-validator",
    "peer-table",
    "multiproof-worker",
    "executor",
    "discovery",
];

/// Longest time without a verdict. Generous: the machine may be busy with other things.
const RECOVERY_MAX: Duration = Duration::from_secs(60);
/// Between two attempts.
const RETRY: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    Kill(&'static str),
    Pause(&'static str),
    KillNats,
}

/// A replay with faults: one for each, in a random order, each at a random moment of a block.
struct Run<'a> {
    six: Six,
    nats: Option<NatsServer>,
    blocks: &'a [Recorded],
    /// Blocks that were answered VALID.
    valid: usize,
    rng: StdRng,
    pause: Duration,
    label: String,
}

impl Run<'_> {
    /// Sends the next block and makes it the head, as often as it takes.
    async fn advance(&mut self, engine: &mut Client) {
        let block = &self.blocks[self.valid];
        let end = Instant::now() + RECOVERY_MAX;
        let mut sent = false;
        loop {
            let result = match sent {
                false => send_payload(engine, block).await,
                true => send_head(engine, block.hash).await,
            };
            match result {
                Ok(()) if sent => break,
                Ok(()) => sent = true,
                Err(error) => {
                    assert!(Instant::now() < end, "{}: {error}\n{}", self.label, self.six.log());
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
        self.valid += 1;
    }

    async fn strike(&mut self, fault: Fault) {
        match fault {
            Fault::Kill(service) => self.six.kill(service),
            Fault::Pause(service) => self.six.pause(service, self.pause).await,
            Fault::KillNats => {
                let Some(nats) = &mut self.nats else { return };
                nats.kill();
                tokio::time::sleep(self.pause).await;
                nats.restart();
            }
        }
    }

    /// A block during which the fault happens, and the one after it; how long it took from the fault
    /// until that one was there.
    async fn suffer(&mut self, fault: Fault) -> Duration {
        self.label = format!("{fault:?} at block {}", self.valid + 1);
        let mut engine = self.six.engine();
        let block = self.blocks[self.valid].clone();
        let moment = Duration::from_micros(self.rng.random_range(0..150_000));
        let mut caller = self.six.engine();
        let work = tokio::spawn(async move {
            // What comes of it may be lost with the fault; an answer that comes counts.
            let valid = send_payload(&mut caller, &block).await.is_ok();
            valid && send_head(&mut caller, block.hash).await.is_ok()
        });
        tokio::time::sleep(moment).await;
        let begun = Instant::now();
        self.strike(fault).await;
        work.await.unwrap();
        self.advance(&mut engine).await;
        self.advance(&mut engine).await;
        let took = begun.elapsed();
        let mut http = self.six.http();
        for block in &self.blocks[..self.valid] {
            let header = http.call("eth_getBlockByHash", json!([block.hash, false])).await.unwrap();
            assert_eq!(header["hash"], json!(block.hash), "{}: a valid block is lost", self.label);
        }
        took
    }
}

/// The faults of one run. Gives how long each took to get over.
async fn run(
    seed: u64,
    nats: Option<NatsServer>,
    url: &str,
    faults: &[Fault],
    pause: Duration,
) -> Vec<(Fault, Duration)> {
    let binary = Path::new(env!("CARGO_BIN_EXE_tandem"));
    let corpus = Corpus::demo();
    let blocks: Vec<_> = corpus.payloads().collect();
    let folder = TempDir::new().unwrap();
    eprintln!("seed {seed}, NATS {url}");
    let six = Six::start(binary, folder.path(), &corpus.genesis(), &["--nats", url]);
    let mut engine = six.engine();
    let (rng, label) = (StdRng::seed_from_u64(seed), "calm".to_owned());
    let mut run = Run { six, nats, blocks: &blocks, valid: 0, rng, pause, label };
    let mut order: Vec<_> = faults.to_vec();
    order.shuffle(&mut run.rng);
    let mut times = Vec::new();
    for fault in order {
        for _ in 0..run.rng.random_range(0..=1) {
            run.advance(&mut engine).await;
        }
        times.push((fault, run.suffer(fault).await));
    }
    while run.valid < blocks.len() {
        run.advance(&mut engine).await;
    }
    let head = run.six.http().call("eth_getBlockByNumber", json!(["latest", false])).await.unwrap();
    assert_eq!(head["hash"], json!(corpus.head_hash), "seed {seed}");
    assert_eq!(head["stateRoot"], json!(corpus.head_state_root), "seed {seed}");
    let (status, _) = run.six.stop();
    assert!(status.success(), "seed {seed}: {status}\n{}", run.six.log());
    let (status, text) = Process::verify(binary, folder.path());
    assert!(status.success(), "seed {seed}: {status}\n{text}");
    times
}

fn report(times: &[(Fault, Duration)]) {
    let mut kinds: Vec<Fault> = Vec::new();
    for (fault, _) in times {
        if !kinds.contains(fault) {
            kinds.push(*fault);
        }
    }
    for kind in kinds {
        let mut own: Vec<_> =
            times.iter().filter(|(fault, _)| *fault == kind).map(|(_, took)| *took).collect();
        own.sort();
        let (middle, most) = (own[own.len() / 2], own[own.len() - 1]);
        eprintln!(
            "{kind:?}: {} times, two blocks later after {middle:.1?} p50, {most:.1?} max",
            own.len()
        );
    }
}

fn seed() -> u64 {
    std::env::var("TANDEM_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(30_007)
}

fn with_nats() -> (Option<NatsServer>, String) {
    let nats = NatsServer::start();
    let url = nats.as_ref().map_or("none".to_owned(), NatsServer::url);
    (nats, url)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_lives_through_the_death_and_the_pause_of_each_service() {
    let (nats, url) = with_nats();
    let mut faults: Vec<_> = SERVICES.into_iter().map(Fault::Kill).collect();
    faults.extend(["storage-writer", "multiproof-worker", "executor"].map(Fault::Pause));
    faults.push(Fault::KillNats);
    report(&run(seed(), nats, &url, &faults, Duration::from_secs(1)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes half an hour"]
async fn a_cluster_lives_through_twenty_of_each_fault() {
    let mut faults: Vec<_> = SERVICES.into_iter().map(Fault::Kill).collect();
    faults.extend(SERVICES.map(Fault::Pause));
    faults.push(Fault::KillNats);
    let mut times = Vec::new();
    for round in 0..20 {
        let (nats, url) = with_nats();
        times.extend(run(seed() + round, nats, &url, &faults, Duration::from_secs(3)).await);
    }
    report(&times);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes some minutes"]
async fn a_cluster_whose_nats_never_comes_lives_through_the_same() {
    // A port that was free a moment ago.
    let Some(nats) = NatsServer::stopped() else { return };
    let faults: Vec<_> = SERVICES.into_iter().map(Fault::Kill).collect();
    report(&run(seed(), None, &nats.url(), &faults, Duration::from_secs(3)).await);
}
