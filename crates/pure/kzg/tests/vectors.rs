//! Conformance vectors of c-kzg-4844; see `data/README.md`.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use flate2::read::GzDecoder;
use std::{
    collections::BTreeMap,
    env, fs,
    io::Read,
    path::{Path, PathBuf},
};
use tandem_kzg::{
    Setup,
    vectors::{self, Outcome},
};

/// Returns every file below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(self::files(&path)) } else { files.push(path) }
    }
    files.sort();
    files
}

/// Counts passed, failed and skipped vectors by suite; the suite is the first folder below `root`.
fn run_all(root: &Path) -> BTreeMap<String, [usize; 3]> {
    let setup = Setup::load();
    let mut counts = BTreeMap::<_, [usize; 3]>::new();
    for path in files(root) {
        let name = path.to_str().unwrap();
        let mut text = String::new();
        if name.ends_with(".yaml.gz") {
            GzDecoder::new(fs::File::open(&path).unwrap()).read_to_string(&mut text).unwrap();
        } else if name.ends_with(".yaml") {
            text = fs::read_to_string(&path).unwrap();
        } else {
            continue;
        }
        let below = path.strip_prefix(root).unwrap();
        let suite = below.iter().next().unwrap().to_str().unwrap().to_owned();
        let outcome = vectors::run(setup, &suite, &text);
        let place = match outcome {
            Outcome::Passed => 0,
            Outcome::Failed(why) => {
                println!("{}: {why}", below.display());
                1
            }
            Outcome::Skipped(_) => 2,
        };
        counts.entry(suite).or_default()[place] += 1;
    }
    counts
}

#[test]
fn the_vectors_kept_here_pass() {
    let counts = run_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data"));
    let total = |place| counts.values().map(|count: &[usize; 3]| count[place]).sum::<usize>();
    assert_eq!((total(1), total(2)), (0, 0), "{counts:?}");
    assert!(total(0) >= 70, "{counts:?}");
}

#[test]
#[ignore = "needs an unpacked copy of all vectors"]
fn all_vectors_pass() {
    let root = PathBuf::from(env::var_os("TANDEM_KZG_VECTORS").unwrap());
    let counts = run_all(&root);
    for (suite, [passed, failed, skipped]) in &counts {
        println!("{suite}: {passed} passed, {failed} failed, {skipped} skipped");
    }
    assert!(!counts.is_empty() && counts.values().all(|[_, failed, _]| *failed == 0));
}
