//! A follower is promoted: after the leading storage-writer died with its data, and as a planned switch.

use crate::binary;
use rustix::process::Signal;
use serde_json::json;
use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Output},
    thread,
    time::{Duration, Instant},
};
use tandem_bus_tests::eventually;
use tandem_cluster_tests::{
    Client, Corpus, Process, Recorded, Six, send_head, send_payload, signal,
};
use tempfile::TempDir;

/// Variable with the number of deaths of a leader to go through, instead of one.
const DEATHS: &str = "TANDEM_PROMOTIONS";

/// A cluster of which follower 1 is to be promoted.
struct House {
    folder: TempDir,
    six: Six,
    engine: Client,
    blocks: Vec<Recorded>,
}

impl House {
    fn start(followers: &str) -> Self {
        Self::start_with(TempDir::new().unwrap(), followers, &["--nats", "none"])
    }

    fn start_with(folder: TempDir, followers: &str, more: &[&str]) -> Self {
        let corpus = Corpus::demo();
        let more = [more, &["--followers", followers]].concat();
        let six = Six::start(binary(), folder.path(), &corpus.genesis(), &more);
        let engine = six.endpoints.engine();
        Self { folder, six, engine, blocks: corpus.payloads().collect() }
    }

    /// Adds the blocks from this one on. JSON-RPC goes on at the promoted follower, and the other one
    /// has gone over to it.
    async fn reach_the_end(&mut self, from: usize) {
        for index in from..self.blocks.len() {
            self.extend(index).await;
        }
        let last = self.blocks[self.blocks.len() - 1].clone();
        for process in ["executor", "follower-1", "follower-2"] {
            self.shows(process, &last).await;
        }
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Returns what a process of the cluster has logged.
    fn log_of(&self, process: &str) -> String {
        let file = self.data().join(format!("logs/{process}.log"));
        fs::read_to_string(file).unwrap_or_default()
    }

    /// Runs `tandem promote` for follower 1.
    fn promote(&self, more: &[&str]) -> Output {
        let port = self.six.port("follower-1", "grpc");
        Command::new(binary())
            .args(["promote", "--follower", &format!("https://127.0.0.1:{port}")])
            .arg("--certificates")
            .arg(self.data().join("certificates"))
            .args(more)
            .output()
            .unwrap()
    }

    /// Kills the leading storage-writer and deletes its database.
    fn lose_the_leader(&self) {
        self.six.kill("storage-writer");
        remove(&self.data().join("db"));
    }

    /// Sends the block at an index and makes it the head. Goes back to earlier ones, as a consensus
    /// client does, while the answer is SYNCING.
    async fn extend(&mut self, index: usize) {
        let (mut at, end) = (index, Instant::now() + Duration::from_secs(60));
        while at <= index {
            let block = &self.blocks[at];
            let sent = match send_payload(&mut self.engine, block).await {
                Ok(()) => send_head(&mut self.engine, block.hash).await,
                Err(error) => Err(error),
            };
            match sent {
                Ok(()) => at += 1,
                Err(error) => {
                    assert!(Instant::now() < end, "block {at}: {error}\n{}", self.six.log());
                    if error == "SYNCING" {
                        at = at.saturating_sub(1);
                    } else {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                }
            }
        }
    }

    /// Waits until JSON-RPC of a process shows this block as the head.
    async fn shows(&self, process: &str, block: &Recorded) {
        let port = self.six.port(process, "http");
        let mut client = Client::new(SocketAddr::from(([127, 0, 0, 1], port)), None);
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let head = client.call("eth_getBlockByNumber", json!(["latest", false])).await;
            if head.as_ref().is_ok_and(|head| head["hash"] == json!(block.hash)) {
                return;
            }
            assert!(
                Instant::now() < end,
                "{process} does not show {}: {head:?}\n{}",
                block.hash,
                self.log_of(process)
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Removes the database of a process that was killed, and may still be on its way out.
fn remove(database: &Path) {
    eventually("the end of the database", || {
        let _ = fs::remove_dir_all(database);
        (!database.exists()).then_some(())
    });
}

/// Returns the number of deaths to go through.
fn rounds() -> u64 {
    std::env::var(DEATHS).map_or(1, |count| count.parse().unwrap())
}

fn verify(datadir: &Path) {
    let (status, text) = Process::verify_datadir(binary(), datadir);
    assert!(status.success(), "{}: {status}\n{text}", datadir.display());
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

/// Kills the leading storage-writer with its data at a block of the replay, and promotes a follower.
/// Returns the time without a VALID block.
async fn survive_a_death(round: u64) -> Duration {
    let mut house = House::start("2");
    let count = house.blocks.len();
    let fatal = count / 4 + (round as usize * 7919) % (count / 2);
    for index in 0..fatal {
        house.extend(index).await;
    }
    house.shows("follower-1", &house.blocks[fatal - 1]).await;
    let died = Instant::now();
    house.lose_the_leader();
    let end = died + Duration::from_secs(60);
    loop {
        // The follower learns within moments that its leader is gone.
        let promoted = house.promote(&[]);
        if promoted.status.success() {
            assert!(text(&promoted).contains("leads in term 1"), "{}", text(&promoted));
            break;
        }
        let reason = text(&promoted);
        assert!(reason.contains("its leader is in reach") && Instant::now() < end, "{reason}");
    }
    let promoted = died.elapsed();
    house.extend(fatal).await;
    let gap = died.elapsed();
    eprintln!("round {round}: promoted after {promoted:?}, VALID after {gap:?}");
    house.reach_the_end(fatal + 1).await;
    house.six.stop();
    verify(&house.data().join("followers/follower-1"));
    gap
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_goes_on_after_its_storage_writer_died_with_its_data() {
    let mut gaps = Vec::new();
    for round in 0..rounds() {
        gaps.push(survive_a_death(round).await);
    }
    gaps.sort_unstable();
    eprintln!("gaps: median {:?}, longest {:?}", gaps[gaps.len() / 2], gaps.last());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_lives_gives_way_only_when_told_and_for_good() {
    let mut house = House::start("1");
    let middle = house.blocks.len() / 2;
    for index in 0..middle {
        house.extend(index).await;
    }
    house.shows("follower-1", &house.blocks[middle - 1]).await;
    let refused = house.promote(&[]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused).contains("its leader is in reach"), "{}", text(&refused));
    let promoted = house.promote(&["--force"]);
    assert!(promoted.status.success(), "{}", text(&promoted));
    for index in middle..house.blocks.len() {
        house.extend(index).await;
    }
    let last = house.blocks.last().unwrap().clone();
    house.shows("follower-1", &last).await;
    // A restart of either changes nothing.
    for process in ["storage-writer", "follower"] {
        house.six.kill(process);
        house.extend(house.blocks.len() - 1).await;
    }
    let again = house.promote(&[]);
    assert!(text(&again).contains("leads in term 1"), "{}", text(&again));
    let log = house.data().join("logs/storage-writer.log");
    let says = |text: &str| {
        let log = fs::read_to_string(&log).unwrap();
        log.contains(text).then_some(())
    };
    eventually("the old leader gives way", || says("another storage-writer leads"));
    eventually("its next start knows it", || says("standing=Superseded(Term(1))"));
    house.six.stop();
    verify(&house.data());
    verify(&house.data().join("followers/follower-1"));
}

/// Settings with which a lease moves the lead, and answers wait for the stream.
const LEASED: &str = "[storage_writer.lead]\nlease_ms = 8000\nmargin_ms = 500\n\
    [storage_writer.feed]\nstream = \"jetstream\"\nacks = \"stream\"\nack_wait_ms = 20000\n";

/// Returns the name of the follower that leads, and its head when it began to.
fn new_leader(house: &House) -> (&'static str, usize) {
    let mut found = ["follower-1", "follower-2"].into_iter().filter_map(|name| {
        let log = house.data().join(format!("logs/{name}.log"));
        let log = fs::read_to_string(log).unwrap();
        let line = log.lines().find(|line| line.contains("this storage-writer leads"))?;
        let (_, head) = line.split_once("head=")?;
        let digits = head.split(|c: char| !c.is_ascii_digit()).next()?;
        Some((name, digits.parse().unwrap()))
    });
    let leader = found.next().expect("a follower leads");
    assert_eq!(found.next(), None, "another one leads too");
    leader
}

/// Kills the leading storage-writer with its data while blocks are sent, and nobody promotes a follower.
/// Returns the time without a VALID block, and the number of blocks that were answered VALID and lost.
async fn survive_a_death_by_lease(round: u64) -> Option<(Duration, usize)> {
    let server = tandem_bus_tests::NatsServer::start()?;
    let folder = TempDir::new().unwrap();
    let settings = folder.path().join("lease.toml");
    fs::write(&settings, LEASED).unwrap();
    let settings = settings.to_str().unwrap().to_owned();
    let url = server.url();
    let more = ["--nats", &url, "--config", &settings];
    let mut house = House::start_with(folder, "2", &more);
    let count = house.blocks.len();
    let fatal = count / 4 + (round as usize * 7919) % (count / 2);
    for index in 0..fatal {
        house.extend(index).await;
    }
    for follower in ["follower-1", "follower-2"] {
        house.shows(follower, &house.blocks[fatal - 1]).await;
    }
    let refused = house.promote(&["--force"]);
    assert!(text(&refused).contains("a lease decides"), "{}", text(&refused));
    let (pid, database) = (house.six.running("storage-writer"), house.data().join("db"));
    let killer = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20 + round * 37 % 200));
        signal(pid, Signal::KILL);
        let died = Instant::now();
        remove(&database);
        died
    });
    let (mut next, mut answered) = (fatal, fatal);
    while !killer.is_finished() {
        assert!(next < count, "the leader outlives the replay");
        house.extend(next).await;
        next += 1;
        if !killer.is_finished() {
            answered = next;
        }
    }
    let died = killer.join().unwrap();
    house.extend(next).await;
    let gap = died.elapsed();
    let (leader, head) = new_leader(&house);
    let lost = answered.saturating_sub(head);
    eprintln!(
        "round {round}: {leader} leads, VALID after {gap:?}, lost {lost} of {answered} blocks"
    );
    house.reach_the_end(next + 1).await;
    house.six.stop();
    for follower in ["follower-1", "follower-2"] {
        verify(&house.data().join("followers").join(follower));
    }
    Some((gap, lost))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_takes_the_lease_of_a_leader_that_died_with_its_data() {
    let (mut gaps, mut lost) = (Vec::new(), 0);
    for round in 0..rounds() {
        let Some((gap, blocks)) = survive_a_death_by_lease(round).await else { return };
        gaps.push(gap);
        lost += blocks;
    }
    gaps.sort_unstable();
    eprintln!(
        "gaps: median {:?}, longest {:?}; lost {lost} blocks",
        gaps[gaps.len() / 2],
        gaps.last()
    );
    assert_eq!(lost, 0);
}
