//! Damage to any file of a database is never silent: the start names it, a loss is reported, or
//! `verify` finds it. Otherwise nothing is lost.

use crate::common::{Random, block, new_chain, new_chain_in_memory};
use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};
use tandem_primitives::BlockId;
use tandem_proto::storage::{BaseReads, BlockReads, BlockRef, BlockWrites, Forkchoice, WriteLease};
use tandem_storage_writer::{Config, Deps, Error, LossCause, StorageWriter, verify};
use tandem_store::{FoundMark, MARK_FILE, MarkFile};
use tempfile::TempDir;

const DATADIR: &str = "TANDEM_TEST_CORRUPTION_DATADIR";
const SMALL: &str = "TANDEM_TEST_CORRUPTION_SMALL";
const BLOCKS: u64 = 40;

fn config(datadir: &Path) -> Config {
    Config { reverse_diff_blocks: 1000, ..Config::with_small_limits(datadir) }
}

/// Extends the chain by `blocks` blocks. Returns the canonical blocks from genesis.
fn grow(writer: &StorageWriter, blocks: u64) -> Vec<BlockId> {
    let epoch = writer.acquire_epoch("test").unwrap();
    let (genesis, mut world) = new_chain(tempfile::tempdir().unwrap().path());
    let from = writer.checkpoint().unwrap().forkchoice.head.number;
    let (mut random, mut chain) = (Random(5), vec![genesis]);
    for number in 1..=from + blocks {
        let diff = world.random_diff(&mut random);
        world.apply(&diff);
        let block = block(*chain.last().unwrap(), &world, diff, &mut random);
        chain.push(block.id);
        if number > from {
            let head = block.id;
            writer.commit(epoch, block).unwrap();
            writer
                .canonicalize(epoch, Forkchoice { head, safe: None, finalized: Some(head) })
                .unwrap();
        }
    }
    let base = from + blocks - 3;
    let started = Instant::now();
    while writer.checkpoint().unwrap().base.number != base {
        assert!(started.elapsed() < Duration::from_secs(20), "the base does not follow");
        std::thread::sleep(Duration::from_millis(1));
    }
    chain
}

/// Process that is killed.
#[test]
fn child() {
    let Ok(datadir) = std::env::var(DATADIR) else { return };
    let mut config = config(Path::new(&datadir));
    if std::env::var(SMALL).is_ok() {
        config.store.memtable_bytes_max = 24 << 20;
    }
    let writer = StorageWriter::start(config, Deps::default()).unwrap();
    grow(&writer, BLOCKS);
    // The thread that moved the base writes this to the mark right after the move.
    std::thread::sleep(Duration::from_millis(100));
    writeln!(std::io::stdout(), "ready").unwrap();
    std::io::stdout().flush().unwrap();
    std::thread::sleep(Duration::from_secs(600));
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Closed,
    Killed,
    /// Killed with little memory for tables: some are flushed while others have their data in older
    /// logs.
    KilledWithLogs,
}

/// Creates a database that was closed with some blocks, and continued until this end.
fn make(end: End) -> (TempDir, Vec<BlockId>) {
    let folder = tempfile::tempdir().unwrap();
    new_chain(folder.path());
    let open = || StorageWriter::start(config(folder.path()), Deps::default()).unwrap();
    grow(&open(), BLOCKS);
    if end == End::Closed {
        let chain = grow(&open(), BLOCKS);
        return (folder, chain);
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["corruption::child", "--exact", "--nocapture"]).env(DATADIR, folder.path());
    if end == End::KilledWithLogs {
        command.env(SMALL, "1");
    }
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().ends_with("ready")));
    child.kill().unwrap();
    child.wait().unwrap();
    let in_memory = new_chain_in_memory(Deps::default()).0;
    let chain = grow(&in_memory, 2 * BLOCKS);
    (folder, chain)
}

/// Outcome for a damaged database.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Refused,
    Reported,
    FoundByVerify,
    NothingLost,
}

/// Opens a database as an operator would. Panics when something is lost silently.
///
/// No compaction starts by itself, as it replaces a table whose filter alone is damaged, and then nothing is left to
/// be found.
fn outcome(datadir: &Path, chain: &[BlockId], case: &str) -> Outcome {
    let head = *chain.last().unwrap();
    let mut config = config(datadir);
    config.store.auto_compaction = false;
    match StorageWriter::start(config.clone(), Deps::default()) {
        Err(_) => return Outcome::Refused,
        Ok(writer) if writer.loss().is_some() => return Outcome::Reported,
        Ok(writer) => {
            let found = writer.checkpoint().unwrap().forkchoice.head;
            assert_eq!(found, head, "{case}: the head fell back without a word");
        }
    }
    match verify(datadir) {
        Ok(report) if report.is_clean() => {}
        _ => return Outcome::FoundByVerify,
    }
    let writer = StorageWriter::start(config, Deps::default()).unwrap();
    for id in chain {
        let record = writer.block(BlockRef::Number(id.number)).unwrap();
        assert_eq!(record.unwrap().id, *id, "{case}: a block is lost without a word");
    }
    Outcome::NothingLost
}

/// Returns the kind of this file, `None` for files that hold nothing.
fn kind(name: &str) -> Option<&'static str> {
    let kinds = ["MANIFEST", "CURRENT", "OPTIONS", "IDENTITY", MARK_FILE];
    match name.rsplit_once('.') {
        Some((_, "log")) => Some("log"),
        Some((_, "sst")) => Some("sst"),
        Some((_, "blob")) => Some("blob"),
        _ => kinds.into_iter().find(|kind| name.starts_with(kind)),
    }
}

fn files(datadir: &Path) -> Vec<(&'static str, PathBuf)> {
    let mut files: Vec<_> = fs::read_dir(datadir.join("db"))
        .unwrap()
        .filter_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            Some((kind(&name)?, Path::new("db").join(name)))
        })
        .collect();
    files.sort();
    files
}

fn copy(from: &Path) -> TempDir {
    let to = tempfile::tempdir().unwrap();
    fs::create_dir(to.path().join("db")).unwrap();
    for entry in fs::read_dir(from.join("db")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap();
        if name != "LOCK" {
            fs::copy(&path, to.path().join("db").join(name)).unwrap();
        }
    }
    to
}

#[derive(Clone, Copy, Debug)]
enum Damage {
    /// One bit flipped at this many sixteenths of the file.
    Flip(usize),
    /// This many bytes cut off.
    Cut(usize),
    Half,
    Empty,
    Deleted,
}

impl Damage {
    /// Damages a file. Returns whether there was anything to damage.
    fn inflict(self, path: &Path) -> bool {
        let mut bytes = fs::read(path).unwrap();
        let len = bytes.len();
        match self {
            Self::Deleted => {
                fs::remove_file(path).unwrap();
                return true;
            }
            _ if len == 0 => return false,
            Self::Flip(at) => bytes[(len * at / 16 + len / 32).min(len - 1)] ^= 0x10,
            Self::Cut(less) => bytes.truncate(len.saturating_sub(less)),
            Self::Half => bytes.truncate(len / 2),
            Self::Empty => bytes.clear(),
        }
        fs::write(path, bytes).unwrap();
        true
    }
}

const CUTS: [Damage; 5] =
    [Damage::Cut(1), Damage::Cut(200), Damage::Half, Damage::Empty, Damage::Deleted];

type Outcomes = BTreeMap<(&'static str, Outcome), usize>;

/// Returns the largest log, which has the newest blocks.
fn newest_log(datadir: &Path) -> PathBuf {
    let size = |file: &PathBuf| fs::metadata(datadir.join(file)).unwrap().len();
    let logs = files(datadir).into_iter().filter(|(kind, _)| *kind == "log");
    logs.map(|(_, file)| file).max_by_key(size).unwrap()
}

/// Damages copies of a database, one file at a time: the newest log in all ways, and each
/// `every`-th case of the other files.
fn damage_each(folder: &Path, chain: &[BlockId], every: usize) -> Outcomes {
    let mut outcomes = Outcomes::new();
    let (mut count, newest) = (0, newest_log(folder));
    for (kind, file) in files(folder) {
        for damage in (0..16).map(Damage::Flip).chain(CUTS) {
            count += 1;
            if file != newest && count % every != 0 {
                continue;
            }
            let case = format!("{damage:?} of {}", file.display());
            let copy = copy(folder);
            if damage.inflict(&copy.path().join(&file)) {
                let outcome = outcome(copy.path(), chain, &case);
                *outcomes.entry((kind, outcome)).or_default() += 1;
            }
        }
    }
    outcomes
}

/// Returns the step between the cases that are run: 1, for all, when the environment asks for it.
fn sample() -> usize {
    std::env::var("TANDEM_TEST_CORRUPTION_ALL").map_or(17, |_| 1)
}

#[test]
fn damage_after_a_kill_is_never_silent() {
    let (folder, chain) = make(End::Killed);
    let copied = copy(folder.path());
    assert_eq!(outcome(copied.path(), &chain, "no damage"), Outcome::NothingLost);
    let outcomes = damage_each(folder.path(), &chain, sample());
    let of = |outcome| outcomes.get(&("log", outcome)).copied().unwrap_or_default();
    assert_eq!(of(Outcome::NothingLost) + of(Outcome::FoundByVerify), 0, "{outcomes:?}");
    assert!(of(Outcome::Refused) + of(Outcome::Reported) >= 16 + CUTS.len(), "{outcomes:?}");
}

#[test]
fn damage_after_a_clean_stop_is_never_silent() {
    let (folder, chain) = make(End::Closed);
    let log_bytes = |(kind, file): &(&str, PathBuf)| {
        if *kind == "log" { fs::metadata(folder.path().join(file)).unwrap().len() } else { 0 }
    };
    assert_eq!(files(folder.path()).iter().map(log_bytes).sum::<u64>(), 0, "all is in tables");
    let FoundMark::Mark(mark) = MarkFile::read(&folder.path().join("db")).unwrap() else {
        panic!("no mark");
    };
    assert_eq!((mark.clean, mark.head), (true, *chain.last().unwrap()));
    assert_eq!(mark.base.number, mark.head.number - 3);
    let outcomes = damage_each(folder.path(), &chain, sample());
    // Damage to a table is always found. Only files that hold nothing of the chain may be lost.
    let harmless = |kind: &str| !matches!(kind, "sst" | "blob" | "MANIFEST" | "CURRENT");
    for (kind, outcome) in outcomes.keys() {
        assert!(*outcome != Outcome::NothingLost || harmless(kind), "{kind}: {outcomes:?}");
    }
}

#[test]
fn a_loss_names_the_blocks_and_is_accepted_once() {
    let (folder, chain) = make(End::Killed);
    Damage::Flip(8).inflict(&folder.path().join(newest_log(folder.path())));
    let head = *chain.last().unwrap();
    for _ in 0..2 {
        match StorageWriter::start(config(folder.path()), Deps::default()) {
            Err(error @ Error::LostBlocks { .. }) => {
                let text = error.to_string();
                let Error::LostBlocks { loss, .. } = error else { return };
                assert_eq!(loss.cause, LossCause::AfterCrash);
                assert_eq!((loss.mark.head, loss.mark.newest), (head, head));
                assert!(loss.head.number < head.number && loss.writes() > 0, "{loss}");
                for part in [&head.to_string(), &loss.head.to_string(), "--accept-lost-blocks"] {
                    assert!(text.contains(part), "{text}");
                }
            }
            Err(Error::Store(error)) if error.is_damage() => {}
            other => panic!("{other:?}"),
        }
        // A check does not repair the database.
        assert!(!verify(folder.path()).is_ok_and(|report| report.is_clean()));
    }
    let accepting = Config { accept_lost_blocks: true, ..config(folder.path()) };
    let writer = StorageWriter::start(accepting, Deps::default()).unwrap();
    assert!(writer.loss().unwrap().blocks() > 0);
    drop(writer);
    assert_eq!(verify(folder.path()).unwrap().first_difference, None);
    let writer = StorageWriter::start(config(folder.path()), Deps::default()).unwrap();
    assert_eq!(writer.loss(), None);
}

/// Small tables, and blocks from which no record is read, have checksums too.
#[test]
fn verify_finds_every_flipped_byte_of_every_table() {
    let (folder, _) = make(End::Closed);
    assert!(verify(folder.path()).unwrap().is_clean());
    let (mut random, mut missed, mut flips) = (Random(17), Vec::new(), 0);
    for (kind, file) in files(folder.path()) {
        if !matches!(kind, "sst" | "blob") {
            continue;
        }
        let whole = fs::read(folder.path().join(&file)).unwrap();
        // The end, which has filters, index and footer, as often as the rest.
        let len = whole.len() as u64;
        let places = [random.below(len), random.below(len), len - 1 - random.below(len.min(600))];
        for place in places {
            let copy = copy(folder.path());
            let mut bytes = whole.clone();
            bytes[place as usize] ^= 1 << random.below(8);
            fs::write(copy.path().join(&file), bytes).unwrap();
            flips += 1;
            if verify(copy.path()).is_ok_and(|report| report.is_clean()) {
                missed.push((file.clone(), place, len));
            }
        }
    }
    assert!(flips >= 30, "{flips}");
    assert!(missed.is_empty(), "of {flips} flips: {missed:?}");
}

#[test]
fn damage_to_any_of_several_logs_is_never_silent() {
    let (folder, chain) = make(End::KilledWithLogs);
    let logs: Vec<PathBuf> = files(folder.path())
        .into_iter()
        .filter(|(kind, _)| *kind == "log")
        .map(|(_, file)| file)
        .filter(|file| fs::metadata(folder.path().join(file)).unwrap().len() > 0)
        .collect();
    assert!(logs.len() > 1, "{logs:?}");
    let few = logs.len().div_ceil(6);
    for log in logs.iter().step_by(few) {
        for damage in [Damage::Flip(8), Damage::Cut(1), Damage::Half, Damage::Deleted] {
            let copy = copy(folder.path());
            damage.inflict(&copy.path().join(log));
            outcome(copy.path(), &chain, &format!("{damage:?} of {}", log.display()));
        }
    }
}

/// Cuts the logs off at a random byte, as a power cut does: nothing written later is there. Returns where.
fn cut_logs(datadir: &Path, random: &mut Random) -> String {
    let logs = files(datadir).into_iter().filter(|(kind, _)| *kind == "log");
    let logs: Vec<_> = logs.map(|(_, file)| datadir.join(file)).collect();
    let len = |log: &PathBuf| fs::metadata(log).unwrap().len();
    let at = random.below(logs.iter().map(len).sum());
    let mut left = at;
    for log in &logs {
        let kept = left.min(len(log));
        left -= kept;
        fs::File::options().write(true).open(log).unwrap().set_len(kept).unwrap();
    }
    format!("logs cut at byte {at}")
}

/// Flips a random bit of a random file. Returns where.
fn flip_bit(datadir: &Path, random: &mut Random) -> String {
    let files = files(datadir).into_iter().map(|(_, file)| file);
    let files: Vec<_> =
        files.filter(|file| fs::metadata(datadir.join(file)).unwrap().len() > 0).collect();
    let file = &files[random.below(files.len() as u64) as usize];
    let mut bytes = fs::read(datadir.join(file)).unwrap();
    let at = random.below(bytes.len() as u64);
    bytes[at as usize] ^= 1 << random.below(8);
    fs::write(datadir.join(file), bytes).unwrap();
    format!("bit of byte {at} of {} flipped", file.display())
}

/// Damages copies of two databases that were killed, each in one random place.
fn damage_at_random(cuts: usize, flips: usize, seed: u64) {
    let mut random = Random(seed);
    let databases = [End::Killed, End::KilledWithLogs].map(make);
    let mut outcomes = Outcomes::new();
    for case in 0..cuts + flips {
        let (folder, chain) = &databases[case % 2];
        let copy = copy(folder.path());
        let (kind, place) = match case < cuts {
            true => ("cut", cut_logs(copy.path(), &mut random)),
            false => ("flip", flip_bit(copy.path(), &mut random)),
        };
        let outcome = outcome(copy.path(), chain, &format!("seed {seed}: {place}"));
        *outcomes.entry((kind, outcome)).or_default() += 1;
    }
    eprintln!("seed {seed}: {outcomes:?}");
    let lost = |kind| outcomes.get(&(kind, Outcome::NothingLost)).copied().unwrap_or_default();
    assert!(lost("cut") < cuts / 10, "cuts that cost nothing: {outcomes:?}");
}

#[test]
fn damage_at_random_places_is_never_silent() {
    damage_at_random(12, 8, 1);
}

#[test]
#[ignore = "takes minutes"]
fn five_hundred_cuts_and_two_hundred_flips_are_never_silent() {
    let seed = std::env::var("TANDEM_SEED").ok().and_then(|seed| seed.parse().ok());
    damage_at_random(500, 200, seed.unwrap_or(1));
}
