//! Snapshots of a state: their speed beside the disk's, the memory of the tool, and newPayload while one
//! after the other is made (docs/snapshots.md).

use crate::{
    Setting,
    big_state::{
        Options, Plan,
        run::{Replay, Tandem, forget_pages, free_port},
    },
    figure::{Figure, Limit, Report},
};
use anyhow::{Context as _, ensure};
use serde_json::Value;
use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread::sleep,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// Smallest share of the disk's sequential speed.
const DISK_SHARE: f64 = 0.6;
/// Most memory of the tool, in MiB.
const MEMORY_MIB: f64 = 1024.0;
/// Largest share of the chunks' bytes that a second snapshot stores.
const AGAIN_SHARE: f64 = 0.01;
/// Largest ratio of newPayload's p50 while snapshots are made to that without.
const P50_MAX: f64 = 1.1;

/// Measures the figures.
pub fn measure(setting: &Setting, options: &Options, report: &mut Report) {
    let (accounts, slots) =
        if setting.quick { (200_000, 1_000_000) } else { (5_000_000, 10_000_000) };
    let plan = Plan {
        accounts: options.accounts.unwrap_or(accounts),
        slots: options.slots.unwrap_or(slots),
        seed: setting.seed,
    };
    let work = match Work::new(setting, options, plan) {
        Ok(work) => work,
        Err(error) => return report.measure("the state", || Err(error)),
    };
    report.say(&format!("{} accounts, {} slots, seed {}", plan.accounts, plan.slots, plan.seed));
    report.measure("create and restore", || work.transfers());
    report.measure("newPayload p50 while snapshots are made / without", || work.payloads());
}

/// Files that are made before anything is measured.
struct Work<'s> {
    setting: &'s Setting,
    tandem: Tandem,
    plan: Plan,
    folder: TempDir,
    big: PathBuf,
}

/// Answer of the tool, with the most memory that it had resident.
struct Answer {
    value: Value,
    peak_mib: f64,
}

impl Answer {
    fn number(&self, name: &str) -> anyhow::Result<f64> {
        self.value[name].as_f64().with_context(|| name.to_owned())
    }
}

impl<'s> Work<'s> {
    fn new(setting: &'s Setting, options: &Options, plan: Plan) -> anyhow::Result<Self> {
        let temporary = tempfile::Builder::new().prefix("tandem-figures-").to_owned();
        let folder = match &options.datadir {
            Some(datadir) => {
                fs::create_dir_all(datadir)?;
                temporary.tempdir_in(datadir)?
            }
            None => temporary.tempdir()?,
        };
        let tandem = Tandem(setting.tandem.clone());
        let big = folder.path().join("big");
        tandem.state(&big, plan, None, &[])?;
        Ok(Self { setting, tandem, plan, folder, big })
    }

    /// Measures snapshots of a stopped node, and their restore. The page cache forgets the files first.
    fn transfers(&self) -> anyhow::Result<Vec<Figure>> {
        let (folder, store) = (self.folder.path(), self.folder.path().join("store"));
        let copy = folder.join("copy");
        let disk = self.disk_speed()?;
        forget_pages(&self.big)?;
        let first = self.snapshot(&["create"], &self.big, &store)?;
        let again = self.snapshot(&["create"], &self.big, &store)?;
        forget_pages(&store)?;
        let restored = self.snapshot(&["restore"], &copy, &store)?;
        let bytes = first.number("bytes")?;
        let (seconds, transfer) = (first.number("seconds")?, restored.number("transfer_seconds")?);
        let verified = restored.number("seconds")? - transfer;
        let share = again.number("new_bytes")? / first.number("new_bytes")?;
        let speed = |seconds: f64| bytes / seconds / 1e6;
        let figure = |name: &str, seconds| {
            let name = format!("{name} / sequential write of the disk");
            let note = format!("{:.0} and {:.0} MB/s, {:.2} GB", speed(seconds), disk, bytes / 1e9);
            Figure::new(name, speed(seconds) / disk, Limit::AtLeast(DISK_SHARE)).note(note)
        };
        let memory = |name: &str, answer: &Answer| {
            Figure::new(
                format!("memory of {name}, MiB"),
                answer.peak_mib,
                Limit::AtMost(MEMORY_MIB),
            )
        };
        Ok(vec![
            figure("create", seconds),
            figure("restore, without the verification", transfer).note(format!(
                "{:.0} MB/s; the verification took {verified:.0} s",
                speed(transfer)
            )),
            Figure::new("bytes stored by a second create", share, Limit::AtMost(AGAIN_SHARE))
                .note(format!("of those of the first, in {:.1} s", again.number("seconds")?)),
            memory("create", &first),
            memory("restore, with the verification", &restored),
        ])
    }

    /// Compares newPayload on the state with and without snapshots beside it, in turn.
    fn payloads(&self) -> anyhow::Result<Vec<Figure>> {
        let (blocks, rounds) = if self.setting.quick { (40, 1) } else { (200, 3) };
        let corpus = self.folder.path().join("corpus");
        self.tandem.payloads(&self.big, &corpus, self.plan.seed, &[("--blocks", blocks)])?;
        let port = free_port()?;
        let config = self.folder.path().join("tandem.toml");
        fs::write(&config, format!("[storage_writer]\ngrpc_addr = \"{port}\"\n"))?;
        let (url, made) = (format!("http://{port}"), AtomicU64::new(0));
        let beside = |datadir: &Path, ended: &AtomicBool| -> anyhow::Result<()> {
            while !ended.load(Relaxed) {
                // Each into a store of its own, so that all of it is stored.
                let store = TempDir::new_in(self.folder.path())?;
                self.snapshot(&["create", "--storage-writer", &url], datadir, store.path())?;
                made.fetch_add(1, Relaxed);
            }
            Ok(())
        };
        let (mut without, mut with) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let replay = || Replay::of(&self.tandem, &self.big, &corpus);
            without.push(Replay { config: Some(&config), ..replay() }.run()?.p50);
            let beside = Replay { config: Some(&config), beside: Some(&beside), ..replay() };
            with.push(beside.run()?.p50);
        }
        let median = |times: &mut Vec<f64>| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        };
        let (without, with) = (median(&mut without), median(&mut with));
        let name = "newPayload p50 while snapshots are made / without";
        let note = format!("{with:.1} and {without:.1} ms, {} snapshots", made.into_inner());
        Ok(vec![Figure::new(name, with / without, Limit::AtMost(P50_MAX)).note(note)])
    }

    /// Runs `tandem snapshot`, and watches its memory.
    fn snapshot(&self, command: &[&str], datadir: &Path, store: &Path) -> anyhow::Result<Answer> {
        let mut child = Command::new(&self.tandem.0)
            .arg("snapshot")
            .args(command)
            .arg("--datadir")
            .arg(datadir)
            .arg("--store")
            .arg(store)
            .arg("--json")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("start tandem")?;
        let status = format!("/proc/{}/status", child.id());
        let mut peak_mib = 0f64;
        while child.try_wait()?.is_none() {
            // Gone when the process has just ended.
            let text = fs::read_to_string(&status).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
            peak_mib = peak_mib.max(kib.unwrap_or(0.0) / 1024.0);
            sleep(Duration::from_millis(20));
        }
        let output = child.wait_with_output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(Answer { value: serde_json::from_slice(&output.stdout)?, peak_mib })
    }

    /// Returns the MB a second of one file that is written from its begin to its end, and synced.
    fn disk_speed(&self) -> anyhow::Result<f64> {
        let pieces = if self.setting.quick { 16 } else { 128 };
        let piece: Vec<u8> =
            (0..32u32 << 20).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
        let path = self.folder.path().join("sequential");
        let begin = Instant::now();
        let mut file = File::create(&path)?;
        for _ in 0..pieces {
            file.write_all(&piece)?;
        }
        file.sync_all()?;
        let speed = (pieces * piece.len()) as f64 / begin.elapsed().as_secs_f64() / 1e6;
        fs::remove_file(&path)?;
        Ok(speed)
    }
}
