//! The vectors that continuous integration runs: the project's small sets in full, and a fixed
//! sample of the complete ones, if present.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
};
use tandem_conformance::{Options, Report, Sample};

/// Sample of the complete sets: some 5,000 cases, chosen by the hash of their names.
const SAMPLE: Sample = Sample { part: 20, of: 100, seed: 0 };

fn run(folder: PathBuf, sample: Option<Sample>) -> Report {
    let threads = thread::available_parallelism().map_or(2, usize::from);
    let paths = vec![folder];
    let options = Options { paths, filter: None, sample, list: false, threads, rpc: None };
    let report = tandem_conformance::run(&options).unwrap();
    println!("{}", report.text());
    report
}

fn package() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_small_sets_pass() {
    let report = run(package().join("fixtures"), None);
    assert!(report.is_success());
    assert!(report.counts().passed > 200, "the sets are there");
}

/// Runs the vectors of the KZG library, which its own crate covers in full. Here they are found
/// from a folder, as with `tandem conformance`.
#[test]
fn a_sample_of_the_kzg_vectors_passes() {
    let report = run(package().join("../../crates/pure/kzg/tests/data"), Some(SAMPLE));
    assert!(report.is_success());
    let counts = report.counts();
    assert!(counts.passed > 20 && counts.skipped == 0, "{counts:?}");
}

/// Returns the names of the folders with sets.
fn sets(folder: &Path) -> String {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let folders = entries.filter(|entry| entry.path().is_dir());
    let mut names: Vec<_> =
        folders.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names.join(", ")
}

#[test]
#[ignore = "just conformance-sample runs it and shows its table"]
fn a_sample_of_the_complete_sets_passes() {
    let found = Command::new(package().join("locate")).output().unwrap();
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
    let folder = PathBuf::from(String::from_utf8(found.stdout).unwrap().trim());
    if folder == package().join("fixtures") {
        println!("no complete sets on this machine, so no sample of them: the small ones have run");
        return;
    }
    println!("sets in {}: {}", folder.display(), sets(&folder));
    let report = run(folder, Some(SAMPLE));
    assert!(report.is_success());
    let counted = |chosen: fn(&tandem_conformance::Done) -> bool| {
        report.cases.iter().filter(|case| chosen(case)).count()
    };
    assert!(counted(|case| case.setting.http) > 0, "some go over HTTP");
    assert!(counted(|case| case.setting.database) > 0, "some stand on a database");
}
