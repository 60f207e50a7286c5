//! A state larger than memory: payloads on it in little memory, reads of the disk for each key, and bytes
//! on the disk (docs/big-state.md).

mod beside;
mod disks;
mod limit;
mod over_time;
pub mod run;

use crate::{
    Setting,
    figure::{Figure, Limit, Report},
};
use anyhow::Context as _;
use disks::Disk;
use limit::Group;
use run::{KINDS, Replay, Replayed, Tandem};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};
use tandem_testkit::geth;
use tempfile::TempDir;

/// Largest ratios of a payload's time on the big state in little memory to that on a small state.
const P50_MAX: f64 = 2.0;
const P99_MAX: f64 = 4.0;
/// Most blocks of files that are read for a cold slot, and for a slot that is written.
const READS_PER_READ: f64 = 1.2;
const READS_PER_WRITE: f64 = 3.0;
/// Most calls for reads, one after the other, in the median block.
const ROUNDS_MAX: f64 = 6.0;
/// Largest share of geth's bytes for the same state.
const GETH_SHARE: f64 = 0.7;
/// Smallest gain of newPayload by a second disk.
const DISKS_GAIN: f64 = 1.5;
/// Disks that the state is spread over, and reads a second that each of them answers.
const DISKS: [usize; 3] = [1, 2, 4];
const DISK_READS: u64 = 2_000;
/// Bytes of each disk. A file takes room only for what is written to it.
const DISK_BYTES: u64 = 16 << 30;
/// Settings for it: all nodes have the same files, and memory keeps few of them.
const DISK_CONFIG: &str = "\
[storage_writer.store]
direct_reads = true
cache_bytes_max = 33554432
";
/// Least memory for many blocks, in MiB: with less, the blocks that a node has in memory leave it none.
const MANY_BLOCKS_MIB: u64 = 1_024;
/// Accounts of the small state, and of the one that geth has too.
const SMALL_ACCOUNTS: u64 = 20_000;
const SLOTS_PER_ACCOUNT: u64 = 10;

/// Options of this topic.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// Accounts of the big state [default: 20 million, or 200,000 with --quick]
    #[arg(long, value_name = "N")]
    pub accounts: Option<u64>,
    /// Slots of the big state [default: 80 million, or a million with --quick]
    #[arg(long, value_name = "N")]
    pub slots: Option<u64>,
    /// Folder of the big state, which is kept and used again; without it, a temporary one
    #[arg(long, value_name = "DIR")]
    pub datadir: Option<PathBuf>,
    /// Memory of the node on the big state, page cache included [default: 2048, or 512 with --quick]
    #[arg(long, value_name = "MIB")]
    memory_mib: Option<u64>,
}

/// Measures the figures.
pub fn measure(setting: &Setting, options: &Options, report: &mut Report) {
    let (accounts, slots, mib) = match setting.quick {
        true => (200_000, 1_000_000, 512),
        false => (20_000_000, 80_000_000, 2_048),
    };
    let plan = Plan {
        accounts: options.accounts.unwrap_or(accounts),
        slots: options.slots.unwrap_or(slots),
        seed: setting.seed,
    };
    let mib = options.memory_mib.unwrap_or(mib);
    let made = match Work::new(setting, options, plan) {
        Ok(made) => made,
        Err(error) => {
            return report.measure("the state", || Err(error));
        }
    };
    report.say(&format!(
        "{} accounts, {} slots, seed {}; {mib} MiB for the node by {}",
        plan.accounts,
        plan.slots,
        plan.seed,
        Group::kind()
    ));
    report.measure("bytes on the disk", || made.bytes(&made.big));
    report.measure("bytes on the disk / geth's", || made.beside_geth());
    report.measure("reads of blocks of files", || made.reads());
    report.measure("newPayload on the big state / on a small one", || made.payloads(mib));
    let many = mib.max(MANY_BLOCKS_MIB);
    report.measure("newPayload over time", || over_time::measure(&made, many));
    report.measure("newPayload / geth's on the same state", || beside::compare(&made, many));
    report.measure("newPayload, state on one disk / on several", || made.disks());
}

/// Size of a state.
#[derive(Clone, Copy)]
pub struct Plan {
    pub accounts: u64,
    pub slots: u64,
    pub seed: u64,
}

/// Files that are made before anything is measured.
struct Work<'s> {
    setting: &'s Setting,
    tandem: Tandem,
    plan: Plan,
    folder: TempDir,
    big: PathBuf,
    seconds: Option<f64>,
}

impl<'s> Work<'s> {
    fn new(setting: &'s Setting, options: &Options, plan: Plan) -> anyhow::Result<Self> {
        let tandem = Tandem(setting.tandem.clone());
        let temporary = tempfile::Builder::new().prefix("tandem-figures-").to_owned();
        // Copies share the files of the state only on its own volume.
        let folder = match &options.datadir {
            Some(datadir) => {
                fs::create_dir_all(datadir)?;
                temporary.tempdir_in(datadir)?
            }
            None => temporary.tempdir()?,
        };
        let big = match &options.datadir {
            Some(datadir) => datadir.join("big"),
            None => folder.path().join("big"),
        };
        let begin = Instant::now();
        let is_there = big.join("db/CURRENT").is_file();
        if !is_there {
            tandem.state(&big, plan, None, &[])?;
        }
        let seconds = (!is_there).then(|| begin.elapsed().as_secs_f64());
        Ok(Self { setting, tandem, plan, folder, big, seconds })
    }

    /// Returns the size of a state by account and slot.
    fn bytes(&self, datadir: &Path) -> anyhow::Result<Vec<Figure>> {
        let stats = self.tandem.json(&["db", "stats", "--json"], datadir)?;
        let of =
            |tables: [&str; 2]| tables.iter().map(|table| bytes_of(&stats, table)).sum::<f64>();
        let accounts = of(["accounts", "account_trie"]) / self.plan.accounts as f64;
        let slots = of(["slots", "storage_trie"]) / self.plan.slots as f64;
        let note = match self.seconds {
            Some(seconds) => format!("made in {seconds:.0} s"),
            None => "made before".to_owned(),
        };
        let all = stats["file_bytes"].as_f64().context("file_bytes")? / 1e9;
        Ok(vec![
            Figure::new("bytes on the disk for an account, with its nodes", accounts, Limit::None),
            Figure::new("bytes on the disk for a slot, with its nodes", slots, Limit::None),
            Figure::new("GB on the disk", all, Limit::None).note(note),
        ])
    }

    /// Compares the bytes of a state that geth can initialise.
    fn beside_geth(&self) -> anyhow::Result<Vec<Figure>> {
        anyhow::ensure!(geth::is_installed(), "no geth on the PATH");
        let accounts = if self.setting.quick { 2_000 } else { SMALL_ACCOUNTS };
        let plan = Plan { accounts, slots: accounts * SLOTS_PER_ACCOUNT, seed: self.plan.seed };
        let (folder, file) = (self.folder.path(), self.folder.path().join("genesis.json"));
        let datadir = folder.join("beside-geth");
        self.tandem.state(&datadir, plan, Some(&file), &[])?;
        let ours = self.tandem.file_bytes(&datadir)?;
        geth::run(folder, "geth", "init", &[file.as_path()]);
        let theirs = folder_bytes(&folder.join("geth"))? as f64;
        let name = format!("bytes on the disk / geth's, {} slots", plan.slots);
        let note = format!("{:.1} and {:.1} MB", ours / 1e6, theirs / 1e6);
        Ok(vec![Figure::new(name, ours / theirs, Limit::AtMost(GETH_SHARE)).note(note)])
    }

    /// Counts the blocks of files that are read for a key, in blocks that only read or only write.
    fn reads(&self) -> anyhow::Result<Vec<Figure>> {
        let blocks = if self.setting.quick { 5 } else { 20 };
        let mut figures = Vec::new();
        for (name, reads, writes, limit) in [
            ("block reads for a cold key that is read", 30, 0, READS_PER_READ),
            ("block reads for a slot that is written", 0, 30, READS_PER_WRITE),
        ] {
            let corpus = self.folder.path().join(format!("reads-{reads}-{writes}"));
            let workload =
                [("--reads", reads), ("--writes", writes), ("--balances", 0), ("--blocks", blocks)];
            self.tandem.payloads(&self.big, &corpus, self.plan.seed, &workload)?;
            let Replayed { misses, transactions, .. } =
                Replay::of(&self.tandem, &self.big, &corpus).run()?;
            // A slot and the account of its contract, each read once.
            let keys = transactions as f64 * (reads + writes) as f64;
            let keys = if writes == 0 { 2.0 * keys } else { keys };
            let figure = Figure::new(name, misses.iter().sum::<f64>() / keys, Limit::AtMost(limit));
            let of_each = |(kind, count)| format!("{kind} {:.2}", count / keys);
            let kinds: Vec<_> = KINDS.into_iter().zip(misses).map(of_each).collect();
            figures.push(figure.note(format!("{}, for {keys:.0} keys", kinds.join(", "))));
        }
        Ok(figures)
    }

    /// Compares the times of payloads on the big state in little memory with those on a small state in
    /// plenty, with the same workload.
    fn payloads(&self, mib: u64) -> anyhow::Result<Vec<Figure>> {
        let blocks = if self.setting.quick { 30 } else { 200 };
        let small = self.folder.path().join("small");
        let slots = SMALL_ACCOUNTS * SLOTS_PER_ACCOUNT;
        let plan = Plan { accounts: SMALL_ACCOUNTS, slots, seed: self.plan.seed };
        self.tandem.state(&small, plan, None, &[])?;
        let limit = Group::with_memory(mib << 20)?;
        let run = |datadir: &Path, name: &str, limit| {
            let corpus = self.folder.path().join(name);
            let workload = [("--blocks", blocks)];
            self.tandem.payloads(datadir, &corpus, self.plan.seed, &workload)?;
            Replay { limit, ..Replay::of(&self.tandem, datadir, &corpus) }.run()
        };
        let in_memory = run(&small, "on-small", None)?;
        let on_disk = run(&self.big, "on-big", Some(&limit))?;
        let peak = limit.peak_bytes()? as f64 / f64::from(1 << 20);
        let note = |name: &str, big: f64, small: f64| format!("{name}: {big:.1} and {small:.1} ms");
        Ok(vec![
            Figure::new(
                "newPayload p50, big state in little memory / small state",
                on_disk.p50 / in_memory.p50,
                Limit::AtMost(P50_MAX),
            )
            .note(note("p50", on_disk.p50, in_memory.p50)),
            Figure::new(
                "newPayload p99, big state in little memory / small state",
                on_disk.p99 / in_memory.p99,
                Limit::AtMost(P99_MAX),
            )
            .note(note("p99", on_disk.p99, in_memory.p99)),
            Figure::new(
                "serial read rounds a block, mean",
                on_disk.rounds,
                Limit::AtMost(ROUNDS_MAX),
            ),
            Figure::new("memory of the node, MiB", peak, Limit::AtMost(mib as f64))
                .note("with its page cache"),
        ])
    }

    /// Compares the times of payloads on the state on one disk with those on several, each of which answers
    /// few reads a second. The log is on the machine's own disk.
    fn disks(&self) -> anyhow::Result<Vec<Figure>> {
        let blocks = if self.setting.quick { 10 } else { 30 };
        let corpus = self.folder.path().join("on-disks");
        let workload = [("--reads", 10), ("--writes", 5), ("--balances", 5), ("--blocks", blocks)];
        self.tandem.payloads(&self.big, &corpus, self.plan.seed, &workload)?;
        let config = self.folder.path().join("disks.toml");
        fs::write(&config, DISK_CONFIG)?;
        let most = DISKS.into_iter().max().unwrap_or(0);
        let disk = |number| Disk::new(self.folder.path(), number, DISK_BYTES);
        let disks = (0..most).map(disk).collect::<anyhow::Result<Vec<_>>>()?;
        let devices = disks.iter().map(Disk::numbers).collect::<anyhow::Result<Vec<_>>>()?;
        let limit = Group::with_reads(&devices, DISK_READS)?;
        let mut figures = Vec::new();
        let mut alone = None;
        for count in DISKS {
            let folders = disks.iter().take(count).map(Disk::empty_folder);
            let directories = folders.collect::<anyhow::Result<Vec<_>>>()?;
            let replay = Replay::of(&self.tandem, &self.big, &corpus);
            let (limit, config) = (Some(&limit), Some(&*config));
            let p50 = Replay { limit, config, directories: &directories, ..replay }.run()?.p50;
            let Some(alone) = alone else {
                alone = Some(p50);
                continue;
            };
            let name = format!("newPayload p50, state on one disk / on {count}");
            let limit = if count == 2 { Limit::AtLeast(DISKS_GAIN) } else { Limit::None };
            let note =
                format!("{alone:.0} and {p50:.0} ms; a disk answers {DISK_READS} reads a second");
            figures.push(Figure::new(name, alone / p50, limit).note(note));
        }
        Ok(figures)
    }
}

fn bytes_of(stats: &Value, name: &str) -> f64 {
    let tables = stats["tables"].as_array().map_or(&[][..], |tables| tables);
    let table = tables.iter().find(|table| table["table"] == name);
    table.and_then(|table| table["file_bytes"].as_f64()).unwrap_or(0.0)
}

/// Returns the bytes of all files of a folder.
fn folder_bytes(folder: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        bytes += match entry.file_type()?.is_dir() {
            true => folder_bytes(&entry.path())?,
            false => entry.metadata()?.len(),
        };
    }
    Ok(bytes)
}
