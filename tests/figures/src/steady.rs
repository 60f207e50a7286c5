//! Processor time of a node that follows a chain among peers, by subsystem: with the defaults, and
//! with the legacy policies of discovery and of blob-validator.
//!
//! The other nodes run beside it, Tandem and geth. One of them takes the transactions and builds the
//! blocks, so the node under test gets all transactions from peers. Both runs have a network of
//! their own, because lookups of a node with the legacy policy cost its neighbours time too.

use crate::{
    Setting,
    client::{get_bytes, sum_of},
    driven::Driven,
    figure::{Figure, Limit, Report},
    geth::GethData,
    node::Node,
};
use alloy_primitives::B256;
use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};
use tandem_chain::Fork;
use tandem_cluster_tests::{
    Builder, Forks, GENESIS_TIME, Mixed, TestBlob, blob_transaction, driver::attributes,
};
use tandem_profile::{Budget, Profile, Row, Subsystem};
use tandem_testkit::geth::{Geth, is_installed};

/// Largest share of discovery in the node's processor time, in percent.
const DISCOVERY_MAX: f64 = 3.0;
/// Largest share of the verification of blobs, in percent.
const BLOBS_MAX: f64 = 5.0;
/// geths of the network.
const GETHS: usize = 2;
/// Transactions of all kinds but blobs, a second.
const TRANSACTIONS_PER_SECOND: f64 = 10.0;
/// Transactions with a blob, a second: 6 blobs in a slot of 12 seconds, the target of Prague.
const BLOBS_PER_SECOND: f64 = 0.5;
/// Keys that send blobs. A pool holds no other transactions of such a sender.
const BLOB_KEYS: [usize; 6] = [34, 35, 36, 37, 38, 39];
/// Time that a block is built.
const BUILD_TIME: Duration = Duration::from_millis(500);
/// Samples in a second of processor time.
const FREQUENCY: u32 = 250;
/// Longest wait for all sessions. A peer that was not reached while all nodes start is dialled again
/// after half a minute, then after one minute, and so on.
const SESSIONS_TIME_MAX: Duration = Duration::from_secs(300);
/// Longest wait for an answer beyond the time of the profile: naming functions takes a while.
const NAMING_TIME_MAX: Duration = Duration::from_secs(60);

const SESSIONS: &str = "tandem_peer_sessions_sessions";
const PACKETS: &str = "tandem_discovery_packets_sent_total";
const VERIFIED: &str = "tandem_blob_validator_verifications_total";

/// Course of a run.
#[derive(Clone, Copy, Debug)]
struct Course {
    /// Tandem nodes beside the one under test.
    peers: usize,
    slot: Duration,
    /// Time from all sessions until samples are taken.
    settling: Duration,
    sampled: Duration,
}

impl Course {
    fn of(setting: &Setting) -> Self {
        if setting.quick {
            let [slot, settling, sampled] = [6, 30, 120].map(Duration::from_secs);
            return Self { peers: 8, slot, settling, sampled };
        }
        let [slot, settling, sampled] = [12, 120, 600].map(Duration::from_secs);
        Self { peers: 28, slot, settling, sampled }
    }

    /// Returns how many blobs a run takes.
    fn blobs(self) -> usize {
        let seconds = (self.settling + self.sampled + 4 * self.slot).as_secs_f64();
        (seconds * BLOBS_PER_SECOND).ceil() as usize
    }
}

/// Policies of the node under test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Policies {
    Default,
    Legacy,
}

impl Policies {
    fn name(self) -> &'static str {
        match self {
            Self::Default => "defaults",
            Self::Legacy => "legacy",
        }
    }

    fn config(self) -> &'static str {
        match self {
            Self::Default => "",
            Self::Legacy => "[blob_validator]\nverification = \"legacy\"\n",
        }
    }

    fn flags(self) -> Vec<String> {
        match self {
            Self::Default => Vec::new(),
            Self::Legacy => vec!["--discovery.lookups".to_owned(), "legacy".to_owned()],
        }
    }
}

/// Measured run.
struct Measured {
    policies: Policies,
    budget: Budget,
    /// Processor time that a sample stands for.
    period: Duration,
    duration: Duration,
    connected_after: Duration,
    sessions: f64,
    packets: f64,
    verified: f64,
    blocks: u64,
    transactions: usize,
    blobs: usize,
}

/// Measures the figures.
pub fn measure(setting: &Setting, report: &mut Report) {
    let course = Course::of(setting);
    let blobs = blobs(course.blobs(), setting.seed);
    let mut done = Vec::new();
    for policies in [Policies::Default, Policies::Legacy] {
        report.measure(policies.name(), || {
            let blobs = blobs.as_ref().map_err(|error| anyhow::anyhow!("make blobs: {error:#}"))?;
            let measured = run(setting, course, policies, blobs)?;
            let figures = figures(&measured);
            done.push(measured);
            Ok(figures)
        });
    }
    if let [default, legacy] = &done[..] {
        report.say(&table(default, legacy));
    }
}

/// Makes blobs of all different content, on two threads.
fn blobs(count: usize, seed: u64) -> anyhow::Result<Vec<TestBlob>> {
    let make = |first: usize| {
        let numbers = (first..count).step_by(2).map(|number| number as u64 + (seed << 32));
        numbers.map(TestBlob::seeded).collect::<Vec<_>>()
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| make(1));
        let mut made = make(0);
        made.extend(other.join().map_err(|_| anyhow::anyhow!("the thread of blobs panicked"))?);
        Ok(made)
    })
}

/// Network around the node under test.
struct Network {
    subject: Node,
    peers: Vec<Node>,
    geths: Vec<(Geth, GethData)>,
    /// Time in which the node under test got all its sessions.
    connected_after: Duration,
}

impl Network {
    fn start(
        setting: &Setting,
        genesis: &Path,
        course: Course,
        policies: Policies,
    ) -> anyhow::Result<Self> {
        let mut peers: Vec<Node> = Vec::new();
        let bootnodes =
            |boot: &Node| Ok::<_, anyhow::Error>(["--bootnodes".to_owned(), boot.enode()?]);
        for _ in 0..course.peers {
            let flags = peers.first().map(bootnodes).transpose()?;
            let flags = flags.into_iter().flatten().collect();
            peers.push(Node::start_among(&setting.tandem, genesis, "", flags)?);
        }
        let boot = peers.first().context("no peers")?;
        let flags = [policies.flags(), bootnodes(boot)?.to_vec()].concat();
        let subject = Node::start_among(&setting.tandem, genesis, policies.config(), flags)?;
        let mut geths = Vec::new();
        let count = if is_installed() { GETHS } else { 0 };
        for _ in 0..count {
            let data = GethData::init(genesis)?;
            let geth = data.start("full");
            for node in [&subject, boot] {
                geth.eval(&format!("admin.addPeer('{}')", node.enode()?));
            }
            geths.push((geth, data));
        }
        let mut network = Self { subject, peers, geths, connected_after: Duration::ZERO };
        let begin = Instant::now();
        while network.value(SESSIONS)? < network.others() as f64 {
            let (has, all) = (network.value(SESSIONS)?, network.others());
            ensure!(begin.elapsed() < SESSIONS_TIME_MAX, "the node has {has} of {all} sessions");
            thread::sleep(Duration::from_millis(200));
        }
        network.connected_after = begin.elapsed();
        Ok(network)
    }

    fn others(&self) -> usize {
        self.peers.len() + self.geths.len()
    }

    /// Returns the value of a metric of the node under test.
    fn value(&self, metric: &str) -> anyhow::Result<f64> {
        // A counter is not there before its first value.
        Ok(sum_of(&self.subject.metrics()?, metric).unwrap_or(0.0))
    }

    /// Returns all nodes as a consensus client drives them. The first one takes the transactions and
    /// builds the blocks.
    fn driven(&self, fork: Fork) -> anyhow::Result<Vec<Driven>> {
        let nodes = self.peers.iter().chain([&self.subject]).map(Node::engine);
        let geths = self.geths.iter().map(|(_, data)| data.engine());
        nodes.chain(geths).map(|engine| Ok(Driven::new(engine?, fork))).collect()
    }
}

/// Chain and transactions of a network.
struct Life<'a> {
    fork: Fork,
    nodes: Vec<Driven>,
    mixed: Mixed,
    blobs: &'a [TestBlob],
    head: B256,
    number: u64,
    base_fee: u64,
    slot: Duration,
    began: Instant,
    /// Transactions sent to the first node, of each sort.
    sent: [u64; 2],
    /// Contents of all blocks so far.
    in_blocks: [usize; 2],
}

impl Life<'_> {
    /// Goes on until this moment.
    fn until(&mut self, end: Instant) -> anyhow::Result<()> {
        while Instant::now() < end {
            let due = self.began + self.slot * u32::try_from(self.number + 1)?;
            while Instant::now() < due.min(end) {
                self.send_due()?;
                thread::sleep(Duration::from_millis(20));
            }
            if due <= end {
                self.block().with_context(|| format!("block {}", self.number + 1))?;
            }
        }
        Ok(())
    }

    /// Sends the transactions whose time has come.
    fn send_due(&mut self) -> anyhow::Result<()> {
        let due = self.began.elapsed().as_secs_f64();
        if (self.sent[0] as f64) < due * TRANSACTIONS_PER_SECOND {
            self.sent[0] += 1;
            let (raw, sender) = loop {
                let (raw, sender) = self.mixed.write(self.number + 1, self.base_fee);
                // Its blobs cost less than real ones.
                if raw.first() != Some(&3) {
                    break (raw, sender);
                }
            };
            // A few kinds are refused, as those of a sender without the money.
            if self.nodes[0].add(&raw).is_ok() {
                let nonce = self.nodes[0].next_nonce(sender)?;
                self.mixed.set_nonce(sender, nonce);
            }
        }
        if (self.sent[1] as f64) < due * BLOBS_PER_SECOND {
            let number = self.sent[1] as usize;
            let blob = [self.blobs.get(number).context("no blobs are left")?];
            let mut refused = None;
            // A sender to whom another one's authorization gave code has one transaction under way at most.
            for at in 0..BLOB_KEYS.len() {
                let key = BLOB_KEYS[(number + at) % BLOB_KEYS.len()];
                // Authorizations of other senders raise the nonce, too.
                let sender = blob_transaction(key, &blob, |_| {}).sender();
                let nonce = self.nodes[0].next_nonce(sender)?;
                let transaction = blob_transaction(key, &blob, |it| it.nonce = nonce);
                let raw = transaction.with_cells(&blob).encode();
                refused = self.nodes[0].add(&raw).err();
                if refused.is_none() {
                    break;
                }
            }
            if let Some(error) = refused {
                return Err(error.context("send a transaction with a blob from any sender"));
            }
            self.sent[1] += 1;
        }
        Ok(())
    }

    /// Builds a block on the head, and makes it the head of all nodes.
    fn block(&mut self) -> anyhow::Result<()> {
        let number = self.number + 1;
        for sender in Mixed::senders() {
            let nonce = self.nodes[0].next_nonce(sender)?;
            self.mixed.set_nonce(sender, nonce);
        }
        let asked = attributes(self.fork, GENESIS_TIME + 12 * number, number as u8);
        let id = self.nodes[0].choose(self.head, &asked)?.context("no payload is built")?;
        thread::sleep(BUILD_TIME);
        let built = self.nodes[0].take(&id)?;
        for node in &mut self.nodes {
            ensure!(node.send(&built)?, "a node refuses the block");
            node.choose(built.payload.block_hash, &Value::Null)?;
        }
        let blobs = built.sidecar.versioned_hashes.as_ref().map_or(0, Vec::len);
        self.in_blocks[0] += built.payload.transactions.len();
        self.in_blocks[1] += blobs;
        (self.head, self.number) = (built.payload.block_hash, number);
        self.base_fee = built.payload.base_fee_per_gas.to();
        Ok(())
    }
}

fn run(
    setting: &Setting,
    course: Course,
    policies: Policies,
    blobs: &[TestBlob],
) -> anyhow::Result<Measured> {
    let fork = Fork::Osaka;
    let builder = Builder::new(Forks::at_genesis(fork));
    let folder = tempfile::Builder::new().prefix("tandem-figures-").tempdir()?;
    let genesis = folder.path().join("genesis.json");
    fs::write(&genesis, builder.genesis_json())?;
    let network = Network::start(setting, &genesis, course, policies)?;
    let mut nodes = network.driven(fork)?;
    let head = nodes[0].genesis()?;
    let mixed = Mixed::new(setting.seed, &builder, fork).without_blobs();
    let began = Instant::now();
    let mut life = Life {
        fork,
        nodes,
        mixed,
        blobs,
        head,
        number: 0,
        base_fee: 1_000_000_000,
        slot: course.slot,
        began,
        sent: [0; 2],
        in_blocks: [0; 2],
    };
    life.until(began + course.settling)?;
    let counters = || Ok::<_, anyhow::Error>([network.value(PACKETS)?, network.value(VERIFIED)?]);
    let (before, first, contents) = (counters()?, life.number, life.in_blocks);
    let profile = thread::scope(|scope| {
        let metrics = network.subject.ports()[2];
        let asked = scope.spawn(move || sample(metrics, course.sampled));
        life.until(Instant::now() + course.sampled)?;
        asked.join().map_err(|_| anyhow::anyhow!("the thread of the profile panicked"))?
    })?;
    let after = counters()?;
    let chain_head = network.subject.head()?;
    ensure!(chain_head[1] == json!(life.head), "the node is at {chain_head}");
    let minutes = course.sampled.as_secs_f64() / 60.0;
    Ok(Measured {
        policies,
        budget: Budget::of(&profile),
        period: profile.period,
        duration: profile.duration,
        connected_after: network.connected_after,
        sessions: network.value(SESSIONS)?,
        packets: (after[0] - before[0]) / minutes,
        verified: after[1] - before[1],
        blocks: life.number - first,
        transactions: life.in_blocks[0] - contents[0],
        blobs: life.in_blocks[1] - contents[1],
    })
}

/// Takes a profile of a process for so long.
fn sample(metrics: std::net::SocketAddr, time: Duration) -> anyhow::Result<Profile> {
    let seconds = time.as_secs();
    let path = format!("/debug/pprof/profile?seconds={seconds}&frequency={FREQUENCY}");
    let (status, body) = get_bytes(metrics, &path, time + NAMING_TIME_MAX)?;
    let said = || String::from_utf8_lossy(&body).into_owned();
    ensure!(status == 200, "{path}: HTTP {status}: {}", said());
    Profile::parse(&body).context("parse the profile")
}

impl Measured {
    fn row(&self, subsystem: Subsystem) -> Row {
        let found = self.budget.subsystems.iter().find(|(it, _)| *it == subsystem);
        found.map_or(Row::default(), |(_, row)| *row)
    }

    /// Returns the share of a subsystem and what it called, in percent.
    fn share(&self, subsystem: Subsystem) -> f64 {
        self.budget.percent(self.row(subsystem).cumulative)
    }

    fn processors(&self) -> f64 {
        self.budget.samples as f64 * self.period.as_secs_f64() / self.duration.as_secs_f64()
    }
}

fn figures(measured: &Measured) -> Vec<Figure> {
    let name = |what: &str| format!("{}: {what}", measured.policies.name());
    let limit = |max| match measured.policies {
        Policies::Default => Limit::AtMost(max),
        Policies::Legacy => Limit::None,
    };
    let share =
        |what: &str, subsystem, max| Figure::new(name(what), measured.share(subsystem), limit(max));
    let Measured { sessions, packets, verified, blocks, transactions, blobs, .. } = measured;
    let connected = measured.connected_after.as_secs();
    vec![
        share("discovery, % of the node's time", Subsystem::Discovery, DISCOVERY_MAX).note(
            format!(
                "{packets:.1} packets a minute, {sessions} sessions, all there after {connected} s"
            ),
        ),
        share("KZG, % of the node's time", Subsystem::Blobs, BLOBS_MAX)
            .note(format!("{verified} blobs verified, {blobs} in blocks")),
        Figure::new(name("processors"), measured.processors(), Limit::None).note(format!(
            "{} samples, {blocks} blocks with {transactions} transactions",
            measured.budget.samples
        )),
    ]
}

/// Returns the budgets of both runs side by side, those with the most time first.
fn table(default: &Measured, legacy: &Measured) -> String {
    let mut rows = BTreeMap::<Subsystem, [Row; 2]>::new();
    for (side, measured) in [default, legacy].into_iter().enumerate() {
        for (subsystem, row) in &measured.budget.subsystems {
            rows.entry(*subsystem).or_default()[side] = *row;
        }
    }
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_by_key(|(_, sides)| std::cmp::Reverse((sides[0].flat, sides[1].flat)));
    let mut text = format!("\n{:^28}{:^28}\n", default.policies.name(), legacy.policies.name());
    for _ in 0..2 {
        text += "  flat %    cum. %   flat s ";
    }
    text += " subsystem\n";
    for (subsystem, sides) in rows {
        for (measured, row) in [default, legacy].into_iter().zip(sides) {
            let percent = |samples| measured.budget.percent(samples);
            let seconds = row.flat as f64 * measured.period.as_secs_f64();
            let (flat, cumulative) = (percent(row.flat), percent(row.cumulative));
            // Writing to a string cannot fail.
            let _ = write!(text, "{flat:>8.1}  {cumulative:>8.1}  {seconds:>7.2} ");
        }
        let _ = writeln!(text, " {}", subsystem.name());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(policies: Policies, rows: &[(Subsystem, u64, u64)]) -> Measured {
        let row = |&(subsystem, flat, cumulative): &(Subsystem, u64, u64)| {
            (subsystem, Row { flat, cumulative })
        };
        let samples = rows.iter().map(|(_, flat, _)| flat).sum();
        let subsystems = rows.iter().map(row).collect();
        Measured {
            policies,
            budget: Budget { samples, subsystems, ..Budget::default() },
            period: Duration::from_millis(4),
            duration: Duration::from_secs(10),
            connected_after: Duration::from_secs(4),
            sessions: 10.0,
            packets: 8.25,
            verified: 3.0,
            blocks: 5,
            transactions: 9,
            blobs: 2,
        }
    }

    #[test]
    fn shares_count_what_a_subsystem_called() {
        let rows = [(Subsystem::Execution, 90, 95), (Subsystem::Discovery, 10, 40)];
        let all = figures(&measured(Policies::Default, &rows));
        let values: Vec<_> = all.iter().map(|figure| figure.value).collect();
        assert_eq!(values, [40.0, 0.0, 0.04]);
        assert!(matches!(all[0].limit, Limit::AtMost(max) if max == DISCOVERY_MAX));
        assert!(matches!(figures(&measured(Policies::Legacy, &rows))[0].limit, Limit::None));
    }

    #[test]
    fn the_table_has_a_subsystem_that_only_one_run_knows() {
        let default = measured(Policies::Default, &[(Subsystem::Execution, 100, 100)]);
        let legacy = measured(
            Policies::Legacy,
            &[(Subsystem::Discovery, 150, 150), (Subsystem::Execution, 50, 60)],
        );
        let text = table(&default, &legacy);
        let lines: Vec<_> = text.lines().skip(3).map(|line| line.split_whitespace()).collect();
        let lines: Vec<Vec<_>> = lines.into_iter().map(Iterator::collect).collect();
        assert_eq!(
            lines,
            [
                vec!["100.0", "100.0", "0.40", "25.0", "30.0", "0.20", "EVM", "execution"],
                vec!["0.0", "0.0", "0.00", "75.0", "75.0", "0.60", "Discovery"],
            ]
        );
    }
}
