//! Compares the span catalogue, `tracing/README.md`, with the spans that the code makes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};
use tandem_cluster_tests::repository;

/// Entry of a span in the catalogue.
#[derive(Debug)]
pub struct Entry {
    pub service: String,
    /// Names of its possible parents; empty for a span that begins a trace.
    pub under: BTreeSet<String>,
    /// Whether it may begin a trace.
    pub may_be_root: bool,
}

/// Returns the table by the name of the span.
pub fn catalogue() -> BTreeMap<String, Entry> {
    let text = fs::read_to_string(repository().join("tracing/README.md")).unwrap();
    let (_, table) = text.split_once("| span | service | level | under |").expect("the table");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let mut entries = BTreeMap::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [names, service, level, under, ..] = cells[..] else { panic!("{row}") };
        assert!(["stage", "job"].contains(&level), "{row}");
        for name in quoted(names) {
            let entry = Entry {
                service: service.to_owned(),
                under: quoted(under).collect(),
                may_be_root: under.contains('–'),
            };
            assert!(entry.may_be_root || !entry.under.is_empty(), "{row}");
            assert!(entries.insert(name, entry).is_none(), "{row}: twice");
        }
    }
    entries
}

/// Returns the texts between backticks.
fn quoted(cell: &str) -> impl Iterator<Item = String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned)
}

/// Returns the names in macros such as `info_span!` in the sources of services and libraries.
fn made() -> BTreeMap<String, String> {
    fn walk(folder: &Path, names: &mut BTreeMap<String, String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if !["tests", "benches", "target"].contains(&name.as_str()) {
                    walk(&path, names);
                }
            } else if name.ends_with(".rs") && !name.contains("tests") {
                let text = fs::read_to_string(&path).unwrap();
                // A single function among others may be for tests only, too.
                let code = text.split("#[cfg(test)]\nmod ").next().unwrap();
                for call in code.split("_span!(").skip(1) {
                    // The first literal is the name: earlier arguments are a parent or a target.
                    let literal = call.split('"').nth(1).expect("a span has a name");
                    names.insert(literal.to_owned(), path.display().to_string());
                }
            }
        }
    }
    let mut names = BTreeMap::new();
    for folder in ["services", "crates", "proto/src"] {
        walk(&repository().join(folder), &mut names);
    }
    names
}

#[test]
fn every_span_of_the_code_is_in_the_catalogue_and_the_other_way_round() {
    let (catalogue, made) = (catalogue(), made());
    assert!(made.len() > 20, "the scan found the spans: {made:?}");
    let missing: Vec<_> = made.iter().filter(|(name, _)| !catalogue.contains_key(*name)).collect();
    assert!(missing.is_empty(), "not in the catalogue: {missing:#?}");
    let unknown: Vec<_> = catalogue.keys().filter(|name| !made.contains_key(*name)).collect();
    assert!(unknown.is_empty(), "nobody makes {unknown:?}");
    let parents = catalogue.values().flat_map(|entry| &entry.under);
    let strange: Vec<_> = parents.filter(|name| !catalogue.contains_key(*name)).collect();
    assert!(strange.is_empty(), "parents that are no spans: {strange:?}");
}
