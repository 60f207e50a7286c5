//! Rounds that are complete, in a file, so that an experiment can go on after an end.

use super::experiment::Experiment;
use super::run::Measured;
use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Complete rounds of an experiment.
pub struct Record {
    /// The file, if there is one.
    path: Option<PathBuf>,
    contents: Contents,
}

#[derive(Default, Serialize, Deserialize)]
struct Contents {
    /// Fingerprint of the experiment: rounds of another one must not be mixed with these.
    experiment: String,
    /// Measurements by corpus.
    corpora: BTreeMap<String, Measured>,
}

impl Record {
    /// Opens the file, which need not exist, for this experiment.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or belongs to another experiment.
    pub fn open(path: Option<&Path>, experiment: &Experiment) -> anyhow::Result<Self> {
        let experiment = fingerprint(experiment);
        let mut contents = Contents { experiment, ..Contents::default() };
        if let Some(path) = path.filter(|path| path.exists()) {
            let shown = || path.display().to_string();
            let bytes = fs::read(path).with_context(|| format!("read {}", shown()))?;
            let found: Contents = serde_json::from_slice(&bytes).with_context(shown)?;
            ensure!(
                found.experiment == contents.experiment,
                "{} has rounds of another experiment, or of another version",
                shown()
            );
            contents = found;
        }
        Ok(Self { path: path.map(Path::to_owned), contents })
    }

    /// Returns what was measured on a corpus.
    pub fn measured(&self, corpus: &str) -> Option<Measured> {
        self.contents.corpora.get(corpus).cloned()
    }

    /// Keeps what is measured on a corpus so far. The file is never half written.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn add(&mut self, corpus: &str, measured: &Measured) -> anyhow::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        self.contents.corpora.insert(corpus.to_owned(), measured.clone());
        let mut next = path.clone().into_os_string();
        next.push(".next");
        let written = fs::write(&next, serde_json::to_vec(&self.contents)?);
        let moved = written.and_then(|()| fs::rename(&next, path));
        moved.with_context(|| format!("write {}", path.display()))
    }
}

/// Returns all that makes two rounds comparable. The number of rounds may grow.
fn fingerprint(experiment: &Experiment) -> String {
    let Experiment { name, blocks, warmup, gap_ms, metric, .. } = experiment;
    let setups = experiment.setups();
    let version = crate::VERSION;
    format!("{version} {name:?} {blocks:?} {warmup} {gap_ms} {setups:?} {metric:?}")
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::{experiment, measured};
    use super::*;

    #[test]
    fn rounds_come_back_and_never_those_of_another_experiment() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rounds.json");
        let mut record = Record::open(Some(&path), &experiment()).unwrap();
        assert!(record.measured("demo").is_none());
        record.add("demo", &measured(3, 1.0)).unwrap();
        let more_rounds = Experiment { rounds: 9, ..experiment() };
        let again = Record::open(Some(&path), &more_rounds).unwrap().measured("demo").unwrap();
        assert_eq!((again.rounds, again.rows.len(), again.usage.len()), (1, 3, 3));
        assert_eq!(again.rows[2].nodes[2].new_payload_ms, 42.0);
        let other = Experiment { gap_ms: 7, ..experiment() };
        let error = Record::open(Some(&path), &other).err().unwrap().to_string();
        assert!(error.contains("another experiment"), "{error}");
        fs::write(&path, "{").unwrap();
        assert!(Record::open(Some(&path), &experiment()).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let mut without_file = Record::open(None, &experiment()).unwrap();
        without_file.add("demo", &measured(3, 1.0)).unwrap();
    }
}
