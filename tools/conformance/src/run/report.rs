//! Results of a run, as text for people and as JSON for programs.

use super::Sample;
use crate::{Outcome, Setting};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// Maximum of failures in the text; the JSON has all.
const FAILURES_MAX: usize = 100;

/// Maximum of rows of folders without fixtures in the text.
const FOLDERS_MAX: usize = 30;

/// A case that has run.
#[derive(Clone, Debug)]
pub struct Done {
    /// The case's suite.
    pub suite: &'static str,
    /// The case's fork.
    pub fork: String,
    /// The case's name.
    pub name: String,
    /// The case's file.
    pub file: Arc<Path>,
    /// The case's setting.
    pub setting: Setting,
    /// The case's outcome.
    pub outcome: Outcome,
    /// Time the case took.
    pub elapsed: Duration,
    /// Times the node took to answer each of the case's payloads, in the order of the calls. Only
    /// for suites that send payloads one by one.
    pub payloads: Vec<Duration>,
}

/// Results of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// All cases, in order.
    pub cases: Vec<Done>,
    /// Files that no suite takes, counted by folder.
    pub unclaimed: BTreeMap<PathBuf, usize>,
    /// Number of files that suites took.
    pub files: usize,
    /// The chosen share.
    pub sample: Option<Sample>,
    /// Whether the cases were only listed.
    pub listed: bool,
    /// Time of the whole run.
    pub elapsed: Duration,
}

/// Numbers of passed, failed and skipped cases.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Cases that ended as expected.
    pub passed: usize,
    /// Cases that ended otherwise.
    pub failed: usize,
    /// Cases that were not run.
    pub skipped: usize,
}

impl Counts {
    fn add(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Passed => self.passed += 1,
            Outcome::Failed(_) => self.failed += 1,
            Outcome::Skipped(_) => self.skipped += 1,
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, failed, skipped } = self;
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

impl Report {
    /// Counts all cases.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        self.cases.iter().for_each(|case| counts.add(&case.outcome));
        counts
    }

    /// Returns whether something ran and nothing failed.
    pub fn is_success(&self) -> bool {
        let counts = self.counts();
        counts.failed == 0 && (counts.passed > 0 || self.listed && counts.skipped > 0)
    }

    /// Returns the report for people; the last line has the counts.
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = if self.listed { self.write_list(&mut out) } else { self.write_text(&mut out) };
        out
    }

    fn write_list(&self, out: &mut String) -> fmt::Result {
        for case in &self.cases {
            writeln!(out, "{}\t{}\t{}\t{}", case.suite, case.fork, case.file.display(), case.name)?;
        }
        self.write_unclaimed(out)?;
        writeln!(out, "{} cases in {} files", self.cases.len(), self.files)
    }

    fn write_text(&self, out: &mut String) -> fmt::Result {
        self.write_failures(out)?;
        self.write_table(out)?;
        self.write_skips(out)?;
        self.write_unclaimed(out)?;
        let count = |chosen: fn(&Setting) -> bool| {
            let ran = |case: &&Done| !matches!(case.outcome, Outcome::Skipped(_));
            self.cases.iter().filter(ran).filter(|case| chosen(&case.setting)).count()
        };
        let (http, database) = (count(|setting| setting.http), count(|setting| setting.database));
        if http + database > 0 {
            writeln!(out, "{http} cases over HTTP with a token, {database} on a database")?;
        }
        if let Some(Sample { part, of, seed }) = self.sample {
            writeln!(out, "a sample: {part}/{of} of the cases, by hash with seed {seed}")?;
        }
        writeln!(out, "{} files in {:.1} s", self.files, self.elapsed.as_secs_f64())?;
        writeln!(out, "{}", self.counts())
    }

    fn write_failures(&self, out: &mut String) -> fmt::Result {
        let failures = self.cases.iter().filter_map(|case| match &case.outcome {
            Outcome::Failed(reason) => Some((case, reason)),
            _ => None,
        });
        for (case, reason) in failures.clone().take(FAILURES_MAX) {
            writeln!(out, "FAILED {} {} {}", case.suite, case.fork, case.name)?;
            writeln!(out, "    {}", reason.replace('\n', "\n    "))?;
            let (file, name) = (quote(&case.file.to_string_lossy()), quote(&case.name));
            match case.name.as_str() {
                "(file)" => writeln!(out, "    tandem conformance {file}\n")?,
                _ => writeln!(out, "    tandem conformance {file} --exact --filter {name}\n")?,
            }
        }
        match failures.count().saturating_sub(FAILURES_MAX) {
            0 => Ok(()),
            more => writeln!(out, "and {more} failures more (--json FILE has all)\n"),
        }
    }

    fn write_table(&self, out: &mut String) -> fmt::Result {
        let mut rows: BTreeMap<(&str, &str), Counts> = BTreeMap::new();
        for case in &self.cases {
            rows.entry((case.suite, &case.fork)).or_default().add(&case.outcome);
        }
        let width = rows.keys().map(|(_, fork)| fork.len()).max().unwrap_or(0).max(4);
        writeln!(
            out,
            "{:<16} {:<width$} {:>8} {:>8} {:>8}",
            "suite", "fork", "passed", "failed", "skipped"
        )?;
        for ((suite, fork), Counts { passed, failed, skipped }) in rows {
            writeln!(out, "{suite:<16} {fork:<width$} {passed:>8} {failed:>8} {skipped:>8}")?;
        }
        writeln!(out)
    }

    fn write_skips(&self, out: &mut String) -> fmt::Result {
        let mut reasons: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for case in &self.cases {
            if let Outcome::Skipped(reason) = &case.outcome {
                *reasons.entry((case.suite, reason)).or_default() += 1;
            }
        }
        for ((suite, reason), count) in &reasons {
            writeln!(out, "skipped: {count:>6} of {suite}: {reason}")?;
        }
        Ok(())
    }

    fn write_unclaimed(&self, out: &mut String) -> fmt::Result {
        for (folder, count) in self.unclaimed.iter().take(FOLDERS_MAX) {
            writeln!(out, "no suite for {count} files in {}", folder.display())?;
        }
        let more = self.unclaimed.values().skip(FOLDERS_MAX).sum::<usize>();
        if more > 0 {
            writeln!(out, "no suite for {more} files in other folders")?;
        }
        Ok(())
    }

    /// Returns the report for programs: every case.
    pub fn json(&self) -> Value {
        let Counts { passed, failed, skipped } = self.counts();
        let cases = self.cases.iter().map(|case| {
            let (outcome, reason) = match &case.outcome {
                Outcome::Passed => ("passed", None),
                Outcome::Failed(reason) => ("failed", Some(reason)),
                Outcome::Skipped(reason) => ("skipped", Some(reason)),
            };
            json!({
                "suite": case.suite,
                "fork": case.fork,
                "file": case.file.to_string_lossy(),
                "name": case.name,
                "outcome": outcome,
                "reason": reason,
                "milliseconds": milliseconds(case.elapsed),
                "newPayloadMilliseconds":
                    case.payloads.iter().copied().map(milliseconds).collect::<Vec<_>>(),
                "http": case.setting.http,
                "database": case.setting.database,
            })
        });
        json!({
            "passed": passed,
            "failed": failed,
            "skipped": skipped,
            "seconds": self.elapsed.as_secs_f64(),
            "sample": self.sample.map(|Sample { part, of, seed }| {
                json!({"part": part, "of": of, "seed": seed})
            }),
            "files": self.files,
            "filesWithoutSuite": self.unclaimed.iter().map(|(folder, count)| {
                (folder.to_string_lossy().into_owned(), json!(count))
            }).collect::<serde_json::Map<_, _>>(),
            "cases": cases.collect::<Vec<_>>(),
        })
    }
}

fn milliseconds(elapsed: Duration) -> f64 {
    elapsed.as_micros() as f64 / 1e3
}

/// Quotes an argument for the shell.
fn quote(argument: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:".contains(&byte);
    if !argument.is_empty() && argument.bytes().all(plain) {
        return argument.to_owned();
    }
    format!("'{}'", argument.replace('\'', r"'\''"))
}
