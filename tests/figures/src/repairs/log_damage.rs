//! Damage to write-ahead logs, which must not lose acknowledged blocks silently.

use crate::{
    Setting,
    corpus::Corpus,
    figure::{Figure, Limit, Report},
    node::Node,
};
use anyhow::Context as _;
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// Number of places in the log to damage, one in each run.
const PLACES: usize = 16;

/// Measures both figures.
pub fn measure(setting: &Setting, report: &mut Report) {
    for (end, name) in [(End::Stopped, "a stop"), (End::Killed, "a kill")] {
        let name = format!("log damage: 16 logs after {name}, none silent");
        report.measure(&name, || figure(setting, end, &name));
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Stopped,
    Killed,
}

fn figure(setting: &Setting, end: End, name: &str) -> anyhow::Result<Vec<Figure>> {
    let corpus = Corpus::load(&setting.demo, if setting.quick { 8 } else { 64 })?;
    let mut node = Node::start(&setting.tandem, &corpus.genesis, "")?;
    corpus.replay(&node, Duration::ZERO)?;
    let head = node.head()?;
    match end {
        End::Stopped => drop(node.stop(Duration::from_secs(60))?),
        End::Killed => node.kill(),
    }
    let (mut refused, mut named, mut whole, mut silent) = (0, 0, 0, Vec::new());
    for place in 0..PLACES {
        let mut copy = Node::new(&setting.tandem, &corpus.genesis, "")?;
        copy_folder(&node.data(), &copy.data())?;
        damage(&copy.data(), place)?;
        let started = copy.restart();
        match started {
            Err(_) => refused += 1,
            Ok(()) if copy.head()? == head => whole += 1,
            Ok(()) if names_the_loss(&copy.log()) => named += 1,
            Ok(()) => silent.push(format!("{place}/{PLACES}: head {}", number(&copy.head()?))),
        }
    }
    let note = format!(
        "{refused} refused, {named} started and named, {whole} had lost nothing; silent: {}",
        if silent.is_empty() { "none".to_owned() } else { silent.join(", ") }
    );
    let told = (PLACES - silent.len()) as f64;
    Ok(vec![Figure::new(name, told, Limit::Exactly(PLACES as f64)).note(note)])
}

fn number(head: &Value) -> String {
    head[0].as_str().unwrap_or_default().to_owned()
}

/// Returns whether a line of the log warns of lost blocks.
fn names_the_loss(log: &str) -> bool {
    let is_warning = |line: &str| line.contains("WARN") || line.contains("ERROR");
    log.lines().filter(|line| is_warning(line)).any(|line| {
        let line = line.to_lowercase();
        ["lost", "damage", "missing"].iter().any(|word| line.contains(word))
    })
}

/// Flips a bit of one byte in the given sixteenth of the write-ahead log: all files, oldest first,
/// as if they were one. If everything is flushed, there is nothing to damage.
fn damage(data: &Path, place: usize) -> anyhow::Result<()> {
    let mut logs: Vec<PathBuf> = Vec::new();
    find_logs(data, &mut logs)?;
    logs.sort();
    let sizes: Vec<u64> =
        logs.iter().map(|log| Ok(fs::metadata(log)?.len())).collect::<anyhow::Result<_>>()?;
    let total: u64 = sizes.iter().sum();
    let mut at = total * (2 * place as u64 + 1) / (2 * PLACES as u64);
    for (log, size) in logs.iter().zip(sizes) {
        if at >= size {
            at -= size;
            continue;
        }
        let mut bytes = fs::read(log)?;
        let byte = bytes.get_mut(usize::try_from(at)?).context("the log is shorter")?;
        *byte ^= 0x40;
        fs::write(log, bytes)?;
        break;
    }
    Ok(())
}

/// Finds write-ahead logs, which RocksDB names by a number and `.log`.
fn find_logs(folder: &Path, logs: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            find_logs(&path, logs)?;
        } else if path.extension().is_some_and(|extension| extension == "log")
            && path.file_stem().is_some_and(|stem| {
                stem.to_string_lossy().bytes().all(|byte| byte.is_ascii_digit())
            })
        {
            logs.push(path);
        }
    }
    Ok(())
}

fn copy_folder(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, copy) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy_folder(&path, &copy)?;
        } else {
            fs::copy(&path, &copy)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_warning_names_a_loss() {
        assert!(names_the_loss("x\n12:00 WARN blocks lost from=3 to=9"));
        assert!(!names_the_loss("12:00 INFO nothing lost\n12:00 WARN clock is behind"));
    }

    #[test]
    fn each_place_is_in_its_part_of_the_logs() {
        let data = tempfile::tempdir().unwrap();
        let (first, second) = (data.path().join("000004.log"), data.path().join("000007.log"));
        fs::write(data.path().join("LOG"), [0; 9]).unwrap();
        for place in 0..PLACES {
            fs::write(&first, [0; 100]).unwrap();
            fs::write(&second, [0; 220]).unwrap();
            damage(data.path(), place).unwrap();
            let both = [fs::read(&first).unwrap(), fs::read(&second).unwrap()].concat();
            let at: Vec<_> = (0..320).filter(|&at| both[at] != 0).collect();
            assert_eq!(at, [20 * place + 10]);
        }
        fs::write(&first, []).unwrap();
        fs::write(&second, []).unwrap();
        damage(data.path(), 3).unwrap();
    }
}
