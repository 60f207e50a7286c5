//! Compares the measured needs of services (docs/operations.md) with what the chart requests for
//! them.

use super::SERVICES;
use crate::deploy::{text, yaml};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Head of the table, with a column for each corpus.
const HEAD: &str = "| service | demo | mixed-30m | erc20-30m |\n";
/// Time between two blocks of a chain, in milliseconds.
const SLOT: f64 = 12_000.0;

/// Parses a number with a Kubernetes suffix into bytes or processors.
fn quantity(value: &Value) -> f64 {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let unit = match suffix {
        "" => 1.0,
        "m" => 1e-3,
        "Mi" => f64::from(1 << 20),
        "Gi" => f64::from(1 << 30),
        _ => panic!("{text}"),
    };
    number.parse::<f64>().unwrap() * unit
}

/// Parses a cell such as `12.3 ms, 45 MiB` into processor milliseconds for a block, and MiB.
fn measured(cell: &str) -> (f64, f64) {
    let (time, memory) = cell.trim().split_once(", ").unwrap_or_else(|| panic!("{cell}"));
    let number = |text: &str, unit| text.strip_suffix(unit).expect(unit).parse().expect(unit);
    (number(time, " ms"), number(memory, " MiB"))
}

#[test]
fn twice_the_memory_is_requested_that_was_measured_and_enough_processors() {
    let manual = text("docs/operations.md");
    let (_, table) = manual.split_once(HEAD).expect("the table of what was measured");
    let rows = table.lines().skip(1).take_while(|line| line.starts_with('|'));
    let rows: BTreeMap<&str, Vec<(f64, f64)>> = rows
        .map(|row| {
            let mut cells = row.trim_matches('|').split('|');
            (cells.next().unwrap().trim(), cells.map(measured).collect())
        })
        .collect();
    assert_eq!(rows.keys().copied().collect::<BTreeSet<_>>(), BTreeSet::from(SERVICES));
    let values = yaml("helm/tandem/values.yaml");
    for (service, corpora) in rows {
        assert_eq!(corpora.len(), 3, "{service}");
        let resources = &values["services"][service]["resources"];
        let processors = quantity(&resources["requests"]["cpu"]);
        let memory = quantity(&resources["requests"]["memory"]) / f64::from(1 << 20);
        let most = quantity(&resources["limits"]["memory"]) / f64::from(1 << 20);
        for (milliseconds, mebibytes) in corpora {
            assert!(processors * SLOT >= milliseconds, "{service} takes {milliseconds} ms a block");
            let want = 2.0 * mebibytes;
            assert!(memory >= want, "{service} takes {mebibytes} MiB, {memory} are requested");
        }
        assert!(most >= memory, "{service} may use {most} MiB and requests {memory}");
    }
}
