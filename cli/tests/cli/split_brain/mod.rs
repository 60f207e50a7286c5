//! Two storage-writers that share a lease, with a proxy in each of their connections: through seeded
//! partitions of random length, no write is accepted in a term after one in a later term was.

mod judge;
mod side;

use crate::{
    binary,
    lease::{BLOCKS, grow},
};
use judge::{Judge, Writer};
use rand::{Rng, SeedableRng, rngs::StdRng};
use side::Side;
use std::{
    fs,
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use tandem_bus_tests::{NatsServer, eventually};
use tandem_cluster_tests::init;
use tandem_proto::storage::{BaseReads, Forkchoice};
use tandem_storage_writer_client::{Client, ClientConfig};
use tandem_testkit::network::Network;
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Variables with the number of partitions of all worlds together, that of the worlds, and the seed of the
/// first world.
const PARTITIONS: &str = "TANDEM_PARTITIONS";
const WORLDS: &str = "TANDEM_PARTITION_WORLDS";
const SEED: &str = "TANDEM_PARTITION_SEED";

/// Partitions of the large test, and worlds that go through them at the same time.
const MANY: u64 = 1_000;
const WORLDS_OF_MANY: u64 = 3;

/// Time of the lease: short, and yet renewed in time on a busy machine. That of the large test is the
/// shortest one that is admitted, and the machine has nothing else to do.
const LEASE: Duration = Duration::from_millis(1_500);
const LEASE_OF_MANY: Duration = Duration::from_millis(500);

/// Time by which the holder stops earlier, and others wait longer.
const MARGIN: Duration = Duration::from_millis(100);

/// Longest wait for a write at a side that leads, before another look at who does.
const WRITE_MAX: Duration = Duration::from_secs(2);

/// Two sides over one NATS server. The writes go to both directly, past all proxies.
struct House {
    runtime: Runtime,
    _server: NatsServer,
    folder: TempDir,
    sides: [Side; 2],
    random: StdRng,
    /// Whether forkchoices wait for the stream of blocks.
    publishes: bool,
}

fn settings(folder: &Path, lease: Duration, publishes: bool) {
    let (lease, margin) = (lease.as_millis(), MARGIN.as_millis());
    let feed = match publishes {
        true => {
            "[storage_writer.feed]\nstream = \"jetstream\"\nacks = \"stream\"\nack_wait_ms = 300\n"
        }
        false => "",
    };
    let text = format!(
        "[storage_writer]\nsync = false\n[storage_writer.lead]\nlease_ms = {lease}\n\
         margin_ms = {margin}\n{feed}[follower]\nretry_ms_max = 200\n"
    );
    fs::write(folder.join("settings.toml"), text).unwrap();
}

impl House {
    /// Starts both sides, for an even seed with the stream of blocks. `None` without a NATS server.
    fn start(seed: u64, lease: Duration) -> Option<Self> {
        let server = NatsServer::start()?;
        let (runtime, folder) = (Runtime::new().unwrap(), TempDir::new().unwrap());
        let (random, publishes) = (StdRng::seed_from_u64(seed), seed.is_multiple_of(2));
        settings(folder.path(), lease, publishes);
        init(binary(), folder.path());
        let handle = runtime.handle();
        let first = Side::start_leader(folder.path(), server.address(), handle);
        first.service.becomes_ready();
        runtime.block_on(grow(&format!("http://{}", first.service.address), folder.path()));
        let second = Side::start_follower(folder.path(), server.address(), &first, handle);
        let sides = [first, second];
        let mut house = Self { runtime, _server: server, folder, sides, random, publishes };
        house.settle();
        Some(house)
    }

    /// Returns the forkchoice that both sides have, and that is written over and over.
    fn forkchoice(&self) -> Forkchoice {
        let url = format!("http://{}", self.sides[0].service.address);
        let config = ClientConfig::default();
        let client = Client::connect(&url, config, self.runtime.handle()).unwrap();
        let forkchoice = eventually("the chain", || client.checkpoint().ok()).forkchoice;
        client.stop();
        assert_eq!(forkchoice.head.number, BLOCKS as u64);
        forkchoice
    }

    /// Heals the network. Connections that it cut begin anew.
    fn heal(&self) {
        for side in &self.sides {
            for proxy in [&side.nats, &side.calls] {
                proxy.set(Network::Works);
                proxy.reset();
            }
        }
    }

    /// Waits until one side leads and the other one follows it. A side that was superseded starts again as a
    /// follower. Returns the index of the leader.
    fn settle(&mut self) -> usize {
        let folder = self.folder.path();
        let sides = &mut self.sides;
        eventually("one side leads and the other one follows", || {
            let [first, second] = sides;
            first.revive(folder, second);
            second.revive(folder, first);
            let is_settled = first.is_ready() && second.is_ready();
            match (first.holds_lease(), second.holds_lease()) {
                (true, false) if is_settled => Some(0),
                (false, true) if is_settled => Some(1),
                _ => None,
            }
        })
    }

    /// Waits until a side leads and accepts a write. Returns its index. The lead may move once more while the
    /// connections to NATS come back.
    fn leader(&mut self, judge: &Judge) -> usize {
        eventually("a write at the leader", || {
            let leader = self.settle();
            let before = judge.accepted(leader);
            let end = Instant::now() + WRITE_MAX;
            while Instant::now() < end {
                if judge.accepted(leader) > before {
                    return Some(leader);
                }
                thread::sleep(Duration::from_millis(5));
            }
            None
        })
    }

    /// Disturbs some connections in a random way. Returns what is disturbed.
    fn disturb(&mut self, leader: usize) -> &'static str {
        let network = match self.random.random_bool(0.7) {
            true => Network::Silent,
            false => Network::Cut,
        };
        let [first, second] = &self.sides;
        let (leads, follows) = if leader == 0 { (first, second) } else { (second, first) };
        let (what, proxies) = match self.random.random_range(0..7) {
            0 | 1 => ("the leader from NATS", vec![&leads.nats]),
            2 | 3 => ("the leader from all", vec![&leads.nats, &leads.calls, &follows.calls]),
            4 => ("the follower from the leader", vec![&leads.calls]),
            5 => ("both from NATS", vec![&leads.nats, &follows.nats]),
            _ => ("the follower from all", vec![&follows.nats, &leads.calls]),
        };
        proxies.into_iter().for_each(|proxy| proxy.set(network));
        what
    }
}

impl Drop for House {
    fn drop(&mut self) {
        if thread::panicking() {
            self.sides.iter().for_each(Side::show);
        }
    }
}

/// Goes through seeded partitions. Returns how often the lead moved.
fn partitions(seed: u64, count: u64, lease: Duration) -> Option<u64> {
    let mut house = House::start(seed, lease)?;
    let judge = Arc::<Judge>::default();
    let forkchoice = house.forkchoice();
    let writers: Vec<Writer> = (0..2)
        .map(|index| {
            Writer::start(index, house.sides[index].service.address, forkchoice, judge.clone())
        })
        .collect();
    for number in 0..count {
        let leader = house.leader(&judge);
        let what = match number {
            // The lead moves once for certain.
            0 => {
                let other = 1 - leader;
                let before = judge.accepted(other);
                house.sides[leader].nats.set(Network::Silent);
                eventually("a write at the other side", || {
                    (judge.accepted(other) > before).then_some(())
                });
                "the leader from NATS until the other side leads"
            }
            _ => {
                let what = house.disturb(leader);
                thread::sleep(lease.mul_f64(house.random.random_range(0.0..4.0)));
                what
            }
        };
        house.heal();
        house.settle();
        judge.check(|| format!("seed {seed}, partition {number}: {what}"));
    }
    writers.into_iter().for_each(Writer::stop);
    judge.check(|| format!("seed {seed}, at the end"));
    let moves = judge.terms() as u64 - 1;
    eprintln!(
        "seed {seed}{}: {count} partitions, the lead moved {moves} times, {} writes accepted",
        if house.publishes { ", with the stream" } else { "" },
        judge.accepted(0) + judge.accepted(1)
    );
    assert!(moves > 0);
    Some(moves)
}

#[test]
fn no_two_storage_writers_accept_writes_through_partitions() {
    // One with the stream of blocks, and one without.
    for seed in [2, 3] {
        if partitions(seed, 3, LEASE).is_none() {
            return;
        }
    }
}

#[test]
#[ignore = "takes a quarter of an hour"]
fn no_two_storage_writers_accept_writes_through_a_thousand_partitions() {
    let number =
        |name: &str, default| std::env::var(name).map_or(default, |it| it.parse().unwrap());
    let (count, worlds) = (number(PARTITIONS, MANY), number(WORLDS, WORLDS_OF_MANY).max(1));
    let seed = number(SEED, 0x5b00);
    let world = |index: u64| {
        let share = count / worlds + u64::from(index < count % worlds);
        thread::spawn(move || partitions(seed + index, share, LEASE_OF_MANY))
    };
    let started: Vec<_> = (0..worlds).map(world).collect();
    let moves = started.into_iter().map(|world| world.join().expect("a world"));
    let Some(moves) = moves.sum::<Option<u64>>() else { return };
    eprintln!("{count} partitions in {worlds} worlds, the lead moved {moves} times");
    assert!(moves >= worlds);
}
