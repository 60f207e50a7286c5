//! The table of the seeds' claims: `lab/RESULTS.md` is made from `lab/results/claims/*.json`.
//!
//! `TANDEM_UPDATE=1 cargo test -p tandem-layering-tests claims` writes it.

use super::root;
use serde::Deserialize;
use std::{collections::BTreeSet, fmt::Write, fs, path::Path};

/// A claim, and what was measured.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Claim {
    claim: String,
    title: String,
    expected: String,
    /// Experiment of the lab, or a command in backquotes.
    run: Option<String>,
    measured: Vec<Measured>,
    machine: Option<String>,
    commit: Option<String>,
    date: Option<String>,
    /// File with the whole measurement, in lab/results.
    source: Option<String>,
    sentence: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Measured {
    what: String,
    effect: String,
    interval: Option<[f64; 2]>,
    verdict: Option<String>,
}

/// All claims of the seeds: each has a row, measured or not.
const CLAIMS: [&str; 33] = [
    "000-1", "000-1q", "000-2", "000-3", "000-4", "000-5", "001-1a", "001-1b", "001-1c", "001-1d",
    "001-2a", "001-2b", "001-2c", "001-3a", "001-3b", "001-3c", "001-4a", "001-4b", "001-4c",
    "001-5a", "001-5b", "001-6a", "001-6b", "002", "003", "003-grid", "003-r1", "003-r2", "003-r3",
    "003-r4", "003-r5", "003-r6", "004",
];

const HEAD: &str = "\
# Every claim of the seeds, and what we measure

Each row is a claim of one of five published analyses of other clients. The first digits of a claim name the analysis: 000
five experiments on newPayload, 001 the processor time of a node at rest, 002 transactions that are not encoded again, 003
the batching regression, 004 the encoding of trie nodes. The percentages of 001 are the analysis' own expectations.

The table is made from `lab/results/claims`, a file for each claim; `TANDEM_UPDATE=1 cargo test -p tandem-layering-tests claims`
makes it again. A ratio below 1 is faster. An interval is at 95 %. \"Not measured yet\" means what it says, \"not
measurable here\" says why.

| claim | expected or measured there | measured here | in a sentence | run | machine, commit, date |
|---|---|---|---|---|---|
";

fn read(folder: &Path) -> Vec<Claim> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let claim = |path: std::path::PathBuf| {
        let claim: Claim = serde_json::from_str(&fs::read_to_string(&path).unwrap())
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(path.file_stem().unwrap().to_str(), Some(&*claim.claim), "{}", path.display());
        claim
    };
    let mut claims: Vec<_> = entries.map(claim).collect();
    claims.sort_by(|a, b| a.claim.cmp(&b.claim));
    claims
}

fn check(claim: &Claim, lab: &Path) {
    let name = &claim.claim;
    let measured = !claim.measured.is_empty();
    let is_missing = ["Not measured yet", "Not measurable here"]
        .iter()
        .any(|words| claim.sentence.starts_with(words));
    assert_ne!(measured, is_missing, "{name}: figures, or the words that there are none");
    for part in [&claim.machine, &claim.commit, &claim.date, &claim.source] {
        assert_eq!(part.is_some(), measured, "{name}: machine, commit, date and source of figures");
    }
    if let Some(source) = &claim.source {
        assert!(lab.join("results").join(source).is_file(), "{name}: {source}");
    }
    if let Some(experiment) = claim.run.as_ref().and_then(|run| run.strip_prefix("lab/")) {
        assert!(lab.join(experiment).is_file(), "{name}: {experiment}");
    }
    for measured in &claim.measured {
        let Some([low, high]) = measured.interval else { continue };
        let effect: f64 = measured.effect.parse().unwrap();
        assert!(low <= effect && effect <= high, "{name}: {}", measured.what);
        // An interval with 1 in it shows no difference.
        let differs = measured.verdict.as_deref().is_some_and(|verdict| verdict != "no difference");
        assert!(!differs || high < 1.0 || low > 1.0, "{name}: {}", measured.what);
    }
}

fn row(out: &mut String, claim: &Claim) {
    let figures: Vec<_> = claim.measured.iter().map(figure).collect();
    let figures = if figures.is_empty() { "–".to_owned() } else { figures.join("; ") };
    let run = match claim.run.as_ref().map(|run| run.strip_prefix("lab/").ok_or(run)) {
        Some(Ok(file)) => format!("[{file}]({file})"),
        Some(Err(command)) => command.clone(),
        None => "–".to_owned(),
    };
    let origin = match (&claim.machine, &claim.commit, &claim.date, &claim.source) {
        (Some(machine), Some(commit), Some(date), Some(source)) => {
            format!("{machine}; {commit}; [{date}](results/{source})")
        }
        _ => "–".to_owned(),
    };
    let Claim { claim, title, expected, sentence, .. } = claim;
    writeln!(
        out,
        "| **{claim}** {title} | {expected} | {figures} | {sentence} | {run} | {origin} |"
    )
    .unwrap();
}

fn figure(measured: &Measured) -> String {
    let Measured { what, effect, interval, verdict } = measured;
    let interval = interval.map_or(String::new(), |[low, high]| format!(" [{low}, {high}]"));
    let verdict = verdict.as_ref().map_or(String::new(), |verdict| format!(", {verdict}"));
    format!("{what}: {effect}{interval}{verdict}")
}

#[test]
fn the_table_of_claims_is_made_from_their_records() {
    let lab = root().join("lab");
    let claims = read(&lab.join("results/claims"));
    let found: BTreeSet<_> = claims.iter().map(|claim| claim.claim.as_str()).collect();
    assert_eq!(found, BTreeSet::from(CLAIMS), "no claim without a row");
    let mut text = HEAD.to_owned();
    for claim in &claims {
        check(claim, &lab);
        row(&mut text, claim);
    }
    let path = lab.join("RESULTS.md");
    if std::env::var_os("TANDEM_UPDATE").is_some_and(|value| value == "1") {
        fs::write(&path, &text).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == text, "lab/RESULTS.md is not up to date (TANDEM_UPDATE=1 writes it)");
}
